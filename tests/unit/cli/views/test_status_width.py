"""The output of `status` in terminals of usual widths: no figure and no phase is cut in the middle."""

from __future__ import annotations

import pytest
from rich.console import Console

from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.workflow.status.snapshot import PartitionStatus, Snapshot, TopicStatus

_STOP = "offsets 5 to 9 are gone on the target, where somebody deletes records"


def _topic(name: str, problem: str = "") -> TopicStatus:
    # The last figures: lag in records, bytes and seconds.
    part = PartitionStatus(0, 0, 2_012_317, 0, 2_012_315, 3_313, problem, -1.0, lag_bytes=673_000, lag_seconds=14.6)
    return TopicStatus("l", name, TopicPhase.MIRRORING, 0, "", "identical", (part,))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_each_cell_is_whole_and_each_note_is_told(width: int) -> None:
    shot = Snapshot(0, 0, (), (_topic("payments"), _topic("orders", _STOP)), (), (), frozenset(), (), ())
    console = Console(width=width)
    with console.capture() as said:
        console.print(snapshot_view(shot))
    lines = said.get().splitlines()
    row = next(line for line in lines if line.startswith(("payments", " payments")))
    words = row.split()
    assert [word for word in ("mirroring", "2,012,317", "2,012,315", "3,313", "identical") if word not in words] == []
    assert _STOP in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
