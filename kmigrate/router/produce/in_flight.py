"""Tracks the writes of a client connection that source brokers have not answered.

Each source broker has a connection of its own, so batches to two brokers may arrive in any order. A new leader that
gets a producer's next batch first calls the batch a gap (45). If the new leader does not know the producer, it takes
the batch for the first (B3), and calls the earlier batch a gap. So a producer's next batch goes to a new leader only
when the old leader has answered. Leaders seldom move, so nothing is searched while the layout is the oldest write's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kmigrate.router.shared.gate import GateKey, Keyed

__all__ = ["InFlightWrites", "UpstreamWrite"]


_B_co = TypeVar("_B_co", bound=Keyed, covariant=True)


@dataclass(slots=True, eq=False)
class UpstreamWrite(Generic[_B_co]):
    """The destination of a request, with the request's batches."""

    link: str
    node: int
    version: int
    layout: object
    """Layout of the source at the time of the look-up of the leader."""
    batches: Sequence[_B_co]


@dataclass(slots=True)
class InFlightWrites:
    """The requests under way, oldest first."""

    _sent: dict[UpstreamWrite[Keyed], None] = field(default_factory=dict)
    _oldest: UpstreamWrite[Keyed] | None = None
    """Oldest request at the last call of `stands`."""

    def send(self, write: UpstreamWrite[Keyed]) -> None:
        """Note a request that leaves for a source broker."""
        self._sent[write] = None

    def answered(self, write: UpstreamWrite[Keyed]) -> None:
        """Forget a request whose fate is known, or whose client's connection is closed for it."""
        del self._sent[write]

    def predates(self, link: str, layout: object) -> bool:
        """Return whether a source has not answered a request that was sent under another layout."""
        for write in self._sent:
            if write.link == link:
                return write.layout is not layout
        return False

    def stands(self) -> bool:
        """Return whether the oldest request was the oldest at the last call, too."""
        before, self._oldest = self._oldest, next(iter(self._sent), None)
        return self._oldest is not None and self._oldest is before

    def topics(self) -> set[tuple[str, str]]:
        """Return link and topic of everything under way."""
        return {(write.link, batch.key[0]) for write in self._sent for batch in write.batches}

    def elsewhere(self, link: str, layout: object, key: GateKey, node: int) -> bool:
        """Return whether another broker has yet to answer a batch of a partition and producer."""
        return self.predates(link, layout) and any(
            write.link == link and write.node != node and any(batch.key == key for batch in write.batches)
            for write in self._sent
        )
