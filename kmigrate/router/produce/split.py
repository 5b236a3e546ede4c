"""Sends a Produce request in as few parts as possible, and merges the answers in request order.

A source's MESSAGE_TOO_LARGE (10) may come from the seal that a promote has put on the topic
(`workflow.promote.sealing`). Clients give such a batch up for good, so no client gets this error before the state log
was read. Where a seal may be the reason, the client gets NOT_LEADER_OR_FOLLOWER (6) and sends the batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.produce.decide import Move, Plan, WriteDecider
from kmigrate.router.produce.in_flight import UpstreamWrite
from kmigrate.router.shared.state import Buffer, ClientLink, Outcome, SharedState
from kmigrate.router.wire.produce import (
    PartitionAnswer,
    ProduceRequest,
    encode_answer,
    encode_request,
    parse_answer,
    without_hints,
)

__all__ = ["SplitWrite"]


@dataclass(slots=True)
class _Part:
    """An upstream request of the exchange."""

    plans: list[Plan]
    version: int
    whole: bool
    """True if the request is the client's own frame, so that its answer may pass unchanged."""

    def batches(self) -> dict[str, int]:
        """Return the number of batches by topic key."""
        counts: dict[str, int] = {}
        for plan in self.plans:
            assert plan.route is not None
            counts[plan.route.key] = counts.get(plan.route.key, 0) + 1
        return counts


class SplitWrite:
    """Sends a decided request and gives the answer to `reply` once every part is answered.

    `reply` must not hold the exchange. Such a cycle of references would keep the request's megabytes until the garbage
    collector runs.
    """

    def __init__(
        self,
        shared: SharedState,
        client: ClientLink,
        judge: WriteDecider,
        head: RequestHead,
        request: ProduceRequest,
        plans: list[Plan],
        reply: Callable[[Buffer], None],
    ) -> None:
        self._shared = shared
        self._client = client
        self._judge = judge
        self._head = head
        self._request = request
        self._plans = plans
        self._reply = reply
        self._answers: dict[tuple[str, int], PartitionAnswer] = {}
        self._waiting = 0
        self._throttle = 0

    def send(self, frame: bytearray) -> None:
        """Stamp, count and send everything now."""
        for plan in self._plans:
            if plan.move is Move.SOURCE:
                self._judge.stamp(plan)
        target: list[Plan] = []
        source: dict[tuple[str, int], list[Plan]] = {}
        for plan in self._plans:
            if plan.move is Move.ANSWER:
                self._answer_here(plan)
            elif plan.move is Move.SOURCE:
                assert plan.route is not None
                source.setdefault((plan.route.link, plan.node), []).append(plan)
            else:
                target.append(plan)
        self._waiting = len(source) + bool(target)
        if target:
            self._to_target(target, frame)
        for (link, node), plans in source.items():
            self._to_source(link, node, plans, frame)
        if not self._waiting:
            self._finish()

    def _answer_here(self, plan: Plan) -> None:
        if plan.error == Code.NOT_LEADER_OR_FOLLOWER:
            self._judge.not_appended(plan)
        elif not plan.error:
            self._judge.leaves(plan)
        if plan.behind:
            self._judge.refused(plan, self._client.now())
        self._put(plan.answer(plan.error, plan.message))

    def _put(self, answer: PartitionAnswer) -> None:
        self._answers[(answer.topic, answer.partition)] = answer

    # to the target

    def _to_target(self, plans: list[Plan], frame: bytearray) -> None:
        request, primes = self._request, [plan for plan in plans if plan.move is Move.ADMIT_ALONE]
        for plan in primes:
            self._shared.gate.prime(plan.key, self._client)
        for plan in plans:
            self._judge.leaves(plan)
        silent = request.acks == 0 and not primes
        whole = len(plans) == len(self._plans) and (request.acks != 0 or silent)
        part = _Part(plans, request.version, whole)
        pieces: list[Buffer] = [frame]
        if not whole:
            acks = 1 if primes and request.acks == 0 else request.acks
            pieces = self._encode(plans, request.version, acks)
        if silent:
            self._waiting -= 1
            self._client.to_target(pieces, self._head.correlation_id, None)
        else:
            self._client.to_target(pieces, self._head.correlation_id, lambda answer: self._target(part, answer))

    def _target(self, part: _Part, frame: bytearray) -> None:
        primes = [plan for plan in part.plans if plan.move is Move.ADMIT_ALONE]
        if part.whole and not primes:
            self._reply(without_hints(frame, self._request))
            return
        answers, throttle, hints = parse_answer(frame, part.version)
        by_key = {(answer.topic, answer.partition): answer for answer in answers}
        for plan in primes:
            told = by_key.get(plan.key[:2])
            self._shared.gate.settled(plan.key, told is not None and told.error in (0, Code.DUPLICATE_SEQUENCE_NUMBER))
            if told is not None:
                self._judge.entered(plan, told.error)
        if part.whole and not hints:
            self._reply(frame)
        else:
            self._take(part, answers, throttle)
        self._shared.gate.look_again(plan.key for plan in primes)

    # to the source

    def _to_source(self, link: str, node: int, plans: list[Plan], frame: bytearray) -> None:
        request = self._request
        version = min(request.version, plans[0].version)
        whole = len(plans) == len(self._plans) and request.acks != 0 and version == request.version
        part = _Part(plans, version, whole)
        pieces = [frame] if whole else self._encode(plans, version, request.acks or 1)
        batches = part.batches()
        for key, count in batches.items():
            self._shared.forwards.leave(key, count)
        self._shared.forwards.bytes += sum(map(len, pieces))
        way = UpstreamWrite(link, node, version, self._shared.backend.source_layout(link), plans)
        self._judge.pipeline.send(way)
        self._client.to_source(
            link, node, pieces, self._head.correlation_id, lambda outcome: self._source(part, way, batches, outcome)
        )

    def _encode(self, plans: Iterable[Plan], version: int, acks: int) -> list[Buffer]:
        return encode_request(
            self._request,
            (plan.part for plan in plans),
            version=version,
            acks=acks,
            correlation=self._head.correlation_id,
            client_id=self._head.client_id,
        )

    def _source(self, part: _Part, way: UpstreamWrite[Plan], batches: Mapping[str, int], outcome: Outcome) -> None:
        self._judge.pipeline.answered(way)
        try:
            self._found(part, outcome)
        finally:
            for key, count in batches.items():
                self._shared.resolved(key, count)

    def relayed(self, outcome: Outcome) -> None:
        """Handle the outcome of the client's own frame, which `FastForward` has sent and counts."""
        self._waiting = 1
        self._found(_Part(self._plans, self._request.version, whole=True), outcome)

    def _found(self, part: _Part, outcome: Outcome) -> None:
        if outcome.frame is not None:
            self._source_answered(part, outcome.frame)
        elif not outcome.sent:
            self._refused(part, outcome.refused)
        else:
            self._client.close("the outcome of a forwarded write is unknown: the client shall send it again")

    def _source_answered(self, part: _Part, frame: bytearray) -> None:
        answers, throttle, hints = parse_answer(frame, part.version)
        plans = {(plan.part.topic, plan.part.partition): plan for plan in part.plans}
        told = []
        doubtful: list[tuple[Plan, int]] = []
        for answer in answers:
            plan = plans.get((answer.topic, answer.partition))
            if plan is not None:
                told.append(self._judge.outcome(plan, answer))
                if self._judge.doubtful(plan, answer.error):
                    self._judge.not_appended(plan)
                    doubtful.append((plan, answer.error))
        if doubtful:
            self._shared.transaction_store.catch_up().then(
                lambda known: self._take(part, self._believed(told, doubtful, known), throttle)
            )
        elif part.whole and not hints and told == answers:
            self._reply(frame)
        else:
            self._take(part, told, throttle)

    def _believed(
        self, told: Iterable[PartitionAnswer], doubtful: Iterable[tuple[Plan, int]], known: bool
    ) -> list[PartitionAnswer]:
        """Return the answers with the clients' codes for doubtful errors.

        A client gives a batch up unless the code is NOT_LEADER_OR_FOLLOWER.
        """
        changed: dict[tuple[str, int], PartitionAnswer] = {}
        for plan, error in doubtful:
            code = self._judge.believed(plan, error, caught_up=known)
            if code != Code.NOT_LEADER_OR_FOLLOWER:
                self._judge.given_up(plan)
            if code != error:
                changed[plan.key[:2]] = plan.answer(code)
        return [changed.get((answer.topic, answer.partition), answer) for answer in told]

    def _refused(self, part: _Part, why: str) -> None:
        """Answer batches that were surely not appended: the source broker is unreachable or refuses this client."""
        told = []
        for plan in part.plans:
            assert plan.route is not None
            if not why:
                self._shared.backend.refresh_source(plan.route.link, plan.part.topic)
            if plan.own and self._judge.own is not None:
                self._judge.own.failed(plan.part.topic, plan.part.partition, plan.epoch)
            self._judge.not_appended(plan)
            error = Code.TOPIC_AUTHORIZATION_FAILED if why else Code.NOT_LEADER_OR_FOLLOWER
            told.append(plan.answer(error, why or None))
        self._take(part, told, 0)

    # merging

    def _take(self, part: _Part, answers: Iterable[PartitionAnswer], throttle: int) -> None:
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
        for plan in self._plans:
            answer = self._answers.get((plan.part.topic, plan.part.partition))
            if answer is None:
                self._client.close("a broker left out a partition in its Produce answer")
                return
            answers.append(answer)
        frame = encode_answer(
            answers,
            version=self._request.version,
            correlation=self._head.correlation_id,
            throttle_ms=self._throttle,
        )
        self._reply(frame)
