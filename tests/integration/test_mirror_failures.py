"""Failures that stop a single partition on real brokers:

named, without effect on others, and resumed only where safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import fetch_full, fetch_one
from kmigrate.errors import Refused, WaitTimedOut
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import PromoteTerms
from kmigrate.model.stops import AcceptedLoss, PartitionStop, Remedy
from kmigrate.model.words import delete_unneeded
from kmigrate.protocol.api import element_type, entity
from kmigrate.protocol.hot import FetchAnswer, FetchPartition
from kmigrate.records.batch import walk
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.status.snapshot import TopicStatus, snapshot
from tests.conftest import Pair
from tests.emptied import BUSY_CLEANER
from tests.fakes.proposals import run_verb
from tests.integration.mirror_world import (
    World,
    assert_identical,
    bounds,
    engine_running,
    link_between,
    produce,
    read_all,
    settings_of,
)
from tests.integration.test_mirror_batches import COMPACTED, wait_until_cleaned, write_keyed

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
OwnCluster = Callable[..., KafkaCluster]
SetConfig = Callable[[KafkaCluster, str, dict[str, str]], None]
PROMOTE = PromoteTerms(1)


def cut(bootstrap: str, topic: str, offsets: dict[int, int]) -> None:
    """Delete the records before these offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, p, o) for p, o in offsets.items()]).values():
        future.result(20)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while topic in admin.list_topics(timeout=5).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.asynccontextmanager
async def estate_of(world: World) -> AsyncIterator[Connections]:
    """Open the connections of a verb, as the command line does."""
    known = {"source": world.source.bootstrap, "target": world.target.bootstrap}
    async with await Connections.open(lambda name: settings_of(name, known[name]), "target") as connections:
        yield connections


async def resume(world: World, topic: str, partition: int | None = None, loss: tuple[int, int] | None = None) -> Plan:
    async with estate_of(world) as connections:
        return await run_verb(
            verbs.resume_topics(
                connections, world.link, [topic], partition=partition, accept_loss=loss, who="somebody@here"
            )
        )


async def refused(world: World, topic: str, *given: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await resume(world, topic, *given)  # type: ignore[arg-type]
    return caught.value


async def status_of(world: World, topic: str) -> TopicStatus:
    async with estate_of(world) as connections:
        return next(each for each in (await snapshot(connections)).topics if each.topic == topic)


async def stopped(world: World, topic: str, partition: int, ref: str) -> PartitionStop:
    """Wait for a partition's stop in the state log, and return the stop."""
    return await world.log.wait(
        lambda state: (
            stop
            if (record := state.topic(world.link, topic)) is not None
            and (stop := record.stops.get(partition)) is not None
            and stop.ref == ref
            else None
        ),
        30,
        f"{topic}-{partition} to stop by {ref}",
    )


async def waiting(world: World, topic: str, partition: int, ref: str) -> None:
    try:
        await world.until(topic, lambda told: ref in told[partition].trouble, f"the trouble {ref}", 30)
    except WaitTimedOut as late:
        late.what += f" of {topic}-{partition}, which has {world.progress(topic).get(partition)}"
        raise


async def copied(world: World, topic: str, partition: int, offset: int, timeout: float = 30) -> None:
    await world.until(topic, lambda told: told[partition].position >= offset, f"{partition} at {offset}", timeout)


async def to(function: Callable[..., object], *args: object, **more: object) -> None:
    await asyncio.to_thread(function, *args, **more)


def test_records_deleted_before_they_were_copied_are_named_and_only_their_exact_range_is_given_up(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("overtaken")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 200, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link"), LinkSettings(hole_limit=50)) as world:
            async with engine_running(world):
                await world.copied(topic)
            # No mirror runs while records of partition 1 come and go, more of them than a hole of compaction may have.
            await to(produce, source.bootstrap, topic, 3_000, partitions=2, first=200)
            await to(cut, source.bootstrap, topic, {1: 1_550})
            async with engine_running(world, "m2"):
                stop = await stopped(world, topic, 1, "source-range-lost")
                assert (stop.lost, stop.remedy) == ("100..1549", Remedy.ACCEPT_LOSS)
                await copied(world, topic, 0, 1_600)  # The neighbouring partition goes on.
                shown = (await status_of(world, topic)).partitions[1]
                assert "offsets 100 to 1549 were deleted on the source" in shown.problem
                assert (await refused(world, topic)).ref == "loss-not-accepted"
                assert (await refused(world, topic, 1)).ref == "loss-not-accepted"
                wrong = await refused(world, topic, 1, (100, 1_500))
                assert wrong.ref == "other-range"
                assert wrong.next_step.endswith(f"--accept-loss 100..1549 --link {world.link} {topic}")
                assert (await refused(world, topic, 7)).ref == "unknown-partition"
            # The stop survives a restart, and the verb works while no mirror runs.
            await resume(world, topic, 1, (100, 1_549))
            async with engine_running(world, "m3"):
                await copied(world, topic, 1, 1_600)
                await to(produce, source.bootstrap, topic, 100, partitions=2, first=3_200)
                await copied(world, topic, 1, 1_650)
                await copied(world, topic, 0, 1_650)
                found, wanted = read_all(target.bootstrap, topic), read_all(source.bootstrap, topic)
                assert found[0] == wanted[0]
                assert found[1][100:] == wanted[1]
                assert [record[0] for record in found[1][:100]] == list(range(100))
                assert bounds(target.bootstrap, topic) == {0: (0, 1_650), 1: (0, 1_650)}
                status = await status_of(world, topic)
                assert status.partitions[1].problem == ""
                (loss,) = status.partitions[1].losses
                assert loss == AcceptedLoss(100, 1_549, "source-range-lost", loss.at_ms, "somebody@here")
                assert loss.at_ms > 0
                assert status.offsets == "identical"

    asyncio.run(scene())


def test_what_was_deleted_between_the_stop_and_the_acceptance_belongs_to_the_range(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("more-lost")
    make_topic(source, topic)
    produce(source.bootstrap, topic, 10)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.copied(topic)
            async with estate_of(world) as connections:
                await run_verb(verbs.pause_topics(connections, world.link, [topic]))
            await asyncio.sleep(0.7)  # By then the fetch in flight is answered.
            await to(produce, source.bootstrap, topic, 100)
            await to(cut, source.bootstrap, topic, {0: 40})
            await asyncio.sleep(0.7)
            assert (await status_of(world, topic)).paused
            assert bounds(target.bootstrap, topic) == {0: (0, 10)}, "a paused topic is not copied"
            async with estate_of(world) as connections:
                with pytest.raises(Refused) as caught:
                    await run_verb(verbs.promote_topics(connections, world.link, [topic], PROMOTE))
                assert caught.value.ref == "topic-paused"
            await resume(world, topic)
            assert (await stopped(world, topic, 0, "source-range-lost")).lost == "10..39"
            await to(cut, source.bootstrap, topic, {0: 60})
            assert " --accept-loss 10..59 " in (await refused(world, topic, 0, (10, 39))).next_step
            async with estate_of(world) as connections:
                with pytest.raises(Refused) as caught:
                    await run_verb(verbs.promote_topics(connections, world.link, [topic], PROMOTE))
                assert caught.value.ref == "partition-stopped"
            await resume(world, topic, 0, (10, 59))
            await copied(world, topic, 0, 110)
            assert read_all(target.bootstrap, topic)[0][10:] == read_all(source.bootstrap, topic)[0]

    asyncio.run(scene())


def test_a_gap_that_a_cleaner_made_while_nobody_copied_is_filled_once_its_limit_is_raised(
    own_cluster: OwnCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    source, topic = own_cluster(version=SOURCE_VERSION, config=BUSY_CLEANER), unique_name("gap")
    make_topic(source, topic, config=COMPACTED)
    write_keyed(source.bootstrap, topic, 100)

    def write_over() -> None:
        """Write some 3,000 offsets with the same key, of which a cleaner keeps only the last."""
        producer = Producer({"bootstrap.servers": source.bootstrap, "batch.num.messages": 12})
        for number in range(3_000):
            producer.produce(topic, f"value-{number}-{'x' * 60}".encode(), b"one")
        assert producer.flush(30) == 0
        write_keyed(source.bootstrap, topic, 500, first=100)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link"), LinkSettings(hole_limit=200)) as world:
            async with engine_running(world):
                await world.copied(topic)
            await to(write_over)
            await to(wait_until_cleaned, source.bootstrap, [topic], 700)
            async with engine_running(world, "m2"):
                stop = await stopped(world, topic, 0, "large-gap")
                assert "hole_limit is 200" in stop.what
                assert f"kmigrate link alter {world.link} --set hole_limit=N" in stop.way_on(world.link, topic, 0)
                async with estate_of(world) as connections:
                    await run_verb(verbs.alter_link(connections, world.link, lambda _: LinkSettings()))
                await resume(world, topic, 0)
                await world.caught_up(topic)
                assert (await status_of(world, topic)).offsets == "identical"
                found, wanted = read_all(target.bootstrap, topic)[0], read_all(source.bootstrap, topic)[0]
                assert [record[0] for record in found[:100]] == list(range(100)), "copied before they were cleaned"
                assert found[100:] == [record for record in wanted if record[0] >= 100]
                assert len(found) > 200

    asyncio.run(scene())


def test_a_topic_made_anew_on_either_side_is_not_written_and_is_copied_from_its_start_once_the_target_is_gone(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    here, there, other = unique_name("anew-source"), unique_name("anew-target"), unique_name("other")
    for topic in (here, there, other):
        make_topic(source, topic)
        produce(source.bootstrap, topic, 50)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in (here, there, other):
                await world.mirror(topic)
            for topic in (here, there, other):
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
            await to(delete_topic, source.bootstrap, here)
            await waiting(world, here, 0, "source-topic-gone")
            await to(make_topic, source, here)
            await to(produce, source.bootstrap, here, 80, first=1_000)
            await to(delete_topic, target.bootstrap, there)
            await waiting(world, there, 0, "target-topic-gone")
            await to(make_topic, target, there)
            await to(produce, source.bootstrap, there, 50, first=50)
            for topic in (here, there):
                stop = await stopped(world, topic, 0, "topic-recreated")
                assert stop.remedy is Remedy.ANEW
            assert bounds(target.bootstrap, here) == {0: (0, 50)}
            await to(produce, source.bootstrap, other, 50)
            await copied(world, other, 0, 100)
            unsafe = await refused(world, here)
            assert (unsafe.ref, unsafe.next_step) == (
                "resume-unsafe",
                f"{delete_unneeded(here)}, then: kmigrate topic resume --link {world.link} {here}",
            )
            await to(delete_topic, target.bootstrap, here)
            for topic in (here, there):
                await resume(world, topic)
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=80)

    asyncio.run(scene())


def test_a_source_cut_by_an_unclean_election_and_regrown_is_named_by_the_offsets_that_differ(
    clusters3: Pair, make_topic: MakeTopic, unique_name: Names
) -> None:
    source, target = clusters3.source, clusters3.target
    topic, unread = unique_name("cut"), unique_name("cut-unread")
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    for name in (topic, unread):
        make_topic(source, name, replicas=2, config=config)
    admin = AdminClient({"bootstrap.servers": source.bootstrap})

    def replicas(name: str) -> list[int]:
        return list(admin.list_topics(name, timeout=10).topics[name].partitions[0].replicas)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            leader, follower = replicas(topic)
            for name in (topic, unread):
                await world.mirror(name)
                await world.in_phase(name, TopicPhase.MIRRORING)
                await to(produce, source.bootstrap, name, 30)
                await copied(world, name, 0, 30)
            await to(source.terminate, follower)
            await to(produce, source.bootstrap, topic, 20, first=30)
            await copied(world, topic, 0, 50)
            await to(source.terminate, leader)
            await to(source.restart, follower)
            await to(produce, source.bootstrap, topic, 30, first=500)
            stop = await stopped(world, topic, 0, "source-truncated")
            assert (stop.lost, stop.remedy) == ("30..49", Remedy.ACCEPT_LOSS)
            assert bounds(target.bootstrap, topic) == {0: (0, 50)}
            assert (await refused(world, topic, 0)).ref == "loss-not-accepted"
            await resume(world, topic, 0, (30, 49))
            await copied(world, topic, 0, 60)
            found, wanted = read_all(target.bootstrap, topic)[0], read_all(source.bootstrap, topic)[0]
            assert found[:30] == wanted[:30]
            assert found[50:] == wanted[50:]
            assert [record[2] for record in found[30:50]] == [f"value-{n}".encode() for n in range(30, 50)]

    asyncio.run(scene())


def test_a_target_cut_by_an_unclean_election_is_filled_up_again_and_its_loss_is_told(
    clusters3: Pair, make_topic: MakeTopic, set_topic_config: SetConfig, unique_name: Names
) -> None:
    source, target = clusters3.source, clusters3.target
    topic = unique_name("cut-target")
    make_topic(source, topic, replicas=2, config={"min.insync.replicas": "1"})

    def replicas() -> list[int]:
        listed = AdminClient({"bootstrap.servers": target.bootstrap}).list_topics(topic, timeout=10)
        return list(listed.topics[topic].partitions[0].replicas)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await to(set_topic_config, target, topic, {"unclean.leader.election.enable": "true"})
            await to(produce, source.bootstrap, topic, 30)
            await copied(world, topic, 0, 30)
            leader, follower = await asyncio.to_thread(replicas)
            await to(target.terminate, follower)
            await to(produce, source.bootstrap, topic, 20, first=30)
            await copied(world, topic, 0, 50)
            await to(target.terminate, leader)
            await to(target.restart, follower)
            await world.log.wait(
                lambda _: any("offsets 30 to 49" in n for w in world.log.alive(MirrorPresence) for n in w.notes),
                60,
                "the loss to be told",
            )
            await to(produce, source.bootstrap, topic, 30, first=50)
            await copied(world, topic, 0, 80)
            assert_identical(world, topic, at_least=80)
            async with estate_of(world) as connections:
                (link,) = (each for each in (await snapshot(connections)).links if each.name == world.link)
            assert f"target-truncated: {topic}-0: offsets 30 to 49 were on the target" in " ".join(link.notes)

    asyncio.run(scene())


def test_a_foreign_write_on_the_target_stops_its_partition_and_a_restart_does_not_go_on_over_it(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("foreign")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 40, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            async with engine_running(world):
                await world.copied(topic)
                await to(produce, target.bootstrap, topic, 3)  # All three records go to partition 0.
                await to(produce, source.bootstrap, topic, 40, partitions=2, first=40)
                stop = await stopped(world, topic, 0, "diverged")
                assert stop.what == "the batch for offset 20 was stored or found at 23 on the target"
                await copied(world, topic, 1, 40)
            async with engine_running(world, "m2"):
                await copied(world, topic, 1, 40)
                await to(produce, source.bootstrap, topic, 40, partitions=2, first=80)
                await copied(world, topic, 1, 60)
                assert bounds(target.bootstrap, topic)[0] == (0, 43), "nothing more is written behind it"
                assert (await refused(world, topic, 0)).ref == "resume-unsafe"
                await to(delete_topic, target.bootstrap, topic)
                await resume(world, topic)
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=120)

    asyncio.run(scene())


def test_a_target_that_takes_no_writes_stops_the_topic_until_it_is_resumed(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, set_topic_config: SetConfig
) -> None:
    sealed, other = unique_name("sealed"), unique_name("open")
    for topic in (sealed, other):
        make_topic(source, topic)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in (sealed, other):
                await world.mirror(topic)
                await world.in_phase(topic, TopicPhase.MIRRORING)
            await to(set_topic_config, target, sealed, {"max.message.bytes": "1"})
            await asyncio.sleep(0.3)  # The config is in force after some 50 ms (V4).
            for topic in (sealed, other):
                await to(produce, source.bootstrap, topic, 100)
            stop = await stopped(world, sealed, 0, "target-refused")
            assert stop.text == "target-refused: offset 0 was refused with MESSAGE_TOO_LARGE (10)"
            await copied(world, other, 0, 100)
            assert (await refused(world, sealed, 0, (0, 99))).ref == "nothing-lost"
            await to(set_topic_config, target, sealed, {"max.message.bytes": "1048588"})
            await asyncio.sleep(0.3)
            await resume(world, sealed)
            await world.caught_up(sealed)
            assert_identical(world, sealed, at_least=100)

    asyncio.run(scene())


def test_a_missing_right_on_the_target_is_named_and_the_copy_goes_on_by_itself_once_it_is_granted(
    source: KafkaCluster, own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    target = own_cluster(config={"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"})
    denied, other = unique_name("denied"), unique_name("granted")
    for topic in (denied, other):
        make_topic(source, topic)
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    # Once a resource has any ACL, only operations that an ACL allows are allowed.
    read_only = AclBinding(
        ResourceType.TOPIC, denied, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
        AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    any_of_it = AclBindingFilter(
        ResourceType.TOPIC,
        denied,
        ResourcePatternType.LITERAL,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in (denied, other):
                await world.mirror(topic)
                await world.in_phase(topic, TopicPhase.MIRRORING)
            await to(lambda: [f.result(10) for f in admin.create_acls([read_only]).values()])
            await asyncio.sleep(0.3)
            for topic in (denied, other):
                await to(produce, source.bootstrap, topic, 100)
            await waiting(world, denied, 0, "target-denied: offset 0 was refused with TOPIC_AUTHORIZATION_FAILED (29)")
            await copied(world, other, 0, 100)
            shown = (await status_of(world, denied)).partitions[0]
            assert (shown.problem, shown.stop) == ("", None)
            assert "target-denied" in shown.trouble
            await to(lambda: [f.result(10) for f in admin.delete_acls([any_of_it]).values()])
            await copied(world, denied, 0, 100)
            await world.until(denied, lambda told: not told[0].trouble, "no trouble any more")
            assert_identical(world, denied, at_least=100)

    asyncio.run(scene())


async def move(world: World, topic: str, to_folder: Path, from_folder: Path) -> None:
    """Move partition 0 of a target topic to another disk (AlterReplicaLogDirs)."""
    request = entity(34, 2, "request")
    of_dir = element_type(request, "dirs")
    of_topic = element_type(of_dir, "topics")
    async with ClusterClient(settings_of("target", world.target.bootstrap)) as client:
        dirs = (of_dir(path=str(to_folder), topics=(of_topic(name=topic, partitions=(0,)),)),)
        answer = await client.call(request(dirs=dirs))
        assert [int(part.error_code) for each in answer.results for part in each.partitions] == [0]
    async with asyncio.timeout(20):
        while (from_folder / f"{topic}-0").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_a_failed_disk_of_the_target_holds_back_its_own_partitions_only(
    source: KafkaCluster, own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    folders = [tmp_path / "disk-a", tmp_path / "disk-b"]
    # The state log may be on either disk. A broker that is a controller, too, ends with the disk of its metadata.
    target = own_cluster(
        config={"log.dirs": ",".join(map(str, folders)), "metadata.log.dir": str(tmp_path / "metadata")}
    )
    topic = unique_name("disks")
    make_topic(source, topic, partitions=6, config={"segment.ms": "300"})

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await to(produce, source.bootstrap, topic, 60, partitions=6)
            await world.caught_up(topic)
            state = next(f for f in folders if (f / "__kmigrate_state-0").exists())
            failed = next(f for f in folders if f != state)
            # The disk of both state topics is the disk that survives.
            await move(world, "__kmigrate_presence", state, failed)
            gone = sorted(int(path.name.rpartition("-")[2]) for path in failed.glob(f"{topic}-*"))
            kept = sorted({*range(6)} - {*gone})
            assert gone and kept, "Kafka puts each new partition where fewest are, so both disks have some"
            failed.rename(tmp_path / "pulled-out")  # The next segment cannot be made there.
            await asyncio.sleep(0.4)
            await to(produce, source.bootstrap, topic, 600, partitions=6, first=60)
            for partition in gone:
                await waiting(world, topic, partition, "target-")
            for partition in kept:
                await copied(world, topic, partition, 110)
            assert not [p for p in gone if world.progress(topic)[p].problem]
            found = read_all(target.bootstrap, topic, only=kept)
            assert found == read_all(source.bootstrap, topic, only=kept)
            assert [len(records) for records in found.values()] == [110] * len(kept)

    asyncio.run(scene())


async def set_quota(client: ClusterClient, key: str, rate: float | None, whose: str | None = None) -> None:
    """Set the quota of a client id, or the default for all client ids (AlterClientQuotas)."""
    request = entity(49, 1, "request")
    entry = element_type(request, "entries")
    whom, what = element_type(entry, "entity"), element_type(entry, "ops")
    op = what(key=key, value=rate or 0.0, remove=rate is None)
    clients = whom(entity_type="client-id", entity_name=whose)
    answer = await client.call(request(entries=(entry(entity=(clients,), ops=(op,)),), validate_only=False))
    assert [int(each.error_code) for each in answer.entries] == [0]


@pytest.mark.soak
def test_a_look_at_one_batch_waits_while_a_quota_for_reading_is_used_up(
    source: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The mirror waits while an answer of the broker names no partition.

    Before, a reader of a tail, or a comparison of a batch, took such an answer for a full answer.
    """
    topic, whose = unique_name("quota"), unique_name("reader")
    make_topic(source, topic)
    produce(source.bootstrap, topic, 60_000, config={"batch.size": 16_000})  # This makes some 2.5 MB.
    wanted = FetchPartition(topic, 0, 0, 64 << 10)

    async def scene() -> int:
        conf = replace(settings_of("source", source.bootstrap), client_id=whose)
        answers: list[FetchAnswer] = []
        async with ClusterClient(conf) as client:
            await set_quota(client, "consumer_byte_rate", 50_000.0, whose)
            await client.refresh([topic])
            for _ in range(9):
                answer = await fetch_one(client, client.leader(topic, 0), wanted, purpose="test")
                assert next(walk(answer.records)).base_offset == 0
            while all(answer.partitions for answer in answers):
                answers.append(await fetch_full(client, client.leader(topic, 0), [wanted], purpose="test"))
        return answers[-1].throttle_ms

    assert asyncio.run(scene()) > 0


@pytest.mark.soak
def test_a_used_up_quota_of_the_target_is_respected_and_shown(
    source: KafkaCluster, own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    target = own_cluster()
    topic = unique_name("quota")
    make_topic(source, topic)
    produce(source.bootstrap, topic, 60_000, config={"batch.size": 16_000})  # This makes some 2.5 MB.

    async def quota(world: World, rate: float | None) -> None:
        async with ClusterClient(settings_of("target", world.target.bootstrap)) as client:
            await set_quota(client, "producer_byte_rate", rate)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await quota(world, 100_000.0)  # The broker averages the quota over some 10 s.
            async with engine_running(world) as engine:
                await world.mirror(topic)
                await waiting(world, topic, 0, "target-throttled: broker 1 asks for rests of")
                assert "target-throttled" in (await status_of(world, topic)).partitions[0].trouble
                await quota(world, None)
                await copied(world, topic, 0, 60_000)
                assert not engine.done()
                assert_identical(world, topic, at_least=60_000)

    asyncio.run(scene())


def test_a_links_limit_is_kept_and_lifted_while_it_runs(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("limited")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 120_000, partitions=2, config={"batch.size": 16_000})  # This makes some 5 MB.

    async def limit(world: World, rate: int) -> None:
        async with estate_of(world) as connections:
            await run_verb(verbs.throttle_link(connections, world.link, rate))

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await limit(world, 500_000)
            async with engine_running(world):
                await world.mirror(topic)
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await copied(world, topic, 0, 1)
                began, first = await fresh_position(world, topic)
                await asyncio.sleep(3)
                ended, last = await fresh_position(world, topic)
                assert 300_000 < (last - first) / (ended - began) * RECORD_BYTES < 700_000
                async with estate_of(world) as connections:
                    shown = {each.name: each.throttle for each in (await snapshot(connections)).links}
                assert shown[world.link] == 500_000
                await limit(world, 0)
                await world.until(topic, lambda told: all(p.position == 60_000 for p in told.values()), "the rest", 3)
                assert_identical(world, topic, at_least=120_000)

    asyncio.run(scene())


RECORD_BYTES = 43
"""Size of a numbered record of `produce` inside a batch."""


async def fresh_position(world: World, topic: str) -> tuple[float, int]:
    """Return a time and the sum of the positions that a presence has just told; a presence may be a second old."""
    before = sum_of(world.progress(topic))
    told = await world.until(topic, lambda told: sum_of(told) != before, "a presence", 5)
    return time.monotonic(), sum_of(told)


def sum_of(told: Mapping[int, PartitionProgress]) -> int:
    return sum(each.position for each in told.values())
