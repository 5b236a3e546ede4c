"""Each anomaly by its name, once, at its offsets; no anomaly where nothing is wrong."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import PartitionKey, TopicRange
from kmigrate.parity.verdict import Anomaly, AnomalyKind, Drilled, Fingerprint, Place, judge, settle

P0, P1 = PartitionKey("t", 0), PartitionKey("t", 1)


def record(
    offset: int,
    *,
    key: int | None = None,
    value: int | None = -1,
    headers: int | None = None,
    stamp: int | None = None,
) -> Fingerprint:
    """Return a record whose value and timestamp equal the offset, unless given."""
    value = offset if value == -1 else value
    stamp = offset if stamp is None else stamp
    return Fingerprint(offset, hash((key, value, headers, stamp)), key, value, headers, stamp)


def log(count: int, first: int = 0, salt: int = 0) -> list[Fingerprint]:
    offsets = range(first, first + count)
    return [record(offset, value=offset + salt, stamp=offset + salt) for offset in offsets]


def moved(records: Sequence[Fingerprint], first: int = 0) -> list[Fingerprint]:
    """Return the records at offsets without a gap, as an append would store them."""
    return [each._replace(offset=first + index) for index, each in enumerate(records)]


def drilled(
    source: Sequence[Fingerprint], target: Sequence[Fingerprint], shift: int = 0, partition: int = 0
) -> Drilled:
    offsets = [each.offset for each in source] + [each.offset - shift for each in target] or [10]
    start, end = min(offsets), max(offsets) + 1
    moves = OffsetMap([Run(start, start + shift, end - start)]) if shift else None
    return Drilled.of(TopicRange("t", partition, start, end, moves), source, target)


def verdict(
    source: Sequence[Fingerprint], target: Sequence[Fingerprint], shift: int = 0
) -> list[tuple[str, int | None, int | None]]:
    """Return (kind, source offset, target offset) of every anomaly of a partition; every stray counts as extra."""
    anomalies, strays = judge([drilled(source, target, shift)])
    return [brief(each) for each in anomalies + settle(strays, {})]


def brief(each: Anomaly) -> tuple[str, int | None, int | None]:
    return (each.kind, each.source and each.source.offset, each.target and each.target.offset)


records = st.builds(
    lambda key, value, headers, stamp: record(0, key=key, value=value, headers=headers, stamp=stamp),
    st.one_of(st.none(), st.integers(0, 2)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.integers(0, 1)),
    st.integers(0, 2),
)


@given(st.lists(records, max_size=50), st.integers(-5, 100))
def test_equal_lists_have_no_anomaly(contents: list[Fingerprint], shift: int) -> None:
    source = moved(contents, 10)
    assert verdict(source, [each._replace(offset=each.offset + shift) for each in source], shift) == []


@given(st.lists(records, max_size=25), st.lists(records, max_size=25))
def test_different_lists_have_an_anomaly_and_every_record_is_named_at_most_once(
    left: list[Fingerprint], right: list[Fingerprint]
) -> None:
    source, target = moved(left), moved(right)
    found = verdict(source, target)
    assert bool(found) == (left != right)
    one_to_one = [each for each in found if each[0] not in ("shifted", "duplicated")]
    for side in (1, 2):
        named = [each[side] for each in one_to_one if each[side] is not None]
        assert len(named) == len(set(named))


def test_a_lost_record_is_named_once_and_its_shift_not_at_all() -> None:
    source = log(5_000)
    target = moved(source[:40] + source[41:])
    assert verdict(source, target) == [("lost", 40, None)]


def test_a_record_lost_behind_a_hole_is_named_once() -> None:
    source = log(50)
    assert verdict(source, source[:40] + source[41:]) == [("lost", 40, None)]


def test_the_first_and_the_last_record_can_be_lost() -> None:
    source = log(50)
    assert verdict(source, source[1:-1]) == [("lost", 0, None), ("lost", 49, None)]


def test_an_extra_record_is_named_once_and_its_shift_not_at_all() -> None:
    source = log(5_000)
    target = moved([*source[:40], record(0, value=10**7, stamp=10**7), *source[40:]])[:5_000]
    assert verdict(source, target) == [("extra", None, 40)]


def test_a_duplicate_is_named_with_its_original() -> None:
    source = log(100)
    target = moved(source[:60] + source[20:21] + source[60:])[:100]
    assert verdict(source, target) == [("duplicated", 20, 60)]


def test_a_duplicate_of_a_record_outside_the_drill_is_named_once_the_source_was_asked() -> None:
    source, old = log(100, first=1_000), record(3)
    target = moved([*source[:60], old, *source[60:]], 1_000)[:100]
    anomalies, strays = judge([drilled(source, target)])
    assert anomalies == []
    assert settle(strays, {old.content: [(P1, 9), (P0, 3)]}) == [
        Anomaly(AnomalyKind.DUPLICATED, "t", Place(0, 3), Place(0, 1_060))
    ]


def test_a_copy_in_another_partition_of_a_record_that_is_in_place_is_a_duplicate() -> None:
    here = record(5)
    anomalies, strays = judge([drilled([], [here], partition=1)])
    assert anomalies == []
    assert settle(strays, {here.content: [(P0, 2)]}) == [Anomaly(AnomalyKind.DUPLICATED, "t", Place(0, 2), Place(1, 5))]


def test_a_record_that_another_topic_holds_is_extra() -> None:
    stray = record(5)
    _, strays = judge([drilled([], [stray])])
    assert settle(strays, {stray.content: [(PartitionKey("other", 0), 2)]}) == [
        Anomaly(AnomalyKind.EXTRA, "t", None, Place(0, 5))
    ]


def test_two_neighbours_swapped_are_one_reordered_record() -> None:
    source = log(100)
    target = moved([*source[:50], source[51], source[50], *source[52:]])
    assert verdict(source, target) in ([("reordered", 50, 51)], [("reordered", 51, 50)])


def test_a_record_moved_far_is_one_reordered_record() -> None:
    source = log(3_000)
    target = moved([*source[:10], *source[11:2_500], source[10], *source[2_500:]])
    assert verdict(source, target) == [("reordered", 10, 2_499)]


def test_two_distant_records_swapped_are_both_reordered() -> None:
    source = log(100)
    target = list(source)
    target[10], target[90] = target[90], target[10]
    assert verdict(source, moved(target)) == [("reordered", 10, 90), ("reordered", 90, 10)]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"key": 5}, "key"),
        ({"value": 5}, "value"),
        ({"value": None}, "value"),
        ({"headers": 5}, "headers"),
        ({"stamp": 5}, "timestamp"),
    ],
    ids=str,
)
def test_an_altered_record_is_named_with_the_part_that_changed(change: dict[str, int], part: str) -> None:
    source = log(100)
    target = [*source[:40], record(40, **change), *source[41:]]
    anomalies, strays = judge([drilled(source, target)])
    assert strays == []
    assert anomalies == [Anomaly(AnomalyKind.ALTERED, "t", Place(0, 40), Place(0, 40), (part,))]


def test_another_timestamp_type_is_a_part_of_its_own() -> None:
    source = log(100)
    target = [*source[:40], source[40]._replace(stamped=1, content=-1), *source[41:]]
    anomalies, _ = judge([drilled(source, target)])
    assert anomalies == [Anomaly(AnomalyKind.ALTERED, "t", Place(0, 40), Place(0, 40), ("timestamp type",))]


def test_every_record_altered_is_counted_one_by_one() -> None:
    source = log(3_000)
    target = [each._replace(content=-each.content - 1, timestamp=10**9) for each in source]
    found = verdict(source, target)
    assert len(found) == 3_000
    assert {kind for kind, _, _ in found} == {"altered"}


def test_a_loss_beside_an_alteration_keeps_both_names() -> None:
    source = log(100)
    altered = record(0, value=888, stamp=51)
    target = moved([*source[:50], altered, *source[52:]])
    assert verdict(source, target) == [("altered", 51, 50), ("lost", 50, None)]


def test_a_record_replaced_by_a_stranger_is_lost_and_extra() -> None:
    source = log(100)
    target = [*source[:40], record(40, value=999, stamp=999), *source[41:]]
    assert verdict(source, target) == [("lost", 40, None), ("extra", None, 40)]


def test_a_record_in_another_partition_is_misplaced() -> None:
    first, second = log(50), log(50, salt=10**6)
    target_first = moved(first[:20] + first[21:])
    target_second = moved([*second[:30], first[20], *second[30:]])[:50]
    anomalies, strays = judge([drilled(first, target_first), drilled(second, target_second, partition=1)])
    assert strays == []
    assert anomalies == [Anomaly(AnomalyKind.MISPLACED, "t", Place(0, 20), Place(1, 30))]


def test_two_records_exchanged_between_partitions_are_both_misplaced_though_they_look_alike() -> None:
    first, second = log(50), log(50, salt=10**6)
    one, other = record(20, value=1, stamp=7), record(20, value=2, stamp=7)
    sources = [[*each[:20], own, *each[21:]] for each, own in ((first, one), (second, other))]
    targets = [[*each[:20], own, *each[21:]] for each, own in ((first, other), (second, one))]
    anomalies, strays = judge([drilled(sources[0], targets[0]), drilled(sources[1], targets[1], partition=1)])
    assert strays == []
    assert [each.kind for each in anomalies] == ["misplaced", "misplaced"]


def test_offsets_moved_without_a_loss_are_named_once_as_a_shift() -> None:
    source = log(100)
    target = source[:50] + [each._replace(offset=each.offset + 3) for each in source[50:]]
    anomalies, strays = judge([drilled(source, target)])
    assert strays == []
    assert anomalies == [Anomaly(AnomalyKind.SHIFTED, "t", Place(0, 50), Place(0, 53), records=50)]


def test_a_shift_that_the_plan_knows_is_none() -> None:
    source = log(100)
    assert verdict(source, [each._replace(offset=each.offset - 3) for each in log(100, first=3)], 0) != []
    assert verdict(source, [each._replace(offset=each.offset + 3) for each in source], 3) == []


def test_what_a_loss_pulls_into_the_range_is_not_extra() -> None:
    source = log(101)
    target = moved(source[:40] + source[41:])  # the last record stands at 99 and came from 100
    anomalies, strays = judge([Drilled.of(TopicRange("t", 0, 0, 100), source[:100], target)])
    assert [brief(each) for each in anomalies] == [("lost", 40, None)]
    assert strays == []


def with_holes(count: int) -> tuple[list[Fingerprint], list[Fingerprint], OffsetMap]:
    """Return a source with a hole after every third record, its copy without holes from offset 70 on, and the map."""
    source = [record(offset) for offset in range(count * 4 // 3) if offset % 4 != 3]
    copy = moved(source, 70)
    made = OffsetMap()
    for there, here in zip(source, copy, strict=True):
        made.append(there.offset, here.offset, 1)
    return source, copy, made


def mapped_verdict(
    source: list[Fingerprint], target: list[Fingerprint], made: OffsetMap
) -> list[tuple[str, int | None, int | None]]:
    hull = TopicRange("t", 0, 0, made.covered, made)
    anomalies, strays = judge([Drilled.of(hull, source, target)])
    return [brief(each) for each in anomalies + settle(strays, {})]


def test_a_copy_that_left_the_holes_out_is_equal_through_its_map() -> None:
    assert mapped_verdict(*with_holes(300)) == []


@given(st.integers(0, 298))
def test_a_lost_record_of_a_mapped_topic_is_named_once_whatever_holes_follow(place: int) -> None:
    source, copy, made = with_holes(300)
    target = moved(copy[:place] + copy[place + 1 :], 70)
    assert mapped_verdict(source, target, made) == [("lost", source[place].offset, None)]


@given(st.integers(0, 298))
def test_an_extra_record_of_a_mapped_topic_is_named_once_at_the_target_s_offset(place: int) -> None:
    source, copy, made = with_holes(300)
    stranger = record(0, value=10**7, stamp=10**7)
    target = moved([*copy[:place], stranger, *copy[place:]], 70)[:300]
    assert mapped_verdict(source, target, made) == [("extra", None, 70 + place)]


def test_an_altered_record_of_a_mapped_topic_has_its_own_offset_on_each_side() -> None:
    source, copy, made = with_holes(300)
    target = [*copy[:200], record(copy[200].offset, value=5, stamp=copy[200].timestamp), *copy[201:]]
    assert mapped_verdict(source, target, made) == [("altered", source[200].offset, 270)]


def test_a_record_that_the_map_does_not_know_is_lost() -> None:
    source, copy, made = with_holes(300)
    assert mapped_verdict([*source[:3], record(3), *source[3:]], copy, made) == [("lost", 3, None)]
