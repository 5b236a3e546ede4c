"""Tracks the writes of a client connection that source brokers have not answered.

Each source broker has a connection of its own, so batches to two brokers may arrive in any order. A new leader that
gets a producer's next batch first calls the batch a gap (45). A new leader that does not know the producer takes the
batch for the producer's first (B3), and then calls the earlier batch a gap. So a producer's next batch goes to a new
leader only when the old leader has answered.

Leaders seldom move: nothing is searched while the source's layout is the layout under which the oldest write was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kmigrate.router.shared.gate import GateKey, Keyed

__all__ = ["InFlightWrites", "UpstreamWrite"]


_B = TypeVar("_B", bound=Keyed)


@dataclass(slots=True, eq=False)
class UpstreamWrite(Generic[_B]):
    """The destination of a request, with the request's batches."""

    link: str
    node: int
    version: int
    layout: object
    """Layout of the source at the time of the look-up of the leader."""
    batches: list[_B]


@dataclass(slots=True)
class InFlightWrites:
    """The requests under way, oldest first."""

    _sent: dict[UpstreamWrite[Any], None] = field(default_factory=dict)
    _oldest: UpstreamWrite[Any] | None = None
    """Oldest request at the last call of `stands`."""

    def send(self, way: UpstreamWrite[Any]) -> None:
        """Note a request that leaves for a source broker."""
        self._sent[way] = None

    def answered(self, way: UpstreamWrite[Any]) -> None:
        """Forget a request whose fate is known, or whose client's connection is closed for it."""
        del self._sent[way]

    def predates(self, link: str, layout: object) -> bool:
        """Return whether a source has not answered a request that was sent under another layout."""
        for way in self._sent:
            if way.link == link:
                return way.layout is not layout
        return False

    def stands(self) -> bool:
        """Return whether the oldest request was the oldest at the last call, too."""
        before, self._oldest = self._oldest, next(iter(self._sent), None)
        return self._oldest is not None and self._oldest is before

    def topics(self) -> set[tuple[str, str]]:
        """Return link and topic of everything under way."""
        return {(way.link, batch.key[0]) for way in self._sent for batch in way.batches}

    def elsewhere(self, link: str, layout: object, key: GateKey, node: int) -> bool:
        """Return whether another broker has yet to answer a batch of a partition and producer."""
        return self.predates(link, layout) and any(
            way.link == link and way.node != node and any(batch.key == key for batch in way.batches)
            for way in self._sent
        )
