"""A right is granted, missing or unknown, never guessed."""

from __future__ import annotations

import pytest

from kmigrate.model.acls import GROUP, PREFIXED, Acl
from kmigrate.model.rights import HIDDEN, NOT_REPORTED, Operations, Rights, Standing, group_operations


def test_of_a_described_resource_each_operation_is_known() -> None:
    reported = Operations.exactly({"READ", "DESCRIBE"})
    assert reported.standing("READ") is Standing.GRANTED
    assert reported.standing("WRITE") is Standing.MISSING


def test_of_a_hidden_resource_only_operations_that_imply_describe_are_known() -> None:
    assert {HIDDEN.standing(each) for each in ("DESCRIBE", "READ", "WRITE", "ALTER", "DELETE")} == {Standing.MISSING}
    assert {HIDDEN.standing(each) for each in ("CREATE", "DESCRIBE_CONFIGS")} == {Standing.UNKNOWN}


def test_the_right_to_create_topics_may_come_from_the_cluster() -> None:
    none = Operations.exactly({"DESCRIBE"})
    topics = {"here": Operations.exactly({"CREATE"}), "there": none}

    def standing(cluster: Operations, topic: str) -> Standing:
        return Rights(cluster, topics).standing("TOPIC", "CREATE", topic)

    assert standing(none, "here") is Standing.GRANTED
    assert standing(none, "there") is Standing.MISSING
    assert standing(Operations.exactly({"CREATE"}), "there") is Standing.GRANTED
    assert standing(HIDDEN, "there") is Standing.UNKNOWN


def test_a_resource_that_nobody_was_asked_about_is_unknown() -> None:
    rights = Rights(NOT_REPORTED)
    assert rights.standing("GROUP", "READ", "g") is Standing.UNKNOWN
    assert rights.standing("CLUSTER", "ALTER", "kafka-cluster") is Standing.UNKNOWN


def rule(operation: str, *, principal: str = "User:k", allow: bool = True, name: str = "g", host: str = "*") -> Acl:
    return Acl(GROUP, name, principal, host, operation, allow, PREFIXED)


@pytest.mark.parametrize(
    ("rules", "standing"),
    [
        ([rule("READ")], Standing.GRANTED),
        ([rule("ALL", principal="User:*")], Standing.GRANTED),
        ([rule("READ"), rule("ALL", allow=False)], Standing.MISSING),
        ([rule("ALL"), rule("READ", allow=False)], Standing.MISSING),
        ([rule("READ", principal="User:other")], Standing.UNKNOWN),
        ([rule("READ", name="other")], Standing.UNKNOWN),
        ([rule("READ", host="10.0.0.1")], Standing.UNKNOWN),
        ([], Standing.UNKNOWN),
    ],
)
def test_acls_prove_a_right_and_a_denial_but_no_missing_right(rules: list[Acl], standing: Standing) -> None:
    assert group_operations(rules, "User:k", "group-1").standing("READ") is standing
