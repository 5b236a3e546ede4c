"""Groups that follow, on real clusters: members that have moved and members that have not are in the same group."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient

from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec
from kmigrate.sandbox.kafka import TARGET_VERSION
from kmigrate.sandbox.traffic import Traffic
from tests.emptied import HASTY
from tests.integration.command_line import Call
from tests.integration.migration import Clients, Migration, fresh_migration, wait_until


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 2.0\nauto_settle_s = 3.0\n"
    with fresh_migration(tmp_path, settings) as run:
        yield run


def members(run: Migration) -> tuple[int, int]:
    """Return the only group's number of members on the source, and how many of them came through no router."""
    (group,) = run.does("status")["groups"]
    return len(group["source_members"]), group["direct_members"]


def waits_for(run: Migration) -> str:
    """Return why the only group is not promoted yet."""
    (group,) = run.does("status")["groups"]
    return str(group["promote_waits_for"])


def withheld(run: Migration) -> list[tuple[str, int, str]]:
    """Return the only group's topics that are assigned to members at routers and withheld from them."""
    (group,) = run.does("status")["groups"]
    return [(each["topic"], each["members"], each["ref"]) for each in group["withheld"]]


def listed(run: Migration) -> list[tuple[str, str]]:
    """Return all groups and their states, as librdkafka gets them from the router."""
    admin = AdminClient({"bootstrap.servers": run.routers})
    told = admin.list_consumer_groups().result(20)
    assert not told.errors
    return [(group.group_id, group.state.name) for group in told.valid]


def kinds(run: Migration) -> list[ConsumerGroupType]:
    """Return the types of all groups on the source."""
    admin = AdminClient({"bootstrap.servers": run.source.bootstrap})
    return [group.type for group in admin.list_consumer_groups().result(20).valid]


def test_moved_and_unmoved_members_share_a_group_until_its_promote_and_after_its_rollback(migration: Migration) -> None:
    run = migration
    run.make_topic("orders", 6)
    run.make_topic("quiet", 1)
    fresh = {"metadata_max_age_ms": 3000}
    clients: list[ClientSpec] = [
        ProducerSpec("p-rd", "librdkafka", "orders", 100.0),
        # kafka-python 2.0.2 asks for metadata in version 0 and 1, and finds out the broker's version by such requests.
        ProducerSpec("p-old", "kafka-python-2", "orders", 50.0, idempotent=False),
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
    run.does("group", "mirror", "billing", "--auto")
    wait_until(lambda: "1 member(s) on the source: c-left" in waits_for(run), 30, "the direct member to be named")
    traffic.roll("c-left", run.routers)
    wait_until(lambda: run.does("status")["groups"][0]["target_members"] == 3, 60, "all members on the target")
    (group,) = run.does("group", "list")["groups"]
    assert (group["phase"], group["asked_automatically"]) == ("promoted", True)
    run.does("group", "rollback", "billing", "--yes")
    wait_until(lambda: members(run) == (3, 0), 60, "all members in the source's group again, through the router")
    run.consumers_go_on()
    (group,) = run.does("group", "list")["groups"]
    assert (group["phase"], group["auto"]) == ("mirrored", False), "a person has decided"
    run.does("group", "promote", "billing", "--yes")
    wait_until(lambda: run.does("status")["groups"][0]["target_members"] == 3, 60, "all members on the target again")
    run.does("promote", "orders", "--yes")
    verdict = run.judge("orders")
    assert verdict.count("group_rereads") == 0, verdict.named
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"


NEW = {"group.protocol": "consumer"}
"""Setting that makes a client use the new protocol (KIP-848)."""


@contextmanager
def newer_migration(folder: Path, config: dict[str, str]) -> Iterator[Migration]:
    """Start a migration from a cluster that serves groups of the new protocol."""
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 2.0\n"
    with fresh_migration(folder, settings, source_version=TARGET_VERSION, config=config) as run:
        yield run


def begin(run: Migration, *consumers: ConsumerSpec) -> Traffic:
    """Have a group of consumers follow; all consumers but the last, and the producer, have moved."""
    traffic = with_a_group(run, "follow", *consumers)
    for client in ("producers", *(each.name for each in consumers[:-1])):
        traffic.roll(client, run.routers)
    count = len(consumers)
    wait_until(lambda: members(run) == (count, 1), 30, "all members but one through the router")
    return traffic


def with_a_group(run: Migration, mode: str, *consumers: ConsumerSpec) -> Traffic:
    """Start a group of consumers, mirrored, and a producer: all of them at the source."""
    run.make_topic("orders", 6)
    producer = ProducerSpec("p-rd", "librdkafka", "orders", 200.0)
    traffic = run.traffic = Clients.create(run.folder / "traffic", [producer, *consumers], tied=True)
    newer = [each.name for each in consumers if NEW.items() <= each.settings.items()]
    for name in newer:
        traffic.start(run.source.bootstrap, name)
    # While a classic group has its first rebalance, a source's answers make members of the new protocol end (C17).
    wait_until(lambda: not newer or kinds(run) == [ConsumerGroupType.CONSUMER], 20, "a group of the new protocol")
    traffic.start(run.source.bootstrap)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "orders")
    run.does("group", "mirror", "billing", "--mode", mode)
    assert [group["mode"] for group in run.does("group", "list")["groups"]] == [mode]
    return traffic


def all_promoted(run: Migration, count: int) -> None:
    """Run both promotes, and check the judge's verdict."""
    run.does("group", "promote", "billing", "--yes")
    all_go_on(run, count)


def all_go_on(run: Migration, count: int) -> None:
    """After the group's promote, run the topic's promote, and check the judge's verdict."""
    wait_until(lambda: run.does("status")["groups"][0]["target_members"] == count, 30, "all members on the target")
    run.does("promote", "orders", "--yes")
    verdict = run.judge("orders")
    assert verdict.count("group_rereads") == 0, verdict.named
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"


def test_members_of_both_protocols_share_a_group_until_its_promote(tmp_path: Path) -> None:
    """The group has both families of clients that speak the new protocol, and a family that does not.

    The target's first rebalance takes a while, as with a broker's default.
    """
    with newer_migration(tmp_path, HASTY) as run:
        traffic = begin(
            run,
            ConsumerSpec("c-rd", "librdkafka", "billing", ("^order.*",), NEW),
            ConsumerSpec("c-java", "java", "billing", ("orders",), NEW),
            ConsumerSpec("c-aio", "aiokafka", "billing", ("orders",), {"metadata_max_age_ms": 3000}),
            ConsumerSpec("c-left", "librdkafka", "billing", ("orders",), NEW),
        )
        wait_until(lambda: listed(run) == [("billing", "STABLE")], 20, "a client of the router to see the group")
        traffic.roll("c-left", run.routers)
        wait_until(lambda: members(run) == (4, 0), 30, "all members through the router")
        run.make_topic("order-audit", 1)  # The source assigns this topic to the member with a pattern.
        unread = ("order-audit", 1, "topic-not-mirrored")
        wait_until(lambda: withheld(run) == [unread], 40, "what nobody reads to be told")
        warned = run.does("group", "promote", "billing", "--plan")["findings"]
        assert "topic order-audit" in next(each["what"] for each in warned if each["ref"] == unread[2]), warned
        run.does("topic", "mirror", "order-audit")
        wait_until(lambda: withheld(run) == [], 30, "it to be over")
        all_promoted(run, 4)


def test_members_of_both_protocols_that_wait_for_their_group_all_come_to_it(tmp_path: Path) -> None:
    """Members of both protocols that wait for a held group all join the group at its promote.

    The router already holds the requests of the new protocol's members, so they come first and the classic member
    joins.
    """
    with newer_migration(tmp_path, HASTY) as run:
        traffic = with_a_group(
            run,
            "hold",
            ConsumerSpec("c-rd", "librdkafka", "billing", ("orders",), NEW),
            ConsumerSpec("c-java", "java", "billing", ("orders",), NEW),
            ConsumerSpec("c-aio", "aiokafka", "billing", ("orders",), {"metadata_max_age_ms": 3000}),
        )
        for client in ("producers", "c-aio", "c-rd", "c-java"):
            traffic.roll(client, run.routers)
        wait_until(lambda: members(run)[0] == 0, 60, "all members to have left the source")
        all_promoted(run, 3)


@pytest.mark.soak
def test_members_that_have_let_go_go_on_where_a_promote_is_given_up(tmp_path: Path) -> None:
    """A member does not answer, so the others wait without partitions; then a member returns to the source itself."""
    with newer_migration(tmp_path, {}) as run:
        traffic = begin(
            run,
            ConsumerSpec("c-rd", "librdkafka", "billing", ("orders",), {**NEW, "group.instance.id": "rd"}),
            ConsumerSpec("c-java", "java", "billing", ("orders",), NEW),
            ConsumerSpec("c-left", "librdkafka", "billing", ("orders",), NEW),
        )
        traffic.roll("c-left", run.routers)
        wait_until(lambda: members(run) == (3, 0), 30, "all members through the router")
        traffic.pause("c-java")
        call = Call(["group", "promote", "billing", "--yes", "--config", str(run.config), "--json"])
        wait_until(lambda: run.does("status")["groups"][0]["phase"] == "promoting", 30, "the promote to begin")
        time.sleep(6)  # This is longer than the time between two heartbeats.
        traffic.roll("c-left", run.source.bootstrap)
        done = call.end(60)
        assert done is not None and done[0] == 1 and "members-on-source" in done[1], done
        traffic.resume("c-java")
        time.sleep(6)
        traffic.roll("c-left", run.routers)
        wait_until(lambda: members(run) == (3, 0), 30, "all members through the router")
        all_promoted(run, 3)


@pytest.mark.soak
@pytest.mark.parametrize("after_s", [1.0, 5.5])
def test_a_router_may_die_while_members_let_go(tmp_path: Path, after_s: float) -> None:
    """The members come to the next router in the middle of the promote, some without partitions."""
    with newer_migration(tmp_path, {}) as run:
        traffic = begin(
            run,
            ConsumerSpec("c-rd", "librdkafka", "billing", ("orders",), NEW),
            ConsumerSpec("c-java", "java", "billing", ("orders",), {**NEW, "group.instance.id": "java"}),
        )
        traffic.roll("c-java", run.routers)
        wait_until(lambda: members(run) == (2, 0), 30, "all members through the router")

        def during() -> None:
            wait_until(lambda: run.does("status")["groups"][0]["phase"] == "promoting", 30, "the promote to begin")
            time.sleep(after_s)
            run.kill("router")
            run.start("router")

        run.again("group", "promote", "billing", "--yes", during=during)
        all_go_on(run, 2)


@contextmanager
def polled(*consumers: Consumer) -> Iterator[None]:
    """Poll consumers by turns in a thread, which takes part in their rebalances."""
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            for each in consumers:
                each.poll(0.1)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        assert not thread.is_alive()


def test_a_commit_behind_a_join_that_waits_does_not_keep_a_group_from_its_promote(migration: Migration) -> None:
    """A broker reads no further on a connection while a JoinGroup on that connection waits for the other members."""
    run = migration
    for topic in ("orders", "more"):
        run.make_topic(topic, 2)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "orders", "more")
    run.make_group("billing", "orders")
    run.does("group", "mirror", "billing", "--mode", "follow")
    settings = {
        "bootstrap.servers": run.routers,
        "group.id": "billing",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 300,
    }
    slow, eager = Consumer(settings), Consumer(settings)
    try:
        slow.subscribe(["orders"])
        eager.subscribe(["orders"])

        def assigned() -> list[int]:
            return [len(each.assignment()) for each in (slow, eager)]

        with polled(slow, eager):
            wait_until(lambda: assigned() == [1, 1], 30, lambda: f"a partition for each member: {assigned()}")
        (mine,) = eager.assignment()
        eager.subscribe(["orders", "more"])  # The member joins anew, and waits for the member that does not poll.
        deadline = time.monotonic() + 20
        while listed(run) != [("billing", "PREPARING_REBALANCING")]:
            assert time.monotonic() < deadline
            eager.poll(0.1)
        time.sleep(1)
        eager.commit(offsets=[TopicPartition("orders", mine.partition, 0)], asynchronous=True)
        with run.doing("group", "promote", "billing", "--yes"), polled(eager):
            wait_until(lambda: run.does("status")["groups"][0]["phase"] == "promoting", 20, "the promote to begin")
            slow.poll(0.1)  # From now on the router holds the join of this member.
        with polled(slow, eager):
            wait_until(lambda: run.does("status")["groups"][0]["target_members"] == 2, 30, "both members on the target")
    finally:
        slow.close()
        eager.close()
