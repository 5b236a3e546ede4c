"""The hint for a misspelt word, and for an expression in the place of a name."""

from __future__ import annotations

import pytest

from kmigrate.model.nearest import name_hint, nearest

KNOWN = ["orders", "orders.eu", "orders.us", "orders.asia", "payments"]


def test_a_close_word_is_named_and_a_far_word_is_not() -> None:
    assert nearest("ordrs", KNOWN) == ": did you mean 'orders'?"
    assert nearest("zebra", KNOWN) == ""
    assert nearest("orders", []) == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("orders.*", ": as an expression the name matches orders, orders.asia, orders.eu and 1 more"),
        ("pay.+", ": as an expression the name matches payments"),
        ("order(", ": did you mean 'orders'?"),
        ("orders.e", ": did you mean 'orders.eu'?"),
        ("(a+)+", ""),
        ("zebra.*", ""),
    ],
)
def test_a_name_that_was_meant_as_an_expression_tells_what_the_expression_matches(name: str, hint: str) -> None:
    assert name_hint(name, KNOWN) == hint
