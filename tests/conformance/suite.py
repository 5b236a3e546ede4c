"""A foreign suite: how the suite is fetched, built and run, and the outcome of each test.

A suite is pinned to a version, comes from the registry of its own language, and is built once into the user's cache
folder. A suite runs against a bootstrap address and neither knows nor asks what is behind the address.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from kmigrate.errors import Failed, Refused
from kmigrate.kafka_jars.cache import cached

__all__ = [
    "BROKER_VERSION",
    "Hidden",
    "Outcome",
    "Place",
    "Promotion",
    "Results",
    "Said",
    "Suite",
    "built",
    "execute",
    "must",
    "need",
]

BROKER_VERSION = "4.3.1"


class Outcome(StrEnum):
    """The outcome of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


Results = dict[str, Outcome]
"""Outcomes by the name that the suite itself gives a test. A test that was never reported is missing."""


@dataclass(frozen=True)
class Hidden:
    """The reason why a test that passes on a plain broker may fail through the router."""

    api: str
    reason: str


class Promotion(Protocol):
    """A topic that is mirrored when clients come and promoted while they work, or a plain topic, which nobody moves."""

    def mirror(self, topic: str, partitions: int) -> None: ...

    def promote(self, topic: str) -> None: ...

    def mirror_group(self, group: str, mode: str) -> None:
        """Make a group of the mirrored topic of the same name, and mirror the group."""

    def promote_group(self, group: str) -> None: ...


@dataclass(frozen=True)
class Place:
    """The place of a run: the address for the suite's clients, a folder for files, and the log of the output."""

    bootstrap: str
    folder: Path
    promotion: Promotion

    @property
    def log(self) -> Path:
        return self.folder / "suite.log"


class Suite(Protocol):
    """A foreign suite, pinned to a version."""

    name: str
    package: str
    version: str
    settings: Mapping[str, str]
    """Settings beside the address. They are part of the reference, because other settings give other lists."""
    broker: Mapping[str, str]
    """The suite's own broker properties."""
    hidden: Mapping[str, Hidden]

    @property
    def floor(self) -> int:
        """The least number of tests that must pass through the router."""

    def prepare(self) -> None:
        """Fetch and build the suite if the cache does not have it yet."""

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        """Run the whole suite, or only the tests with these names."""


@dataclass
class Said:
    """The end of a command and its output. `code` is None if the command was ended for taking too long."""

    code: int | None
    output: str = field(repr=False)


def need(tool: str, what_for: str) -> str:
    """Return the path of a tool on this machine. Refuse with the tool's name and purpose if the tool is missing."""
    found = shutil.which(tool)
    if found is None:
        raise Refused(
            "toolchain-missing",
            f"{what_for} needs {tool}, which is not on the PATH",
            still_true="no suite that needs it was run",
            next_step=f"install {tool}, or leave the suite out with SUITE=",
        )
    return found


def built(suite: Suite, build: Callable[[Path], None]) -> Path:
    """Return the suite's folder in the user's cache, and build the folder first if it is missing."""
    return cached(f"conformance/{suite.name}-{suite.version}", build)


def must(command: list[str], cwd: Path, *, env: Mapping[str, str] | None = None, seconds: float = 1200) -> str:
    """Run a step of a build. A failure names the command and shows the end of the output."""
    with tempfile.TemporaryDirectory() as folder:
        said = execute(command, cwd, Path(folder) / "log", env=env, seconds=seconds)
    if said.code != 0:
        raise Failed(
            "suite-not-built",
            f"{' '.join(command)} ended with {said.code}: {said.output[-1500:]}",
            still_true="the suite was not run",
            next_step="look at what the command says; what was built is thrown away, so it can be repeated",
        )
    return said.output


def execute(
    command: list[str],
    cwd: Path,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    seconds: float,
) -> Said:
    """Run a command with its output in a log. A command that takes too long is ended with its children."""
    start = log.stat().st_size if log.exists() else 0
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    with log.open("rb") as source:
        source.seek(start)
        return Said(code, source.read().decode(errors="replace"))
