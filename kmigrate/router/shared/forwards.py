"""Counts batches that have left for the cluster that is written, and keeps that cluster's acknowledgements.

The count per topic is a fence's proof. Once the table says hold, no forward of that topic leaves any more: a single
assignment swaps the table, and forwards are decided without an await. So the count only falls, and 0 means that every
forward of every older epoch is resolved.

Under a promote's fence the written cluster is the source. Under a rollback's fence it is the target. Writes to the
target are counted while the topic has a way back. The flip that opens a way back is one record with the promote. So the
first table that sends a write to the target counts the write, and no uncounted write is older than the way back.

A forward is resolved when its answer is read, or when its source connection is lost and the client's connection has
been closed for it. Then the bytes may still arrive late at the source: below the barrier and in the barrier's table, or
beyond the barrier and never copied. In both cases the gate judges the client's retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.presences import FenceAck
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import RoutingTable, Serve, TopicRoute

__all__ = ["InFlightForwards"]

_Marks = dict[int, tuple[int, int, float]]
"""Epoch, last sequence, and time of the source's acknowledgement, by producer id."""
_MOST_MARKS = 10_000
"""Limit of marks per topic, and of marks of all fenced topics in a presence record; the newest marks stay.

The record must fit into a single message, and the router's event loop writes the record.
"""
_LONGEST_S = 900.0
"""Time for which a mark is kept; clients send a batch again for two to five minutes by default."""
_EXPIRE_S = 60.0


def _most_marks(partitions: int) -> int:
    """Return the limit of marks per partition of a topic with so many partitions; called for each batch."""
    return _MOST_MARKS // (partitions or 1) or 1


@dataclass(slots=True)
class InFlightForwards:
    """A router's account of forwarded batches, by topic key."""

    in_flight: dict[str, int] = field(default_factory=dict)
    total: int = 0
    bytes: int = 0
    """Bytes of Produce requests that went to a source."""
    entering: Counter[str] = field(default_factory=Counter)
    """Requests in flight that put partitions into transactions at the target, of topics that can be rolled back."""
    _acked: dict[str, dict[int, _Marks]] = field(default_factory=dict)
    _holds: dict[str, dict[int, float]] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)
    now: float = 0.0
    """The monotonic clock at the last `tick`: to read the clock for each batch would cost as much as a mark."""
    _expired: float = 0.0
    _reported_fences: frozenset[tuple[str, int]] = frozenset()
    """Topics and fences whose marks `_reported` holds."""
    _reported: dict[str, dict[int, tuple[ProducerMark, ...]]] = field(default_factory=dict)
    _routes: Mapping[str, TopicRoute] = field(default_factory=dict)
    """Routes of the newest table."""
    _gone: set[str] = field(default_factory=set)
    """Keys of topics that have no route any more, and forwards in flight."""
    _drained: dict[str, int] = field(default_factory=dict)
    """Fence at which a topic was reported to have nothing in flight, by topic key; such a report stays true."""

    def sent(self, key: str, count: int = 1) -> None:
        """Count forwards that leave for the source now; `opened` alone counts writes to the target."""
        self.opened(key, count)
        self.total += count

    def opened(self, key: str, count: int = 1) -> None:
        """Count something of a topic as not resolved: forwards, writes to the target, or an open transaction."""
        self.in_flight[key] = self.in_flight.get(key, 0) + count

    def resolved(self, key: str, count: int = 1) -> bool:
        """Note that the fate of so many forwards is known; return whether they were the topic's last in flight."""
        left = self.in_flight[key] - count
        self.in_flight[key] = left
        return left == 0

    def acknowledged(self, key: str, partition: int, producer_id: int, epoch: int, last_sequence: int) -> None:
        """Note that the written cluster has stored a batch of a producer, under the id that the client knows."""
        topic = self._acked.get(key)
        if topic is None:
            topic = self._acked[key] = {}
        marks = topic.get(partition)
        if marks is None:
            marks = topic[partition] = {}
        marks.pop(producer_id, None)  # so that the newest stand last
        marks[producer_id] = (epoch, last_sequence, self.now)
        if len(marks) > 1 and len(marks) > _most_marks(len(topic)):  # a partition rarely has more than a single writer
            del marks[next(iter(marks))]

    def tick(self, now: float) -> None:
        """Take the time, and now and then drop marks that no client asks for any more."""
        self.now = now
        if now - self._expired < _EXPIRE_S:
            return
        self._expired = now
        for partitions in self._acked.values():
            for marks in partitions.values():
                while marks and marks[oldest := next(iter(marks))][2] < now - _LONGEST_S:
                    del marks[oldest]

    def held(self, key: str, partition: int, ms: float) -> None:
        """Note that a request was released after so many ms."""
        holds = self._holds.setdefault(key, {})
        holds[partition] = max(holds.get(partition, 0.0), round(ms, 3))

    def follow(self, table: RoutingTable) -> None:
        """Forget holds when a topic's next fence begins, and all that is not needed after a flip or an end.

        The count in flight stays until the fate of all forwards is known, whatever becomes of their topic.
        """
        for route in table.routes.fenced.values():
            if route.serve is Serve.HOLD and self._epochs.get(route.key) != route.fence_epoch:
                self._epochs[route.key] = route.fence_epoch
                self._holds.pop(route.key, None)
        before, self._routes = self._routes, table.topics
        changed = [(before.get(name), table.topics.get(name)) for name in table.changes_since(before)]
        for old, new in changed:
            if old is not None and new is not None and old.era != new.era:
                self._acked.pop(old.key, None)  # the barrier table of the flip has these producers
        keys = {route.key for both in changed for route in both if route is not None} | self._gone
        if not before:
            keys.update(self._acked, self._drained, self._epochs, self._holds, self.in_flight)
        for key in keys:
            self._keep_needed(key, table.route_of(key))

    def _keep_needed(self, key: str, route: TopicRoute | None) -> None:
        if route is None or (route.at_target and not route.copied_back):
            self._acked.pop(key, None)
        self._gone.discard(key)
        if route is not None:
            return
        for known in (self._drained, self._epochs, self._holds):
            known.pop(key, None)
        if self.in_flight.get(key):
            self._gone.add(key)
        else:
            self.in_flight.pop(key, None)

    def drained(self, key: str, fence_epoch: int) -> bool:
        """Return whether this router has reported for a fence that nothing is in flight."""
        return self._drained.get(key) == fence_epoch

    def fences(self, table: RoutingTable) -> dict[str, FenceAck]:
        """Return this router's report on every fenced topic of a table.

        A router that reports 0 in flight forwards nothing any more; then the marks are final, and go along, made once.
        After the flip no marks are needed, and a seal may stay on for days.
        """
        fenced = table.routes.fenced.values()
        held = [route for route in fenced if route.serve is Serve.HOLD]
        for route in held:
            if not self._unresolved(route):
                self._drained[route.key] = route.fence_epoch
        fences = frozenset((r.key, r.fence_epoch) for r in held if self.drained(r.key, r.fence_epoch))
        if fences != self._reported_fences:
            self._reported_fences = fences
            most = _MOST_MARKS // (len(fences) or 1)
            self._reported = {key: self._marks(key, most) for key, _ in fences}
        return {
            route.key: FenceAck(
                epoch=route.fence_epoch,
                in_flight=self._unresolved(route),
                producers=self._reported.get(route.key, {}),
            )
            for route in fenced
        }

    def _unresolved(self, route: TopicRoute) -> int:
        """Return the number of requests that a fence waits for; before a rollback's fence, of a transaction's begin."""
        return self.entering[route.key] + (0 if route.closing else self.in_flight.get(route.key, 0))

    def _marks(self, key: str, most: int) -> dict[int, tuple[ProducerMark, ...]]:
        partitions, oldest = self._acked.get(key, {}), self.now - _LONGEST_S
        share = most // (len(partitions) or 1) or 1
        found: dict[int, tuple[ProducerMark, ...]] = {}
        for partition, marks in partitions.items():
            newest = [(one, *marks[one][:2]) for one in list(marks)[-share:] if marks[one][2] >= oldest]
            if newest:
                found[partition] = tuple(ProducerMark(*mark) for mark in sorted(newest))
        return found

    def holds_ms(self) -> Mapping[str, Mapping[int, float]]:
        """Return the longest hold of a request at the newest fence in ms, by topic key and partition."""
        return {key: dict(holds) for key, holds in self._holds.items()}
