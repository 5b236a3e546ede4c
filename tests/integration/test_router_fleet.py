"""Several routers under load.

The routers are restarted one after the other, cut off from the state log, and run as processes at the same port.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import SCHEMA
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, KafkaCluster
from kmigrate.sandbox.ports import free_ports
from tests.fakes.relay import Relay
from tests.integration.command_line import program
from tests.integration.java_clients import java_command
from tests.integration.migration import assert_clean, fresh_migration, wait_until
from tests.integration.router_world import RouterProcess, Writer, link_between, quietly, router, start_router, values

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
JAVA_RECORDS = 1500


@contextmanager
def java_producer(bootstrap: str, topic: str, version: str = TARGET_VERSION) -> Iterator[subprocess.Popen[str]]:
    """Run Kafka's own idempotent producer; its values count up."""
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(JAVA_RECORDS),
        "--payload-monotonic", "--throughput", "200", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all",
        version=version,
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_routers_are_restarted_one_by_one_and_no_client_has_an_error(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topics = {name: unique_name(name) for name in ("rd", "java")}
    for topic in topics.values():
        for cluster in (source, target):
            make_topic(cluster, topic, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            for topic in topics.values():
                await world.put(topic, TopicPhase.MIRRORING)
            ports = free_ports(2)
            routers = [start_router(name, target, port) for name, port in zip("ab", ports, strict=True)]
            both = ",".join(each.bootstrap for each in routers)
            try:
                with Writer(both, topics["rd"], "w") as writer, java_producer(both, topics["java"]) as java:
                    await quietly(writer.until, 500)
                    for number, name in enumerate("ab"):
                        assert await quietly(routers[number].stop) == 0
                        await world.log.read_to_end()
                        assert [r.name for r in world.log.state.routers()] != ["a", "b"], "it left with a word"
                        routers[number] = start_router(name, target, ports[number])
                        await quietly(writer.until, writer.acked + 500)
                    out, _ = await quietly(java.communicate, None, 60)
                    writer.finish()
                assert world.log.state.strays() == []
            finally:
                for each in routers:
                    each.stop()
        assert (writer.errors, java.returncode) == ([], 0), out
        assert re.search(r"^[\w.]+Exception", out, re.MULTILINE) is None, out
        assert values(source.bootstrap, topics["rd"]) == writer.sent
        stored = {p: [int(v) for v in found] for p, found in values(source.bootstrap, topics["java"]).items()}
        assert sorted(number for found in stored.values() for number in found) == list(range(JAVA_RECORDS))
        assert all(found == sorted(found) for found in stored.values())

    asyncio.run(scenario())


def test_routers_are_restarted_one_by_one_and_no_group_and_no_transaction_is_disturbed(tmp_path: Path) -> None:
    """The topics and groups are promoted, or still served by the source."""
    with fresh_migration(tmp_path) as run:
        topics = ("kept", "moved")
        for topic in topics:
            run.make_topic(topic, 3)
            run.make_group(f"{topic}-group", topic)
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router-a", "router-b", "controller")
        run.does("topic", "mirror", *topics)
        run.does("group", "mirror", *(f"{topic}-group" for topic in topics))
        clients: list[ClientSpec] = []
        for topic in topics:
            clients += [
                TransactionalSpec(f"{topic}-till", topic, 100.0),
                ProducerSpec(f"{topic}-shop", "aiokafka", topic, 50.0),
                ConsumerSpec(f"c-{topic}-rd", "librdkafka", f"{topic}-group", (topic,)),
                ConsumerSpec(f"c-{topic}-aio", "aiokafka", f"{topic}-group", (topic,), {"metadata_max_age_ms": 3000}),
            ]
        run.run_clients(clients, at=run.routers)
        run.does("group", "promote", "moved-group", "--yes")
        run.does("promote", "moved", "--yes")
        for name in ("router-a", "router-b"):
            run.kill(name, signal.SIGTERM)
            assert run.engines[name].wait(15) == 0, run.logs()
            run.start(name)
            run.writers_go_on(100)
            # librdkafka puts a commit off once for a lost coordinator, and reports _WAIT_COORD at the second loss
            run.consumers_go_on()
        assert_clean(run, *topics, but_for="commit _WAIT_COORD")


def test_a_router_of_another_record_format_ends_at_once_and_everyone_else_goes_on(tmp_path: Path) -> None:
    with fresh_migration(tmp_path) as run:
        run.make_topic("orders", 3)
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router-a", "controller")
        run.does("topic", "mirror", "orders")
        words = ("router", "run", "--name", "b", "--config", str(run.config), "--json")
        newer = program(str(Path(__file__).with_name("newer_version.py")), str(SCHEMA + 1), *words)
        ended = subprocess.run(newer, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1, ended
        assert json.loads(ended.stdout.splitlines()[-1])["error"] == "older-state-log"
        assert run.does("promote", "orders", "--yes")["topics"][0]["phase"] == "promoted"


def test_clients_of_a_router_that_is_gone_for_good_go_on_at_another_of_which_they_were_never_told(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """Java before 4.0 forgets its bootstrap addresses. librdkafka would go back to the dead address alone (KIP-899)."""
    topic = unique_name("orphans")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            with router("other", target), router("home", target) as home:
                await world.fallbacks(home)
                with (
                    java_producer(home.bootstrap, topic, SOURCE_VERSION) as java,
                    Writer(home.bootstrap, topic, "w", {"metadata.recovery.strategy": "none"}) as writer,
                ):
                    await quietly(writer.until, 300)
                    await quietly(wait_until, lambda: java_wrote(source, topic), 30, "Java's first records")
                    home.kill()
                    out, _ = await quietly(java.communicate, None, 60)
                    await quietly(writer.until, writer.acked + 300)
                    writer.finish()
                assert java.returncode == 0 and re.search(r"^[\w.]+Exception", out, re.MULTILINE) is None, out
                assert writer.errors == []
                stored = values(source.bootstrap, topic)
                mine = {p: [v for v in found if v.startswith(b"w")] for p, found in stored.items()}
                assert mine == writer.sent
                numbers = {p: [int(v) for v in found if not v.startswith(b"w")] for p, found in stored.items()}
                assert sorted(n for found in numbers.values() for n in found) == list(range(JAVA_RECORDS))
                assert all(found == sorted(found) for found in numbers.values())

    asyncio.run(scenario())


def test_a_member_goes_on_at_another_router_though_its_coordinator_has_the_same_node_id_there(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """librdkafka keeps its coordinator's address while the node id stays, and every router shows the same node ids."""
    topic, group = unique_name("read"), unique_name("group")
    make_topic(target, topic)

    def commits(consumer: Consumer) -> bool:
        consumer.poll(0.1)
        with suppress(KafkaException):
            consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            return bool(consumer.assignment())
        return False

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("other", target), router("home", target) as home:
                await world.only_routers(2)
                await world.fallbacks(home)
                await quietly(wait_until, lambda: len(brokers(home)) == 2, 30, "the router to show the other router")
                settings = {"bootstrap.servers": home.bootstrap, "group.id": group, "enable.auto.commit": False}
                consumer = Consumer({**settings, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500})
                consumer.subscribe([topic])
                await quietly(wait_until, lambda: commits(consumer), 30, "the member to commit")
                home.kill()
                await quietly(wait_until, lambda: commits(consumer), 60, "the member to commit at the other router")
                consumer.close()

    asyncio.run(scenario())


def brokers(shown: RouterProcess) -> list[int]:
    """Return the node ids that a router shows to its clients."""
    return list(AdminClient({"bootstrap.servers": shown.bootstrap}).list_topics(timeout=20).brokers)


def java_wrote(source: KafkaCluster, topic: str) -> bool:
    return any(not value.startswith(b"w") for found in values(source.bootstrap, topic).values() for value in found)


def test_a_state_log_that_is_away_stops_no_producer_of_a_topic_that_is_merely_mirrored(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("outage")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)

    async def scenario() -> None:
        with Relay(target.bootstrap) as relay:
            async with link_between(source, target, unique_name("link")) as world:
                await world.put(topic, TopicPhase.MIRRORING)
                with (
                    router("r1", target, state_via=relay.address, log_level="ERROR") as running,
                    Writer(running.bootstrap, topic, "old") as old,
                ):
                    await quietly(old.until, 200)
                    relay.refuse()
                    await quietly(old.until, old.acked + 1000)
                    with Writer(running.bootstrap, topic, "new") as new:
                        await quietly(new.until, 500)
                        relay.heal()
                        fence = await world.fence(topic)
                        acks = await world.drained(topic, fence.fence_epoch)
                        await world.flip(topic, fence.fence_epoch, acks)
                        await quietly(new.until, new.acked + 200)
        assert old.errors == new.errors == []
        before, after = values(source.bootstrap, topic), values(target.bootstrap, topic)
        for writer in (old, new):
            mine = {p: [v for v in before[p] + after[p] if v.startswith(writer.name.encode())] for p in writer.sent}
            assert mine == writer.sent

    asyncio.run(scenario())


def test_several_processes_of_one_router_share_its_ports_and_one_that_dies_is_started_again(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    topic, name, port = unique_name("shared"), unique_name("edge"), free_ports(1)[0]
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)
    config = tmp_path / "kmigrate.toml"
    config.write_text(
        f'[clusters.source]\n"bootstrap.servers" = "{source.bootstrap}"\n'
        f'[clusters.target]\n"bootstrap.servers" = "{target.bootstrap}"\n[defaults]\ntarget = "target"\n',
        encoding="utf-8",
    )
    command = program("kmigrate", "router", "run", "--config", str(config), "--json")
    command += ["--name", name, "--port", str(port), "--workers", "2"]
    log = tmp_path / "router.log"

    def started() -> subprocess.Popen[bytes]:
        with log.open("wb") as sink:
            return subprocess.Popen(command, stdout=sink, stderr=sink)

    def said(event: str) -> list[dict[str, object]]:
        lines = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == event]

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            parent = started()
            try:
                await quietly(wait_until, lambda: len(said("router-listening")) == 2, 30, "both to listen")
                assert {str(each["bootstrap"]) for each in said("router-listening")} == {f"127.0.0.1:{port}"}
                writers = [Writer(f"127.0.0.1:{port}", topic, f"w{n}", {"log_level": 0}) for n in range(6)]
                with writers[0], writers[1], writers[2], writers[3], writers[4], writers[5]:
                    for writer in writers:
                        await quietly(writer.until, 100)
                    os.kill(int(str(said("worker-started")[0]["pid"])), signal.SIGKILL)
                    await quietly(wait_until, lambda: len(said("router-listening")) == 3, 30, "another in its place")
                    for writer in writers:
                        await quietly(writer.until, writer.acked + 100)
                        writer.finish()
                names = [each.name for each in world.log.state.routers()]
                assert names == [f"{name}-1", f"{name}-2"]
                parent.terminate()
                assert await quietly(parent.wait, 30) == 0, log.read_text(encoding="utf-8")
                await world.log.read_to_end()
                assert world.log.state.routers() == []
                assert [len(stray.instances) for stray in world.log.state.strays()] == [1], "the one that was killed"
            finally:
                parent.kill()
                parent.wait()
        stored = values(source.bootstrap, topic)
        for writer in writers:
            assert writer.errors == []
            mine = {p: [v for v in stored[p] if v.startswith(b"%s-" % writer.name.encode())] for p in writer.sent}
            assert mine == writer.sent

    asyncio.run(scenario())


def test_it_takes_a_port_to_share_one() -> None:
    command = [sys.executable, "-m", "kmigrate", "router", "run", "--workers", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "workers-need-a-port")
