"""A client's Produce requests: each partition judged, held where it must be, split by destination, merged again.

A request is looked at as often as something changes while it waits, and decided once: `take` first judges every
partition without changing anything; only when none has to wait any more does it stamp, count and send, all under
no await. While one request waits, nothing behind it on the connection is looked at, so a producer's order is
its connection's order (B9).

What one partition can meet:
  not mirrored     → target, as it came
  forward          → source leader, producer id translated (design of producer identity); error 6 while another
                     broker has yet to answer a batch of the producer (`pipeline`)
  hold             → wait, at most `hold_limit`, a quarter of the request's timeout and 5 s, then error 6 (B6);
                     a batch of a transaction that is open at the source goes there, so that it can end, and until
                     it has ended so does what is written beside it: the fence has to wait anyway
  promoted         → the gate for first writes, then target; a batch of a transaction that its partition enters late
                     (`late`) waits until it is in
Never 8, 45, 59 or −1 of our own making (B5, B6).
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
from kmigrate.router.apis.produce import PartitionAnswer, ProducePart, ProduceRequest
from kmigrate.router.core import Core, StoredBatch
from kmigrate.router.gate import GateKey, Verdict
from kmigrate.router.identities import OwnProducer
from kmigrate.router.pipeline import Pipeline
from kmigrate.router.stop_rule import Gaps, StopRule

__all__ = ["Held", "Move", "Plan", "ProduceJudge"]


class Move(Enum):
    """Where one partition of a request goes."""

    TARGET = "target"
    PRIME = "prime"
    SOURCE = "source"
    ANSWER = "answer"
    WAIT = "wait"


@dataclass(slots=True)
class Plan:
    """The decision for one partition of one request."""

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
    """Whether it is refused for one before it that was not taken."""
    base_offset: int = -1
    """Where a duplicate's first copy stands, −1 where that is not known."""

    def answer(self, error: int, message: str | None = None) -> PartitionAnswer:
        return PartitionAnswer(self.part.topic, self.part.partition, error, self.base_offset, message=message)

    @property
    def key(self) -> GateKey:
        return (self.part.topic, self.part.partition, self.batch.producer_id if self.batch else -1)

    @property
    def holder(self) -> tuple[str, int, int]:
        """Whose transaction the batch is of, as the client knows it."""
        assert self.batch is not None
        return self.transactional_id, self.batch.producer_id, self.batch.producer_epoch

    @property
    def own(self) -> bool:
        """Whether the batch came without an id and got one of the router's."""
        return self.batch is not None and self.batch.producer_id < 0


@dataclass(slots=True)
class Held:
    """A request that waits at the head of its connection."""

    since: float
    """When it arrived."""
    deadline: float
    request: ProduceRequest
    known: dict[GateKey, ProducerMark] = field(default_factory=dict)
    """Up to where the target's log holds its producers."""
    entered: set[GateKey] = field(default_factory=set)
    """What of it may go to the target: its partition is in its transaction."""
    asked: set[GateKey] = field(default_factory=set)
    offsets: dict[GateKey, int] = field(default_factory=dict)
    """Base offsets of duplicates, as the source's log told them."""
    refused: dict[GateKey, int] = field(default_factory=dict)
    """What the target's coordinator says of partitions that are late."""
    fenced: dict[tuple[str, int], float] = field(default_factory=dict)
    """Since when each (topic key, partition) of it was held by a fence."""


def _only_batch(part: ProducePart) -> Batch | Code:
    """The one batch that a partition must carry (A2), or what a broker calls anything else."""
    try:
        batches = list(walk(part.records))
    except ProtocolViolation as violation:
        return Code.INVALID_RECORD if violation.ref == "old-message-format" else Code.CORRUPT_MESSAGE
    if len(batches) != 1 or len(batches[0].view) != len(part.records) or batches[0].producer_id >= DIRECT_LIMIT:
        return Code.INVALID_RECORD  # no cluster hands out such an id: translated, it might be another producer's
    return batches[0]


class ProduceJudge:
    """Judges partitions for one client connection; keeps its own producer id, the stop rule and what is under way."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.own: OwnProducer | None = None
        self.stops = StopRule()
        self._gaps = Gaps()
        self.pipeline = Pipeline()

    def judge(self, request: ProduceRequest, held: Held | None) -> list[Plan]:
        """A plan for every partition, nothing changed yet."""
        return [self._judge(request, part, held) for part in request.parts]

    def _judge(self, request: ProduceRequest, part: ProducePart, held: Held | None) -> Plan:
        if is_own_topic(part.topic):
            return Plan(part, Move.ANSWER, error=Code.TOPIC_AUTHORIZATION_FAILED)
        route = self._core.table.topics.get(part.topic)
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
        """Whether the topic's fence cannot be complete yet for a transaction of this router, and was not said to be."""
        drained = self._core.forwards.drained(route.key, route.fence_epoch)
        return route.serve is Serve.HOLD and not drained and self._core.begun.any_at(route.key)

    def _transactional(self, plan: Plan, batch: Batch, route: TopicRoute, name: str | None) -> Plan:
        """To the source in its holder's name there; under a fence only what belongs to an open transaction.

        Nothing is written that a promote would not wait for: its topic is in the id's record.
        """
        if name is None:
            plan.move, plan.error = Move.ANSWER, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # as a broker does (A10)
            return plan
        known = self._core.table.transactions.get(name, {}).get(route.link)
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
        elif route.serve is Serve.FORWARD or self._core.begun.covers(route.link, name, route.key):
            self._forward(plan, batch, route)
        return plan

    def _forward(self, plan: Plan, batch: Batch, route: TopicRoute) -> None:
        part, link, outside = plan.part, route.link, self._core.outside
        plan.node, plan.version = outside.source_leader(link, part.topic, part.partition)
        if plan.node < 0:
            outside.refresh_source(link, part.topic)
            plan.move, plan.error = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER
        elif not plan.own and self.pipeline.elsewhere(link, outside.source_layout(link), plan.key, plan.node):
            plan.move, plan.error = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER
        elif batch.producer_id >= 0 or self.own is not None:
            plan.move = Move.SOURCE

    def _local(self, part: ProducePart, batch: Batch, route: TopicRoute, held: Held | None, name: str | None) -> Plan:
        if batch.is_transactional and name is not None:
            known = self._core.table.transactions.get(name, {}).get(route.link)
            held_by = (known.producer_id, known.epoch) if known is not None and known.cut_off else (-1, -1)
            if held_by == (batch.producer_id, batch.producer_epoch):
                return Plan(part, Move.ANSWER, batch, route, error=Code.INVALID_TXN_STATE)
            return self._entering(Plan(part, Move.TARGET, batch, route, transactional_id=name), batch, held)
        if batch.producer_id < 0 or batch.is_transactional:
            return Plan(part, Move.TARGET)
        verdict = self._core.gate.judge(part.topic, part.partition, batch, held.known if held else {})
        if verdict is Verdict.PASS and self.stops.blocks(part.topic, part.partition, batch):
            # Who was refused before the flip may be new to the target, which takes any sequence for its first (B3).
            return Plan(part, Move.ANSWER, batch, route, error=Code.NOT_LEADER_OR_FOLLOWER, behind=True)
        if verdict is Verdict.GAP and held is not None and self._gaps.insisted(
            (part.topic, part.partition, batch.producer_id), batch, held.since
        ):
            verdict = Verdict.PRIME
        move, error = _GATE_MOVES[verdict]
        plan = Plan(part, move, batch, route, error=error)
        if verdict is Verdict.DUPLICATE and held is not None:
            plan.base_offset = held.offsets.get(plan.key, -1)
        return plan

    def _entering(self, plan: Plan, batch: Batch, held: Held | None) -> Plan:
        """To the target once the partition is in the transaction, the first batch alone, as the gate has it (B)."""
        gate, key = self._core.gate, plan.key
        if key in gate.opened or not self._core.late.may_be(self._core.table, plan.holder, *key[:2]):
            return plan
        if self.stops.blocks(*key[:2], batch):
            plan.move, plan.error, plan.behind = Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER, True
        elif held is not None and key in held.refused:
            plan.move, plan.error = Move.ANSWER, held.refused[key]
        elif held is None or key not in held.entered or key in gate.priming:
            plan.move = Move.WAIT
        else:
            plan.move = Move.PRIME
        return plan

    def leaves(self, plan: Plan) -> None:
        """A batch goes to the target, or is there: what stands behind it may follow."""
        if plan.batch is not None:
            self.stops.passed(plan.part.topic, plan.part.partition, plan.batch)

    def entered(self, plan: Plan, error: int) -> None:
        """What became of a first batch: no mark says what comes next in a transaction, so what is behind it waits."""
        if plan.transactional_id and error in _NOT_APPENDED:
            self.not_appended(plan)

    def stored(self, plan: Plan, known: ProducerMark) -> StoredBatch | None:
        """The batch that the source holds already, where it is a duplicate by what the target's log holds."""
        batch, route = plan.batch, plan.route
        assert batch is not None and route is not None
        verdict = self._core.gate.judge(plan.part.topic, plan.part.partition, batch, {plan.key: known})
        if verdict is not Verdict.DUPLICATE:
            return None
        return StoredBatch(batch.producer_id + route.shift, batch.producer_epoch, batch.base_sequence)

    def stamp(self, plan: Plan) -> None:
        """Give a forwarded batch the id that the source shall see.

        A batch that came broken is no more whole for it (`records.crc`): the source refuses it, as brokers do (A16).
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
        """A batch surely did not reach its log: what stands behind it must wait for it to come again."""
        if plan.batch is not None and not plan.own:
            self.stops.failed(plan.part.topic, plan.part.partition, plan.batch)

    def refused(self, plan: Plan, now: float) -> None:
        """A batch is refused for one before it: ask whether that one went another way, if this one comes again."""
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
            self._core.ask_written(*plan.key, told)
        else:
            producer = plan.source_holder or (batch.producer_id + route.shift, batch.producer_epoch)
            self._core.outside.ask_source(route.link, *plan.key[:2], StoredBatch(*producer, stop.sequence), told)

    def given_up(self, plan: Plan) -> None:
        """The client is told that a batch will never be taken: what it sends next may pass."""
        if plan.batch is not None and not plan.own:
            self.stops.given_up(plan.part.topic, plan.part.partition, plan.batch)

    def doubtful(self, plan: Plan, error: int) -> bool:
        """Whether a source's answer may be owed to what a controller does in place of a router that does not answer."""
        return error == Code.MESSAGE_TOO_LARGE or (plan.source_holder is not None and error in _OLD_EPOCH)

    def believed(self, plan: Plan, error: int, *, caught_up: bool) -> int:
        """What a client is told of a doubtful answer, once the state log was read to its end, or could not be.

        A transaction whose identity was revoked is cut off where it was open: its client is to abort it.
        """
        assert plan.route is not None
        if error == Code.MESSAGE_TOO_LARGE:
            return Code.NOT_LEADER_OR_FOLLOWER if self.sealed(plan, caught_up=caught_up) else error
        known = self._core.table.transactions.get(plan.transactional_id, {}).get(plan.route.link)
        revoked = known is not None and known.revoked is not None
        same = known is not None and (known.source_id, known.source_epoch) == plan.source_holder
        if not caught_up or (revoked and same and known is not None and known.in_force):
            return Code.NOT_LEADER_OR_FOLLOWER
        return Code.INVALID_TXN_STATE if revoked and same else error

    def sealed(self, plan: Plan, *, caught_up: bool) -> bool:
        """Whether the source's "too large" may be its seal: any state of the topic but the one it was sent in.

        The seal is written down before it is put on, so who has read the log up to now knows of it; and it leaves the
        record only when the broker takes writes again. Who cannot read the log does not know.
        """
        assert plan.route is not None
        now = self._core.table.topics.get(plan.part.topic)
        same = now is not None and now.serve is Serve.FORWARD and now.fence_epoch == plan.route.fence_epoch
        return plan.route.sealed or not same or not caught_up

    def outcome(self, plan: Plan, answer: PartitionAnswer) -> PartitionAnswer:
        """What the client is told of the source's answer for one forwarded batch."""
        assert plan.batch is not None and plan.route is not None
        topic, partition, error = answer.topic, answer.partition, answer.error
        if not error:
            # The router's own ids never reach the target, and no transaction outlives the flip: no gate asks for them.
            if not plan.own and plan.source_holder is None:
                self._core.forwards.acknowledged(
                    plan.route.key, partition, plan.batch.producer_id, plan.epoch, plan.last_sequence
                )
            return answer
        if error in _MOVED:
            self._core.outside.refresh_source(plan.route.link, topic)
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
    Verdict.PRIME: (Move.PRIME, 0),
    Verdict.WAIT: (Move.WAIT, 0),
    Verdict.ASK: (Move.WAIT, 0),
    Verdict.DUPLICATE: (Move.ANSWER, 0),
    Verdict.FENCED: (Move.ANSWER, Code.INVALID_PRODUCER_EPOCH),
    Verdict.GAP: (Move.ANSWER, Code.NOT_LEADER_OR_FOLLOWER),
}
_MOVED = frozenset({3, 5, 6, 56, 72, 74, 75})
"""Errors of the source that mean: ask another broker. Surely not appended, told to the client as 6."""
_OLD_EPOCH = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
_NOT_APPENDED = _MOVED | frozenset({2, 19})
"""Retriable errors after which the batch is surely not in the log."""
