"""Sums over time: nothing is lost between the steps, and a difference stands at the time of its records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.parity.plan import BucketDigest, BucketKey
from kmigrate.parity.timeline import MOST_STEPS, timeline

times = st.lists(st.one_of(st.integers(0, 10**13), st.integers(10**12, 10**12 + 50)), min_size=1, max_size=80)


def buckets(since: list[int]) -> dict[BucketKey, BucketDigest]:
    return {BucketKey("t", 0, n): BucketDigest(10, 0, 9, 1, 2, 700, time) for n, time in enumerate(since)}


@given(times)
def test_steps_of_one_length_hold_every_bucket_once(since: list[int]) -> None:
    held = buckets(since)
    steps = timeline(held, {}, dict.fromkeys(held, 2))
    assert 1 <= len(steps) <= MOST_STEPS
    assert len({step.end_ms - step.start_ms for step in steps}) == 1
    assert steps[0].start_ms == min(since) and steps[-1].start_ms <= max(since) < steps[-1].end_ms
    assert sum(step.source_records for step in steps) == 10 * len(since)
    assert sum(step.source_bytes for step in steps) == 700 * len(since)
    assert sum(step.mismatches for step in steps) == 2 * len(since)
    assert all(step.target_records == step.target_bytes == 0 for step in steps)


def test_a_bucket_that_only_the_target_holds_has_its_own_time() -> None:
    here, there = buckets([0, 59_000, 20_000]), {BucketKey("t", 0, 7): BucketDigest(3, 0, 2, 1, 2, 5, 30_000)}
    (step,) = [step for step in timeline(here, there, dict.fromkeys(there, 1)) if step.mismatches]
    assert step.start_ms <= 30_000 < step.end_ms
    assert (step.source_records, step.target_records, step.target_bytes) == (0, 3, 5)


def test_records_without_a_time_make_no_step() -> None:
    assert timeline(buckets([-1, -1]), {}, {}) == ()
    assert len(timeline(buckets([-1, 5]), {}, {})) == 1


def test_there_are_no_more_steps_than_a_partition_has_buckets() -> None:
    held = {BucketKey("t", p, n): BucketDigest(10, 0, 9, 1, 2, 7, 1_000 * n) for p in range(9) for n in range(14)}
    steps = timeline(held, held, {})
    assert [step.source_records for step in steps] == [90] * 14
