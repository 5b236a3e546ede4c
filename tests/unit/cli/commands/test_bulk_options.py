"""The flags of a copy by Spark: which flags go together, and how a plan shows the flags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cli.commands import bulk
from kmigrate.cli.commands.bulk import BulkOptions, BulkPlan
from kmigrate.errors import UsageError
from kmigrate.mirror.bulk.ranges import Caution, Choice, CopyRange
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.records import ClusterRef, CopyEngine, LinkRecord, TopicRecord
from kmigrate.workflow.status import lags as left_module


def given(engine: str, *conf: str, throttle: int = 0, continuous: bool = False, no_wait: bool = False) -> BulkOptions:
    return BulkOptions.given(engine, "local[2]", list(conf), throttle, continuous=continuous, no_wait=no_wait)


def test_settings_of_spark_are_keys_and_values_and_a_value_may_hold_an_equals_sign() -> None:
    assert given("spark", "a=1", "b=c=d", "e=").conf == {"a": "1", "b": "c=d", "e": ""}
    for bad in ("a", "=1"):
        with pytest.raises(UsageError, match="not a setting"):
            given("auto", bad)


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as refused:
        given("flink")
    assert refused.value.next_step == "expected: daemon, spark or auto"


def test_what_is_about_sparks_tasks_is_refused_without_them() -> None:
    calls: list[Callable[[], BulkOptions]] = [lambda: given("daemon", "a=1"), lambda: given("daemon", throttle=5)]
    for call in calls:
        with pytest.raises(UsageError) as refused:
            call()
        assert refused.value.ref == "only-with-spark"
    with pytest.raises(UsageError):
        given("daemon", continuous=True)


def test_who_drives_spark_cannot_go_away() -> None:
    assert given("daemon", no_wait=True).engine == "daemon"
    for engine in ("spark", "auto"):
        with pytest.raises(UsageError) as refused:
            given(engine, no_wait=True)
        assert refused.value.ref == "spark-needs-waiting"


def test_a_plan_says_where_a_partition_has_one_owner_and_that_speculation_is_off_then() -> None:
    plain, old = CopyRange("t", 0, 5, 9, 400), CopyRange("t", 1, 0, 9, 400, Caution.OLD_RECORDS)
    choice = Choice(CopyEngine.SPARK, "as asked for")
    assert BulkPlan(choice, [plain]).as_json()["speculation"] == "as Spark is set"
    told = BulkPlan(choice, [plain, old]).as_json()
    assert (told["engine"], told["speculation"]) == ("spark", "off")
    assert [each["caution"] for each in told["ranges"]] == [None, "old-records"]


def test_what_is_left_of_a_mapped_topic_begins_where_its_map_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's offsets of a mapped topic differ, so the target's log end says nothing about the source."""
    records = {
        "plain": TopicRecord("l", "plain", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 3}),
        "moved": TopicRecord("l", "moved", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 100}, mapped=True),
        "begun": TopicRecord("l", "begun", TopicPhase.ALIGNING, 1, partitions=1, starts={0: 7}, mapped=True),
    }
    asked: list[tuple[dict[Any, int], object]] = []

    async def left(_: object, starts: Mapping[Any, int], target: object = None, **__: Any) -> list[CopyRange]:
        if starts:
            asked.append((dict(starts), target))
        return []

    async def maps(_: object, record: TopicRecord) -> dict[int, OffsetMap]:
        assert record.topic == "moved"
        return {0: OffsetMap([Run(100, 9_000, 50)])}

    async def source(_: object) -> tuple[object, None]:
        return object(), None

    monkeypatch.setattr(bulk, "left_to_copy", left)
    monkeypatch.setattr(left_module, "Positions", lambda *_: SimpleNamespace(maps=lambda record: maps(None, record)))
    state = SimpleNamespace(topic=lambda _, topic: records[topic])
    connections = SimpleNamespace(source=source, target="the target", log=SimpleNamespace(state=state))
    link = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
    looked = bulk.look_at_bulk(
        cast("Any", connections), link, list(records), given("daemon"), start="earliest", offsets="auto"
    )
    asyncio.run(looked)
    assert asked == [({("plain", 0): 3}, "the target"), ({("moved", 0): 150, ("begun", 0): 7}, None)]
