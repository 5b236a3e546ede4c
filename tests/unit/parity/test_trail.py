"""A differing partition is read again in steps, and a shift is followed instead of read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kmigrate.parity import trail
from kmigrate.parity.plan import BucketDigest, BucketKey, TopicRange, hulls_of
from kmigrate.parity.trail import FIRST_STEP, Trail
from kmigrate.parity.verdict import Anomaly, AnomalyKind, Drilled, Fingerprint, Place, judge, settle

SIZE = 1_000
LONG = 60_000


def log(count: int, partition: int = 0) -> list[Fingerprint]:
    first = partition * 10**9
    return [Fingerprint(at, first + at, None, first + at, None, at) for at in range(count)]


class World:
    """Two clusters as lists of records, read and digested as Spark would."""

    def __init__(self, *logs: tuple[Sequence[Fingerprint], Sequence[Fingerprint]]) -> None:
        self.source = [source for source, _ in logs]
        self.target = [[each._replace(offset=at) for at, each in enumerate(target)] for _, target in logs]
        self.ranges = [TopicRange("t", p, 0, len(source)) for p, source in enumerate(self.source)]
        self.digested = self.drilled = 0

    def digest(self, ranges: Sequence[TopicRange]) -> tuple[dict[BucketKey, BucketDigest], ...]:
        sides: tuple[dict[BucketKey, BucketDigest], ...] = ({}, {})
        for each in ranges:
            for number, records in enumerate(self.read(each)):
                self.digested += len(records)
                for record, at in records:
                    key = BucketKey("t", each.partition, at // SIZE)
                    old = sides[number].get(key, BucketDigest(0, 0, 0, 0, 0, 0))
                    sides[number][key] = old._replace(
                        records=old.records + 1, digest=old.digest ^ hash((at, record.content, record.headers))
                    )
        return sides

    def read(self, each: TopicRange) -> list[list[tuple[Fingerprint, int]]]:
        start, end = each.at_target.start, each.at_target.end
        back = start - each.start
        return [
            [(record, record.offset) for record in self.source[each.partition][each.start : each.end]],
            [(record, record.offset - back) for record in self.target[each.partition][start:end]],
        ]

    def named(self) -> tuple[list[Anomaly], list[BucketKey]]:
        source, target = self.digest(self.ranges)
        rest = Trail(self.ranges, SIZE, source, target)
        found: list[Drilled] = []
        while wanted := set(rest.step()):
            moved = []
            for hull in hulls_of(wanted, rest.ranges.values(), SIZE).values():
                sides = [
                    [record for record, at in side if BucketKey("t", hull.partition, at // SIZE) in wanted]
                    for side in self.read(hull)
                ]
                self.drilled += len(sides[0])
                kept, further = rest.follow(Drilled.of(hull, *sides))
                found.append(kept)
                moved += [further] if further is not None else []
            rest.digested(moved, *self.digest(moved))
        anomalies, strays = judge(found)
        held = {
            record.content: [(each.key, record.offset)]
            for each in self.ranges
            for record in self.source[each.partition]
        }
        return anomalies + settle(strays, held), rest.unexamined


def test_faults_far_behind_a_loss_are_named_and_what_it_moved_is_not_read() -> None:
    records = log(LONG)
    changed = replace_at(records, 59_000, value=-1)
    world = World((records, [*changed[:10_500], *changed[10_501:]]))
    anomalies, unexamined = world.named()
    assert unexamined == []
    assert anomalies == [
        Anomaly(AnomalyKind.LOST, "t", Place(0, 10_500)),
        Anomaly(AnomalyKind.ALTERED, "t", Place(0, 59_000), Place(0, 58_999), ("value",)),
    ]
    assert world.drilled < 3 * FIRST_STEP


def test_a_shift_that_a_second_copy_takes_back_is_followed_both_ways() -> None:
    records = log(LONG)
    target = [*records[:5_000], *records[5_001:25_000], records[77], *records[25_000:50_000], *records[50_001:]]
    anomalies, unexamined = World((records, target)).named()
    assert unexamined == []
    assert sorted(anomalies, key=str) == sorted(
        [
            Anomaly(AnomalyKind.LOST, "t", Place(0, 5_000)),
            Anomaly(AnomalyKind.DUPLICATED, "t", Place(0, 77), Place(0, 24_999)),
            Anomaly(AnomalyKind.LOST, "t", Place(0, 50_000)),
        ],
        key=str,
    )


def test_a_record_that_moved_further_than_a_step_is_one_reordered() -> None:
    records = log(LONG)
    target = [*records[:1_000], *records[1_001:55_000], records[1_000], *records[55_000:]]
    anomalies, unexamined = World((records, target)).named()
    assert (anomalies, unexamined) == (
        [Anomaly(AnomalyKind.REORDERED, "t", Place(0, 1_000), Place(0, 54_999))],
        [],
    )


def test_a_record_that_came_to_another_partition_is_misplaced_whatever_steps_both_places_are_in() -> None:
    first, second = log(LONG), log(LONG, 1)
    target = [*first[:43_333], *first[43_334:]], [*second[:4_444], first[43_333], *second[4_444:]]
    anomalies, unexamined = World((first, target[0]), (second, target[1])).named()
    assert (anomalies, unexamined) == (
        [Anomaly(AnomalyKind.MISPLACED, "t", Place(0, 43_333), Place(1, 4_444))],
        [],
    )


def test_two_neighbours_that_changed_places_across_the_edge_of_a_step_are_one_reordered() -> None:
    records = log(20 * SIZE)
    target = list(records)
    for at in range(0, 12 * SIZE, SIZE):  # each bucket differs, so that the first step ends among them
        target[at + 500] = target[at + 500]._replace(value=-at - 1, content=-at - 1)
    target[FIRST_STEP - 1], target[FIRST_STEP] = target[FIRST_STEP], target[FIRST_STEP - 1]
    anomalies, unexamined = World((records, target)).named()
    assert unexamined == []
    assert [each.kind for each in anomalies].count(AnomalyKind.REORDERED) == 1
    assert [each.kind for each in anomalies].count(AnomalyKind.ALTERED) == 12
    assert len(anomalies) == 13


def test_what_is_altered_everywhere_is_read_up_to_the_budget_and_counted_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = 4 * FIRST_STEP
    monkeypatch.setattr(trail, "DRILL_BUDGET", budget)
    records = log(budget + 3 * SIZE)
    target = [each._replace(content=-each.content - 1, headers=1) for each in records]
    world = World((records, target))
    anomalies, unexamined = world.named()
    assert {each.kind for each in anomalies} == {AnomalyKind.ALTERED}
    assert len(anomalies) == budget
    assert [each.bucket for each in unexamined] == [budget // SIZE + n for n in range(3)]


def test_a_bucket_beyond_every_step_is_still_read() -> None:
    key = BucketKey("t", 0, 0)
    here, there = BucketDigest(10**6, 0, 0, 1, 1, 1), BucketDigest(10**6, 0, 0, 2, 2, 1)
    one = Trail([TopicRange("t", 0, 0, 10**6)], 10**6, {key: here}, {key: there})
    assert (one.step(), one.step(), one.unexamined) == ([key], [], [])


def test_many_partitions_that_differ_everywhere_are_read_up_to_a_budget_of_all_and_counted_beyond_it() -> None:
    """Such a case is another timestamp type on every topic: the driver holds all records that are read again."""
    count, buckets = 3_000, 20
    ranges = [TopicRange("t", p, 0, buckets * SIZE) for p in range(count)]
    sides = [
        {BucketKey("t", p, n): BucketDigest(SIZE, 0, 0, side, side, 1) for p in range(count) for n in range(buckets)}
        for side in (1, 2)
    ]
    rest = Trail(ranges, SIZE, *sides)
    read: list[BucketKey] = []
    while step := rest.step():
        read += step
    assert len(read) * SIZE == trail.WHOLE_BUDGET
    assert len({*read, *rest.unexamined}) == count * buckets
    assert len({key.of for key in read}) == trail.WHOLE_BUDGET // SIZE, "as many partitions as there is room for"


def replace_at(records: Sequence[Fingerprint], at: int, *, value: int) -> list[Fingerprint]:
    made = list(records)
    made[at] = made[at]._replace(content=-at - 1, value=value)
    return made


def test_a_step_keeps_its_places_when_it_is_cut() -> None:
    records = log(10)
    target = [each._replace(offset=each.offset - 1) for each in records[3:]]
    read = Drilled.of(TopicRange("t", 0, 0, 10), records, target)
    assert read.up_to_last_pair() == replace(read, hull=TopicRange("t", 0, 0, 10))
