"""Producers that write to the source without a router, on real clusters: before a promote, at and after the flip."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kmigrate.model.records import CLOSED_SIZE
from kmigrate.net.clock import now_ms
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.integration.dying import DIES_AT
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.soak.direct_writers import Figures, soak

pytestmark = pytest.mark.timeout(400)

WINDOW_S = 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    settings = f"[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = {WINDOW_S}\n"
    with fresh_migration(Path(tmp_path_factory.mktemp("direct")), settings) as made:
        made.does("link", "create", "blue", "--source", "source", "--target", "target")
        made.start("mirror", "router", "controller")
        yield made


def mirrored(run: Migration, topic: str, partitions: int = 1) -> None:
    run.make_topic(topic, partitions)
    run.does("topic", "mirror", topic)


@contextmanager
def writing(write: Callable[[int], None], every_s: float) -> Iterator[list[float]]:
    """Have a thread write again and again; yield the times of the writes."""
    stop, times = threading.Event(), list[float]()

    def work() -> None:
        for number in count():
            write(number)
            times.append(time.monotonic())
            if stop.wait(every_s):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    return producer


def in_transaction(producer: Producer, topic: str, number: int) -> None:
    producer.begin_transaction()
    producer.produce(topic, f"{number}", partition=0)
    producer.commit_transaction(30)


def put(producer: Producer, topic: str, value: str, **more: Any) -> None:
    producer.produce(topic, value, partition=0, **more)
    assert producer.flush(20) == 0


def seen_writers(run: Migration, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.topic_status(topic)["direct_writers"]
    return found


def test_a_direct_producer_that_took_a_routed_transactional_id_over_is_named(run: Migration) -> None:
    mirrored(run, "tills")
    routed = transactional(run.routers, "till")
    in_transaction(routed, "tills", 0)
    wait_until(lambda: seen_writers(run, "tills") == [], 5, "no direct writer")
    direct = transactional(run.source.bootstrap, "till")
    with writing(lambda number: in_transaction(direct, "tills", number), 0.2):
        refused = run.cli("promote", "tills", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "direct-writers")
    assert "wrote to tills-0" in refused.told["what"]
    again = transactional(run.routers, "till")  # The source fences the direct producer.
    in_transaction(again, "tills", 1)
    run.does("promote", "tills", "--yes")
    in_transaction(again, "tills", 2)


def test_a_direct_producer_that_pauses_is_in_the_way_and_stays_named(run: Migration) -> None:
    mirrored(run, "pauses")
    producer = Producer({"bootstrap.servers": run.source.bootstrap, "enable.idempotence": True})
    with writing(lambda number: put(producer, "pauses", f"{number}"), 2.0) as times:
        wait_until(lambda: len(times) >= 3, 20, "three writes")
        time.sleep(WINDOW_S + 0.2)
        refused = run.cli("promote", "pauses", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "direct-writers")
    run.kill("mirror")
    run.start("mirror")
    told = "the writer to be named after a restart, by the state log alone: the killed mirror's presence has run out"
    (writer,) = wait_until(lambda: settled_writers(run, "pauses"), 20, told)
    assert writer["partition"] == 0
    assert 1 <= writer["records"] <= len(times), "the mirror was killed: its last half minute may be missing"
    assert writer["slowest_ms"] >= 1_900, "the writer pauses for longer than the window"
    planned = wait_until(lambda: planned_promote(run, "pauses"), 30, "the writer to have been silent for long enough")
    assert [f["ref"] for f in planned["findings"] if "direct" in f["ref"]] == ["direct-writers-seen"]
    run.does("promote", "pauses", "--yes")


def settled_writers(run: Migration, topic: str) -> list[dict[str, Any]]:
    """Return the direct writers where `status` and `topic show` agree on them: no presence has a newer time."""
    shown: list[dict[str, Any]] = run.does("topic", "show", topic)["status"]["direct_writers"]
    return shown if shown == seen_writers(run, topic) else []


def planned_promote(run: Migration, topic: str) -> Any:
    told = run.cli("promote", topic, "--plan")
    return told.told if told.code == 0 else None


def test_what_a_person_accepts_is_no_hindrance(run: Migration) -> None:
    mirrored(run, "accepted")
    put(Producer({"bootstrap.servers": run.source.bootstrap}), "accepted", "once")
    wait_until(lambda: seen_writers(run, "accepted"), 10, "the writer to be seen")
    (written,) = stragglers(run, "accepted")
    assert (written["kind"], written["cluster"], written["records"]) == ("direct-writes", "source", 1)
    assert not written["missing"]
    run.does("promote", "accepted", "--accept-direct-writers", "--yes")


def test_a_record_of_the_year_2036_does_not_keep_its_topic(run: Migration) -> None:
    mirrored(run, "ahead")
    producer = Producer({"bootstrap.servers": run.source.bootstrap, "enable.idempotence": True})
    put(producer, "ahead", "dated", timestamp=now_ms() + 10 * 365 * 86_400_000)
    run.does("promote", "ahead", "--yes")


# After the flip

FILLING = "x" * 200
"""Value that makes a batch larger than a transaction marker."""


def stragglers(run: Migration, name: str) -> list[dict[str, Any]]:
    """Return what `kmigrate stragglers` tells about a topic."""
    return [each for each in run.does("stragglers")["stragglers"] if each["name"] == name]


def limit(bootstrap: str, topic: str) -> str:
    """Return the topic's own max.message.bytes, '' where the topic has none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = admin.describe_configs([resource])[resource].result()["max.message.bytes"]
    return str(entry.value) if not entry.is_default else ""


def delivered(bootstrap: str, topic: str, value: str, **config: Any) -> str:
    """Write a record directly; return librdkafka's error, '' for an acknowledgement."""
    told: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **config})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: told.append(error.name() if error else ""))
    producer.flush(20)
    return told[0]


def promote(run: Migration, topic: str, *more: str) -> None:
    mirrored(run, topic)
    put(Producer({"bootstrap.servers": run.routers}), topic, "before")
    run.does("promote", topic, *more, "--yes")


def close(run: Migration, topic: str) -> None:
    promote(run, topic, "--no-way-back")
    wait_until(lambda: run.topic_status(topic)["source_closed"] == "closed", 20, "the source to be closed")


def values(bootstrap: str, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_topic(bootstrap, topic)]


def test_the_source_refuses_a_late_writer_and_lets_its_transaction_end(run: Migration) -> None:
    close(run, "closed")
    assert limit(run.source.bootstrap, "closed") == "78"
    for config in ({"enable.idempotence": True}, {"acks": "1"}, {"acks": "1", "compression.type": "gzip"}):
        assert delivered(run.source.bootstrap, "closed", FILLING, **config) == "MSG_SIZE_TOO_LARGE"
    late = transactional(run.source.bootstrap, "late-till")
    late.begin_transaction()
    late.produce("closed", FILLING, partition=0)
    late.flush(20)
    late.abort_transaction(30)
    mirrored(run, "elsewhere")
    in_transaction(late, "elsewhere", 1)  # The coordinator has ended the transaction that the source refused.
    assert not any(each["missing"] for each in run.topic_status("closed")["late"]), "a marker is no record"


def test_transactions_end_at_a_topic_that_takes_batches_of_a_marker_s_size_alone(run: Migration) -> None:
    """The newest brokers write markers of that size, too."""
    ends_transactions(run.target)


def ends_transactions(cluster: KafkaCluster) -> None:
    topics = [NewTopic("limited", 1, 1, config={"max.message.bytes": CLOSED_SIZE}), NewTopic("free", 1, 1)]
    create_topics(cluster.client(), topics)
    producer = transactional(cluster.bootstrap, "limited-till")
    producer.begin_transaction()
    producer.produce("free", FILLING, partition=0)
    producer.produce("limited", FILLING, partition=0)
    producer.flush(20)
    producer.abort_transaction(30)
    in_transaction(producer, "free", 1)
    assert values(cluster.bootstrap, "limited") == []
    assert values(cluster.bootstrap, "free") == ["1"]


def test_a_late_record_as_small_as_a_marker_is_taken_and_named(run: Migration) -> None:
    close(run, "small")
    assert delivered(run.source.bootstrap, "small", "tiny") == ""
    (late,) = wait_until(lambda: run.topic_status("small")["late"], 10, "the late record to be named")
    wait_until(lambda: run.topic_status("small")["late"][0]["records"] == 1, 10, "the late record to be read")
    assert late["missing"] and late["end"] > late["start"]
    (told,) = run.does("topic", "show", "small")["status"]["late"]
    assert told["records"] == 1
    (passed,) = stragglers(run, "small")
    assert (passed["kind"], passed["partition"], passed["missing"]) == ("late-writes", 0, True)
    refused = run.cli("link", "finish", "blue", "--delivery-timeout", "0", "--yes")
    assert (refused.code, "late-writes" in str(refused.told)) == (3, True)


@pytest.mark.parametrize("on_late", ["copy", "quarantine"])
def test_late_records_reach_the_target_once_where_a_person_wants_them_there(run: Migration, on_late: str) -> None:
    topic = f"open-{on_late}"
    promote(run, topic, "--no-seal", "--on-late", on_late)
    assert run.topic_status(topic)["source_closed"] == "open"
    written = [f"late {number} {FILLING}" for number in range(50)]
    for value in written[:25]:
        assert delivered(run.source.bootstrap, topic, value) == ""
    aborted = transactional(run.source.bootstrap, f"{topic}-aborted")
    aborted.begin_transaction()
    aborted.produce(topic, "never", partition=0)
    aborted.flush(20)
    aborted.abort_transaction(30)
    run.kill("controller")
    committed = transactional(run.source.bootstrap, f"{topic}-committed")
    committed.begin_transaction()
    for value in written[25:]:
        committed.produce(topic, value, partition=0)
    committed.commit_transaction(30)
    run.start("controller")

    def handled() -> bool:
        late = run.topic_status(topic)["late"]
        return [(each["records"], each["handled"], each["missing"]) for each in late] == [(50, 50, False)]

    wait_until(handled, 40, lambda: f"the late records to be handled: {run.topic_status(topic)['late']}")
    beside = f"kmigrate-late-{topic}"
    (passed,) = stragglers(run, topic)
    place = beside if on_late == "quarantine" else topic
    assert (passed["kind"], passed["fate"]) == ("late-writes", f"50 appended to {place} on the target")
    assert len(passed["producer_ids"]) > 1
    assert values(run.target.bootstrap, beside if on_late == "quarantine" else topic)[-50:] == written
    assert len(values(run.target.bootstrap, topic)) == (1 if on_late == "quarantine" else 51)


def test_the_seal_comes_off_again_and_the_topic_s_own_limit_is_put_back(run: Migration) -> None:
    run.make_topic("own", 1, config={"max.message.bytes": "2000000"})
    run.does("topic", "mirror", "own")
    put(Producer({"bootstrap.servers": run.routers}), "own", "before")
    run.does("promote", "own", "--yes")
    assert run.topic_status("own")["source_closed"] == "open", "the copy of the way back has to pass"
    run.does("promote", "own", "--no-way-back", "--yes")
    wait_until(lambda: run.topic_status("own")["source_closed"] == "closed", 20, "the source to be closed")
    run.does("promote", "own", "--no-seal", "--yes")
    wait_until(lambda: run.topic_status("own")["source_closed"] == "open", 20, "the source to be open again")
    assert limit(run.source.bootstrap, "own") == "2000000"
    assert delivered(run.source.bootstrap, "own", FILLING) == ""


def test_a_late_record_at_the_fence_of_a_rollback_gives_the_rollback_up_and_ends_where_a_person_wants(
    run: Migration,
) -> None:
    """The controller dies behind the fence, so that the record comes while the fence lasts."""
    promote(run, "midway", "--on-late", "copy")
    run.kill("controller")
    with mock.patch.dict(os.environ, {DIES_AT: "after:topic rollback-fencing"}):
        run.start("controller", by=("tests/integration/dying.py",))
    run.does("rollback", "midway", "--no-wait", "--yes")
    wait_until(lambda: run.engines["controller"].poll() is not None, 30, "the controller to die behind the fence")
    assert run.topic_record("midway")["phase"] == "rollback-fencing"
    assert delivered(run.source.bootstrap, "midway", FILLING) == ""
    wait_until(lambda: run.topic_status("midway")["way_back"].startswith("ended"), 10, "the writer to be named")
    run.start("controller")
    wait_until(lambda: run.topic_record("midway")["phase"] == "promoted", 20, "the rollback to be given up")
    put(Producer({"bootstrap.servers": run.routers}), "midway", "after")

    def handled() -> bool:
        return [(each["handled"], each["missing"]) for each in run.topic_status("midway")["late"]] == [(1, False)]

    wait_until(handled, 40, "the late record to be copied")
    assert sorted(values(run.target.bootstrap, "midway")) == ["after", "before", FILLING]
    wait_until(lambda: run.topic_status("midway")["source_closed"] == "closed", 20, "the source to be closed")
    refused = run.cli("rollback", "midway", "--yes")
    assert (refused.code, refused.told["error"]) == (3, "no-way-back")
    assert "offset 1" in refused.told["what"], refused.told


def test_a_direct_writer_after_a_rollback_is_named_and_copied(run: Migration) -> None:
    promote(run, "returned")
    run.does("rollback", "returned", "--yes")
    put(Producer({"bootstrap.servers": run.source.bootstrap}), "returned", "direct")
    wait_until(lambda: seen_writers(run, "returned"), 10, "the writer to be named")
    wait_until(lambda: values(run.target.bootstrap, "returned") == ["before", "direct"], 20, "the copy")
    (passed,) = stragglers(run, "returned")
    assert (passed["kind"], passed["cluster"], passed["missing"]) == ("direct-writes", "source", False)


def test_every_record_of_writers_past_the_router_is_accounted_for(run: Migration) -> None:
    whole = Figures()
    for figures in soak(run, 2, 2, 3.0):
        whole.add(figures)
    assert whole.clean, whole
    assert whole.on_target and whole.named, whole
