"""Direct writers and late writes in `status` and `topic show`."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from kmigrate.cli.views.snapshots import topic_detail
from kmigrate.cli.views.tables import late_view
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import DirectWriter, LateWrites
from kmigrate.workflow.promote.late_findings import LateFound
from kmigrate.workflow.status.attention import direct_text
from kmigrate.workflow.status.snapshot import TopicStatus

NOW = 1_000_000_000
WRITERS = (
    DirectWriter(7, 2, 0, 12, 99, NOW - 60_000, NOW - 8_000, 8_000),
    DirectWriter(-1, -1, 3, 1, 5, NOW - 90_000, NOW - 90_000),
)
LATE = LateFound("orders", 1, LateWrites(120, 124, 3, 124, 0, 0, 1, producers=((7, 2),)))


def text(view: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(view)
    return out.getvalue()


def of_topic(phase: TopicPhase) -> TopicStatus:
    made = TopicStatus("blue", "orders", phase, 1, "", "identical", (), direct_writers=WRITERS, more_direct_writers=4)
    if phase is not TopicPhase.PROMOTED:
        return made
    return TopicStatus("blue", "orders", phase, 1, "", "identical", (), late=(LATE,), source_closed="closed")


def test_the_newest_direct_writer_is_named_and_the_others_are_counted() -> None:
    assert direct_text(of_topic(TopicPhase.MIRRORING), NOW) == (
        "6 direct writers, the last 8.0 s ago: producer id 7 to partition 0 (kmigrate topic show orders)"
    )


def test_every_direct_writer_is_listed_with_its_longest_pause() -> None:
    told = text(topic_detail(of_topic(TopicPhase.MIRRORING), NOW))
    assert "producer id 7" in told
    assert "a producer without id" in told
    assert "8.0 s ago" in told
    assert "2 min ago" in told
    assert "and 4 more" in told


def test_late_offsets_are_named_with_their_producer() -> None:
    sentence = (
        "orders-1: the source took offsets 120 to 123 after the flip by producer id 7 "
        "(3 records, 1 of them on the target)"
    )
    assert LATE.text == sentence
    told = text(topic_detail(of_topic(TopicPhase.PROMOTED), NOW))
    assert sentence in told
    assert "the source topic: closed; late records: alarm" in told
    assert sentence in text(late_view([LATE]))
