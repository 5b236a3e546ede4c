"""Names by regular expression: an expression must match a whole name, and some names never match."""

from __future__ import annotations

import pytest

from kmigrate.errors import UsageError
from kmigrate.model.patterns import NamePattern, check_expression, chosen_groups, chosen_topics


def test_an_expression_matches_whole_names_and_leaves_out_what_it_is_told_to() -> None:
    patterns = [NamePattern("orders-.*", (".*-test", "orders-x")), NamePattern("a|b")]
    topics = ["orders-1", "orders-1-test", "orders-x", "old-orders-1", "a", "ab", "b"]
    assert chosen_topics(patterns, topics) == ["a", "b", "orders-1"]


def test_internal_topics_are_never_chosen() -> None:
    internal = [
        "__consumer_offsets",
        "__transaction_state",
        "__kmigrate_state",
        "mm2-offset-syncs.b.internal",
        "t.replica",
        "b.checkpoints.internal",
    ]
    assert chosen_topics([NamePattern(".*")], [*internal, "orders", "_schemas"]) == ["_schemas", "orders"]


def test_groups_of_tools_are_never_chosen() -> None:
    groups = ["console-consumer-17", "kmigrate-mirror", "__share", "billing"]
    assert chosen_groups([NamePattern(".*")], groups) == ["billing"]


def test_a_broken_expression_is_refused_where_it_breaks() -> None:
    with pytest.raises(UsageError) as caught:
        check_expression("orders-(", "--regex")
    assert caught.value.ref == "bad-regex"
    assert "orders-(" in caught.value.what


def test_an_expression_that_may_take_for_ever_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(UsageError) as caught:
        check_expression(r"([a-z]+-?)+\.v2", "--regex")
    assert caught.value.ref == "slow-regex"
    assert "several ways" in caught.value.what
    assert "([a-z]+-)*[a-z]+" in caught.value.next_step


@pytest.mark.parametrize("pattern", [NamePattern(r"([a-z]+-?)+\.v2"), NamePattern("a.*", (r"([a-z]+-?)+\.v2",))])
def test_one_that_was_kept_before_chooses_nothing(pattern: NamePattern) -> None:
    """An old pattern with such an exception chooses nothing either, because its exceptions cannot be known."""
    assert chosen_topics([pattern, NamePattern("b")], ["a" * 60, "b"]) == ["b"]
    assert pattern.slow
