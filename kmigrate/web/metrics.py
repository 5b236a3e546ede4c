"""The newest status of a migration for Prometheus: figures that only a look at both clusters knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from kmigrate.net.clock import now_ms
from kmigrate.observe.registry import Kind, Metric, Registry, Sample
from kmigrate.web.feed import Feed
from kmigrate.workflow.status.progress import Progress
from kmigrate.workflow.status.snapshot import Snapshot

__all__ = ["METRICS", "show_status"]

_Read = Callable[[Snapshot, Progress], Iterable[Sample]]
_TOPIC, _GROUP = ("link", "topic"), ("link", "group")


def _known(labels: tuple[str, ...], value: float) -> Iterable[Sample]:
    """Return no sample for an unknown figure: −1 would enter sums."""
    return [(labels, value)] if value >= 0 else []


def _of_topics(read: Callable[[Snapshot, Progress, int], float]) -> _Read:
    """Return the samples of a figure of each topic, which `read` finds by the topic's place."""
    return lambda shot, progress: (
        sample
        for place, topic in enumerate(shot.topics)
        for sample in _known((topic.link, topic.topic), read(shot, progress, place))
    )


_ROWS: dict[Metric, _Read] = {
    Metric(
        "kmigrate_status_age_seconds", Kind.GAUGE, "Time since both clusters were asked; the figures below are so old."
    ): lambda shot, _: [((), max(0, now_ms() - shot.at_ms) / 1000)],
    Metric(
        "kmigrate_status_topic_lag_records", Kind.GAUGE, "Records that the source has and the target has not.", _TOPIC
    ): _of_topics(lambda shot, _, place: shot.topics[place].lag),
    Metric(
        "kmigrate_status_topic_lag_bytes", Kind.GAUGE, "About how many bytes these records are.", _TOPIC
    ): _of_topics(lambda shot, _, place: shot.topics[place].lag_bytes),
    Metric(
        "kmigrate_status_topic_lag_seconds", Kind.GAUGE, "Age of the next record to be copied, at most.", _TOPIC
    ): _of_topics(lambda shot, _, place: shot.topics[place].lag_seconds),
    Metric(
        "kmigrate_status_topic_copied_ratio", Kind.GAUGE, "Part of the source's offsets that is copied, 0 to 1.", _TOPIC
    ): _of_topics(lambda shot, progress, place: progress.topic(shot.topics[place]).copied),
    Metric(
        "kmigrate_status_topic_left_seconds",
        Kind.GAUGE,
        "Estimated time until the copy has caught up; no sample where the copy does not catch up, or nothing is known.",
        _TOPIC,
    ): _of_topics(lambda shot, progress, place: progress.topic(shot.topics[place]).left_s),
    Metric(
        "kmigrate_status_topic_unverified_offsets",
        Kind.GAUGE,
        "Source offsets that no check has found equal; no sample where no check has looked.",
        _TOPIC,
    ): _of_topics(lambda shot, _, place: shot.topics[place].unverified),
    Metric(
        "kmigrate_status_group_lag_records",
        Kind.GAUGE,
        "Records between a group's committed positions and the ends of the logs.",
        _GROUP,
    ): lambda shot, _: (sample for each in shot.groups for sample in _known((each.link, each.group), each.lag)),
}

METRICS: tuple[Metric, ...] = tuple(_ROWS)


def show_status(registry: Registry, feed: Feed) -> None:
    """Show the feed's newest status in the registry of the process."""
    for metric, read in _ROWS.items():
        registry.add(metric, partial(_samples, feed, read))


def _samples(feed: Feed, read: _Read) -> Iterable[Sample]:
    return read(*feed.newest) if feed.newest is not None else []
