"""Whole live migrations on real clusters: clean to the end, also when processes die in the middle of every step."""

from __future__ import annotations

import getpass
import json
import platform
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.integration.migration import Migration, assert_clean, fresh_migration, usual_clients, wait_until

_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    # The fence is given up before a router that stands still counts as gone (`router_silent_s`).
    settings = "[promote]\nfence_timeout_s = 6.0\nrouter_silent_s = 12.0\nstraggler_window_s = 3.0\n"
    settings += "[hooks]\nbefore_fence = ['cat']\nafter_flip = ['sh', '-c', 'echo $KMIGRATE_TOPIC$KMIGRATE_GROUP']\n"
    with fresh_migration(tmp_path, settings) as run:
        yield run


def begin(run: Migration, topic: str = "orders", group: str = "billing") -> None:
    run.make_topic(topic, 3)
    run.run_clients(usual_clients(topic, group))
    run.does("link", "create", "blue", "--source", "source", "--target", "target")


def test_a_live_migration_ends_clean(migration: Migration) -> None:
    run = migration
    begin(run)
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "orders")
    run.does("group", "mirror", "billing")
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    refused = run.cli("promote", "orders", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "group-not-promoted")
    refused = run.cli("group", "promote", "billing", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "members-on-source")
    run.traffic.roll("consumers", run.routers)
    run.does("group", "promote", "billing", "--yes")
    run.does("wait", "groups promoted", "billing")
    assert run.does("wait", "lag <= 1000", "orders", "--timeout", "60")["seconds"] < 60
    late = run.cli("wait", "topics promoted", "orders", "--timeout", "0.1")
    assert (late.code, late.told["error"]) == (5, "wait-timed-out")
    time.sleep(1)
    promoted = run.does("promote", "orders", "--no-way-back", "--yes")  # so that the source stays at the barrier
    time.sleep(2)  # This is the delivery timeout below.
    check_report(run, promoted["topics"][0])
    status = run.does("status")
    assert [(t["phase"], t["offsets"]) for t in status["topics"]] == [("promoted", "identical")], status
    (router,) = status["routers"]
    assert 0 < router["connections"] < router["limits"]["most_connections"], router
    again = run.does("promote", "orders", "--yes")
    assert again["applied"] in (True, False)
    refused = run.cli("link", "finish", "blue", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "retries-not-over")
    left = run.does("link", "finish", "blue", "--delivery-timeout", "2", "--yes")
    assert [each["leads"] for each in left["bootstraps"]] == ["router"]
    assert (left["told_real_addresses"], left["on_brokers"], left["routers_may_stop"]) == (True, 0, False)
    run.kill("router", signal.SIGTERM)
    assert run.engines["router"].wait(15) == 0
    stays = run.does("link", "finish", "blue", "--bootstrap", run.target.bootstrap)
    assert stays["routers_may_stop"] is True
    time.sleep(1)
    assert_clean(run, "orders")


def report_of(run: Migration, name: str) -> Any:
    """Return the newest report of a topic or group, which the controller writes two seconds after the end."""
    wait_until(lambda: run.cli("report", "show", name).code == 0, 10, f"the report of {name}")
    return run.does("report", "show", name)


def check_report(run: Migration, promoted: Any) -> None:
    """Compare the report of a promote with librdkafka's view of the source, and with the figures of the call."""
    report = report_of(run, "orders")
    asked = {TopicPartition("orders", partition): _LATEST for partition in range(3)}
    admin = AdminClient({"bootstrap.servers": run.source.bootstrap})
    ends = {key.partition: answer.result(30).offset for key, answer in admin.list_offsets(asked).items()}
    assert {int(partition): each["barrier"] for partition, each in report["partitions"].items()} == ends
    assert (report["outcome"], report["asked"]["action"], report["gaps"]) == ("done", "promote", [])
    assert report["asked"]["by"] == f"{getpass.getuser()}@{platform.node()}"
    assert report["asked"]["at_ms"] < report["fenced_ms"] <= report["barrier_ms"] <= report["ended_ms"]
    assert report["fence_ms"] == promoted["fence_to_flip_ms"]
    holds = {partition: each["pause_ms"] for partition, each in report["partitions"].items() if each["pause_ms"] >= 0}
    assert holds == promoted["router_hold_ms"]
    assert report["pause"]["max"] == max(holds.values())
    assert [(each["name"], each["in_flight"] >= 0) for each in report["routers"]] == [("router", True)]
    assert set(report["versions"]) == {"kmigrate", "source", "target"}
    before, after = report["hooks"]
    assert (before["point"], before["exit_code"], json.loads(before["output"])["name"]) == ("before-fence", 0, "orders")
    assert (after["point"], after["exit_code"], after["output"]) == ("after-flip", 0, "orders\n")
    listed = run.does("report", "list")["reports"]
    assert [(each["what"], each["name"], each["outcome"]) for each in listed] == [
        ("topic", "orders", "done"),
        ("group", "billing", "done"),
    ]
    of_group = report_of(run, "billing")
    assert of_group["positions"]["orders"].keys() <= {"0", "1", "2"}
    assert [each["output"] for each in of_group["hooks"]] == ["billing\n"]
    run.does("report", "export", "orders", "--out", str(run.folder / "orders.html"))


@pytest.mark.parametrize(
    "victim", ["router", *(pytest.param(other, marks=pytest.mark.soak) for other in ("mirror", "controller"))]
)
def test_a_kill_in_the_middle_of_every_step_leaves_it_clean(migration: Migration, victim: str) -> None:
    """kill -9 of an engine in each step, then a restart: the step, or its repetition, ends, and nothing is broken."""
    run = migration
    begin(run)
    run.start("mirror", "router", "controller")

    def strike(after: float) -> None:
        time.sleep(after)
        run.kill(victim)
        time.sleep(0.3)
        run.start(victim)

    with run.doing("topic", "mirror", "orders"):
        strike(0.2)
    run.does("group", "mirror", "billing")
    assert run.traffic is not None
    for number, name in enumerate(("p-rd", "p-aio", "c-rd", "c-aio")):
        run.traffic.roll(name, run.routers)
        if number % 2 == 0:
            strike(0.2)
    run.again("group", "promote", "billing", "--yes", during=lambda: strike(0.2))
    run.again("promote", "orders", "--yes", during=lambda: strike(0.3))
    time.sleep(2)
    # While the only router is away, no coordinator answers: librdkafka reports such a commit, and the commit is
    # repeated.
    assert_clean(run, "orders", but_for="commit _WAIT_COORD" if victim == "router" else None)


def test_a_promote_that_fails_after_the_fence_goes_back_and_harms_nobody(migration: Migration) -> None:
    """A router that stands still after its last presence cannot acknowledge the fence:

    the promote undoes the fence and names the router.
    """
    run = migration
    begin(run)
    run.start("mirror", "router-a", "controller")
    run.does("topic", "mirror", "orders")
    run.does("group", "mirror", "billing")
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    run.does("group", "promote", "billing", "--yes")
    run.start("router-b")
    wait_until(lambda: sum(r["alive"] for r in run.does("status")["routers"]) == 2, 30, "both routers to be heard of")
    run.kill("controller", signal.SIGSTOP)
    with ThreadPoolExecutor() as beside:
        promote = beside.submit(run.cli, "promote", "orders", "--yes")
        wait_until(lambda: run.does("status")["topics"][0]["phase"] == "promote-pending", 30, "the intent")
        # The controller's checks succeed, because the router's presence is recent, and the controller fences.
        run.kill("router-b", signal.SIGSTOP)
        run.kill("controller", signal.SIGCONT)
        failed = promote.result()
    assert failed.code == 1, failed
    assert "router b" in failed.told["what"] and "acknowledged" in failed.told["what"], failed
    assert run.does("status")["topics"][0]["phase"] == "mirroring"
    report = report_of(run, "orders")
    assert (report["outcome"], report["reason"].split(":")[0]) == ("given-up", "not-drained"), report
    run.kill("router-b", signal.SIGCONT)
    time.sleep(1)
    run.does("promote", "orders", "--postpone", "--deadline", "+10m", "--yes")
    wait_until(
        lambda: "until released" in run.does("status")["topics"][0]["promote_waits_for"], 10, "the postponed promote"
    )
    run.does("promote", "--release", "orders")
    run.does("wait", "topics promoted", "orders")
    time.sleep(2)
    assert_clean(run, "orders")


@pytest.mark.soak
def test_two_routers_share_the_clients_and_one_may_die(migration: Migration) -> None:
    run = migration
    begin(run)
    run.start("mirror", "router-a", "router-b", "controller")
    run.does("topic", "mirror", "orders")
    run.does("group", "mirror", "billing")
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    run.kill("router-a")
    time.sleep(2)
    run.start("router-a")
    run.does("group", "promote", "billing", "--yes")
    run.does("promote", "orders", "--yes")
    time.sleep(3)
    assert_clean(run, "orders")
