"""The drivers of client families that are not in Python or not part of kmigrate, built once into the user's cache.

    java         javac of the Java that runs the brokers, Kafka's own client jars
    franz-go     go, which fetches the modules that go.sum names
    kafka-python pip, one wheel by its hash; kafka-python-2 is version 2.0.2, with the six that Python 3.12 needs

The name of a driver's folder holds a hash of the driver's source, so that a newer kmigrate builds a newer driver. A
missing tool ends in an error: a family that is silently left out would prove nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kmigrate.errors import Failed, Refused
from kmigrate.kafka_jars.cache import cached
from kmigrate.kafka_jars.jars import ensure_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.distribution import archive_options
from kmigrate.sandbox.kafka import TARGET_VERSION

__all__ = ["DRIVEN", "Driver", "driver_of"]

_SOURCES = Path(__file__).with_name("drivers")
_KAFKA_PYTHON = "kafka-python==3.0.12 --hash=sha256:67add72052e3ad0c37ed9963ebe2b1696adc7f063c64eaf19862c21b69a64a18\n"
_KAFKA_PYTHON_2 = (
    "kafka-python==2.0.2 --hash=sha256:2d92418c7cb1c298fa6c7f0fb3519b520d0d7526ac6cb7ae2a4fc65a51a94b6e\n"
    "six==1.17.0 --hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274\n"
)
_BUILD_SECONDS = 300


@dataclass(frozen=True)
class Driver:
    """The command that starts a driver. The caller appends the role and its arguments."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def driver_of(family: str) -> Driver:
    """Return the driver of a family, and build the driver first if the cache does not hold it."""
    return _DRIVERS[family]()


def _java() -> Driver:
    java = find_java()
    jars = ensure_jars("kafka", TARGET_VERSION)
    source = _SOURCES / "Driver.java"

    def build(folder: Path) -> None:
        compiler = java.home / "bin" / "javac"
        if not compiler.is_file():
            what = f"a JDK with javac, and {java.home} has none"
            raise _missing("java", what, f"install the JDK of Java {java.major}, or set JAVA_HOME to one")
        _run("java", [str(compiler), "-cp", f"{jars}/*", "-d", str(folder), str(source)])

    classes = _built("java", source.read_bytes() + TARGET_VERSION.encode(), build)
    # -Xrs: the process that drives the client handles the ending signal. Only the driver's lines go to standard output.
    quiet = ("-Xrs", "-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=warning:stderr")
    small = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    # The brokers' jars come first: Java takes the archive of their classes only for a path that begins as theirs.
    path = f"{jars}/*{os.pathsep}{classes}"
    return Driver((str(java.executable), *quiet, *small, *archive_options(jars, java), "-cp", path, "Driver"))


def _franz_go() -> Driver:
    source = _SOURCES / "franz_go"
    files = sorted(path for path in source.iterdir() if path.is_file())

    def build(folder: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise _missing("franz-go", "the Go toolchain, and there is no go on the PATH", "install Go from go.dev/dl")
        _run("franz-go", [go, "build", "-trimpath", "-o", str(folder / "driver"), "."], source)

    folder = _built("franz-go", b"".join(path.read_bytes() for path in files), build)
    # A single thread is enough: more threads would look for work, and there is little work.
    return Driver((str(folder / "driver"),), {"GOMAXPROCS": "1"})


def _kafka_python(requirements: str) -> Driver:
    def build(folder: Path) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as wanted:
            wanted.write(requirements)
            wanted.flush()
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            _run("kafka-python", [*pip, "--require-hashes", "--target", str(folder), "-r", wanted.name])

    folder = _built("kafka-python", requirements.encode(), build)
    return Driver((sys.executable, str(_SOURCES / "kafka_python_driver.py")), {"PYTHONPATH": str(folder)})


_DRIVERS: Mapping[str, Callable[[], Driver]] = {
    "java": _java,
    "franz-go": _franz_go,
    "kafka-python": lambda: _kafka_python(_KAFKA_PYTHON),
    "kafka-python-2": lambda: _kafka_python(_KAFKA_PYTHON_2),
}
DRIVEN = frozenset(_DRIVERS)


def _built(family: str, source: bytes, build: Callable[[Path], None]) -> Path:
    return cached(f"driver-{family}-{hashlib.sha256(source).hexdigest()[:12]}", build)


def _run(family: str, command: list[str], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failed("driver-build", f"building the {family} clients took longer than {_BUILD_SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(
            "driver-build",
            f"the {family} clients could not be built: {lines[-1] if lines else 'no word from the compiler'}",
            still_true="nothing was started",
            next_step=f"see: {' '.join(command)}",
        )


def _missing(family: str, what: str, next_step: str) -> Refused:
    return Refused(
        "toolchain-missing",
        f"clients of {family} need {what}",
        still_true="nothing was started, and no family is left out in silence",
        next_step=next_step,
    )
