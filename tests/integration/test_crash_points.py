"""Processes that die at a durable write of a promote, a rollback or a group's promote: a rerun ends in a right state.

`make soak-crashes` takes every durable write in turn.
"""

from __future__ import annotations

from pathlib import Path

from tests.integration.migration import PATIENT, fresh_migration
from tests.soak.crashes import CrashPoints

POINTS = (
    ("controller", "topic", "after", "topic fencing"),
    ("mirror", "topic", "before", "first copied batch"),
    ("cli", "topic", "after", "topic promote-pending"),
    ("cli", "group", "after", "group promoting"),
)
"""A process, a cycle of verbs, and the moment and name of the write at which the process dies."""


def test_a_rerun_ends_in_a_right_state_and_no_durable_write_passes_unseen(tmp_path: Path) -> None:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 0.5\n") as run:
        points = CrashPoints(run)
        with points.traffic() as writer:
            for engine, cycle, moment, write in POINTS:
                died = points.at(engine, cycle, moment, write)
                assert {point.write for point in died} == {write}
            assert points.judge(writer) > 20
        assert points.written() <= points.noted()
