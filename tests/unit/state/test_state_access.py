"""Who but kmigrate may write the state log: named where a cluster's rules let somebody (EO-95)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import BrokerRefused
from kmigrate.model.acls import Acl
from kmigrate.model.security import Login, Security
from kmigrate.state import access
from kmigrate.workflow.verbs import state_findings

OURS = Acl("topic", "__kmigrate_", "User:kmigrate", "*", "WRITE", pattern="prefixed")
THEIRS = Acl("topic", "*", "User:shop", "*", "ALL")
EVERYBODY = Acl("topic", "*", "User:*", "*", "WRITE")
OTHERS = Acl("topic", "orders", "User:till", "*", "WRITE")


def found(
    monkeypatch: pytest.MonkeyPatch, rules: Iterable[Acl] | None, user: str = "kmigrate", refused: bool = False
) -> list[str]:
    async def told(_: Any) -> frozenset[Acl] | None:
        if refused:
            raise BrokerRefused("acls-unreadable", "no")
        return None if rules is None else frozenset(rules)

    monkeypatch.setattr(access, "read_acls", told)
    security = Security(sasl=Login("PLAIN", user)) if user else Security()
    client: Any = SimpleNamespace(settings=SimpleNamespace(name="target", security=security))
    return [finding.what.partition(" may write")[0] for finding in asyncio.run(state_findings(client))]


def test_others_that_may_write_the_state_log_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS, THEIRS, OTHERS]) == ["User:shop"]


def test_a_state_log_of_our_own_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS, OTHERS]) == []
    assert found(monkeypatch, None) == []
    assert found(monkeypatch, [], refused=True) == []


def test_a_super_user_that_needs_no_rule_is_told_of_the_only_one_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [THEIRS]) == ["User:shop"]


def test_everybody_is_never_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [EVERYBODY], user="") == ["User:*"]
    assert found(monkeypatch, [EVERYBODY]) == ["User:*"]


def test_where_our_own_name_is_not_known_one_writer_is_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS], user="") == []
    assert found(monkeypatch, [OURS, THEIRS], user="") == ["User:kmigrate, User:shop"]
