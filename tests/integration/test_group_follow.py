"""Groups that follow, on real clusters: members that have moved and members that have not are one group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec
from kmigrate.sandbox.kafka import TARGET_VERSION
from tests.integration.migration import Migration, fresh_migration, wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 5.0\nstraggler_window_s = 2.0\n"
    with fresh_migration(tmp_path, settings) as run:
        yield run


def members(run: Migration) -> tuple[int, int]:
    """Of the only group: members on the source, and those of them that came through no router."""
    (group,) = run.does("status")["groups"]
    return len(group["source_members"]), group["direct_members"]


def listed(run: Migration) -> list[tuple[str, str]]:
    """All groups and their states, as librdkafka has them of the router."""
    admin = AdminClient({"bootstrap.servers": run.routers})
    told = admin.list_consumer_groups().result(20)
    assert not told.errors
    return [(group.group_id, group.state.name) for group in told.valid]


def test_moved_and_unmoved_members_share_a_group_until_its_promote(migration: Migration) -> None:
    run = migration
    run.make_topic("orders", 6)
    run.make_topic("quiet", 1)
    fresh = {"metadata_max_age_ms": 3000}
    clients: list[ClientSpec] = [
        ProducerSpec("p-rd", "librdkafka", "orders", 200.0),
        ConsumerSpec("c-rd", "librdkafka", "billing", ("orders",)),
        ConsumerSpec("c-aio", "aiokafka", "billing", ("orders",), fresh),
        ConsumerSpec("c-left", "librdkafka", "billing", ("orders", "quiet")),
    ]
    traffic = run.run_clients(clients)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "orders", "quiet")
    run.does("group", "mirror", "billing")
    assert [group["mode"] for group in run.does("group", "list")["groups"]] == ["follow"]
    traffic.roll("producers", run.routers)
    for name in ("c-rd", "c-aio"):
        traffic.roll(name, run.routers)
    wait_until(lambda: members(run) == (3, 1), 30, "two members through the router and one beside it")
    refused = run.cli("promote", "quiet", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "group-not-promoted"), "assigned, and nothing was committed yet"
    wait_until(lambda: listed(run) == [("billing", "STABLE")], 20, "a client of the router to see the group")
    refused = run.cli("group", "promote", "billing", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "members-on-source")
    traffic.roll("c-left", run.routers)
    wait_until(lambda: members(run) == (3, 0), 30, "all members through the router")
    run.does("group", "promote", "billing", "--yes")
    wait_until(lambda: run.does("status")["groups"][0]["target_members"] == 3, 30, "all members on the target")
    run.does("promote", "orders", "--yes")
    verdict = run.judge("orders")
    assert verdict.count("group_rereads") == 0, verdict.named
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"


@pytest.fixture
def newer_migration(tmp_path: Path) -> Iterator[Migration]:
    """From a cluster that serves groups of the new protocol."""
    settings = "[promote]\nfence_timeout_s = 5.0\nstraggler_window_s = 2.0\n"
    with fresh_migration(tmp_path, settings, source_version=TARGET_VERSION) as run:
        yield run


def test_members_of_the_new_protocol_share_a_group_until_its_promote(newer_migration: Migration) -> None:
    """KIP-848, with both families of clients that speak it, and one that does not: such a group has members of both."""
    run, new = newer_migration, {"group.protocol": "consumer"}
    run.make_topic("orders", 6)
    clients: list[ClientSpec] = [
        ProducerSpec("p-rd", "librdkafka", "orders", 200.0),
        ConsumerSpec("c-rd", "librdkafka", "billing", ("orders",), new),
        ConsumerSpec("c-java", "java", "billing", ("orders",), new),
        ConsumerSpec("c-aio", "aiokafka", "billing", ("orders",), {"metadata_max_age_ms": 3000}),
        ConsumerSpec("c-left", "librdkafka", "billing", ("orders",), new),
    ]
    traffic = run.run_clients(clients)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "orders")
    run.does("group", "mirror", "billing")
    assert [group["mode"] for group in run.does("group", "list")["groups"]] == ["follow"]
    traffic.roll("producers", run.routers)
    for name in ("c-rd", "c-java", "c-aio"):
        traffic.roll(name, run.routers)
    wait_until(lambda: members(run) == (4, 1), 30, "three members through the router and one beside it")
    wait_until(lambda: listed(run) == [("billing", "STABLE")], 20, "a client of the router to see the group")
    refused = run.cli("group", "promote", "billing", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "members-on-source")
    traffic.roll("c-left", run.routers)
    wait_until(lambda: members(run) == (4, 0), 30, "all members through the router")
    run.does("group", "promote", "billing", "--yes")
    wait_until(lambda: run.does("status")["groups"][0]["target_members"] == 4, 30, "all members on the target")
    run.does("promote", "orders", "--yes")
    verdict = run.judge("orders")
    assert verdict.count("group_rereads") == 0, verdict.named
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"
