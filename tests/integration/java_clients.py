"""Programs of Kafka's own Java library as processes of a test, and their output.

librdkafka judges the records that the programs read and write; the output shows what the library reported to its
application.

A Java that lives for seconds spends most CPU time on the start. So a source file is compiled once into the user's
cache, and every program begins with the classes that a broker of its version has loaded before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from kmigrate.kafka_jars.cache import cached
from kmigrate.kafka_jars.jars import ensure_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.distribution import archive_options
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION
from tests.integration.migration import wait_until

__all__ = ["SOURCES", "JavaProgram", "JavaReader", "java_command"]

SOURCES = Path(__file__).parent / "java"
_SMALL = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel="
_LEAVING_S = 30
_COMPILED_S = 120


def java_command(
    program: str | Path, *words: str, jars: str = "kafka-tools", version: str = TARGET_VERSION, level: str = "info"
) -> list[str]:
    """Return the command that runs a class of a set of jars, or a single source file."""
    java, folder = find_java(), ensure_jars(jars, version)
    path, archive = f"{folder}/*", archive_options(folder, java)
    if jars == "kafka-tools" and version in (SOURCE_VERSION, TARGET_VERSION):
        # Java takes the archive of the brokers' classes only for a path that begins as theirs.
        of_broker = ensure_jars("kafka", version)
        more = sorted(jar for jar in folder.glob("*.jar") if not (of_broker / jar.name).exists())
        path, archive = os.pathsep.join([f"{of_broker}/*", *map(str, more)]), archive_options(of_broker, java)
    if isinstance(program, Path):
        path, program = f"{path}{os.pathsep}{_compiled(program, path)}", program.stem
    return [str(java.executable), *archive, *_SMALL, _LEVEL + level, "-cp", path, program, *words]


def _compiled(source: Path, path: str) -> Path:
    """Return the folder with the classes of a source file."""

    def build(folder: Path) -> None:
        compiler = find_java().home / "bin" / "javac"
        command = [str(compiler), "-J-XX:TieredStopAtLevel=1", "-cp", path, "-d", str(folder), str(source)]
        subprocess.run(command, check=True, timeout=_COMPILED_S)

    key = hashlib.sha256(source.read_bytes() + path.encode()).hexdigest()[:12]
    return cached(f"program-{source.stem}-{key}", build)


class JavaProgram:
    """A program that may be started, ended by SIGTERM and started again; all output goes to a single file.

    The output is no pipe: no process need read a file, and a program stands still once a pipe is full.
    """

    jars = "kafka-tools"
    """Set of jars on the class path."""

    def __init__(self, folder: Path, name: str, level: str = "warn", version: str = TARGET_VERSION) -> None:
        self._level = level
        self._version = version
        self._log = folder / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, program: str | Path, *words: str) -> None:
        """Start a class of the jars, or a single source file."""
        command = java_command(program, *words, jars=self.jars, version=self._version, level=self._level)
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def until(self, words: str, more_than: int = 0, seconds: float = 60) -> None:
        """Wait until the output has these words more often than `more_than`."""
        wait_until(
            lambda: self.said.count(words) > more_than or self._dead,
            seconds,
            lambda: f"{words!r}: {self.said[-2000:]}",
        )
        assert not self._dead, self.said[-2000:]

    @property
    def complaints(self) -> list[str]:
        """The lines with a warning or an error of the library."""
        return [line for line in self.said.splitlines() if " WARN " in line or " ERROR " in line]

    @property
    def _dead(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def ended(self, seconds: float) -> int:
        """Wait until the program ends by itself, and return the exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_LEAVING_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave no process behind."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class JavaReader(JavaProgram):
    """Kafka's VerifiableConsumer, which commits the records after each poll, and reports records and commits."""

    def start(self, bootstrap: str, topic: str, group: str, *more: str) -> None:
        self.run(
            "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap, "--topic", topic,
            "--group-id", group, "--verbose", "--reset-policy", "earliest", *more,
        )  # fmt: skip

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the reported events of a kind."""
        lines = (line for line in self.said.splitlines() if line.startswith("{") and line.endswith("}"))
        return [event for event in map(json.loads, lines) if event["name"] == name]

    @property
    def records(self) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value of each record, in the order of arrival."""
        return [(e["partition"], e["offset"], e["value"].encode()) for e in self.events("record_data")]

    @property
    def failed_commits(self) -> Sequence[dict[str, Any]]:
        return [event for event in self.events("offsets_committed") if not event["success"]]
