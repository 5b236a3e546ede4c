"""A group is behind until the group has read the last acknowledged record of each of its partitions."""

from __future__ import annotations

from pathlib import Path

from kmigrate.sandbox.history import HistoryWriter
from kmigrate.sandbox.progress import Progress


def test_a_group_catches_up_as_its_members_write_down_what_they_read(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "w.jsonl", "shop-1.1")
    reader = HistoryWriter(tmp_path / "r.jsonl", "billing-1.1")
    progress = Progress({"billing": ("orders",), "audit": ("audit",)})

    writer.record("ok", "send", topic="orders", partition=2, offset=10, value="shop-1.1:0", records=5)
    writer.flush()
    progress.update(tmp_path.glob("*.jsonl"))
    assert progress.behind() == [("billing", "orders", 2, 15)]

    reader.record("ok", "poll", topic="orders", partition=2, offset=10, values=["a", "b"], group="billing")
    reader.flush()
    progress.update(tmp_path.glob("*.jsonl"))
    assert progress.behind() == [("billing", "orders", 2, 3)]

    reader.record("ok", "poll", topic="orders", partition=2, offset=12, values=["c", "d", "e"], group="billing")
    reader.flush()
    progress.update(tmp_path.glob("*.jsonl"))
    assert progress.behind() == []
    writer.close()
    reader.close()


def test_what_a_group_committed_it_need_not_read(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "p.jsonl", "preload", role="preload") as pen:
        pen.record("ok", "send", topic="orders", partition=0, offset=10, value="stock.1:0", records=5)
        pen.record("ok", "commit", group="billing", positions=[("orders", 0, 14)])
    progress = Progress({"billing": ("orders",)})
    progress.update([tmp_path / "p.jsonl"])
    assert progress.behind() == [("billing", "orders", 0, 1)]


def test_what_a_reset_led_a_group_past_it_need_not_read(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "p.jsonl", "operator") as pen:
        pen.record("ok", "send", topic="orders", partition=0, offset=10, value="stock.1:0", records=5)
        pen.record("ok", "reset", group="billing", positions=[("orders", 0, 14)])
    progress = Progress({"billing": ("orders",)})
    progress.update([tmp_path / "p.jsonl"])
    assert progress.behind() == [("billing", "orders", 0, 1)]


def test_a_line_that_is_still_being_written_is_taken_later(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    line = b'{"m":1,"t":1,"process":"p","type":"ok","f":"send","topic":"orders","partition":0,"offset":4}\n'
    progress = Progress({"billing": ("orders",)})
    path.write_bytes(line[:40])
    progress.update([path])
    assert progress.behind() == []
    path.write_bytes(line)
    progress.update([path])
    assert progress.behind() == [("billing", "orders", 0, 5)]
