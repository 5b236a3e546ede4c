"""The Kafka distribution from which brokers run, in order of choice, and the archive of classes that a broker uses.

An existing archive is used. An archive belongs to a single Java and a single set of jars.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kmigrate.errors import UsageError
from kmigrate.kafka_jars.java import Java
from kmigrate.sandbox import distribution
from kmigrate.sandbox.distribution import Distribution, Image, archive_options, archive_path, find_distribution


def _home(folder: Path, version: str) -> Path:
    (folder / "libs").mkdir(parents=True)
    (folder / "libs" / f"kafka-clients-{version}.jar").touch()
    (folder / "libs" / f"kafka-clients-{version}-javadoc.jar").touch()
    return folder


def test_a_distribution_of_the_users_own_wins_and_its_version_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = _home(tmp_path / "kafka", "4.1.0")
    monkeypatch.setenv("KMIGRATE_KAFKA_HOME", str(home))
    assert find_distribution("3.9.1") == Distribution(home / "libs", "4.1.0")


def test_of_several_homes_the_one_of_the_wished_version_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [_home(tmp_path / "new", "4.3.1"), _home(tmp_path / "old", "3.9.1")]
    monkeypatch.setenv("KMIGRATE_KAFKA_HOME", os.pathsep.join(map(str, homes)))
    assert find_distribution("3.9.1").version == "3.9.1"
    assert find_distribution("4.3.1").version == "4.3.1"
    assert find_distribution("2.8.2").version == "4.3.1"


def test_a_home_without_kafka_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMIGRATE_KAFKA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="kafka-home-without-kafka") as error:
        find_distribution("4.3.1")
    assert str(tmp_path) in error.value.what


@pytest.mark.parametrize("answers", [True, False])
def test_without_one_a_container_is_used_where_an_engine_answers_and_jars_elsewhere(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KMIGRATE_KAFKA_HOME", raising=False)
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path))
    (tmp_path / "kafka-4.3.1").mkdir()
    monkeypatch.setattr(distribution, "engine_answers", lambda: answers)
    expected = Image("apache/kafka:4.3.1", "4.3.1") if answers else Distribution(tmp_path / "kafka-4.3.1", "4.3.1")
    assert find_distribution("4.3.1") == expected


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "jdk"
    home.mkdir()
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n', encoding="utf-8")
    return Java(home, 17)


def test_a_broker_without_an_archive_is_started_as_ever(java: Java, tmp_path: Path) -> None:
    assert archive_options(tmp_path / "kafka-4.3.1", java) == ()


def test_an_archive_that_is_there_is_named(java: Java, tmp_path: Path) -> None:
    path = archive_path(tmp_path / "kafka-4.3.1", java)
    path.parent.mkdir(parents=True)
    path.touch()
    assert f"-XX:SharedArchiveFile={path}" in archive_options(tmp_path / "kafka-4.3.1", java)
    assert archive_options(tmp_path / "kafka-3.9.1", java) == ()


def test_a_java_that_was_updated_in_place_has_an_archive_of_its_own(java: Java, tmp_path: Path) -> None:
    before = archive_path(tmp_path / "kafka-4.3.1", java)
    (java.home / "release").write_text('JAVA_VERSION="17.0.16"\n', encoding="utf-8")
    assert archive_path(tmp_path / "kafka-4.3.1", java) != before
