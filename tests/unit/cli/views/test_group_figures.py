"""Figures of a group for a person: an unknown figure is a question mark or a lower bound, with a note, and never 0."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from kmigrate.cli.views.snapshots import group_rows
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.workflow.status.snapshot import GroupStatus

KNOWN = GroupStatus("l", "g", GroupPhase.MIRRORED, "", (), 0, 12)


def shown(group: GroupStatus) -> str:
    """Return the view's text in a single line."""
    told = StringIO()
    Console(width=240, file=told).print(group_rows((group,), 0))
    return " ".join(told.getvalue().split())


def test_known_figures_are_shown_as_they_are() -> None:
    assert "0 members 0 members 12" in shown(KNOWN)


def test_a_source_that_did_not_answer_leaves_the_members_unknown() -> None:
    assert "? members ? members ?" in shown(replace(KNOWN, source_members=None, target_members=-1, lag=-1))


def test_partitions_without_a_lag_are_named_and_the_rest_is_a_lower_bound() -> None:
    told = shown(replace(KNOWN, lag_unplaced=tuple(("t", part) for part in range(5)), lag_beyond=(("u", 0),)))
    assert "≥ 12" in told
    assert "no committed position, so no lag, in t-0, t-1, t-2 and 2 more" in told
    assert "a position beyond the log's end, so no lag, in u-0" in told


def test_a_group_without_any_committed_position_has_an_unknown_lag() -> None:
    told = shown(replace(KNOWN, lag=-1, lag_unplaced=(("t", 0),)))
    assert "0 members ? no committed position" in told
