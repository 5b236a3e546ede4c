"""A copier limits how often it looks at the metadata of the clusters, and looks at each cluster separately."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast
from uuid import UUID

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic, _Side
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.lanes import Signals
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings


class _Calling(Copier):
    """A copier in which every look calls for another look at once, as refused partitions do.

    The times of the looks at the source are noted.
    """

    def __init__(self) -> None:
        nowhere = cast("ClusterClient", None)
        settings = MirrorSettings(disk_min_free_percent=0, disk_min_free_bytes=0)  # watch no disk
        identity = CopyIdentity(1, 0)
        holes = HoleMaker(nowhere, identity, link_uuid="u", filler=HoleFiller.MARKERS)
        super().__init__(CopyContext(nowhere, nowhere, identity, holes, settings))
        self.looks: list[float] = []
        self.calls = True

    async def _look(self, side: _Side) -> None:
        if side is self._sides[0]:
            self.looks.append(time.monotonic())
            if self.calls:
                self._signals.call_for_look()


async def _running(copier: Copier, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        work = group.create_task(copier.run())
        await asyncio.sleep(seconds)
        work.cancel()


def test_partitions_that_call_all_the_time_do_not_make_looks_follow_each_other_at_once() -> None:
    copier = _Calling()
    asyncio.run(_running(copier, 0.55))
    assert 2 <= len(copier.looks) <= 6


def test_after_a_rest_a_call_is_answered_at_once() -> None:
    async def scene() -> None:
        copier = _Calling()
        copier.calls = False
        async with asyncio.TaskGroup() as group:
            work = group.create_task(copier.run())
            await asyncio.sleep(0.3)
            called = time.monotonic()
            copier._signals.call_for_look()
            await asyncio.sleep(0.05)
            work.cancel()
        assert len(copier.looks) == 2
        assert copier.looks[1] - called < 0.05

    asyncio.run(scene())


def test_a_task_that_failed_ends_the_copier_although_looks_are_called_for() -> None:
    class Failing(_Calling):
        async def _look(self, side: _Side) -> None:
            await super()._look(side)
            if len(self.looks) == 2:
                self._on_failure(ValueError("broken"))

    async def scene() -> str:
        try:
            await asyncio.wait_for(Failing().run(), 2)
        except ValueError as error:
            return str(error)
        return ""

    assert asyncio.run(scene()) == "broken"


class _Cluster(ClusterClient):
    """A cluster whose leader moves to another broker with each look, and which answers no look once silent."""

    def __init__(self, topic_id: int) -> None:
        super().__init__(ClusterSettings("c", (("127.0.0.1", 1),)))
        self.silent = False
        self.topic_id = UUID(int=topic_id)
        self.leader_of_t = 0

    async def refresh(self, topics: Iterable[str] | None = None) -> Metadata:
        if self.silent:
            await asyncio.Event().wait()
        self.leader_of_t += 1
        led = {0: PartitionInfo(self.leader_of_t, self.leader_of_t, (1,))}
        self.metadata_cache.known = Metadata("c", {1: ("127.0.0.1", 1)}, {"t": TopicInfo("t", self.topic_id, led)})
        return self.metadata


class _Resting(Copier):
    """A copier that does no work for its lanes."""

    def _attend(self, lane: Lane, *, end_known: bool = False) -> None: ...


@pytest.mark.parametrize("heard", [0, 1])
def test_new_leaders_of_one_cluster_are_asked_while_the_other_cluster_is_silent(heard: int) -> None:
    """A silent source does not keep a promote waiting for the partition's new leader on the target."""

    async def scene() -> None:
        clusters = _Cluster(1), _Cluster(2)
        identity = CopyIdentity(1, 0)
        holes = HoleMaker(clusters[1], identity, link_uuid="u", filler=HoleFiller.MARKERS)
        copier = _Resting(CopyContext(*clusters, identity, holes, MirrorSettings()))
        copier.assign([MirroredTopic("t", str(UUID(int=1)), str(UUID(int=2)), {0: 0})])
        clusters[1 - heard].silent = True
        async with asyncio.TaskGroup() as group, asyncio.timeout(10):
            work = group.create_task(copier.run())
            while not {1, 2, 3} <= copier._sides[heard].brokers:
                assigned = copier._signals.assigned
                copier._signals.call_for_look()
                await assigned.wait()
            clusters[heard].topic_id = UUID(int=3)
            copier._signals.call_for_look()
            while not copier.lanes["t", 0].stopped:
                await copier._signals.assigned.wait()
            work.cancel()
        assert copier.lanes["t", 0].report.problem.startswith("topic-recreated: ")
        assert not copier._sides[1 - heard].brokers

    asyncio.run(scene())


def test_a_look_at_one_cluster_leaves_told_what_keeps_the_other_away() -> None:
    signals, (source, target) = Signals(), (_Cluster(1), _Cluster(2))
    signals.failed(source, Unreachable("away", "the source is away"))
    signals.failed(target, Unreachable("away", "the target is away"))
    assert signals.trouble == "the source is away; the target is away"
    signals.looks(target)
    assert signals.trouble == "the source is away"
