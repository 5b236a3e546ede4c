"""A final read that was written to a file is read back unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kmigrate.sandbox.final_read import FinalRecord, read_saved, saving

RECORDS = [
    FinalRecord("orders", 0, 7, b"value\xff", b"key", (("id", b"\x00"), ("nothing", None)), 1234),
    FinalRecord("orders", 3, 1_000_000, None, None, (), -1),
    FinalRecord("payments", 1, 0, b"", b"", (("id", b""), ("id", b"2")), 0),
]


def test_records_are_the_same_after_they_were_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "final-read.jsonl.gz"
    assert list(saving(RECORDS, path)) == RECORDS
    assert list(read_saved(path)) == RECORDS


def test_a_read_that_was_broken_off_leaves_no_file_that_looks_whole(tmp_path: Path) -> None:
    def broken() -> Iterator[FinalRecord]:
        yield RECORDS[0]
        raise RuntimeError("the target is gone")

    with pytest.raises(RuntimeError):
        list(saving(broken(), tmp_path / "final-read.jsonl.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["final-read.jsonl.gz.partial"]
