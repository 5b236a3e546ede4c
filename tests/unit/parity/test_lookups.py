"""Look-ups by time: the times asked for, and the verdict on the answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.offset_map import OffsetMap
from kmigrate.parity import lookups
from kmigrate.parity.lookups import PartitionLookups, judge_lookups, rounds_of
from kmigrate.parity.plan import CLEANED, BucketDigest, BucketKey, PartitionKey, TopicRange
from kmigrate.parity.report import report_of

KEY = PartitionKey("t", 0)
RANGE = TopicRange("t", 0, 100, 500)


def digest(since: int, until: int) -> BucketDigest:
    return BucketDigest(10, 0, 9, 1, 2, 7, since, until)


def judged(source: int, target: int, *, each: TopicRange = RANGE, start: int = 0) -> tuple[PartitionLookups, ...]:
    return judge_lookups([each], {KEY: start}, [({KEY: 7}, {KEY: source}, {KEY: target})])


def test_the_first_and_the_last_times_of_each_partition_are_asked_for() -> None:
    held = {BucketKey("t", 0, n): digest(n * 10, n * 10 + 9) for n in range(40)}
    held[BucketKey("u", 1, 0)] = digest(-1, -1)
    held[BucketKey("v", 0, 0)] = digest(5, 5)
    rounds = rounds_of(held)
    times = [asked[KEY] for asked in rounds]
    assert (times[0], times[-1], len(times)) == (0, 399, 16)
    assert times == sorted(set(times))
    assert [asked[PartitionKey("v", 0)] for asked in rounds if PartitionKey("v", 0) in asked] == [5]
    assert not any(PartitionKey("u", 1) in asked for asked in rounds), "records without times"


def test_there_are_so_many_questions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MOST_LOOKUPS", 50)
    held = {BucketKey("t", p, n): digest(n * 10, n * 10 + 9) for p in range(70) for n in range(4)}
    rounds = rounds_of(held)
    assert sum(map(len, rounds)) == 50


@pytest.mark.parametrize(
    ("source", "target", "early", "late"),
    [
        (200, 200, 0, 0),
        (200, 130, 1, 0),
        (200, 201, 0, 1),
        (200, -1, 0, 1),
        (-1, 130, 1, 0),
        (-1, -1, 0, 0),
        (600, 500, 0, 0),
        (600, -1, 0, 0),
        (600, 130, 1, 0),
        (499, 700, 0, 1),
    ],
)
def test_an_earlier_answer_is_told_and_a_later_one_is_a_mismatch(
    source: int, target: int, early: int, late: int
) -> None:
    found = judged(source, target)
    assert found == (PartitionLookups("t", 0, 1, early, late, 7, source, target),)
    report = report_of([RANGE], {}, {}, [], differing=[], unexamined=[], size=1, seconds={}, lookups=found)
    assert (report.equal, report.mismatches) == (not late, late)
    assert (bool(report.early_lookups), bool(report.late_lookups)) == (bool(early), bool(late))


def test_of_records_that_the_source_has_deleted_nothing_is_said() -> None:
    assert judged(150, 40, start=150) == ()
    assert judged(150, 120, start=0)[0].early == 1


def test_offsets_that_are_mapped_are_compared_where_they_stand() -> None:
    made = OffsetMap.identity(100, 300)
    assert judged(200, 200, each=replace(RANGE, end=300, map=made))[0].early == 0


def test_nothing_is_said_where_a_log_cleaner_works() -> None:
    assert judged(200, 130, each=replace(RANGE, cleaned_to=CLEANED)) == ()


def test_the_worst_answer_is_the_example() -> None:
    answers = [({KEY: at}, {KEY: 200}, {KEY: told}) for at, told in ((1, 190), (2, 110), (3, 200), (4, 150))]
    (found,) = judge_lookups([RANGE], {KEY: 0}, answers)
    assert found == PartitionLookups("t", 0, 4, 3, 0, 2, 200, 110)
