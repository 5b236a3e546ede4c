"""An existing archive of classes is used; an archive belongs to a single Java and a single set of jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.sandbox.class_archives import archive_options, archive_path
from kmigrate.sandbox.java import Java


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
