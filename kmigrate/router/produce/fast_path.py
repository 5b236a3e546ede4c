"""Forwards writes that go to a single source leader in the client's own frame, judged and stamped in one pass.

Nearly all forwarded writes are of this kind, and the work per batch is most of their cost. So this module knows a
single case: idempotent batches and batches without a producer id, of topics that are forwarded to the same broker. No
batch may be stopped, or under way since before a leader moved, and the connection may not have too many stops. After a
rollback no batch may be a first write that the gate has to judge.
`produce.decide` judges any other request. A `SplitWrite` handles any answer but success, as if it had sent the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kmigrate.model.routes import DIRECT_LIMIT, Serve, TopicRoute
from kmigrate.protocol.frames import RequestHead
from kmigrate.records.batch import TRANSACTIONAL, next_sequence, stamp, translate, walk, whole_batch
from kmigrate.router.produce.decide import StampedWrite, Write, WriteDecider
from kmigrate.router.produce.in_flight import UpstreamWrite
from kmigrate.router.produce.split import SplitWrite
from kmigrate.router.shared.gate import GateKey
from kmigrate.router.shared.state import Buffer, ClientLink, Outcome, SharedState
from kmigrate.router.wire.produce import ProducePart, ProduceRequest, all_stored

__all__ = ["FastForward"]


class _FastWrite(NamedTuple):
    """A batch, with the batch's head as the client gave it."""

    part: ProducePart
    route: TopicRoute
    head: tuple[int, int, int, int, int]
    """Attributes, last offset delta, producer id, epoch and first sequence."""

    @property
    def key(self) -> GateKey:
        return self.part.topic, self.part.partition, self.head[2]


class FastForward:
    """Forwards the simple writes of a client connection."""

    def __init__(self, shared: SharedState, client: ClientLink, decider: WriteDecider) -> None:
        self._shared = shared
        self._client = client
        self._decider = decider
        self._by: tuple[object, object] = (None, None)
        self._known: dict[str, dict[int, int]] = {}
        """Known leaders, by topic and partition, for as long as routing table and layout stay those of `_by`."""

    def look(self, request: ProduceRequest) -> UpstreamWrite[_FastWrite] | None:
        """Return a request of this kind as a write to its leader; None for other requests. Nothing is changed yet."""
        own, routes = self._decider.own, self._shared.table.topics
        if request.acks == 0 or self._decider.stops.too_many:
            return None
        upstream: UpstreamWrite[_FastWrite] | None = None
        batches: list[_FastWrite] = []
        topic: str | None = None
        route: TopicRoute | None = None
        leaders: dict[int, int] = {}
        gated = False
        for part in request.parts:
            if part.topic is not topic:
                topic = part.topic
                route = routes.get(topic)
                if route is None or route.serve is not Serve.FORWARD:
                    return None
                upstream = upstream or self._begin(route.link, part, request.version, batches)
                if upstream is None or upstream.link != route.link:
                    return None
                leaders = self._known.setdefault(topic, {})
                gated |= bool(route.gate)
            head = whole_batch(part.records)
            if head is None or route is None or upstream is None:
                return None
            attributes, _, producer_id, _, _ = head
            if attributes & TRANSACTIONAL or producer_id >= DIRECT_LIMIT or (producer_id < 0 and own is None):
                return None
            if leaders.get(part.partition) != upstream.node:
                leader, _ = self._shared.backend.source_leader(upstream.link, topic, part.partition)
                if leader != upstream.node:
                    return None
                leaders[part.partition] = leader
            batches.append(_FastWrite(part, route, head))
        judged = self._decider.stops.hold_any(batches) or (gated and not self._pass_gate(batches))
        return None if judged else upstream

    def _pass_gate(self, batches: Iterable[_FastWrite]) -> bool:
        """Return whether the gate lets all batches pass without a question, after a rollback."""
        passes = self._shared.gate.passes
        return all(
            producer_id < 0 or passes((part.topic, part.partition, producer_id), epoch, next_sequence(sequence, delta))
            for part, _, (_, delta, producer_id, epoch, sequence) in batches
        )

    def _begin(
        self, link: str, first: ProducePart, version: int, batches: list[_FastWrite]
    ) -> UpstreamWrite[_FastWrite] | None:
        """Return the write of a request that begins with this partition, without batches."""
        node, newest = self._shared.backend.source_leader(link, first.topic, first.partition)
        layout = self._shared.backend.source_layout(link)
        if node < 0 or newest < version or self._decider.in_flight.predates(link, layout):
            return None
        table = self._shared.table
        if self._by[0] is not table or self._by[1] is not layout:
            self._by, self._known = (table, layout), {}
        return UpstreamWrite(link, node, newest, layout, batches)

    def send(
        self,
        upstream: UpstreamWrite[_FastWrite],
        head: RequestHead,
        frame: bytearray,
        request: ProduceRequest,
        reply: Callable[[Buffer], None],
    ) -> None:
        """Stamp, count and send the request now; `reply` gets the answer."""
        own, account, batches = self._decider.own, self._shared.forwards, upstream.batches
        counts: dict[str, int] = {}
        for part, route, (_, delta, producer_id, _, _) in batches:
            key = route.key
            counts[key] = counts.get(key, 0) + 1
            if producer_id >= 0:
                translate(part.records, producer_id, producer_id + route.shift)
            elif own is not None:
                epoch, sequence = own.stamp_for(part.topic, part.partition, delta + 1)
                shown = own.producer_id + route.shift
                stamp(part.records, producer_id=shown, epoch=epoch, sequence=sequence, base_offset=None)
        for key, count in counts.items():
            account.sent(key, count)
        account.bytes += len(frame)
        self._decider.in_flight.send(upstream)

        def done(outcome: Outcome) -> None:
            self._decider.in_flight.answered(upstream)
            try:
                if outcome.frame is not None and all_stored(outcome.frame, request):
                    self._stored(batches)
                    reply(outcome.frame)
                else:
                    split = SplitWrite(self._shared, self._client, self._decider, head, request, reply)
                    split.relayed([_stamped(batch) for batch in batches], outcome)
            finally:
                for key, count in counts.items():
                    self._shared.resolved(key, count)

        self._client.to_source(upstream.link, upstream.node, [frame], head.correlation_id, done)

    def _stored(self, batches: Sequence[_FastWrite]) -> None:
        """Note acknowledged batches; the gate needs no marks of the router's own ids, which never reach the target."""
        acknowledged = self._shared.forwards.acknowledged
        for part, route, (_, delta, producer_id, epoch, sequence) in batches:
            if producer_id >= 0:
                acknowledged(route.key, part.partition, producer_id, epoch, next_sequence(sequence, delta))


def _stamped(written: _FastWrite) -> StampedWrite:
    """Return a batch that has left, as the decider would have seen the batch at its arrival."""
    (batch,) = walk(written.part.records)
    epoch, last_sequence = batch.producer_epoch, batch.last_sequence
    _, _, batch.producer_id, batch.producer_epoch, batch.base_sequence = written.head
    return StampedWrite(Write(written.part, batch, written.route), epoch, last_sequence)
