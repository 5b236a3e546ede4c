"""The output about topics that routers withhold from a group's members."""

from __future__ import annotations

import pytest
from rich.console import Console

from kmigrate.cli.views.snapshots import group_rows, snapshot_view
from kmigrate.model.lifecycle import GroupMode, GroupPhase
from kmigrate.model.presences import RefusedMember
from kmigrate.workflow.groups.withheld import WithheldTopic
from kmigrate.workflow.status.snapshot import GroupStatus, Snapshot

CALL = "kmigrate topic mirror --link blue audit"
AUDIT = WithheldTopic("audit", "an-id", 2, "topic-not-mirrored", "it is not mirrored", CALL)
NAMELESS = WithheldTopic("", "an-id", 1, "topic-not-mirrored", "it is not mirrored", "mirror it")


def said(*topics: WithheldTopic, more: int = 0, width: int = 300) -> list[str]:
    group = GroupStatus(
        "blue", "billing", GroupPhase.MIRRORED, "", (), 0, 5, GroupMode.FOLLOW, 0, withheld=topics, more_withheld=more
    )
    shot = Snapshot(0, 0, (), (), (group,), (), frozenset(), (), ())
    console = Console(width=width)
    with console.capture() as told:
        console.print(snapshot_view(shot))
    with console.capture() as alone:
        console.print(group_rows((group,), 0))
    assert alone.get() in told.get(), "`group show` tells the same"
    return told.get().splitlines()


def test_a_sentence_says_what_happens_and_the_next_line_what_to_do() -> None:
    lines = said(AUDIT)
    assert lines[-2] == (
        "! group billing: nobody reads the partitions of topic audit that the source assigns to 2 members at routers, "
        "which are not told of it, because it is not mirrored"
    )
    assert lines[-1].rstrip() == f"  next: {CALL}"


def test_a_topic_that_nobody_can_name_is_told_by_its_id() -> None:
    assert "a topic with the id an-id that the source assigns to a member at a router, which is" in said(NAMELESS)[-2]


def test_where_there_are_too_many_it_is_said_how_many_more() -> None:
    assert said(AUDIT, more=6)[-1].rstrip() == "! group billing: at least 6 topics more"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_call_stays_whole_in_a_terminal(width: int) -> None:
    lines = said(AUDIT, width=width)
    assert f"  next: {CALL}" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= width


def test_nothing_is_said_where_nothing_is_withheld() -> None:
    assert not any("group billing:" in line for line in said())


def test_a_member_that_the_target_refuses_is_named_with_what_to_do() -> None:
    named = RefusedMember("app[red]", "10.0.0.1", "app-1", "GROUP_AUTHORIZATION_FAILED")
    for phase, sentence in (
        (GroupPhase.MIRRORED, "the target would refuse member app[red] at 10.0.0.1 (app-1) of group billing"),
        (GroupPhase.PROMOTED, "member app[red] at 10.0.0.1 (app-1) of group billing is refused by the target"),
    ):
        group = GroupStatus("blue", "billing", phase, "", (), 0, 5, refused=(named,))
        console = Console(width=300)
        with console.capture() as told:
            console.print(group_rows((group,), 0))
        lines = [line.rstrip() for line in told.get().splitlines()]
        assert lines[-2:] == [
            f"! {sentence}: GROUP_AUTHORIZATION_FAILED",
            "  next: give the member's principal READ on group billing at the target",
        ]
