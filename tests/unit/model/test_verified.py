"""A range that a check found equal is remembered for that copy only, and grows without gaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.record_json import decode_record, encode_record
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord, VerifiedRecord
from kmigrate.model.stops import AcceptedLoss
from kmigrate.model.verified import Looked, grown, standing

LINK = LinkRecord("blue", "u1", ClusterRef("old", "a:1"), ClusterRef("new", "b:1"), 0)
TOPIC = TopicRecord(
    "blue",
    "orders",
    TopicPhase.MIRRORING,
    1,
    partitions=2,
    source_topic_id="s1",
    target_topic_id="t1",
    starts={0: 5, 1: 0},
)
LOSS = AcceptedLoss(7, 9, "source-range-lost", 1, "me@here")


def after(*checks: Looked, kept: VerifiedRecord | None = None) -> VerifiedRecord | None:
    """Return the verified range after a series of checks of partition 0."""
    for number, each in enumerate(checks):
        kept = grown(kept, LINK, TOPIC, {0: each}, 100 + number)
    return kept


def spans(kept: VerifiedRecord | None) -> dict[int, tuple[int, int]]:
    return {partition: (each.start, each.end) for partition, each in standing(kept, LINK, TOPIC).items()}


def test_what_continues_a_range_makes_it_longer_and_says_when() -> None:
    kept = after(Looked(5, 50, True), Looked(50, 80, True))
    assert spans(kept) == {0: (5, 80)}
    assert kept is not None and kept.ranges[0].at_ms == 101


def test_a_check_without_anything_new_changes_nothing() -> None:
    kept = after(Looked(5, 50, True))
    assert after(Looked(50, 50, True), kept=kept) == kept


def test_a_range_that_leaves_a_gap_takes_the_place_of_the_old_one() -> None:
    assert spans(after(Looked(5, 50, True), Looked(60, 80, True))) == {0: (60, 80)}


def test_a_difference_behind_a_range_leaves_it_and_one_inside_ends_it() -> None:
    assert spans(after(Looked(5, 50, True), Looked(50, 80, False))) == {0: (5, 50)}
    assert spans(after(Looked(5, 50, True), Looked(5, 80, False))) == {}


def test_a_log_that_was_cut_is_verified_as_far_as_it_was_read_again() -> None:
    assert spans(after(Looked(5, 50, True), Looked(5, 30, True))) == {0: (5, 30)}


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_a_verified_range_holds_no_offset_that_was_not_found_equal_last(steps: list[tuple[int, bool]]) -> None:
    """A check starts at the range's end, as the command line does, or reads everything from the start."""
    kept: VerifiedRecord | None = None
    last: dict[int, bool] = {}
    end = 5
    for length, equal in steps:
        end += length
        before = spans(kept).get(0)
        looked = Looked(before[1] if before and length % 3 else 5, end, equal)
        last.update(dict.fromkeys(range(looked.start, looked.end), equal))
        kept = after(looked, kept=kept)
    assert all(last[offset] for start, stop in spans(kept).values() for offset in range(start, stop))


@pytest.mark.parametrize(
    ("link", "topic"),
    [
        (replace(LINK, uuid="u2"), TOPIC),
        (LINK, replace(TOPIC, source_topic_id="s2")),
        (LINK, replace(TOPIC, target_topic_id="t2")),
        (LINK, replace(TOPIC, starts={0: 6, 1: 0})),
        (LINK, replace(TOPIC, losses={0: (LOSS,)})),
    ],
    ids=["another link", "a new source topic", "a new target topic", "another start", "an accepted loss"],
)
def test_of_another_copy_nothing_is_known(link: LinkRecord, topic: TopicRecord) -> None:
    assert standing(after(Looked(5, 50, True)), link, topic) == {}


def test_an_accepted_loss_forgets_its_own_partition_only() -> None:
    kept = grown(None, LINK, TOPIC, {0: Looked(5, 50, True), 1: Looked(0, 9, True)}, 100)
    assert list(standing(kept, LINK, replace(TOPIC, losses={0: (LOSS,)}))) == [1]


def test_a_check_that_compared_something_else_counts_for_nothing() -> None:
    kept = after(Looked(5, 50, True))
    assert kept is not None
    assert standing(replace(kept, digest="another"), LINK, TOPIC) == {}


def test_the_record_is_read_as_it_was_written() -> None:
    kept = after(Looked(5, 50, True))
    assert kept is not None
    assert decode_record(encode_record(kept)) == kept
    assert kept.key == "verified/blue/orders"
