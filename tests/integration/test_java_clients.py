"""Java's own clients through the router, on real clusters, from before a promote to after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kmigrate.kafka_jars.java import find_java
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.java_clients import SOURCES, JavaProgram, JavaReader
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.positions import commit_positions
from tests.integration.router_world import Writer, link_between, quietly, router

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 2


@pytest.fixture
def migration(tmp_path: Path, brokers: int) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 1.0\n"
    with fresh_migration(tmp_path, settings, brokers) as run:
        yield run


def begun(cluster: KafkaCluster, group: str, topic: str, positions: Sequence[int] = (0,) * PARTITIONS) -> None:
    """Make a group without members, with these committed offsets."""
    parts = [TopicPartition(topic, index, position) for index, position in enumerate(positions)]
    commit_positions(cluster.client(), group, parts)


def committed(cluster: KafkaCluster, group: str, topic: str) -> list[int]:
    """Return a group's committed offsets, as librdkafka gets them."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        parts = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return [part.offset for part in consumer.committed(parts, 30)]
    finally:
        consumer.close()


def stored(cluster: KafkaCluster, topic: str) -> list[list[FinalRecord]]:
    """Return what a reader of committed records gets, by partition."""
    found: list[list[FinalRecord]] = [[] for _ in range(PARTITIONS)]
    for record in read_topic(cluster.bootstrap, topic):
        found[record.partition].append(record)
    return found


def values(records: list[FinalRecord]) -> list[bytes]:
    return [record.value or b"" for record in records]


@dataclass
class Applications:
    """Java programs behind the router:

    copiers read, process and write in transactions, readers read the copiers' output.
    """

    run: Migration
    copiers: list[JavaProgram]
    readers: list[JavaReader]
    transactions: int

    def start(self, stack: ExitStack) -> None:
        java = find_java()
        if not (java.home / "bin" / "javac").is_file():
            pytest.skip(f"{java.home} is no JDK, which compiles source files")
        settings = self.run.folder / "readers.properties"
        settings.write_text("isolation.level=read_committed\n", encoding="utf-8")
        for number, copier in enumerate(self.copiers):
            stack.enter_context(copier)
            words = (self.run.routers, "copy", f"copy-{number}", "in", "out")
            copier.run(SOURCES / "ReadProcessWrite.java", *words)
        for reader in self.readers:
            stack.enter_context(reader)
            reader.start(self.run.routers, "out", "readers", "--command-config", str(settings))

    def go_on(self) -> None:
        """Wait until each copier has committed `transactions` more transactions."""
        for each in self.copiers:
            each.until("committed", each.said.count("committed") + self.transactions, 150)

    @property
    def read(self) -> list[tuple[int, int, bytes]]:
        return sorted(record for reader in self.readers for record in reader.records)

    def no_errors(self) -> None:
        """A transaction that was overtaken by its group's promote is aborted and repeated, as after any rebalance."""
        for copier in self.copiers:
            assert "died" not in copier.said and "ended" in copier.said, copier.said
            aborted = [line for line in copier.said.splitlines() if line.startswith("aborted")]
            assert all("CommitFailedException" in line for line in aborted), aborted
        for reader in self.readers:
            assert (reader.failed_commits, reader.complaints) == ([], [])


@pytest.mark.parametrize(
    ("brokers", "copiers", "readers", "transactions"),
    [(1, 1, 1, 10), pytest.param(3, 2, 2, 100, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
)
def test_java_applications_read_and_write_in_transactions_and_others_read_on_through_every_promote(
    migration: Migration, brokers: int, copiers: int, readers: int, transactions: int
) -> None:
    run = migration
    # A client's connections lead to different brokers, and to different processes.
    run.workers = 1 if brokers == 1 else 2
    for topic in ("in", "out"):
        run.make_topic(topic, PARTITIONS)
    begun(run.source, "copy", "in")
    begun(run.source, "readers", "out")
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "in", "out")
    run.does("group", "mirror", "copy", "readers", "--mode", "follow")
    programs = Applications(
        run,
        [JavaProgram(run.folder, f"copy-{number}") for number in range(copiers)],
        [JavaReader(run.folder, f"reader-{number}") for number in range(readers)],
        transactions,
    )
    with ExitStack() as stack:
        writer = stack.enter_context(Writer(run.routers, "in", "w", partitions=PARTITIONS, pause=0.005))
        programs.start(stack)
        programs.go_on()
        wait_until(lambda: all(reader.records for reader in programs.readers), 60, "every reader to read")
        run.does("group", "promote", "readers", "--yes")
        programs.go_on()
        run.does("group", "rollback", "readers", "--yes")
        programs.go_on()
        run.does("group", "promote", "readers", "--yes")
        promoted = run.does("promote", "out", "--yes")
        assert [(group["group"], group["phase"]) for group in promoted["groups"]] == [("copy", "promoted")]
        programs.go_on()
        run.does("promote", "in", "--yes")
        programs.go_on()
        for copier in programs.copiers:
            copier.stop()
        writer.finish()
        taken, made = stored(run.target, "in"), stored(run.target, "out")
        expected = [(r.partition, r.offset, r.value) for records in made for r in records]
        wait_until(lambda: len(programs.read) >= len(expected), 60, "the readers to come to the end")
    programs.no_errors()
    assert writer.errors == []
    for part, position in enumerate(committed(run.target, "copy", "in")):
        assert values(taken[part]) == writer.sent[part]
        assert values(made[part]) == writer.sent[part][:position]
        assert position > 0
    assert programs.read == expected
    for position, records in zip(committed(run.target, "readers", "out"), made, strict=True):
        assert position > records[-1].offset


def test_a_consumer_of_the_new_protocol_waits_for_its_group_and_goes_on_where_the_group_stands(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    """The consumer uses KIP-848, and the group is in mode hold."""
    topic, group, positions = unique_name("held"), unique_name("g"), [4, 7]
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=PARTITIONS)
    copied = Producer({"bootstrap.servers": target.bootstrap})  # The producer takes the mirror's place.
    for number in range(10):
        for part in range(PARTITIONS):
            copied.produce(topic, b"%d" % number, partition=part)
    assert copied.flush(30) == 0
    # The commit takes the controller's place: no client gets the offsets before the group opens.
    begun(target, group, topic, positions)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=PARTITIONS)
            await world.put_group(group, GroupPhase.MIRRORED)
            with router("r1", target) as running, JavaReader(tmp_path, "reader", "info") as reader:
                await world.routers_apply()
                reader.start(running.bootstrap, topic, group, "--group-protocol", "CONSUMER")
                await quietly(reader.until, "is still loading. Will retry", 1)
                assert reader.events("partitions_assigned") == []
                await world.put_group(group, GroupPhase.PROMOTED)
                await quietly(wait_until, lambda: len(reader.records) >= 20 - sum(positions), 60, "what was copied")
                fence = await world.fence(topic)
                await world.flip(topic, fence.fence_epoch, await world.drained(topic, fence.fence_epoch))
                with Writer(running.bootstrap, topic, "w", partitions=PARTITIONS) as writer:
                    await quietly(writer.until, 100)
                there = [(r.partition, r.offset, r.value or b"") for part in stored(target, topic) for r in part]
                expected = [record for record in there if record[1] >= positions[record[0]]]
                await quietly(wait_until, lambda: len(reader.records) >= len(expected), 60, "what came later")
            assert writer.errors == []
            assert (reader.failed_commits, reader.complaints) == ([], [])
            assert sorted(reader.records) == expected
            ends = [max(offset for at, offset, _ in expected if at == part) + 1 for part in range(PARTITIONS)]
            assert committed(target, group, topic) == ends

    asyncio.run(scenario())
