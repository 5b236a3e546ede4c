"""Free space on the target's disks: when a copy waits for space, what is reported, and how fast a topic grows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.brokers import LogDir
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, Failed, Unreachable
from kmigrate.mirror.copy import disks as module
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.disks import DiskGauge, DiskGuard, Growth, RoomRule
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.presences import DiskUse
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings

GB = 1_000_000_000
TARGET = SimpleNamespace(
    settings=ClusterSettings("west", (("h", 1),)),
    metadata=Metadata(
        "id",
        {1: ("h", 1), 2: ("h", 2), 3: ("h", 3)},
        {"t": TopicInfo("t", None, {0: PartitionInfo(1, 0, (1, 2)), 1: PartitionInfo(3, 0, (3,))})},
    ),
)


def log_dir(broker: int, usable: int, total: int = 100 * GB, path: str = "/data") -> LogDir:
    return LogDir(broker, path, 0, total, usable)


def lows(rule: RoomRule, usable: int, **more: Any) -> bool:
    rule.update(1, [log_dir(1, usable, **more)])
    return bool(rule.low)


def test_the_copy_goes_on_only_with_a_fifth_more_than_the_limit() -> None:
    rule = RoomRule(5, 0)
    told = [lows(rule, gigabytes * GB) for gigabytes in (6, 5, 4, 5)] + [lows(rule, 5 * GB + GB // 2)]
    assert told == [False, False, True, True, True]
    assert not lows(rule, 6 * GB)
    assert not lows(rule, 5 * GB), "the limit itself is enough for what was not below it"


@pytest.mark.parametrize(("percent", "size", "least"), [(5, 0, 5), (5, 20 * GB, 20), (0, 3 * GB, 3), (50, 3 * GB, 50)])
def test_the_higher_one_of_both_limits_counts(percent: float, size: int, least: int) -> None:
    assert RoomRule(percent, size).least(100 * GB) == least * GB


def test_a_limit_near_the_size_of_the_volume_can_still_be_met() -> None:
    rule = RoomRule(0, 90 * GB)
    assert lows(rule, 80 * GB)
    assert not lows(rule, 92 * GB)


def test_what_a_broker_that_is_away_said_before_stays_and_other_figures_are_no_figures() -> None:
    rule = RoomRule(5, 0)
    rule.update(1, [log_dir(1, GB), log_dir(1, 50 * GB, path="/more")])
    rule.update(2, [log_dir(2, -1, -1)])
    rule.keep([1, 2])
    assert set(rule.low) == {(1, "/data")}
    assert set(rule.known) == {(1, "/data"), (1, "/more")}
    rule.keep([2])
    assert not rule.low, "a broker that has left the cluster holds nobody"


class Scene:
    """A disk guard, and the answers that the brokers give at the next look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[int, Any] = {}
        self.changes = 0

        async def told(*_: Any) -> Any:
            return self.answers

        monkeypatch.setattr(module, "read_log_dirs", told)
        settings = MirrorSettings(disk_min_free_percent=5)
        self.guard = DiskGuard(cast("ClusterClient", TARGET), settings, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def look(self, *free: int) -> None:
        self.answers = {broker: [log_dir(broker, room)] for broker, room in enumerate(free, 1)}
        asyncio.run(self.guard.look())


def test_only_partitions_with_a_replica_on_a_broker_without_room_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch)
    scene.look(50 * GB, 50 * GB, 50 * GB)
    assert (scene.guard.low, scene.guard.lack_of_room(("t", 0)), scene.changes) == ("", "", 0)
    scene.look(50 * GB, GB, 50 * GB)
    assert scene.guard.lack_of_room(("t", 0)) == "target-disk-low: waits for room on broker 2"
    assert scene.guard.lack_of_room(("t", 1)) == ""
    assert scene.guard.lack_of_room(("unknown", 0)) == ""
    said = "broker 2, log directory /data: 1.0 GB of 100.0 GB are free, the limit is 5.0 GB"
    assert said in scene.guard.low
    assert said in caplog.text
    assert "make room" in scene.guard.low
    scene.look(50 * GB, GB, 50 * GB)
    assert scene.changes == 1
    scene.look(50 * GB, 7 * GB, 50 * GB)
    assert (scene.guard.low, scene.guard.lack_of_room(("t", 0)), scene.changes) == ("", "", 2)


def test_of_many_log_directories_without_room_a_few_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.look(*[GB] * 40)
    assert "and 35 more" in scene.guard.low
    assert len(scene.guard.low) < 1_000


def test_a_limit_that_cannot_be_watched_is_said_and_a_broker_that_is_only_away_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    old, denied = [LogDir(1, "/data")], BrokerRefused("log-dirs-refused", "broker 2 does not tell: DENIED")
    scene.answers = {1: old, 2: denied, 3: Unreachable("no-answer", "no answer")}
    asyncio.run(scene.guard.look())
    assert scene.guard.unwatched == (
        "target-disk-unwatched: cluster west: the copy does not stop before a disk is full: broker 2 does not tell: "
        "DENIED; broker 1 does not tell how much room is left (Kafka 3.3 and later do)"
    )
    scene.look(50 * GB)
    assert scene.guard.unwatched == ""


def test_without_a_limit_no_broker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(*_: Any) -> Any:
        raise AssertionError("nobody wants to know")

    monkeypatch.setattr(module, "read_log_dirs", told)
    asyncio.run(DiskGuard(cast("ClusterClient", TARGET), MirrorSettings(disk_min_free_percent=0), lambda: None).run())


def test_a_lane_is_not_read_while_the_target_has_too_little_room_unless_writers_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    nowhere = cast("ClusterClient", None)
    copier = Copier(CopyContext(nowhere, nowhere, CopyIdentity(1, 0), cast("HoleMaker", None), MirrorSettings()))
    copier.disks = scene.guard
    scene.guard._on_change = copier._room_changed
    copier.assign([MirroredTopic("t", "", "", {0: 0, 1: 0})])
    lanes = [copier.lanes["t", partition] for partition in (0, 1)]
    for lane in lanes:
        lane.recovered(0, 0, 0)
    scene.look(GB, 50 * GB, 50 * GB)
    assert [lane.reads for lane in lanes] == [False, True]
    assert [lane.progress().trouble for lane in lanes] == ["target-disk-low: waits for room on broker 1", ""]
    lanes[0].urgent = True
    assert lanes[0].reads
    lanes[0].urgent = False
    copier.assign([MirroredTopic("t", "", "", {0: 0, 1: 0}, paused=False)])
    assert not lanes[0].reads, "a new assignment lets nothing go on"
    scene.look(50 * GB, 50 * GB, 50 * GB)
    assert [lane.reads for lane in lanes] == [True, True]
    assert lanes[0].progress().trouble == ""


def test_growth_needs_two_readings_and_looks_back_an_hour() -> None:
    growth = Growth()
    assert growth.per_hour is None
    growth.take(0.0, {"a": 100})
    assert growth.per_hour is None
    growth.take(1800.0, {"a": 200, "b": 50})
    assert growth.per_hour == 300
    growth.take(5400.0, {"a": 200, "b": 50})
    assert growth.per_hour == 0, "the first reading is older than an hour"


def test_a_topic_that_is_gone_is_no_shrinking() -> None:
    growth = Growth()
    growth.take(0.0, {"a": 100, "b": 1000})
    growth.take(3600.0, {"a": 200})
    assert growth.per_hour is None
    growth.take(5400.0, {"a": 100})
    assert growth.per_hour == -200


def test_a_gauge_tells_nothing_while_a_broker_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[int, Any]] = [
        {1: [LogDir(1, "/d", sizes={"t": 70})], 2: [LogDir(2, "/d", sizes={"t": 30})]},
        {1: [LogDir(1, "/d", sizes={"t": 70})], 2: Failed("log-dirs-refused", "denied")},
    ]
    seen: list[DiskUse] = []
    gauge = DiskGauge(cast("ClusterClient", TARGET), MirrorSettings(), lambda: {"t": 2})
    assert gauge.use == DiskUse(-1, None)

    async def told(_: Any, topics: dict[str, range]) -> Any:
        assert topics == {"t": range(2)}
        return answers.pop(0)

    async def sleep(_: float) -> None:
        seen.append(gauge.use)
        if not answers:
            raise asyncio.CancelledError

    monkeypatch.setattr(module, "read_log_dirs", told)
    monkeypatch.setattr(module, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(gauge.run())
    assert seen == [DiskUse(100, None), DiskUse(-1, None)]
