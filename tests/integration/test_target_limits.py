"""A target with lower limits than the source: every plan says so before a step that has no way back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters, source_and_target
from tests.integration.command_line import program
from tests.integration.migration import Migration, wait_until

pytestmark = pytest.mark.timeout(240)
LIMITS = {
    "group.max.session.timeout.ms": "60000",
    "offset.metadata.max.bytes": "100",
    "transaction.max.timeout.ms": "60000",
}


@pytest.fixture(scope="module")
def migration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    root = tmp_path_factory.mktemp("limits")
    source_spec, target_spec = source_and_target()
    with running_clusters(root, source_spec, replace(target_spec, config=LIMITS)) as (source, target):
        run = Migration(source, target, root / "run")
        run.make_topic("orders", 1)
        run.make_group("slow-readers", "orders")
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        run.does("topic", "mirror", "orders")
        try:
            yield run
        finally:
            run.stop()


def refs(told: Any) -> dict[str, str]:
    """The findings' sentences by reference, of a plan or of an error."""
    return {each["ref"]: each["what"] for each in told["findings"]}


def test_a_member_that_the_target_would_refuse_keeps_its_group_from_being_promoted(migration: Migration) -> None:
    run = migration
    run.does("group", "mirror", "slow-readers", "--mode", "hold")
    slow = Consumer(
        {
            "bootstrap.servers": run.routers,
            "group.id": "slow-readers",
            "client.id": "slow",
            "session.timeout.ms": 600_000,
            "max.poll.interval.ms": 700_000,
            "log_level": 0,
        }
    )
    slow.subscribe(["orders"])
    try:
        for mode in ("hold", "follow"):
            run.does("group", "mirror", "slow-readers", "--mode", mode)

            def refused() -> Any:
                with suppress(KafkaException):
                    slow.poll(0.1)
                told = run.cli("group", "promote", "slow-readers", "--plan")
                return told.told if told.code == 3 else None

            told = wait_until(refused, 40, f"the plan to refuse, while the group is to {mode}: {run.logs()}")
            assert told["error"] == "session-timeout-refused"
            assert "member slow of group slow-readers" in told["what"]
            settings = [each["what"] for each in told["findings"] if each["ref"] == "broker-setting"]
            assert any(each.startswith("group.max.session.timeout.ms is 1,800,000 on the source") for each in settings)
        assert run.cli("group", "promote", "slow-readers", "--yes").told["error"] == "session-timeout-refused"
        (group,) = [each for each in run.does("status")["groups"] if each["group"] == "slow-readers"]
        assert (group["phase"], group["lag"]) == ("mirrored", 0)
    finally:
        slow.close()


def test_doctor_and_plan_compare_the_brokers_settings(migration: Migration) -> None:
    run = migration
    told = json.loads(subprocess.run(program("kmigrate", "doctor", "--config", str(run.config), "--json"),
                                     capture_output=True, check=False, text=True).stdout)  # fmt: skip
    named = {finding["what"].split()[0] for finding in told["settings source → target"]}
    assert named == set(LIMITS)
    planned = {sentence.split()[0] for sentence in run.does("plan")["broker_settings"]}
    assert planned == set(LIMITS)


def test_metadata_that_the_target_does_not_take_is_named_before_the_promote(migration: Migration) -> None:
    run = migration
    consumer = Consumer({**run.source.client(), "group.id": "talkers"})
    long = TopicPartition("orders", 0, 0, "m" * 200)

    def committed() -> bool:
        with suppress(KafkaException):
            consumer.commit(offsets=[long], asynchronous=False)
            return True
        return False

    wait_until(committed, 30, "the commit")
    consumer.close()
    assert "commit-metadata-too-large" in refs(run.does("group", "mirror", "talkers", "--mode", "hold"))
    refused = run.cli("group", "promote", "talkers", "--plan")
    assert (refused.code, refused.told["error"]) == (3, "commit-metadata-too-large")
    assert "orders-0 with " in refused.told["what"]


def test_a_topic_that_the_target_would_not_create_is_refused_and_long_transactions_are_named(
    migration: Migration,
) -> None:
    run = migration
    create_topics(run.target.client(), [NewTopic("pay_eu", 1, 1)])
    for topic in ("pay.eu", "fine"):
        run.make_topic(topic, 1)
    producer = Producer({**run.source.client(), "transactional.id": "long", "transaction.timeout.ms": 120_000})
    producer.init_transactions(20)
    refused = run.cli("topic", "mirror", "pay.eu", "--plan")
    assert (refused.code, refused.told["error"]) == (3, "target-refuses-topic"), refused
    assert "pay_eu" in refused.told["what"]
    told = run.does("topic", "mirror", "fine", "--plan")
    assert "transactional id long has transaction.timeout.ms 120,000" in refs(told)["transaction-timeout"]
    assert [topic["topic"] for topic in run.does("topic", "list")["topics"]] == ["orders"]
