"""Keys of a playbook's steps are the flags of the command line, and a key that a verb needs is a key of its step."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from kmigrate.cli.base.call import Call
from kmigrate.cli.commands.playbook_verbs import CALLS, parameter_of, verbs
from kmigrate.errors import UsageError

_GOOD: dict[str, Any] = {
    "name": "l",
    "set_": ["hole_limit=7"],
    "source": "old",
    "target": "new",
    "rate": "off",
    "topics": ["t"],
    "groups": ["g"],
}


def test_a_verb_has_the_flags_of_the_command_line() -> None:
    left_to_the_call = {"plan", "yes", "follow", "interval", "print_acls"}  # a step has an end: `--follow` is for calls
    by_hand = {"rollback": {"target_lost", "source", "routers_stopped", "release_groups", "out"}}
    for verb, fields in verbs().items():
        parameters = set(list(inspect.signature(CALLS[verb]).parameters)[1:])
        assert {parameter_of(key) for key in fields} == parameters - left_to_the_call - by_hand.get(verb, set()), verb
        assert all(field.expected and field.meaning for field in fields.values()), verb


def test_a_step_cannot_ask_for_a_report_on_a_lost_target() -> None:
    assert {"target-lost", "source", "out"}.isdisjoint(verbs()["rollback"])
    assert "source" in verbs()["link create"]


def test_values_are_checked_by_the_type_of_the_flag() -> None:
    promote, mirror = verbs()["promote"], verbs()["topic mirror"]
    assert promote["on-late"].check("copy") and not promote["on-late"].check("drop")
    assert promote["seal"].check(False) and not promote["seal"].check("no")
    assert promote["timeout"].check(0.5) and not promote["timeout"].check(True)
    assert mirror["offsets"].expected == "auto, identical or mapped"
    assert mirror["topics"].required and not mirror["exclude"].required


@pytest.mark.parametrize(
    ("verb", "key"),
    [(verb, key) for verb, fields in verbs().items() for key, field in fields.items() if field.required],
)
def test_without_a_required_key_the_verb_itself_asks_for_the_value(
    verb: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    given = {
        parameter_of(other): _GOOD[parameter_of(other)] for other, field in verbs()[verb].items() if field.required
    }
    del given[parameter_of(key)]
    with pytest.raises(UsageError) as caught:
        asyncio.run(CALLS[verb](Call(), **given))
    assert caught.value.ref == "missing-value"
