"""The target of transactions is killed: the source's report is compared with what librdkafka reads and writes there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.groups import held_groups
from kmigrate.model.way_back_notes import NoteState, WayBackNote
from kmigrate.net.clock import now_ms
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.workflow.verbs.target_lost import read_notes
from tests.integration.migration import PATIENT, Migration, fresh_migration, wait_until
from tests.integration.positions import commit_positions, committed_positions
from tests.integration.router_world import settings_of
from tests.integration.test_group_transactions import Copier

SOLD, BOOKED = "sales", "bookings"
"""Topics that a producer writes in the same transactions."""
READ, COPIED = "orders", "copies"
"""A topic, and what an application copies from it in transactions that commit the application's offsets."""
COPIERS = "copiers"
"""The group of that application."""
PARTITIONS = 2


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    with fresh_migration(tmp_path, f"{PATIENT}straggler_window_s = 1.0\n") as run:
        yield run


def in_transactions(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}, logger=None)
    producer.init_transactions(30)
    return producer


class Till:
    """Writes both topics in each transaction, without a pause between transactions."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = in_transactions(bootstrap, "till")
        self.ended: list[tuple[int, set[tuple[str, int, bytes]]]] = []
        """The records of each transaction, and the time by which the transaction had ended."""

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            value = b"till-%d-%d" % (now_ms(), len(self.ended))
            records = {(topic, partition, value) for topic in (SOLD, BOOKED) for partition in range(PARTITIONS)}
            self._producer.begin_transaction()
            for topic, partition, _ in records:
                self._producer.produce(topic, value, partition=partition)
            self._producer.commit_transaction(30)
            self.ended.append((now_ms(), records))


def feed(run: Migration, records: int) -> None:
    """Write input for the application through the router."""
    producer = Producer({"bootstrap.servers": run.routers})
    for number in range(records):
        producer.produce(READ, b"%d-%d" % (now_ms(), number), partition=0)
    assert producer.flush(30) == 0


def visible(cluster: KafkaCluster, *topics: str) -> set[tuple[str, int, bytes]]:
    """Return the records that a reader of committed records gets up to the ends of the logs."""
    found = (record for topic in topics for record in read_topic(cluster.bootstrap, topic))
    return {(record.topic, record.partition, record.value or b"") for record in found}


def noted(run: Migration) -> dict[tuple[str, int], WayBackNote]:
    """Return the notes at the source, by topic and partition, so that a test can wait for them."""

    async def read() -> dict[tuple[str, int], WayBackNote]:
        async with ClusterClient(settings_of("source", run.source.bootstrap)) as source:
            return await read_notes(source, "blue", [])

    return asyncio.run(read())


def until_copied(run: Migration, *topics: str) -> None:
    wait_until(lambda: visible(run.source, *topics) == visible(run.target, *topics), 30, run.logs)


def promoted(run: Migration) -> Till:
    """Promote all topics, and the application's group with the topic that the application writes."""
    for topic, partitions in ((SOLD, PARTITIONS), (BOOKED, PARTITIONS), (READ, 1), (COPIED, 1)):
        run.make_topic(topic, partitions)
    run.make_group(COPIERS, READ)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", SOLD, BOOKED, READ, COPIED)
    run.does("group", "mirror", COPIERS)
    feed(run, 20)
    till = Till(run.routers)
    till.write(3)
    with Copier(run.routers, COPIERS, READ, COPIED, settings={"session.timeout.ms": 6_000}) as copier:
        wait_until(lambda: len(visible(run.source, COPIED)) == 20, 60, copier.told)
        (group,) = run.does("promote", COPIED, "--yes", "--way-back")["groups"]
        assert (group["group"], group["phase"]) == (COPIERS, "promoted")
        run.does("promote", SOLD, BOOKED, READ, "--yes", "--way-back")
        feed(run, 20)
        wait_until(lambda: len(visible(run.target, COPIED)) == 40, 60, copier.told)
        copier.stop()
    till.write(3)
    until_copied(run, SOLD, BOOKED, READ, COPIED)
    wait_until(lambda: is_held(run), 60, "the group to be held at the source")
    return till


def is_held(run: Migration) -> bool:
    """Return whether a placeholder holds the application's group at the source, after the member's session there."""

    async def held() -> bool:
        async with ClusterClient(settings_of("source", run.source.bootstrap)) as source:
            return (await held_groups(source)).get(COPIERS, False)

    return asyncio.run(held())


def lost(run: Migration, *words: str, code: int) -> dict[str, Any]:
    """Return the report on the source."""
    answer = run.cli("rollback", "--target-lost", "--routers-stopped", *words)
    assert answer.code == code, (answer, run.logs())
    told: dict[str, Any] = answer.told
    return told


def lose_target(run: Migration) -> None:
    for node in run.target.brokers:
        run.target.kill(node)
    for name in ("router", "mirror", "controller"):
        run.kill(name)


def units(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the units of a report by the first topic's name."""
    return {each["topics"][0]: each for each in told["units"]}


def row(told: dict[str, Any], topic: str, partition: int) -> dict[str, Any]:
    (found,) = [each for each in told["partitions"] if (each["topic"], each["partition"]) == (topic, partition)]
    return found  # type: ignore[no-any-return]


def transactions_go_on(run: Migration, *names: str) -> None:
    """Check that producers with these transactional ids write at the source, and readers of committed records read."""
    before = visible(run.source, SOLD)
    for name in names:
        producer = in_transactions(run.source.bootstrap, name)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(SOLD, name.encode(), partition=partition)
        producer.commit_transaction(30)
    wanted = {(SOLD, partition, name.encode()) for name in names for partition in range(PARTITIONS)}
    assert visible(run.source, SOLD) == before | wanted


def application_goes_on(run: Migration, told: dict[str, Any]) -> None:
    """Release the application's group, set the group's offsets as the report advises, and start the application."""
    (group,) = told["groups"]
    assert (group["group"], group["held"]) == (COPIERS, True)
    copied = len(visible(run.source, COPIED))
    assert group["offsets"][READ]["0"] < copied, "the commits since the promote are lost"
    (group,) = lost(run, "--release-groups", code=0 if told["complete"] else 4)["groups"]
    assert not group["held"]
    commit_positions(run.source.client(), COPIERS, [TopicPartition(READ, 0, copied)])
    producer = Producer({"bootstrap.servers": run.source.bootstrap})
    producer.produce(READ, b"the first record after the loss", partition=0)
    assert producer.flush(30) == 0
    with Copier(run.source.bootstrap, COPIERS, READ, COPIED) as copier:
        wait_until(lambda: committed_positions(run.source.client(), COPIERS, READ) == {0: copied + 1}, 60, copier.told)
        copier.stop()
        assert copier.errors == []
    values = [Counter(each.value for each in read_topic(run.source.bootstrap, topic)) for topic in (READ, COPIED)]
    assert values[0] == values[1], "each record was processed once"


def test_an_open_transaction_keeps_later_ones_from_the_source_in_part(migration: Migration) -> None:
    """A transaction is open when the target dies. Later transactions of another producer are copied in part."""
    run = migration
    till = promoted(run)
    held = in_transactions(run.routers, "held")
    held.begin_transaction()
    held.produce(SOLD, b"held", partition=0)
    assert held.flush(30) == 0
    till.write(3)
    late = set().union(*(records for _, records in till.ended[-3:]))
    wait_until(lambda: {each for each in late if each[0] == BOOKED} <= visible(run.source, BOOKED), 60, run.logs)
    wait_until(lambda: "for the transaction of held" in noted(run)[SOLD, 0].reason, 60, lambda: str(noted(run)))
    lose_target(run)
    told = lost(run, code=4)

    assert not told["complete"]
    waited = row(told, SOLD, 0)
    assert waited["missing"] >= 4, "three records and the open transaction's"
    assert "the copy waited at offset" in waited["reason"]
    assert [each["waits_for"] for each in told["partitions"] if each["waits_for"]] == [], "copies are plain records"
    of_till, of_copier = units(told)[BOOKED], units(told)[COPIED]
    assert (of_till["topics"], of_till["groups"], of_till["transactional_ids"]) == (
        [BOOKED, SOLD],
        [],
        ["held", "till"],
    )
    assert (of_copier["groups"], of_copier["transactional_ids"]) == ([COPIERS], [f"{COPIERS}-x"])

    here = visible(run.source, SOLD, BOOKED)
    whole = [records <= here for ended_ms, records in till.ended if ended_ms <= of_till["whole_ms"]]
    assert len(whole) >= 3
    assert all(whole)
    assert late & here == {each for each in late if each[:2] != (SOLD, 0)}
    transactions_go_on(run, "till", "held")
    application_goes_on(run, told)


@pytest.mark.soak
def test_after_the_last_transaction_the_source_has_each_transaction_whole(migration: Migration) -> None:
    run = migration
    till = promoted(run)
    ended_ms, _ = till.ended[-1]

    def is_noted() -> bool:
        return min(note.fresh_ms for (topic, _), note in noted(run).items() if topic in (SOLD, BOOKED)) > ended_ms

    wait_until(is_noted, 60, lambda: str(noted(run)))
    lose_target(run)
    told = lost(run, code=0)
    assert units(told)[BOOKED]["whole_ms"] >= ended_ms
    here = visible(run.source, SOLD, BOOKED)
    assert all(records <= here for _, records in till.ended)
    transactions_go_on(run, "till")
    application_goes_on(run, told)


@pytest.mark.soak
def test_a_transaction_that_the_loss_leaves_open_at_the_source_is_named_and_ended(migration: Migration) -> None:
    """The topics were rolled back, so the transaction is at the source. The router dies with all other processes."""
    run = migration
    promoted(run)
    run.does("rollback", SOLD, BOOKED, "--yes")
    wait_until(lambda: noted(run)[SOLD, 0].state is NoteState.ROLLED_BACK, 60, lambda: str(noted(run)))
    held = in_transactions(run.routers, "held")
    held.begin_transaction()
    held.produce(SOLD, b"held", partition=0)
    assert held.flush(30) == 0
    lose_target(run)
    told = lost(run, code=0)
    assert row(told, SOLD, 0)["state"] == "rolled-back"
    waits = row(told, SOLD, 0)["waits_for"]
    assert (waits["transactional_id"], waits["hanging"]) == ("held", False)
    assert first_seen(run, waits["offset"], "read_uncommitted") == b"held"
    assert first_seen(run, waits["offset"], "read_committed") is None
    transactions_go_on(run, "held")


def first_seen(run: Migration, offset: int, level: str) -> bytes | None:
    """Return the record that a reader with this isolation level gets first from an offset on; None at the end."""
    settings = {"group.id": "nobody", "isolation.level": level, "enable.partition.eof": True}
    consumer = Consumer({**settings, **run.source.client()})
    try:
        consumer.assign([TopicPartition(SOLD, 0, offset)])
        message = consumer.poll(60)
        assert message is not None
        error = message.error()
        assert error is None or error.code() == KafkaError._PARTITION_EOF, error
        return message.value() if error is None else None
    finally:
        consumer.close()
