"""The list of least privileges is the list in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.model.grants import GRANTS, OPTIONAL_GRANTS, GrantUse, grants_of

_KINDS = {"CLUSTER": "Cluster", "TOPIC": "Topic", "GROUP": "Group", "TRANSACTIONAL_ID": "TransactionalId"}


def test_the_page_on_security_shows_every_grant_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    source, target = page.split("On the source:")[1].split("## ")[0].split("On the target:")
    for side, text in (("source", source), ("target", target)):
        shown = [line for line in text.splitlines() if line.startswith("|")][2:]
        assert shown == [f"| {_KINDS[g.resource]} | {g.operation} | {g.why} |" for g in GRANTS if g.side == side]


def test_the_page_shows_every_optional_right_with_its_effect() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    part = page.split("### Rights that single features use")[1].split("## ")[0]
    shown = [line for line in part.splitlines() if line.startswith("|")][2:]
    wanted = OPTIONAL_GRANTS
    assert shown == [f"| {g.side} | {_KINDS[g.resource]} | {g.operation} | {g.why} | {g.without} |" for g in wanted]
    assert all(grant.without for grant in wanted)
    assert not any(grant.without for grant in GRANTS)


def _needed(side: str, use: GrantUse) -> set[tuple[str, str, str]]:
    return {(each.resource, each.operation, each.name) for each in grants_of(side, use) if not each.without}


@pytest.mark.parametrize("side", ["source", "target"])
def test_by_default_each_listed_right_is_needed(side: str) -> None:
    assert _needed(side, GrantUse()) == {(g.resource, g.operation, g.name) for g in GRANTS if g.side == side}


def test_settings_of_the_mirror_take_rights_away_and_add_others() -> None:
    usual, none = _needed("target", GrantUse()), _needed("target", GrantUse(False, False, False))
    assert usual - none == {("CLUSTER", "ALTER", "kafka-cluster"), ("CLUSTER", "ALTER_CONFIGS", "kafka-cluster")}
    assert none - usual == {("TRANSACTIONAL_ID", "WRITE", "kmigrate-holes-")}
    without_acls = _needed("target", GrantUse(carries_acls=False))
    assert without_acls - usual == {("CLUSTER", "CLUSTER_ACTION", "kafka-cluster")}
    assert _needed("source", GrantUse()) - _needed("source", GrantUse(carries_acls=False)) == {
        ("CLUSTER", "DESCRIBE", "kafka-cluster")
    }
