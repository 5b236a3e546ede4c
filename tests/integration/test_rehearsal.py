"""A rehearsal on live traffic leaves both clusters as they were; so does a rehearsal that is killed half way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.sandbox.client_specs import ProducerSpec, TransactionalSpec
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.command_line import program
from tests.integration.migration import Migration, fresh_migration, wait_until

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""An authorizer that lets in all who come without a login."""
TOPICS = ("plain", "paid", "profiles")
_OWN = ("__kmigrate_", "__consumer_offsets", "__transaction_state")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 1.0\n"
    with fresh_migration(tmp_path_factory.mktemp("rehearsal"), settings, config=AUTHORIZER) as made:
        allow(made.source, "plain", ResourcePatternType.LITERAL)
        allow(made.source, "kmigrate-rehearsal-", ResourcePatternType.PREFIXED)
        made.make_topic("plain", 3)
        made.make_topic("paid", 2)
        made.make_topic("profiles", 2, config={"cleanup.policy": "compact", "segment.ms": "600000"})
        made.make_group("billing", "plain")
        made.does("link", "create", "blue", "--source", "source", "--target", "target")
        made.start("run")
        made.does("topic", "mirror", "plain")
        made.does("wait", "topics mirroring", "plain")
        made.run_clients([ProducerSpec("p", "librdkafka", "plain", 100.0), TransactionalSpec("t", "paid", 100.0)])
        yield made


def allow(cluster: KafkaCluster, topic: str, pattern: ResourcePatternType) -> None:
    """Let a reader read a topic, or all topics with a prefix: the mirror carries the ACL over to each copy."""
    who, rest = "User:reader", ("*", AclOperation.READ, AclPermissionType.ALLOW)
    rule = AclBinding(ResourceType.TOPIC, topic, pattern, who, *rest)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_acls([rule]).values():
        future.result()


ANY_NAME: Any = None
ALL_RULES = AclBindingFilter(
    ResourceType.ANY,
    ANY_NAME,
    ResourcePatternType.ANY,
    ANY_NAME,
    ANY_NAME,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


def estate(cluster: KafkaCluster) -> dict[str, Any]:
    """Return a cluster's topics with partitions, replicas and configs, groups with their positions, and ACLs."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    known = admin.list_topics(timeout=10).topics
    topics = {name: topic for name, topic in known.items() if not name.startswith(_OWN)}
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    configs = {}
    for each, future in admin.describe_configs(asked).items() if asked else ():
        try:
            configs[each.name] = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            del topics[each.name]  # the topic was deleted after the list was made
    groups = [each.group_id for each in admin.list_consumer_groups().result().valid]
    positions = {
        name: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result() for name in groups
    }
    return {
        "topics": {
            name: {p: sorted(each.replicas) for p, each in topic.partitions.items()} for name, topic in topics.items()
        },
        "configs": {name: {key: each.value for key, each in of.items()} for name, of in configs.items()},
        "acls": sorted(map(str, admin.describe_acls(ALL_RULES).result())),
        "groups": {
            name: sorted((at.topic, at.partition, at.offset) for at in each.topic_partitions)
            for name, each in positions.items()
        },
    }


def both(run: Migration) -> list[dict[str, Any]]:
    return [estate(run.source), estate(run.target)]


def test_a_rehearsal_under_live_traffic_leaves_both_clusters_as_they_were(run: Migration) -> None:
    before, links = both(run), run.does("link", "list")
    assert [len(each["acls"]) for each in before] == [2, 1], before  # the mirror has carried one ACL over
    done = run.cli("rehearse", *TOPICS, "--traffic", "1", "--yes")
    told = done.told
    assert done.code == 3, f"{told} {run.logs()}"  # the real producers have not moved to the router
    assert "real" in told, told  # otherwise the rehearsal itself was refused
    assert {each["ref"] for each in told["real"] if each["level"] == "refuse"} == {"direct-writers"}
    assert both(run) == before
    assert run.does("link", "list") == links
    found = {each["topic"]: each for each in told["rehearsal"]["topics"]}
    assert told["rehearsal"]["equal"], told
    assert found["plain"]["copied"] > 100
    assert found["paid"]["copied"] > 50
    assert found["profiles"]["synthetic"] > 50
    assert all(each["records"] == each["acknowledged"] > 0 for each in found.values())
    switches = [each[name] for each in found.values() for name in ("promote", "rollback")]
    assert all(switch["fence_ms"] >= 0 for switch in switches), told
    held = [switch["pause"] for switch in switches if switch["pause"] is not None]  # a short fence may meet nobody
    assert held and all(0 <= pause["p50"] <= pause["p99"] <= pause["max"] for pause in held), told
    assert told["rehearsal"]["group"]["records"] > 100


def test_what_a_killed_rehearsal_leaves_is_removed(run: Migration, tmp_path: Path) -> None:
    before = both(run)
    words = ("rehearse", "plain", "--yes", "--traffic", "30", "--config", str(run.config))
    with (tmp_path / "rehearse.log").open("wb") as log:
        killed = subprocess.Popen(program("kmigrate", *words), stdout=log, stderr=log)
    wait_until(
        lambda: any(name.startswith("kmigrate-rehearsal-") for name in estate(run.target)["topics"]), 30, "a shadow"
    )
    kept = run.does("rehearse", "--clean")
    assert [each["ref"] for each in kept["findings"]] == ["rehearsal-runs"]
    killed.kill()
    killed.wait()
    wait_until(lambda: both(run) == before, 60, lambda: f"the rest to be removed: {both(run)}\n{run.logs()}")
    wait_until(lambda: len(run.does("link", "list")["links"]) == 1, 20, "the link to be removed")
