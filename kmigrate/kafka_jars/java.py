"""The Java that runs brokers and Spark: version 17 or 21, wherever it is installed.

Spark 4.0, Kafka 3.9 and Kafka 4.x all run on 17 and 21, and have no other version in common. So a newer Java that is
found first is passed over. The search fails with an error only if no supported Java is there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kmigrate.errors import Refused

__all__ = ["SUPPORTED", "Java", "find_java"]

SUPPORTED = (17, 21)

# Folders in which package managers of Linux and macOS put Java homes.
_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/opt/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


@dataclass(frozen=True)
class Java:
    """A Java home that is known to hold a runnable `bin/java` of this major version."""

    home: Path
    major: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] = os.environ, folders: tuple[str, ...] = _FOLDERS) -> Java:
    """Return the first supported Java in order of intent: JAVA_HOME, PATH, the usual folders."""
    passed_over: dict[int, Path] = {}
    for home in _homes(environ, folders):
        major = _major(home)
        if major in SUPPORTED:
            return Java(home, major)
        if major is not None:
            passed_over.setdefault(major, home)
    wanted = " or ".join(map(str, SUPPORTED))
    found = ", ".join(f"{major} ({home})" for major, home in sorted(passed_over.items()))
    raise Refused(
        "java-not-supported",
        f"kmigrate's sandbox and Spark need Java {wanted}, found {found or 'no Java at all'}",
        still_true="nothing was started",
        next_step=f"install Java {wanted} or set JAVA_HOME to one",
    )


def _homes(environ: Mapping[str, str], folders: tuple[str, ...]) -> Iterator[Path]:
    seen: set[Path] = set()
    for home in _candidates(environ, folders):
        real = home.resolve()
        if real not in seen and (real / "bin" / "java").is_file():
            seen.add(real)
            yield real


def _candidates(environ: Mapping[str, str], folders: tuple[str, ...]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path).resolve().parent.parent
    for folder in folders:
        expanded = Path(folder).expanduser()
        yield from sorted(Path(expanded.anchor).glob(str(expanded.relative_to(expanded.anchor))))


def _major(home: Path) -> int | None:
    """Return the major version by the home's `release` file, or by `java -version` if the file is missing."""
    release = home / "release"
    if release.is_file():
        text = release.read_text(encoding="utf-8", errors="replace")
    else:
        try:
            printed = subprocess.run(
                [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = printed.stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None
