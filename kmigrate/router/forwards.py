"""What has left for the source and is not resolved yet, and what the source has acknowledged.

The count per topic is a fence's proof: once the table says hold, no forward of that topic leaves any more (the
swap is one assignment, and forwards are decided under no await), so the count only falls, and 0 means that every
forward of every older epoch is resolved. A forward is resolved when its answer is read, or when its source
connection is lost and the client's connection has been closed for it: what may then still arrive late at the
source lies below the barrier and is in its table, or beyond it and is never copied; the client's retry is judged
by the gate in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.presences import FenceAck
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import RoutingTable, Serve

__all__ = ["Forwards"]

_Marks = dict[int, tuple[int, int]]
_MOST_MARKS = 10_000
"""Marks kept and told of one topic, the newest first to stay: a presence record must fit into one message, and what was
written long ago the source broker remembers better."""


def _most_marks(partitions: int) -> int:
    """Of each of so many partitions; asked with each batch."""
    return _MOST_MARKS // (partitions or 1) or 1


@dataclass(slots=True)
class Forwards:
    """One router's account of forwarded batches, by topic key."""

    in_flight: dict[str, int] = field(default_factory=dict)
    total: int = 0
    bytes: int = 0
    """Of Produce requests that went to a source."""
    _acked: dict[str, dict[int, _Marks]] = field(default_factory=dict)
    _holds: dict[str, dict[int, float]] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)
    _drained: dict[str, int] = field(default_factory=dict)
    """The fence at which nothing of a topic was said to be in flight: what is said once stays true."""

    def leave(self, key: str, count: int = 1) -> None:
        self.enter(key, count)
        self.total += count

    def enter(self, key: str, count: int = 1) -> None:
        """Something of a topic is not resolved from now on: forwards, or a transaction that is open there."""
        self.in_flight[key] = self.in_flight.get(key, 0) + count

    def resolved(self, key: str, count: int = 1) -> bool:
        """The fate of so many forwards is known; whether they were the topic's last in flight."""
        left = self.in_flight[key] - count
        self.in_flight[key] = left
        return left == 0

    def acknowledged(self, key: str, partition: int, producer_id: int, epoch: int, last_sequence: int) -> None:
        """The source has stored a batch of a producer, by the id that the client knows."""
        topic = self._acked.get(key)
        if topic is None:
            topic = self._acked[key] = {}
        marks = topic.get(partition)
        if marks is None:
            marks = topic[partition] = {}
        marks.pop(producer_id, None)  # so that the newest stand last
        marks[producer_id] = (epoch, last_sequence)
        if len(marks) > 1 and len(marks) > _most_marks(len(topic)):  # nearly always one writes a partition
            del marks[next(iter(marks))]

    def held(self, key: str, partition: int, ms: float) -> None:
        """A request was released after so many ms."""
        holds = self._holds.setdefault(key, {})
        holds[partition] = max(holds.get(partition, 0.0), round(ms, 3))

    def follow(self, table: RoutingTable) -> None:
        """Forget the holds of a topic whose next fence begins, and what nobody asks for after a flip or an end.

        What is in flight stays until its fate is known, whatever becomes of its topic.
        """
        alive = {route.key: route for route in table.topics.values()}
        for key, route in alive.items():
            if route.serve is Serve.HOLD and self._epochs.get(key) != route.fence_epoch:
                self._epochs[key] = route.fence_epoch
                self._holds.pop(key, None)
        for key in list(self._acked):
            if key not in alive or alive[key].serve is Serve.LOCAL:
                del self._acked[key]
        for known in (self._drained, self._epochs, self._holds):
            for key in known.keys() - alive.keys():
                del known[key]
        for key in [key for key, count in self.in_flight.items() if not count and key not in alive]:
            del self.in_flight[key]

    def drained(self, key: str, fence_epoch: int) -> bool:
        """Whether this router has said of a fence that nothing is in flight."""
        return self._drained.get(key) == fence_epoch

    def fences(self, table: RoutingTable) -> dict[str, FenceAck]:
        """This router's word on every fenced topic of a table; who says 0 of a fence forwards nothing any more."""
        for route in table.topics.values():
            if route.serve is Serve.HOLD and not self.in_flight.get(route.key, 0):
                self._drained[route.key] = route.fence_epoch
        return {
            route.key: FenceAck(
                epoch=route.fence_epoch,
                in_flight=self.in_flight.get(route.key, 0),
                # After the flip nobody asks for marks, and a seal may stay on for days.
                producers=self._marks(route.key) if route.serve is Serve.HOLD else {},
            )
            for route in table.topics.values()
            if route.fenced
        }

    def _marks(self, key: str) -> dict[int, tuple[ProducerMark, ...]]:
        partitions = self._acked.get(key, {})
        most = _most_marks(len(partitions))
        return {
            partition: tuple(ProducerMark(one, *marks[one]) for one in sorted(list(marks)[-most:]))
            for partition, marks in partitions.items()
        }

    def holds_ms(self) -> Mapping[str, Mapping[int, float]]:
        return {key: dict(holds) for key, holds in self._holds.items()}
