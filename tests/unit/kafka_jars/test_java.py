"""The choice of the Java that runs the brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.errors import Refused
from kmigrate.kafka_jars.java import find_java


def _home(folder: Path, version: str | None, says: str = "") -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    chosen = _home(tmp_path / "a", "21.0.4")
    on_path = _home(tmp_path / "b", "17.0.1")
    found = find_java({"JAVA_HOME": str(chosen), "PATH": str(on_path / "bin")}, ())
    assert (found.home, found.major) == (chosen, 21)


def test_an_unsupported_java_is_passed_over_for_a_supported_one_in_the_usual_folders(tmp_path: Path) -> None:
    newest = _home(tmp_path / "jvm" / "25", "25.0.1")
    _home(tmp_path / "jvm" / "8", "1.8.0_402")
    right = _home(tmp_path / "jvm" / "temurin-17", "17.0.15")
    found = find_java({"JAVA_HOME": str(newest), "PATH": ""}, (f"{tmp_path}/jvm/*",))
    assert (found.home, found.major) == (right, 17)


def test_a_home_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    home = _home(tmp_path / "j", None, says='openjdk version "21.0.2" 2024-01-16')
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}, ()).major == 21


def test_only_unsupported_ones_are_refused_in_one_sentence_that_names_them(tmp_path: Path) -> None:
    home = _home(tmp_path / "25", "25.0.1")
    with pytest.raises(Refused) as refusal:
        find_java({"JAVA_HOME": str(home), "PATH": ""}, ())
    assert refusal.value.ref == "java-not-supported"
    assert "need Java 17 or 21, found 25 (" in refusal.value.what
    assert "\n" not in refusal.value.what


def test_no_java_at_all_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="found no Java at all"):
        find_java({"PATH": str(tmp_path)}, ())
