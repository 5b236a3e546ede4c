"""Records of foreign producers in kmigrate's topics, on a real broker: no process ends, and the records are named."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import StateLogBroken
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import ControllerPresence, RouterPresence
from kmigrate.model.records import LeaseRecord
from kmigrate.model.state import State
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, decode_produce, encode_produce
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.kafka import TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.state.checks import find_strays
from kmigrate.state.codec import Envelope, encode_envelope
from kmigrate.state.fold import state_producer_id
from kmigrate.state.log import StateLog
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.state.topics import MAP_TOPIC, PRESENCE_TOPIC, STATE_TOPIC, ensure_map_topic, ensure_state_log
from tests.integration.router_world import link_between, quietly, router, settings_of, values

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
_DEEP = b"[" * 50_000
_ODD = [
    b"",
    b"\xff\x00\x1b[31m",
    _DEEP,
    b'{"schema": 99}',
    b'{"kind": ["RouterPresence"], "instance": {}}',
    b'{"kind": "RouterPresence", "instance": "i", "name": 7, "applied": 1, "interval_ms": 1e999}',
    b'{"schema": 99, "target_topic_id": [], "runs": "////"}',
]
_KEYS = [b"lease/n", b"router/i", b"u/t/0/1/0", b"\xff"]


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Start a broker that anybody may write to, for this module alone."""
    cluster = KafkaCluster.create(ClusterSpec("open", TARGET_VERSION, 1, {}), tmp_path_factory.mktemp("open"))
    cluster.start()
    cluster.wait_ready()
    yield cluster
    cluster.stop()


def write_strays(bootstrap: str, topic: str) -> None:
    """Write strays as single records, as compressed batches with idempotence, and in a transaction."""
    for settings in (
        {},
        {"enable.idempotence": True, "compression.type": "zstd", "linger.ms": 50},
        {"transactional.id": f"stray-{topic}", "compression.type": "gzip"},
    ):
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        if "transactional.id" in settings:
            producer.init_transactions()
            producer.begin_transaction()
        for value in _ODD:
            for key in _KEYS:
                producer.produce(topic, value, key)
        producer.produce(topic, None, b"lease/n")
        if "transactional.id" in settings:
            producer.commit_transaction()
        assert producer.flush(20) == 0


def counted(state: State) -> LeaseRecord:
    now = state.lease("n")
    return LeaseRecord("n", "w", (now.term if now else 0) + 1)


def test_state_is_read_and_written_on_behind_strays_in_every_shape(open_cluster: KafkaCluster) -> None:
    conf = settings_of("target", open_cluster.bootstrap)

    async def scenario() -> None:
        async with ClusterClient(conf) as one, ClusterClient(conf) as two:
            await ensure_state_log(one, Admin(conf))
            await ensure_map_topic(one, Admin(conf))
            async with StateLog(one) as log:
                await log.append(counted)
                first = log.state.lease("n")
                assert first is not None
                for topic in (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC):
                    await quietly(write_strays, open_cluster.bootstrap, topic)
                await log.append(counted, timeout=10)
                await log.announce(ControllerPresence("c", 1, True, 60_000))
                async with StateLog(two) as other:
                    assert other.state.lease("n") == LeaseRecord("n", "w", first.term + 1)
                    assert other.state == log.state
                    assert [each.instance for each in other.alive(ControllerPresence)] == ["c"]
                    await other.append(counted, timeout=10)
                    assert other.strays()[STATE_TOPIC].count > 3 * len(_ODD) * len(_KEYS)
            maps = OffsetMaps(one)
            await maps.read_to_end()
            told = await find_strays(two)
            assert [topic in each for topic, each in zip((STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC), told, strict=True)]
            assert all(each.isprintable() for each in told)

    asyncio.run(scenario())


@pytest.mark.parametrize("settings", [{}, {"enable.idempotence": True}], ids=["plain", "idempotent"])
def test_a_copy_of_the_format_with_the_right_offset_and_chain_ends_nobody_and_decides_nothing(
    open_cluster: KafkaCluster, settings: dict[str, Any]
) -> None:
    """Every reader of the log can write kmigrate's next record, but not under kmigrate's producer id."""
    conf = settings_of("target", open_cluster.bootstrap)

    def copies(log: StateLog) -> list[bytes]:
        at, chain = log._fold.next_offset, ["another", log._fold.last_nonce, ""]
        made = [Envelope(at + n, prev, f"copy{n}", LeaseRecord("n", "thief", 1_000)) for n, prev in enumerate(chain)]
        newer = {**json.loads(encode_envelope(replace(made[1], at=at + 3))), "schema": 99}
        return [*map(encode_envelope, made), json.dumps(newer).encode()]

    async def scenario() -> None:
        async with ClusterClient(conf) as one, ClusterClient(conf) as two:
            await ensure_state_log(one, Admin(conf))
            async with StateLog(one) as log:
                await log.append(counted)
                before = log.state.lease("n")
                strays, end = log.strays()[STATE_TOPIC].count, log._fold.next_offset
                producer = Producer({"bootstrap.servers": open_cluster.bootstrap, "linger.ms": 0, **settings})
                offsets: list[int] = []
                for value in copies(log):
                    producer.produce(
                        STATE_TOPIC, value, b"lease/n", on_delivery=lambda _, told: offsets.append(told.offset() or -1)
                    )
                    assert await quietly(producer.flush, 20) == 0
                assert offsets == list(range(end, end + 4)), "each copy stands where it says"
                await log.read_to_end()
                assert log.state.lease("n") == before
                assert log.strays()[STATE_TOPIC].count == strays + 4
                await log.append(counted, timeout=10)
                async with StateLog(two) as other:
                    assert before is not None
                    assert other.state.lease("n") == LeaseRecord("n", "w", before.term + 1)
                    assert "another producer" in other.strays()[STATE_TOPIC].why

    asyncio.run(scenario())


def test_a_router_goes_on_when_the_state_log_cannot_be_read_any_more_and_says_so(
    source: KafkaCluster, own_cluster: Callable[[], KafkaCluster], make_topic: MakeTopic, unique_name: Names
) -> None:
    """A fork under kmigrate's producer id ends mirror and controller; a router serves clients by the last state."""
    target, topic, went_on = own_cluster(), unique_name("orders"), []
    make_topic(source, topic, partitions=3)
    make_topic(target, topic, partitions=3)

    async def forked(log: StateLog) -> bool:
        """Write a record in the place of the log's next record.

        Return False where another writer took that place first.
        """
        await log.read_to_end()
        fold = log._fold
        envelope = Envelope(fold.next_offset, "another", "nonce", LeaseRecord("n", "w", 1))
        data = one_record_batch(
            b"lease/n", encode_envelope(envelope), timestamp=1, producer_id=state_producer_id(STATE_TOPIC),
            epoch=fold.producer_epoch, sequence=fold.sequence,
        )  # fmt: skip
        async with ClusterClient(settings_of("target", target.bootstrap)) as client:
            await client.refresh([STATE_TOPIC])
            connection = await client.connection(client.leader(STATE_TOPIC, 0), "test")
            body = encode_produce([(STATE_TOPIC, 0, data)], timeout_ms=5000)
            frame = await connection.call_raw(ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True)
            answer = decode_produce(frame)[STATE_TOPIC, 0]
            return (answer.error, answer.base_offset) == (0, envelope.at)  # A duplicate is answered without an error.

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            with router("r1", target) as running:
                await world.routers_apply()
                deadline = time.monotonic() + 40
                while not await forked(world.log):
                    assert time.monotonic() < deadline, "the record was never the next one of the log"
                while not any(each.log_problem for each in world.log.alive(RouterPresence)):
                    assert time.monotonic() < deadline, "the router has not said it"
                    await asyncio.sleep(0.1)
                before = sum(map(len, values(source.bootstrap, topic).values()))
                failed: list[Any] = []
                producer = Producer({"bootstrap.servers": running.bootstrap, "message.timeout.ms": 20_000})
                for number in range(30):
                    producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failed.append(error))
                assert await quietly(producer.flush, 25) == 0
                assert failed == [None] * 30
                assert sum(map(len, values(source.bootstrap, topic).values())) == before + 30
                assert running.process.poll() is None
                went_on.append(True)

    with pytest.raises(StateLogBroken, match="follows another record"):  # The records behind a fork cannot be deleted.
        asyncio.run(scenario())
    assert went_on
