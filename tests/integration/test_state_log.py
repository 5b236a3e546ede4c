"""The state log on a real broker: the log never forks, with simultaneous writers and a broker that forgot producers."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import PlaceLostError, fetch_one
from kmigrate.errors import KmigrateError, Refused, StateLogBroken, Unreachable
from kmigrate.model.presences import ControllerPresence
from kmigrate.model.records import SCHEMA, ClusterRef, LeaseRecord, LinkRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, FetchPartition, decode_produce, encode_produce
from kmigrate.records.batch import walk
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.final_read import read_topic
from kmigrate.state import log as state_log
from kmigrate.state.codec import Envelope, encode_envelope
from kmigrate.state.log import Decide, StateLog, state_producer_id
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC, ensure_state_log


def settings(bootstrap: str) -> ClusterSettings:
    addresses = (each.rsplit(":", 1) for each in bootstrap.split(","))
    return ClusterSettings("target", tuple((host, int(port)) for host, port in addresses))


def counter(key: str = "n", holder: str = "w") -> Callable[[State], LeaseRecord]:
    def decide(state: State) -> LeaseRecord:
        now = state.lease(key)
        return LeaseRecord(key, holder, (now.term if now else 0) + 1)

    return decide


def dropped(key: str) -> Decide:
    return lambda state: (f"lease/{key}", None) if state.lease(key) else None


def read_values(bootstrap: str, topic: str) -> list[tuple[int, dict[str, Any]]]:
    """Return every record of the log as librdkafka sees it."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    out: list[tuple[int, dict[str, Any]]] = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            break
        offset, value = message.offset(), message.value()
        assert offset is not None and value is not None
        out.append((offset, json.loads(value)))
    consumer.close()
    return out


def assert_linear(bootstrap: str, topic: str, *, void: int = 0) -> list[tuple[int, dict[str, Any]]]:
    """Check that the chain of valid records is whole:

    each record stands at its offset and follows the record before.
    """
    values = read_values(bootstrap, topic)
    valid = [(offset, body) for offset, body in values if body["at"] == offset]
    assert len(values) - len(valid) == void
    for (_, before), (_, after) in itertools.pairwise(valid):
        assert after["prev"] == before["nonce"]
    return valid


@pytest.fixture
def fresh(own_cluster: Any) -> Any:
    """Start a broker that forgets producers as soon as their records are old, and compresses where it may."""
    return own_cluster(
        config={
            "producer.id.expiration.ms": "1000",
            "producer.id.expiration.check.interval.ms": "500",
            "compression.type": "gzip",
        }
    )


async def made_and_altered(client: ClusterClient, admin: Admin) -> None:
    """Make the state log on a cluster, and let somebody alter its configs.

    The next start restores the configs that the log needs.
    """
    altered = {"compression.type": "gzip", "min.compaction.lag.ms": "0", "segment.bytes": "1048576"}

    async def has(wanted: dict[str, str]) -> None:
        while True:
            found = (await admin.topic_configs([STATE_TOPIC]))[STATE_TOPIC]
            if {key: found[key].value for key in wanted} == wanted:
                return
            await asyncio.sleep(0.05)

    async with asyncio.timeout(30):
        await ensure_state_log(client, admin)
        await admin.alter_topic_configs(STATE_TOPIC, altered)
        await has(altered)
        assert await ensure_state_log(client, admin) == []
        await has({**altered, "compression.type": "producer", "min.compaction.lag.ms": "86400000"})


def test_two_writers_at_once_interleave_and_never_fork(fresh: Any) -> None:
    async def run() -> None:
        conf = settings(fresh.bootstrap)
        async with ClusterClient(conf) as one, ClusterClient(conf) as two:
            await made_and_altered(one, Admin(conf))
            async with StateLog(one) as a, StateLog(two) as b:

                async def bump(log: StateLog, who: str) -> None:
                    for _ in range(100):
                        await log.append(counter(holder=who))

                async with asyncio.TaskGroup() as group:
                    group.create_task(bump(a, "a"))
                    group.create_task(bump(b, "b"))
                assert (await a.read_to_end()).lease("n").term == 200  # type: ignore[union-attr]
                assert (await b.read_to_end()).records == a.state.records

    asyncio.run(run())
    valid = assert_linear(fresh.bootstrap, STATE_TOPIC)
    assert [body["record"]["term"] for _, body in valid] == list(range(1, 201))


async def raw_append(client: ClusterClient, *, at: int, sequence: int, term: int) -> tuple[int, int]:
    """Send the batch of a writer with a stale view; return error code and base offset."""
    value = encode_envelope(Envelope(at, "stale", "stale-nonce", LeaseRecord("n", "stale", term)))
    batch = one_record_batch(
        b"lease/n", value, timestamp=1, producer_id=state_producer_id(STATE_TOPIC), epoch=0, sequence=sequence
    )
    await client.refresh([STATE_TOPIC])
    connection = await client.connection(client.leader(STATE_TOPIC, 0))
    frame = await connection.call_raw(
        ApiKey.PRODUCE, PRODUCE_VERSION, encode_produce([(STATE_TOPIC, 0, batch)]), flexible=True
    )
    answer = decode_produce(frame)[(STATE_TOPIC, 0)]
    return answer.error, answer.base_offset


def test_a_stale_writer_after_the_broker_forgot_is_void_and_repaired(fresh: Any) -> None:
    """W1: the broker forgets producers, then takes any sequence; `at` still keeps the log linear."""

    async def run() -> None:
        conf = settings(fresh.bootstrap)
        async with ClusterClient(conf) as client, StateLogOn(client, conf) as log:
            for _ in range(5):
                await log.append(counter())
            error, _ = await raw_append(client, at=2, sequence=9, term=99)
            assert error == 45, "while the broker remembers, a gap is refused"
            await forget(client)
            error, base = await raw_append(client, at=2, sequence=2, term=99)
            assert (error, base) == (0, 5), "the broker has forgotten: the stale write is stored"
            await log.append(counter())
            assert log.state.lease("n") == LeaseRecord("n", "w", 6)
            async with StateLog(client) as again:
                assert again.state.lease("n") == LeaseRecord("n", "w", 6)

    asyncio.run(run())
    valid = assert_linear(fresh.bootstrap, STATE_TOPIC, void=1)
    assert [body["record"]["term"] for _, body in valid] == [1, 2, 3, 4, 5, 5, 6], "the void key was written again"


async def forget(client: ClusterClient) -> None:
    """Wait until the broker knows no producer of the state log any more."""
    for _ in range(100):
        await asyncio.sleep(0.2)
        told = await client.describe_producers([(STATE_TOPIC, 0)])
        if not told[(STATE_TOPIC, 0)][1]:
            return
    raise AssertionError("the broker never forgot")


class StateLogOn:
    """A fresh state log, opened."""

    def __init__(self, client: ClusterClient, conf: ClusterSettings) -> None:
        self.log = StateLog(client)
        self._client, self._conf = client, conf

    async def __aenter__(self) -> StateLog:
        await ensure_state_log(self._client, Admin(self._conf))
        await self.log.open()
        return self.log

    async def __aexit__(self, *_: object) -> None:
        await self.log.close()


def refusal(cluster: Any) -> KmigrateError:
    async def run() -> None:
        conf = settings(cluster.bootstrap)
        async with ClusterClient(conf) as client:
            await ensure_state_log(client, Admin(conf))

    with pytest.raises(Refused) as caught:
        asyncio.run(run())
    return caught.value


def test_a_state_topic_with_two_partitions_is_refused(own_cluster: Any, make_topic: Any) -> None:
    cluster = own_cluster()
    make_topic(cluster, STATE_TOPIC, partitions=2, config={"cleanup.policy": "compact"})
    error = refusal(cluster)
    assert error.ref == "bad-state-topic"
    assert "2 partitions" in error.what


def test_a_state_topic_that_deletes_is_refused(own_cluster: Any, make_topic: Any) -> None:
    cluster = own_cluster()
    make_topic(cluster, PRESENCE_TOPIC, config={"cleanup.policy": "compact"})
    make_topic(cluster, STATE_TOPIC, config={"cleanup.policy": "delete"})
    assert "cleanup.policy=delete" in refusal(cluster).what


def test_a_missing_state_log_names_the_next_command(target: Any, own_cluster: Any) -> None:
    cluster = own_cluster()

    async def run() -> None:
        async with ClusterClient(settings(cluster.bootstrap)) as client:
            await StateLog(client).open()

    with pytest.raises(Refused) as caught:
        asyncio.run(run())
    assert caught.value.ref == "no-state-log"
    assert "link create" in caught.value.next_step


def test_a_log_of_a_newer_version_is_refused(own_cluster: Any) -> None:
    cluster = own_cluster()

    async def run() -> None:
        conf = settings(cluster.bootstrap)
        async with ClusterClient(conf) as client:
            await ensure_state_log(client, Admin(conf))
            async with StateLog(client) as log:
                link = LinkRecord("l", "u", ClusterRef("s", "x:1"), ClusterRef("t", "y:1"), 1)
                await log.append(lambda state: None if state.link("l") else link)
            value = json.dumps({"schema": SCHEMA + 1, "at": 1, "prev": "", "nonce": "n", "record": None}).encode()
            batch = one_record_batch(
                b"x", value, timestamp=1, producer_id=state_producer_id(STATE_TOPIC), epoch=0, sequence=1
            )
            connection = await client.connection(client.leader(STATE_TOPIC, 0))
            await connection.call_raw(
                ApiKey.PRODUCE, PRODUCE_VERSION, encode_produce([(STATE_TOPIC, 0, batch)]), flexible=True
            )
            await StateLog(client).open()

    with pytest.raises(StateLogBroken) as caught:
        asyncio.run(run())
    assert caught.value.ref == "newer-state-log"


def live(bootstrap: str) -> set[str]:
    """Return the keys of all records in the log, tombstones included."""
    return {(each.key or b"").decode() for each in read_topic(bootstrap, STATE_TOPIC)}


CLEANED_AT_ONCE = {
    "segment.ms": "400",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "0",
    "min.cleanable.dirty.ratio": "0.0",
}


def stand_still(log: StateLog) -> asyncio.Event:
    """Stop a reader's reading until the returned event is set."""
    go_on, poll = asyncio.Event(), log._tail.poll

    async def later(max_wait_ms: int) -> None:
        await go_on.wait()
        await poll(max_wait_ms)

    log._tail.poll = later  # type: ignore[method-assign]
    return go_on


def test_keys_that_are_dropped_leave_the_log_and_who_opens_it_then_goes_on(own_cluster: Any) -> None:
    """A live log cleaner removes the records, and librdkafka judges the rest."""
    cluster = own_cluster(config={"log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "100"})
    names = [f"k{number}" for number in range(20)]

    async def run() -> None:
        conf = settings(cluster.bootstrap)
        async with ClusterClient(conf) as client, StateLogOn(client, conf) as log, StateLog(client) as still:
            await Admin(conf).alter_topic_configs(STATE_TOPIC, CLEANED_AT_ONCE)
            for name in names:
                await log.append(counter(name))
            assert len((await still.read_to_end()).records) == len(names)
            go_on = stand_still(still)
            for name in names:
                await log.append(dropped(name))
            tombstones = [each for each in read_topic(cluster.bootstrap, STATE_TOPIC) if each.value is None]
            assert len(tombstones) == len(names)
            for each in tombstones:
                ((name, envelope),) = each.headers
                assert (name, json.loads(envelope or b"")["at"]) == ("kmigrate", each.offset)
            while live(cluster.bootstrap) != {"lease/n"}:
                await log.append(counter())  # The newest segment is never compacted.
                await asyncio.sleep(0.3)
            go_on.set()
            assert (await still.read_to_end()).records == log.state.records, "it has read none of the tombstones"
            async with StateLog(client) as late:
                assert late.state.records == log.state.records
                await late.append(counter(names[0], "late"))
                assert (await log.read_to_end()).lease(names[0]) == LeaseRecord(names[0], "late", 1)
                await log.append(counter(names[0]))
                assert (await late.read_to_end()).lease(names[0]) == LeaseRecord(names[0], "w", 2)

    asyncio.run(run())
    assert live(cluster.bootstrap) == {"lease/n", "lease/k0"}


async def led_by(client: ClusterClient, wanted: Callable[[int], bool]) -> None:
    while True:
        with suppress(Unreachable):
            await client.refresh([STATE_TOPIC])
            if wanted(client.leader(STATE_TOPIC, 0)):
                return
        await asyncio.sleep(0.2)


async def away(cluster: Any, client: ClusterClient, node: int) -> None:
    cluster.kill(node)
    await led_by(client, lambda led: led not in (node, -1))


async def back(cluster: Any, client: ClusterClient, node: int) -> None:
    await asyncio.to_thread(cluster.restart, node)
    await led_by(client, lambda led: led == node)


def note_errors(log: StateLog) -> list[type[Exception]]:
    """Return a list that collects the errors of a log's reading from now on."""
    seen: list[type[Exception]] = []
    poll = log._tail.poll

    async def noted(max_wait_ms: int) -> None:
        try:
            await poll(max_wait_ms)
        except Exception as error:
            seen.append(type(error))
            raise

    log._tail.poll = noted  # type: ignore[method-assign]
    return seen


@pytest.mark.soak
def test_who_was_away_reads_the_log_anew_from_a_leader_that_lost_its_disk(own_cluster: Any) -> None:
    """The reader's position is lost, because the leader lost its disk.

    The leader got only the records that compaction had left, and none of the epoch in which the reader last read.
    """
    quick = {"leader.imbalance.check.interval.seconds": "1", "leader.imbalance.per.broker.percentage": "0"}
    cleaner = {"log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "100"}
    cluster = own_cluster(brokers=3, config={**quick, **cleaner})
    names = [f"k{number}" for number in range(20)]

    async def run() -> type[Exception]:
        conf = settings(cluster.bootstrap)
        async with (
            ClusterClient(conf) as client,
            StateLogOn(client, conf) as log,
            ClusterClient(conf) as other,
            StateLog(other) as still,
            asyncio.timeout(150),
        ):
            first = client.metadata.topics[STATE_TOPIC].partitions[0].replicas[0]
            await led_by(client, lambda led: led == first)
            await Admin(conf).alter_topic_configs(STATE_TOPIC, CLEANED_AT_ONCE)
            await log.append(counter("kept"), timeout=60)
            await away(cluster, client, first)
            await back(cluster, client, first)
            for name in names:
                await log.append(counter(name), timeout=60)
            assert len((await still.read_to_end()).records) == len(names) + 1
            go_on, seen = stand_still(still), note_errors(still)
            await away(cluster, client, first)
            for name in names:
                await log.append(dropped(name), timeout=60)
            while await asyncio.to_thread(live, cluster.bootstrap) != {"lease/kept", "lease/n"}:
                await log.append(counter(), timeout=60)
                await asyncio.sleep(0.3)
            for folder in cluster.brokers[first].folder.rglob(f"{STATE_TOPIC}-0"):
                shutil.rmtree(folder)
            await back(cluster, client, first)
            go_on.set()
            await led_by(other, lambda led: led == first)
            assert (await still.read_to_end(60)).records == log.state.records
            await still.append(counter(names[0], "again"), timeout=60)
            assert (await log.read_to_end()).lease(names[0]) == LeaseRecord(names[0], "again", 1)
            return seen[-1]

    assert asyncio.run(run()) is PlaceLostError


@pytest.mark.soak
def test_who_lives_is_known_at_once_also_where_the_clock_is_an_hour_off(
    own_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A presence counts as alive by the broker's clock, and not by the local clock.

    By a clock that was ahead no process was alive; by a clock that was behind, all processes that died within the hour
    were.
    """
    cluster = own_cluster()

    async def run() -> None:
        conf = settings(cluster.bootstrap)
        dead, alive = (ControllerPresence(name, 4, True, 500) for name in ("dead", "alive"))
        async with ClusterClient(conf) as client, StateLogOn(client, conf) as log:
            await log.announce(dead)
            await asyncio.sleep(3.1)
            for wrong_ms in (-3_600_000, 3_600_000):
                await log.announce(alive)
                with monkeypatch.context() as patch:
                    patch.setattr(state_log, "steady_ms", lambda wrong_ms=wrong_ms: now_ms() + wrong_ms)
                    async with StateLog(client) as late:
                        assert late.alive(ControllerPresence) == [alive]
                        assert abs(late.now_ms() - now_ms()) < 1_000

    asyncio.run(run())
    assert [key for key, _ in last_words(cluster.bootstrap)][-1] == b"clock"


@pytest.mark.soak
def test_a_log_whose_newest_record_is_gone_is_opened_and_written_on(own_cluster: Any) -> None:
    """The newest record was a tombstone.

    The segment of the newest record is never cleaned, so the test puts an empty segment behind it. The tombstone's
    batch stays, emptied, also for a forgotten producer; brokers before 4.0 remove the batch (KAFKA-17076).
    """
    cluster = own_cluster(
        config={
            "log.cleaner.backoff.ms": "100",
            "log.segment.delete.delay.ms": "100",
            "producer.id.expiration.ms": "1000",
            "producer.id.expiration.check.interval.ms": "500",
        },
    )
    conf = settings(cluster.bootstrap)

    async def drop() -> None:
        async with ClusterClient(conf) as client, StateLogOn(client, conf) as log:
            for decide in (counter("kept"), counter("gone"), dropped("gone")):
                await log.append(decide)
            await Admin(conf).alter_topic_configs(STATE_TOPIC, {**CLEANED_AT_ONCE, "segment.ms": "3600000"})

    asyncio.run(drop())

    async def left() -> list[int]:
        """Return the number of records in each batch of the log."""
        async with ClusterClient(conf) as client:
            await client.refresh([STATE_TOPIC])
            wanted = FetchPartition(STATE_TOPIC, 0, 0, 1 << 20)
            answer = await fetch_one(client, client.leader(STATE_TOPIC, 0), wanted, purpose="test")
            return [batch.count for batch in walk(answer.records)]

    data = cluster.brokers[1].folder / "data"
    for _ in range(10):  # The cleaner removes a tombstone at its second pass.
        cluster.terminate(1)
        (data / f"{STATE_TOPIC}-0" / f"{3:020d}.log").touch()
        (data / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        cluster.restart(1)
        cluster.wait_ready()
        time.sleep(2)
        if asyncio.run(left()) == [1, 0]:
            break
    assert asyncio.run(left()) == [1, 0]
    assert live(cluster.bootstrap) == {"lease/kept"}

    async def go_on() -> None:
        async with ClusterClient(conf) as client, StateLog(client) as log:
            assert list(log.state.records) == ["lease/kept"]
            await log.append(counter("kept"))
            async with StateLog(client) as again:
                assert again.state.lease("kept") == LeaseRecord("kept", "w", 2)

    asyncio.run(go_on())
    offset, body = read_values(cluster.bootstrap, STATE_TOPIC)[-1]
    assert (offset, body["at"], body["prev"]) == (3, 3, "")


@pytest.mark.soak
def test_the_log_is_read_and_written_on_seconds_after_another_broker_leads_it(own_cluster: Any) -> None:
    """The former leader stands still: it accepts connections and requests, and answers none (SIGSTOP)."""
    cluster = own_cluster(brokers=3)

    def moved_from(led: int) -> float:
        """Return the time at which other brokers led both topics, as the living brokers report."""
        addresses = cluster.bootstrap.split(",")
        others = AdminClient({"bootstrap.servers": ",".join(each for each in addresses if each != addresses[led - 1])})
        while True:
            topics = others.list_topics(timeout=10).topics
            if led not in {topics[topic].partitions[0].leader for topic in (STATE_TOPIC, PRESENCE_TOPIC)}:
                return monotonic()
            time.sleep(0.2)

    async def run() -> float:
        conf = settings(cluster.bootstrap)
        async with ClusterClient(conf) as one, ClusterClient(conf) as two, StateLogOn(one, conf) as reader:
            led = one.leader(STATE_TOPIC, 0)
            async with StateLog(two) as writer:
                await writer.append(counter())
                cluster.pause(led)
                try:
                    writing = asyncio.ensure_future(writer.append(counter(), timeout=60))
                    moved = await asyncio.to_thread(moved_from, led)
                    await writing
                    second = LeaseRecord("n", "w", 2)
                    await reader.wait(lambda state: state.lease("n") == second or None, 60, "the second record")
                    return monotonic() - moved
                finally:
                    cluster.resume(led)

    assert asyncio.run(run()) < 12


def last_words(bootstrap: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of the presence log, as librdkafka reads them."""
    return [(record.key, record.value) for record in read_topic(bootstrap, PRESENCE_TOPIC)]


def test_presence_is_heard_by_who_opens_the_log_now_and_by_who_has_it_open(own_cluster: Any) -> None:
    cluster = own_cluster()

    async def run() -> None:
        conf = settings(cluster.bootstrap)
        async with ClusterClient(conf) as client, StateLogOn(client, conf) as log:
            assert log.alive(ControllerPresence) == []
            said = ControllerPresence("i", 4, True, 500)
            await log.announce(said)
            async with StateLog(client) as late:
                assert late.alive(ControllerPresence) == [said]
            await log.wait(lambda _: log.alive(ControllerPresence) or None, 5, "the announcement")
            await asyncio.sleep(3.2)
            assert log.alive(ControllerPresence) == [], "nobody says it again: it is not alive any more"

    asyncio.run(run())
