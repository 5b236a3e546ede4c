"""A target with lower limits than the source: every plan names them before a step that cannot be undone."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters, source_and_target
from tests.integration.acl_bindings import exactly
from tests.integration.command_line import program
from tests.integration.migration import Migration, wait_until
from tests.integration.positions import commit_positions

LIMITS = {
    "group.max.session.timeout.ms": "60000",
    "offset.metadata.max.bytes": "100",
    "transaction.max.timeout.ms": "60000",
}
OWN_RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.consumer.assignors": "uniform",
}
"""Configs of the target: all operations on a resource without ACLs are allowed, so a single ACL closes a group."""


@pytest.fixture(scope="module")
def migration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    root = tmp_path_factory.mktemp("limits")
    source_spec, target_spec = source_and_target()
    with running_clusters(root, source_spec, replace(target_spec, config=LIMITS | OWN_RULES)) as (source, target):
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
    """Return the findings' sentences by reference, from a plan or an error."""
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
                named = told.code == 3 and told.told["error"] == "session-timeout-refused"
                return told.told if named else None  # Before that, perhaps only the member's trial join is refused.

            told = wait_until(refused, 40, f"the plan to refuse, while the group is to {mode}: {run.logs()}")
            assert "member slow of group slow-readers" in told["what"]
            settings = [each["what"] for each in told["findings"] if each["ref"] == "broker-setting"]
            assert any(each.startswith("group.max.session.timeout.ms is 1,800,000 on the source") for each in settings)
        assert run.cli("group", "promote", "slow-readers", "--yes").told["error"] == "session-timeout-refused"
        (group,) = [each for each in run.does("status")["groups"] if each["group"] == "slow-readers"]
        assert group["phase"] == "mirrored"
        assert group["lag"] is not None
    finally:
        slow.close()


def rule(group: str, operation: str) -> AclBinding:
    """Return the ACL that lets every client of these clusters do something with a group."""
    kinds = AclOperation[operation], AclPermissionType.ALLOW
    return AclBinding(ResourceType.GROUP, group, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", *kinds)


def allow(run: Migration, group: str, *operations: str) -> None:
    admin, rules = AdminClient(dict(run.target.client())), [rule(group, each) for each in operations]
    for done in admin.create_acls(rules).values():
        done.result(20)


def forbid_reading(run: Migration, group: str) -> None:
    wanted = exactly(rule(group, "READ"))
    admin = AdminClient(dict(run.target.client()))
    for done in admin.delete_acls([wanted]).values():
        assert len(done.result(20)) == 1
    wait_until(lambda: not admin.describe_acls(wanted).result(20), 10, "the rule to be gone")


@contextmanager
def polled(run: Migration, group: str, topic: str, **settings: Any) -> Iterator[list[bytes]]:
    """Poll a consumer at the router all the time; yield the values that the consumer has read."""
    read: list[bytes] = []
    ended = threading.Event()
    consumer = Consumer(
        {"bootstrap.servers": run.routers, "group.id": group, "client.id": "reader", "log_level": 0, **settings}
    )
    consumer.subscribe([topic])

    def poll() -> None:
        while not ended.is_set():
            with suppress(KafkaException):
                heard = consumer.poll(0.1)
                if heard is not None and heard.error() is None:
                    read.append(heard.value() or b"")
        consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield read
    finally:
        ended.set()
        thread.join(20)


def write(run: Migration, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": run.source.bootstrap})
    producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def status_of(run: Migration, group: str) -> dict[str, Any]:
    (found,) = (each for each in run.does("status")["groups"] if each["group"] == group)
    return dict(found)


def test_a_promote_is_given_up_when_the_target_refuses_a_member_and_names_the_member(migration: Migration) -> None:
    """The right is lost after the plan: no limit shows the loss, only the target's own answer does."""
    run = migration
    run.make_group("closed", "orders")
    run.does("group", "mirror", "closed", "--mode", "follow")
    allow(run, "closed", "DESCRIBE", "READ")
    with polled(run, "closed", "orders") as read:
        write(run, "orders", "first")
        wait_until(lambda: b"first" in read, 30, f"the member to read: {run.logs()}")
        assert run.cli("group", "promote", "closed", "--plan").code == 0
        forbid_reading(run, "closed")
        refused = run.cli("group", "promote", "closed", "--yes")
        assert refused.code != 0
        assert "member-refused" in str(refused.told), refused
        assert "the target would refuse member reader at 127.0.0.1" in str(refused.told)
        found = status_of(run, "closed")
        assert found["phase"] == "mirrored"
        # On a busy machine a trial before the promote may tell the loss, so that the promote does not even begin.
        assert not found["reason"] or "GROUP_AUTHORIZATION_FAILED" in found["reason"], found["reason"]
        (named,) = found["refused"]
        assert (named["client_id"], named["error"]) == ("reader", "GROUP_AUTHORIZATION_FAILED")
        assert named["member_id"].startswith("reader-")
        write(run, "orders", "second")
        wait_until(lambda: b"second" in read, 30, "the member to read on")
        planned = run.cli("group", "promote", "closed", "--plan")
        assert (planned.code, planned.told["error"]) == (3, "member-refused")

        allow(run, "closed", "READ")
        wait_until(lambda: run.cli("group", "promote", "closed", "--plan").code == 0, 30, "the right to count")
        run.does("group", "promote", "closed", "--yes")
        write(run, "orders", "third")
        wait_until(lambda: b"third" in read, 30, "the member to read at the target")
    assert [each for each in read if each in (b"first", b"second", b"third")] == [b"first", b"second", b"third"]
    assert status_of(run, "closed")["refused"] == []


def test_a_member_whose_assignor_the_target_lacks_is_named_before_the_promote(migration: Migration) -> None:
    run = migration
    run.make_group("ranged", "orders")
    run.does("group", "mirror", "ranged", "--mode", "hold")
    modern = {"group.protocol": "consumer", "group.remote.assignor": "range"}
    with polled(run, "ranged", "orders", **modern):
        planned = wait_until(
            lambda: (told := run.cli("group", "promote", "ranged", "--plan")).code == 3 and told.told, 30, "the refusal"
        )
        assert planned["error"] == "member-refused"
        assert "UNSUPPORTED_ASSIGNOR" in refs(planned)["member-refused"]
    with polled(run, "ranged", "orders", **(modern | {"group.remote.assignor": "uniform"})) as read:
        wait_until(lambda: run.cli("group", "promote", "ranged", "--plan").code == 0, 30, "the refusal to be over")
        run.does("group", "promote", "ranged", "--yes")
        write(run, "orders", "uniform")
        wait_until(lambda: b"uniform" in read, 30, "the member to read at the target")


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
    commit_positions(run.source.client(), "talkers", [TopicPartition("orders", 0, 0, "m" * 200)])
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
