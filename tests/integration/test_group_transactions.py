"""Offsets and records of a single transaction, moved live: read-process-write in the middle of a migration."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import TARGET_VERSION, KafkaCluster
from tests.integration.java_clients import SOURCES, JavaProgram
from tests.integration.migration import PATIENT, Migration, fresh_migration, wait_until
from tests.integration.positions import committed_positions
from tests.integration.router_world import ends as log_ends


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 2.0\n"
    with fresh_migration(tmp_path, settings) as run:
        yield run


class Streams(JavaProgram):
    """A Kafka Streams application (exactly_once_v2)."""

    jars = "kafka-streams"

    def __init__(self, folder: Path, name: str, read: str, written: str) -> None:
        super().__init__(folder, name, level="info")
        self._words = (name, read, written, str(folder / "state"))

    def start(self, bootstrap: str) -> None:
        before = self.said.count("state RUNNING")
        self.run(SOURCES / "ExactlyOnceCopy.java", bootstrap, *self._words)
        self.until("state RUNNING", before)


def _done(call: Callable[[], None]) -> None:
    """Call until the call succeeds; librdkafka demands this after a time-out."""
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


class Copier:
    """Read-process-write by librdkafka, in a thread: offsets are committed in the producer's transactions."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        read: str,
        written: str,
        number: str = "x",
        protocol: str = "classic",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a copier; `settings` are further settings of both clients."""
        self.errors: list[str] = []
        """Errors of transactions; the copier goes on after an abort."""
        self.committed = 0
        both = {"bootstrap.servers": bootstrap, "log_level": 0, **(settings or {})}
        config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        config["group.protocol"] = protocol
        if protocol == "classic":
            # After a flip a heartbeat tells the member that the group does not know the member.
            config["heartbeat.interval.ms"] = 500
        self._consumer = Consumer({**both, **config}, logger=None)
        # With callbacks, rebalances happen only in consume(): between two calls the assignment stays.
        self._consumer.subscribe([read], on_assign=self._rebalanced, on_revoke=self._rebalanced)
        self._moved = False
        self._producer = Producer({**both, "transactional.id": f"{group}-{number}"}, logger=None)
        self._written = written
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Copier:
        _done(lambda: self._producer.init_transactions(60))
        self._thread.start()
        return self

    def _rebalanced(self, _: Consumer, __: list[TopicPartition]) -> None:
        """Note a rebalance, which librdkafka handles by itself."""
        self._moved = True

    def _run(self) -> None:
        while not self._stop.is_set():
            self._moved = False
            messages = [m for m in self._consumer.consume(100, 0.2) if m.error() is None]
            if self._moved:  # some of the messages may be from before the rebalance
                self._seek_back(messages)
            elif messages and not self._copied(messages):
                return

    def _copied(self, messages: list[Message]) -> bool:
        """Write the messages in a transaction with their offsets; return False where the producer has ended."""
        ends: dict[int, TopicPartition] = {}
        try:
            self._producer.begin_transaction()
            for message in messages:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None and offset is not None
                self._producer.produce(self._written, message.value(), partition=partition)
                ends[partition] = TopicPartition(topic, partition, offset + 1)
            metadata = self._consumer.consumer_group_metadata()
            _done(lambda: self._producer.send_offsets_to_transaction(list(ends.values()), metadata, 30))
            _done(lambda: self._producer.commit_transaction(60))
            self.committed += 1
        except KafkaException as error:
            self.errors.append(f"{error.args[0].name()}: {error}")
            if not error.args[0].txn_requires_abort():
                return False
            _done(lambda: self._producer.abort_transaction(60))
            self._seek_back(messages)
        return True

    def _seek_back(self, messages: list[Message]) -> None:
        """Seek to the committed offsets of the messages' partitions, as every such application does after an abort."""
        read = {message.partition() for message in messages}
        mine = [part for part in self._consumer.assignment() if part.partition in read]
        while mine and not self._stop.is_set():
            try:
                found = self._consumer.committed(mine, 30)
            except KafkaException:
                continue  # the group may be on its way to another cluster
            if any(part.error for part in found):
                continue
            for part in found:
                part.offset = part.offset if part.offset >= 0 else OFFSET_BEGINNING
                self._consumer.seek(part)
            return

    def go_on(self, transactions: int = 5) -> None:
        """Wait until that many more transactions are committed."""
        wanted = self.committed + transactions
        wait_until(lambda: self.committed >= wanted or not self._thread.is_alive(), 60, self.told)
        assert self.committed >= wanted, self.told()

    def told(self) -> str:
        return f"{self.committed} transactions, errors: {self.errors}"

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(90)
        self._consumer.close()


def values(cluster: KafkaCluster, topic: str) -> Counter[bytes]:
    """Return the values that a reader of committed records gets."""
    return Counter(record.value or b"" for record in read_topic(cluster.bootstrap, topic))


@pytest.mark.soak
def test_reading_processing_and_writing_goes_on_exactly_once_through_both_promotes(migration: Migration) -> None:
    run = migration
    for topic in ("in", "out-streams", "out-rd"):
        run.make_topic(topic, 2)
    traffic = run.run_clients([ProducerSpec("shop", "librdkafka", "in", 200.0)])
    with Streams(run.folder, "copy-streams", "in", "out-streams") as streams:
        streams.start(run.source.bootstrap)
        with Copier(run.source.bootstrap, "copy-rd", "in", "out-rd") as copier:
            wait_until(lambda: copier.committed > 5 or copier.errors, 60, "transactions at the source")
        wait_until(lambda: values(run.source, "out-streams"), 60, "the output of Streams")
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        run.does("topic", "mirror", "in", "out-streams", "out-rd")
        run.does("group", "mirror", "copy-streams", "copy-rd")
        assert {group["mode"] for group in run.does("group", "list")["groups"]} == {"follow"}
        traffic.roll("producers", run.routers)
        streams.stop()
        streams.start(run.routers)
        with Copier(run.routers, "copy-rd", "in", "out-rd") as copier:
            wait_until(lambda: copier.committed > 20 or copier.errors, 60, "transactions through the router")
            before = sum(values(run.target, "out-streams").values())
            wait_until(lambda: sum(values(run.target, "out-streams").values()) > before, 60, "Streams to go on")
            refused = run.cli("group", "promote", "copy-rd", "--yes")
            assert (refused.code, refused.told["error"]) == (3, "coupled-topics"), refused
            promoted = run.does("promote", "out-streams", "out-rd", "--yes")
            assert [group["phase"] for group in promoted["groups"]] == ["promoted", "promoted"]
            copier.go_on(20)
            for verb, phase in (("rollback", "mirrored"), ("promote", "promoted")):
                turned = run.does(verb, "out-streams", "out-rd", "--yes")
                assert [group["phase"] for group in turned["groups"]] == [phase, phase]
                copier.go_on(20)
                before = sum(values(run.target, "out-streams").values())
                wait_until(lambda: sum(values(run.target, "out-streams").values()) > before, 60, "Streams to go on")  # noqa: B023
            run.does("promote", "in", "--yes")
            traffic.stop()
            read = values(run.target, "in")
            assert read and set(read.values()) == {1}
            for topic in ("out-streams", "out-rd"):
                wait_until(lambda topic=topic: sum(values(run.target, topic).values()) >= len(read), 60, topic)  # type: ignore[misc]
    assert "died" not in streams.said, streams.said
    # A transaction that was overtaken by its group's promote is aborted and repeated, as after any rebalance.
    # From the rollback on, each identity ends at a flip.
    known = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "UNKNOWN_PRODUCER_ID")
    assert all(any(name in error for name in known) for error in copier.errors), copier.errors
    for topic in ("out-streams", "out-rd"):
        assert values(run.target, topic) == read


@pytest.mark.soak
def test_members_of_the_new_protocol_go_to_and_fro_with_the_topics_of_their_transactions(tmp_path: Path) -> None:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 1.0\n", source_version=TARGET_VERSION) as run:
        for topic in ("in", "out"):
            run.make_topic(topic, 2)
        traffic = run.run_clients([ProducerSpec("shop", "librdkafka", "in", 200.0)])
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        run.does("topic", "mirror", "in", "out")
        run.make_group("copy-rd", "in")
        run.does("group", "mirror", "copy-rd")
        traffic.roll("producers", run.routers)
        with Copier(run.routers, "copy-rd", "in", "out", protocol="consumer") as copier:
            copier.go_on(20)
            for verb, phase in (("promote", "promoted"), ("rollback", "mirrored")) * 2:
                (group,) = run.does(verb, "out", "--yes")["groups"]
                assert (group["group"], group["phase"]) == ("copy-rd", phase)
                copier.go_on(20)
            traffic.stop()
            ends = dict(enumerate(log_ends(run.source.bootstrap, "in", 2)))
            wait_until(lambda: committed_positions(run.source.client(), "copy-rd", "in") == ends, 60, copier.told)
            copier.stop()
        read, written = (sorted(read_topic(run.source.bootstrap, topic)) for topic in ("in", "out"))
        assert [(each.partition, each.value) for each in written] == [(each.partition, each.value) for each in read]
