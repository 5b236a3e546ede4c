"""Guards first writes: decides after a flip which batch of a producer may be the first in the log that is written now.

After a promote that log is the target's, after a rollback the source's; the *other* cluster's log was written before. A
broker that does not know a producer id accepts any first sequence (B3). So right after a topic's flip only the router
knows which sequence comes next, from the barrier table: per partition, the (id, epoch, last sequence) of each producer
that the other cluster holds below the barrier.

A  A producer that is not in the table passes: its batch is its first anywhere.
B  Until the written log is known to hold the producer, only the batch right after the barrier passes (last + 1, or
   sequence 0 of a later epoch). That batch passes *alone*: were a second batch in flight, a refusal of the first would
   let the second in (W3).
C  Once such a write is acknowledged, or DescribeProducers shows that the written log knows the id, the producer is
   open until the next flip. From then on the broker judges.
D  A batch at or below the barrier is a retry of a batch that the other cluster has and the mirror has copied: answered
   as a duplicate, and never forwarded. A retry may also come when the batch after the barrier has passed, because the
   other cluster had stored the retried batch and answered an error. So the router asks for the producer's last sequence
   in the written log. A batch up to that sequence is a duplicate, through whichever router the batch comes; a batch
   beyond is new: the producer's sequences have wrapped.
E  A batch shortly after the batch that follows the barrier would be a gap: answered with a retriable "not leader", and
   forwarded only after the client has insisted for seconds (`produce.ordering`). A batch so far from the barrier that
   no client has as much under way follows something that the log has forgotten (V6). Both kinds pass as in B.
F  Each flip begins an era (`TopicRoute.era`), and nothing that the gate has learned of a topic lasts longer than its
   era: the next era's log knows none of the producers.

Sequences wrap at 2^31 and compare in that ring. The gate's state belongs to a single process; another router, or a
restarted router, learns of open producers by C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kmigrate.model.ids import SEQUENCES
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import RoutingTable, TopicRoute
from kmigrate.records.batch import Batch

__all__ = ["FirstWriteGate", "GateKey", "Keyed", "Verdict", "ring_distance"]

_NEAR = 1 << 24
"""Number far above the records that a client has under way, and far below the number of sequences."""

GateKey = tuple[str, int, int]
"""Topic, partition, producer id as the client knows it."""
_NO_MARKS: Mapping[int, ProducerMark] = {}


class Keyed(Protocol):
    """A batch under way, in any representation that the router uses."""

    @property
    def key(self) -> GateKey: ...


class Verdict(Enum):
    PASS = "pass"
    ADMIT_ALONE = "prime"
    """Pass alone; `settled` must be called with the outcome."""
    WAIT = "wait"
    """Another batch of this producer is priming."""
    ASK = "ask"
    """Ask whether the written log knows the producer, then judge again."""
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    """The epoch is older than the barrier's."""
    GAP = "gap"


def ring_distance(later: int, earlier: int) -> int:
    """Return how far `later` is ahead of `earlier` in the ring of sequences; negative where `later` is behind."""
    ahead = (later - earlier) % SEQUENCES
    return ahead - SEQUENCES if ahead >= SEQUENCES // 2 else ahead


@dataclass(slots=True)
class FirstWriteGate:
    """The gate's marks and the producers that have passed, shared by all client connections of a router."""

    marks: dict[tuple[str, int], dict[int, ProducerMark]] = field(default_factory=dict)
    _routes: Mapping[str, TopicRoute] = field(default_factory=dict)
    """Routes of the newest loaded table, from which the marks were made."""
    opened: set[GateKey] = field(default_factory=set)
    _round: set[GateKey] = field(default_factory=set)
    """Producers whose sequences have wrapped past the barrier's: their batches repeat nothing below the barrier."""
    priming: dict[GateKey, object] = field(default_factory=dict)
    """Client connection that will get the outcome of the priming batch, by producer."""
    _behind: dict[GateKey, dict[Callable[[], None], None]] = field(default_factory=dict)
    """Callbacks at the outcome in order of arrival, by producer: after a flip thousands wait for other producers."""

    def load(self, table: RoutingTable) -> None:
        """Take the barrier tables of all flipped topics; what belongs to a former era of a topic is dropped (F)."""
        if self._routes is table.topics:
            return
        before, self._routes = self._routes, table.topics
        flipped: set[str] = set()
        for name in table.changes_since(before):
            old, new = before.get(name), table.topics.get(name)
            if old is not None and (new is None or old.era != new.era):
                flipped.add(name)
                for partition in range(old.partitions):
                    self.marks.pop((name, partition), None)
            # A fence has no table, and a fence that is given up ends no era: the marks stay meanwhile.
            for partition, producers in _barrier_of(new).items():
                # A topic may have thousands of producers, and a table is made at each change.
                if name in flipped or _barrier_of(old).get(partition) is not producers:
                    self.marks[name, partition] = {mark.producer_id: mark for mark in producers}
        if flipped:
            self.opened = {key for key in self.opened if key[:2] in self.marks and key[0] not in flipped}
            self._round = {key for key in self._round if key[:2] in self.marks and key[0] not in flipped}

    def passes(self, key: GateKey, epoch: int, last: int) -> bool:
        """Return whether a batch with this last sequence passes without a question; nothing is learned."""
        mark = self.marks.get(key[:2], _NO_MARKS).get(key[2])
        return mark is None or (key in self.opened and (key in self._round or not _may_repeat(mark, epoch, last)))

    def judge(self, topic: str, partition: int, batch: Batch, known: ProducerMark | None) -> Verdict:
        """Return how to treat a batch; `known` is the written log's answer to an earlier ASK verdict."""
        key = (topic, partition, batch.producer_id)
        if self.passes(key, batch.producer_epoch, _last(batch)):
            return Verdict.PASS
        mark = self.marks[key[:2]][batch.producer_id]
        if key in self.priming:
            return Verdict.WAIT
        if _is_next(mark, batch):
            return Verdict.ADMIT_ALONE
        if known is None:
            return Verdict.ASK
        if known.last_sequence < 0:
            return _first_of(mark, batch)
        self.opened.add(key)
        if not _may_repeat(mark, batch.producer_epoch, _last(batch)):
            return Verdict.PASS
        if known.epoch == batch.producer_epoch and ring_distance(_last(batch), known.last_sequence) <= 0:
            return Verdict.DUPLICATE
        self._round.add(key)
        return Verdict.PASS

    def prime(self, key: GateKey, connection: object) -> None:
        """Note that a connection sends the priming batch of a producer."""
        self.priming[key] = connection

    def wait_for(self, key: GateKey, look: Callable[[], None]) -> None:
        """Call `look` once the priming batch of the producer is settled."""
        self._behind.setdefault(key, {})[look] = None

    def look_again(self, keys: Iterable[GateKey]) -> None:
        """Call everything that waits for these producers, in order of arrival."""
        for look in [look for key in keys for look in self._behind.pop(key, ())]:
            look()

    def settled(self, key: GateKey, accepted: bool) -> None:
        """Note the outcome of the priming batch."""
        self.priming.pop(key, None)
        if accepted:
            self.opened.add(key)

    def left(self, connection: object) -> list[GateKey]:
        """Return producers whose priming outcome a closed connection left unknown; the caller wakes all that wait."""
        unknown = [key for key, whose in self.priming.items() if whose is connection]
        for key in unknown:
            del self.priming[key]
        return unknown


def _barrier_of(route: TopicRoute | None) -> Mapping[int, tuple[ProducerMark, ...]]:
    """Return the producers below the barrier of a topic's newest flip, by partition."""
    return route.gate if route is not None else {}


def _is_next(mark: ProducerMark, batch: Batch) -> bool:
    if batch.producer_epoch > mark.epoch:
        return batch.base_sequence == 0
    return batch.producer_epoch == mark.epoch and batch.base_sequence == (mark.last_sequence + 1) % SEQUENCES


def _last(batch: Batch) -> int:
    return (batch.base_sequence + batch.count - 1) % SEQUENCES


def _may_repeat(mark: ProducerMark, epoch: int, last: int) -> bool:
    """Return whether a batch is below the barrier, or its producer's sequences have wrapped to there."""
    of_mark = epoch == mark.epoch and mark.last_sequence >= 0
    return of_mark and -_NEAR < ring_distance(last, mark.last_sequence) <= 0


def _first_of(mark: ProducerMark, batch: Batch) -> Verdict:
    """Return how to treat a batch of which the written log holds nothing, and which is not next after the barrier."""
    if batch.producer_epoch < mark.epoch:
        return Verdict.FENCED
    if _may_repeat(mark, batch.producer_epoch, _last(batch)):
        return Verdict.DUPLICATE
    after = mark.last_sequence if batch.producer_epoch == mark.epoch else -1
    return Verdict.GAP if abs(ring_distance(batch.base_sequence, after)) <= _NEAR else Verdict.ADMIT_ALONE
