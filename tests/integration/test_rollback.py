"""Promotes that are taken back under live clients: nothing is lost, doubled or reordered, offsets stay identical."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import Producer

from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import ClusterClient
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.net.clock import now_ms
from kmigrate.protocol.codes import Code
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from kmigrate.sandbox.kafka import SOURCE_VERSION
from tests.integration.dying import DIES_AT, DIES_BY, WRITES_TO
from tests.integration.java_clients import SOURCES, JavaProgram
from tests.integration.migration import PATIENT, Migration, assert_clean, fresh_migration, wait_until
from tests.integration.positions import committed_positions
from tests.integration.router_world import InTransactions, ends, settings_of
from tests.integration.test_group_transactions import Copier

TOPICS = ("orders", "bills")
RETRIED = "retries"
"""A topic with a single producer, which sends batches again after flips."""
SOLD = "sales"
"""A topic that three producers write in transactions."""
BOOKED = "bookings"
"""A topic that one of these producers writes in the same transactions."""
COPIED = "copies"
"""A topic to which an application copies orders, in transactions that commit its offsets."""
COPIERS = "copiers"
"""The group of that application, which goes to and fro with the topic."""
ALL = (*TOPICS, SOLD, BOOKED, RETRIED, COPIED)
UNKNOWN_PRODUCER = "org.apache.kafka.common.errors.UnknownProducerIdException"
OTHER_MAPPING = "org.apache.kafka.common.errors.InvalidPidMappingException"
TURNS = 3
"""Changes of direction after the first promote: two rollbacks, and the promote between them."""
GROUP = "billing"


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 1.0\n") as run:
        yield run


class Retrier:
    """An idempotent producer that sends its newest batches again after a flip, as if their answers were lost."""

    def __init__(self, run: Migration) -> None:
        self._settings = settings_of("target", run.routers)
        self.producer_id = -1
        self._written_ms = now_ms()
        self.offsets: list[int] = []
        """Offsets of the stored batches, by sequence."""

    def write(self) -> None:
        """Write the next batch."""
        self.offsets.append(self._sent(len(self.offsets)))

    def again(self, batches: int) -> None:
        """Send the newest batches again; each must be answered as the duplicate of its first copy.

        A router that does not find the first copy within a second, on a busy machine, answers without an offset.
        """
        for sequence in range(len(self.offsets))[-batches:]:
            assert self._sent(sequence) in (self.offsets[sequence], -1)

    def _sent(self, sequence: int) -> int:
        """Send a batch until it is stored, as clients do, and return the offset."""
        return asyncio.run(self._send(sequence))

    async def _send(self, sequence: int) -> int:
        async with ClusterClient(self._settings) as client:
            if self.producer_id < 0:
                self.producer_id, _ = await client.init_producer_id()
            async with asyncio.timeout(20):
                while True:
                    batch = one_record_batch(
                        b"",
                        b"%d" % sequence,
                        timestamp=self._written_ms,
                        producer_id=self.producer_id,
                        epoch=0,
                        sequence=sequence,
                    )
                    answer = await append_alone(client, RETRIED, 0, batch, purpose="test")
                    if answer.error != Code.NOT_LEADER_OR_FOLLOWER:
                        assert answer.error == 0, (sequence, answer)
                        return answer.base_offset
                    await asyncio.sleep(0.1)


def begin(run: Migration) -> None:
    """Move clients of three families to a router, mirror both topics, and promote their group."""
    for topic in TOPICS:
        run.make_topic(topic, 3)
    run.make_topic(SOLD, 4)
    run.make_topic(BOOKED, 3)
    run.make_topic(RETRIED, 1)
    run.make_topic(COPIED, 3)
    run.run_clients(
        [
            ProducerSpec("p-rd", "librdkafka", "orders", 50.0),
            ProducerSpec("p-aio", "aiokafka", "orders", 50.0),
            ProducerSpec("p-java", "java", "bills", 50.0),
            ConsumerSpec("c-rd", "librdkafka", GROUP, TOPICS),
        ]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", *ALL)
    run.does("group", "mirror", GROUP)
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    run.does("group", "promote", GROUP, "--yes")
    run.does("wait", "lag <= 1000", *ALL)


def records(run: Migration, topic: str) -> tuple[list[FinalRecord], list[FinalRecord]]:
    return tuple(sorted(read_topic(each.bootstrap, topic)) for each in (run.source, run.target))  # type: ignore[return-value]


def promote(run: Migration, *, aborts: int = 0, groups: tuple[str, ...] = ()) -> None:
    """Promote all topics: first the topic whose transactions commit the offsets of these groups, which read the others.

    `aborts` of the topics have transactional producers that abort a transaction at this flip.
    """
    time.sleep(1.5)  # so that no write past the router is recent
    told = [run.does("promote", *topics, "--yes", "--way-back") for topics in ((COPIED,), ALL[:-1])]
    assert [(each["group"], each["phase"]) for each in told[0]["groups"]] == [(each, "promoted") for each in groups]
    findings = [each for plan in told for each in plan["findings"]]
    found = [each for each in findings if each["ref"] in ("way-back", "no-way-back")]
    assert [each["ref"] for each in found] == ["way-back"] * len(ALL), found
    assert sum(each["ref"] == "forced-abort" for each in findings) == aborts, findings
    status = run.does("status")["topics"]
    assert {(each["phase"], each["way_back"]) for each in status} == {("promoted", "open")}
    run.writers_go_on(50)
    run.consumers_go_on()


def roll_back(run: Migration, times: int) -> None:
    told = run.does("rollback", *ALL, "--yes")
    assert [(each["phase"], each["generation"]) for each in told["topics"]] == [("mirroring", times)] * len(ALL)
    assert [(each["group"], each["phase"]) for each in told["groups"]] == [(COPIERS, "mirrored")]
    assert all(0 <= each["fence_to_flip_ms"] < 10_000 for each in told["topics"]), told["topics"]
    run.writers_go_on(50)
    run.consumers_go_on()


class OldJavaProgram(JavaProgram):
    """A program of Kafka's own Java library of version 3, with the jars of the source's broker."""

    jars = "kafka"


class Tills:
    """Transactional producers of two families that write the same topic; each goes on after a forced abort.

    One of them writes two topics in each transaction: the topics are promoted and rolled back together. The producer
    with version 3 of the Java library ends at the errors at which the example in KafkaProducer's Javadoc ends.
    """

    def __init__(self, run: Migration) -> None:
        self._run = run
        self.librdkafka = InTransactions(run.routers, (SOLD, BOOKED), "till", {"log_level": 0}, pause=0.08)
        self.java = JavaProgram(run.folder, "java")
        self.old_java = OldJavaProgram(run.folder, "old-java", version=SOURCE_VERSION)

    def __enter__(self) -> Tills:
        self.librdkafka.__enter__()
        self.java.run(SOURCES / "WriteInTransactions.java", self._run.routers, SOLD, "shop", "3")
        self.old_java.run(SOURCES / "WriteInTransactions.java", self._run.routers, SOLD, "stall", "3", "javadoc")
        return self

    def __exit__(self, *error: object) -> None:
        self.old_java.end()
        self.java.end()
        self.librdkafka.__exit__(*error)

    def go_on(self) -> None:
        self.librdkafka.until(self.librdkafka.transactions + 5)
        for java in (self.java, self.old_java):
            java.until("committed", java.said.count("committed") + 5)

    def stop(self) -> None:
        self.librdkafka.finish()
        self.java.stop()
        self.old_java.stop()

    def check(self, sold: list[FinalRecord], booked: list[FinalRecord]) -> None:
        """Check that all committed values are there once and in order, with one forced abort per change of direction.

        The first promote forces no abort.
        """
        values: dict[bytes, dict[int, list[bytes]]] = {b"till": {}, b"shop": {}, b"stall": {}, b"held": {}}
        for record in sold:
            value = record.value or b""
            values[value.split(b"-")[0]].setdefault(record.partition, []).append(value)
        twins: dict[int, list[bytes]] = {}
        for record in booked:
            twins.setdefault(record.partition, []).append(record.value or b"")
        assert twins == self.librdkafka.committed
        assert self.librdkafka.errors == []
        assert values[b"till"] == self.librdkafka.committed
        for name, java, why in (("shop", self.java, UNKNOWN_PRODUCER), ("stall", self.old_java, OTHER_MAPPING)):
            assert "fatal" not in java.said, java.said
            numbers = [f"{name}-{number}".encode() for number in range(java.said.count("committed"))]
            assert values[name.encode()] == dict.fromkeys(range(3), numbers)
            assert 0 < java.said.count(f"aborted {why}") <= TURNS, java.said
        by_librdkafka = [error for error in self.librdkafka.aborted if "UNKNOWN_PRODUCER_ID" in error]
        assert 0 < len(by_librdkafka) <= TURNS, self.librdkafka.aborted


def roll_back_with_an_open_transaction(run: Migration) -> None:
    """Keep a transaction open at the target: the rollback waits for the end, and lets no other transaction begin."""
    held = Producer({"bootstrap.servers": run.routers, "transactional.id": "held"}, logger=None)
    held.init_transactions(30)
    held.begin_transaction()
    held.produce(SOLD, b"held-1", partition=3)
    assert held.flush(20) == 0
    refused = run.cli("rollback", SOLD, "--yes")
    assert (refused.code, refused.told["error"]) == (3, "coupled-topics"), refused
    with run.doing("rollback", *ALL, "--yes"):
        wait_until(lambda: run.topic_record(SOLD)["way_back"]["closing"], 20, "no transaction to begin")
        held.produce(SOLD, b"held-2", partition=1)
        held.commit_transaction(30)
    assert {(each["phase"], each["generation"]) for each in run.does("topic", "list")["topics"]} == {("mirroring", 1)}
    run.writers_go_on(50)
    run.consumers_go_on()


def end_copier(run: Migration, copier: Copier) -> None:
    """Stop the live clients, and then the copier once the ends of the logs are committed at the source."""
    assert run.traffic is not None
    run.traffic.stop()
    written = dict(enumerate(ends(run.source.bootstrap, "orders")))
    wait_until(lambda: committed_positions(run.source.client(), COPIERS, "orders") == written, 60, copier.told)
    copier.stop()


def assert_copied(run: Migration, copier: Copier) -> dict[str, list[FinalRecord]]:
    """Check that both clusters hold the same records, and that the copier copied each record once; return them."""
    wait_until(lambda: all(each["lag"] == 0 for each in run.does("status")["topics"]), 20, "the copy to be complete")
    stored: dict[str, list[FinalRecord]] = {}
    for topic in ALL:
        source, target = records(run, topic)
        assert source == target, topic
        stored[topic] = target
    copied = {name: [(r.partition, r.value) for r in stored[name]] for name in ("orders", COPIED)}
    assert copied["orders"] == copied[COPIED], "each record was processed once, in order"
    # _STATE: the offsets were sent when an error of a record had ended the transaction.
    known = ("UNKNOWN_PRODUCER_ID", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "_STATE")
    assert [error for error in copier.errors if error.split(":")[0] not in known] == []
    return stored


def test_topics_go_to_the_target_and_back_twice_under_live_clients(migration: Migration) -> None:
    run = migration
    begin(run)
    run.make_group(COPIERS, "orders")
    run.does("group", "mirror", COPIERS)
    retrier = Retrier(run)
    with Tills(run) as tills, Copier(run.routers, COPIERS, "orders", COPIED) as copier:
        tills.go_on()
        copier.go_on()
        for times in (1, 2):
            retrier.write()
            promote(run, aborts=0 if times == 1 else 3, groups=(COPIERS,))
            tills.go_on()
            copier.go_on()
            retrier.again(1)
            retrier.write()
            if times == 1:
                roll_back_with_an_open_transaction(run)
            else:
                roll_back(run, times)
            tills.go_on()
            copier.go_on()
            retrier.again(2)  # from the last era and from the era before
        tills.stop()
        end_copier(run, copier)
    stored = assert_copied(run, copier)
    tills.check(stored[SOLD], stored[BOOKED])
    assert len(stored[RETRIED]) == len(retrier.offsets) == 4
    reports = run.does("report", "list", RETRIED)["reports"]
    assert [(each["action"], each["outcome"]) for each in reports] == [("rollback", "done"), ("promote", "done")] * 2
    newest = run.does("report", "show", RETRIED)
    assert [each["barrier"] for each in newest["partitions"].values()] == [4], "the target's end at the second rollback"
    assert_clean(run, *TOPICS)


@pytest.mark.soak
def test_transactions_of_franz_go_go_on_after_a_forced_abort(migration: Migration) -> None:
    """An application that aborts a transaction with a failed record loses and doubles nothing."""
    run, spec = migration, TransactionalSpec("p-go", SOLD, 100.0, family="franz-go")
    run.make_topic(SOLD, 3)
    traffic = run.run_clients([spec])
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", SOLD)
    traffic.roll("transactional", run.routers)
    run.writers_go_on(50)
    run.does("wait", "lag <= 1000", SOLD)
    for _ in range(2):
        time.sleep(1.5)  # so that no write past the router is recent
        run.does("promote", SOLD, "--yes", "--way-back")
        run.writers_go_on(50)
        run.does("rollback", SOLD, "--yes")
        run.writers_go_on(50)
    traffic.stop()
    wait_until(lambda: run.does("status")["topics"][0]["lag"] == 0, 20, "the copy to be complete")
    verdict = run.judge(SOLD)
    forced = verdict.findings["client_errors"]
    assert all(text.endswith("UNKNOWN_PRODUCER_ID") for text in forced.examples), forced
    assert forced.count <= TURNS * (spec.records + 1), "each record of an aborted transaction, and the transaction"
    others = {**verdict.findings, "client_errors": replace(forced, count=0)}
    assert replace(verdict, findings=others).clean, f"{verdict.named}\n{run.logs()}"
    assert verdict.acked > 400


def start_standing_controller(run: Migration, write: str) -> Path:
    """Start a controller that stands still once a write of that name is stored; return the path of its notes."""
    notes = run.folder / f"written {write}"
    with mock.patch.dict(os.environ, {DIES_AT: f"after:{write}", DIES_BY: "SIGSTOP", WRITES_TO: str(notes)}):
        run.kill("controller")
        run.start("controller", by=("tests/integration/dying.py",))
    return notes


def strike(run: Migration, victim: str) -> None:
    """Wait until the controller stands still; kill and start the victim; let the controller go on."""
    controller = run.engines["controller"].pid
    stands = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    wait_until(lambda: os.waitid(os.P_PID, controller, stands), 60, run.logs)
    run.kill(victim)
    run.start(victim)
    if victim == "router":
        forget = ("router", "forget", "router", "--dead", "--yes")
        wait_until(lambda: run.cli(*forget).code == 0, 20, "the earlier process to be called dead")
    if victim != "controller":
        run.kill("controller", signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["mirror", "controller", "router"])
def test_a_kill_in_the_middle_of_a_rollback_leaves_it_clean(migration: Migration, victim: str) -> None:
    """kill -9 of an engine between fence and flip, then a restart: the rollback, or its repetition, ends.

    The topic's transactions commit the group's offsets. The group goes back with the topic, and nothing is broken.
    """
    run = migration
    begin(run)
    run.make_group(COPIERS, "orders")
    run.does("group", "mirror", COPIERS)
    # With its default librdkafka 2.16 may wait for ever for the group's coordinator, once the only router was killed.
    settings = {"metadata.recovery.strategy": "none"}
    with Copier(run.routers, COPIERS, "orders", COPIED, settings=settings) as copier:
        copier.go_on()
        for times, fenced in enumerate((TopicPhase.ROLLBACK_FENCING, TopicPhase.ROLLBACK_FENCED), 1):
            promote(run, aborts=times - 1, groups=(COPIERS,))
            copier.go_on()
            notes = start_standing_controller(run, f"topic {fenced}")
            run.again("rollback", COPIED, "--yes", during=lambda: strike(run, victim))
            assert f"topic {fenced}" in notes.read_text().splitlines()
            copier.go_on()
            run.does("rollback", *ALL[:-1], "--yes")
            assert {each["phase"] for each in run.does("group", "list")["groups"]} == {"mirrored", "promoted"}
            run.writers_go_on(50)
            copier.go_on()
        end_copier(run, copier)
    assert_copied(run, copier)
    assert_clean(run, *TOPICS, but_for="commit _WAIT_COORD" if victim == "router" else None)
