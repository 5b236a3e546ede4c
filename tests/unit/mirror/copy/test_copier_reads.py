"""A copier compares what the source and the target say now with what they said before."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.mirror.copy import reading as module
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.mapped import MappedLane
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import now_ms
from kmigrate.protocol.hot import FetchedPartition, FetchPartition
from kmigrate.records.build import one_record_batch
from tests.soak.census import census, grown
from tests.unit.mirror.batches import batch, fetched

KEY = ("t", 0)
CUT = FetchedPartition("t", 0, 0, 5, 5, 0, (), -1, memoryview(b""), diverging=(3, 5))
NOTHING_NEW = FetchedPartition("t", 0, 0, 10, 10, 0, (), -1, memoryview(b""))


class Scene:
    """A copier whose lane has read up to offset 10, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        nowhere = cast("ClusterClient", None)
        self.copier = Copier(
            CopyContext(nowhere, nowhere, CopyIdentity(1, 0), cast("HoleMaker", None), MirrorSettings())
        )
        self.copier.assign([MirroredTopic("t", "", "", {0: 0})])
        self.lane: Lane = self.copier.lanes[KEY]
        self.lane.recovered(10, 0, 10)
        monkeypatch.setattr(self.copier, "_attend", lambda lane, end_known: None)  # this test recovers the lane itself

    def answer(self, part: FetchedPartition, after_s: float = 0.0) -> None:
        self.now += after_s
        self.copier._reader.take({KEY: FetchPartition("t", 0, 10, 1)}, [part])


def test_a_source_that_ends_too_early_stops_the_partition_only_if_it_says_so_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    for after_s in (0.0, 1.0):
        scene.answer(CUT, after_s)
        assert not scene.lane.must_recover
        assert scene.lane.source.trouble.startswith("source-truncated")
    scene.answer(CUT, 1.1)
    assert scene.lane.must_recover
    scene.lane.recovered(10, 0, 10)
    assert scene.lane.report.problem.startswith("source-truncated")


@pytest.mark.parametrize("put_back_s", [-3600, 0, 3600])
def test_where_a_silent_partition_ends_is_asked_also_after_the_clock_was_put(
    monkeypatch: pytest.MonkeyPatch, put_back_s: int
) -> None:
    """A changed wall clock does not make a partition count as recently heard, so its log end is asked for."""
    scene, rounds = Scene(monkeypatch), 0
    told_ms = now_ms() - 5_000
    scene.lane.ends_at(10, told_ms + put_back_s * 1000)

    class Source:
        async def list_offsets(self, wanted: dict[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
            return dict.fromkeys(wanted, LogOffset(0, 77, 0))

    async def sleep(_: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            raise asyncio.CancelledError

    monkeypatch.setattr(module, "sleep", sleep)
    monkeypatch.setattr(scene.copier._reader, "_source", Source())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scene.copier._reader.ask_ends())
    assert scene.lane.source.log_end == 77


def test_a_direct_write_is_dated_by_a_clock_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "now_ms", lambda: 1)
    monkeypatch.setattr(module, "steady_ms", lambda: 5_000)
    scene = Scene(monkeypatch)
    scene.answer(NOTHING_NEW)
    direct = one_record_batch(b"k", b"v", timestamp=0, producer_id=-1, epoch=-1, sequence=-1)
    struct.pack_into(">q", direct, 0, 10)
    scene.answer(FetchedPartition("t", 0, 0, 11, 11, 0, (), -1, memoryview(direct)))
    assert scene.lane.progress().direct_ms == 5_000


def test_a_partition_that_is_copied_anew_is_not_stopped_for_what_was_suspected_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.answer(CUT)
    scene.copier.assign([])
    scene.copier.assign([MirroredTopic("t", "", "", {0: 0})])
    scene.lane = scene.copier.lanes[KEY]
    scene.lane.recovered(10, 0, 10)
    scene.answer(CUT, after_s=3_600)
    assert not scene.lane.must_recover
    scene.answer(CUT, after_s=2.1)
    assert scene.lane.must_recover


def test_a_broker_that_was_behind_for_a_moment_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for part in (CUT, NOTHING_NEW, CUT, NOTHING_NEW, CUT):
        scene.answer(part, 1.5)
    assert not scene.lane.must_recover
    assert not scene.lane.stopped


def test_topics_that_were_copied_and_went_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, seen = Scene(monkeypatch), []
    for number in range(300):
        name = f"t{number}"
        scene.copier.assign([MirroredTopic(name, "", "", {0: 0})])
        lane = scene.copier.lanes[name, 0]
        lane.recovered(10, 0, 10)
        cut = FetchedPartition(name, 0, 0, 5, 5, 0, (), -1, memoryview(b""), diverging=(3, 5))
        scene.copier._reader.take({lane.key: FetchPartition(name, 0, 10, 1)}, [cut])
        if number in (100, 299):
            seen.append(census(scene.copier))
    assert grown(seen[:1], seen[1:], {}) == {}


@pytest.mark.parametrize(("limit", "stops"), [(4, True), (5, False)])
def test_a_lane_follows_a_hole_limit_that_is_altered_while_it_copies(limit: int, stops: bool) -> None:
    nowhere, of_link = cast("ClusterClient", None), LinkSettings(hole_limit=4 if limit == 5 else 5)
    identity, holes = CopyIdentity(1, 0), cast("HoleMaker", None)
    copier = Copier(CopyContext(nowhere, nowhere, identity, holes, MirrorSettings(), link_settings=lambda: of_link))
    copier.assign([MirroredTopic("t", "", "", {0: 0})])
    lane = copier.lanes[KEY]
    lane.recovered(0, 0, 0)
    of_link = LinkSettings(hole_limit=limit)
    copier.assign([MirroredTopic("t", "", "", {0: 0})])
    lane.take(0, fetched(batch(5, 1)), now_ms())
    assert lane.report.problem.startswith("large-gap: ") == stops


def test_a_topic_that_was_made_anew_is_not_read_as_the_one_that_is_mirrored() -> None:
    """The fetch session asks for the mirrored topic id, although the metadata already show the new topic.

    Upkeep may read the metadata before the copier looks. Without the id, records of the new topic would be appended
    to the copy of the old topic.
    """
    mirrored, other = UUID(int=1), UUID(int=2)
    source = ClusterClient(ClusterSettings("c", (("127.0.0.1", 1),)))
    copier = Copier(CopyContext(source, source, CopyIdentity(1, 0), cast("HoleMaker", None), MirrorSettings()))
    copier.assign([MirroredTopic("t", str(mirrored), "", {0: 0}), MirroredTopic("old", "", "", {0: 0})])
    session = copier._reader._connect(1, "test").session
    known = {name: TopicInfo(name, other, {}) for name in ("t", "old")}
    source.metadata_cache.known = replace(source.metadata_cache.known, topics=known)
    wanted = {(topic, 0): FetchPartition(topic, 0, 10, 1) for topic in known}
    assert session._ids_of(wanted) == {"t": mirrored.bytes, "old": other.bytes}


def test_a_topic_that_was_made_anew_on_the_target_is_not_written() -> None:
    """The writer takes no lane whose target topic has another id.

    A broker accepts any first sequence from a producer that it does not know, so the batch would get another offset.
    """
    source, target = (ClusterClient(ClusterSettings(name, (("127.0.0.1", 1),))) for name in ("s", "t"))
    copier = Copier(CopyContext(source, target, CopyIdentity(1, 0), cast("HoleMaker", None), MirrorSettings()))
    copier.assign([MirroredTopic("t", str(UUID(int=1)), str(UUID(int=2)), {0: 0})])
    led = {0: PartitionInfo(7, 0, (7,))}
    for client, number in ((source, 1), (target, 2), (target, 3), (target, 2)):
        client.metadata_cache.known = replace(
            client.metadata_cache.known, topics={"t": TopicInfo("t", UUID(int=number), led)}
        )
        assert bool(copier.lanes.led_by(client, 7)) == (number != 3)


@pytest.mark.parametrize("now", [{"target_topic_id": "T2"}, {"source_topic_id": "S2"}, {"target_starts": {0: 7}}])
def test_a_copy_from_the_start_that_was_begun_while_this_process_slept_gets_a_lane_of_its_own(
    monkeypatch: pytest.MonkeyPatch, now: dict[str, Any]
) -> None:
    """The new copy gets a new lane, so that no position of the old copy is continued in the new topic."""
    scene = Scene(monkeypatch)
    first = MirroredTopic("t", "S", "T", {0: 0})
    scene.copier.assign([first])
    lane = scene.copier.lanes[KEY]
    lane.recovered(10, 0, 10)
    scene.copier.assign([replace(first, paused=True)])
    assert scene.copier.lanes[KEY] is lane
    scene.copier.assign([replace(first, **now)])
    assert lane.stopped
    assert scene.copier.lanes[KEY].target.position == -1
    assert isinstance(scene.copier.lanes[KEY], MappedLane) == ("target_starts" in now)


def test_a_copy_from_the_start_begins_once_nothing_of_the_copy_before_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new lane starts only when every request of the old lane has an outcome.

    A late batch of the old lane would arrive behind the tail that the new lane has read.
    """
    scene = Scene(monkeypatch)
    first = MirroredTopic("t", "S", "T", {0: 0})
    scene.copier.assign([first])
    lane = scene.copier.lanes[KEY]
    lane.recovered(0, 0, 0)
    lane.take(0, fetched(batch(0, 1)), now_ms())
    sent = lane.send_next(object(), 1)
    assert sent is not None
    anew = replace(first, target_topic_id="T2")
    scene.copier.assign([anew])
    assert KEY not in scene.copier.lanes
    client = ClusterClient(ClusterSettings("c", (("127.0.0.1", 1),)))
    for side in scene.copier._sides:
        scene.copier._check_topic(anew, replace(side, client=client))
    scene.copier._update_lanes(anew)
    assert KEY not in scene.copier.lanes
    lane.unanswered(sent.step, "the connection was lost")
    scene.copier._update_lanes(anew)
    assert scene.copier.lanes[KEY].target.unknown, "what was not answered may still come"
