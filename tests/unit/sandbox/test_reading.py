"""A member's reads become a line per stretch of offsets, and the member's commits are asked for once."""

from __future__ import annotations

from pathlib import Path

from kmigrate.sandbox.history import Event, HistoryWriter, read_history
from kmigrate.sandbox.payload import content_of
from kmigrate.sandbox.reading import ReadLog


def feed(log: ReadLog, seq: int, offset: int, spoil: bytes = b"") -> None:
    content = content_of(f"shop-1.1:{seq}", seq)
    log.read("orders", 0, offset, content.value + spoil, content.key, list(content.headers))


def lines(tmp_path: Path, pen: HistoryWriter) -> list[Event]:
    pen.close()
    return [event for event in read_history(tmp_path / "c.jsonl") if event.f not in ("open", "close")]


def test_consecutive_offsets_share_a_line_and_a_hole_begins_another(tmp_path: Path) -> None:
    pen = HistoryWriter(tmp_path / "c.jsonl", "billing-1.1")
    log = ReadLog("billing", pen)
    for seq, offset in enumerate((7, 8, 10)):
        feed(log, seq, offset)
    log.write()
    first, second = lines(tmp_path, pen)
    assert (first.offset, first.values, first.group) == (7, ["shop-1.1:0", "shop-1.1:1"], "billing")
    assert (second.offset, second.values) == (10, ["shop-1.1:2"])


def test_content_is_judged_as_it_is_read(tmp_path: Path) -> None:
    pen = HistoryWriter(tmp_path / "c.jsonl", "billing-1.1")
    log = ReadLog("billing", pen)
    feed(log, 0, 7, spoil=b"!")
    log.write()
    altered, read = lines(tmp_path, pen)
    assert (altered.type, altered.error, altered.value) == ("fail", "altered", "shop-1.1:0")
    assert read.values == ["shop-1.1:0"]


def test_a_foreign_record_is_read_under_a_name_that_nobody_sent(tmp_path: Path) -> None:
    pen = HistoryWriter(tmp_path / "c.jsonl", "billing-1.1")
    log = ReadLog("billing", pen)
    log.read("orders", 0, 3, b"hello", None, None)
    log.write()
    assert lines(tmp_path, pen)[0].values == ["foreign:3"]


def test_a_position_is_asked_for_once_and_again_after_a_refusal(tmp_path: Path) -> None:
    pen = HistoryWriter(tmp_path / "c.jsonl", "billing-1.1")
    log = ReadLog("billing", pen)
    log.assigned([("orders", 0, -1)])
    feed(log, 0, 7)
    positions = log.uncommitted()
    assert positions == [("orders", 0, 8)]
    assert log.uncommitted() == []
    log.committed(positions, "REQUEST_TIMED_OUT")
    assert log.uncommitted() == positions
    log.committed(positions, "")
    log.revoked(positions)
    assert log.uncommitted() == []
    kinds = [(event.type, event.f) for event in lines(tmp_path, pen)]
    assert kinds == [
        ("ok", "assign"), ("ok", "poll"), ("invoke", "commit"), ("fail", "commit"), ("invoke", "commit"),
        ("ok", "commit"), ("ok", "revoke"),
    ]  # fmt: skip


def test_a_member_commits_nothing_of_a_partition_that_it_gave_away(tmp_path: Path) -> None:
    """The member may still have records in hand, and the next owner may have committed beyond those."""
    pen = HistoryWriter(tmp_path / "c.jsonl", "billing-1.1")
    log = ReadLog("billing", pen)
    log.assigned([("orders", 0, -1)])
    feed(log, 0, 7)
    log.revoked([("orders", 0, -1)])
    feed(log, 1, 8)
    assert log.uncommitted() == []
    log.assigned([("orders", 0, -1)])
    feed(log, 1, 8)
    assert log.uncommitted() == [("orders", 0, 9)]
    kinds = [event.f for event in lines(tmp_path, pen)]
    assert kinds == ["assign", "poll", "revoke", "poll", "assign", "poll", "commit"]
