"""Missing rights are named with principal, cluster, effect and the command that helps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kmigrate.errors import Unreachable
from kmigrate.model.acl_commands import Permission
from kmigrate.model.grants import CLUSTER_NAME, GRANTS, OPTIONAL_GRANTS, GrantUse, grants_of
from kmigrate.model.rights import ALL_OPERATIONS, HIDDEN, NOT_REPORTED, Operations, Rights
from kmigrate.model.security import Login, Security
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.base import rights as module
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.base.rights import Wanted, check_grants, needed_permissions, rights_findings

ALL = Operations.exactly(ALL_OPERATIONS)
OWN = ("__kmigrate_state", "__kmigrate_presence", "__kmigrate_offset_maps")


class Client:
    settings = ClusterSettings("old", (("a", 1),), security=Security(sasl=Login("PLAIN", "mover")))


def findings(monkeypatch: pytest.MonkeyPatch, rights: Rights | Unreachable, wanted: Wanted) -> list[Finding]:
    async def answer(*_: Any) -> Rights:
        if isinstance(rights, Unreachable):
            raise rights
        return rights

    monkeypatch.setattr(module, "read_rights", answer)
    client: Any = Client()
    return asyncio.run(rights_findings(client, wanted))


def without(*operations: str) -> Operations:
    return Operations.exactly(ALL_OPERATIONS - set(operations))


def test_a_principal_with_all_rights_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    rights = Rights(ALL, {"orders": ALL}, {"g": ALL})
    (found,) = findings(monkeypatch, rights, Wanted("source", ("orders",), ("g",)))
    assert (found.level, found.ref) == ("ok", "rights")
    assert found.what.startswith("User:mover has each right that kmigrate needs on old: asked about 1 topics, 1 groups")


def test_a_missing_right_is_named_with_its_use_and_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    rights = Rights(ALL, {"orders": without("READ"), "bills": ALL}, {"g": ALL})
    (found,) = findings(monkeypatch, rights, Wanted("source", ("orders", "bills"), ("g",)))
    assert (found.level, found.ref) == ("warn", "right-missing")
    assert found.what.startswith("User:mover lacks READ on topic orders of old; needed for: fetch records")
    assert found.next_step.endswith("--add --allow-principal User:mover --operation Read --topic=orders")


def test_an_optional_right_is_named_with_the_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    rights = Rights(ALL, {"orders": without("ALTER_CONFIGS")})
    (found,) = findings(monkeypatch, rights, Wanted("source", ("orders",)))
    assert (found.level, found.ref) == ("warn", "right-optional")
    assert "without: the source topic stays open after the flip" in found.what


def test_of_many_topics_five_are_named_and_the_command_is_left_to_print_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(f"t{number}" for number in range(7))
    rights = Rights(ALL, dict.fromkeys(names, without("READ")))
    (found,) = findings(monkeypatch, rights, Wanted("source", names))
    assert "topic t0, t1, t2, t3, t4 and 2 more of old" in found.what
    assert "--print-acls" in found.next_step


def test_what_brokers_do_not_report_is_unknown_and_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rights = Rights(ALL, {"orders": ALL}, {"g": NOT_REPORTED})
    (found,) = findings(monkeypatch, rights, Wanted("source", ("orders",), ("g",)))
    assert (found.level, found.ref) == ("ok", "rights-unknown")
    assert "DESCRIBE on group g; READ on group g" in found.what


def test_a_cluster_without_an_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = findings(monkeypatch, Unreachable("broker-unreachable", "it is away"), Wanted("source"))
    assert (found.level, found.ref, "it is away" in found.what) == ("warn", "rights-unknown", True)


def missing(rights: Rights, wanted: Wanted) -> set[tuple[str, str, str]]:
    found = check_grants(rights, wanted)
    return {(each.grant.resource, each.grant.operation, name) for each in found for name in each.missing}


def test_at_the_target_kmigrates_own_topics_count_and_create_counts_for_absent_topics_alone() -> None:
    topics = {**dict.fromkeys(OWN, without("CREATE", "DELETE")), "orders": without("CREATE")}
    wanted = Wanted("target", ("orders",))
    assert missing(Rights(without("CREATE"), topics), wanted) == set()
    absent = frozenset({"orders", OWN[0]})
    assert missing(Rights(without("CREATE"), topics, absent=absent), wanted) == {
        ("TOPIC", "CREATE", "orders"),
        ("TOPIC", "CREATE", OWN[0]),
    }
    assert missing(Rights(ALL, topics, absent=absent), wanted) == set()


@pytest.mark.parametrize("side", ["source", "target"])
def test_each_right_that_brokers_report_is_judged(side: str) -> None:
    names = ("orders", *(OWN if side == "target" else ()))
    rights = Rights(without(*ALL_OPERATIONS), dict.fromkeys(names, HIDDEN), {"g": HIDDEN}, frozenset(names))
    wanted = Wanted(side, ("orders",), ("g",))
    judged = {(each.grant.resource, each.grant.operation) for each in check_grants(rights, wanted)}
    listed = {(g.resource, g.operation) for g in (*GRANTS, *OPTIONAL_GRANTS) if g.side == side}
    assert judged == {each for each in listed if each[0] != "TRANSACTIONAL_ID"}
    assert all(each.missing or each.unknown for each in check_grants(rights, wanted))


def permissions(side: str, topics: tuple[str, ...] = ()) -> set[tuple[str, str, str, bool]]:
    found = needed_permissions(grants_of(side, GrantUse()), topics, ())
    return {(each.resource, each.name, each.operation, each.prefixed) for each in found}


def test_without_names_the_acls_are_for_all_topics_and_groups() -> None:
    names = {(resource, name) for resource, name, _, _ in permissions("target")}
    assert names == {("TOPIC", "*"), ("GROUP", "*"), ("CLUSTER", CLUSTER_NAME), ("TRANSACTIONAL_ID", "*")}


def test_acls_for_named_topics_include_kmigrates_own_topics_at_the_target_alone() -> None:
    assert ("TOPIC", "__kmigrate_", "WRITE", True) in permissions("target", ("orders",))
    assert ("TOPIC", "orders", "WRITE", False) in permissions("target", ("orders",))
    assert not [each for each in permissions("source", ("orders",)) if each[1].startswith("__")]


@pytest.mark.parametrize(("side", "expected"), [("source", True), ("target", False)])
def test_acls_for_named_groups_include_the_notes_of_copies_back_at_the_source_alone(side: str, expected: bool) -> None:
    found = needed_permissions(grants_of(side, GrantUse()), (), ("billing",))
    assert (Permission("GROUP", "kmigrate-way-back-", "READ", prefixed=True) in found) is expected
    assert Permission("GROUP", "billing", "READ") in found
