"""The target is killed while clients write: the source's report is compared with what librdkafka reads there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.history import read_history
from tests.integration.migration import PATIENT, Migration, fresh_migration, wait_until

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 3
BEFORE, AFTER = 300, 100


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 1.0\n") as run:
        yield run


def lost(run: Migration, *words: str) -> dict[str, Any]:
    """Return what `rollback --target-lost` prints, a report or a refusal."""
    told: dict[str, Any] = run.cli("rollback", "--target-lost", *words).told
    return told


def refused_as(run: Migration, ref: str) -> None:
    wait_until(lambda: lost(run).get("error") == ref, 30, lambda: f"{ref}: {lost(run)}\n{run.logs()}")


def promoted(run: Migration) -> None:
    """Promote a topic with live clients, and its group; the copy back goes on."""
    run.make_topic(TOPIC, PARTITIONS)
    traffic = run.run_clients(
        [ProducerSpec("p-rd", "librdkafka", TOPIC, 300.0), ConsumerSpec("c-rd", "librdkafka", GROUP, (TOPIC,))]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", TOPIC)
    run.does("group", "mirror", GROUP)
    traffic.roll("producers", run.routers)
    traffic.roll("consumers", run.routers)
    run.does("group", "promote", GROUP, "--yes")
    run.does("wait", "lag <= 1000", TOPIC)
    wait_until(lambda: run.cli("promote", TOPIC, "--yes", "--way-back").code == 0, 30, run.logs)
    assert run.topic_status(TOPIC)["way_back"] == "open"


def test_the_report_on_a_killed_target_agrees_with_the_source_and_with_the_acknowledgements(
    migration: Migration, tmp_path: Path
) -> None:
    """The mirror dies before the target, which takes more records: the source lacks records for certain."""
    run = migration
    promoted(run)
    refused_as(run, "target-not-lost")
    run.writers_go_on(BEFORE)
    wait_until(lambda: run.topic_status(TOPIC)["way_back_lag_seconds"] >= 0, 30, "status to show the lag in seconds")

    run.kill("mirror")
    run.writers_go_on(AFTER)
    for node in run.target.brokers:
        run.target.kill(node)
    refused_as(run, "router-answers")
    assert run.traffic is not None
    run.traffic.kill("all")
    for name in ("router", "controller"):
        run.kill(name)

    place = tmp_path / "lost.json"
    told = lost(run, "--out", str(place))
    assert "partitions" in told, (told, run.logs())
    assert json.loads(place.read_text(encoding="utf-8")) == told
    assert (told["link"], told["source"], told["targets"]) == ("blue", "source", ["target"])
    assert told["clients_bootstrap"] == run.source.bootstrap
    judge(run, told)
    (group,) = told["groups"]
    assert group["group"] == GROUP
    assert group["promoted_ms"] > 0
    assert set(group["offsets"]) == {TOPIC}


def judge(run: Migration, told: dict[str, Any]) -> None:
    """Compare the report with the source's records and with the acknowledgements that the producer got."""
    assert run.traffic is not None
    history = run.folder / "history.jsonl"
    run.traffic.write_history(history)
    acknowledged = {
        (event.partition, event.offset + number): event.t // 1_000_000
        for event in read_history(history)
        if (event.type, event.f) == ("ok", "send")
        for number in range(event.records)
    }
    at_source: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
    for record in read_topic(run.source.bootstrap, TOPIC):
        at_source[record.partition].add(record.offset)
    rows = {each["partition"]: each for each in told["partitions"]}
    assert set(rows) == set(at_source)
    missing = 0
    for partition, row in rows.items():
        assert row["state"] == "open"
        assert not row["foreign"]
        assert row["complete_to"] == row["source_end"] == max(at_source[partition], default=-1) + 1
        ours = {offset: at_ms for (where, offset), at_ms in acknowledged.items() if where == partition}
        assert {offset for offset in ours if offset < row["complete_to"]} <= at_source[partition]
        lacking = {offset: at_ms for offset, at_ms in ours.items() if offset >= row["complete_to"]}
        assert all(at_ms >= row["complete_ms"] for at_ms in lacking.values()), (row, lacking)
        missing += len(lacking)
    assert missing >= AFTER, "no mirror has copied these"
