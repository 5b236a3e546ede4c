"""Writes of one client connection that source brokers have not answered.

Each source broker is sent to over a connection of its own, so batches that are sent to two of them may arrive in any
order. A new leader that is given a producer's next batch first calls it a gap (45), or, where it knows nothing of the
producer, takes it for the first one (B3), and the batch before it for a gap. So a producer's next batch goes to a new
leader when the old one has answered.

Leaders seldom move: nothing is looked for while the source's layout is the one with which the oldest write was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kmigrate.router.gate import GateKey, Keyed

__all__ = ["Pipeline", "Way"]


_B = TypeVar("_B", bound=Keyed)


@dataclass(slots=True, eq=False)
class Way(Generic[_B]):
    """Where a request goes, with its batches."""

    link: str
    node: int
    version: int
    layout: object
    """Of the source when its leader was looked up."""
    batches: list[_B]


@dataclass(slots=True)
class Pipeline:
    """Requests under way, the oldest first."""

    _sent: dict[Way[Any], None] = field(default_factory=dict)
    _oldest: Way[Any] | None = None
    """When `stands` was asked last."""

    def send(self, way: Way[Any]) -> None:
        self._sent[way] = None

    def answered(self, way: Way[Any]) -> None:
        """The fate of a request is known, or its client's connection is closed for it."""
        del self._sent[way]

    def predates(self, link: str, layout: object) -> bool:
        """Whether anything was sent that a source has not answered when its layout was another."""
        for way in self._sent:
            if way.link == link:
                return way.layout is not layout
        return False

    def stands(self) -> bool:
        """Whether the oldest one was that already when this was asked last."""
        before, self._oldest = self._oldest, next(iter(self._sent), None)
        return self._oldest is not None and self._oldest is before

    def topics(self) -> set[tuple[str, str]]:
        """Link and topic of all that is under way."""
        return {(way.link, batch.key[0]) for way in self._sent for batch in way.batches}

    def elsewhere(self, link: str, layout: object, key: GateKey, node: int) -> bool:
        """Whether another broker than this one has yet to answer a batch of a partition and producer."""
        return self.predates(link, layout) and any(
            way.link == link and way.node != node and any(batch.key == key for batch in way.batches)
            for way in self._sent
        )
