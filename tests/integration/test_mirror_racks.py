"""A mirror process in a rack reads from the followers in its rack; relays count the bytes that each broker sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewTopic

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.copy import same_rack
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.sandbox.topics import create_topics
from tests.conftest import Pair
from tests.integration.detour import Lines, detour, detoured, lines
from tests.integration.mirror_world import assert_identical, copier, link_between, settings_of
from tests.integration.test_mirror_attacks import new_identity, positions, problems, trickle, until
from tests.soak.chaos import wait_in_sync

LEADER, FOLLOWER = 1, 2


def sent(cluster: Lines) -> tuple[int, int]:
    """Return the bytes that the first two brokers have sent to kmigrate."""
    leader, follower, _ = (relay.passed["down"] for relay in cluster.control.values())
    return leader, follower


async def share_of_follower(cluster: Lines, it: Copier) -> float:
    """Return the follower's share of the bytes while the copy goes on."""
    at, (leader, follower) = positions(it), sent(cluster)
    await until(lambda: positions(it) > at + 3_000, "the copy to go on", 40)
    now = sent(cluster)
    return (now[1] - follower) / (now[0] - leader + now[1] - follower)


async def comes_from(node: int, cluster: Lines, it: Copier) -> bool:
    """Return whether one of five stretches comes from this broker, the leader or the follower.

    After a change the first stretch has answers of the other broker that are on their way. On a busy machine the
    follower may fall behind for a moment.
    """
    for _ in range(5):
        share = await share_of_follower(cluster, it)
        if share > 0.9 if node == FOLLOWER else share < 0.1:
            return True
    return False


def test_records_come_from_the_follower_in_the_rack_until_the_topic_is_promoted_or_the_follower_dies(
    clusters3: Pair, make_topic: Callable[..., None], unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, topic = clusters3.source, clusters3.target, unique_name("rack")
    led = [[LEADER, FOLLOWER, 3]] * 2
    create_topics(source.client(), [NewTopic(topic, 2, replica_assignment=led, config={"min.insync.replicas": "2"})])
    make_topic(target, topic, partitions=2)
    wait_in_sync(source)
    monkeypatch.setattr(same_rack, "_ASK_S", 0.3)
    both = {(topic, partition): FOLLOWER for partition in (0, 1)}

    async def scene(of_source: Lines) -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = await new_identity(client)
            rack = MirrorSettings(rack=f"rack-{FOLLOWER}")
            with trickle(source.bootstrap, topic):
                async with copier(source, target, identity, [topic], fills=True, settings=rack) as it:
                    await until(lambda: it.lanes.followers == both, "the follower")
                    assert await comes_from(FOLLOWER, of_source, it)
                    it.assign([MirroredTopic(topic, "", "", {0: 0, 1: 0}, promoting=True)])
                    assert not it.lanes.followers
                    assert await comes_from(LEADER, of_source, it)
                    it.assign([MirroredTopic(topic, "", "", {0: 0, 1: 0})])
                    await until(lambda: it.lanes.followers == both, "the follower again")
                    await asyncio.to_thread(source.kill, FOLLOWER)
                    assert await comes_from(LEADER, of_source, it)
                    assert not it.lanes.followers
                    assert not problems(it)
            async with copier(source, target, identity, [topic], fills=True):
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=6_000)

    with lines(source) as of_source:
        monkeypatch.setenv("DETOUR", detour(of_source))
        with detoured():
            asyncio.run(scene(of_source))
