"""Committed offsets that were handed over are checked against the present committed offsets."""

from __future__ import annotations

import pytest

from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.records import GroupRecord
from kmigrate.workflow.groups.audit import MovedPosition, PositionFault, moved_positions

KEY = ("t", 0)
GROUP = GroupRecord("blue", "billing", GroupPhase.PROMOTED, 1, written={"t": {0: 70}, "other": {0: 5}})


def positions(offset: int | None) -> dict[tuple[str, int], CommittedOffset]:
    return {} if offset is None else {KEY: CommittedOffset(offset, "")}


def shifted() -> OffsetMap:
    """Return an offset map from source offsets 100 to 179 to target offsets 50 to 129."""
    made = OffsetMap([Run(100, 50, 80)])
    made.begin(100, 50)
    return made


@pytest.mark.parametrize(
    ("on_source", "on_target", "found"),
    [
        (120, 70, []),
        (120, 95, []),
        (None, 70, []),
        (90, 70, []),
        (120, None, [(PositionFault.LOST, -1)]),
        (120, 60, [(PositionFault.REWOUND, 60)]),
        (125, 80, [(PositionFault.MOVED_ON_SOURCE, 75)]),
        (5_000, 80, [(PositionFault.MOVED_ON_SOURCE, -1)]),
        (121, None, [(PositionFault.LOST, -1), (PositionFault.MOVED_ON_SOURCE, 71)]),
    ],
)
def test_a_position_is_judged_by_what_was_handed_over(
    on_source: int | None, on_target: int | None, found: list[tuple[PositionFault, int]]
) -> None:
    audit = moved_positions(GROUP, {"t": {0: shifted()}}, {"t": {0: 100}}, positions(on_source), positions(on_target))
    assert audit.positions == 1, "the other topic was not asked about"
    assert list(audit.findings) == [MovedPosition("t", 0, fault, 70, now) for fault, now in found]
    assert audit.sound == all(fault is PositionFault.REWOUND for fault, _ in found)
