"""Judges each partition of a client's Produce request, and so splits requests by destination.

A request is judged as often as something changes while the request waits, and decided once. First, every partition is
judged without changing anything. When no partition has to wait any more, the request is stamped, counted and sent, all
without an await. While a request waits, nothing behind it on the connection is looked at. So a producer's order is the
order of its connection (B9).

What a partition can meet:

  not mirrored     → target, unchanged
  forward          → source leader, producer id translated (docs/router.md, "Forwarding"); error 6 while another
                     broker has yet to answer a batch of the producer (`produce.in_flight`)
  hold             → wait, at most `hold_limit_s`, a quarter of the request's timeout and 5 s, then error 6 (B6);
                     a batch of a transaction that is open at the source goes there, so that the transaction can
                     end; until then other writes to the topic go there too, because the fence has to wait anyway
  promoted         → the gate for first writes, then target; a transactional batch whose partition is late
                     (`shared.deferred_partitions`) waits until the partition has entered the transaction

The router itself never answers 8, 45, 59 or −1 (B5, B6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kmigrate.errors import ProtocolViolation
from kmigrate.model.ids import is_own_topic
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import DIRECT_LIMIT, Serve, TopicRoute
from kmigrate.protocol.codes import Code
from kmigrate.records.batch import Batch, next_sequence, stamp, walk
from kmigrate.router.produce.in_flight import InFlightWrites
from kmigrate.router.produce.ordering import Gaps, ProducerOrderGuard
from kmigrate.router.produce.own_producer import OwnProducer
from kmigrate.router.shared.gate import GateKey, Verdict
from kmigrate.router.shared.state import SharedState, StoredBatch
from kmigrate.router.wire.produce import PartitionAnswer, ProducePart, ProduceRequest

__all__ = ["Held", "Move", "Plan", "WriteDecider"]


class Move(Enum):
    """Destination of a partition of a request."""

    TARGET = "target"
    ADMIT_ALONE = "prime"
    SOURCE = "source"
    ANSWER = "answer"
    WAIT = "wait"


@dataclass(slots=True)
class Plan:
    """The decision for a partition of a request."""

    part: ProducePart
    move: Move
    batch: Batch | None = None
    route: TopicRoute | None = None
    node: int = -1
    version: int = 0
    error: int = 0
    message: str | None = None
    epoch: int = -1
    last_sequence: int = -1
    transactional_id: str = ""
    source_holder: tuple[int, int] | None = None
    """Producer id and epoch at the source, of a transactional batch."""
    behind: bool = False
    """True if the batch is refused because an earlier batch was not taken."""
    base_offset: int = -1
    """Offset of a duplicate's first copy; −1 where that offset is not known."""

    def answer(self, error: int, message: str | None = None) -> PartitionAnswer:
        """Return the client's answer for this partition."""
        return PartitionAnswer(self.part.topic, self.part.partition, error, self.base_offset, message=message)

    @property
    def key(self) -> GateKey:
        return (self.part.topic, self.part.partition, self.batch.producer_id if self.batch else -1)

    @property
    def holder(self) -> tuple[str, int, int]:
        """Holder of the batch's transaction, as the client knows it: transactional id, producer id, epoch."""
        assert self.batch is not None
        return self.transactional_id, self.batch.producer_id, self.batch.producer_epoch

    @property
    def own(self) -> bool:
        """True if the batch came without a producer id and gets the router's own."""
        return self.batch is not None and self.batch.producer_id < 0


@dataclass(slots=True)
class Held:
    """A Produce request that waits, first among the requests of its connection."""

    since: float
    """Time of the request's arrival."""
    deadline: float
    request: ProduceRequest
    known: dict[GateKey, ProducerMark] = field(default_factory=dict)
    """Newest batch of each producer in the target's log, as the target has told it."""
    entered: set[GateKey] = field(default_factory=set)
    """Batches that may go to the target, because their partition is in its transaction."""
    asked: set[GateKey] = field(default_factory=set)
    offsets: dict[GateKey, int] = field(default_factory=dict)
    """Base offsets of duplicates, read from the source's log."""
    refused: dict[GateKey, int] = field(default_factory=dict)
    """Error codes of the target's coordinator for late partitions."""
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
    """Judges partitions for a client connection; keeps its own producer id, the stop rule and the writes under way."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self.own: OwnProducer | None = None
        self.stops = ProducerOrderGuard()
        self._gaps = Gaps()
        self.pipeline = InFlightWrites()

    def judge(self, request: ProduceRequest, held: Held | None) -> list[Plan]:
        """Return a plan for every partition; nothing is changed yet."""
        return [self._judge(request, part, held) for part in request.parts]

    def _judge(self, request: ProduceRequest, part: ProducePart, held: Held | None) -> Plan:
        if is_own_topic(part.topic):
            return Plan(part, Move.ANSWER, error=Code.TOPIC_AUTHORIZATION_FAILED)
        route = self._shared.table.topics.get(part.topic)
        if route is None:
            return Plan(part, Move.TARGET)
        batch = _only_batch(part)
        if not isinstance(batch, Batch):
            return Plan(part, Move.ANSWER, route=route, error=batch)
        if route.serve is Serve.LOCAL:
            return self._local(part, batch, route, held, request.transactional_id)
        plan = Plan(part, Move.WAIT, batch, route)
        if batch.is_transactional:
            return self._transactional(plan, batch, route, request.transactional_id)
        plan.behind = batch.producer_id >= 0 and self.stops.blocks(part.topic, part.partition, batch)
        if plan.behind or route.serve is Serve.HIDDEN:
            plan.move, plan.error = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER
        elif route.serve is Serve.FORWARD or self._still_open(route):
            self._forward(plan, batch, route)
        return plan

    def _still_open(self, route: TopicRoute) -> bool:
        """Return whether a transaction of this router still keeps the topic's fence from being complete.

        False once this router has reported that nothing of the topic is in flight.
        """
        drained = self._shared.forwards.drained(route.key, route.fence_epoch)
        return route.serve is Serve.HOLD and not drained and self._shared.open_at_source.any_at(route.key)

    def _transactional(self, plan: Plan, batch: Batch, route: TopicRoute, name: str | None) -> Plan:
        """Plan a transactional batch for the source, under the holder's producer id there.

        Under a fence, only batches of an open transaction pass. The topic must be in the transactional id's record,
        because a promote waits for recorded topics only.
        """
        if name is None:
            plan.move, plan.error = Move.ANSWER, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # as a broker does (A10)
            return plan
        known = self._shared.table.transactions.get(name, {}).get(route.link)
        held = (known.producer_id, known.epoch) if known is not None else (-1, -1)
        plan.transactional_id = name
        same = held == (batch.producer_id, batch.producer_epoch)
        if known is not None and same and (known.cut_off or (not known.in_force and route.serve is Serve.FORWARD)):
            plan.move, plan.error = Move.ANSWER, Code.INVALID_TXN_STATE
            return plan
        if known is not None and same and known.in_force:
            plan.source_holder = (known.source_id, known.source_epoch)
            plan.behind = self.stops.blocks(plan.part.topic, plan.part.partition, batch)
        if held[0] == batch.producer_id and batch.producer_epoch < held[1]:
            plan.move, plan.error = Move.ANSWER, Code.INVALID_PRODUCER_EPOCH
        elif (
            known is None
            or plan.source_holder is None
            or plan.part.topic not in known.topics
            or plan.behind
            or route.serve is Serve.HIDDEN
        ):
            plan.move, plan.error = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER
        elif route.serve is Serve.FORWARD or self._shared.open_at_source.covers(route.link, name, route.key):
            self._forward(plan, batch, route)
        return plan

    def _forward(self, plan: Plan, batch: Batch, route: TopicRoute) -> None:
        part, link, backend = plan.part, route.link, self._shared.backend
        plan.node, plan.version = backend.source_leader(link, part.topic, part.partition)
        if plan.node < 0:
            backend.refresh_source(link, part.topic)
            plan.move, plan.error = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER
        elif not plan.own and self.pipeline.elsewhere(link, backend.source_layout(link), plan.key, plan.node):
            plan.move, plan.error = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER
        elif batch.producer_id >= 0 or self.own is not None:
            plan.move = Move.SOURCE

    def _local(self, part: ProducePart, batch: Batch, route: TopicRoute, held: Held | None, name: str | None) -> Plan:
        if batch.is_transactional and name is not None:
            known = self._shared.table.transactions.get(name, {}).get(route.link)
            held_by = (known.producer_id, known.epoch) if known is not None and known.cut_off else (-1, -1)
            if held_by == (batch.producer_id, batch.producer_epoch):
                return Plan(part, Move.ANSWER, batch, route, error=Code.INVALID_TXN_STATE)
            return self._entering(Plan(part, Move.TARGET, batch, route, transactional_id=name), batch, held)
        if batch.producer_id < 0 or batch.is_transactional:
            return Plan(part, Move.TARGET)
        verdict = self._shared.gate.judge(part.topic, part.partition, batch, held.known if held else {})
        if verdict is Verdict.PASS and self.stops.blocks(part.topic, part.partition, batch):
            # A producer that was refused before the flip may be new to the target, which accepts any first sequence
            # (B3).
            return Plan(part, Move.ANSWER, batch, route, error=Code.NOT_LEADER_OR_FOLLOWER, behind=True)
        if (
            verdict is Verdict.GAP
            and held is not None
            and self._gaps.insisted((part.topic, part.partition, batch.producer_id), batch, held.since)
        ):
            verdict = Verdict.ADMIT_ALONE
        move, error = _GATE_MOVES[verdict]
        plan = Plan(part, move, batch, route, error=error)
        if verdict is Verdict.DUPLICATE and held is not None:
            plan.base_offset = held.offsets.get(plan.key, -1)
        return plan

    def _entering(self, plan: Plan, batch: Batch, held: Held | None) -> Plan:
        """Plan a batch for the target once its partition is in the transaction; the first goes alone (gate, B)."""
        gate, key = self._shared.gate, plan.key
        if key in gate.opened or not self._shared.deferred.may_be(self._shared.table, plan.holder, *key[:2]):
            return plan
        if self.stops.blocks(*key[:2], batch):
            plan.move, plan.error, plan.behind = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER, True
        elif held is not None and key in held.refused:
            plan.move, plan.error = Move.ANSWER, held.refused[key]
        elif held is None or key not in held.entered or key in gate.priming:
            plan.move = Move.WAIT
        else:
            plan.move = Move.ADMIT_ALONE
        return plan

    def leaves(self, plan: Plan) -> None:
        """Note that a batch goes to the target, or is there already: later batches may follow."""
        if plan.batch is not None:
            self.stops.passed(plan.part.topic, plan.part.partition, plan.batch)

    def entered(self, plan: Plan, error: int) -> None:
        """Note the outcome of a first batch.

        In a transaction no mark says what comes next. So later batches wait where the first was not appended.
        """
        if plan.transactional_id and error in _NOT_APPENDED:
            self.not_appended(plan)

    def stored(self, plan: Plan, known: ProducerMark) -> StoredBatch | None:
        """Return the source's copy of a batch that the target's log shows to be a duplicate; None for other batches."""
        batch, route = plan.batch, plan.route
        assert batch is not None and route is not None
        verdict = self._shared.gate.judge(plan.part.topic, plan.part.partition, batch, {plan.key: known})
        if verdict is not Verdict.DUPLICATE:
            return None
        return StoredBatch(batch.producer_id + route.shift, batch.producer_epoch, batch.base_sequence)

    def stamp(self, plan: Plan) -> None:
        """Give a forwarded batch the producer id that the source shall see.

        A batch that arrived broken stays broken (`records.crc`): the source refuses such a batch, as brokers do (A16).
        """
        batch, route = plan.batch, plan.route
        assert batch is not None and route is not None
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        producer_id = batch.producer_id + route.shift
        if plan.own:
            assert self.own is not None
            producer_id = self.own.producer_id + route.shift
            epoch, sequence = self.own.stamp_for(plan.part.topic, plan.part.partition, batch.last_offset_delta + 1)
        else:
            self.stops.passed(plan.part.topic, plan.part.partition, batch)
            if plan.source_holder is not None:
                producer_id, epoch = plan.source_holder
        plan.epoch = epoch
        plan.last_sequence = next_sequence(sequence, batch.last_offset_delta)
        stamp(batch.view, producer_id=producer_id, epoch=epoch, sequence=sequence, base_offset=None)

    def not_appended(self, plan: Plan) -> None:
        """Note that a batch surely did not reach its log: later batches wait until the batch comes again."""
        if plan.batch is not None and not plan.own:
            self.stops.failed(plan.part.topic, plan.part.partition, plan.batch)

    def refused(self, plan: Plan, now: float) -> None:
        """Note that a batch is refused because of an earlier batch.

        If the refused batch comes again, ask the cluster whether the earlier batch went another way.
        """
        batch, route = plan.batch, plan.route
        assert batch is not None and route is not None
        stop = self.stops.refused(plan.part.topic, plan.part.partition, batch, now)
        if stop is None or route.serve is Serve.HIDDEN:
            return
        if stop.insisted(now):
            self.stops.lift(plan.key, stop)
            return
        if stop.asked:
            return
        stop.asked = True

        def told(there: bool | None) -> None:
            stop.asked = False
            if there:
                self.stops.lift(plan.key, stop)

        if route.serve is Serve.LOCAL:
            self._shared.conversations.start(self._shared.has_written(*plan.key)).then(told)
        else:
            producer = plan.source_holder or (batch.producer_id + route.shift, batch.producer_epoch)
            self._shared.backend.source_has(route.link, *plan.key[:2], StoredBatch(*producer, stop.sequence)).then(told)

    def given_up(self, plan: Plan) -> None:
        """Note that the client is told that a batch will never be taken: the client's next batches may pass."""
        if plan.batch is not None and not plan.own:
            self.stops.given_up(plan.part.topic, plan.part.partition, plan.batch)

    def doubtful(self, plan: Plan, error: int) -> bool:
        """Return whether a source's error may come from a controller that acts for a router that does not answer."""
        return error == Code.MESSAGE_TOO_LARGE or (plan.source_holder is not None and error in _OLD_EPOCH)

    def believed(self, plan: Plan, error: int, *, caught_up: bool) -> int:
        """Return the client's error code for a doubtful answer, after the state log was read, or could not be read.

        The client gets NOT_LEADER_OR_FOLLOWER, and sends the batch again, in three cases: the error may come from a
        seal, the log could not be read, or a revocation of the identity is not proven. A proven revocation has ended
        the batch's transaction: INVALID_TXN_STATE makes the client abort. Any other error passes unchanged.
        """
        assert plan.route is not None
        if error == Code.MESSAGE_TOO_LARGE:
            return Code.NOT_LEADER_OR_FOLLOWER if self.sealed(plan, caught_up=caught_up) else error
        known = self._shared.table.transactions.get(plan.transactional_id, {}).get(plan.route.link)
        revoked = known is not None and known.revoked is not None
        same = known is not None and (known.source_id, known.source_epoch) == plan.source_holder
        if not caught_up or (revoked and same and known is not None and known.in_force):
            return Code.NOT_LEADER_OR_FOLLOWER
        return Code.INVALID_TXN_STATE if revoked and same else error

    def sealed(self, plan: Plan, *, caught_up: bool) -> bool:
        """Return whether the source's MESSAGE_TOO_LARGE may come from the seal of a promote.

        The error is no seal's only if the topic is still in the unsealed state in which the batch was sent. A seal is
        recorded before it is set, so a router that has read the log up to now knows the seal. The record keeps the seal
        until the broker takes writes again. A router that cannot read the log does not know.
        """
        assert plan.route is not None
        now = self._shared.table.topics.get(plan.part.topic)
        same = now is not None and now.serve is Serve.FORWARD and now.fence_epoch == plan.route.fence_epoch
        return plan.route.sealed or not same or not caught_up

    def outcome(self, plan: Plan, answer: PartitionAnswer) -> PartitionAnswer:
        """Return the client's answer for a forwarded batch, from the source's answer."""
        assert plan.batch is not None and plan.route is not None
        topic, partition, error = answer.topic, answer.partition, answer.error
        if not error:
            # The router's own ids never reach the target, and no transaction outlives the flip: the gate needs no mark
            # of them.
            if not plan.own and plan.source_holder is None:
                self._shared.forwards.acknowledged(
                    plan.route.key, partition, plan.batch.producer_id, plan.epoch, plan.last_sequence
                )
            return answer
        if error in _MOVED:
            self._shared.backend.refresh_source(plan.route.link, topic)
        if plan.own:
            if self.own is not None:
                self.own.failed(topic, partition, plan.epoch)
            behind = error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        else:
            behind = error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self.stops.blocks(topic, partition, plan.batch)
            if error in _NOT_APPENDED:
                self.not_appended(plan)
        if behind or error in _MOVED:
            return plan.answer(Code.NOT_LEADER_OR_FOLLOWER)
        return answer


_GATE_MOVES: dict[Verdict, tuple[Move, int]] = {
    Verdict.PASS: (Move.TARGET, 0),
    Verdict.ADMIT_ALONE: (Move.ADMIT_ALONE, 0),
    Verdict.WAIT: (Move.WAIT, 0),
    Verdict.ASK: (Move.WAIT, 0),
    Verdict.DUPLICATE: (Move.ANSWER, 0),
    Verdict.FENCED: (Move.ANSWER, Code.INVALID_PRODUCER_EPOCH),
    Verdict.GAP: (Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER),
}
_MOVED = frozenset({3, 5, 6, 56, 72, 74, 75})
"""Errors of the source that mean that another broker must be asked. Surely not appended, told to the client as 6."""
_OLD_EPOCH = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
_NOT_APPENDED = _MOVED | frozenset({2, 19})
"""Retriable errors after which the batch is surely not in the log."""
