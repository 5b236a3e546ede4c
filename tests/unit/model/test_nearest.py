"""The hint for a misspelt word."""

from __future__ import annotations

from kmigrate.model.nearest import nearest


def test_a_close_word_is_named_and_a_far_word_is_not() -> None:
    assert nearest("ordrs", ["orders", "payments"]) == ": did you mean 'orders'?"
    assert nearest("zebra", ["orders", "payments"]) == ""
    assert nearest("orders", []) == ""
