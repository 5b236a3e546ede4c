"""The transition table of a lane, its diagram, and the rule that only the lane changes its own state."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kmigrate.cli.reference.lane_states import with_diagram
from kmigrate.cli.reference.source import parse_source
from kmigrate.mirror.partition.transitions import TRANSITIONS, LaneEvent, LaneState, next_state

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("event", LaneEvent)
def test_a_stopped_lane_stays_stopped_whatever_happens(event: LaneEvent) -> None:
    assert next_state(LaneState.STOPPED, event) is LaneState.STOPPED


@pytest.mark.parametrize("state", [state for state in LaneState if state is not LaneState.STOPPED])
def test_from_every_other_state_a_lane_may_be_lost_or_stopped(state: LaneState) -> None:
    assert next_state(state, LaneEvent.LOST) is LaneState.LOST
    assert next_state(state, LaneEvent.STOPPED) is LaneState.STOPPED


def test_every_state_can_be_reached_and_every_event_has_a_row() -> None:
    assert {LaneState.LOST, *TRANSITIONS.values()} == set(LaneState)
    assert {event for _, event in TRANSITIONS} == set(LaneEvent)


@pytest.mark.parametrize(
    ("before", "reconnected", "after"),
    [
        (LaneState.PRIMING, False, LaneState.PRIMING),
        (LaneState.PRIMING, True, LaneState.PRIMING),
        (LaneState.PIPING, False, LaneState.PIPING),
        (LaneState.PIPING, True, LaneState.PRIMING),
    ],
)
def test_behind_a_hole_a_lane_goes_on_as_before_unless_its_connection_is_new(
    before: LaneState, reconnected: bool, after: LaneState
) -> None:
    state = next_state(before, LaneEvent.HOLE_BEGUN)
    if reconnected:
        state = next_state(state, LaneEvent.RECONNECTED)
    assert next_state(state, LaneEvent.HOLE_FILLED) is after


def test_the_diagram_is_current() -> None:
    page = (ROOT / "docs" / "mirror.md").read_text(encoding="utf-8")
    assert page == with_diagram(page), "make it anew: python -m kmigrate.cli.reference.lane_states docs/mirror.md"
    assert page.count("```mermaid\n") == 1


def test_no_module_outside_the_lane_assigns_to_a_lane() -> None:
    found = []
    for file in (ROOT / "kmigrate").rglob("*.py"):
        for node in ast.walk(parse_source(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    owner = each.value if isinstance(each, ast.Attribute | ast.Subscript) else None
                    text = ast.unparse(owner) if owner is not None else ""
                    if text == "lane" or text.startswith("lane."):
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found
