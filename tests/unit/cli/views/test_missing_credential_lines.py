"""Clients without a credential, in `status` and `group show`: a sentence, the next step, and lines to be copied."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Group

from kmigrate.cli.views.snapshots import group_alerts, snapshot_view
from kmigrate.model.lifecycle import GroupMode, GroupPhase
from kmigrate.model.presences import ClientWithoutCredential, RouterPresence
from kmigrate.workflow.status.attention import Need, group_attention
from kmigrate.workflow.status.missing_credentials import MissingCredential, missing_credentials
from kmigrate.workflow.status.snapshot import GroupStatus, Snapshot
from tests.unit.cli.views.test_leaving_view import _text

READER = ClientWithoutCredential("readers", "billing-1", "10.0.0.5", "blue", "old", groups=("billing",))
WRITER = replace(READER, principal="orders", client_id="orders-1", groups=(), writes=True)


def found(client: ClientWithoutCredential) -> MissingCredential:
    (one,) = missing_credentials([RouterPresence("r1", "edge", 1, 500, without_credential=(client,))])
    return one


def billing(*lacking: MissingCredential) -> GroupStatus:
    return GroupStatus(
        "blue", "billing", GroupPhase.MIRRORED, "", (), 0, 5, GroupMode.FOLLOW, 0, without_credential=lacking
    )


def test_a_group_shows_the_lines_for_the_table() -> None:
    group = billing(found(READER))
    said = _text(Group(*group_alerts(group, 0))).splitlines()
    assert said[0].startswith("! link blue: requests of group billing of billing-1 at 10.0.0.5 (principal readers)")
    assert [line.strip() for line in said[-4:]] == [
        '[clients."readers".clusters."old"]',
        '"sasl.mechanism" = "…"',
        '"sasl.username" = "…"',
        '"sasl.password" = "…"',
    ]
    told = group_attention(group, 0)
    assert (told.need, "the routers' table has no credential for old" in told.reason) == (Need.PERSON, True)


def test_a_refused_credential_is_corrected_and_needs_no_lines() -> None:
    said = _text(Group(*group_alerts(billing(found(replace(READER, refusal="wrong password"))), 0)))
    assert "old refuses the credential of the routers' table: wrong password" in " ".join(said.split())
    assert "[clients." not in said


def test_status_names_a_client_once_a_reader_at_its_group_and_a_writer_above() -> None:
    both = (found(READER), found(WRITER))
    shot = Snapshot(0, 0, (), (), (billing(both[0]),), (), frozenset(), (), (), without_credential=both)
    said = _text(snapshot_view(shot))
    assert (said.count("principal readers"), said.count("principal orders")) == (1, 1)
    assert [each["principal"] for each in shot.as_json()["without_credential"]] == ["readers", "orders"]
