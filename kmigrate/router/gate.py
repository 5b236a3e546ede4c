"""The gate for first writes: after the flip, which batch of a producer may be the target's first of it.

A broker that does not know a producer id accepts any first sequence (B3), so right after a topic's flip the
router is the only one who knows what comes next. The barrier table says it: per partition the (id, epoch, last
sequence) that the source holds below the barrier.

A  A producer that is not in the table passes: whatever it sends is its first batch anywhere.
B  Until the target is known to hold the producer, only the batch right after the barrier passes
   (last + 1, or sequence 0 of a later epoch), and it passes *alone*: were a second one in flight, a refusal of
   the first would let the second in (W3).
C  Once such a write is acknowledged, or DescribeProducers shows that the target knows the id, the producer is
   open for good and the broker judges it.
D  A batch at or below the barrier is a retry of what the source already has and the mirror has copied: it is
   answered as the duplicate it is, and never forwarded. So is one that comes when the batch after the barrier has
   passed here (the source had stored it and told an error), until its producer is so far from the barrier that its
   sequences may come round again.
E  Anything else would be a gap: retriable "not leader", never forwarded.

Sequences wrap at 2^31 and compare in that ring. The state is one process's; another router, or this one started
anew, learns of open producers by C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kmigrate.model.ids import SEQUENCES
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import RoutingTable, Serve
from kmigrate.records.batch import Batch

__all__ = ["Gate", "GateKey", "Keyed", "Verdict"]

_NEAR = 1 << 24
"""Far more records than a client has under way, and far fewer than sequences."""

GateKey = tuple[str, int, int]
"""Topic, partition, producer id as the client knows it."""


class Keyed(Protocol):
    """A batch on its way, as any part of the router has it."""

    @property
    def key(self) -> GateKey: ...


class Verdict(Enum):
    PASS = "pass"
    PRIME = "prime"
    """Pass alone; `settled` must be called with its outcome."""
    WAIT = "wait"
    """Another batch of this producer is priming."""
    ASK = "ask"
    """Ask the target whether it knows the producer, then judge again."""
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    """An older epoch than the barrier's."""
    GAP = "gap"


def ring_distance(later: int, earlier: int) -> int:
    """How far `later` is ahead of `earlier` in the ring of sequences; negative where it is behind."""
    ahead = (later - earlier) % SEQUENCES
    return ahead - SEQUENCES if ahead >= SEQUENCES // 2 else ahead


@dataclass(slots=True)
class Gate:
    """The gate's marks and what has passed so far, shared by all client connections of a router."""

    marks: dict[tuple[str, int], dict[int, ProducerMark]] = field(default_factory=dict)
    opened: set[GateKey] = field(default_factory=set)
    _near: set[GateKey] = field(default_factory=set)
    """Producers whose batch after the barrier has passed here, and that have written little since."""
    priming: dict[GateKey, object] = field(default_factory=dict)
    """Whose batch primes: the client connection that will hear of its outcome."""

    def load(self, table: RoutingTable) -> None:
        """Take the barrier tables of all promoted topics; those of topics that are not promoted are dropped."""
        marks: dict[tuple[str, int], dict[int, ProducerMark]] = {}
        for topic, route in table.topics.items():
            if route.serve is Serve.LOCAL:
                for partition, producers in route.gate.items():
                    marks[(topic, partition)] = {mark.producer_id: mark for mark in producers}
        self.marks = marks
        self.opened = {key for key in self.opened if key[:2] in marks}
        self._near = {key for key in self._near if key[:2] in marks}

    def judge(self, topic: str, partition: int, batch: Batch, known: Mapping[GateKey, bool]) -> Verdict:
        """What to do with a batch; `known` holds the target's answers to earlier ASK verdicts."""
        mark = self.marks.get((topic, partition), {}).get(batch.producer_id)
        if mark is None:
            return Verdict.PASS
        key = (topic, partition, batch.producer_id)
        if key in self._near and self._repeats(key, mark, batch):
            return Verdict.DUPLICATE
        if key in self.opened:
            return Verdict.PASS
        if key in self.priming:
            return Verdict.WAIT
        if _is_next(mark, batch):
            return Verdict.PRIME
        if key not in known:
            return Verdict.ASK
        if known[key]:
            self.opened.add(key)
            return Verdict.PASS
        return _stale_or_gap(mark, batch)

    def _repeats(self, key: GateKey, mark: ProducerMark, batch: Batch) -> bool:
        """Whether a batch of a producer that has passed here is below the barrier; not once it is far from that.

        Behind it, too: who has written elsewhere meanwhile may have come round, and repeats nothing.
        """
        if batch.producer_epoch > mark.epoch or abs(ring_distance(batch.base_sequence, mark.last_sequence)) > _NEAR:
            self._near.discard(key)
            return False
        return _stale_or_gap(mark, batch) is Verdict.DUPLICATE

    def prime(self, key: GateKey, connection: object) -> None:
        self.priming[key] = connection
        self._near.add(key)

    def settled(self, key: GateKey, accepted: bool) -> None:
        """The priming batch's outcome is known."""
        self.priming.pop(key, None)
        if accepted:
            self.opened.add(key)

    def left(self, connection: object) -> bool:
        """A connection is gone: what of it primes will never be known; whether there was any."""
        unknown = [key for key, whose in self.priming.items() if whose is connection]
        for key in unknown:
            del self.priming[key]
        return bool(unknown)


def _is_next(mark: ProducerMark, batch: Batch) -> bool:
    if batch.producer_epoch > mark.epoch:
        return batch.base_sequence == 0
    return batch.producer_epoch == mark.epoch and batch.base_sequence == (mark.last_sequence + 1) % SEQUENCES


def _stale_or_gap(mark: ProducerMark, batch: Batch) -> Verdict:
    if batch.producer_epoch < mark.epoch:
        return Verdict.FENCED
    if batch.producer_epoch > mark.epoch or mark.last_sequence < 0:
        return Verdict.GAP
    last = (batch.base_sequence + batch.count - 1) % SEQUENCES
    return Verdict.DUPLICATE if ring_distance(last, mark.last_sequence) <= 0 else Verdict.GAP
