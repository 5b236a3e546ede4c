"""Alignment of two record lists: always a shared order, and a complete alignment where the lists are equal."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.parity.alignment import align, in_order, in_place

few = st.lists(st.integers(0, 4), max_size=40)
many = st.lists(st.integers(), max_size=60)


def crosses(pairs: list[tuple[int, int]]) -> bool:
    return any(i >= next_i or j >= next_j for (i, j), (next_i, next_j) in pairwise(pairs))


@given(st.one_of(few, many))
def test_equal_lists_are_paired_record_by_record(contents: list[int]) -> None:
    assert in_order(contents, list(contents)) == [(i, i) for i in range(len(contents))]


@given(st.one_of(few, many), st.one_of(few, many))
def test_pairs_are_equal_records_and_never_cross(left: list[int], right: list[int]) -> None:
    for pairs in (in_order(left, right), align(left, right, range(len(left)), range(len(right)))):
        assert all(left[i] == right[j] for i, j in pairs)
        assert not crosses(pairs)


@given(st.lists(st.integers(), unique=True, min_size=1, max_size=60), st.data())
def test_distinct_records_lose_only_what_was_taken_away(contents: list[int], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(contents) - 1)))
    right = [content for index, content in enumerate(contents) if index not in gone]
    kept = [index for index in range(len(contents)) if index not in gone]
    assert in_order(contents, right) == [(i, j) for j, i in enumerate(kept)]


def test_a_large_gap_of_repeated_contents_stays_fast_and_keeps_the_shared_order() -> None:
    left = [0, 1] * 20_000
    right = [1, 0] * 20_000
    pairs = in_order(left, right)
    assert not crosses(pairs)
    assert len(pairs) >= 20_000


def test_a_record_lost_behind_a_hole_is_read_in_place_though_its_twin_follows() -> None:
    assert align([7, 7], [7], [0, 1], [1]) == [(1, 0)]


def test_a_shift_is_read_in_order_though_some_records_are_equal_in_place_by_chance() -> None:
    left = [1, 1, 1, 2, 1, 1, 1, 3]
    right = left[1:]
    pairs = align(left, right, range(8), range(7))
    assert len(pairs) == 7
    assert len(in_place(left, right, range(8), range(7))) < 7
