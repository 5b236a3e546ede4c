"""The origin of brokers: a Kafka distribution of the user's own, a container image, or cached jars.

A broker from jars starts in half the time with Java's archive of the classes that an earlier broker's JVM loaded. Java
judges whether an archive fits, and otherwise starts as slowly as without an archive.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kmigrate.errors import UsageError
from kmigrate.kafka_jars.cache import cache_folder
from kmigrate.kafka_jars.jars import OnProgress, ensure_jars
from kmigrate.kafka_jars.java import Java
from kmigrate.sandbox.containers import engine_answers, kafka_image
from kmigrate.sandbox.zookeeper import needs_zookeeper

__all__ = ["Distribution", "Image", "archive_options", "archive_path", "find_distribution"]


@dataclass(frozen=True)
class Distribution:
    """A folder with the jars of one version of Kafka."""

    jars: Path
    version: str


@dataclass(frozen=True)
class Image:
    """A container image of one version of Kafka."""

    name: str
    version: str


def find_distribution(version: str, on_progress: OnProgress | None = None) -> Distribution | Image:
    """Return the distribution that KMIGRATE_KAFKA_HOME names, whatever its version, or else the wished version.

    The variable may name several homes, separated like PATH: the home of the wished version is taken, else the first.
    The version of that home is then the cluster's version.
    """
    homes = [Path(home) for home in os.environ.get("KMIGRATE_KAFKA_HOME", "").split(os.pathsep) if home]
    own = [_read(home) for home in homes]
    for distribution in own:
        if distribution.version == version:
            return distribution
    if own:
        return own[0]
    if not needs_zookeeper(version) and engine_answers():  # there are no images of such old versions
        return Image(kafka_image(version), version)
    return Distribution(ensure_jars("kafka", version, on_progress), version)


def _read(home: Path) -> Distribution:
    jars = home / "libs"
    for jar in sorted(jars.glob("kafka-clients-*.jar")):
        if match := re.fullmatch(r"kafka-clients-(\d[\w.]*)\.jar", jar.name):
            return Distribution(jars, match.group(1))
    raise UsageError(
        "kafka-home-without-kafka",
        f"KMIGRATE_KAFKA_HOME names {home}, which holds no libs/kafka-clients-VERSION.jar",
        still_true="nothing was started",
        next_step="name an unpacked Kafka distribution, or unset it to have the jars fetched",
    )


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
