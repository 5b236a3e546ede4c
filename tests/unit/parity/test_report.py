"""The report: exact counts, capped examples, and never an equal verdict over unequal digests.

Sums over time: nothing is lost between the steps, and a difference stands at the time of its records.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import BucketDigest, BucketKey, TopicRange
from kmigrate.parity.report import EXAMPLES_OF_A_KIND, MOST_STEPS, ParityReport, nothing_read, report_of, timeline
from kmigrate.parity.verdict import Anomaly, AnomalyKind, Place

RANGES = [TopicRange("a", 0, 0, 10), TopicRange("a", 1, 0, 10), TopicRange("b", 0, 5, 5)]
HELD = {BucketKey("a", partition, 0): BucketDigest(10, 0, 9, 1, 2, 700) for partition in (0, 1)}
FIRST, SECOND = HELD


def report(
    anomalies: list[Anomaly], differing: list[BucketKey], unexamined: list[BucketKey] | None = None
) -> ParityReport:
    beyond = unexamined or []
    seconds = {"total": 1.23456}
    return report_of(RANGES, HELD, HELD, anomalies, differing=differing, unexamined=beyond, size=1_000, seconds=seconds)


def test_equal_clusters_are_equal_over_every_topic_also_the_empty_one() -> None:
    told = report([], [])
    assert told.equal
    assert told.as_json() == {
        "equal": True,
        "topics": 2,
        "records": 20,
        "verified_before": 0,
        "mismatches": 0,
        "anomalies": dict.fromkeys(AnomalyKind, 0),
        "unexamined_buckets": 0,
        "unnamed_buckets": 0,
        "by_topic": [
            {"topic": "a", "partitions": 2, "source_records": 20, "target_records": 20}
            | {"digest_equal": True, "mismatches": 0},
            {"topic": "b", "partitions": 1, "source_records": 0, "target_records": 0}
            | {"digest_equal": True, "mismatches": 0},
        ],
        "by_partition": [
            {"topic": "a", "partition": 0, "start": 0, "end": 10, "target_start": 0, "target_end": 10}
            | {"verified_from": 0}
            | {"source_records": 10, "target_records": 10, "source_bytes": 700, "target_bytes": 700}
            | {"digest_equal": True, "mismatches": 0},
            {"topic": "a", "partition": 1, "start": 0, "end": 10, "target_start": 0, "target_end": 10}
            | {"verified_from": 0}
            | {"source_records": 10, "target_records": 10, "source_bytes": 700, "target_bytes": 700}
            | {"digest_equal": True, "mismatches": 0},
            {"topic": "b", "partition": 0, "start": 5, "end": 5, "target_start": 5, "target_end": 5}
            | {"verified_from": 5}
            | {"source_records": 0, "target_records": 0, "source_bytes": 0, "target_bytes": 0}
            | {"digest_equal": True, "mismatches": 0},
        ],
        "by_time": [],
        "time_lookups": {"compared": 0, "early": 0, "late": 0, "by_partition": []},
        "examples": [],
        "seconds": {"total": 1.235},
    }


def test_a_differing_bucket_without_a_name_is_a_mismatch() -> None:
    told = report([], [FIRST])
    assert (told.equal, told.mismatches, told.unnamed_buckets) == (False, 1, 1)


def test_a_bucket_beyond_the_budget_is_a_mismatch() -> None:
    lost = Anomaly(AnomalyKind.LOST, "a", Place(0, 1))
    told = report([lost], [FIRST, SECOND], [SECOND])
    assert (told.mismatches, told.unexamined_buckets, told.unnamed_buckets) == (2, 1, 0)
    assert [row.mismatches for row in told.partitions] == [1, 1, 0]


def test_a_misplaced_record_touches_both_partitions_and_counts_once() -> None:
    told = report([Anomaly(AnomalyKind.MISPLACED, "a", Place(0, 1), Place(1, 2))], [FIRST, SECOND])
    assert told.mismatches == 1
    assert [row.mismatches for row in told.partitions] == [1, 1, 0]
    assert [row.mismatches for row in told.topics] == [1, 0]


def test_examples_are_capped_and_counts_are_not() -> None:
    many = [Anomaly(AnomalyKind.LOST, "a", Place(0, offset)) for offset in range(EXAMPLES_OF_A_KIND + 50)]
    told = report([*many, Anomaly(AnomalyKind.EXTRA, "a", None, Place(0, 3))], [FIRST])
    assert told.counts == {AnomalyKind.LOST: EXAMPLES_OF_A_KIND + 50, AnomalyKind.EXTRA: 1}
    assert len(told.examples) == EXAMPLES_OF_A_KIND + 1
    assert len(told.findings) == EXAMPLES_OF_A_KIND + 51


def test_json_names_what_an_example_has_and_nothing_else() -> None:
    altered = Anomaly(AnomalyKind.ALTERED, "a", Place(0, 1), Place(0, 1), ("value",))
    extra = Anomaly(AnomalyKind.EXTRA, "a", None, Place(0, 3))
    told = json.loads(json.dumps(report([altered, extra], [FIRST]).as_json()))
    place = {"partition": 0, "offset": 1}
    assert told["examples"] == [
        {"kind": "altered", "topic": "a", "source": place, "target": place, "parts": ["value"]},
        {"kind": "extra", "topic": "a", "source": None, "target": {"partition": 0, "offset": 3}},
    ]


def test_what_was_verified_before_is_told_and_not_counted() -> None:
    ranges = [TopicRange("a", 0, 100, 110, verified_from=40), TopicRange("a", 1, 7, 7)]
    told = report_of(ranges, {}, {}, [], differing=[], unexamined=[], size=1_000, seconds={})
    assert (told.records, told.verified_before, told.equal) == (0, 60, True)
    assert nothing_read(ranges).partitions == told.partitions


def test_a_finding_stands_at_the_time_of_its_bucket_a_second_copy_at_its_own() -> None:
    made = OffsetMap([Run(0, 500, 3_000)])
    held = {BucketKey("a", 0, n): BucketDigest(1_000, 0, 9, 1, 2, 7, 10_000 * n) for n in range(3)}
    found = [
        Anomaly(AnomalyKind.LOST, "a", Place(0, 1_700)),
        Anomaly(AnomalyKind.DUPLICATED, "a", Place(0, 3), Place(0, 2_600)),
        Anomaly(AnomalyKind.EXTRA, "a", None, Place(0, 2_700)),
    ]
    told = report_of(
        [TopicRange("a", 0, 0, 3_000, made)],
        held,
        held,
        found,
        differing=list(held),
        unexamined=[],
        size=1_000,
        seconds={},
    )
    assert [step.mismatches for step in told.times] == [0, 1, 2]


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
