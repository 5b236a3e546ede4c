"""Bounds: offsets that have left a log are refused by name; offsets missing on the target are cut and reported."""

import pytest

from kmigrate.errors import Failed
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import PartitionKey, Stretch, TopicRange
from kmigrate.spark.bounds import Bounds, refuse_what_is_gone, within

KEY = PartitionKey("t", 0)


def test_a_target_that_ends_early_is_read_to_its_end() -> None:
    assert within([TopicRange("t", 0, 0, 10)], {KEY: Bounds(0, 7)}) == [Stretch("t", 0, 0, 7)]


def test_the_cut_of_a_mapped_range_is_in_the_target_s_own_offsets() -> None:
    mapped = TopicRange("t", 0, 0, 10, OffsetMap([Run(0, 5, 10)]))
    assert within([mapped], {KEY: Bounds(5, 12)}) == [Stretch("t", 0, 5, 12)]


def test_a_target_that_ends_before_the_range_is_not_read() -> None:
    assert within([TopicRange("t", 0, 5, 10)], {KEY: Bounds(0, 3)}) == []


def test_a_target_that_goes_on_is_read_no_further_than_the_range() -> None:
    assert within([TopicRange("t", 0, 5, 10)], {KEY: Bounds(0, 99)}) == [Stretch("t", 0, 5, 10)]


@pytest.mark.parametrize(("source", "target", "side"), [(6, 5, "source"), (5, 6, "target")])
def test_a_range_that_begins_before_a_log_is_refused_with_the_side(source: int, target: int, side: str) -> None:
    with pytest.raises(Failed, match=f"parity-range-gone: t-0 .* from {side} offset 5, .* begins at 6"):
        refuse_what_is_gone([TopicRange("t", 0, 5, 9)], {KEY: Bounds(source, 9)}, {KEY: Bounds(target, 9)})


def test_a_mapped_range_is_held_against_the_target_s_own_offsets() -> None:
    mapped = TopicRange("t", 0, 5, 9, OffsetMap([Run(5, 3, 4)]))
    refuse_what_is_gone([mapped], {KEY: Bounds(5, 9)}, {KEY: Bounds(3, 7)})
    with pytest.raises(Failed, match="from target offset 3"):
        refuse_what_is_gone([mapped], {KEY: Bounds(5, 9)}, {KEY: Bounds(4, 7)})


def test_an_empty_range_below_the_log_start_is_no_loss() -> None:
    refuse_what_is_gone([TopicRange("t", 0, 5, 5)], {KEY: Bounds(9, 9)}, {KEY: Bounds(9, 9)})


def test_a_range_beyond_the_last_stable_offset_is_refused() -> None:
    with pytest.raises(Failed, match=r"parity-range-not-stable: .* its last stable offset is 8"):
        refuse_what_is_gone([TopicRange("t", 0, 5, 9)], {KEY: Bounds(0, 8)}, {KEY: Bounds(0, 9)})


def test_a_target_that_deletes_nothing_and_begins_late_is_read_from_there_and_found_wanting() -> None:
    """Otherwise a copy would be compared without the beginning that somebody deleted."""
    kept = TopicRange("t", 0, 0, 9, kept=True)
    refuse_what_is_gone([kept], {KEY: Bounds(0, 9)}, {KEY: Bounds(4, 9)})
    assert within([kept], {KEY: Bounds(4, 9)}) == [Stretch("t", 0, 4, 9)]
    with pytest.raises(Failed, match="from source offset 0"):
        refuse_what_is_gone([kept], {KEY: Bounds(1, 9)}, {KEY: Bounds(4, 9)})
