"""Judges each partition of a client's Produce request, and so splits requests by destination.

A request is judged as often as something changes while the request waits, and decided once. Judging changes nothing.
When no partition has to wait any more, the request is stamped, counted and sent, all without an await. Until then
nothing behind the request is looked at, so a producer's order is the order of its connection (B9).

What a partition can meet:

  not mirrored     → target, unchanged
  forward          → source leader, producer id translated (docs/router.md, "Forwarding"); error 6 while another
                     broker has yet to answer a batch of the producer (`produce.in_flight`); after a rollback the gate
                     for first writes comes before
  hold             → wait, at most `hold_limit_s`, a quarter of the request's timeout and 5 s, then error 6 (B6);
                     a batch of a transaction that is open at the source goes there, so that the transaction can
                     end; until then other writes to the topic go there too, because the fence has to wait anyway.
                     Under a rollback's fence every batch waits
  promoted         → the gate for first writes, then target, after a rollback with a translated producer id; a
                     transactional batch whose partition is deferred (`shared.deferred_partitions`) waits until the
                     partition has entered the transaction

The router itself never answers 8, 45, 59 or −1 (B5, B6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.model.ids import is_own_topic
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import DIRECT_LIMIT, Serve, TopicRoute
from kmigrate.protocol.codes import Code
from kmigrate.records.batch import TRANSACTIONAL, Batch, next_sequence, stamp, walk
from kmigrate.router.produce.in_flight import InFlightWrites
from kmigrate.router.produce.ordering import Gaps, ProducerOrderGuard
from kmigrate.router.produce.own_producer import OwnProducer
from kmigrate.router.shared.gate import GateKey, Verdict
from kmigrate.router.shared.state import TARGET, LogProducer, SharedState, StoredBatch
from kmigrate.router.wire.produce import PartitionAnswer, ProducePart, ProduceRequest

__all__ = [
    "AdmitAlone",
    "AnswerHere",
    "Decision",
    "Forward",
    "Held",
    "PassOn",
    "StampedWrite",
    "Wait",
    "Write",
    "WriteDecider",
]


class Write(NamedTuple):
    """A client's batch for a partition of a mirrored or promoted topic."""

    part: ProducePart
    batch: Batch
    route: TopicRoute
    transactional_id: str = ""
    source_producer: tuple[int, int] | None = None
    """Producer id and epoch at the source, of a transactional batch."""

    @property
    def key(self) -> GateKey:
        return self.part.topic, self.part.partition, self.batch.producer_id

    @property
    def in_log(self) -> LogProducer:
        """The producer in the log of the topic's present era, where the topic's writes go now."""
        if self.source_producer is not None:
            producer_id = self.source_producer[0]
        else:
            producer_id = self.batch.producer_id + self.shift
        return TARGET if self.route.at_target else self.route.link, self.part.topic, self.part.partition, producer_id

    @property
    def shift(self) -> int:
        """Number added to the producer id in the present era; a transaction's coordinator knows only the id itself."""
        at_coordinator = self.batch.is_transactional and self.route.at_target
        return 0 if self.own or at_coordinator else self.route.era.shift

    @property
    def producer(self) -> tuple[str, int, int]:
        """Producer of the batch's transaction, as the client knows it: transactional id, producer id, epoch."""
        return self.transactional_id, self.batch.producer_id, self.batch.producer_epoch

    @property
    def own(self) -> bool:
        """True if the batch came without a producer id and gets the router's own."""
        return self.batch.producer_id < 0

    def answer(self, error: int, message: str | None = None) -> PartitionAnswer:
        """Return the client's answer for this partition."""
        return PartitionAnswer(self.part.topic, self.part.partition, error, message=message)


class PassOn(NamedTuple):
    """The partition goes to the target."""

    part: ProducePart
    write: Write | None = None
    """None for a topic without a link."""


class AdmitAlone(NamedTuple):
    """The partition goes to the target; the producer's next batches wait for the answer (gate, B)."""

    write: Write

    @property
    def part(self) -> ProducePart:
        return self.write.part


class Forward(NamedTuple):
    """The partition goes to its leader at the source, under the producer id that the source knows."""

    write: Write
    node: int
    version: int
    """Newest version of Produce that the leader speaks."""
    alone: bool = False
    """True if the producer's next batches wait for the answer (gate, B)."""


class AnswerHere(NamedTuple):
    """The router answers, and no broker gets the partition."""

    part: ProducePart
    error: int = 0
    write: Write | None = None
    behind: bool = False
    """True if the batch is refused because an earlier batch was not taken."""
    base_offset: int = -1
    """Offset of a duplicate's first copy; −1 where that offset is not known."""


class Wait(NamedTuple):
    """The request waits for this partition."""

    write: Write


Decision = PassOn | AdmitAlone | Forward | AnswerHere | Wait


class StampedWrite(NamedTuple):
    """A forwarded batch with the epoch and last sequence under which it has left."""

    write: Write
    epoch: int
    last_sequence: int

    @property
    def key(self) -> GateKey:
        return self.write.key


@dataclass(slots=True)
class Held:
    """A Produce request that waits, first among the requests of its connection."""

    since: float
    """Time of the request's arrival."""
    deadline: float
    request: ProduceRequest
    known: dict[LogProducer, ProducerMark] = field(default_factory=dict)
    """Newest batch of each producer in a log, as the log's cluster reports it: an answer is of no use after a flip."""
    entered: set[GateKey] = field(default_factory=set)
    """Batches that may go to the target, because their partition is in its transaction."""
    asked: set[LogProducer] = field(default_factory=set)
    offsets: dict[LogProducer, int] = field(default_factory=dict)
    """Base offsets of duplicates, read from a log of a former era."""
    refused: dict[GateKey, int] = field(default_factory=dict)
    """Error codes of the target's coordinator for deferred partitions."""
    fenced: dict[tuple[str, int], float] = field(default_factory=dict)
    """Time since which a fence holds each (topic key, partition) of the request."""


def _only_batch(part: ProducePart) -> Batch | Code:
    """Return the single batch that a partition must carry (A2), or a broker's error code for anything else."""
    try:
        batches = list(walk(part.records))
    except ProtocolViolation as violation:
        return Code.INVALID_RECORD if violation.ref == "old-message-format" else Code.CORRUPT_MESSAGE
    if len(batches) != 1 or len(batches[0].view) != len(part.records) or batches[0].producer_id >= DIRECT_LIMIT:
        return Code.INVALID_RECORD  # no cluster hands out such an id: translated, the id might be another producer's
    return batches[0]


class WriteDecider:
    """Decides about a client connection's writes; keeps its own producer id, its stops and the writes under way."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self.own: OwnProducer | None = None
        self.stops = ProducerOrderGuard()
        self._gaps = Gaps()
        self.in_flight = InFlightWrites()

    def decide(self, request: ProduceRequest, held: Held | None) -> list[Decision]:
        """Return a decision for every partition; nothing is changed yet."""
        return [self._decide(request, part, held) for part in request.parts]

    def _decide(self, request: ProduceRequest, part: ProducePart, held: Held | None) -> Decision:
        if is_own_topic(part.topic):
            return AnswerHere(part, Code.TOPIC_AUTHORIZATION_FAILED)
        route = self._shared.table.topics.get(part.topic)
        if route is None:
            return PassOn(part)
        batch = _only_batch(part)
        if not isinstance(batch, Batch):
            return AnswerHere(part, batch)
        write = Write(part, batch, route)
        if route.serve is Serve.LOCAL:
            return self._local(write, held, request.transactional_id)
        if route.rolling_back:
            return Wait(write)
        if batch.is_transactional:
            return self._transactional(write, request.transactional_id)
        if route.serve is Serve.FORWARD and route.gate and not write.own:
            return self._at_gate(write, held)
        behind = batch.producer_id >= 0 and self._blocks(write)
        if behind or route.serve is Serve.HIDDEN:
            return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write, behind)
        return self._forward(write) if route.serve is Serve.FORWARD or self._still_open(route) else Wait(write)

    def _blocks(self, write: Write) -> bool:
        return self.stops.blocks(write.part.topic, write.part.partition, write.batch)

    def _still_open(self, route: TopicRoute) -> bool:
        """Return whether a transaction of this router keeps the fence incomplete; False once reported as drained.

        A topic that was rolled back holds all other writes: under a fence the source has no gate for first writes.
        """
        drained = self._shared.forwards.drained(route.key, route.fence_epoch)
        if route.serve is not Serve.HOLD or route.former_eras:
            return False
        return not drained and self._shared.open_at_source.any_at(route.key)

    def _transactional(self, write: Write, name: str | None) -> Decision:
        """Decide about a transactional batch for the source, under the producer's identity there.

        Under a fence, only batches of an open transaction pass. The topic must be in the transactional id's record,
        because a promote waits for recorded topics only.
        """
        part, batch, route = write.part, write.batch, write.route
        if name is None:
            return AnswerHere(part, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, write)  # as a broker does (A10)
        known = self._shared.table.transactions.get(name, {}).get(route.link)
        write = write._replace(transactional_id=name)
        if known is None or not known.at_source:
            return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write)
        behind = False
        if (known.producer_id, known.epoch) == (batch.producer_id, batch.producer_epoch):
            revoked = known.cut_off or (not known.in_force and route.serve is Serve.FORWARD)
            if revoked or route.outdates(known):
                return AnswerHere(part, Code.INVALID_TXN_STATE, write)
            if known.in_force:
                write = write._replace(source_producer=(known.source_id, known.source_epoch))
                behind = self._blocks(write)
        if known.producer_id == batch.producer_id and batch.producer_epoch < known.epoch:
            return AnswerHere(part, Code.INVALID_PRODUCER_EPOCH, write)
        recorded = write.source_producer is not None and part.topic in known.topics
        if behind or not recorded or route.serve is Serve.HIDDEN:
            return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write, behind)
        passes = route.serve is Serve.FORWARD or self._shared.open_at_source.covers(route.link, name, route.key)
        return self._forward(write) if passes else Wait(write)

    def _forward(self, write: Write, *, alone: bool = False) -> Decision:
        part, link, backend = write.part, write.route.link, self._shared.backend
        node, version = backend.source_leader(link, part.topic, part.partition)
        if node < 0:
            backend.refresh_source(link, part.topic)
            return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write)
        if not write.own and self.in_flight.elsewhere(link, backend.source_layout(link), write.key, node):
            return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write)
        return Wait(write) if write.own and self.own is None else Forward(write, node, version, alone)

    def _local(self, write: Write, held: Held | None, name: str | None) -> Decision:
        part, batch, route = write.part, write.batch, write.route
        if batch.is_transactional and name is not None:
            known = self._shared.table.transactions.get(name, {}).get(route.link)
            over = known if known is not None and (known.cut_off or route.outdates(known)) else None
            if over is not None and (over.producer_id, over.epoch) == (batch.producer_id, batch.producer_epoch):
                return AnswerHere(part, Code.INVALID_TXN_STATE, write)
            return self._entering(write._replace(transactional_id=name), held)
        if batch.producer_id < 0 or batch.is_transactional:
            return PassOn(part, write)
        return self._at_gate(write, held)

    def _at_gate(self, write: Write, held: Held | None) -> Decision:
        part, batch = write.part, write.batch
        known = held.known.get(write.in_log) if held is not None else None
        verdict = self._shared.gate.judge(part.topic, part.partition, batch, known)
        if verdict is Verdict.PASS and self._blocks(write):
            # The written log may not know a producer refused before the flip, and accepts any first sequence then (B3).
            return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write, behind=True)
        if verdict is Verdict.GAP and held is not None and self._gaps.insisted(write.in_log, batch, held.since):
            verdict = Verdict.ADMIT_ALONE
        match verdict:
            case Verdict.PASS:
                return PassOn(part, write) if write.route.at_target else self._forward(write)
            case Verdict.ADMIT_ALONE:
                return AdmitAlone(write) if write.route.at_target else self._forward(write, alone=True)
            case Verdict.WAIT | Verdict.ASK:
                return Wait(write)
            case Verdict.DUPLICATE:
                offset = held.offsets.get(write.in_log, -1) if held is not None else -1
                return AnswerHere(part, 0, write, base_offset=offset)
            case Verdict.FENCED:
                return AnswerHere(part, Code.INVALID_PRODUCER_EPOCH, write)
            case Verdict.GAP:
                return AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER, write)

    def _entering(self, write: Write, held: Held | None) -> Decision:
        """Decide about a batch of a transaction at the target; a partition's first batch goes alone (gate, B)."""
        gate, key = self._shared.gate, write.key
        if key in gate.opened or not self._shared.deferred.may_be(self._shared.table, write.producer, *key[:2]):
            return PassOn(write.part, write)
        if self._blocks(write):
            return AnswerHere(write.part, Code.NOT_LEADER_OR_FOLLOWER, write, behind=True)
        if held is not None and key in held.refused:
            return AnswerHere(write.part, held.refused[key], write)
        waits = held is None or key not in held.entered or key in gate.priming
        return Wait(write) if waits else AdmitAlone(write)

    def passes(self, write: Write) -> None:
        """Note that a batch goes to the target, or is there already: later batches may follow."""
        self.stops.passed(write.part.topic, write.part.partition, write.batch)

    def admitted(self, write: Write, error: int) -> None:
        """Note the outcome of a first batch.

        In a transaction no mark says what comes next, so later batches wait where the first was not appended.
        """
        if write.transactional_id and error in _NOT_APPENDED:
            self.not_appended(write)

    def failed_at_target(self, write: Write, error: int) -> None:
        """Note the target's error for a batch of a topic that can be rolled back.

        After a flip the source may not know the producer, as the target after a promote. So a batch that failed stops
        the batches behind it.
        """
        if error in _NOT_APPENDED and not write.batch.is_transactional:
            self.not_appended(write)

    def stored_at_target(self, writes: Iterable[Write]) -> None:
        """Note batches that the target has stored, of topics that can be rolled back: the barrier gets their marks."""
        acknowledged = self._shared.forwards.acknowledged
        for part, batch, route, *_ in writes:
            if batch.producer_id >= 0 and not batch.attributes & TRANSACTIONAL:
                last = next_sequence(batch.base_sequence, batch.last_offset_delta)
                acknowledged(route.key, part.partition, batch.producer_id, batch.producer_epoch, last)

    def stored(self, write: Write, known: ProducerMark) -> list[tuple[str, StoredBatch]]:
        """Return the places of a duplicate, likeliest first: link or TARGET, and the batch in that log.

        The list is empty for a batch that the written log shows to be no duplicate.
        """
        part, batch, route = write.part, write.batch, write.route
        if self._shared.gate.judge(part.topic, part.partition, batch, known) is not Verdict.DUPLICATE:
            return []
        return [
            (
                TARGET if era.at_target else route.link,
                StoredBatch(batch.producer_id + era.shift, batch.producer_epoch, batch.base_sequence),
            )
            for era in route.former_eras
        ]

    def stamp(self, write: Write) -> StampedWrite:
        """Give a forwarded batch the producer id that the source shall see.

        A broken batch stays broken (`records.crc`), so that the source refuses the batch, as brokers do (A16).
        """
        part, batch, shift = write.part, write.batch, write.route.shift
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        producer_id = batch.producer_id + shift
        if write.own and self.own is not None:
            producer_id = self.own.producer_id + shift
            epoch, sequence = self.own.stamp_for(part.topic, part.partition, batch.last_offset_delta + 1)
        else:
            self.passes(write)
            if write.source_producer is not None:
                producer_id, epoch = write.source_producer
        stamp(batch.view, producer_id=producer_id, epoch=epoch, sequence=sequence, base_offset=None)
        return StampedWrite(write, epoch, next_sequence(sequence, batch.last_offset_delta))

    def not_appended(self, write: Write) -> None:
        """Note that a batch surely did not reach its log: later batches wait until the batch comes again."""
        if not write.own:
            self.stops.failed(write.part.topic, write.part.partition, write.batch)

    def refused(self, write: Write, now: float) -> None:
        """Note a refusal because of an earlier batch; if repeated, ask whether the earlier batch went another way."""
        batch, route, key = write.batch, write.route, write.key
        stop = self.stops.refused(*key[:2], batch, now)
        if stop is None or route.serve is Serve.HIDDEN:
            return
        if stop.insisted(now):
            self.stops.lift(key, stop)
            return
        if stop.asked:
            return
        stop.asked = True

        def found(there: bool | None) -> None:
            stop.asked = False
            if there:
                self.stops.lift(key, stop)

        if route.at_target:
            self._shared.conversations.start(self._shared.has_written(*write.in_log[1:])).then(found)
        else:
            producer = write.source_producer or (batch.producer_id + route.shift, batch.producer_epoch)
            self._shared.backend.source_has(route.link, *key[:2], StoredBatch(*producer, stop.sequence)).then(found)

    def given_up(self, write: Write) -> None:
        """Note that the client is told that a batch will never be taken: the client's next batches may pass."""
        if not write.own:
            self.stops.given_up(write.part.topic, write.part.partition, write.batch)

    def doubtful(self, write: Write, error: int) -> bool:
        """Return whether a source's error may come from a controller that acts for a router that does not answer."""
        return error == Code.MESSAGE_TOO_LARGE or (write.source_producer is not None and error in _OLD_EPOCH)

    def believed(self, write: Write, error: int, *, caught_up: bool) -> int:
        """Return the client's error code for a doubtful answer, after the state log was read, or could not be read.

        NOT_LEADER_OR_FOLLOWER makes the client send the batch again: after a possible seal, if the log could not be
        read, or if a revocation of the identity is not proven. A proven revocation has ended the transaction:
        INVALID_TXN_STATE makes the client abort. Any other error passes unchanged.
        """
        if error == Code.MESSAGE_TOO_LARGE:
            return Code.NOT_LEADER_OR_FOLLOWER if self.sealed(write, caught_up=caught_up) else error
        known = self._shared.table.transactions.get(write.transactional_id, {}).get(write.route.link)
        if not caught_up:
            return Code.NOT_LEADER_OR_FOLLOWER
        if known is None or known.revoked is None or (known.source_id, known.source_epoch) != write.source_producer:
            return error
        return Code.NOT_LEADER_OR_FOLLOWER if known.in_force else Code.INVALID_TXN_STATE

    def sealed(self, write: Write, *, caught_up: bool) -> bool:
        """Return whether the source's MESSAGE_TOO_LARGE may come from the seal of a promote.

        False only if the log was read, and the topic is still in the unsealed state in which the batch was sent. A seal
        is recorded before it is set, and until the broker takes writes again.
        """
        now = self._shared.table.topics.get(write.part.topic)
        same = now is not None and now.serve is Serve.FORWARD and now.fence_epoch == write.route.fence_epoch
        return write.route.sealed or not same or not caught_up

    def outcome(self, sent: StampedWrite, answer: PartitionAnswer) -> PartitionAnswer:
        """Return the client's answer for a forwarded batch, from the source's answer."""
        write, error = sent.write, answer.error
        topic, partition, producer_id = write.key
        if not error:
            # The gate needs no marks: own ids never reach the target, and no transaction outlives the flip.
            if not write.own and write.source_producer is None:
                self._shared.forwards.acknowledged(
                    write.route.key, partition, producer_id, sent.epoch, sent.last_sequence
                )
            return answer
        if error in _MOVED:
            self._shared.backend.refresh_source(write.route.link, topic)
        behind = error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if write.own:
            if self.own is not None:
                self.own.failed(topic, partition, sent.epoch)
        else:
            behind = behind and self._blocks(write)
            if error in _NOT_APPENDED:
                self.not_appended(write)
        return write.answer(Code.NOT_LEADER_OR_FOLLOWER) if behind or error in _MOVED else answer


_MOVED = frozenset({3, 5, 6, 56, 72, 74, 75})
"""Errors of the source that mean that another broker must be asked. Surely not appended, told to the client as 6."""
_OLD_EPOCH = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
_NOT_APPENDED = _MOVED | frozenset({2, 19})
"""Retriable errors after which the batch is surely not in the log."""
