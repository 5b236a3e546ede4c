"""Files that were replaced: every way of replacing a file is noticed."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from kmigrate.net.stamps import stamps_of


def test_a_file_that_is_written_replaced_linked_elsewhere_or_removed_is_another(tmp_path: Path) -> None:
    """Same size and same time are noticed, too: systems that mount secrets move a link from a folder to another."""
    file, one, other = tmp_path / "file", tmp_path / "one", tmp_path / "other"
    for each in (one, other):
        each.write_text("same", "utf-8")
        os.utime(each, (1, 1))
    seen = [stamps_of([str(file)])]

    def look() -> None:
        seen.append(stamps_of([str(file)]))

    file.symlink_to(one)
    look()
    file.unlink()
    file.symlink_to(other)
    look()
    other.write_text("longer", "utf-8")
    look()
    os.utime(other, (2, 2))
    look()
    one.replace(file)
    look()
    file.unlink()
    look()
    assert [before == after for before, after in pairwise(seen)] == [False] * 6
    assert seen[-1] == seen[0]


def test_who_is_not_named_is_not_looked_at(tmp_path: Path) -> None:
    assert stamps_of(["", ""]) == ()
    assert len(stamps_of([str(tmp_path), ""])) == 1
