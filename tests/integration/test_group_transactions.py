"""Offsets and records of a single transaction, moved live: read-process-write in the middle of a migration."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.java_clients import SOURCES, JavaProgram
from tests.integration.migration import Migration, fresh_migration, wait_until


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


def _told(_: Consumer, __: list[TopicPartition]) -> None:
    """Ignore a rebalance, which librdkafka handles by itself."""


class Copier:
    """Read-process-write by librdkafka, in a thread: offsets are committed in the producer's transactions."""

    def __init__(
        self, bootstrap: str, group: str, read: str, written: str, number: str = "x", protocol: str = "classic"
    ) -> None:
        self.errors: list[str] = []
        self.committed = 0
        config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        config["group.protocol"] = protocol
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **config}, logger=None)
        # With callbacks, rebalances happen only in consume(): between two calls the assignment stays.
        self._consumer.subscribe([read], on_assign=_told, on_revoke=_told)
        holder = {"transactional.id": f"{group}-{number}"}
        self._producer = Producer({"bootstrap.servers": bootstrap, **holder}, logger=None)
        self._written = written
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Copier:
        self._producer.init_transactions(60)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = [m for m in self._consumer.consume(20, 0.2) if m.error() is None]
            if not messages:
                continue
            try:
                self._producer.begin_transaction()
                for message in messages:
                    partition = message.partition()
                    assert partition is not None
                    self._producer.produce(self._written, message.value(), partition=partition)
                positions = self._consumer.position(self._consumer.assignment())
                self._producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata(), 30)
                self._producer.commit_transaction(60)
                self.committed += 1
            except KafkaException as error:
                self.errors.append(str(error))
                if not error.args[0].txn_requires_abort():
                    return
                # Every such application does the same: seek back to the committed offsets.
                self._producer.abort_transaction(60)
                for part in self._consumer.committed(self._consumer.assignment(), 30):
                    if part.offset >= 0:
                        self._consumer.seek(part)

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
            after = copier.committed
            wait_until(lambda: copier.committed > after + 20 or copier.errors, 60, "transactions on the target")
            run.does("promote", "in", "--yes")
            traffic.stop()
            read = values(run.target, "in")
            assert read and set(read.values()) == {1}
            for topic in ("out-streams", "out-rd"):
                wait_until(lambda topic=topic: sum(values(run.target, topic).values()) >= len(read), 60, topic)  # type: ignore[misc]
    assert "died" not in streams.said, streams.said
    # A transaction that was overtaken by its group's promote is aborted and repeated, as after any rebalance.
    assert all("UNKNOWN_MEMBER_ID" in error or "ILLEGAL_GENERATION" in error for error in copier.errors), copier.errors
    for topic in ("out-streams", "out-rd"):
        assert values(run.target, topic) == read
