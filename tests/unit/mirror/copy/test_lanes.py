"""The lanes that a broker's reader and writers take are cached between two looks, and are never out of date."""

from __future__ import annotations

import asyncio

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo
from kmigrate.mirror.copy.lanes import Lanes, Signals, target_losses
from kmigrate.mirror.partition.lane import Lane
from kmigrate.model.settings import ClusterSettings


def _lane(partition: int, topic: str = "t") -> Lane:
    return Lane(topic, partition, producer_id=1, epoch=0, hole_limit=10)


def _client(*leaders: int) -> ClusterClient:
    client = ClusterClient(ClusterSettings("c", (("127.0.0.1", 1),)))
    _lead(client, *leaders)
    return client


def _lead(client: ClusterClient, *leaders: int) -> None:
    partitions = {n: PartitionInfo(leader, 0, (leader,)) for n, leader in enumerate(leaders)}
    client.metadata_cache.known = Metadata("c", {}, {"t": TopicInfo("t", None, partitions)})


def _filled(count: int) -> Lanes:
    lanes = Lanes()
    for partition in range(count):
        lanes[("t", partition)] = _lane(partition)
    return lanes


def test_each_lane_is_with_its_leader_on_either_cluster() -> None:
    lanes, source, target = _filled(3), _client(1, 2, 1), _client(5, 5, -1)
    assert [lane.partition for lane in lanes.led_by(source, 1)] == [0, 2]
    assert [lane.partition for lane in lanes.led_by(source, 2)] == [1]
    assert [lane.partition for lane in lanes.led_by(target, 5)] == [0, 1]
    assert not lanes.led_by(target, 1)


def test_a_moved_leader_and_a_lane_that_comes_or_goes_are_seen_at_once() -> None:
    lanes, source = _filled(2), _client(1, 1, 1)
    assert len(lanes.led_by(source, 1)) == 2
    _lead(source, 1, 2, 1)
    assert [lane.partition for lane in lanes.led_by(source, 1)] == [0]
    lanes[("t", 2)] = _lane(2)
    assert [lane.partition for lane in lanes.led_by(source, 1)] == [0, 2]
    new = lanes[("t", 0)] = _lane(0)
    assert lanes.led_by(source, 1)[0] is new
    lanes.pop(("t", 0))
    assert [lane.partition for lane in lanes.led_by(source, 1)] == [2]


def test_every_lane_has_one_of_the_connections_and_keeps_it() -> None:
    lanes, target = _filled(7), _client(*[1] * 7)
    shares = [lanes.led_by(target, 1, slot, 3) for slot in range(3)]
    assert sorted(lane.partition for share in shares for lane in share) == list(range(7))
    assert all(len(share) in (2, 3) for share in shares)
    _lead(target, *[1] * 7)
    assert [lanes.led_by(target, 1, slot, 3) for slot in range(3)] == shares


def test_of_very_many_partitions_that_a_target_has_cut_some_are_told_and_the_others_counted() -> None:
    lanes = _filled(25)
    for lane in lanes.values():
        lane.recovered(9, 0, 9)
    assert target_losses(lanes.values()) == ()
    for lane in lanes.values():
        lane.fill_failed("the leader moved", unknown=False)
        lane.recovered(4, 0, 4)
    told = target_losses(lanes.values())
    assert told[3] == "target-truncated: t-3: offsets 4 to 8 were on the target and are gone: copied again"
    assert (len(told), told[-1]) == (11, "target-truncated: and of 15 more partitions")


def test_a_change_for_readers_leaves_writers_waiting_and_every_other_change_wakes_all() -> None:
    async def scene() -> None:
        it = Signals()
        loop = asyncio.get_running_loop()
        reader, writer = (loop.create_task(it.wait(it.moved, reads=reads)) for reads in (True, False))
        await asyncio.sleep(0)
        it.wake_readers()
        await reader
        assert not writer.done()
        again = loop.create_task(it.wait(it.moved, reads=True))
        await asyncio.sleep(0)
        it.wake()
        await asyncio.gather(again, writer)
        before = it.moved
        it.wake_readers()
        await asyncio.wait_for(it.wait(before), 1)  # a change between the look and the wait

    asyncio.run(scene())
