"""Java's own archive of the classes that a broker's JVM loaded, with which the next broker starts in half the time.

Java itself judges whether an archive fits. Java ignores an archive that does not fit, and starts as
slowly as without an archive.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kmigrate.sandbox.cache import cache_folder
from kmigrate.sandbox.java import Java

__all__ = ["archive_options", "archive_path"]


def archive_path(jars: Path, java: Java) -> Path:
    """Return the path of the archive for these jars and this very Java, whether or not the archive exists."""
    release = java.home / "release"
    build = release.read_text(encoding="utf-8") if release.is_file() else ""
    key = hashlib.sha256(f"{jars.resolve()}\n{java.home.resolve()}\n{build}".encode()).hexdigest()[:12]
    return cache_folder() / f"classes-{key}" / "classes.jsa"


def archive_options(jars: Path, java: Java) -> tuple[str, ...]:
    """Return the Java options that use the archive, or nothing if there is no archive."""
    path = archive_path(jars, java)
    if not path.is_file():
        return ()
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
