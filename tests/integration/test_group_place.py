"""A placeholder member in a real group: the effect on the group, and the writes that fail meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from confluent_kafka import Consumer

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, read_positions, write_positions
from kmigrate.cluster.groups import PlaceholderMember, is_mixed
from kmigrate.sandbox.kafka import KafkaCluster
from tests.bench.load import make_topic
from tests.integration.mirror_world import settings_of
from tests.integration.test_group_follow import NEW


async def fine() -> None: ...


def with_client(cluster: KafkaCluster, work: Callable[[ClusterClient], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with ClusterClient(settings_of("c", cluster.bootstrap)) as client:
            await client.refresh([])
            await work(client)

    asyncio.run(scene())


def test_positions_can_be_written_only_while_no_place_is_held(
    target: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic, group = unique_name("place"), unique_name("group")
    make_topic(target.bootstrap, topic, 1)
    before, after = ({(topic, 0): CommittedOffset(offset, "m")} for offset in (5, 7))

    async def work(client: ClusterClient) -> None:
        place = PlaceholderMember(client, group)
        await place.leave()  # The group does not exist yet.
        assert await write_positions(client, group, before, fine) == {}
        await place.take()
        await PlaceholderMember(client, group).take()  # Another process takes over the placeholder.
        assert await write_positions(client, group, after, fine) == {(topic, 0): "UNKNOWN_MEMBER_ID"}
        assert await read_positions(client, group) == before
        await place.leave()
        assert await write_positions(client, group, after, fine) == {}
        assert await read_positions(client, group) == after

    with_client(target, work)


def test_members_of_both_protocols_join_behind_a_place_and_are_told_apart(
    target: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    topic, group = unique_name("place"), unique_name("group")
    make_topic(target.bootstrap, topic, 4)
    common = {"bootstrap.servers": target.bootstrap, "group.id": group, "log_level": 0}

    async def work(client: ClusterClient) -> None:
        await PlaceholderMember(client, group).take()
        mixed: list[bool] = []
        with ExitStack() as until_the_end:
            members: list[Consumer] = []
            for settings in (NEW, {}):
                member = Consumer({**common, **settings})
                until_the_end.callback(member.close)
                member.subscribe([topic])
                members.append(member)
                while not all(each.assignment() for each in members):
                    for each in members:
                        heard = each.poll(0.1)
                        assert heard is None or heard.error() is None, heard.error()
                mixed.append(await is_mixed(client, group))
            assert sorted(part.partition for each in members for part in each.assignment()) == [0, 1, 2, 3]
        assert mixed == [False, True]

    with_client(target, work)


def test_a_cluster_that_does_not_know_the_new_protocol_is_left_as_it_is(
    source: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    group = unique_name("group")

    async def work(client: ClusterClient) -> None:
        await PlaceholderMember(client, group).take()
        assert not await is_mixed(client, group)
        assert await read_positions(client, group) == {}

    with_client(source, work)
