"""Processes that die at a durable write of a promote or rollback of a topic or group: a rerun ends in a right state.

`make soak-crashes` takes every durable write in turn.
"""

from __future__ import annotations

from pathlib import Path

from tests.integration.migration import PATIENT, fresh_migration
from tests.soak.crashes import CrashPoints

POINTS = {
    "topic": [("controller", "after", "topic fencing"), ("cli", "after", "topic rollback-pending")],
    "group": [("cli", "after", "group promoting"), ("cli", "after", "group rolling-back")],
}
"""A process, and the moment and name of the write at which the process dies, for each verb of a cycle."""
BY_A_PERSON = {"topic promote-pending"}
"""Records that the command line writes, which dies in the soak."""


def test_a_rerun_ends_in_a_right_state_and_no_durable_write_passes_unseen(tmp_path: Path) -> None:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 0.5\n") as run:
        points = CrashPoints(run)
        with points.traffic() as writer:
            for cycle, dying in POINTS.items():
                for step, (engine, moment, write) in zip(points.cycle(cycle), dying, strict=True):
                    died = points.at(engine, step, moment, write)
                    assert died is not None and died.write == write
            for step in points.cycle("group"):  # A group without members goes to and fro any number of times.
                run.does(*step.words)
            assert points.judge(writer) > 20
        assert points.written() - points.noted() <= BY_A_PERSON
