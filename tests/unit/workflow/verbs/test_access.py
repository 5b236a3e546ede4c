"""The plan of mirroring a topic warns of ACLs for single hosts."""

from __future__ import annotations

from kmigrate.model.acls import TOPIC, Acl
from kmigrate.workflow.verbs.access import host_findings


def rule(host: str) -> Acl:
    return Acl(TOPIC, "orders", "User:ann", host, "WRITE")


def test_rules_for_every_host_are_nothing_to_warn_of() -> None:
    assert host_findings([rule("*")], "orders") == []


def test_a_plan_warns_of_rules_for_single_hosts_and_says_what_to_do() -> None:
    [found] = host_findings([rule("*"), rule("10.0.0.1")], "orders")
    assert (found.level, found.ref) == ("warn", "host-rules")
    assert "User:ann from 10.0.0.1 may WRITE topic orders; both clusters see" in found.what
    assert "routers' addresses" in found.next_step


def test_of_many_rules_for_single_hosts_five_are_named() -> None:
    [found] = host_findings([rule(f"10.0.0.{number}") for number in range(1, 8)], "orders")
    assert "10.0.0.5" in found.what and "10.0.0.6" not in found.what
    assert "and 2 more" in found.what
