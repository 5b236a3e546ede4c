"""Writes new files, all or none: a file appears whole, and an existing file stays unless a person said otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["write_files"]

_ALL_MAY_READ = 0o644


def write_files(texts: Mapping[Path, str], *, private: Iterable[Path] = (), overwrite: bool) -> None:
    """Write the texts; raise FileExistsError or OSError with nothing changed. Only the owner reads private files."""
    hidden = frozenset(private)
    parts: dict[Path, Path] = {}
    published: list[Path] = []
    kept: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            parts[path] = _written_part(path, text, 0o600 if path in hidden else _ALL_MAY_READ)
        if overwrite:
            kept = {path: _kept(path) for path in texts if path.is_file()}
        for path, part in parts.items():
            if overwrite:
                published.append(path)
                part.replace(path)
            else:
                path.hardlink_to(part)  # fails if the file exists by now
                published.append(path)
    except BaseException:  # Ctrl-C, too
        _take_back(published, kept)
        raise
    finally:
        _remove([*parts.values(), *kept.values()])


def _kept(path: Path) -> Path:
    """Give a file that is about to be replaced a second name, and return the name."""
    name = path.with_name(f".{path.name}.{os.getpid()}.kept")
    name.hardlink_to(path)
    return name


def _take_back(published: Iterable[Path], kept: Mapping[Path, Path]) -> None:
    """Remove the new files, and put the replaced files back."""
    for path in published:
        if path in kept:
            kept[path].replace(path)
        elif not path.is_dir():
            path.unlink(missing_ok=True)


def _written_part(path: Path, text: str, mode: int) -> Path:
    """Write a text beside its place, and return the path."""
    with suppress(FileExistsError):  # a file in the place of the folder: `open` says that this is no folder
        path.parent.mkdir(mode=0o755 if mode == _ALL_MAY_READ else 0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as sink:
            sink.write(text)
            sink.flush()
            os.fsync(sink.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
