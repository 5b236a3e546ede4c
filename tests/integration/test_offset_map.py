"""Offsets that cannot be identical: every record is mapped exactly, judged by librdkafka on both sides."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.presences import MirrorPresence
from kmigrate.records.build import filler_batch
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from kmigrate.state.topics import MAP_TOPIC
from kmigrate.workflow.base.offset_maps import Positions
from tests.emptied import BUSY_CLEANER
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import (
    World,
    advance,
    bounds,
    cut,
    engine_running,
    link_between,
    mirror_process,
    produce,
    read_all,
    settings_of,
    transactions,
)
from tests.integration.positions import commit_positions
from tests.integration.test_mirror_batches import wait_until_cleaned

MakeTopic = Callable[..., None]
Names = Callable[[str], str]
OwnCluster = Callable[..., KafkaCluster]


async def maps_of(world: World, topic: str) -> dict[int, OffsetMap]:
    """Return the maps, as the code that carries committed offsets over reads them."""
    record = world.log.state.topic(world.link, topic)
    assert record is not None
    async with ClusterClient(settings_of("target", world.target.bootstrap)) as client:
        return await Positions(client, world.log).maps(record)


async def copied(world: World, topic: str) -> None:
    """Wait until the mirror has passed all records of the source."""
    ends = await asyncio.to_thread(bounds, world.source.bootstrap, topic)
    await world.until(
        topic, lambda told: all(p in told and told[p].position >= end for p, (_, end) in ends.items()), "the copy"
    )


async def assert_mapped(world: World, topic: str, *, before: dict[int, int] | None = None) -> dict[int, OffsetMap]:
    """Check that each source record stands at the mapped offset on the target.

    The target must hold no other record.
    """
    before = before or {}
    maps = await maps_of(world, topic)
    wanted = await asyncio.to_thread(read_all, world.source.bootstrap, topic)
    found = await asyncio.to_thread(read_all, world.target.bootstrap, topic)
    for partition, records in wanted.items():
        made = maps[partition]
        ours = {record[0]: record[1:] for record in found[partition] if record[0] >= before.get(partition, 0)}
        assert len(ours) == len(records), f"partition {partition}"
        for offset, *rest in records:
            place = made.to_target(offset)
            assert place is not None and place.is_record
            assert ours[place.offset] == tuple(rest), f"record {offset} of partition {partition}"
            assert made.to_source(place.offset) == (offset, True)
    return maps


def test_a_topic_whose_target_holds_data_is_copied_behind_it_and_the_map_finds_every_record(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("behind")
    make_topic(source, topic, 2)
    make_topic(target, topic, 2, config={"retention.ms": "3600000000"})
    produce(target.bootstrap, topic, 301, partitions=2, first=9_000)
    before = {p: end for p, (_, end) in bounds(target.bootstrap, topic).items()}
    produce(source.bootstrap, topic, 500, partitions=2)
    transactions(source.bootstrap, topic, 30, name=topic, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            refused = await world.log.wait(
                lambda state: r if (r := state.topic(world.link, topic)) and r.reason else None, 20, "the refusal"
            )
            assert refused.reason.startswith("target-topic-not-empty")
            await world.change(topic, lambda record: replace(record, offsets="mapped"))
            record = await world.in_phase(topic, TopicPhase.MIRRORING)
            assert record.mapped and dict(record.target_starts) == before
            assert record.restore_configs["retention.ms"] == "3600000000", "the target topic keeps its own configs"
            await copied(world, topic)
            maps = await assert_mapped(world, topic, before=before)
            assert all(len(made) > 10 for made in maps.values())
            assert [p.runs for _, p in sorted(world.progress(topic).items())] == [len(maps[0]), len(maps[1])]

    asyncio.run(scene())


def test_the_log_start_of_a_mapped_copy_follows_the_sources_and_its_next_owner_goes_on(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("mapped-start")
    make_topic(source, topic, 2)
    transactions(source.bootstrap, topic, 60, name=topic, partitions=2)
    quick = MirrorSettings(lease_s=1.5, presence_ms=200, follow_s=0.3)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            async with engine_running(world, settings=quick):
                await world.mirror(topic, offsets="mapped")
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await copied(world, topic)
                begin = (await asyncio.to_thread(bounds, source.bootstrap, topic))[0][1] // 2
                await asyncio.to_thread(cut, source.bootstrap, topic, {0: begin})
                place = (await maps_of(world, topic))[0].to_target(begin)
                assert place is not None and 0 < place.offset < begin
                deadline = time.monotonic() + 20
                while (found := await asyncio.to_thread(bounds, target.bootstrap, topic))[0][0] != place.offset:
                    assert time.monotonic() < deadline, (found, place)
                    await asyncio.sleep(0.1)
                assert found[1][0] == 0, "the other partition keeps its beginning"
            produce(source.bootstrap, topic, 200, partitions=2)
            async with engine_running(world, "m2", settings=quick):
                await copied(world, topic)
                await assert_mapped(world, topic)
                assert not any(word.problems for word in world.log.alive(MirrorPresence))

    asyncio.run(scene())


def test_chunks_of_a_map_that_a_client_overwrites_are_stored_again_by_the_mirror(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("overwritten")
    make_topic(source, topic, 2)
    transactions(source.bootstrap, topic, 20, name=topic, partitions=2)
    quick = MirrorSettings(lease_s=1.5, presence_ms=200, follow_s=0.3)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            async with engine_running(world, settings=quick):
                await world.mirror(topic, offsets="mapped")
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await copied(world, topic)
                before = await asyncio.to_thread(chunks_of, target.bootstrap, topic)
                assert len(before) == 2
                vandal = Producer({"bootstrap.servers": target.bootstrap, "compression.type": "zstd"})
                for key, value in zip(before, (b"rubbish", None), strict=True):
                    vandal.produce(MAP_TOPIC, value, key)
                assert vandal.flush(20) == 0
                deadline = time.monotonic() + 20
                while await asyncio.to_thread(chunks_of, target.bootstrap, topic) != before:
                    assert time.monotonic() < deadline, await asyncio.to_thread(chunks_of, target.bootstrap, topic)
                    await asyncio.sleep(0.2)
            transactions(source.bootstrap, topic, 5, name=topic, partitions=2)
            async with engine_running(world, "m2", settings=quick):
                await copied(world, topic)
                await assert_mapped(world, topic)

    asyncio.run(scene())


def chunks_of(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    """Return what compaction would leave of a topic's map: the newest record of each key."""
    read = read_all(bootstrap, MAP_TOPIC, committed=False)[0]
    return {key: value for _, key, value, *_ in read if key is not None and f"/{topic}/".encode() in key}


def test_where_only_the_padding_is_too_long_the_map_is_one_run(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("far")
    make_topic(source, topic)
    advance(source.bootstrap, topic, {0: 5_000})
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 5_000)])[TopicPartition(topic, 0)].result(10)
    produce(source.bootstrap, topic, 300)

    async def scene() -> None:
        near = LinkSettings(align_limit=4_999)
        async with link_between(source, target, unique_name("link"), near) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await copied(world, topic)
            maps = await assert_mapped(world, topic)
            assert list(maps[0].runs()) == [Run(5_000, 0, 300)]
            assert bounds(target.bootstrap, topic) == {0: (0, 300)}

    asyncio.run(scene())


def once(bootstrap: str, topic: str, numbers: range) -> None:
    """Write records, each with a key of its own; every tenth is overwritten at once."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "batch.num.messages": 20})
    for number in numbers:
        producer.produce(topic, f"value-{number}".encode(), f"key-{number - number % 10 // 9}".encode())
    assert producer.flush(30) == 0


def write_with_a_huge_gap(bootstrap: str, topic: str) -> None:
    """Write keyed records, 600,000 offsets that a cleaner removes except the last batch, and keyed records again."""
    once(bootstrap, topic, range(400))

    async def fill() -> None:
        async with ClusterClient(settings_of("source", bootstrap)) as client:
            producer_id, epoch = await client.init_producer_id()
            for number in range(4):
                batch = filler_batch(
                    150_000, timestamp=0, producer_id=producer_id, epoch=epoch, sequence=150_000 * number
                )
                assert (await append_alone(client, topic, 0, batch, purpose="test")).error == 0

    asyncio.run(fill())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"), ("segment.ms", "100")):
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(10)
    for number in range(3):
        once(bootstrap, topic, range(400 + 100 * number, 500 + 100 * number))
        time.sleep(0.3)  # Segments roll by time, and the cleaner takes only closed segments.


@pytest.mark.soak
def test_a_compacted_topic_with_a_huge_gap_is_mapped_by_itself_and_groups_go_on_at_the_next_record(
    tmp_path: Path, own_cluster: OwnCluster, unique_name: Names
) -> None:
    source = own_cluster(version=SOURCE_VERSION, config=BUSY_CLEANER)
    run = Migration(
        source, own_cluster(), tmp_path / "run", "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 1.0\n"
    )
    topic = unique_name("gap")
    run.make_topic(topic, 1, config={"retention.ms": "-1"})
    write_with_a_huge_gap(source.bootstrap, topic)
    wait_until_cleaned(source.bootstrap, [topic], 100_000)
    records = read_all(source.bootstrap, topic)[0]
    gap_from = max(r[0] for r in records if r[0] < 400)
    assert records[-1][0] > 600_000
    for group, position in (("before", records[9][0]), ("inside", gap_from + 5), ("end", records[-1][0] + 1)):
        commit_positions(source.client(), group, [TopicPartition(topic, 0, position)])
    try:
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        outlook = run.does("plan", topic)["topics"][0]
        assert (outlook["offsets"], outlook["padding"], outlook["holes_exact"]) == ("mapped", 0, True)
        assert outlook["holes"] == outlook["records"] - len(records) > 600_000
        run.start("mirror", "controller")
        run.does("topic", "mirror", topic)
        wait_until(lambda: run.does("status")["topics"][0]["lag"] == 0, 40, "the copy")
        left = run.does("plan", topic)["topics"][0]
        assert [left[name] for name in ("offsets", "records", "holes", "seconds")] == ["mapped", 0, 0, 0.0]
        status = run.does("status")["topics"][0]
        assert status["offsets"].startswith("mapped (") and "run" in status["offsets"]
        told = run.does("offsets", "translate", topic, str(records[9][0]), str(gap_from + 5), str(1 << 40))
        assert [p["record"] for p in told["positions"]] == [True, False, False]
        assert told["positions"][2]["to"] is None
        back = run.does("offsets", "translate", f"{topic}:0", str(told["positions"][0]["to"]), "--from", "target")
        assert back["positions"][0]["to"] == records[9][0]
        kept = tmp_path / "positions.json"
        kept.write_text(json.dumps({topic: {"0": gap_from + 5}}))
        run.does("offsets", "export", str(kept), "--out", str(tmp_path / "moved.json"))
        moved = json.loads((tmp_path / "moved.json").read_text())
        assert moved == {topic: {"0": told["positions"][1]["to"]}}
        checkpoint = tmp_path / "query"
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "metadata").write_text('{"id":"q"}')
        for batch, position in ((6, 0), (7, records[9][0]), (8, gap_from + 5)):
            (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"{topic}":{{"0":{position}}}}}')
        run.does("offsets", "export", str(checkpoint), "--out", str(tmp_path / "copy"))
        assert sorted(path.name for path in (tmp_path / "copy" / "offsets").iterdir()) == ["7", "8"]
        assert json.loads((tmp_path / "copy" / "offsets" / "8").read_text().split("\n")[2]) == moved
        assert (tmp_path / "copy" / "metadata").read_text() == '{"id":"q"}'
        run.does("group", "mirror", "before", "inside", "end")
        # A new coordinator on the target may still be loading: then the promote is repeated once.
        run.again("group", "promote", "before", "inside", "end", "--yes", during=lambda: time.sleep(0.3))
        run.does("promote", topic, "--verify", "--yes")
        after = run.does("offsets", "translate", topic, str(records[-1][0]), str(records[-1][0] + 1))
    finally:
        run.stop()
    copies = read_all(run.target.bootstrap, topic)[0]
    assert [r[1:] for r in copies] == [r[1:] for r in records]
    assert [p["to"] for p in after["positions"]] == [copies[-1][0], copies[-1][0] + 1]
    produce(run.target.bootstrap, topic, 1, first=99_999)
    assert next_value(run.target.bootstrap, "before", topic) == records[9][2]
    assert next_value(run.target.bootstrap, "inside", topic) == next(r[2] for r in records if r[0] > gap_from)
    assert next_value(run.target.bootstrap, "end", topic) == b"value-99999"
    told = run.does("verify", topic)
    assert (told["equal"], told["records"]) == (True, 0), "the promote's own check has seen all of it"
    groups = {each["group"]: each for each in told["groups"]}
    assert {name: (each["sound"], each["positions"]) for name, each in groups.items()} == {
        "before": (True, 1), "inside": (True, 1), "end": (True, 1)
    }  # fmt: skip
    commit_positions(source.client(), "before", [TopicPartition(topic, 0, records[12][0])])
    commit_positions(run.target.client(), "end", [TopicPartition(topic, 0, copies[3][0])])
    found = run.cli("verify", topic)
    assert (found.code, found.told["equal"]) == (4, True)
    groups = {each["group"]: each for each in found.told["groups"]}
    assert {name: each["sound"] for name, each in groups.items()} == {"before": False, "inside": True, "end": True}
    expected = {"topic": topic, "partition": 0, "handed_over": copies[9][0], "now": copies[12][0]}
    assert groups["before"]["findings"] == [{**expected, "fault": "moved on the source"}]
    assert [(f["fault"], f["now"]) for f in groups["end"]["findings"]] == [("rewound", copies[3][0])]


def next_value(bootstrap: str, group: str, topic: str) -> bytes | None:
    """Return the first value that the group gets from its committed offset on."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "error"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        assert message is not None and message.error() is None, message
        return message.value()
    finally:
        consumer.close()


def test_mirrors_killed_and_stopped_in_the_middle_leave_a_map_that_finds_every_record(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("killed")
    make_topic(source, topic, 2)
    transactions(source.bootstrap, topic, 40, name=topic, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.mirror(topic, offsets="mapped")
            writer = asyncio.get_running_loop().run_in_executor(
                None, lambda: transactions(source.bootstrap, topic, 400, name=topic, partitions=2, first=40)
            )
            with mirror_process(world, "zombie") as zombie:
                for run in range(2):
                    with mirror_process(world, f"k{run}") as process:
                        await asyncio.sleep(0.8)
                        zombie.send_signal(signal.SIGSTOP)
                        await asyncio.sleep(2.2)
                        zombie.send_signal(signal.SIGCONT)
                        process.kill()
            await writer
            with mirror_process(world, "last"):
                await copied(world, topic)
                assert not [p.problem for p in world.progress(topic).values() if p.problem]
                maps = await assert_mapped(world, topic)
                assert all(len(made) > 100 for made in maps.values())

    asyncio.run(scene())
