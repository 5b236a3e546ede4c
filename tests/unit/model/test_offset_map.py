"""The offset map against a naive dictionary, and every offset of a million records."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kmigrate.model.offset_map import OffsetMap, Place, Run

small = st.integers(0, 9)


class Naive:
    """A map that keeps every record by itself, and finds positions by search."""

    def __init__(self) -> None:
        self.target_of: dict[int, int] = {}
        self.covered = -1

    def there(self, position: int) -> Place | None:
        return self._next(self.target_of, position, self.covered)

    def back(self, position: int) -> Place | None:
        source_of = {target: source for source, target in self.target_of.items()}
        return self._next(source_of, position, max(source_of, default=-2) + 1)

    def _next(self, to: dict[int, int], position: int, known: int) -> Place | None:
        found = min((offset for offset in to if offset >= position), default=None)
        if found is not None:
            return Place(to[found], found == position)
        return Place(max(to.values()) + 1, False) if to and position <= known else None


class Histories(RuleBasedStateMachine):
    """Any sequence of records, gaps on either side, restarts from bytes, and cuts."""

    @initialize(at=small, to=small)
    def begin(self, at: int, to: int) -> None:
        self.map, self.naive = OffsetMap(), Naive()
        self.source, self.target = at, to

    @rule(count=st.integers(1, 6))
    def records(self, count: int) -> None:
        self.map.append(self.source, self.target, count)
        for _ in range(count):
            self.naive.target_of[self.source] = self.target
            self.source, self.target = self.source + 1, self.target + 1
        self.naive.covered = max(self.naive.covered, self.source)

    @rule(gap=st.integers(1, 400))
    def hole_on_the_source(self, gap: int) -> None:
        self.source += gap
        if self.naive.target_of:
            self.map.cover(self.source)
            self.naive.covered = max(self.naive.covered, self.source)

    @rule(gap=st.integers(1, 400))
    def offsets_that_are_not_ours_on_the_target(self, gap: int) -> None:
        self.target += gap

    @rule()
    def restart_from_bytes(self) -> None:
        stored = OffsetMap()
        stored.extend(self.map.encode())
        stored.cover(self.map.covered)
        self.map = stored

    @rule(split=small)
    def restart_from_two_chunks_that_overlap(self, split: int) -> None:
        stored = OffsetMap()
        stored.extend(self.map.encode(0, split + 1))
        stored.extend(self.map.encode(max(0, split - 1)))
        stored.cover(self.map.covered)
        self.map = stored

    @rule(back=st.integers(0, 12))
    def cut(self, back: int) -> None:
        end = max(0, self.map.target_end - back)
        self.map.cut(end)
        left = {source: target for source, target in self.naive.target_of.items() if target < end}
        if len(left) < len(self.naive.target_of):
            self.naive.target_of = left
            self.naive.covered = max(left, default=-2) + 1
            self.source = max(left, default=self.source - 1) + 1
            self.target = max(left.values(), default=self.target - 1) + 1

    @rule(more=st.integers(0, 5))
    def close_where_the_last_run_has_grown(self, more: int) -> None:
        self.map.close(self.map.target_end + more if len(self.map) else more)
        if self.naive.target_of:
            self.source = max(self.naive.target_of) + 1
            self.target = max(self.naive.target_of.values()) + 1
            for _ in range(more):
                self.naive.target_of[self.source] = self.target
                self.source, self.target = self.source + 1, self.target + 1
            self.naive.covered = max(self.naive.covered, self.source)
            self.source = max(self.source, self.naive.covered)

    @invariant()
    def translates_as_the_dictionary_does(self) -> None:
        if not hasattr(self, "map"):
            return
        naive = self.naive
        edges = {e for s in naive.target_of for e in (s - 1, s, s + 1)} | {0, naive.covered, naive.covered + 1}
        for position in edges:
            assert self.map.to_target(position) == naive.there(position), position
        edges = {e for t in naive.target_of.values() for e in (t - 1, t, t + 1)} | {0}
        for position in edges:
            assert self.map.to_source(position) == naive.back(position), position

    @invariant()
    def runs_are_sorted_apart_and_merged(self) -> None:
        for before, after in pairwise(self.map.runs() if hasattr(self, "map") else ()):
            assert before.source + before.length <= after.source
            assert before.target + before.length <= after.target
            assert (before.source + before.length, before.target + before.length) != (after.source, after.target)


Histories.TestCase.settings = settings(max_examples=120, stateful_step_count=30)
TestRandomHistoriesTranslateAsADictionaryDoes = Histories.TestCase


def test_every_offset_of_a_million_records_is_translated_right_in_both_directions_and_fast() -> None:
    made = OffsetMap()
    target_of: dict[int, int] = {}
    holes: dict[int, int] = {}
    source, target, number = 1_000, 50, 0
    while len(target_of) < 1_000_000:
        count = 1 + number * 7919 % 37
        made.append(source, target, count)
        target_of.update(zip(range(source, source + count), range(target, target + count), strict=True))
        gap = number * 104_729 % 3
        holes.update(dict.fromkeys(range(source + count, source + count + gap), target + count))
        source, target, number = source + count + gap, target + count, number + 1
    made.cover(source)
    began = time.perf_counter()
    for offset, place in target_of.items():
        assert made.to_target(offset) == (place, True)
        assert made.to_source(place) == (offset, True)
    for offset, place in holes.items():
        assert made.to_target(offset) == (place, False)
    assert time.perf_counter() - began < 30
    again = OffsetMap()
    again.extend(made.encode())
    assert again == made
    assert len(made) > 20_000 and len(made.encode()) < 4 * len(made)


def test_what_is_not_copied_yet_has_no_place_and_the_end_of_what_is_has_one() -> None:
    made = OffsetMap([Run(10, 0, 5)])
    assert made.to_target(15) == (5, False)
    assert made.to_target(16) is None
    made.cover(17)
    assert made.to_target(17) == (5, False)
    assert made.to_target(18) is None
    assert made.to_source(5) == (15, False)
    assert made.to_source(6) is None
    assert OffsetMap().to_target(0) is None


def test_a_map_without_records_translates_the_positions_before_the_first() -> None:
    made = OffsetMap()
    made.begin(10, 300)
    assert made.to_target(4) == made.to_target(10) == (300, False)
    assert made.to_target(11) is None
    assert made.to_source(300) == made.to_source(7) == (10, False)
    assert made.to_source(301) is None
    assert OffsetMap.identity(0, 0).to_target(0) == (0, False)


def test_identical_offsets_are_one_run() -> None:
    made = OffsetMap.identity(7, 100)
    assert list(made.runs()) == [Run(7, 7, 93)]
    assert made.to_target(3) == (7, False)
    assert made.to_target(99) == (99, True)
    assert made.to_target(100) == (100, False)


def test_a_run_that_lies_before_another_is_refused() -> None:
    made = OffsetMap([Run(10, 10, 5)])
    for run in (Run(14, 20, 1), Run(20, 14, 1), Run(20, 20, 0)):
        with pytest.raises(ValueError):
            made.append(*run)
    assert list(made.runs()) == [Run(10, 10, 5)]


@given(st.binary(max_size=12))
def test_bytes_that_are_no_map_are_refused_or_make_one(data: bytes) -> None:
    made = OffsetMap()
    try:
        made.extend(data)
    except (ValueError, OverflowError):
        return
    assert all(run.length > 0 for run in made.runs())
