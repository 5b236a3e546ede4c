"""Topic upkeep on real brokers: changes of the source during mirroring, as admin clients of the target see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.patterns import NamePattern
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import LinkRecord
from kmigrate.model.state import State
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from tests.fakes.proposals import run_verb
from tests.integration.acl_bindings import exactly
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import (
    World,
    assert_identical,
    bounds,
    engine_running,
    link_between,
    produce,
    settings_of,
)
from tests.integration.positions import commit_positions

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
OwnCluster = Callable[..., KafkaCluster]

NO_LIMIT = str((1 << 63) - 1)
"""Limit on future timestamps: the source is too old for such a broker default, and the target is not."""
QUICK = MirrorSettings(lease_s=1.5, presence_ms=200, upkeep_s=0.5)


def admin_of(bootstrap: str) -> AdminClient:
    """Return a client that the caller keeps until the answer arrives: the answer is lost with the client."""
    return AdminClient({"bootstrap.servers": bootstrap})


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    admin = admin_of(bootstrap)
    (future,) = admin.create_partitions([NewPartitions(topic, total)]).values()
    future.result(20)


def own_configs(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the configs that are set on the topic itself."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = admin_of(bootstrap)
    (future,) = admin.describe_configs([resource]).values()
    return {key: entry.value for key, entry in future.result(20).items() if entry.source == 1}


def set_configs(bootstrap: str, topic: str, put: dict[str, str], remove: tuple[str, ...] = ()) -> None:
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in put.items()]
    entries += [ConfigEntry(k, None, incremental_operation=AlterConfigOpType.DELETE) for k in remove]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = admin_of(bootstrap)
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(20)


def set_broker_default(cluster: KafkaCluster, key: str, value: str) -> None:
    """Set a dynamic config of all brokers, which librdkafka cannot set."""

    async def setting() -> int:
        async with ClusterClient(settings_of("any", cluster.bootstrap)) as client:
            return await client.set_broker_default(key, value)

    assert asyncio.run(setting()) == 0


async def comes(true: Callable[[], bool], what: str, seconds: float = 20) -> None:
    await asyncio.to_thread(wait_until, true, seconds, what)


def test_partitions_added_on_the_source_are_created_on_the_target_and_copied_from_their_first_record(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("grows")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 400, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            async with engine_running(world, settings=QUICK):
                await world.mirror(topic, "latest")
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await asyncio.to_thread(add_partitions, source.bootstrap, topic, 4)
                await asyncio.to_thread(produce, source.bootstrap, topic, 800, partitions=4)
                await comes(lambda: len(bounds(target.bootstrap, topic)) == 4, "the target's partitions")
                await world.log.wait(
                    lambda state: True if (r := state.topic(world.link, topic)) and r.partitions == 4 else None,
                    20,
                    "the record to grow",
                )
                await comes(lambda: _ends(target, topic) == _ends(source, topic), "the copy of all partitions")
                record = world.log.state.topic(world.link, topic)
                assert record is not None
                assert record.starts == {0: 200, 1: 200, 2: 0, 3: 0}
            await asyncio.to_thread(add_partitions, source.bootstrap, topic, 5)
            await asyncio.to_thread(produce, source.bootstrap, topic, 100, partitions=5)
            async with engine_running(world, "m2", settings=QUICK):  # The partition was added while no mirror ran.
                await comes(lambda: _ends(target, topic) == _ends(source, topic), "the fifth partition")
                assert set(_ends(target, topic)) == {0, 1, 2, 3, 4}

    asyncio.run(scene())


def _ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    return {partition: end for partition, (_, end) in bounds(cluster.bootstrap, topic).items()}


def test_configs_follow_the_source_and_are_relaxed_until_promote(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("configs")
    make_topic(source, topic, config={"segment.ms": "3600000", "retention.ms": "7200000"})
    of_link = LinkSettings(config_exclude=("flush\\..*",))

    async def scene() -> None:
        async with (
            link_between(source, target, unique_name("link"), of_link) as world,
            engine_running(world, settings=QUICK),
        ):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            relaxed = own_configs(target.bootstrap, topic)
            assert (relaxed["segment.ms"], relaxed["retention.ms"]) == ("3600000", "-1")

            set_configs(target.bootstrap, topic, {"flush.ms": "777", "segment.jitter.ms": "5", "retention.ms": "9"})
            set_configs(
                source.bootstrap,
                topic,
                {
                    "min.compaction.lag.ms": "60000",
                    "retention.ms": "1800000",
                    "max.message.bytes": "2000000",
                    "flush.ms": "1000",
                    "follower.replication.throttled.replicas": "*",
                    "unclean.leader.election.enable": "true",
                },
                ("segment.ms",),
            )
            expected = {**relaxed, "min.compaction.lag.ms": "60000", "flush.ms": "777"}
            del expected["segment.ms"]  # The config was removed on the source, and segment.jitter.ms was never there.
            await comes(lambda: own_configs(target.bootstrap, topic) == expected, "the source's configs")
            record = world.log.state.topic(world.link, topic)
            assert record is not None
            assert record.restore_configs == {
                "max.message.bytes": "2000000",
                "message.timestamp.after.max.ms": NO_LIMIT,
                "retention.ms": "1800000",
            }
            assert "cleanup.policy" in record.drop_configs

            await world.log.append(lambda state: replace(link_of(world, state), settings=LinkSettings()))
            expected["flush.ms"] = "1000"
            await comes(lambda: own_configs(target.bootstrap, topic) == expected, "the config that was left out before")

            set_configs(source.bootstrap, topic, {"cleanup.policy": "compact"}, ("retention.ms",))
            changed = await world.log.wait(
                lambda state: r if (r := state.topic(world.link, topic)) and r.compacted else None, 20, "the policy"
            )
            assert changed.restore_configs["cleanup.policy"] == "compact"
            assert "retention.ms" in changed.drop_configs
            await asyncio.to_thread(produce, source.bootstrap, topic, 500)
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=500)
            ended = {p: end for p, (_, end) in bounds(source.bootstrap, topic).items()}
            set_configs(source.bootstrap, topic, {"cleanup.policy": "delete"})
            plain = await world.log.wait(
                lambda state: r if (r := state.topic(world.link, topic)) and not r.compacted else None, 20, "the policy"
            )
            assert plain.cleaned_to == ended

    asyncio.run(scene())


def test_topics_and_groups_that_match_later_are_picked_up_and_a_deleted_topic_is_named_and_forgotten(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    stem = unique_name("match")
    first, second, last, ours, kept_out = f"{stem}-a", f"{stem}-b", f"{stem}-d", f"{stem}-ours", f"{stem}-x"
    make_topic(source, first)
    make_topic(target, ours)
    group = f"{stem}-readers"

    async def scene() -> None:
        async with (
            link_between(source, target, unique_name("link")) as world,
            engine_running(world, settings=QUICK),
        ):
            await follow(world, NamePattern(f"{stem}-.*", (".*-x",)))
            await world.in_phase(first, TopicPhase.MIRRORING)
            for topic in (second, ours, kept_out, f"{stem}-c.internal"):
                make_topic(source, topic)
            produce(source.bootstrap, second, 50)
            commit_positions(source.client(), group, [TopicPartition(second, 0, 1)])
            await world.in_phase(second, TopicPhase.MIRRORING)
            await world.caught_up(second)
            assert_identical(world, second, at_least=50)
            await world.log.wait(
                lambda state: g if (g := state.group(world.link, group)) and g.phase is GroupPhase.MIRRORED else None,
                20,
                "the group",
            )
            await world.log.wait(
                lambda state: True if any("target-topic-exists" in n and ours in n for n in notes(world)) else None,
                20,
                "a note on the topic of the target's own",
            )
            mirrored = {record.topic for record in world.log.state.topics(world.link)}
            assert mirrored == {first, second}

            admin = admin_of(source.bootstrap)
            (deleted,) = admin.delete_topics([first]).values()
            deleted.result(20)
            await world.log.wait(
                lambda state: True if "source-topic-gone" in upkeep_problem(world, first) else None,
                20,
                "the word on it",
            )
            told = [word.upkeep[first].gone_s for word in mirrors(world) if first in word.upkeep]
            assert any(gone_s is not None for gone_s in told), "no broker of the source knows it"
            assert first in {record.topic for record in world.log.state.topics(world.link)}
            assert bounds(target.bootstrap, first) == {0: (0, 0)}

            addresses = {"source": source.bootstrap, "target": target.bootstrap}
            async with await Connections.open(lambda name: settings_of(name, addresses[name]), "target") as connections:
                await run_verb(verbs.forget_topics(connections, world.link, [first], 120.0))
                await run_verb(verbs.forget_groups(connections, world.link, [group]))
            assert "retention.ms" not in own_configs(target.bootstrap, first)
            assert bounds(target.bootstrap, first) == {0: (0, 0)}
            make_topic(source, first)
            make_topic(source, last)
            await world.in_phase(last, TopicPhase.MIRRORING)  # The mirror evaluates the patterns again.
            assert {record.topic for record in world.log.state.topics(world.link)} == {second, last}
            assert world.log.state.group(world.link, group) is None
            await world.log.wait(
                lambda state: True if not any(first in mirror.topics for mirror in mirrors(world)) else None,
                20,
                "the mirror to let go of it",
            )

    asyncio.run(scene())


async def follow(world: World, *patterns: NamePattern) -> None:
    await world.log.append(
        lambda state: replace(link_of(world, state), topic_patterns=patterns, group_patterns=patterns)
    )


def link_of(world: World, state: State) -> LinkRecord:
    link = state.link(world.link)
    assert link is not None
    return link


def notes(world: World) -> tuple[str, ...]:
    return tuple(note for mirror in mirrors(world) for note in mirror.notes)


def upkeep_problem(world: World, topic: str) -> str:
    return next((m.upkeep[topic].problem for m in mirrors(world) if topic in m.upkeep), "")


def mirrors(world: World) -> list[MirrorPresence]:
    return [m for m in world.log.alive(MirrorPresence) if m.active and m.link == world.link]


SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}

Rule = tuple[str, str, str, str]


def rule(
    who: str, operation: str, name: str, *, group: bool = False, prefixed: bool = False, deny: bool = False
) -> AclBinding:
    return AclBinding(
        ResourceType.GROUP if group else ResourceType.TOPIC,
        name,
        ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        f"User:{who}",
        "*",
        AclOperation[operation],
        AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )


def create_rules(cluster: KafkaCluster, *rules: AclBinding) -> None:
    admin = admin_of(cluster.bootstrap)
    for future in admin.create_acls(list(rules)).values():
        future.result(20)


def delete_rule(cluster: KafkaCluster, gone: AclBinding) -> None:
    admin = admin_of(cluster.bootstrap)
    for future in admin.delete_acls([exactly(gone)]).values():
        assert len(future.result(20)) == 1


def rules_of(cluster: KafkaCluster) -> set[Rule]:
    """Return all ACLs as librdkafka's admin client reads them: permission, user, operation, name and pattern."""
    every = AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    admin = admin_of(cluster.bootstrap)
    told = admin.describe_acls(every).result(20)
    return {
        (
            each.permission_type.name,
            each.principal.removeprefix("User:"),
            each.operation.name,
            f"{each.restype.name.lower()}:{each.name}" + ("*" if each.resource_pattern_type.name == "PREFIXED" else ""),
        )
        for each in told
    }


def test_readers_get_their_rules_at_once_and_writers_theirs_with_the_topics_configs_at_the_promote(
    own_cluster: OwnCluster, tmp_path: Path
) -> None:
    source, target = own_cluster("3.9.1", config=SECURED), own_cluster(config=SECURED)
    migration = Migration(source, target, tmp_path / "run", "[mirror]\nupkeep_interval_s = 0.5\n")
    migration.make_topic("orders-1", 1)
    own = {"retention.ms": "7200000", "max.message.bytes": "2000000", "message.timestamp.after.max.ms": "86400000"}
    set_configs(source.bootstrap, "orders-1", own)
    set_broker_default(source, "log.retention.bytes", "1000000000")
    set_broker_default(source, "log.cleaner.delete.retention.ms", "3600000")
    produce(source.bootstrap, "orders-1", 100)
    commit_positions(source.client(), "readers", [TopicPartition("orders-1", 0, 1)])
    reader, late = rule("reader", "READ", "orders-1"), rule("late", "READ", "orders-1")
    create_rules(
        source,
        reader,
        rule("writer", "WRITE", "orders-", prefixed=True),
        rule("owner", "ALL", "*"),
        rule("bad", "READ", "orders-1", deny=True),
        rule("bad", "WRITE", "orders-1", deny=True),
        rule("reader", "READ", "readers", group=True),
        rule("other", "READ", "elsewhere"),
    )
    by_hand = ("ALLOW", "hand", "READ", "topic:orders-1")
    create_rules(target, rule("hand", "READ", "orders-1"))
    now = {
        by_hand,
        ("ALLOW", "reader", "READ", "topic:orders-1"),
        ("ALLOW", "writer", "DESCRIBE", "topic:orders-1"),
        ("ALLOW", "owner", "READ", "topic:orders-1"),
        ("ALLOW", "owner", "DESCRIBE", "topic:orders-1"),
        ("ALLOW", "owner", "DESCRIBE_CONFIGS", "topic:orders-1"),
        ("DENY", "bad", "READ", "topic:orders-1"),
        ("ALLOW", "reader", "READ", "group:readers"),
    }
    try:
        migration.does("link", "create", "blue", "--source", "source", "--target", "target")
        migration.start("mirror", "controller")
        looked = migration.does("topic", "mirror", "orders-.*", "--regex", "--plan")
        wanted = [
            "mirror orders-1 from earliest, identical offsets where they can be had, else mapped",
            "keep for later topics: orders-.*",
        ]
        assert looked["changes"] == wanted
        assert any("6 ACLs while it is mirrored, 5 from its promote on" in f["what"] for f in looked["findings"])
        (carried,) = [f["what"] for f in looked["findings"] if f["ref"] == "source-defaults"]
        assert carried == (
            "topic orders-1 keeps what the source's brokers give it: delete.retention.ms=3600000 "
            "(the target's: 86400000), retention.bytes=1000000000 (the target's: -1)"
        )
        assert migration.does("topic", "mirror", "orders-.*", "--regex")["topics"][0]["topic"] == "orders-1"
        migration.does("group", "mirror", "readers")
        wait_until(lambda: rules_of(target) == now, 20, "the readers' rules")

        create_rules(source, late)
        wait_until(lambda: rules_of(target) == {*now, ("ALLOW", "late", "READ", "topic:orders-1")}, 20, "a later rule")
        delete_rule(source, reader)
        now -= {("ALLOW", "reader", "READ", "topic:orders-1")}
        now |= {("ALLOW", "late", "READ", "topic:orders-1")}
        wait_until(lambda: rules_of(target) == now, 20, "the rule to go")

        migration.does("group", "promote", "readers", "--yes")
        delete_rule(source, late)  # The change falls into the interval, so the promote looks once more.
        set_broker_default(source, "log.retention.bytes", "2000000000")
        migration.does("promote", "orders-1", "--yes")
        assert rules_of(target) == {
            by_hand,
            ("ALLOW", "writer", "WRITE", "topic:orders-1"),
            ("ALLOW", "owner", "ALL", "topic:orders-1"),
            ("DENY", "bad", "READ", "topic:orders-1"),
            ("DENY", "bad", "WRITE", "topic:orders-1"),
            ("ALLOW", "reader", "READ", "group:readers"),
        }
        assert own_configs(target.bootstrap, "orders-1") == {
            **own,
            "delete.retention.ms": "3600000",
            "retention.bytes": "2000000000",
        }
        assert migration.does("topic", "patterns")["patterns"] == [
            {"include": "orders-.*", "exclude": [], "offsets": "auto", "auto": False}
        ]
        migration.does("topic", "patterns", "--forget", "orders-.*")
        assert migration.does("topic", "patterns")["patterns"] == []
    finally:
        migration.stop()


def test_a_partition_that_was_added_is_written_through_the_router_and_promoted(
    own_cluster: OwnCluster, tmp_path: Path
) -> None:
    source, target = own_cluster("3.9.1"), own_cluster()
    migration = Migration(source, target, tmp_path / "run")
    migration.make_topic("grows", 1)
    try:
        migration.does("link", "create", "blue", "--source", "source", "--target", "target")
        migration.start("mirror", "controller", "router")
        migration.does("topic", "mirror", "grows")
        add_partitions(source.bootstrap, "grows", 3)
        admin = admin_of(migration.routers)
        wait_until(lambda: len(admin.list_topics("grows", timeout=10).topics["grows"].partitions) == 3, 20, "metadata")
        produce(migration.routers, "grows", 300, partitions=3)
        assert _ends(source, "grows") == {0: 100, 1: 100, 2: 100}

        add_partitions(source.bootstrap, "grows", 4)
        migration.does("promote", "grows", "--yes")
        assert _ends(target, "grows") == {0: 100, 1: 100, 2: 100, 3: 0}
        produce(migration.routers, "grows", 400, partitions=4)
        assert _ends(target, "grows") == {0: 200, 1: 200, 2: 200, 3: 100}
        told = "the copy back to the source, also of the partition that was added"
        wait_until(lambda: _ends(source, "grows") == _ends(target, "grows"), 20, told)
    finally:
        migration.stop()
