"""Metrics of a controller: the phases and promotes of topics and groups, checks, and late writes at sources.

Each controller process reads these figures from the state log, whether it leads or stands by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from kmigrate.model.lag import lag_of
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import LateWrites, SourceAccess, TopicRecord
from kmigrate.model.sharing import progress_of
from kmigrate.model.verified import standing
from kmigrate.observe.distributions import Histogram
from kmigrate.observe.registry import Kind, Metric, Registry, Sample
from kmigrate.state.log import StateLog
from kmigrate.workflow.status.timeline import Happened, Timeline, TimelineEvent

__all__ = ["METRICS", "PromoteMeter", "show_controller"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOPIC, _GROUP = ("link", "topic"), ("link", "group")

_STEPS = {
    Happened.PROMOTE_ASKED: "asked",
    Happened.FLIPPED: "flipped",
    Happened.GIVEN_UP: "given-up",
    Happened.ROLLBACK_ASKED: "rollback-asked",
    Happened.ROLLED_BACK: "rolled-back",
}
"""The events that are counted, by the value of the label `step`."""

_OF_PARTITIONS = {
    Metric(
        "kmigrate_late_offsets",
        Kind.GAUGE,
        "Offsets of the source at or beyond the barrier of a promoted topic; no sample where there is none.",
        ("link", "topic", "partition"),
    ): lambda late: late.end - late.start,
    Metric(
        "kmigrate_late_records",
        Kind.GAUGE,
        "Records among them that readers see, as far as they are read.",
        ("link", "topic", "partition"),
    ): lambda late: late.records,
    Metric(
        "kmigrate_late_missing_records",
        Kind.GAUGE,
        "These records without those that were copied or quarantined: they are on the source alone.",
        ("link", "topic", "partition"),
    ): lambda late: late.lost,
}
_CLOSED = Metric(
    "kmigrate_source_closed",
    Kind.GAUGE,
    "1 where the source topic of a promoted topic refuses writes, else 0.",
    _TOPIC,
)
_WAY_BACK = Metric(
    "kmigrate_way_back_open",
    Kind.GAUGE,
    "1 where a promoted topic is copied back to the source and can be rolled back, else 0.",
    _TOPIC,
)
_WAY_BACK_LAG = Metric(
    "kmigrate_way_back_lag_records",
    Kind.GAUGE,
    "Records that the target has and the source lacks while the way back is open; no sample without a report.",
    _TOPIC,
)
_WAY_BACK_SECONDS = Metric(
    "kmigrate_way_back_lag_seconds",
    Kind.GAUGE,
    "Age of the oldest of these records, at most; 0 for none.",
    _TOPIC,
)
_TOPIC_PHASE = Metric("kmigrate_topic_phase", Kind.GAUGE, "1 for the phase that a topic is in.", (*_TOPIC, "phase"))
_TOPIC_AGE = Metric("kmigrate_topic_phase_seconds", Kind.GAUGE, "Time since the topic entered its phase.", _TOPIC)
_GROUP_PHASE = Metric("kmigrate_group_phase", Kind.GAUGE, "1 for the phase that a group is in.", (*_GROUP, "phase"))
_GROUP_AGE = Metric("kmigrate_group_phase_seconds", Kind.GAUGE, "Time since the group entered its phase.", _GROUP)
_PROMOTES = Metric(
    "kmigrate_promotes_total",
    Kind.COUNTER,
    "Steps of promotes and rollbacks that this process has seen: asked, flipped, rollback-asked, rolled-back, or "
    "given-up (refused by a guard of the controller, timed out or taken back).",
    ("link", "what", "step"),
)
_FENCE = Metric(
    "kmigrate_fence_seconds",
    Kind.HISTOGRAM,
    "Time from a topic's fence to its end, by how the fence ended: flipped, rolled-back or given-up.",
    ("link", "end"),
)
_FLIP = Metric("kmigrate_flip_seconds", Kind.HISTOGRAM, "Time from a topic's barrier to its flip.", ("link",))
_VERIFIED = Metric(
    "kmigrate_verified_offset",
    Kind.GAUGE,
    "Source offset below which the newest checks found the copy equal; no sample after a difference, or without check.",
    (*_TOPIC, "partition"),
)
_VERIFY_AGE = Metric(
    "kmigrate_verify_age_seconds",
    Kind.GAUGE,
    "Time since the check of the partition of the topic that was checked longest ago.",
    _TOPIC,
)

METRICS: tuple[Metric, ...] = (
    _TOPIC_PHASE,
    _TOPIC_AGE,
    _GROUP_PHASE,
    _GROUP_AGE,
    _PROMOTES,
    _FENCE,
    _FLIP,
    _VERIFIED,
    _VERIFY_AGE,
    *_OF_PARTITIONS,
    _CLOSED,
    _WAY_BACK,
    _WAY_BACK_LAG,
    _WAY_BACK_SECONDS,
)


class PromoteMeter:
    """Counts the promotes that a timeline sees, and how long their fences and flips took."""

    def __init__(self) -> None:
        self._steps: Counter[tuple[str, str, str]] = Counter()
        self._fences: dict[tuple[str, str], Histogram] = {}
        self._flips: dict[tuple[str, ...], Histogram] = {}

    def count(self, event: TimelineEvent) -> None:
        """Count an event of a topic or group."""
        step = _STEPS.get(event.happened)
        if step is None:
            return
        self._steps[event.link, event.what, step] += 1
        if event.fence_ms >= 0:
            self._fences.setdefault((event.link, step), Histogram(_SECONDS)).add([event.fence_ms / 1000], [1])
        if event.flip_ms >= 0:
            self._flips.setdefault((event.link,), Histogram(_SECONDS)).add([event.flip_ms / 1000], [1])

    def show_in(self, registry: Registry) -> None:
        registry.add(_PROMOTES, lambda: sorted(self._steps.items()))
        registry.add(_FENCE, lambda: [(labels, each.value()) for labels, each in sorted(self._fences.items())])
        registry.add(_FLIP, lambda: [(labels, each.value()) for labels, each in sorted(self._flips.items())])


def show_controller(registry: Registry, log: StateLog, timeline: Timeline) -> None:
    """Show in a registry what the state log says of topics and groups, and what the timeline sees from now on."""
    registry.add(_TOPIC_PHASE, lambda: (((t.link, t.topic, t.phase), 1) for t in log.state.topics()))
    registry.add(_TOPIC_AGE, lambda: (((t.link, t.topic), _age_s(log, t.since_ms)) for t in log.state.topics()))
    registry.add(_GROUP_PHASE, lambda: (((g.link, g.group, g.phase), 1) for g in log.state.groups()))
    registry.add(_GROUP_AGE, lambda: (((g.link, g.group), _age_s(log, g.since_ms)) for g in log.state.groups()))
    meter = PromoteMeter()
    timeline.listen(meter.count)
    meter.show_in(registry)
    registry.add(_VERIFIED, partial(_verified, log))
    registry.add(_VERIFY_AGE, partial(_verify_ages, log))
    for metric, read in _OF_PARTITIONS.items():
        registry.add(metric, partial(_late, log, read))
    registry.add(_CLOSED, partial(_closed, log))
    registry.add(_WAY_BACK, partial(_way_backs, log))
    registry.add(_WAY_BACK_LAG, partial(_way_back_lags, log))
    registry.add(_WAY_BACK_SECONDS, partial(_way_back_ages, log))


def _age_s(log: StateLog, since_ms: int) -> float:
    return max(0, log.now_ms() - since_ms) / 1000


def _verified(log: StateLog) -> Iterator[Sample]:
    for record in log.state.topics():
        link = log.state.link(record.link)
        found = standing(log.state.verified(record.link, record.topic), link, record) if link is not None else {}
        for partition, each in sorted(found.items()):
            yield (record.link, record.topic, str(partition)), each.end


def _verify_ages(log: StateLog) -> Iterator[Sample]:
    for record in log.state.topics():
        link = log.state.link(record.link)
        found = standing(log.state.verified(record.link, record.topic), link, record) if link is not None else {}
        if found:
            yield (record.link, record.topic), _age_s(log, min(each.at_ms for each in found.values()))


def _late(log: StateLog, read: Callable[[LateWrites], int]) -> Iterator[Sample]:
    for record in log.state.topics():
        late = log.state.late(record.link, record.topic)
        for partition, writes in sorted(late.partitions.items()) if late is not None else ():
            yield (record.link, record.topic, str(partition)), read(writes)


def _closed(log: StateLog) -> Iterator[Sample]:
    for record in log.state.topics():
        if record.source_access is not None:
            yield (record.link, record.topic), int(record.source_access is SourceAccess.CLOSED)


def _way_backs(log: StateLog) -> Iterator[Sample]:
    for record in log.state.topics():
        if record.at_target:
            yield (record.link, record.topic), int(record.copied_back)


def _way_back_lags(log: StateLog) -> Iterator[Sample]:
    for record, seen in _copied_back(log):
        yield (record.link, record.topic), sum(map(_behind, seen))


def _way_back_ages(log: StateLog) -> Iterator[Sample]:
    now = log.now_ms()
    for record, seen in _copied_back(log):
        ages = [lag_of(_behind(each), each.pace, now).seconds for each in seen]
        if min(ages) >= 0:
            yield (record.link, record.topic), max(ages)


def _copied_back(log: StateLog) -> Iterator[tuple[TopicRecord, list[PartitionProgress]]]:
    """Return the topics with an open way back whose copies all report the target's end."""
    reports = log.alive(MirrorPresence)
    for record in log.state.topics():
        seen = list(progress_of(log.state, record, reports).values()) if record.copied_back else []
        if seen and all(each.source_end >= 0 for each in seen):
            yield record, seen


def _behind(seen: PartitionProgress) -> int:
    return max(0, seen.source_end - seen.position)
