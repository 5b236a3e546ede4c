"""The settings with which a session starts, and the order in which settings override each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmigrate.spark.session import CONNECTOR, session_settings

JARS = [Path("/a.jar"), Path("/b.jar")]


def test_jars_that_are_given_are_on_the_class_path_of_a_local_session() -> None:
    made = session_settings("local[2]", JARS, {})
    assert made["spark.driver.extraClassPath"] == "/a.jar:/b.jar"
    assert "spark.jars.packages" not in made


def test_they_are_sent_to_the_executors_of_any_other() -> None:
    assert session_settings("yarn", JARS, {})["spark.jars"] == "/a.jar,/b.jar"


@pytest.mark.parametrize("name", ["spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"])
def test_nothing_is_resolved_where_the_settings_name_jars_themselves(name: str) -> None:
    made = session_settings("local[2]", (), {name: "/mine.jar"})
    assert {each: made[each] for each in made if "jars" in each or "ClassPath" in each} == {name: "/mine.jar"}


def test_without_jars_the_connector_is_resolved_by_its_name() -> None:
    assert session_settings("local[2]", (), {})["spark.jars.packages"] == CONNECTOR


def test_a_session_that_reads_no_kafka_needs_no_connector() -> None:
    assert not {each for each in session_settings("yarn", (), {}, connector=False) if "jars" in each}


@pytest.mark.parametrize(
    ("master", "here"),
    [("local[*]", True), ("spark://127.0.0.1:7077", True), ("spark://spark-1:7077", False), ("yarn", False)],
)
def test_the_driver_hides_on_the_loopback_only_where_executors_are_on_this_machine(master: str, here: bool) -> None:
    assert ("spark.driver.host" in session_settings(master, (), {})) is here


@pytest.mark.parametrize(
    ("master", "memory"),
    [
        ("local", "896m"),
        ("local[2]", "1024m"),
        ("local[16]", "2816m"),
        ("local[2,3]", "1024m"),
        ("local-cluster[2,1,1024]", "1g"),
        ("spark://127.0.0.1:7077", "1g"),
    ],
)
def test_the_heap_grows_with_the_tasks_that_the_driver_runs_at_once(master: str, memory: str) -> None:
    assert session_settings(master, (), {})["spark.driver.memory"] == memory


@pytest.mark.parametrize(
    ("quota", "memory"),
    [(None, "1792m"), ("max 100000", "1792m"), ("450000 100000", "1408m"), ("50000 100000", "896m")],
)
def test_every_core_that_the_jvm_finds_has_its_heap(
    quota: str | None, memory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A JVM under a quota runs few tasks: a heap for all cores of the machine would end its container."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("kmigrate.spark.session._CPU_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n", encoding="ascii")
    assert session_settings("local[*]", (), {})["spark.driver.memory"] == memory


def test_what_the_caller_says_counts() -> None:
    assert session_settings("local[2]", JARS, {"spark.driver.memory": "9g"})["spark.driver.memory"] == "9g"
