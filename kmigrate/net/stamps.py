"""When files were written last: what is read at each use is read from the disk only if it has changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["Stamps", "stamps_of"]

Stamps = tuple[tuple[str, int, int, int], ...]


def stamps_of(files: Iterable[str]) -> Stamps:
    """Of each file that there is: one that is put in another's place (a rename, a link that is moved) is another."""
    return tuple(_stamp(file) for file in files if file)


def _stamp(file: str) -> tuple[str, int, int, int]:
    try:
        found = Path(file).stat()
    except OSError:
        return file, 0, 0, 0
    return file, found.st_mtime_ns, found.st_size, found.st_ino
