"""The verbs' guards on real clusters: bad input is refused before any change, with a clear message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.cli.base import completion
from kmigrate.cluster.admin import HOLD_TYPE, ConfigValue
from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient
from kmigrate.cluster.groups import GroupHold, protocol_type
from kmigrate.errors import KmigrateError, Refused, Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import ControllerPresence, MirrorPresence
from kmigrate.model.records import (
    ClusterRef,
    LinkRecord,
    PartitionBarrier,
    PromoteTerms,
    TopicRecord,
    group_key,
    topic_key,
)
from kmigrate.model.settings import ClusterSettings
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.status.snapshot import snapshot
from tests.clusters import running_clusters, source_and_target
from tests.fakes.proposals import run_verb
from tests.integration.connect_workers import joined_by_a_worker
from tests.integration.positions import commit_positions


def settings(name: str, bootstrap: str) -> ClusterSettings:
    host, port = bootstrap.rsplit(":", 1)
    return ClusterSettings(name, ((host, int(port)),), request_timeout_s=10.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """A source and a target of this file's own, because the state log has a fixed name."""
    root: Path = tmp_path_factory.mktemp("verbs")
    with running_clusters(root, *source_and_target()) as (source, target):
        yield source, target


Act = Callable[[Connections], Awaitable[Any]]


def on_estate(pair: tuple[KafkaCluster, KafkaCluster], act: Act, **other: ClusterSettings) -> Any:
    """Run an act on an connections whose link `l` goes from source to target."""
    known = {
        "source": settings("source", pair[0].bootstrap),
        "target": settings("target", pair[1].bootstrap),
        **other,
    }

    async def run() -> Any:
        async with await Connections.open(known.__getitem__, "target", create=True) as connections:
            await run_verb(verbs.create_link(connections, "l", "source"))
            return await act(connections)

    return asyncio.run(run())


def refusal(pair: tuple[KafkaCluster, KafkaCluster], act: Act, **other: ClusterSettings) -> KmigrateError:
    with pytest.raises(KmigrateError) as caught:
        on_estate(pair, act, **other)
    assert caught.value.still_true
    return caught.value


def forget(pair: tuple[KafkaCluster, KafkaCluster], *keys: str) -> None:
    """Remove records from the state log that no other test expects."""

    async def act(connections: Connections) -> None:
        for key in keys:
            await connections.log.append(lambda state, k=key: (k, None) if k in state.records else None)  # type: ignore[misc]

    on_estate(pair, act)


def make(cluster: KafkaCluster, topic: str, partitions: int = 1, records: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result()
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for n in range(records):
        producer.produce(topic, f"{n}", partition=n % partitions)
    producer.flush()


def test_a_link_is_stored_without_asking_the_source(pair: Any) -> None:
    nobody = ClusterSettings("dead", (("127.0.0.1", 1),))

    async def act(connections: Connections) -> LinkRecord | None:
        made = await run_verb(verbs.create_link(connections, "to-dead", "dead"))
        again = await run_verb(verbs.create_link(connections, "to-dead", "dead"))
        assert made.applied
        assert again.changes == ()
        return connections.log.state.link("to-dead")

    link = on_estate(pair, act, dead=nobody)
    assert link.source == ClusterRef("dead", "127.0.0.1:1")
    assert link.target.cluster_id


def test_a_plan_changes_nothing(pair: Any) -> None:
    async def act(connections: Connections) -> None:
        before = connections.log.state.epoch
        planned = await run_verb(verbs.create_link(connections, "planned", "other"), plan=True)
        assert planned.changes
        assert not planned.applied
        await connections.log.read_to_end()
        assert connections.log.state.link("planned") is None
        assert connections.log.state.epoch == before

    on_estate(pair, act, other=ClusterSettings("other", (("127.0.0.1", 2),)))


def test_source_and_target_must_differ_by_address(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        return await run_verb(verbs.create_link(connections, "loop", "target"))

    assert refusal(pair, act).ref == "source-is-target"


def test_source_and_target_must_differ_by_cluster_id(pair: Any) -> None:
    """The same cluster under another address is recognised at the first contact."""
    port = int(pair[1].bootstrap.rsplit(":", 1)[1])
    alias = ClusterSettings("alias", (("localhost", port),))

    async def act(connections: Connections) -> Any:
        await run_verb(verbs.create_link(connections, "hidden-loop", "alias"))
        return await run_verb(verbs.mirror_topics(connections, "hidden-loop", ["x"], "earliest", "auto"))

    assert refusal(pair, act, alias=alias).ref == "source-is-target"


def test_another_cluster_at_the_bootstrap_address_is_refused(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        made = LinkRecord(
            "moved", "u", ClusterRef("source", "h:1", "another-cluster-id"), ClusterRef("target", "h:2"), 1
        )
        await connections.log.append(lambda state: None if state.link("moved") else made)
        return await verbs.check_link(connections, "moved")

    plan = on_estate(pair, act)
    assert [f.ref for f in plan.findings if f.level == "refuse"] == ["other-cluster-answers"]


def test_an_unreachable_source_is_named(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        await run_verb(verbs.create_link(connections, "to-nobody", "nobody"))
        return await run_verb(verbs.mirror_topics(connections, "to-nobody", ["x"], "earliest", "auto"))

    error = refusal(pair, act, nobody=ClusterSettings("nobody", (("127.0.0.1", 1),)))
    assert isinstance(error, Unreachable)
    assert "clusters.nobody" in error.next_step


@pytest.mark.parametrize(
    ("topic", "ref"), [("no-such-topic", "unknown-topic"), ("__consumer_offsets", "internal-topic")]
)
def test_a_topic_that_cannot_be_mirrored_is_refused(pair: Any, topic: str, ref: str) -> None:
    async def act(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", [topic], "earliest", "auto"))

    assert refusal(pair, act).ref == ref


def test_a_target_topic_with_data_is_refused(pair: Any) -> None:
    make(pair[0], "has-data")
    make(pair[1], "has-data", records=3)

    async def act(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", ["has-data"], "earliest", "auto"))

    error = refusal(pair, act)
    assert error.ref == "target-has-data"
    assert "3 offsets" in error.what


def test_a_target_topic_with_other_partitions_is_refused(pair: Any) -> None:
    make(pair[0], "other-count", partitions=2)
    make(pair[1], "other-count", partitions=3)

    async def act(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", ["other-count"], "earliest", "auto"))

    assert refusal(pair, act).ref == "partition-count"


def test_a_topic_of_another_link_is_refused(pair: Any) -> None:
    make(pair[0], "owned")

    async def act(connections: Connections) -> Any:
        record = TopicRecord("first-come", "owned", TopicPhase.MIRRORING, 1, partitions=1)
        await connections.log.append(lambda state: None if state.topic_owner("owned") else record)
        return await run_verb(verbs.mirror_topics(connections, "l", ["owned"], "earliest", "auto"))

    error = refusal(pair, act)
    assert error.ref == "topic-owned"
    assert "first-come" in error.what


def test_a_topic_is_not_mirrored_back_to_where_it_comes_from_until_it_is_promoted(pair: Any) -> None:
    """Both copies are empty, so that only the other direction's own state log shows the loop."""
    for cluster in pair:
        make(cluster, "round")
        make(cluster, "round-promoted")

    async def forth(connections: Connections) -> None:
        for topic, phase in (("round", TopicPhase.MIRRORING), ("round-promoted", TopicPhase.PROMOTED)):
            record = TopicRecord("l", topic, phase, 1, partitions=1, barrier={0: PartitionBarrier(0, 0)})
            await connections.log.append(lambda state, r=record: None if state.topic("l", r.topic) else r)  # type: ignore[misc]

    on_estate(pair, forth)
    known = {"source": settings("source", pair[0].bootstrap), "target": settings("target", pair[1].bootstrap)}

    async def back() -> Any:
        async with await Connections.open(known.__getitem__, "source", create=True) as connections:
            await run_verb(verbs.create_link(connections, "back", "target"))
            with pytest.raises(Refused) as caught:
                await run_verb(
                    verbs.mirror_topics(connections, "back", ["round", "round-promoted"], "earliest", "mapped")
                )
            assert caught.value.ref == "mirror-loop"
            assert "topic round " in caught.value.what
            assert "round-promoted" not in caught.value.what
            return await run_verb(
                verbs.mirror_topics(connections, "back", ["round-promoted"], "earliest", "mapped"), plan=True
            )

    assert asyncio.run(back()).changes == ("mirror round-promoted from earliest, mapped offsets",)
    forget(pair, topic_key("l", "round"), topic_key("l", "round-promoted"))


def test_one_bad_topic_keeps_the_others_from_being_mirrored(pair: Any) -> None:
    make(pair[0], "good")

    async def act(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", ["good", "bad"], "earliest", "auto"))

    assert refusal(pair, act).ref == "unknown-topic"

    async def look(connections: Connections) -> Any:
        return connections.log.state.topic("l", "good")

    assert on_estate(pair, look) is None


def test_a_target_topic_with_data_is_adopted_only_where_mapped_offsets_are_asked_for(pair: Any) -> None:
    make(pair[0], "full")
    make(pair[1], "full", records=3)

    async def unasked(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", ["full"], "earliest", "auto"))

    error = refusal(pair, unasked)
    assert error.ref == "target-has-data"
    assert "--offsets mapped" in error.next_step

    async def asked(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", ["full"], "earliest", "mapped"), plan=True)

    made = on_estate(pair, asked)
    assert [finding.ref for finding in made.findings] == ["target-has-data"]
    assert made.changes == ("mirror full from earliest, mapped offsets",)

    async def misspelt(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_topics(connections, "l", ["good"], "earliest", "maped"))

    assert refusal(pair, misspelt).ref == "bad-offsets-mode"


def test_an_empty_target_topic_that_a_group_reads_is_refused_or_made_anew_by_name(pair: Any) -> None:
    for topic in ("read-there", "unread-there"):
        make(pair[0], topic, records=3)
        make(pair[1], topic)
    positions = [TopicPartition("read-there", 0, 0)]
    commit_positions(pair[1].client(), "early", positions)
    member = Consumer({"bootstrap.servers": pair[1].bootstrap, "group.id": "early-member"})
    member.subscribe(["read-there"])
    while not member.assignment():
        member.poll(0.1)

    async def mirror(connections: Connections, *, recreate: bool = False) -> Any:
        topics = ["read-there", "unread-there"]
        return await run_verb(
            verbs.mirror_topics(connections, "l", topics, "earliest", "auto", recreate=recreate), plan=True
        )

    error = refusal(pair, mirror)
    member.close()
    assert error.ref == "target-topic-read"
    assert "groups read it there: early, early-member" in error.what
    assert "kmigrate topic mirror --recreate --link l read-there" in error.next_step
    made = on_estate(pair, lambda connections: mirror(connections, recreate=True))
    assert "delete the empty topic read-there on target, and create it anew" in made.changes
    assert [f.ref for f in made.findings].count("target-topic-recreated") == 2


def test_steps_out_of_order_say_what_comes_first(pair: Any) -> None:
    async def promote_unmirrored(connections: Connections) -> Any:
        return await run_verb(verbs.promote_topics(connections, "l", ["never"], PromoteTerms(1)))

    error = refusal(pair, promote_unmirrored)
    assert (error.ref, error.next_step) == ("not-mirrored", "kmigrate topic mirror --link l never")

    async def promote_too_early(connections: Connections) -> Any:
        record = TopicRecord("l", "early", TopicPhase.ALIGNING, 1, partitions=1)
        await connections.log.append(lambda state: None if state.topic_owner("early") else record)
        return await run_verb(verbs.promote_topics(connections, "l", ["early"], PromoteTerms(1)))

    assert refusal(pair, promote_too_early).ref == "not-mirroring"

    async def promote_group(connections: Connections) -> Any:
        return await run_verb(verbs.promote_groups(connections, "l", ["ghost"]))

    assert refusal(pair, promote_group).ref == "not-mirrored"

    async def mirror_group(connections: Connections) -> Any:
        return await run_verb(verbs.mirror_groups(connections, "l", ["ghost"]))

    assert refusal(pair, mirror_group).ref == "unknown-group"


def test_a_group_of_workers_is_refused_as_what_it_is(pair: Any) -> None:
    """librdkafka lists only consumer groups, but workers of Connect and the like form groups, too."""

    async def mirror_workers(connections: Connections) -> Any:
        async with ClusterClient(settings("source", pair[0].bootstrap)) as source:
            await joined_by_a_worker(source, "workers")
            return await run_verb(verbs.mirror_groups(connections, "l", ["workers"]))

    error = refusal(pair, mirror_workers)
    assert error.ref == "not-of-consumers"
    assert "of type connect" in error.what


@pytest.mark.parametrize("by_expression", [False, True], ids=["by name", "by expression"])
def test_a_group_that_was_rolled_back_and_forgotten_is_mirrored_again(pair: Any, by_expression: bool) -> None:
    """While the group was promoted a placeholder was its only member, and the source keeps the placeholder's type."""
    topic, group = ("come-back", "come-back-readers") if by_expression else ("returned", "returned-readers")
    make(pair[0], topic, records=3)
    commit_positions(pair[0].client(), group, [TopicPartition(topic, 0, 2)])

    async def mirror_returned(connections: Connections) -> Any:
        async with ClusterClient(settings("source", pair[0].bootstrap)) as source:
            hold = GroupHold(source, group)
            assert await hold.take() == 0
            await hold.release()
            assert await protocol_type(source, group) == HOLD_TYPE
        link = connections.log.state.link("l")
        assert link is not None
        _, admin = await connections.source(link)
        assert group not in await admin.groups(), "librdkafka lists only groups of consumers"
        if not by_expression:
            return await run_verb(verbs.mirror_groups(connections, "l", [group]))
        plan = await run_verb(verbs.mirror_matching_groups(connections, "l", ["come-back-.*"], []))
        await run_verb(verbs.forget_patterns(connections, "l", "group", ["come-back-.*"]))
        return plan

    assert list(on_estate(pair, mirror_returned).changes)[:1] == [f"register group {group} (hold)"]
    forget(pair, group_key("l", group))


def test_a_group_is_not_promoted_before_all_its_topics_are_copied(pair: Any) -> None:
    make(pair[0], "early", records=3)
    commit_positions(pair[0].client(), "early-readers", [TopicPartition("early", 0, 2)])

    async def act(connections: Connections) -> Any:
        record = TopicRecord("l", "early", TopicPhase.ALIGNING, 1, partitions=1)
        await connections.log.append(lambda state: None if state.topic("l", "early") else record)
        await run_verb(verbs.mirror_groups(connections, "l", ["early-readers"]))
        return await run_verb(verbs.promote_groups(connections, "l", ["early-readers"]))

    error = refusal(pair, act)
    assert error.ref == "topic-not-ready"
    assert "early, which is aligning" in error.what
    forget(pair, topic_key("l", "early"), group_key("l", "early-readers"))


def test_a_link_with_an_unpromoted_topic_is_not_deleted(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        await run_verb(verbs.create_link(connections, "busy", "source"))
        record = TopicRecord("busy", "busy-topic", TopicPhase.MIRRORING, 1, partitions=1)
        await connections.log.append(lambda state: None if state.topic_owner("busy-topic") else record)
        return await run_verb(verbs.delete_link(connections, "busy", 0.0))

    error = refusal(pair, act)
    assert isinstance(error, Refused)
    assert error.ref == "topic-not-promoted"


def test_a_deleted_link_is_gone_and_its_topics_are_not(pair: Any) -> None:
    make(pair[1], "kept")

    async def act(connections: Connections) -> Any:
        await run_verb(verbs.create_link(connections, "done", "source"))
        record = TopicRecord("done", "kept", TopicPhase.PROMOTED, 1, partitions=1)
        await connections.log.append(lambda state: None if state.topic_owner("kept") else record)
        made = await run_verb(verbs.delete_link(connections, "done", 0.0))
        assert made.applied
        assert connections.log.state.link("done") is None
        assert connections.log.state.topic("done", "kept") is None
        return await connections.target.topic("kept")

    assert on_estate(pair, act) is not None


def test_deleting_the_last_link_puts_the_targets_setting_back(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        await run_verb(verbs.create_link(connections, "raised", "source"))
        link = connections.log.state.link("raised")
        assert link is not None
        await connections.log.append(lambda _: replace(link, restore_expiration=""))
        assert await connections.target.set_broker_default(PRODUCER_EXPIRATION, "2147483647") == 0
        await shown(connections, "2147483647", own=True)  # The verb takes any other value as set by somebody else.
        planned = await run_verb(verbs.delete_link(connections, "raised", 0.0), plan=True)
        assert any(PRODUCER_EXPIRATION in change for change in planned.changes)
        await run_verb(verbs.delete_link(connections, "raised", 0.0))
        await shown(connections, "86400000", own=False)

    async def shown(connections: Connections, value: str, *, own: bool) -> None:
        broker = next(iter(connections.target.metadata.brokers))
        for _ in range(100):
            now = await connections.target_admin.broker_config(broker, PRODUCER_EXPIRATION)
            if now == ConfigValue(value, own):
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"{PRODUCER_EXPIRATION} is {now}")

    on_estate(pair, act)


def test_who_has_waited_for_a_promote_in_vain_is_told_what_it_waits_for(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        record = TopicRecord("alone", "slow", TopicPhase.PROMOTE_PENDING, 1)
        await connections.log.append(lambda _: record)
        await connections.log.announce(MirrorPresence("m", "alone", 0, True, 500))
        waits = {record.key: "partition 0 is 7 records behind"}
        await connections.log.announce(ControllerPresence("c", 0, True, 500, waits))
        try:
            await verbs.wait_topics(connections, "alone", ["slow"], {TopicPhase.PROMOTED}, 1.0)
        except KmigrateError as error:
            return error.what
        finally:
            await connections.log.append(lambda _: (record.key, None))
        return ""

    assert "slow: partition 0 is 7 records behind" in on_estate(pair, act)


def test_an_intent_without_a_mirror_stays_and_says_so(pair: Any) -> None:
    make(pair[0], "waiting")

    async def act(connections: Connections) -> Any:
        await run_verb(verbs.mirror_topics(connections, "l", ["waiting"], "earliest", "auto"))
        try:
            await verbs.wait_topics(connections, "l", ["waiting"], {TopicPhase.MIRRORING}, 0.5)
        except KmigrateError as error:
            return error, connections.log.state.topic("l", "waiting")
        return None

    error, record = on_estate(pair, act)
    assert (error.ref, error.exit_code) == ("no-mirror-running", 5)
    assert record.phase is TopicPhase.INITIALISING


def test_status_says_unknown_where_a_source_does_not_answer(pair: Any) -> None:
    async def act(connections: Connections) -> Any:
        await run_verb(verbs.create_link(connections, "dark", "dark"))
        record = TopicRecord("dark", "dark-topic", TopicPhase.MIRRORING, 1, partitions=1)
        await connections.log.append(lambda state: None if state.topic_owner("dark-topic") else record)
        return await snapshot(connections)

    seen = on_estate(
        pair,
        act,
        dark=ClusterSettings("dark", (("127.0.0.1", 1),)),
        dead=ClusterSettings("dead", (("127.0.0.1", 1),)),
        nobody=ClusterSettings("nobody", (("127.0.0.1", 1),)),
        alias=ClusterSettings("alias", (("127.0.0.1", 1),)),
    )
    (link,) = [x for x in seen.links if x.name == "dark"]
    (topic,) = [t for t in seen.topics if t.topic == "dark-topic"]
    assert link.trouble
    assert topic.lag == -1
    assert seen.as_json()["topics"]


def test_a_shells_completion_offers_the_names_of_both_clusters(pair: Any, tmp_path: Path) -> None:
    make(pair[0], "offered-new", records=1)
    make(pair[0], "offered-known")
    commit_positions(pair[0].client(), "offered-group", [TopicPartition("offered-new", 0, 1)])

    async def mirror(connections: Connections) -> None:
        await run_verb(verbs.mirror_topics(connections, "l", ["offered-known"], "earliest", "auto"))

    on_estate(pair, mirror)
    config = tmp_path / "kmigrate.toml"
    config.write_text(
        "".join(
            f'[clusters.{name}]\n"bootstrap.servers" = "{cluster.bootstrap}"\n'
            for name, cluster in zip(("source", "target"), pair, strict=True)
        ),
        encoding="utf-8",
    )
    call: Any = SimpleNamespace(params={"config": str(config), "target": "target", "link": "l"})
    assert completion.mirrored_topics(call, "offered-") == ["offered-known"]
    assert completion.source_topics(call, "offered-") == ["offered-new"]
    assert completion.source_groups(call, "offered-") == ["offered-group"]
    assert "l" in completion.links(call, "")
    forget(pair, topic_key("l", "offered-known"))
