"""Handles the writes of a client connection: judges, holds, sends and answers them in request order.

A write stands first among the connection's requests until all its partitions can be handled (`produce.decide`). So no
batch overtakes another batch of its producer.
"""

from __future__ import annotations

from collections.abc import Callable

from kmigrate.errors import ProtocolViolation
from kmigrate.model.ids import is_own_topic
from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.produce.answer_errors import show_answer
from kmigrate.router.produce.decide import AdmitAlone, AnswerHere, Decision, Held, PassOn, Wait, Write, WriteDecider
from kmigrate.router.produce.fast_path import FastForward
from kmigrate.router.produce.own_producer import OwnProducer
from kmigrate.router.produce.split import SplitWrite
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.sequencer import Sequencer, Slot
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.transactions.handler import TransactionHandler
from kmigrate.router.wire.produce import ProduceReader, ProduceRequest

__all__ = ["ProduceHandler"]

_LONGEST_HOLD_S = 5.0
_AGAIN_S = 0.02
"""Delay before a coordinator that is busy with the end of the last transaction is asked again."""


class ProduceHandler:
    """Takes the connection's first request if it is a Produce; `advance` offers a waiting request again."""

    def __init__(
        self,
        shared: SharedState,
        client: ClientLink,
        transactions: TransactionHandler,
        order: Sequencer,
        fill: Callable[[Slot, Buffer | None], None],
        advance: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._client = client
        self._transactions = transactions
        self._order = order
        self._fill = fill
        self._advance = advance
        self._reader = ProduceReader()
        self._decider = WriteDecider(shared)
        self._fast_path = FastForward(shared, client, self._decider)
        self._held: Held | None = None
        self._last_fence: tuple[float, frozenset[str]] = (0.0, frozenset())
        """Time of the last release of held writes here, and the keys of the fenced topics."""
        self._asking_id = False
        self._sent: set[Slot] = set()
        """Writes under way that asked for an answer."""
        self._gone = False

    def take(self, head: RequestHead, frame: bytearray, arrived: float, *, parting: bool) -> bool:
        """Handle a request; return False where the request has to wait.

        A client that is `parting` goes to the brokers themselves: the client is told that the leader has moved.
        """
        held = self._held
        request = held.request if held else self._reader.read(frame, head)
        if self._gone and request.acks != 0:
            self._held = None
            return True
        table = self._shared.table
        if request.acks != 0 and parting:
            decisions: list[Decision] = [AnswerHere(part, Code.NOT_LEADER_OR_FOLLOWER) for part in request.parts]
        elif held is None and not any(part.topic in table.topics or is_own_topic(part.topic) for part in request.parts):
            self._pass_write(head, frame, request)
            return True
        elif (
            held is None and arrived >= self._last_fence[0] and (upstream := self._fast_path.look(request)) is not None
        ):
            slot = self._order.take(len(frame))
            self._sent.add(slot)
            self._fast_path.send(upstream, head, frame, request, lambda answer: self._written(slot, answer))
            self._renew_own()
            return True
        else:
            if self._decider.stops.too_many:
                raise ProtocolViolation("too-many-stopped", "a client does not send again what was not taken of it")
            decisions = self._decider.decide(request, held)
        waits = [decision.write for decision in decisions if isinstance(decision, Wait)]
        if waits:
            if self._wait(request, waits, arrived):
                return False
            decisions = [_no_longer(decision) for decision in decisions]
        self._release(decisions, arrived)
        self._send(head, frame, request, decisions)
        return True

    @property
    def under_way(self) -> bool:
        """True if a write that asked for an answer is under way."""
        return bool(self._sent)

    def closed(self) -> None:
        """End the writes when the client is gone; only writes with acks=0 are still carried out."""
        self._gone = True
        writing = bool(self._sent)
        self._sent.clear()
        self._shared.gate.look_again(self._shared.gate.left(self._client))
        if writing and self._shared.table.finished:
            self._shared.wake()  # as in `_written`
        # a leader that leads no more may have made the client leave, and the client comes back at once
        self._ask_leaders()

    def look_after(self) -> None:
        """Ask for the leaders of writes unanswered between checks: a broker standing still is not leader for long."""
        if self._decider.in_flight.stands():
            self._ask_leaders()

    def _ask_leaders(self) -> None:
        for link, topic in self._decider.in_flight.topics():
            self._shared.backend.refresh_source(link, topic)

    def _wait(self, request: ProduceRequest, waits: list[Write], arrived: float) -> bool:
        """Note what the write waits for, and start that; return False once the deadline has passed.

        The time begins when the write arrives, so many writes under way take no longer than a single write.
        """
        now = self._client.now()
        if self._held is None:
            limits = self._shared.settings
            longest = min(limits.hold_limit_s, request.timeout_ms / 4000, _LONGEST_HOLD_S)
            # No client waits for the answer to a write with acks=0, so such a write is held until the fence ends.
            deadline = arrived + longest if request.acks != 0 else float("inf")
            self._held = Held(arrived, deadline, request)
            if request.acks != 0:
                self._client.wake_at(deadline)
        elif now >= self._held.deadline:
            return False
        held = self._held
        for write in waits:
            if write.key in self._shared.gate.priming:
                self._shared.gate.wait_for(write.key, self._advance)
            self._get_under_way(write, held, now)
        return now < held.deadline

    def _get_under_way(self, write: Write, held: Held, now: float) -> None:
        key = write.route.key
        if write.route.serve is Serve.HOLD:
            stood_behind = held.since < self._last_fence[0] and key in self._last_fence[1]
            held.fenced.setdefault((key, write.part.partition), held.since if stood_behind else now)
            if write.transactional_id and write.in_log not in held.asked:
                held.asked.add(write.in_log)
                self._transactions.look(write.transactional_id).then(lambda _: self._advance())
        elif write.route.serve is Serve.FORWARD and write.own:
            self._ask_own_id()
        elif write.transactional_id:
            self._enter_deferred(write, held)
        elif write.in_log not in held.asked and write.key not in self._shared.gate.priming:
            held.asked.add(write.in_log)
            self._shared.conversations.start(self._ask_mark(write, held))

    def _ask_mark(self, write: Write, held: Held) -> Conversation[None]:
        """Ask for the written log's newest batch of a producer, and for the copy of a duplicate (gate, C and D)."""
        key, backend, offset = write.in_log, self._shared.backend, -1
        mark = yield from backend.producer_mark(*key)
        if mark is None:
            self._ask_again(write, held)
            return
        for at, stored in self._decider.stored(write, mark):
            offset = yield from backend.find_stored(at, *write.key[:2], stored)
            if offset >= 0:
                break
        held.known[key], held.offsets[key] = mark, offset
        self._advance()

    def _ask_again(self, write: Write, held: Held) -> None:
        """Ask again if the write still waits, because the cluster has not told whether a producer is known."""
        held.asked.discard(write.in_log)
        self._advance()

    def _enter_deferred(self, write: Write, held: Held) -> None:
        """Add a partition to its transaction before the first batch to the target (`shared.deferred_partitions`, B)."""
        if write.in_log in held.asked or write.key in self._shared.gate.priming:
            return
        held.asked.add(write.in_log)

        def entered() -> None:
            self._shared.deferred.entered(write.transactional_id, *write.key[:2])
            held.entered.add(write.key)

        def joined(code: int) -> None:
            if not code:
                entered()
            elif row(code).retriable:
                held.asked.discard(write.in_log)
                self._client.wake_at(self._client.now() + _AGAIN_S)
                return
            else:
                held.refused[write.key] = Code.INVALID_PRODUCER_EPOCH if code == Code.PRODUCER_FENCED else code
            self._advance()

        def then(known: bool | None) -> None:
            if self._held is not held:
                # the write waits no more, and the client may send a login next, within which no other request may fall
                return
            if known is None:
                self._ask_again(write, held)
            elif known:
                entered()
                self._advance()
            else:
                self._transactions.join(write.producer, *write.key[:2]).then(joined)

        self._shared.conversations.start(self._shared.has_written(*write.key)).then(then)

    def _ask_own_id(self) -> None:
        if self._asking_id:
            return
        self._asking_id = True

        def then(producer_id: int) -> None:
            self._asking_id = False
            if producer_id >= 0:
                self._decider.own = OwnProducer(producer_id)
            self._advance()

        self._shared.backend.new_producer_id().then(then)

    def _release(self, decisions: list[Decision], arrived: float) -> None:
        """Let a request go on, and account for the request's time at the fence, also behind another held request."""
        now, account = self._client.now(), self._shared.forwards
        held, self._held = self._held, None
        if held is not None and held.fenced:
            self._last_fence = (now, frozenset(key for key, _ in held.fenced))
            for (key, partition), since in held.fenced.items():
                account.held(key, partition, (now - since) * 1000)
        elif arrived < self._last_fence[0]:
            for write in filter(None, (decision.write for decision in decisions)):
                if write.route.key in self._last_fence[1]:
                    account.held(write.route.key, write.part.partition, (now - arrived) * 1000)

    def _pass_write(self, head: RequestHead, frame: bytearray, request: ProduceRequest) -> None:
        """Send a write to topics without a link to the target unchanged."""
        slot = self._order.take(len(frame))
        if request.acks == 0:
            self._client.to_target([frame], head.correlation_id, None)
            self._fill(slot, None)
            return
        self._sent.add(slot)

        def answered(answer: bytearray) -> None:
            self._written(slot, show_answer(answer, request, self._shared.served))

        self._client.to_target([frame], head.correlation_id, answered)

    def _written(self, slot: Slot, answer: Buffer) -> None:
        self._sent.discard(slot)
        self._fill(slot, answer)
        if self._shared.table.finished and not self._sent:
            self._shared.wake()

    def _send(self, head: RequestHead, frame: bytearray, request: ProduceRequest, decisions: list[Decision]) -> None:
        slot = self._order.take(len(frame))
        if self._gone:  # nobody gets the answer any more
            decisions = [PassOn(d.write.part, d.write) if isinstance(d, AdmitAlone) else d for d in decisions]
        split = SplitWrite(
            self._shared, self._client, self._decider, head, request, lambda answer: self._written(slot, answer)
        )
        if request.acks == 0:
            self._fill(slot, None)
        else:
            self._sent.add(slot)
        split.send(frame, decisions)
        self._shared.own_refused[head.api_key] += any(is_own_topic(part.topic) for part in request.parts)
        self._renew_own()

    def _renew_own(self) -> None:
        own = self._decider.own
        if own is not None and own.exhausted:
            self._decider.own = None


def _no_longer(decision: Decision) -> Decision:
    """Return the decision about a request whose time to wait is over."""
    if not isinstance(decision, Wait):
        return decision
    return AnswerHere(decision.write.part, Code.NOT_LEADER_OR_FOLLOWER, decision.write)
