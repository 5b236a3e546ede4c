"""The user's cache of downloads and builds, each in a folder that is complete or absent."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "cached", "exclusive"]


def cache_folder() -> Path:
    """Return the folder of downloads and builds: KMIGRATE_CACHE, or the user's cache folder."""
    chosen = os.environ.get("KMIGRATE_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path.home() / ".cache" / "kmigrate"


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Return the cache's folder of a name, which may have slashes. `build` fills an empty folder if it is missing.

    A staging folder is renamed at the end, so a failed build leaves nothing. A second process waits for the first.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as staging:
                made = Path(staging) / "made"
                made.mkdir()
                build(made)
                made.rename(folder)
    return folder


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock a file; a second caller, in this process or another, waits. The kernel unlocks when the process is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
