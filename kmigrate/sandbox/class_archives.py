"""What a broker's JVM has loaded, kept as Java's own archive of classes: the next one starts in half the time.

Java itself judges whether an archive fits; one that does not is passed over, and costs nothing but the time.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kmigrate.sandbox.cache import cache_folder
from kmigrate.sandbox.java import Java

__all__ = ["archive_options", "archive_path"]


def archive_path(jars: Path, java: Java) -> Path:
    """Where the classes of these jars are kept for this very Java, whether or not they are there."""
    release = java.home / "release"
    build = release.read_text(encoding="utf-8") if release.is_file() else ""
    key = hashlib.sha256(f"{jars.resolve()}\n{java.home.resolve()}\n{build}".encode()).hexdigest()[:12]
    return cache_folder() / f"classes-{key}" / "classes.jsa"


def archive_options(jars: Path, java: Java) -> tuple[str, ...]:
    """What to start Java with so that it uses the archive; nothing where there is none."""
    path = archive_path(jars, java)
    if not path.is_file():
        return ()
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
