"""What a controller's metrics say of promotes, checks and phases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.lag import Pace
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import (
    AssignmentRecord,
    ClusterRef,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    TopicRecord,
    WayBack,
)
from kmigrate.model.verified import Looked, grown
from kmigrate.observe.registry import Registry, exposition
from kmigrate.workflow.controller.metrics import show_controller
from kmigrate.workflow.status.timeline import Timeline
from tests.fakes.state_log import MemoryLog
from tests.prometheus_text import Exposition, parse

LINK = LinkRecord("blue", "u", ClusterRef("source", "a:1"), ClusterRef("target", "b:1"), 10)
TOPIC = TopicRecord("blue", "orders", TopicPhase.MIRRORING, 20, partitions=2)
GROUP = GroupRecord("blue", "billing", GroupPhase.MIRRORED, 30)
OF_TOPIC = {"link": "blue", "topic": "orders"}


class Shown:
    """A log, the timeline of a controller that follows the log, and the controller's metrics."""

    def __init__(self) -> None:
        self.log, self.timeline, self.registry = MemoryLog(LINK, TOPIC, GROUP), Timeline(), Registry()
        log: Any = self.log
        show_controller(self.registry, log, self.timeline)
        self.timeline.follow(self.log.state)

    def put(self, *records: Any) -> None:
        for record in records:
            self.log._put(record.key, record)
            self.timeline.follow(self.log.state)

    def scrape(self) -> Exposition:
        return parse("".join(exposition(self.registry)))


def test_phases_are_shown_with_their_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.setattr(shown.log, "now_ms", lambda: 5_030)
    seen = shown.scrape()
    assert seen.value("kmigrate_topic_phase", **OF_TOPIC, phase="mirroring") == 1
    assert seen.value("kmigrate_topic_phase_seconds", **OF_TOPIC) == 5.01
    assert seen.value("kmigrate_group_phase", group="billing", phase="mirrored") == 1
    assert seen.value("kmigrate_group_phase_seconds", group="billing") == 5
    assert seen.series("kmigrate_promotes_total") == {}
    assert seen.series("kmigrate_verified_offset") == {}


def test_promotes_are_counted_with_the_time_of_their_fences_and_flips() -> None:
    shown = Shown()
    pending = replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING, since_ms=100)
    fencing = replace(TOPIC, phase=TopicPhase.FENCING, since_ms=110, fenced_ms=110)
    shown.put(pending, fencing, replace(TOPIC, since_ms=10_110, reason="a router is silent"), pending, fencing)
    shown.put(replace(fencing, phase=TopicPhase.FENCED, since_ms=140))
    shown.put(replace(fencing, phase=TopicPhase.PROMOTED, since_ms=151, promoted_ms=150))
    shown.put(replace(GROUP, phase=GroupPhase.PROMOTING, since_ms=160))
    seen = shown.scrape()
    steps = {step: seen.value("kmigrate_promotes_total", link="blue", what="topic", step=step) for step in
             ("asked", "given-up", "flipped")}  # fmt: skip
    assert steps == {"asked": 2, "given-up": 1, "flipped": 1}
    assert seen.value("kmigrate_promotes_total", what="group", step="asked") == 1
    assert seen.value("kmigrate_fence_seconds_sum", end="given-up") == 10
    assert seen.value("kmigrate_fence_seconds_sum", end="flipped") == 0.04
    assert seen.value("kmigrate_fence_seconds_bucket", end="flipped", le="0.05") == 1
    assert seen.value("kmigrate_flip_seconds_sum") == 0.01
    assert seen.value("kmigrate_topic_phase", **OF_TOPIC, phase="promoted") == 1


def test_a_check_that_found_a_difference_has_no_verified_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    equal = grown(None, LINK, TOPIC, {0: Looked(0, 70, True), 1: Looked(0, 80, True)}, 1_000)
    shown.put(equal)
    monkeypatch.setattr(shown.log, "now_ms", lambda: 4_000)
    assert shown.scrape().value("kmigrate_verified_offset", **OF_TOPIC, partition="1") == 80
    assert shown.scrape().value("kmigrate_verify_age_seconds", **OF_TOPIC) == 3
    shown.put(grown(equal, LINK, TOPIC, {1: Looked(0, 90, False)}, 2_000))
    assert list(shown.scrape().series("kmigrate_verified_offset", partition="1")) == []
    assert shown.scrape().value("kmigrate_verified_offset", **OF_TOPIC, partition="0") == 70


def test_the_lag_of_a_copy_back_is_shown_in_records_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.setattr(shown.log, "now_ms", lambda: 9_000)
    shown.put(LeaseRecord("mirror/blue", "m", 1), AssignmentRecord("blue", 2, ("m",), {"orders": (0, 0)}))
    back = replace(TOPIC, phase=TopicPhase.PROMOTED, way_back=WayBack({0: 5, 1: 5}))
    shown.put(back)
    assert shown.scrape().value("kmigrate_way_back_open", **OF_TOPIC) == 1
    assert shown.scrape().series("kmigrate_way_back_lag_seconds") == {}, "no report yet"

    def report(*partitions: PartitionProgress) -> Exposition:
        shown.log.say(MirrorPresence("m", "blue", 100, True, 500, {"orders": dict(enumerate(partitions))}))
        return shown.scrape()

    level = PartitionProgress(20, 20, 20)
    seen = report(level, PartitionProgress(10, 17, 17, pace=Pace(7_500, 0.0)))
    assert seen.value("kmigrate_way_back_lag_records", **OF_TOPIC) == 7
    assert seen.value("kmigrate_way_back_lag_seconds", **OF_TOPIC) == 1.5
    assert report(level, level).value("kmigrate_way_back_lag_seconds", **OF_TOPIC) == 0
    seen = report(level, PartitionProgress(10, 17, 17))
    assert seen.value("kmigrate_way_back_lag_records", **OF_TOPIC) == 7
    assert seen.series("kmigrate_way_back_lag_seconds") == {}, "the age of the next record is unknown"
    shown.put(replace(back, way_back=WayBack({0: 5, 1: 5}, ended="a foreign record")))
    assert shown.scrape().value("kmigrate_way_back_open", **OF_TOPIC) == 0
    assert shown.scrape().series("kmigrate_way_back_lag_records") == {}
