"""Metrics of a mirror process about its links: the declarations, and the place where each value is read.

A `LinkMeter` counts what concerns no single partition; a lane's figures are in the lane and its `tally`. Names follow
MirrorMaker 2's sensors where such sensors exist, in seconds and bytes as Prometheus wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial

from kmigrate.mirror.partition.lane import Lane
from kmigrate.model.lag import Lag, lag_of
from kmigrate.model.presences import DiskUse
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.observe.distributions import Histogram, Recent
from kmigrate.observe.registry import Kind, Metric, Registry, Sample, Value

__all__ = ["METRICS", "LinkMeter", "MirrorMetrics", "Slowed"]

_LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_LINK = ("link",)
_LANE = ("link", "topic", "partition")


class Slowed(StrEnum):
    """The limits that slow the copy of a link down."""

    LINK_THROTTLE = "link-throttle"
    SOURCE_QUOTA = "source-quota"
    TARGET_QUOTA = "target-quota"


class LinkMeter:
    """The figures of a link, as its mirror in this process sees the link."""

    def __init__(self, source: str = "", target: str = "") -> None:
        self.source = source
        self.target = target
        self.lanes: Mapping[tuple[str, int], Lane] = {}
        """The lanes that copy now; none while the process stands by."""
        self.back_lanes: Callable[[], Mapping[tuple[str, int], Lane]] = dict
        """The lanes that copy from the target back to the source."""
        self.followed: Callable[[], int] = lambda: 0
        """Number of partitions that are read from followers."""
        self.holds_lease: Callable[[], bool] = lambda: False
        self.direct_writes: Callable[[], Mapping[tuple[str, str], Sequence[float]]] = dict
        """Seconds since each direct writer last wrote, by topic and partition."""
        self.free_bytes: Callable[[], Mapping[tuple[str, str], int]] = dict
        """Usable bytes of the target's log directories, by broker and path."""
        self.disk_sizes: Callable[[], Mapping[str, int] | None] = lambda: None
        """Bytes on the target with all replicas, by topic; None if unknown, or not asked for by this process."""
        self.disk_use: Callable[[], DiskUse | None] = lambda: None
        self.announced_at: float | None = None
        """Time when our presence was last in the log, on the monotonic clock."""
        self._latency = Histogram(_LATENCY_BOUNDS_S)
        self.slowed_s = dict.fromkeys(Slowed, 0.0)

    @property
    def latency(self) -> Histogram:
        """Replication latency of all partitions together."""
        for lane in self.lanes.values():
            lane.tally.count()
        return self._latency

    def watch(self, lane: Lane) -> None:
        """Count a lane's latencies for the link from now on."""
        lane.tally.add_latencies_to(self._latency)


_Found = Iterable[tuple[tuple[str, ...], Value]]
"""Values with the labels that follow the labels of the link or the lane."""
_LaneRow = tuple[Metric, Callable[[Lane, int], _Found]]
_LinkRow = tuple[Metric, Callable[[LinkMeter], _Found]]


def _gauge(name: str, about: str, read: Callable[[Lane], float]) -> _LaneRow:
    return _lane_metric(name, Kind.GAUGE, about), lambda lane, _: _known(read(lane))


def _counter(name: str, about: str, read: Callable[[Lane], float]) -> _LaneRow:
    return _lane_metric(name, Kind.COUNTER, about), lambda lane, _: [((), read(lane))]


def _counters(
    name: str, about: str, labels: tuple[str, ...], read: Callable[[Lane], Mapping[tuple[str, ...], int]]
) -> _LaneRow:
    return _lane_metric(name, Kind.COUNTER, about, labels), lambda lane, _: read(lane).items()


def _summary(name: str, about: str, scale: float, read: Callable[[Lane], Recent]) -> _LaneRow:
    def spread(lane: Lane, now: int) -> _Found:
        recent = read(lane)
        return [((), recent.value(now, scale))] if recent.count else []

    return _lane_metric(name, Kind.SUMMARY, about), spread


def _lag_gauge(name: str, about: str, read: Callable[[Lag], float]) -> _LaneRow:
    return _lane_metric(name, Kind.GAUGE, about), lambda lane, now: _known(read(_lag(lane, now)))


def _lane_metric(name: str, kind: Kind, about: str, more: tuple[str, ...] = ()) -> Metric:
    return Metric(f"kmigrate_mirror_{name}", kind, about, (*_LANE, *more))


def _known(value: float) -> _Found:
    """Return no sample for an unknown figure: −1 would enter sums."""
    return [((), value)] if value >= 0 else []


def _lag(lane: Lane, now: int) -> Lag:
    known = lane.target.position >= 0 and lane.source.log_end >= 0
    records = max(0, lane.source.log_end - lane.target.position) if known else -1
    return lag_of(records, lane.tally.pace(lane.target.position, lane.source.log_end), now)


_OF_LANES: tuple[_LaneRow, ...] = (
    _lag_gauge("lag_records", "Offsets that the source has and the target has not.", lambda lag: lag.records),
    _lag_gauge("lag_bytes", "About how many bytes these are, by what was read lately.", lambda lag: lag.bytes),
    _lag_gauge("lag_seconds", "Age of the next record to be copied, at most; 0 at the end.", lambda lag: lag.seconds),
    _gauge("position", "Next offset to be appended on the target.", lambda lane: lane.target.position),
    _gauge("source_end", "End of the source's log as the source last reported.", lambda lane: lane.source.log_end),
    (
        _lane_metric("source_silence_seconds", Kind.GAUGE, "Time since the source last reported its log end."),
        lambda lane, now: _known((now - lane.tally.heard_ms) / 1000) if lane.tally.heard_ms else [],
    ),
    _counter("records_total", "Records that the target has acknowledged.", lambda lane: lane.tally.copies.records),
    _counter("bytes_total", "Bytes of their batches as they were sent.", lambda lane: lane.tally.copies.bytes),
    _counters(
        "batches_total",
        "These batches, by whether they are the source's own bytes.",
        ("form",),
        lambda lane: {(form,): count for form, count in lane.tally.copies.batches.items()},
    ),
    _counter("read_bytes_total", "Bytes of batches that the source has sent.", lambda lane: lane.tally.read_bytes),
    _counter(
        "hole_offsets_total",
        "Offsets without a record that were made on the target.",
        lambda lane: lane.tally.hole_offsets,
    ),
    _counters(
        "windows_total",
        "Stored windows, batches with the holes behind them: a short window has one hole, a long window more.",
        ("length",),
        lambda lane: lane.tally.windows,
    ),
    _counter(
        "target_lost_offsets_total",
        "Offsets that the target had stored and lost (an unclean election); they are copied again.",
        lambda lane: lane.tally.lost_offsets,
    ),
    _counters(
        "retries_total",
        "Requests to be repeated, by what was asked and why: status's name for it, else the broker's error code.",
        ("asked", "cause"),
        lambda lane: lane.tally.retries,
    ),
    _summary(
        "replication_latency_seconds",
        "From the time of a batch's newest record to the target's acknowledgement.",
        1e-3,
        lambda lane: lane.tally.copies.latency_ms,
    ),
    _summary(
        "record_age_seconds",
        "From the time of a batch's newest record to its reading: the source's own delay.",
        1e-3,
        lambda lane: lane.tally.age_ms,
    ),
    _summary(
        "record_bytes",
        "Mean size of a batch's records as they were sent, its header included.",
        1,
        lambda lane: lane.tally.copies.record_bytes,
    ),
    _gauge("queued_bytes", "Bytes read and not yet acknowledged by the target.", lambda lane: lane.target.queued_bytes),
    _gauge("in_flight_batches", "Batches sent and not yet answered.", lambda lane: len(lane.target.sent)),
    _gauge("paused", "1 where a person holds the topic back.", lambda lane: lane.paused),
    _gauge("stopped", "1 where the partition waits for a person; status says why.", lambda lane: lane.stopped),
)


_OF_BACK_LANES: tuple[_LaneRow, ...] = (
    _lag_gauge(
        "back_lag_records",
        "Offsets that the target has and the source has not, of a topic with an open way back.",
        lambda lag: lag.records,
    ),
    _lag_gauge(
        "back_lag_seconds",
        "Age of the next record to be copied back to the source, at most; 0 at the end.",
        lambda lag: lag.seconds,
    ),
    _gauge("back_position", "Next offset to be appended on the source.", lambda lane: lane.target.position),
    _counter(
        "back_records_total",
        "Records copied back that the source has acknowledged.",
        lambda lane: lane.tally.copies.records,
    ),
    _gauge("back_stopped", "1 where the copy back to the source has stopped.", lambda lane: lane.stopped),
)


def _of_link(kind: Kind, name: str, about: str, read: Callable[[LinkMeter], _Found], *labels: str) -> _LinkRow:
    return Metric(f"kmigrate_{name}", kind, about, (*_LINK, *labels)), read


_link_gauge = partial(_of_link, Kind.GAUGE)

_OF_LINKS: tuple[_LinkRow, ...] = (
    _link_gauge(
        "link_info",
        "1 for every link of this process.",
        lambda meter: [((meter.source, meter.target), 1)],
        "source",
        "target",
    ),
    _link_gauge(
        "mirror_lease_held",
        "1 where this process looks after the link and shares its partitions out, else 0.",
        lambda meter: [((), meter.holds_lease())],
    ),
    _link_gauge(
        "mirror_presence_age_seconds",
        "Time since this process last announced itself to the others.",
        lambda meter: [] if meter.announced_at is None else [((), monotonic() - meter.announced_at)],
    ),
    _link_gauge(
        "mirror_direct_writers",
        "Producers that wrote to a partition of the source without a router during the link, however long ago.",
        lambda meter: [(labels, len(times)) for labels, times in meter.direct_writes().items()],
        "topic",
        "partition",
    ),
    _link_gauge(
        "mirror_direct_write_age_seconds",
        "Time since the newest of these writes was read.",
        lambda meter: [(labels, min(times)) for labels, times in meter.direct_writes().items()],
        "topic",
        "partition",
    ),
    _link_gauge(
        "mirror_target_free_bytes",
        "Usable bytes of the volume of a log directory of the target.",
        lambda meter: meter.free_bytes().items(),
        "broker",
        "log_dir",
    ),
    _link_gauge(
        "mirror_disk_held_partitions",
        "Partitions that are not copied on because a broker of the target has too little room.",
        lambda meter: [((), sum(bool(lane.disk_low) for lane in meter.lanes.values()))],
    ),
    _link_gauge(
        "mirror_followed_partitions",
        "Partitions that are read from a follower in the rack of this process.",
        lambda meter: [((), meter.followed())],
    ),
    _link_gauge(
        "mirror_target_disk_bytes",
        "Bytes of the topic on the target with all replicas, as the holder of the lease measures.",
        lambda meter: [((topic,), size) for topic, size in (meter.disk_sizes() or {}).items()],
        "topic",
    ),
    _link_gauge(
        "mirror_target_disk_growth_bytes_per_hour",
        "Growth of all topics of the link on the target over the last hour, as the holder of the lease measures.",
        lambda meter: [((), use.per_hour) for use in [meter.disk_use()] if use and use.per_hour is not None],
    ),
    _of_link(
        Kind.HISTOGRAM,
        "mirror_link_latency_seconds",
        "Replication latency of all partitions together.",
        lambda meter: [((), meter.latency.value())],
    ),
    _of_link(
        Kind.COUNTER,
        "mirror_slowed_seconds_total",
        "Rests that a limit has asked for.",
        lambda meter: [((by,), seconds) for by, seconds in meter.slowed_s.items()],
        "by",
    ),
)

METRICS: tuple[Metric, ...] = tuple(metric for metric, _ in (*_OF_LINKS, *_OF_LANES, *_OF_BACK_LANES))


class MirrorMetrics:
    """The links of a process in its registry."""

    def __init__(self, registry: Registry) -> None:
        self._links: dict[str, LinkMeter] = {}
        for metric, of_link in _OF_LINKS:
            registry.add(metric, partial(self._by_link, of_link))
        for metric, of_lane in _OF_LANES:
            registry.add(metric, partial(self._by_lane, lambda meter: meter.lanes, of_lane))
        for metric, of_lane in _OF_BACK_LANES:
            registry.add(metric, partial(self._by_lane, lambda meter: meter.back_lanes(), of_lane))

    @contextmanager
    def link(self, name: str, meter: LinkMeter) -> Iterator[None]:
        """Show a link for as long as its engine runs."""
        self._links[name] = meter
        try:
            yield
        finally:
            del self._links[name]

    def role(self, name: str) -> str:
        """Return whether this process leads the mirrors of a link, copies beside the leader, or stands by; or ''."""
        meter = self._links.get(name)
        if meter is None:
            return ""
        if meter.holds_lease():
            return "leads"
        return "copies" if meter.lanes else "stands by"

    def _by_link(self, read: Callable[[LinkMeter], _Found]) -> Iterator[Sample]:
        for link, meter in sorted(self._links.items()):
            for labels, value in list(read(meter)):
                yield (link, *labels), value

    def _by_lane(
        self, lanes: Callable[[LinkMeter], Mapping[tuple[str, int], Lane]], read: Callable[[Lane, int], _Found]
    ) -> Iterator[Sample]:
        now = now_ms()
        for link, meter in sorted(self._links.items()):
            for (topic, partition), lane in sorted(lanes(meter).items()):
                for labels, value in list(read(lane, now)):
                    yield (link, topic, str(partition), *labels), value
