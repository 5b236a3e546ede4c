"""The output of `status` in terminals of usual widths: no figure and no phase is cut in the middle."""

from __future__ import annotations

import pytest
from rich.console import Console

from kmigrate.cli.views.snapshots import snapshot_view, topic_detail
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.workflow.status.snapshot import PartitionStatus, Snapshot, TopicStatus
from tests.fakes.snapshots import estate

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


def test_a_promoted_topic_shows_how_far_its_copy_back_is_behind() -> None:
    part = PartitionStatus(0, 0, 100, 0, 112, 0, "", -1.0)
    topic = TopicStatus(
        "l",
        "t",
        TopicPhase.PROMOTED,
        0,
        "",
        "identical",
        (part,),
        way_back="open",
        way_back_lag=12,
        way_back_lag_seconds=0.3,
    )
    console = Console(width=200)
    with console.capture() as said:
        console.print(snapshot_view(Snapshot(0, 0, (), (topic,), (), (), frozenset(), (), ())))
        console.print(topic_detail(topic, 0))
    text = said.get()
    assert "way back 12 (0.3 s) behind" in text
    assert "way back: open, 12 (0.3 s) records behind" in text


def test_of_very_many_topics_those_that_need_attention_have_rows_and_the_others_are_counted() -> None:
    topics = tuple(_topic(f"t{number:03}") for number in range(700))
    shot = Snapshot(0, 0, (), (*topics, _topic("orders", _STOP)), (), (), frozenset(), (), ())
    console = Console(width=200)
    with console.capture() as said:
        console.print(snapshot_view(shot))
    lines = [line.strip() for line in said.get().splitlines()]
    rows = [line.split()[0] for line in lines if "mirroring" in line and "further" not in line]
    assert (len(rows), rows[0]) == (501, "orders"), "500 rows, and the line that counts the others"
    assert "and 201 topics that need no more attention: 201 mirroring; --json has all" in lines


def test_what_needs_attention_comes_first_and_each_wait_has_its_reason() -> None:
    console = Console(width=80)
    with console.capture() as said:
        console.print(snapshot_view(estate()))
    lines = said.get().splitlines()
    shown = [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in _NAMES and ":" not in line]
    assert shown[:2] == ["audit", "invoices"]
    assert shown.index("payments") > shown.index("clicks")
    assert shown.index("billing") < shown.index("analytics") < shown.index("mail")
    text = " ".join(said.get().split())
    assert "invoices: its promote waits: partition 2: 60 records behind, at most 50 are allowed" in text
    assert "orders.returns: paused: kmigrate topic resume --link blue orders.returns" in text


_NAMES = {each.topic for each in estate().topics} | {each.group for each in estate().groups}
