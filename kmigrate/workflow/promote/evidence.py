"""Collects the evidence on promotes and rollbacks from the state log and from the routers' reports. Pure.

The witness only looks on: no step of a promote waits for the witness. Most facts stand in the record of the topic or
group. The others are gone after the end, so the witness remembers them while the request is under way: the record as it
was behind the fence, and the counts in flight. A witness that begins later makes the report from what is left, and the
report says what it lacks.

A request leaves a report if the record has `asked`, with the action. The phases of a rollback are known here, so a verb
that asks for a rollback needs a single line: `replace(record, ..., asked=Asked(Action.ROLLBACK, log.now_ms(), who))`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kmigrate.model.lifecycle import BEHIND_FENCE, PROMOTING, ROLLBACK_BEHIND_FENCE, ROLLING_BACK, GroupPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import Action, GroupRecord, PartitionBarrier, TopicRecord
from kmigrate.model.reports import (
    MOST_ROWS,
    Outcome,
    PartitionEvidence,
    Pause,
    ReportedKind,
    ReportRecord,
    RouterEvidence,
    report_key,
)
from kmigrate.model.state import State
from kmigrate.model.verified import standing

__all__ = ["Ended", "Witness", "report_of"]

_MOST_DIRECT = 20
"""Maximum number of direct writers in a report."""
_SETTLE_S = 2.0
"""Seconds from the end of a request in which routers report how long they held requests."""

Moved = TopicRecord | GroupRecord


@dataclass(slots=True)
class _Open:
    """A request under way: the record as it is now, and each router's first report of the fence."""

    record: Moved
    in_flight: dict[str, RouterEvidence] = field(default_factory=dict)


@dataclass(slots=True)
class Ended:
    """A request that has ended: the record after the end, and what is known from the time before."""

    record: Moved
    epoch: int
    """Epoch of the state in which the end was seen; a router that has applied this state has released its writers."""
    due: float
    """Time when the report is written, by the monotonic clock."""
    before: Moved | None = None
    """The record as it was last seen under way; None if nobody saw the request under way."""
    in_flight: Mapping[str, RouterEvidence] = field(default_factory=dict)
    holds: dict[str, Mapping[int, float]] = field(default_factory=dict)
    """Longest holds by instance of the router and by partition, in ms."""

    @property
    def key(self) -> str:
        return _report_key(self.record)


class Witness:
    """Follows the states of the state log, and collects the evidence of each request that is under way or has ended."""

    def __init__(self) -> None:
        self._known = State()
        self._open: dict[str, _Open] = {}
        self._ended: dict[str, Ended] = {}
        self._handed: set[str] = set()
        """Keys of the reports that the caller is writing."""

    def follow(self, state: State, routers: Collection[RouterPresence], now: float) -> None:
        """Take in a state and the routers' reports; the cost depends on changes, and on requests without a report."""
        for word in ("topic", "group"):
            for key, record in state.records.changed_since(self._known.records, word).items():
                moved = record if isinstance(record, Moved) and record.asked is not None else None
                self._take(key, moved, state, now)
        self._known = state
        for router in routers if self._open or self._ended else ():
            self._hear(router, state)

    def _take(self, key: str, record: Moved | None, state: State, now: float) -> None:
        known = self._open.pop(key, None)
        if record is None:
            return
        if known is not None and known.record.asked != record.asked:
            known = None
        if _under_way(record):
            self._open[key] = _Open(record, known.in_flight if known is not None and _same_fence(known, record) else {})
            return
        report = _report_key(record)
        if report in state.records:
            self._handed.discard(report)
        if report in state.records or report in self._ended or report in self._handed:
            return
        ended = Ended(record, state.epoch, now + (_SETTLE_S if isinstance(record, TopicRecord) else 0.0))
        if known is not None:
            ended.before, ended.in_flight = known.record, known.in_flight
        self._ended[report] = ended

    def _hear(self, router: RouterPresence, state: State) -> None:
        for key, each in self._open.items():
            ack = router.fences.get(key)
            fence = each.record.newest_fence if isinstance(each.record, TopicRecord) else -1
            if ack is not None and ack.epoch == fence and router.instance not in each.in_flight:
                each.in_flight[router.instance] = RouterEvidence(router.name, router.instance, ack.in_flight)
        for ended in self._ended.values():
            now = state.records.get(ended.record.key)
            # The next fence, where routers begin to count anew, follows only from the next request.
            same = isinstance(now, TopicRecord) and now.asked == ended.record.asked
            if same and router.applied >= ended.epoch:
                ended.holds[router.instance] = router.holds_ms.get(ended.record.key, {})

    def sees_fence(self) -> bool:
        """Return whether the writers of some topic wait."""
        fenced = BEHIND_FENCE | ROLLBACK_BEHIND_FENCE
        return any(isinstance(each.record, TopicRecord) and each.record.phase in fenced for each in self._open.values())

    def due(self, now: float) -> list[Ended]:
        """Return the ended requests whose reports are to be written; the caller gets each once, and writes it."""
        ready = [each for each in self._ended.values() if each.due <= now]
        for each in ready:
            del self._ended[each.key]
        self._handed.update(each.key for each in ready)
        return ready


def _report_key(record: Moved) -> str:
    assert record.asked is not None
    if isinstance(record, TopicRecord):
        return report_key(record.link, ReportedKind.TOPIC, record.topic, record.asked.at_ms)
    return report_key(record.link, ReportedKind.GROUP, record.group, record.asked.at_ms)


def _under_way(record: Moved) -> bool:
    if isinstance(record, TopicRecord):
        return record.phase in PROMOTING or record.phase in ROLLING_BACK
    return record.phase in (GroupPhase.PROMOTING, GroupPhase.ROLLING_BACK)


def _is_done(record: Moved) -> bool:
    """Return whether the newest request has reached its aim; the request is not under way."""
    assert record.asked is not None
    return record.at_target == (record.asked.action is Action.PROMOTE)


def _same_fence(known: _Open, record: Moved) -> bool:
    """Return whether the record stands at the fence that the known record stood at."""
    before = known.record
    if not isinstance(before, TopicRecord) or not isinstance(record, TopicRecord):
        return False
    return before.newest_fence == record.newest_fence


class _Fence(NamedTuple):
    """The newest fence of a topic's newest request, as far as the topic's record knows the fence."""

    epoch: int
    fenced_ms: int
    barrier_ms: int
    barrier: Mapping[int, PartitionBarrier]

    @staticmethod
    def of(record: TopicRecord) -> _Fence:
        """Return the fence; after the flip of a rollback the copy goes on at the barrier (`TopicRecord.resumed`)."""
        way, back = record.way_back, record.asked is not None and record.asked.action is Action.ROLLBACK
        if back and way is not None:
            return _Fence(way.fence_epoch, way.fenced_ms, way.barrier_ms, way.barrier)
        resumed = {p: PartitionBarrier(at, -1) for p, at in record.resumed.items()} if back else {}
        return _Fence(record.fence_epoch, record.fenced_ms, record.barrier_ms, record.barrier or resumed)


def report_of(ended: Ended, state: State, versions: Mapping[str, str]) -> ReportRecord:
    """Return the report of an ended request."""
    if isinstance(ended.record, GroupRecord):
        return _group_report(ended.record, ended, versions)
    return _topic_report(ended.record, ended, state, versions)


def _group_report(record: GroupRecord, ended: Ended, versions: Mapping[str, str]) -> ReportRecord:
    assert record.asked is not None
    done = _is_done(record)
    return ReportRecord(
        record.link,
        ReportedKind.GROUP,
        record.group,
        record.asked,
        Outcome.DONE if done else Outcome.GIVEN_UP,
        record.promoted_ms if done and record.promoted_ms else record.since_ms,
        reason="" if done else record.reason,
        way_on="" if done else record.way_on,
        partition_count=sum(map(len, record.written.values())) if done else 0,
        positions=_first(record.written) if done else {},
        unread=_total(record.unread) if done else 0,
        read_again=_total(record.read_again) if done else 0,
        versions=versions,
    )


def _topic_report(record: TopicRecord, ended: Ended, state: State, versions: Mapping[str, str]) -> ReportRecord:
    assert record.asked is not None
    done = _is_done(record)
    before = ended.before if isinstance(ended.before, TopicRecord) else None
    fence = _fence(record, before, done=done)
    holds = _holds(ended.holds.values()) if fence is not None else {}
    direct = state.direct(record.link, record.topic)
    writers = sorted(direct.writers, key=lambda writer: -writer.last_ms) if direct is not None else []
    terms = (before or record).terms
    reason, way_on = ("", "") if done else _reason(record)
    return ReportRecord(
        record.link,
        ReportedKind.TOPIC,
        record.topic,
        record.asked,
        Outcome.DONE if done else Outcome.GIVEN_UP,
        _ended_ms(record, done=done),
        fenced_ms=fence.fenced_ms if fence is not None else 0,
        barrier_ms=fence.barrier_ms if fence is not None and fence.barrier else 0,
        fence_epoch=fence.epoch if fence is not None else -1,
        reason=reason,
        way_on=way_on,
        partition_count=record.partitions,
        partitions=_partitions(record, fence.barrier if fence is not None else {}, holds, _verified(record, state)),
        pause=Pause.of(holds.values()),
        routers=tuple(_routers(record, ended)) if fence is not None else (),
        accepted_direct=terms is not None and terms.accept_direct,
        direct=tuple(writers[:_MOST_DIRECT]),
        more_direct=max(0, len(writers) - _MOST_DIRECT) + (direct.more if direct is not None else 0),
        unit=tuple(sorted(record.unit.topics)) if done else (),
        versions=versions,
        gaps=tuple(_gaps(ended, state, seen=before is not None, done=done)) if fence is not None else (),
    )


def _fence(record: TopicRecord, before: TopicRecord | None, *, done: bool) -> _Fence | None:
    """Return the fence of the ended request, with the barrier from before the end; None where no fence was reached."""
    fence = _Fence.of(record)
    if before is not None:
        fenced = done or before.phase in BEHIND_FENCE or before.phase in ROLLBACK_BEHIND_FENCE
        return fence._replace(barrier=_Fence.of(before).barrier or fence.barrier) if fenced else None
    assert record.asked is not None
    return fence if done or fence.fenced_ms >= record.asked.at_ms else None


def _reason(record: TopicRecord) -> tuple[str, str]:
    """Return why the newest request was given up, and the advice against the reason."""
    way = record.way_back
    if record.asked is not None and record.asked.action is Action.ROLLBACK and way is not None:
        return way.reason, way.way_on
    return record.reason, record.way_on


def _ended_ms(record: TopicRecord, *, done: bool) -> int:
    return (record.promoted_ms if record.at_target else record.rolled_back_ms) if done else record.since_ms


def _partitions(
    record: TopicRecord,
    barrier: Mapping[int, PartitionBarrier],
    holds: Mapping[int, float],
    verified: Mapping[int, int],
) -> dict[int, PartitionEvidence]:
    """Return the evidence by partition; of very many partitions those with the longest pauses."""
    by_pause = sorted(range(record.partitions), key=lambda partition: (-holds.get(partition, -1.0), partition))
    rows = {}
    for partition in sorted(by_pause[:MOST_ROWS]):
        at = barrier.get(partition)
        rows[partition] = PartitionEvidence(
            at.offset if at is not None else -1,
            at.leader_epoch if at is not None else -1,
            holds.get(partition, -1.0),
            verified.get(partition, -1),
        )
    return rows


def _routers(record: TopicRecord, ended: Ended) -> Iterator[RouterEvidence]:
    """Yield the evidence of the routers that acknowledged the fence, then of the routers that a seal replaced."""
    seals = (each.seal for each in (ended.before, record) if isinstance(each, TopicRecord) and each.seal is not None)
    sealed = {instance: name for seal in seals for instance, name in seal.routers.items()}
    for instance, router in sorted(ended.in_flight.items(), key=lambda item: item[1].name):
        if instance not in sealed:
            yield _with_pause(router, ended)
    for instance, name in sorted(sealed.items()):
        yield _with_pause(RouterEvidence(name, instance, silent=True), ended)


def _with_pause(router: RouterEvidence, ended: Ended) -> RouterEvidence:
    longest = max(ended.holds.get(router.instance, {}).values(), default=-1.0)
    return RouterEvidence(router.name, router.instance, router.in_flight, longest, router.silent)


def _holds(reports: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the longest hold of any router, by partition."""
    longest: dict[int, float] = {}
    for holds in reports:
        for partition, held in holds.items():
            longest[partition] = max(held, longest.get(partition, 0.0))
    return longest


def _verified(record: TopicRecord, state: State) -> dict[int, int]:
    link = state.link(record.link)
    if link is None:
        return {}
    found = standing(state.verified(record.link, record.topic), link, record)
    return {partition: each.end for partition, each in found.items()}


def _gaps(ended: Ended, state: State, *, seen: bool, done: bool) -> Iterator[str]:
    if not seen:
        lost = "the counts in flight" if done else "the barrier and the counts in flight"
        yield f"no controller ran when the request ended: {lost} are unknown"
    for router in state.routers():
        if router.instance not in ended.holds:
            yield f"router {router.name} on {router.host} has not reported how long it held requests"


def _first(positions: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """Return the first positions, at most `MOST_ROWS`."""
    flat = [(topic, partition, at) for topic, of in sorted(positions.items()) for partition, at in sorted(of.items())]
    kept: dict[str, dict[int, int]] = {}
    for topic, partition, at in flat[:MOST_ROWS]:
        kept.setdefault(topic, {})[partition] = at
    return kept


def _total(counts: Mapping[str, Mapping[int, int]]) -> int:
    return sum(sum(of.values()) for of in counts.values())
