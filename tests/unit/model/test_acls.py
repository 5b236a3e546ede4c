"""The ACLs that a mirrored topic or group gets: readers at once, writers at the promote, other names nothing."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.acls import (
    GROUP,
    PREFIXED,
    TOPIC,
    Acl,
    deny_entries,
    deny_write,
    group_rights,
    host_bound,
    topic_rights,
    writers,
)


def rule(operation: str, name: str = "orders", *, allow: bool = True, pattern: str = "literal", of: str = TOPIC) -> Acl:
    return Acl(of, name, "User:ann", "*", operation, allow, pattern)


def operations(acls: tuple[Acl, ...]) -> list[str]:
    return sorted(("" if acl.allow else "not ") + acl.operation for acl in acls)


def test_a_reader_reads_at_once() -> None:
    rights = topic_rights([rule("READ")], "orders")
    assert rights.now == rights.promoted == (rule("READ"),)


def test_what_changes_a_topic_is_held_back_and_only_describing_is_granted() -> None:
    rights = topic_rights([rule("WRITE"), rule("DELETE"), rule("ALTER_CONFIGS")], "orders")
    assert operations(rights.now) == ["DESCRIBE", "DESCRIBE_CONFIGS"]
    assert operations(rights.promoted) == ["ALTER_CONFIGS", "DELETE", "WRITE"]


def test_all_is_reading_until_the_promote() -> None:
    rights = topic_rights([rule("ALL", "*")], "orders")
    assert operations(rights.now) == ["DESCRIBE", "DESCRIBE_CONFIGS", "READ"]
    assert rights.promoted == (rule("ALL"),)


def test_a_prefix_opens_only_the_mirrored_topics_it_covers() -> None:
    rules = [rule("READ", "ord", pattern=PREFIXED), rule("READ", "pay", pattern=PREFIXED), rule("READ", "ord")]
    assert topic_rights(rules, "orders").now == (rule("READ"),)


def test_refusals_come_with_the_permissions_that_they_bound() -> None:
    rights = topic_rights([rule("READ", allow=False), rule("WRITE", allow=False), rule("ALL", allow=False)], "orders")
    assert operations(rights.now) == ["not DESCRIBE", "not DESCRIBE_CONFIGS", "not READ"]
    assert operations(rights.promoted) == ["not ALL", "not READ", "not WRITE"]


def test_rules_on_groups_and_on_creating_are_nothing_to_a_topic() -> None:
    assert topic_rights([rule("READ", of=GROUP), rule("CREATE")], "orders").promoted == ()


def test_a_mirrored_groups_members_keep_their_rules() -> None:
    rules = [rule("READ", "bill", pattern=PREFIXED, of=GROUP), rule("READ", "other", of=GROUP), rule("READ", "billing")]
    assert group_rights(rules, "billing") == (rule("READ", "billing", of=GROUP),)


def test_who_may_write_a_topic_is_told_from_its_rules_by_name_prefix_and_wildcard() -> None:
    by_name, by_prefix = rule("WRITE"), replace(rule("ALL", "ord", pattern=PREFIXED), principal="User:bob")
    everybody = replace(rule("WRITE", "*"), principal="User:eve")
    kept_out = replace(everybody, allow=False)
    reader = replace(rule("READ"), principal="User:dan")
    assert writers([by_name, by_prefix, everybody, reader], "orders") == ("User:ann", "User:bob", "User:eve")
    assert writers([by_name, by_prefix, everybody, kept_out], "orders") == ("User:ann", "User:bob")
    assert writers([by_name], "payments") == ()


def test_the_rules_for_single_hosts_are_those_that_cover_the_topic() -> None:
    here = replace(rule("WRITE"), host="10.0.0.1")
    by_prefix = replace(rule("READ", "ord", allow=False, pattern=PREFIXED), host="10.0.0.2")
    elsewhere = replace(rule("WRITE", "pay"), host="10.0.0.1")
    assert host_bound([here, by_prefix, elsewhere, rule("WRITE")], "orders") == (by_prefix, here)


def test_writers_are_denied_by_name_but_for_those_that_are_spared_and_those_that_are_denied_already() -> None:
    bob, cid = replace(rule("ALL", "*"), principal="User:bob"), replace(rule("WRITE"), principal="User:cid")
    rules = [rule("WRITE", "ord", pattern=PREFIXED), rule("READ"), bob, cid, deny_write("User:bob", "orders")]
    assert deny_entries(rules, "orders", {"User:cid"}) == (deny_write("User:ann", "orders"),)


def test_nobody_is_denied_where_everybody_or_a_whole_group_may_write() -> None:
    for principal in ("User:*", "Group:writers"):
        found = deny_entries([rule("WRITE"), replace(rule("WRITE", "*"), principal=principal)], "orders", {"User:me"})
        assert found == f"{principal} may write, and a denial of that could stop kmigrate, too"
