"""The lag of a group: an unknown lag is reported as unknown, and never as 0."""

from __future__ import annotations

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.workflow.status.lags import UNKNOWN, GroupLag, group_lag

A, B = ("t", 0), ("t", 1)


def at(offset: int, error: int = 0) -> LogOffset:
    return LogOffset(error, offset, -1)


def lag(positions: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]) -> GroupLag:
    """Return the lag over the partitions that have a log end; every log begins at offset 10."""
    committed = {key: CommittedOffset(offset, "") for key, offset in positions.items()}
    starts = dict.fromkeys(ends.keys() - positions.keys(), at(10))
    return group_lag(committed, ends.keys(), starts, {key: at(end) for key, end in ends.items()})


def test_a_group_without_any_position_has_no_lag_that_is_known() -> None:
    assert lag({}, {A: 100, B: 100}) == GroupLag(-1, (A, B), ())


def test_a_partition_without_a_position_is_named_beside_the_lag_of_the_others() -> None:
    assert lag({A: 90}, {A: 100, B: 100}) == GroupLag(10, (B,), ())


def test_a_partition_without_records_needs_no_position() -> None:
    assert lag({A: 90}, {A: 100, B: 10}) == GroupLag(10, (), ())
    assert lag({}, {A: 10, B: 10}) == GroupLag(0, (), ())


def test_a_position_beyond_the_end_is_named_and_no_lag_of_0() -> None:
    assert lag({A: 101}, {A: 100}) == GroupLag(-1, (), (A,))
    assert lag({A: 101, B: 40}, {A: 100, B: 100}) == GroupLag(60, (), (A,))


def test_a_group_that_reads_nothing_has_no_known_lag() -> None:
    assert group_lag({}, [], {}, {}) == UNKNOWN


@pytest.mark.parametrize("end", [at(-1), at(100, error=6)], ids=["not told", "an error"])
def test_a_log_end_that_is_not_told_leaves_the_lag_unknown(end: LogOffset) -> None:
    assert group_lag({A: CommittedOffset(1, "")}, [A], {}, {A: end}) == UNKNOWN
