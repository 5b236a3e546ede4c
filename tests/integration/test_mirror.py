"""The mirror on real brokers: identical offsets, whatever the source log looks like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import PartitionBarrier
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.migration import Migration
from tests.integration.mirror_world import (
    advance,
    assert_identical,
    bounds,
    cut,
    engine_running,
    interleaved,
    link_between,
    produce,
    produce_at,
    read_all,
    transactions,
)

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def test_a_topic_is_copied_with_identical_offsets_while_it_is_written(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("plain")
    make_topic(source, topic, partitions=3, config={"retention.ms": "86400000"})
    produce(source.bootstrap, topic, 20_000, partitions=3, config={"compression.type": "lz4"})

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await asyncio.to_thread(produce, source.bootstrap, topic, 6_000, partitions=3, first=20_000)
            await world.caught_up(topic)
            await world.until(topic, lambda told: all(p.position == p.source_end for p in told.values()), "no lag")
            record = world.log.state.topic(world.link, topic)
            assert record is not None
            assert record.restore_configs == {
                "retention.ms": "86400000",
                "message.timestamp.after.max.ms": str(2**63 - 1),  # No topic of a 3.9 source has this limit.
            }
            assert "cleanup.policy" in record.drop_configs
            assert_identical(world, topic, at_least=26_000)

    asyncio.run(scene())


def test_transactions_leave_the_same_offsets_with_markers_and_with_empty_transactions(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topics = {filler: unique_name(f"txn-{filler}") for filler in HoleFiller}
    committed: dict[str, list[int]] = {}
    for seed, topic in enumerate(topics.values()):
        make_topic(source, topic, partitions=4)
        committed[topic] = interleaved(source.bootstrap, topic, 2, name=f"{topic}-among", seed=seed)
        assert interleaved(source.bootstrap, topic, 3, name=f"{topic}-none", seed=seed, steps=15, aborted=1) == []
        transactions(source.bootstrap, topic, 20, name=topic, partitions=2)
        produce(source.bootstrap, topic, 500, partitions=2)

    async def scene(filler: HoleFiller, topic: str) -> None:
        settings = MirrorSettings(lease_s=1.5, presence_ms=200, hole_filler=filler)
        async with (
            link_between(source, target, unique_name("link")) as world,
            engine_running(world, settings=settings),
        ):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await asyncio.to_thread(transactions, source.bootstrap, topic, 30, name=topic, partitions=2, first=20)
            await world.caught_up(topic)
            found = assert_identical(world, topic, at_least=600)
            assert [record[0] for record in found[2]] == committed[topic]
            assert len(committed[topic]) > 40
            assert found[3] == []
            assert read_all(target.bootstrap, topic, committed=False) == found, "nobody is given aborted records there"
            assert bounds(target.bootstrap, topic)[3][1] > 15

    for filler, topic in topics.items():
        asyncio.run(scene(filler, topic))


def test_the_log_start_is_met_exactly_by_fillers_as_planned_even_inside_a_batch(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    topic = unique_name("far")
    make_topic(source, topic, partitions=3)

    async def scene() -> None:
        # A mirror's own aligner, pointed at the source, makes offsets beyond a million there.
        await asyncio.to_thread(advance, source.bootstrap, topic, {0: 1_200_000, 1: 2_345_678})
        await asyncio.to_thread(
            produce, source.bootstrap, topic, 9_000, partitions=3, config={"linger.ms": 50, "batch.size": 100_000}
        )
        await asyncio.to_thread(cut, source.bootstrap, topic, {0: 1_200_000, 1: 2_345_679 + 1_234, 2: 17})
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            command_line = Migration(source, target, tmp_path / "run")
            told = await asyncio.to_thread(command_line.does, "plan", topic, "--link", world.link)
            await world.mirror(topic)
            record = await world.in_phase(topic, TopicPhase.MIRRORING)
            await world.caught_up(topic)
            assert record.starts == {0: 1_200_000, 1: 2_345_679 + 1_234, 2: 17}
            (outlook,) = told["topics"]
            # A target's log begins at 0, and no log starts beyond its end: all offsets below the start were made.
            made = bounds(target.bootstrap, topic).values()
            assert outlook["padding"] == sum(start for start, _ in made) == 3_546_930
            assert outlook["records"] == sum(end - start for start, end in made)
            assert (outlook["offsets"], outlook["holes"], outlook["holes_exact"]) == ("identical", 0, True)
            assert outlook["seconds"] == 0.7  # 3.5 M offsets at 5 M a second, and some 100 kB at 50 MB a second.
            await asyncio.to_thread(produce, source.bootstrap, topic, 300, partitions=3)
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=8_000)
            (left,) = (await asyncio.to_thread(command_line.does, "plan", topic, "--link", world.link))["topics"]
            assert (left["state"], left["offsets"]) == ("mirroring", "identical")
            assert [left[name] for name in ("padding", "records", "holes", "bytes", "seconds")] == [0, 0, 0, 0, 0.0]

    asyncio.run(scene())


def test_a_mirror_may_begin_at_the_end_or_at_a_time(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    latest, timed = unique_name("latest"), unique_name("timed")
    moment = 1_700_000_000_000
    for topic in (latest, timed):
        make_topic(source, topic, config={"retention.ms": "-1"})
        produce_at(source.bootstrap, topic, [moment - 5_000 + 1_000 * n for n in range(10)])

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(latest, "latest")
            await world.mirror(timed, str(moment))
            assert (await world.in_phase(latest, TopicPhase.MIRRORING)).starts == {0: 10}
            assert (await world.in_phase(timed, TopicPhase.MIRRORING)).starts == {0: 5}
            for topic in (latest, timed):
                await asyncio.to_thread(produce, source.bootstrap, topic, 50)
                await world.until(topic, lambda told: told[0].position == 60, "the new records")
            assert bounds(target.bootstrap, latest) == {0: (10, 60)}
            assert bounds(target.bootstrap, timed) == {0: (5, 60)}
            wanted = read_all(source.bootstrap, timed)[0]
            assert read_all(target.bootstrap, timed)[0] == wanted[5:]
            assert read_all(target.bootstrap, latest)[0] == read_all(source.bootstrap, latest)[0][10:]

    asyncio.run(scene())


def test_a_target_topic_with_data_or_another_shape_is_never_written(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    full, other = unique_name("full"), unique_name("other")
    make_topic(source, full)
    make_topic(target, full)
    make_topic(source, other, partitions=2)
    make_topic(target, other, partitions=3)
    for topic in (full, other):
        produce(source.bootstrap, topic, 10)
    produce(target.bootstrap, full, 3)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic, ref in ((full, "target-topic-not-empty"), (other, "target-topic-differs")):
                await world.mirror(topic)
                await world.until(topic, lambda told, ref=ref: ref in told[0].problem, f"the problem {ref}")  # type: ignore[misc]
                # The problem appears first in the presence, then in the record.
                record = await world.log.wait(
                    lambda state, topic=topic, ref=ref: (  # type: ignore[misc]
                        told if (told := state.topic(world.link, topic)) and ref in told.reason else None
                    ),
                    10,
                    f"the reason {ref}",
                )
                assert record.phase is TopicPhase.INITIALISING
            assert bounds(target.bootstrap, full) == {0: (0, 3)}
            assert set(bounds(target.bootstrap, other).values()) == {(0, 0)}

    asyncio.run(scene())


def test_the_copy_stops_exactly_at_a_barrier_and_goes_on_when_it_is_lifted(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("fenced")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 100, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.copied(topic)
            barrier = {p: PartitionBarrier(60, 0) for p in (0, 1)}
            await world.change(topic, lambda r: replace(r, phase=TopicPhase.FENCED, barrier=barrier, fence_epoch=1))
            await asyncio.to_thread(
                produce, source.bootstrap, topic, 100, partitions=2, config={"batch.num.messages": 5}
            )
            began = time.monotonic()
            await world.until(topic, lambda told: {p.at_barrier for p in told.values()} == {60}, "the barrier")
            assert time.monotonic() - began < 1
            await asyncio.sleep(0.5)
            assert bounds(target.bootstrap, topic) == {0: (0, 60), 1: (0, 60)}
            assert all(p.position == 60 and not p.problem for p in world.progress(topic).values())
            await world.change(topic, lambda r: replace(r, phase=TopicPhase.MIRRORING, barrier={}))
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=200)

    asyncio.run(scene())
