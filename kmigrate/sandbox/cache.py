"""The user's cache: what is fetched or built once, each in a folder that is complete or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kmigrate.sandbox.locks import exclusive

__all__ = ["cache_folder", "cached"]


def cache_folder() -> Path:
    """Where downloads and builds are kept: KMIGRATE_CACHE, or the user's cache folder."""
    chosen = os.environ.get("KMIGRATE_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path.home() / ".cache" / "kmigrate"


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The cache's folder of that name, which may have slashes; `build` fills an empty one where it is missing.

    Complete or absent: a staging folder is filled and renamed at the end, so that a build that fails leaves nothing;
    and a second process waits for the first instead of building beside it.
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
