"""Change stamps of files, so that a file is read from the disk only if the file has changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["Stamps", "stamps_of"]

Stamps = tuple[tuple[str, int, int, int], ...]


def stamps_of(files: Iterable[str]) -> Stamps:
    """Return a stamp of each named file; a file that replaces another (a rename, a moved link) has another stamp."""
    return tuple(_stamp(file) for file in files if file)


def _stamp(file: str) -> tuple[str, int, int, int]:
    try:
        found = Path(file).stat()
    except OSError:
        return file, 0, 0, 0
    return file, found.st_mtime_ns, found.st_size, found.st_ino
