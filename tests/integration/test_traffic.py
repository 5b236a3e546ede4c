"""Live clients of two families on a real broker, judged by the records that the broker then holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.errors import Failed
from kmigrate.sandbox.checker import Verdict, check
from kmigrate.sandbox.client_specs import (
    ClientSpec,
    ConsumerSpec,
    ProducerSpec,
    TransactionalSpec,
    demo_clients,
)
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from kmigrate.sandbox.history import HistoryWriter, read_history
from kmigrate.sandbox.kafka import ClusterSpec, KafkaCluster
from kmigrate.sandbox.pauses import Timeline
from kmigrate.sandbox.payload import content_of
from kmigrate.sandbox.preload import Preload, preload
from kmigrate.sandbox.processes import ProcessIdentity, identify
from kmigrate.sandbox.traffic import Traffic
from tests.fakes.relay import Relay

MakeTopic = Callable[..., None]
UniqueName = Callable[[str], str]


@pytest.fixture
def estate(
    source: KafkaCluster, make_topic: MakeTopic, unique_name: UniqueName, tmp_path: Path
) -> Iterator[tuple[Traffic, str, str]]:
    """Make a small estate on the source: two producers, a transactional writer and a group of both families."""
    orders, payments, group = unique_name("orders"), unique_name("payments"), unique_name("billing")
    make_topic(source, orders, 3)
    make_topic(source, payments, 2)
    specs: tuple[ClientSpec, ...] = (
        ProducerSpec("shop-1", "librdkafka", orders, 200),
        ProducerSpec("shop-2", "aiokafka", orders, 200),
        TransactionalSpec(unique_name("till"), payments, 100),
        ConsumerSpec("billing-1", "librdkafka", group, (orders, payments)),
        ConsumerSpec("billing-2", "aiokafka", group, (orders, payments)),
    )
    traffic = Traffic.create(tmp_path / "traffic", specs, tied=True)
    yield traffic, orders, payments
    traffic.kill("all")


def final_read(cluster: KafkaCluster, *topics: str) -> Iterator[FinalRecord]:
    for topic in topics:
        yield from read_topic(cluster.bootstrap, topic)


def judge(traffic: Traffic, cluster: KafkaCluster, *topics: str) -> Verdict:
    history = traffic.folder.parent / "history.jsonl"
    traffic.write_history(history)
    return check(read_history(history), final_read(cluster, *topics))


def test_ten_seconds_of_traffic_with_a_roll_are_judged_clean(
    source: KafkaCluster, estate: tuple[Traffic, str, str]
) -> None:
    traffic, orders, payments = estate
    traffic.start(source.bootstrap)
    time.sleep(5)
    rolled = traffic.roll("shop-1", source.bootstrap) + traffic.roll("billing-1", source.bootstrap)
    assert [client.run for client in rolled] == [2, 2]
    time.sleep(4)
    assert traffic.stop() == []

    verdict = judge(traffic, source, orders, payments)

    assert verdict.clean, verdict
    assert verdict.acked > 2500
    assert verdict.indefinite == 0
    assert verdict.aborted > 50
    timeline = Timeline.of(read_history(traffic.folder.parent / "history.jsonl"))
    assert 0 < timeline.baseline_ack_ms().p50 < 1000
    names = {event.process for event in read_history(traffic.folder.parent / "history.jsonl")}
    assert {"shop-1.1", "shop-1.2", "shop-2.1", "billing-1.2"} <= names


@pytest.mark.soak
def test_killed_clients_leave_indefinite_sends_and_no_anomaly(
    source: KafkaCluster, estate: tuple[Traffic, str, str]
) -> None:
    traffic, orders, payments = estate
    traffic.start(source.bootstrap)
    time.sleep(2)
    for name in ("shop-1", "shop-2", "billing-1", "billing-2"):
        traffic.kill(name)
        traffic.start(source.bootstrap, name)
    assert traffic.stop() == []

    verdict = judge(traffic, source, orders, payments)

    assert verdict.clean, verdict
    assert verdict.acked > 500


def test_the_judge_sees_a_real_loss_and_a_real_stranger(
    source: KafkaCluster, source_admin: AdminClient, estate: tuple[Traffic, str, str]
) -> None:
    traffic, orders, payments = estate
    traffic.start(source.bootstrap)
    time.sleep(1)
    traffic.stop()
    for cut in source_admin.delete_records([TopicPartition(orders, 0, 3)]).values():
        cut.result(10)
    stranger = Producer({"bootstrap.servers": source.bootstrap})
    stranger.produce(orders, b"hello", partition=1)
    assert stranger.flush(10) == 0

    verdict = judge(traffic, source, orders, payments)

    assert (verdict.count("lost"), verdict.count("extra")) == (3, 1), verdict


def test_the_judge_sees_a_group_that_was_put_back_and_half_a_transaction_on_a_real_broker(
    source: KafkaCluster, source_admin: AdminClient, estate: tuple[Traffic, str, str]
) -> None:
    traffic, orders, payments = estate
    (group,) = {client.spec.group for client in traffic.clients() if isinstance(client.spec, ConsumerSpec)}
    traffic.start(source.bootstrap)
    time.sleep(2)
    assert traffic.stop() == []
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(orders, 0, 1)])
    assert source_admin.alter_consumer_group_offsets([back])[group].result(20) is not None
    half_of_a_transaction(traffic.folder / "ghost.1.jsonl", source, payments)
    traffic.start(source.bootstrap, "consumers")
    assert traffic.stop() == []

    verdict = judge(traffic, source, orders, payments)

    found = verdict.named
    assert set(found) - {"group_rereads", "commits_back"} == {"rewinds", "torn"}, verdict
    assert (verdict.count("rewinds"), verdict.count("torn")) == (1, 1), verdict
    assert f"of {group} read {orders}-0 at 1 first; {group} had committed" in found["rewinds"].examples[0]
    assert "transaction 0 of ghost.1" in found["torn"].examples[0]


def half_of_a_transaction(history: Path, cluster: KafkaCluster, topic: str) -> None:
    """Write two of four records that a writer named in a transaction with an unknown outcome."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    named = [f"ghost.1:{seq}" for seq in range(4)]
    with HistoryWriter(history, "ghost.1", role="transactional") as pen:
        pen.record("ok", "begin", topic=topic, txn=0)
        for value in named:
            pen.record("invoke", "send", topic=topic, partition=0, value=value, txn=0)
        pen.record("invoke", "txn", topic=topic, txn=0, detail={"ask": "commit"})
        pen.flush()
        for seq, value in enumerate(named[:2]):
            content = content_of(value, seq)
            producer.produce(topic, content.value, content.key, partition=0, headers=list(content.headers))
        assert producer.flush(10) == 0


@pytest.mark.parametrize("family", ["librdkafka", "aiokafka"])
@pytest.mark.parametrize("acks", ["1", "0"])
def test_weaker_acks_are_recorded_for_what_they_are(
    source: KafkaCluster,
    make_topic: MakeTopic,
    unique_name: UniqueName,
    tmp_path: Path,
    family: str,
    acks: str,
) -> None:
    topic = unique_name("weak")
    make_topic(source, topic, 2)
    spec = ProducerSpec("weak-1", family, topic, 300, acks=acks, idempotent=False)  # type: ignore[arg-type]
    traffic = Traffic.create(tmp_path / "traffic", [spec], tied=True)
    traffic.start(source.bootstrap)
    time.sleep(1)
    traffic.stop()

    verdict = judge(traffic, source, topic)

    assert verdict.clean, verdict
    assert verdict.final_records > 100
    told = (verdict.acked, verdict.indefinite)
    assert told == ((verdict.final_records, 0) if acks == "1" else (0, verdict.final_records))


@pytest.mark.soak
def test_idempotent_clients_come_through_cut_and_stalled_connections(tmp_path: Path) -> None:
    with Relay() as relay:
        listener = {"advertised.listeners": f"PLAINTEXT://{relay.address}"}
        cluster = KafkaCluster.create(ClusterSpec("relayed", "4.3.1", 1, listener), tmp_path / "brokers")
        relay.forward_to(f"127.0.0.1:{cluster.brokers[1].port}")
        try:
            cluster.start()
            cluster.wait_ready()
            admin = AdminClient({"bootstrap.servers": relay.address})
            admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(30)
            specs = (
                ProducerSpec("shop-1", "librdkafka", "orders", 300),
                ProducerSpec("shop-2", "aiokafka", "orders", 300),
                ConsumerSpec("billing-1", "librdkafka", "billing", ("orders",)),
                ConsumerSpec("billing-2", "aiokafka", "billing", ("orders",)),
            )
            traffic = Traffic.create(tmp_path / "traffic", specs, tied=True)
            traffic.start(relay.address)
            for _ in range(3):
                time.sleep(0.5)
                relay.cut_after(777, "up")  # The cut is in the middle of a request.
                time.sleep(0.5)
                relay.cut_after(33, "down")  # The cut is in the middle of an answer.
                time.sleep(0.5)
                relay.stall("down")
                time.sleep(0.3)
                relay.heal()
            time.sleep(1)
            assert traffic.stop() == []
            passed = relay.connections
            verdict = judge(traffic, cluster, "orders")
        finally:
            cluster.stop()
    assert passed > 10
    assert verdict.clean, verdict
    assert verdict.acked > 500


def test_an_open_transaction_makes_the_final_read_give_up_by_name(
    source: KafkaCluster, make_topic: MakeTopic, unique_name: UniqueName
) -> None:
    topic = unique_name("open")
    make_topic(source, topic)
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": unique_name("tx")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(10)
    with pytest.raises(Failed, match="final-read-stuck"):
        list(read_topic(source.bootstrap, topic, timeout=2))
    producer.abort_transaction(30)
    assert list(read_topic(source.bootstrap, topic)) == []


def test_a_preload_is_found_again_and_its_groups_start_where_they_stood(
    own_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    cluster = own_cluster(version="3.9.1")
    past = tmp_path / "preload.jsonl"
    made = preload(cluster.bootstrap, past, Preload(records=12_000, log_start=50_000))
    assert made.records == {"orders": 12_000, "payments": 500, "audit": 0}
    assert all(start > 50_000 for start in made.log_starts.values())
    offsets = {(r.partition, r.offset) for r in read_topic(cluster.bootstrap, "orders")}
    assert min(offset for partition, offset in offsets if partition == 3) == made.log_starts[3]

    specs = [spec for spec in demo_clients(100) if spec.role == "consumer"]
    traffic = Traffic.create(tmp_path / "traffic", specs, tied=True)
    traffic.start(cluster.bootstrap)
    assert traffic.stop(also_read=[past]) == []
    history = tmp_path / "history.jsonl"
    traffic.write_history(history, with_files=[past])
    verdict = check(read_history(history), final_read(cluster, "orders", "payments", "audit"))

    assert verdict.clean, verdict
    assert (verdict.acked, verdict.preloaded, verdict.aborted) == (0, 12_500, 100)


def test_tied_clients_end_with_the_process_that_they_are_tied_to(source: KafkaCluster, tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from kmigrate.sandbox.client_specs import ConsumerSpec
from tests.fakes.relay import Relay
from kmigrate.sandbox.traffic import Traffic
spec = ConsumerSpec("billing-1", "librdkafka", "tied-group", ("no-such-topic",))
traffic = Traffic.create(Path({str(tmp_path)!r}), [spec], tied=True)
traffic.start({source.bootstrap!r})
print("up", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        client = Traffic(tmp_path).clients()[0].process
        assert client is not None
        assert client.alive()
        os.kill(parent.pid, signal.SIGKILL)
    assert gone_within(client, 5)


def gone_within(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while identify(process.pid) == process:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
