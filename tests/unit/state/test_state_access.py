"""Users other than kmigrate with the right to write the state log: a cluster's ACLs that allow a write are named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.errors import BrokerRefused
from kmigrate.model.acls import Acl
from kmigrate.model.security import Login, Security
from kmigrate.state import access
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.verbs import state_findings

OURS = Acl("topic", "__kmigrate_", "User:kmigrate", "*", "WRITE", pattern="prefixed")
THEIRS = Acl("topic", "*", "User:shop", "*", "ALL")
EVERYBODY = Acl("topic", "*", "User:*", "*", "WRITE")
OTHERS = Acl("topic", "orders", "User:till", "*", "WRITE")


def found(monkeypatch: pytest.MonkeyPatch, rules: Iterable[Acl] | None, *more: Any, **named: Any) -> list[str]:
    return [finding.what.partition(" may write")[0] for finding in findings(monkeypatch, rules, *more, **named)]


def findings(
    monkeypatch: pytest.MonkeyPatch,
    rules: Iterable[Acl] | None,
    user: str = "kmigrate",
    refused: bool = False,
    brokers: dict[str, ConfigValue] | None = None,
) -> list[Finding]:
    class Configs(nullcontext[None]):
        def __init__(self, _: Any) -> None:
            super().__init__()

        def __enter__(self) -> Any:
            return self

        async def broker_configs(self, _: int) -> dict[str, ConfigValue]:
            return brokers or {}

    monkeypatch.setattr(access, "Admin", Configs)

    async def told(_: Any) -> frozenset[Acl] | None:
        if refused:
            raise BrokerRefused("acls-unreadable", "no")
        return None if rules is None else frozenset(rules)

    monkeypatch.setattr(access, "read_acls", told)
    security = Security(sasl=Login("PLAIN", user)) if user else Security()
    settings = SimpleNamespace(name="target", security=security, bootstrap_servers="host:9092")
    client: Any = SimpleNamespace(settings=settings, metadata=SimpleNamespace(brokers={1: ("host", 9092)}))
    return asyncio.run(state_findings(client))


def test_others_that_may_write_the_state_log_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS, THEIRS, OTHERS]) == ["User:shop"]


def test_a_state_log_of_our_own_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS, OTHERS]) == []
    assert found(monkeypatch, [], refused=True) == []


def test_a_target_without_an_authorizer_is_open_to_everybody_and_the_acl_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(monkeypatch, None) == ["everybody who reaches target"]
    (told,) = findings(monkeypatch, None)
    assert (told.ref, told.level) == ("state-open", "warn")
    assert "--allow-principal User:kmigrate --operation All --topic __kmigrate_" in told.next_step


def test_brokers_that_let_everybody_use_what_no_acl_names_are_open_to_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"allow.everyone.if.no.acl.found": ConfigValue("", own=True)}
    assert found(monkeypatch, [OTHERS], brokers=told) == ["everybody who reaches target"]
    assert found(monkeypatch, [OURS, OTHERS], brokers=told) == []
    assert found(monkeypatch, [OTHERS], brokers={}) == []


def test_a_super_user_that_needs_no_rule_is_told_of_the_only_one_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [THEIRS]) == ["User:shop"]


def test_everybody_is_never_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [EVERYBODY], user="") == ["User:*"]
    assert found(monkeypatch, [EVERYBODY]) == ["User:*"]


def test_where_our_own_name_is_not_known_one_writer_is_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS], user="") == []
    assert found(monkeypatch, [OURS, THEIRS], user="") == ["User:kmigrate, User:shop"]
