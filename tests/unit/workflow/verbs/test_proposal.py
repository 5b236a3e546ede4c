"""The refusal of a name that a link does not mirror tells the name that was meant."""

from __future__ import annotations

import pytest

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, TopicRecord
from kmigrate.workflow.verbs.proposal import Noun, not_mirrored
from tests.fakes.state_log import MemoryLog

STATE = MemoryLog(
    TopicRecord("l", "orders", TopicPhase.MIRRORING, 1), GroupRecord("l", "billing", GroupPhase.MIRRORED, 1)
).state


@pytest.mark.parametrize(
    ("noun", "name", "hint", "next_step"),
    [
        ("topic", "ordres", "did you mean 'orders'?", "kmigrate topic mirror --link l ordres"),
        ("group", "biling", "did you mean 'billing'?", "kmigrate group mirror --link l biling"),
        ("topic", "ord.*", "as an expression the name matches orders", "name each topic, or mirror by expression"),
        ("group", "zebra", "group zebra is not mirrored by link l", "kmigrate group mirror --link l zebra"),
    ],
)
def test_a_name_that_is_not_mirrored_is_corrected(noun: Noun, name: str, hint: str, next_step: str) -> None:
    found = not_mirrored(noun, "l", name, STATE)
    assert (found.level, found.ref) == ("refuse", "not-mirrored")
    assert hint in found.what
    assert found.next_step.startswith(next_step)
