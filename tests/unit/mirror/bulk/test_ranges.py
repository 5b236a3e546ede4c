"""The plan of a bulk copy gives partitions to tasks, and decides whether Spark is worth its cost."""

from __future__ import annotations

import itertools

import pytest

from kmigrate.mirror.bulk.ranges import Caution, CopyRange, cautions, choose, split
from kmigrate.model.records import CopyEngine

GB = 10**9


def part(partition: int, size: int, *, caution: Caution | None = None) -> CopyRange:
    return CopyRange("t", partition, 0, 1_000, size, caution)


def test_every_range_is_given_once_and_a_partition_to_one_task() -> None:
    ranges = [part(number, (number * 37) % 11) for number in range(40)]
    tasks = split(ranges, 7)
    assert len(tasks) == 7
    assert sorted(itertools.chain(*tasks), key=lambda each: each.partition) == ranges


def test_tasks_have_about_as_many_bytes_each() -> None:
    ranges = [part(0, 900), *(part(number, 100) for number in range(1, 10))]
    assert [sum(each.size for each in task) for task in split(ranges, 2)] == [900, 900]


def test_ranges_of_no_known_size_are_spread_by_their_number() -> None:
    assert [len(task) for task in split([part(number, 0) for number in range(9)], 3)] == [3, 3, 3]


def test_there_are_no_more_tasks_than_ranges() -> None:
    assert len(split([part(0, 5), part(1, 5)], 8)) == 2
    assert split([], 8) == []


@pytest.mark.parametrize(
    ("gigabytes", "partitions", "mapped", "missing", "remote", "engine", "why"),
    [
        (500, 24, False, "", True, CopyEngine.SPARK, "one mirror process would need about 79 min"),
        (500, 24, False, "", False, CopyEngine.DAEMON, "Spark has this machine only"),
        (2, 24, False, "", True, CopyEngine.DAEMON, "one mirror process needs about 19 s"),
        (500, 1, False, "", True, CopyEngine.DAEMON, "one partition is copied by one process"),
        (500, 24, True, "", True, CopyEngine.DAEMON, "mapped offsets have one writer"),
        (500, 24, False, "found no Java at all", True, CopyEngine.DAEMON, "found no Java at all"),
    ],
)
def test_auto_takes_spark_where_it_pays_and_says_why(
    gigabytes: int, partitions: int, mapped: bool, missing: str, remote: bool, engine: CopyEngine, why: str
) -> None:
    ranges = [part(number, gigabytes * GB // partitions) for number in range(partitions)]
    choice = choose(ranges, mapped=mapped, missing=missing, remote=remote)
    assert choice.engine is engine
    assert why in choice.why


def test_each_caution_is_told_with_how_many_ranges_it_concerns() -> None:
    ranges = [part(0, 1, caution=Caution.OLD_RECORDS), part(1, 1), part(2, 1, caution=Caution.OLD_RECORDS)]
    assert cautions(ranges) == [(Caution.OLD_RECORDS, 2)]
    assert "20 days" in Caution.OLD_RECORDS.text
