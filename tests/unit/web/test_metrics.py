"""What the page's process tells Prometheus: known figures alone, and nothing before the first look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.observe.registry import Registry, exposition
from kmigrate.web.feed import Feed
from kmigrate.web.metrics import METRICS, show_status
from kmigrate.workflow.status.timeline import Timeline
from tests.fakes.status import migration, partition_status, topic_status
from tests.prometheus_text import parse


async def _look() -> None:
    raise AssertionError("nobody runs the feed")


def test_the_newest_status_is_shown_and_what_is_unknown_is_left_out() -> None:
    feed, registry = Feed(_look, Timeline()), Registry()  # type: ignore[arg-type]
    show_status(registry, feed)
    assert "".join(exposition(registry)) == ""
    for second in range(3):
        shot = migration(second, 1_000)
        dark = topic_status("dark", TopicPhase.MIRRORING, partition_status(0, 10, -1))
        feed.take(replace(shot, topics=(*shot.topics, dark)), float(second))
    seen = parse("".join(exposition(registry)))
    copied = {"link": "blue", "topic": "clickstream.raw"}
    assert seen.value("kmigrate_status_topic_lag_records", **copied) == 6 * (4_800_000 - 2 * 20_100)
    assert seen.value("kmigrate_status_topic_left_seconds", **copied) == pytest.approx(4_759_800 / 20_100)
    assert 0.47 < seen.value("kmigrate_status_topic_copied_ratio", **copied) < 0.48
    assert seen.value("kmigrate_status_group_lag_records", group="analytics") == 8_200
    assert seen.value("kmigrate_status_topic_unverified_offsets", topic="ledger") == 0
    assert list(seen.series("kmigrate_status_topic_unverified_offsets", topic="orders")) == []
    assert list(seen.series("kmigrate_status_topic_lag_records", topic="dark")) == []
    assert len({metric.name for metric in METRICS}) == len(METRICS)
