"""Ranges and buckets: the compared offsets, and the buckets that are read again."""

from itertools import pairwise

import pytest

from kmigrate.errors import UsageError
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import (
    MOST_BUCKETS,
    SMALLEST_BUCKET,
    BucketDigest,
    BucketKey,
    PartitionKey,
    TopicRange,
    bucket_size,
    check_ranges,
    differing_buckets,
    hulls_of,
)

ONE = BucketDigest(10, 0, 9, 1, 2, 700)


@pytest.mark.parametrize(
    ("start", "end", "mapped"),
    [(-1, 5, None), (5, 4, None), (3, 9, OffsetMap([Run(3, 0, 5)]))],
    ids=["negative", "backwards", "beyond the map"],
)
def test_a_range_that_can_not_exist_is_refused(start: int, end: int, mapped: OffsetMap | None) -> None:
    with pytest.raises(UsageError, match="parity-range-invalid"):
        TopicRange("orders", 0, start, end, mapped)


@pytest.mark.parametrize("origin", [-1, 11])
def test_what_was_verified_before_lies_before_the_range(origin: int) -> None:
    with pytest.raises(UsageError, match="parity-range-invalid"):
        TopicRange("orders", 0, 10, 20, verified_from=origin)


def test_a_mapped_range_is_read_where_its_records_went_and_neighbours_meet() -> None:
    made = OffsetMap([Run(10, 3, 5), Run(20, 8, 5)])
    cuts = [10, 12, 15, 17, 20, 25]
    parts = [TopicRange("t", 0, left, right, made).at_target for left, right in pairwise(cuts)]
    assert [(each.start, each.end) for each in parts] == [(3, 5), (5, 8), (8, 8), (8, 8), (8, 13)]


def test_two_ranges_of_one_partition_are_refused() -> None:
    with pytest.raises(UsageError, match="orders-0 has two ranges"):
        check_ranges([TopicRange("orders", 0, 0, 5), TopicRange("orders", 0, 5, 9)])


def test_ranges_come_out_in_order() -> None:
    later, first = TopicRange("b", 0, 0, 1), TopicRange("a", 3, 0, 1)
    assert check_ranges([later, first]) == (first, later)


def test_bucket_counts_stay_bounded_however_long_the_log() -> None:
    assert bucket_size([TopicRange("t", 0, 0, 10)]) == SMALLEST_BUCKET
    huge = [TopicRange("t", p, 0, 10**12) for p in range(3)]
    assert sum(each.offsets for each in huge) / bucket_size(huge) <= MOST_BUCKETS


def test_a_bucket_that_only_one_side_holds_differs() -> None:
    here, there = BucketKey("t", 0, 0), BucketKey("t", 0, 1)
    assert differing_buckets({here: ONE}, {here: ONE, there: ONE}) == [there]


@pytest.mark.parametrize("place", range(8), ids=BucketDigest._fields)
def test_each_figure_of_a_digest_counts(place: int) -> None:
    key = BucketKey("t", 0, 0)
    other = BucketDigest(*(value + (index == place) for index, value in enumerate(ONE)))
    assert differing_buckets({key: ONE}, {key: other}) == [key]


def test_a_hull_covers_its_buckets_and_stays_inside_the_range() -> None:
    made = OffsetMap([Run(1_500, 0, 2_700)])
    ranges = [TopicRange("t", 0, 1_500, 4_200, made), TopicRange("t", 1, 0, 10)]
    hulls = hulls_of([BucketKey("t", 0, 4), BucketKey("t", 0, 1)], ranges, 1_000)
    assert hulls == {PartitionKey("t", 0): TopicRange("t", 0, 1_500, 4_200, made)}
    assert hulls_of([BucketKey("t", 0, 2)], ranges, 1_000)[PartitionKey("t", 0)].end == 3_000


@pytest.mark.parametrize("made", [None, OffsetMap([Run(0, 7, 60), Run(65, 67, 35)])], ids=["same offsets", "mapped"])
@pytest.mark.parametrize("start", [0, 40, 62, 99])
def test_a_resumed_range_has_everything_at_the_new_distance(made: OffsetMap | None, start: int) -> None:
    whole = TopicRange("t", 0, 0, 100, made)
    rest = whole.resumed(start, -3) if start > 2 else whole.resumed(start, 3)
    distance = -3 if start > 2 else 3
    assert (rest.start, rest.end) == (start, 100)
    assert [rest.to_target(at) for at in range(start, 100)] == [
        whole.to_target(at) + distance for at in range(start, 100)
    ]
    assert rest.at_target.end == whole.at_target.end + distance


def test_a_range_resumed_where_it_was_has_the_same_map() -> None:
    made = OffsetMap([Run(0, 7, 60)])
    assert TopicRange("t", 0, 0, 60, made, 0).resumed(20, 0) == TopicRange("t", 0, 20, 60, made)
