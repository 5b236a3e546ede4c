"""Promotes that are taken back under live clients: nothing is lost, doubled or reordered, offsets stay identical."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from tests.integration.migration import PATIENT, Migration, assert_clean, fresh_migration, wait_until

TOPICS = ("orders", "bills")
GROUP = "billing"


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 1.0\n") as run:
        yield run


def begin(run: Migration) -> None:
    """Move clients of three families to a router, mirror both topics, and promote their group."""
    for topic in TOPICS:
        run.make_topic(topic, 3)
    run.run_clients(
        [
            ProducerSpec("p-rd", "librdkafka", "orders", 300.0),
            ProducerSpec("p-aio", "aiokafka", "orders", 100.0),
            ProducerSpec("p-java", "java", "bills", 300.0),
            ConsumerSpec("c-rd", "librdkafka", GROUP, TOPICS),
        ]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", *TOPICS)
    run.does("group", "mirror", GROUP)
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    run.does("group", "promote", GROUP, "--yes")
    run.does("wait", "lag <= 1000", *TOPICS)


def records(run: Migration, topic: str) -> tuple[list[FinalRecord], list[FinalRecord]]:
    return tuple(sorted(read_topic(each.bootstrap, topic)) for each in (run.source, run.target))  # type: ignore[return-value]


def promote(run: Migration) -> None:
    time.sleep(1.5)  # so that no write past the router is recent
    told = run.does("promote", *TOPICS, "--yes", "--way-back")
    found = [each for each in told["findings"] if each["ref"] in ("way-back", "no-way-back")]
    assert [each["ref"] for each in found] == ["way-back"] * 2, found
    status = run.does("status")["topics"]
    assert {(each["phase"], each["way_back"]) for each in status} == {("promoted", "open")}
    run.writers_go_on(100)
    run.consumers_go_on()


def roll_back(run: Migration, times: int) -> None:
    told = run.does("rollback", *TOPICS, "--yes")
    assert [(each["phase"], each["generation"]) for each in told["topics"]] == [("mirroring", times)] * 2
    assert all(0 <= each["fence_to_flip_ms"] < 10_000 for each in told["topics"]), told["topics"]
    run.writers_go_on(100)
    run.consumers_go_on()


def test_two_topics_go_to_the_target_and_back_twice_under_live_clients(migration: Migration) -> None:
    run = migration
    begin(run)
    for times in (1, 2):
        promote(run)
        roll_back(run, times)
    assert run.traffic is not None
    run.traffic.stop()
    wait_until(lambda: all(each["lag"] == 0 for each in run.does("status")["topics"]), 20, "the copy to be complete")
    for topic in TOPICS:
        source, target = records(run, topic)
        assert source == target, topic
    assert_clean(run, *TOPICS)
