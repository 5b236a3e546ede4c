"""Sends a Produce request in as few parts as possible, and merges the answers in request order.

A source's MESSAGE_TOO_LARGE (10) may come from a promote's seal (`workflow.promote.sealing`). Clients give such a batch
up for good, so none gets this error before the state log was read. After a possible seal the answer is
NOT_LEADER_OR_FOLLOWER (6), and the client sends the batch again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.records.batch import translate
from kmigrate.router.produce.answer_errors import count_errors, show_answer
from kmigrate.router.produce.decide import (
    AdmitAlone,
    AnswerHere,
    Decision,
    Forward,
    PassOn,
    StampedWrite,
    Write,
    WriteDecider,
)
from kmigrate.router.produce.in_flight import UpstreamWrite
from kmigrate.router.shared.state import Buffer, ClientLink, Outcome, SharedState
from kmigrate.router.wire.produce import (
    PartitionAnswer,
    ProducePart,
    ProduceRequest,
    all_stored,
    encode_answer,
    encode_request,
    parse_answer,
)

__all__ = ["SplitWrite"]


@dataclass(slots=True)
class _ToTarget:
    """The part of the request that goes to the target."""

    admitted: list[Write]
    """Batches that go alone."""
    counted: list[Write]
    """Batches of topics with a way back: the fence of a rollback waits for their fate."""
    whole: bool
    """True if the request is the client's own frame, so that its answer may pass unchanged."""


@dataclass(slots=True)
class _ToSource:
    """A part of the request that goes to a source leader."""

    batches: Sequence[StampedWrite]
    version: int
    whole: bool
    admitted: Sequence[Write] = ()
    """Batches that go alone."""


class SplitWrite:
    """Sends a decided request and gives the answer to `reply` once every part is answered.

    `reply` must not hold the split write: the cycle would keep the request's megabytes until garbage collection.
    """

    def __init__(
        self,
        shared: SharedState,
        client: ClientLink,
        decider: WriteDecider,
        head: RequestHead,
        request: ProduceRequest,
        reply: Callable[[Buffer], None],
    ) -> None:
        self._shared = shared
        self._client = client
        self._decider = decider
        self._head = head
        self._request = request
        self._reply = reply
        self._answers: dict[tuple[str, int], PartitionAnswer] = {}
        self._waiting = 0
        self._throttle = 0

    def send(self, frame: bytearray, decisions: Iterable[Decision]) -> None:
        """Stamp, count and send everything now."""
        source: dict[tuple[str, int, int], list[StampedWrite]] = {}
        alone: dict[tuple[str, int, int], list[Write]] = {}
        target: list[PassOn | AdmitAlone] = []
        answered: list[AnswerHere] = []
        for decision in decisions:
            match decision:
                case Forward(write, node, version):
                    stamped = self._decider.stamp(write)
                    source.setdefault((write.route.link, node, version), []).append(stamped)
                    if decision.alone:
                        alone.setdefault((write.route.link, node, version), []).append(write)
                case PassOn() | AdmitAlone():
                    target.append(decision)
                case AnswerHere():
                    answered.append(decision)
        for answer in answered:
            self._answer_here(answer)
        self._waiting = len(source) + bool(target)
        if target:
            self._to_target(target, frame)
        for place, batches in source.items():
            self._to_source(*place, batches, alone.get(place, ()), frame)
        if not self._waiting:
            self._finish()

    def _answer_here(self, answer: AnswerHere) -> None:
        if answer.write is not None:
            if answer.error == Code.NOT_LEADER_OR_FOLLOWER:
                self._decider.not_appended(answer.write)
            elif not answer.error:
                self._decider.passes(answer.write)
            if answer.behind:
                self._decider.refused(answer.write, self._client.now())
        self._put(PartitionAnswer(answer.part.topic, answer.part.partition, answer.error, answer.base_offset))

    def _put(self, answer: PartitionAnswer) -> None:
        self._answers[(answer.topic, answer.partition)] = answer

    # to the target

    def _to_target(self, decisions: list[PassOn | AdmitAlone], frame: bytearray) -> None:
        request = self._request
        admitted: list[Write] = []
        counted: list[Write] = []
        for decision in decisions:
            write = decision.write
            if write is None:
                continue
            if isinstance(decision, AdmitAlone):
                self._shared.gate.prime(write.key, self._client)
                admitted.append(write)
            self._decider.passes(write)
            if write.route.target_shift and (shift := write.shift):
                translate(write.part.records, write.batch.producer_id, write.batch.producer_id + shift)
            if write.route.copied_back:
                counted.append(write)
        silent = request.acks == 0 and not admitted and not counted
        whole = len(decisions) == len(request.parts) and (request.acks != 0 or silent)
        pieces: list[Buffer] = [frame]
        if not whole:
            acks = request.acks if silent else request.acks or 1
            pieces = self._encode((decision.part for decision in decisions), request.version, acks)
        if silent:
            self._waiting -= 1
            self._client.to_target(pieces, self._head.correlation_id, None)
            return
        sent = _ToTarget(admitted, counted, whole)
        if counted:
            self._send_counted(sent, pieces)
        else:
            self._client.to_target(pieces, self._head.correlation_id, lambda answer: self._target(sent, answer))

    def _send_counted(self, sent: _ToTarget, pieces: list[Buffer]) -> None:
        """Send writes to the target that count as in flight until their fate is known, as forwards do."""
        counts: dict[str, int] = {}
        for write in sent.counted:
            counts[write.route.key] = counts.get(write.route.key, 0) + 1
        for key, count in counts.items():
            self._shared.forwards.opened(key, count)

        def done(outcome: Outcome) -> None:
            try:
                if outcome.frame is not None:
                    self._target(sent, outcome.frame)
            finally:
                for key, count in counts.items():
                    self._shared.resolved(key, count)

        self._client.write_to_target(pieces, self._head.correlation_id, done)

    def _target(self, sent: _ToTarget, frame: bytearray) -> None:
        if sent.whole and not sent.admitted and not sent.counted:
            self._reply(show_answer(frame, self._request, self._shared.served))
            return
        if sent.whole and not sent.admitted and all_stored(frame, self._request):
            self._decider.stored_at_target(sent.counted)
            self._reply(frame)
            return
        answers, throttle, hints = parse_answer(frame, self._request.version)
        errors = {(answer.topic, answer.partition): answer.error for answer in answers}
        self._settle(sent.admitted, errors)
        for write in sent.admitted:
            if (error := errors.get(write.key[:2])) is not None:
                self._decider.admitted(write, error)
        self._decider.stored_at_target(write for write in sent.counted if errors.get(write.key[:2]) == Code.NONE)
        for write in sent.counted:
            self._decider.failed_at_target(write, errors.get(write.key[:2], Code.NONE))
        if sent.whole and not hints:
            self._reply_whole(frame, answers)
        else:
            self._take(answers, throttle)
        self._shared.gate.look_again(write.key for write in sent.admitted)

    def _settle(self, admitted: Iterable[Write], errors: Mapping[tuple[str, int], int]) -> None:
        """Note the outcome of batches that went alone."""
        for write in admitted:
            accepted = errors.get(write.key[:2]) in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER)
            self._shared.gate.settled(write.key, accepted)

    # to the source

    def _to_source(
        self,
        link: str,
        node: int,
        newest: int,
        batches: list[StampedWrite],
        admitted: Sequence[Write],
        frame: bytearray,
    ) -> None:
        for write in admitted:
            self._shared.gate.prime(write.key, self._client)
        request, version = self._request, min(self._request.version, newest)
        whole = len(batches) == len(request.parts) and request.acks != 0 and version == request.version
        part = _ToSource(batches, version, whole, admitted)
        parts = (batch.write.part for batch in batches)
        pieces = [frame] if whole else self._encode(parts, version, request.acks or 1)
        counts = Counter(batch.write.route.key for batch in batches)
        for key, count in counts.items():
            self._shared.forwards.sent(key, count)
        self._shared.forwards.bytes += sum(map(len, pieces))
        upstream = UpstreamWrite(link, node, version, self._shared.backend.source_layout(link), batches)
        self._decider.in_flight.send(upstream)

        def done(outcome: Outcome) -> None:
            self._decider.in_flight.answered(upstream)
            try:
                self._found(part, outcome)
            finally:
                for key, count in counts.items():
                    self._shared.resolved(key, count)
            self._shared.gate.look_again(write.key for write in part.admitted)

        self._client.to_source(link, node, pieces, self._head.correlation_id, done)

    def _encode(self, parts: Iterable[ProducePart], version: int, acks: int) -> list[Buffer]:
        return encode_request(
            self._request,
            parts,
            version=version,
            acks=acks,
            correlation=self._head.correlation_id,
            client_id=self._head.client_id,
        )

    def relayed(self, batches: Sequence[StampedWrite], outcome: Outcome) -> None:
        """Handle the outcome of the client's own frame, which `FastForward` has sent and counts."""
        self._waiting = 1
        self._found(_ToSource(batches, self._request.version, whole=True), outcome)

    def _found(self, part: _ToSource, outcome: Outcome) -> None:
        if outcome.frame is not None:
            self._source_answered(part, outcome.frame)
        elif not outcome.sent:
            self._settle(part.admitted, {})
            self._refused(part, outcome.refused)
        else:
            self._settle(part.admitted, {})
            self._client.close("the outcome of a forwarded write is unknown: the client shall send it again")

    def _source_answered(self, part: _ToSource, frame: bytearray) -> None:
        answers, throttle, hints = parse_answer(frame, part.version)
        if part.admitted:
            self._settle(part.admitted, {(answer.topic, answer.partition): answer.error for answer in answers})
        batches = {batch.key[:2]: batch for batch in part.batches}
        shown = []
        doubtful: list[tuple[Write, int]] = []
        for answer in answers:
            batch = batches.get((answer.topic, answer.partition))
            if batch is not None:
                shown.append(self._decider.outcome(batch, answer))
                if self._decider.doubtful(batch.write, answer.error):
                    self._decider.not_appended(batch.write)
                    doubtful.append((batch.write, answer.error))
        if doubtful:
            self._shared.transaction_store.catch_up().then(
                lambda known: self._take(self._believed(shown, doubtful, known), throttle)
            )
        elif part.whole and not hints and shown == answers:
            self._reply_whole(frame, answers)
        else:
            self._take(shown, throttle)

    def _believed(
        self, shown: Iterable[PartitionAnswer], doubtful: Iterable[tuple[Write, int]], known: bool
    ) -> list[PartitionAnswer]:
        """Return the answers with codes for doubtful errors; clients give up except at NOT_LEADER_OR_FOLLOWER."""
        changed: dict[tuple[str, int], PartitionAnswer] = {}
        for write, error in doubtful:
            code = self._decider.believed(write, error, caught_up=known)
            if code != Code.NOT_LEADER_OR_FOLLOWER:
                self._decider.given_up(write)
            if code != error:
                changed[write.key[:2]] = write.answer(code)
        return [changed.get((answer.topic, answer.partition), answer) for answer in shown]

    def _refused(self, part: _ToSource, why: str) -> None:
        """Answer batches that were surely not appended: the source broker is unreachable or refuses this client."""
        shown = []
        for write, epoch, _ in part.batches:
            if not why:
                self._shared.backend.refresh_source(write.route.link, write.part.topic)
            if write.own and self._decider.own is not None:
                self._decider.own.failed(write.part.topic, write.part.partition, epoch)
            self._decider.not_appended(write)
            error = Code.TOPIC_AUTHORIZATION_FAILED if why else Code.NOT_LEADER_OR_FOLLOWER
            shown.append(write.answer(error, why or None))
        self._take(shown, 0)

    # merging

    def _reply_whole(self, frame: Buffer, answers: Iterable[PartitionAnswer]) -> None:
        count_errors(answers, self._shared.served)
        self._reply(frame)

    def _take(self, answers: Iterable[PartitionAnswer], throttle: int) -> None:
        for answer in answers:
            self._put(answer)
        self._throttle = max(self._throttle, throttle)
        self._waiting -= 1
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        if self._request.acks == 0:
            if any(answer.error for answer in self._answers.values()):
                self._client.close("a write without acknowledgement failed")  # as a broker does (B8)
            return
        answers = []
        for part in self._request.parts:
            answer = self._answers.get((part.topic, part.partition))
            if answer is None:
                self._client.close("a broker left out a partition in its Produce answer")
                return
            answers.append(answer)
        count_errors(answers, self._shared.served)
        frame = encode_answer(
            answers,
            version=self._request.version,
            correlation=self._head.correlation_id,
            throttle_ms=self._throttle,
        )
        self._reply(frame)
