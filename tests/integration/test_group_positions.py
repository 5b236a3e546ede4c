"""Members of a group that follows, with committed offsets beyond the target's copy, through a rebalance.

No mirror runs here: a test writes the missing records to the target, when the members have waited long enough.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.protocol.api import element_type, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.sandbox.client_specs import ConsumerSpec, Family
from kmigrate.sandbox.history import whole_lines
from kmigrate.sandbox.kafka import TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.traffic import Traffic
from tests.clusters import running_clusters
from tests.integration.migration import Migration
from tests.integration.positions import commit_positions
from tests.integration.router_world import World, link_between, quietly, router, settings_of
from tests.integration.test_metrics import Watched, engine

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

START, COPIED, COMMITTED, END = 100, 500, 600, 800
"""Offsets of each partition: the log start, the end of the copy, the committed offset, the end of the source's log."""
PARTITIONS = 2


def _write(cluster: KafkaCluster, topic: str, numbers: range) -> None:
    producer = Producer(cluster.client())
    for partition in range(PARTITIONS):
        for number in numbers:
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(20) == 0


async def _topic_id(cluster: KafkaCluster, topic: str) -> str:
    async with ClusterClient(settings_of("cluster", cluster.bootstrap)) as client:
        await client.refresh([topic])
        return str(client.metadata.topics[topic].topic_id)


def _all(topic: str, offset: int) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for partition in range(PARTITIONS)]


def _lagging(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, topic: str, group: str, held_by: str = "lag"
) -> Callable[[], None]:
    """Make a topic whose copy ends before the committed offsets; return a function that ends the open transaction."""
    writer = Producer({**source.client(), "transactional.id": topic})
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=PARTITIONS)
        _write(cluster, topic, range(COPIED))
    if held_by == "transaction":
        writer.init_transactions(30)
        writer.begin_transaction()
        for partition in range(PARTITIONS):
            writer.produce(topic, b"%d" % COPIED, partition=partition)
        assert writer.flush(20) == 0
        _write(source, topic, range(COPIED + 1, END))
    else:
        _write(source, topic, range(COPIED, END))
    for cluster in (source, target):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for done in admin.delete_records(_all(topic, START)).values():
            done.result(20)
    commit_positions(source.client(), group, _all(topic, COMMITTED))
    return writer.commit_transaction if held_by == "transaction" else lambda: None


def _committed(cluster: KafkaCluster, group: str, topic: str) -> list[int]:
    consumer = Consumer({**cluster.client(), "group.id": group})
    try:
        return [part.offset for part in consumer.committed(_all(topic, -1001), 20)]
    finally:
        consumer.close()


@dataclass
class Member:
    """A librdkafka consumer in another thread, which commits all read records after each poll."""

    bootstrap: str
    group: str
    topic: str
    config: dict[str, Any]
    read: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """Offsets by partition, in the order of arrival."""
    errors: list[str] = field(default_factory=list)
    assigned: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Member:
        base = {"bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False}
        self.consumer = Consumer({**base, **self.config})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        self.begin()
        while not self._stop.is_set():
            self.poll()
        with suppress(KafkaException):  # Nothing is left to commit.
            self.consumer.commit(asynchronous=False)
        self.consumer.close()

    def begin(self) -> None:
        self.consumer.subscribe([self.topic], on_assign=lambda _, __: self.assigned.set())

    def poll(self) -> None:
        for message in self.consumer.consume(1000, 0.1):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                self.errors.append(str(error))
            elif partition is not None and offset is not None:
                self.read[partition].append(offset)
                self.consumer.commit(message=message, asynchronous=True)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


class Assigning(Member):
    """The same member with chosen partitions: the first partition, and soon all partitions."""

    def begin(self) -> None:
        # After this request the client knows the group's coordinator.
        self.consumer.committed([TopicPartition(self.topic, 0)], 20)
        self.consumer.assign([TopicPartition(self.topic, 0)])
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            self.poll()
        self.consumer.assign([TopicPartition(self.topic, partition) for partition in range(PARTITIONS)])
        self.assigned.set()


def _until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


NEW = {"group.protocol": "consumer"}
EAGER, COOPERATIVE = ({"partition.assignment.strategy": name} for name in ("range", "cooperative-sticky"))
RESETS = ("earliest", "latest")


def everything_once(*members: Member) -> None:
    """Check that all members together read from the committed offsets to the end, without an error."""
    assert [error for member in members for error in member.errors] == []
    for partition in range(PARTITIONS):
        read = sorted(offset for member in members for offset in member.read[partition])
        wanted = set(range(COMMITTED, END))
        assert (read[:1], set(read)) == ([COMMITTED], wanted), f"{partition}: {read[:3]} {read[-3:]}"


@dataclass
class Stage:
    source: KafkaCluster
    target: KafkaCluster
    topic: str
    group: str

    def catches_up(self, members: list[Member]) -> None:
        """Let the copy catch up, a while after the last change of the assignment.

        The members read to the end.
        """
        time.sleep(1.5)
        _write(self.target, self.topic, range(COPIED, END))
        _until(
            lambda: all(len({o for m in members for o in m.read[p]}) >= END - COMMITTED for p in range(PARTITIONS)), 20
        )
        time.sleep(0.5)  # A second reading of a record would happen in this time.

    @asynccontextmanager
    async def link(self, name: str) -> AsyncIterator[World]:
        """Make a link that mirrors the topic, and that the group follows."""
        async with link_between(self.source, self.target, name) as world:
            ids = {"source_topic_id": await _topic_id(self.source, self.topic)}
            ids["target_topic_id"] = await _topic_id(self.target, self.topic)
            starts = dict.fromkeys(range(PARTITIONS), 0)
            await world.put(self.topic, TopicPhase.MIRRORING, partitions=PARTITIONS, starts=starts, **ids)
            await world.put_group(self.group, GroupPhase.MIRRORED, GroupMode.FOLLOW)
            yield world

    async def run(self, link: str, act: Callable[[str], None]) -> None:
        async with self.link(link) as world:
            with router("r1", self.target) as running:
                await world.routers_apply()
                await quietly(act, running.bootstrap)


@pytest.fixture
def stage(source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names) -> Stage:
    made = Stage(source, target, unique_name("lagging"), unique_name("g"))
    _lagging(source, target, make_topic, made.topic, made.group)
    return made


@pytest.mark.parametrize("reset", ["latest", pytest.param("earliest", marks=pytest.mark.soak)])
def test_partitions_that_are_added_while_positions_are_asked_for_are_read_from_the_committed_ones(
    stage: Stage, unique_name: Names, reset: str
) -> None:
    def act(bootstrap: str) -> None:
        with Assigning(bootstrap, stage.group, stage.topic, {"auto.offset.reset": reset}) as member:
            member.assigned.wait(20)
            stage.catches_up([member])
        everything_once(member)

    asyncio.run(stage.run(unique_name("link"), act))
    assert _committed(stage.source, stage.group, stage.topic) == [END] * PARTITIONS


@pytest.mark.parametrize(("config", "reset"), [(EAGER, "latest"), (COOPERATIVE, "earliest")], ids=["eager", "sticky"])
def test_a_member_that_joins_throws_nobody_back(
    stage: Stage, unique_name: Names, config: dict[str, Any], reset: str
) -> None:
    def act(bootstrap: str) -> None:
        settings = {"auto.offset.reset": reset, **config}
        with Member(bootstrap, stage.group, stage.topic, settings) as first:
            first.assigned.wait(20)
            time.sleep(0.6)
            with Member(bootstrap, stage.group, stage.topic, settings) as second:
                second.assigned.wait(20)
                stage.catches_up([first, second])
        everything_once(first, second)

    asyncio.run(stage.run(unique_name("link"), act))
    assert _committed(stage.source, stage.group, stage.topic) == [END] * PARTITIONS


class OldMember:
    """A member that asks for committed offsets in a version without UNSTABLE_OFFSET_COMMIT, over the wire."""

    def __init__(self, client: ClusterClient, group: str, topic: str) -> None:
        self.client, self.group, self.topic = client, group, topic
        self.identity = self._identity(-1, "")

    @staticmethod
    def _identity(generation: int, member_id: str) -> dict[str, Any]:
        return {"generation_id_or_member_epoch": generation, "member_id": member_id, "group_instance_id": None}

    async def join(self) -> None:
        join, sync = entity(11, 4, "request"), entity(14, 2, "request")
        protocol = element_type(join, "protocols")(name="range", metadata=b"")
        asked: dict[str, Any] = {"group_id": self.group, "protocol_type": "consumer", "protocols": (protocol,)}
        asked |= {"session_timeout": timedelta(seconds=30), "rebalance_timeout": timedelta(seconds=10)}
        node = await self.client.find_coordinator(self.group)
        named = await self.client.call(join(member_id="", **asked), node)
        assert code_of(named.error_code) == Code.MEMBER_ID_REQUIRED, named
        joined = await self.client.call(join(member_id=named.member_id, **asked), node)
        assert code_of(joined.error_code) == 0, joined
        share = element_type(sync, "assignments")(member_id=joined.member_id, assignment=b"")
        member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        synced = await self.client.call(sync(group_id=self.group, assignments=(share,), **member), node)
        assert code_of(synced.error_code) == 0, synced
        self.identity = self._identity(joined.generation_id, joined.member_id)

    async def committed(self) -> tuple[int, int]:
        """Return the committed offset of partition 0, and the error."""
        fetch = entity(9, 3, "request")
        topics = (element_type(fetch, "topics")(name=self.topic, partition_indexes=(0,)),)
        answer = await self._ask(fetch(group_id=self.group, topics=topics))
        part = answer.topics[0].partitions[0]
        return int(part.committed_offset), code_of(part.error_code)

    async def commit(self, offset: int) -> int:
        """Commit an offset of partition 0; return the error."""
        commit = entity(8, 7, "request")
        topic_type = element_type(commit, "topics")
        part = element_type(topic_type, "partitions")(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        topics = (topic_type(name=self.topic, partitions=(part,)),)
        answer = await self._ask(commit(group_id=self.group, topics=topics, **self.identity))
        return code_of(answer.topics[0].partitions[0].error_code)

    async def _ask(self, request: Any) -> Any:
        return await self.client.call(request, await self.client.find_coordinator(self.group))


ASK_AGAIN, ILLEGAL_GENERATION = 14, 22


def test_a_commit_that_goes_back_behind_an_offset_that_nobody_was_told_is_refused_and_a_reset_is_not(
    stage: Stage, unique_name: Names, tmp_path: Path
) -> None:
    """The first answer may have made the client begin at an end of the log; the second answer cannot."""
    run, port = Migration(stage.source, stage.target, tmp_path / "run"), free_ports(1)[0]
    bootstrap, group, topic = f"127.0.0.1:{port}", stage.group, stage.topic

    def at_source() -> int:
        return _committed(stage.source, group, topic)[0]

    def reset(offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])
        admin.alter_consumer_group_offsets([wanted])[group].result(20)

    async def members(watched: Watched) -> None:
        def refused() -> float:
            return watched.scrape().value("kmigrate_router_refused_commits_total")

        async with ClusterClient(settings_of("router", bootstrap)) as client:
            tool = OldMember(client, group, topic)
            assert await tool.committed() == (-1, ASK_AGAIN)
            assert await tool.commit(COPIED) == ILLEGAL_GENERATION, "a consumer that was not told, without a membership"
            assert (at_source(), refused()) == (COMMITTED, 1)
            await quietly(reset, COMMITTED - 10)
            assert (at_source(), refused()) == (COMMITTED - 10, 1), "an operator's reset is another connection's"

            member = OldMember(client, group, topic)
            await member.join()
            assert await member.committed() == (-1, ASK_AGAIN)
            assert await member.commit(START) == ILLEGAL_GENERATION
            assert (at_source(), refused()) == (COMMITTED - 10, 2)
            assert await member.commit(COMMITTED) == 0, "nothing is wrong with going on"
            await quietly(_write, stage.target, topic, range(COPIED, END))
            assert await member.committed() == (COMMITTED, 0)
            assert await member.commit(COMMITTED - 50) == 0, "who was told may go back"
            assert (at_source(), refused()) == (COMMITTED - 50, 2)

    async def scenario() -> None:
        async with stage.link(unique_name("link")) as world:
            with engine(run, "router", "--port", str(port), "--name", unique_name("router")) as watched:
                await world.routers_apply()
                await members(watched)

    asyncio.run(scenario())


FROZEN_S = 5.0
"""Least time for which a group stays frozen after its controller died: another controller takes over after 3 s."""


def test_a_commit_that_meets_a_frozen_group_waits_until_the_group_goes_on(stage: Stage, unique_name: Names) -> None:
    """The router holds a commit while the group is frozen.

    librdkafka repeats a commit twice at COORDINATOR_LOAD_IN_PROGRESS, and reports the third error to its application.
    """
    told: list[str] = []

    def committed(error: Any, _: Any) -> None:
        told.append(error.name() if error is not None else "")

    async def scenario() -> None:
        _write(stage.target, stage.topic, range(COPIED, END))
        async with stage.link(unique_name("link")) as world:
            follows = world.log.state.group(world.link, stage.group)
            assert follows is not None
            with router("r1", stage.target) as running:
                await world.routers_apply()
                config = {"bootstrap.servers": running.bootstrap, "group.id": stage.group, "on_commit": committed}
                consumer = Consumer({**config, "enable.auto.commit": False, "log_level": 0})
                consumer.subscribe([stage.topic])
                (message,) = await quietly(consumer.consume, 1, 20.0)
                frozen = replace(follows, phase=GroupPhase.PROMOTING, frozen=True)
                await world.log.append(lambda _: frozen)
                await world.routers_apply()
                consumer.commit(message=message, asynchronous=True)
                until = time.monotonic() + FROZEN_S
                while time.monotonic() < until:
                    await quietly(consumer.poll, 0.1)
                assert told == [], "nothing is decided while the group is frozen"
                await world.log.append(lambda _: follows)
                await quietly(_until, lambda: consumer.poll(0.1) is None and bool(told), 10.0)
                await quietly(consumer.close)

    asyncio.run(scenario())
    assert told == [""]


# Whole clients of all families, in processes of their own

RANGE, STICKY = (f"org.apache.kafka.clients.consumer.{name}Assignor" for name in ("Range", "CooperativeSticky"))
STRATEGY, RESET = "partition.assignment.strategy", "auto.offset.reset"
FAMILIES: list[tuple[Family, dict[str, Any]]] = [
    ("librdkafka", EAGER),
    ("librdkafka", COOPERATIVE),
    ("librdkafka", NEW),
    ("java", {STRATEGY: RANGE}),
    ("java", {STRATEGY: STICKY}),
    ("java", NEW),
    ("franz-go", {}),
    ("franz-go", COOPERATIVE),
    ("franz-go", NEW),
    ("kafka-python", {}),
    ("aiokafka", {}),
]


def _named(given: tuple[Family, dict[str, Any]]) -> str:
    return "-".join((given[0], *given[1].values())).replace("org.apache.kafka.clients.consumer.", "")


@pytest.fixture(scope="module")
def newer_source() -> Iterator[KafkaCluster]:
    """Start a source that serves members of the new protocol."""
    root = Path(tempfile.mkdtemp(prefix="kmigrate-test-"))
    with running_clusters(root, ClusterSpec("source", TARGET_VERSION, 1, {})) as (cluster,):
        yield cluster
    shutil.rmtree(root)


@pytest.mark.soak
@pytest.mark.parametrize("held_by", ["lag", "transaction"])
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("given", FAMILIES, ids=_named)
def test_members_of_every_family_are_thrown_back_by_nobody_and_skip_nothing(
    newer_source: KafkaCluster,
    target: KafkaCluster,
    make_topic: MakeTopic,
    unique_name: Names,
    tmp_path: Path,
    given: tuple[Family, dict[str, Any]],
    reset: str,
    held_by: str,
) -> None:
    """Members join in turn; then the copy catches up, after the end of an open transaction if there is any."""
    stage = Stage(newer_source, target, unique_name("lagging"), unique_name("g"))
    family, own = given
    settings = {**own, ("auto_offset_reset" if family == "aiokafka" else RESET): reset}
    specs = [ConsumerSpec(f"c-{number}", family, stage.group, (stage.topic,), settings) for number in range(3)]
    ends = _lagging(newer_source, target, make_topic, stage.topic, stage.group, held_by=held_by)
    traffic = Traffic.create(tmp_path / "traffic", specs, tied=True)

    def act(bootstrap: str) -> None:
        try:
            for spec in specs:
                traffic.start(bootstrap, spec.name)
                _until(lambda spec=spec: bool(_events(traffic, spec.name, "assign")), 30)  # type: ignore[misc]
                time.sleep(0.7)
            time.sleep(2)
            ends()
            _write(target, stage.topic, range(COPIED, END))
            _until(lambda: all(len(set(part)) >= END - COMMITTED for part in _read(traffic, stage.topic)), 30)
            time.sleep(1)
        finally:
            traffic.kill("all")

    asyncio.run(stage.run(unique_name("link"), act))
    assert _events(traffic, "*", "error") == []
    for read in _read(traffic, stage.topic):
        assert (min(read, default=-1), set(read)) == (COMMITTED, set(range(COMMITTED, END)))


def _events(traffic: Traffic, name: str, f: str) -> list[dict[str, Any]]:
    lines = [line for path in traffic.folder.glob(f"{name}.*.jsonl") for line in whole_lines(path)]
    return [event for event in map(json.loads, lines) if event["f"] == f]


def _read(traffic: Traffic, topic: str) -> list[list[int]]:
    """Return the offsets that all members have read, by partition."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for event in _events(traffic, "*", "poll"):
        if event["topic"] == topic:
            found[event["partition"]] += range(event["offset"], event["offset"] + len(event["values"]))
    return found
