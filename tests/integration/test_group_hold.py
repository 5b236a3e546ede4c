"""Members at the wrong cluster, on real brokers:

a promoted group is held on the source, and stray members are named.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, read_positions, write_positions
from kmigrate.cluster.groups import GroupHold, group_members, without_hold
from kmigrate.sandbox.kafka import KafkaCluster
from tests.bench.load import make_topic
from tests.conftest import Pair
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.mirror_world import settings_of

NEW = {"group.protocol": "consumer"}


def with_client(cluster: KafkaCluster, work: Callable[[ClusterClient], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with ClusterClient(settings_of("c", cluster.bootstrap)) as client:
            await client.refresh([])
            await work(client)

    asyncio.run(scene())


@contextmanager
def member(bootstrap: str, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    """Run a consumer that came through no router."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "forgotten",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def first_word(consumer: Consumer, seconds: float = 20.0) -> str:
    """Return the value of the first record, or the first error."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            heard = consumer.poll(0.2)
        except KafkaException as error:
            return str(error)
        if heard is not None:
            said = heard.error()
            return said.str() if said is not None else (heard.value() or b"").decode()
    return ""


def fill(bootstrap: str, topic: str, records: int = 10) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(records):
        producer.produce(topic, f"record {number}", partition=0)
    assert producer.flush(20) == 0


@pytest.mark.parametrize(("side", "settings"), [("source", {}), ("target", {}), ("target", NEW)])
def test_a_held_group_refuses_members_and_commits_until_it_is_released(
    side: str, settings: dict[str, str], clusters: Pair, unique_name: Callable[[str], str]
) -> None:
    cluster = clusters.source if side == "source" else clusters.target
    topic, group = unique_name("held"), unique_name("group")
    make_topic(cluster.bootstrap, topic, 1)
    fill(cluster.bootstrap, topic)
    with member(cluster.bootstrap, group, topic, **settings) as consumer:
        assert first_word(consumer) == "record 0"
        consumer.commit(asynchronous=False)

    async def allowed() -> None: ...

    async def work(client: ClusterClient) -> None:
        committed = {(topic, 0): CommittedOffset(1, "")}
        assert await read_positions(client, group) == committed
        hold = GroupHold(client, group)
        assert await hold.take() == 0
        assert hold.session_s == 1800
        assert await GroupHold(client, group).take() == 0, "another process takes the placeholder over"
        members = await group_members(client, group)
        assert (len(members), without_hold(members)) == (1, ())
        for protocol in ({}, NEW) if side == "target" else ({},):
            with member(cluster.bootstrap, group, topic, **protocol) as consumer:
                said = await asyncio.to_thread(first_word, consumer)
            assert "Inconsistent group protocol" in said or "group id does not exist" in said, (protocol, said)
        late = {(topic, 0): CommittedOffset(7, "")}
        assert await write_positions(client, group, late, allowed) == {(topic, 0): "UNKNOWN_MEMBER_ID"}
        assert await read_positions(client, group) == committed
        await hold.release()
        assert await group_members(client, group) == ()
        with member(cluster.bootstrap, group, topic, **settings) as consumer:
            assert await asyncio.to_thread(first_word, consumer) == "record 1"
            assert [each.client_id for each in await group_members(client, group)] == ["forgotten"]

    with_client(cluster, work)


@pytest.fixture(scope="module")
def migration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    with fresh_migration(tmp_path_factory.mktemp("misplaced"), "[promote]\nauto_settle_s = 2.0\n") as run:
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        yield run


def with_a_group(run: Migration, topic: str, group: str) -> None:
    run.make_topic(topic, 1)
    fill(run.source.bootstrap, topic)
    run.make_group(group, topic)
    run.does("topic", "mirror", topic)
    run.does("group", "mirror", group, "--mode", "hold")


def status_of(run: Migration, group: str) -> dict[str, Any]:
    (found,) = (each for each in run.does("status")["groups"] if each["group"] == group)
    return dict(found)


def topics_of(run: Migration) -> dict[str, dict[str, Any]]:
    return {each["topic"]: each for each in run.does("status")["topics"]}


def refs(told: Any) -> list[tuple[str, str]]:
    return [(each["level"], each["ref"]) for each in told["findings"] if "member" in each["ref"]]


def test_a_member_at_the_targets_own_address_keeps_its_group_from_being_promoted_and_is_named(
    migration: Migration,
) -> None:
    run = migration
    with_a_group(run, "early", "early-readers")
    wait_until(lambda: topics_of(run)["early"]["lag"] == 0, 30, "the copy")
    with member(run.target.bootstrap, "early-readers", "early") as consumer:
        assert first_word(consumer) == "record 0"
        told = status_of(run, "early-readers")
        assert [(each["cluster"], each["client_id"]) for each in told["misplaced"]] == [("target", "forgotten")]
        refused = run.cli("group", "promote", "early-readers", "--plan")
        assert (refused.code, refused.told["error"]) == (3, "member-on-target")
        assert "forgotten at /127.0.0.1" in refused.told["what"]
        wait_until(lambda: '"early-readers"' in written(run), 20, "the controller to record the member")
    told = status_of(run, "early-readers")
    assert (told["misplaced"], [each["client_id"] for each in told["misplaced_before"]]) == ([], ["forgotten"])
    assert refs(run.does("group", "promote", "early-readers", "--plan")) == [("warn", "member-on-target")]
    run.does("group", "promote", "early-readers", "--yes")


def test_a_member_at_a_router_waits_in_silence_and_reads_on_after_the_promote(migration: Migration) -> None:
    """The router holds each join for half of the member's rebalance timeout: six seconds make two joins."""
    run = migration
    with_a_group(run, "silent", "silent-readers")
    joins = [0]

    def look(statistics: str) -> None:
        joins.append(sum(broker["req"].get("JoinGroup", 0) for broker in json.loads(statistics)["brokers"].values()))

    waits = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000, "statistics.interval.ms": 200, "stats_cb": look}
    with member(run.routers, "silent-readers", "silent", **waits) as consumer:
        assert first_word(consumer, 8.0) == ""
        assert status_of(run, "silent-readers")["router_members"] == 1
        assert 2 <= joins[-1] <= 4
        run.does("group", "promote", "silent-readers", "--yes")
        assert first_word(consumer) == "record 0"


def test_a_member_that_comes_back_to_the_source_is_kept_out_or_named(migration: Migration) -> None:
    run = migration
    with_a_group(run, "late", "late-readers")
    run.does("group", "promote", "late-readers", "--yes")
    wait_until(lambda: status_of(run, "late-readers")["held"], 20, "the hold on the source's group")
    assert status_of(run, "late-readers")["source_members"] == []
    with member(run.source.bootstrap, "late-readers", "late") as consumer:
        assert "Inconsistent group protocol" in first_word(consumer)

    run.kill("controller")
    config = run.config.read_text()
    run.config.write_text(config + "hold_source_groups = false\n")
    try:
        release(run, "late-readers")
        run.start("controller")
        with member(run.source.bootstrap, "late-readers", "late") as consumer:
            assert first_word(consumer) == "record 0"
            told = status_of(run, "late-readers")
            assert [(each["cluster"], each["client_id"]) for each in told["misplaced"]] == [("source", "forgotten")]
            refused = run.cli("promote", "late", "--yes")
            assert (refused.code, refused.told["error"]) == (3, "member-on-source"), refused
            accepted = run.does("promote", "late", "--plan", "--accept-misplaced-members")
            assert refs(accepted) == [("warn", "member-on-source")]
            wait_until(lambda: '"late-readers"' in written(run), 20, "the controller to record the member")
        told = status_of(run, "late-readers")
        assert told["late_commits"] == {"late": {"0": 1}}, "a consumer commits when it is closed"
        assert [each["client_id"] for each in told["misplaced_before"]] == ["forgotten"]
        mirrored = [name for name, topic in topics_of(run).items() if topic["phase"] == "mirroring"]
        run.does("promote", *mirrored, "--yes")
        findings = run.cli("link", "finish", "blue", "--plan", "--delivery-timeout", "0").told["findings"]
        assert {"member-on-source", "commits-on-source"} <= {each["ref"] for each in findings}
    finally:
        run.config.write_text(config)


def test_a_group_that_holds_is_promoted_by_itself_once_its_last_member_waits_at_a_router(migration: Migration) -> None:
    run = migration
    run.make_topic("alone", 1)
    fill(run.source.bootstrap, "alone")
    run.does("topic", "mirror", "alone")
    with member(run.source.bootstrap, "auto-readers", "alone") as direct:
        assert first_word(direct) == "record 0"
        run.does("group", "mirror", "auto-readers", "--mode", "hold", "--auto")
        with member(run.routers, "auto-readers", "alone") as moved:
            assert first_word(moved, 1) == ""
            wait_until(lambda: "forgotten" in status_of(run, "auto-readers")["promote_waits_for"], 20, "its name")
            direct.close()
            assert first_word(moved, 60) == "record 1", "the direct member has committed the record before"
    (group,) = (each for each in run.does("group", "list")["groups"] if each["group"] == "auto-readers")
    assert (group["phase"], group["asked_automatically"]) == ("promoted", True)


def release(run: Migration, group: str) -> None:
    with_client(run.source, lambda client: GroupHold(client, group).release())


def written(run: Migration) -> str:
    """Return all records of sightings in the state log, as a foreign consumer reads them."""
    consumer = Consumer({"bootstrap.servers": run.target.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("__kmigrate_state", 0, 0)])
    found: list[str] = []
    _, end = consumer.get_watermark_offsets(TopicPartition("__kmigrate_state", 0), 10)
    try:
        while consumer.position([TopicPartition("__kmigrate_state", 0)])[0].offset < end:
            heard = consumer.poll(1.0)
            if heard is not None and heard.error() is None:
                found.append((heard.value() or b"").decode())
    finally:
        consumer.close()
    return "\n".join(each for each in found if "MisplacedRecord" in each)
