"""Forwards writes that go to a single source leader in the client's own frame, judged and stamped in one pass.

Nearly all forwarded writes are of this kind, and the work per batch is most of their cost. So this module knows a
single case: idempotent batches and batches without a producer id, of topics that are forwarded to the same broker. None
of the batches may be stopped, and the connection may not have too many stops. No batch may be under way since before a
leader moved.

For any other request `look` returns None and has changed nothing; `produce.decide` judges that request. An `SplitWrite`
handles any answer but success, as if the exchange had sent the request itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kmigrate.model.routes import DIRECT_LIMIT, Serve, TopicRoute
from kmigrate.protocol.frames import RequestHead
from kmigrate.records.batch import TRANSACTIONAL, next_sequence, stamp, translate, walk, whole_batch
from kmigrate.router.produce.decide import Move, Plan, WriteDecider
from kmigrate.router.produce.in_flight import UpstreamWrite
from kmigrate.router.produce.split import SplitWrite
from kmigrate.router.shared.gate import GateKey
from kmigrate.router.shared.state import Buffer, ClientLink, Outcome, SharedState
from kmigrate.router.wire.produce import ProducePart, ProduceRequest, all_stored

__all__ = ["FastForward"]


class _StampedBatch(NamedTuple):
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

    def __init__(self, shared: SharedState, client: ClientLink, judge: WriteDecider) -> None:
        self._shared = shared
        self._client = client
        self._judge = judge
        self._by: tuple[object, object] = (None, None)
        self._known: dict[str, dict[int, int]] = {}
        """Known leaders, by topic and partition, for as long as routing table and layout stay those of `_by`."""

    def look(self, request: ProduceRequest) -> UpstreamWrite[_StampedBatch] | None:
        """Return the way of a request of this kind; nothing is changed yet."""
        own, routes = self._judge.own, self._shared.table.topics
        if request.acks == 0 or self._judge.stops.too_many:
            return None
        way: UpstreamWrite[_StampedBatch] | None = None
        topic: str | None = None
        route: TopicRoute | None = None
        leaders: dict[int, int] = {}
        for part in request.parts:
            if part.topic is not topic:
                topic = part.topic
                route = routes.get(topic)
                if route is None or route.serve is not Serve.FORWARD:
                    return None
                way = way or self._begin(route.link, part, request.version)
                if way is None or way.link != route.link:
                    return None
                leaders = self._known.setdefault(topic, {})
            assert route is not None and way is not None
            head = whole_batch(part.records)
            if head is None:
                return None
            attributes, _, producer_id, _, _ = head
            if attributes & TRANSACTIONAL or producer_id >= DIRECT_LIMIT or (producer_id < 0 and own is None):
                return None
            if leaders.get(part.partition) != way.node:
                leader, _ = self._shared.backend.source_leader(way.link, topic, part.partition)
                if leader != way.node:
                    return None
                leaders[part.partition] = leader
            way.batches.append(_StampedBatch(part, route, head))
        return None if way is None or self._judge.stops.hold_any(way.batches) else way

    def _begin(self, link: str, first: ProducePart, version: int) -> UpstreamWrite[_StampedBatch] | None:
        """Return the way of a request that begins with this partition."""
        node, newest = self._shared.backend.source_leader(link, first.topic, first.partition)
        layout = self._shared.backend.source_layout(link)
        if node < 0 or newest < version or self._judge.pipeline.predates(link, layout):
            return None
        table = self._shared.table
        if self._by[0] is not table or self._by[1] is not layout:
            self._by, self._known = (table, layout), {}
        return UpstreamWrite(link, node, newest, layout, [])

    def send(
        self,
        way: UpstreamWrite[_StampedBatch],
        head: RequestHead,
        frame: bytearray,
        request: ProduceRequest,
        reply: Callable[[Buffer], None],
    ) -> None:
        """Stamp, count and send the request now; `reply` gets the answer."""
        own, account, batches = self._judge.own, self._shared.forwards, way.batches
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
            account.leave(key, count)
        account.bytes += len(frame)
        self._judge.pipeline.send(way)

        def done(outcome: Outcome) -> None:
            self._judge.pipeline.answered(way)
            try:
                if outcome.frame is not None and all_stored(outcome.frame, request):
                    self._stored(batches)
                    reply(outcome.frame)
                else:
                    plans = [_plan(batch, way) for batch in batches]
                    SplitWrite(self._shared, self._client, self._judge, head, request, plans, reply).relayed(outcome)
            finally:
                for key, count in counts.items():
                    self._shared.resolved(key, count)

        self._client.to_source(way.link, way.node, [frame], head.correlation_id, done)

    def _stored(self, batches: list[_StampedBatch]) -> None:
        """Note acknowledged batches; the gate needs no marks of the router's own ids, which never reach the target."""
        acknowledged = self._shared.forwards.acknowledged
        for part, route, (_, delta, producer_id, epoch, sequence) in batches:
            if producer_id >= 0:
                acknowledged(route.key, part.partition, producer_id, epoch, next_sequence(sequence, delta))


def _plan(written: _StampedBatch, way: UpstreamWrite[_StampedBatch]) -> Plan:
    """Return the decision for a batch that has left, made as the judge would have made it at the batch's arrival."""
    (batch,) = walk(written.part.records)
    plan = Plan(written.part, Move.SOURCE, batch, written.route, way.node, way.version)
    plan.epoch, plan.last_sequence = batch.producer_epoch, batch.last_sequence
    _, _, batch.producer_id, batch.producer_epoch, batch.base_sequence = written.head
    return plan
