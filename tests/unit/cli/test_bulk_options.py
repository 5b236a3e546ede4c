"""The flags of a copy by Spark: what goes together, and what a plan says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kmigrate.cli.bulk import BulkOptions, BulkPlan
from kmigrate.errors import UsageError
from kmigrate.mirror.ranges import Caution, Choice, CopyRange
from kmigrate.model.records import CopyEngine


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
