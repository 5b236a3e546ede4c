"""Partitions are read from a follower in the rack only where their leader says so, and never believe its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy import reading, same_rack
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchAnswer, FetchedPartition, FetchPartition
from tests.unit.mirror.batches import batch

LEADER, FOLLOWER, STRANGER = 1, 2, 9
ONE, TWO = ("t", 0), ("t", 1)
EMPTY = FetchedPartition("t", 0, 0, 10, 10, 0, (), -1, memoryview(b""))
OUT_OF_RANGE = replace(EMPTY, error=Code.OFFSET_OUT_OF_RANGE)
CUT = replace(EMPTY, diverging=(3, 5))


class Scene:
    """A copier in rack `r` that has read both partitions up to offset 10, and leaders that name followers."""

    def __init__(self, patch: pytest.MonkeyPatch, rack: str = "r") -> None:
        self.now = 100.0
        self.named: dict[Key, int] = {}
        """The replica that the leader prefers for a reader in the rack."""
        self.silent = False
        self.asked: list[tuple[int, list[Key], str]] = []
        patch.setattr(same_rack, "monotonic", lambda: self.now)
        patch.setattr(same_rack, "fetch_full", self._answer)
        self.source = ClusterClient(ClusterSettings("s", (("127.0.0.1", 1),)))
        led = {p: PartitionInfo(LEADER, 0, (LEADER, FOLLOWER)) for p in (0, 1)}
        brokers = {node: ("h", node) for node in (LEADER, FOLLOWER)}
        self.source.metadata_cache.known = Metadata("s", brokers, {"t": TopicInfo("t", None, led)})
        nobody = cast("Any", None)
        self.copier = Copier(CopyContext(self.source, nobody, CopyIdentity(1, 0), nobody, MirrorSettings(rack=rack)))
        self.assign()
        for lane in self.copier.lanes.values():
            lane.recovered(10, 0, 10)

    def assign(self, *, promoting: bool = False) -> None:
        self.copier.assign([MirroredTopic("t", "", "", {0: 0, 1: 0}, promoting=promoting)])

    async def _answer(
        self, client: ClusterClient, node: int, parts: Sequence[FetchPartition], *, rack: str, **_: object
    ) -> FetchAnswer:
        if self.silent:
            raise Unreachable("no-answer", "the leader does not answer")
        self.asked.append((node, [(part.topic, part.partition) for part in parts], rack))
        return FetchAnswer(
            0, 0, 0,
            [replace(EMPTY, partition=p.partition, preferred_replica=self.named.get((p.topic, p.partition), -1))
             for p in parts],
        )  # fmt: skip

    def ask(self, after_s: float = 0.0, **named: int) -> None:
        """Let the leader name a follower for partition `p0` or `p1`, and ask the leader."""
        self.now += after_s
        self.named = {("t", int(key[1:])): node for key, node in named.items()}
        asyncio.run(self.copier._reader._same_rack.ask())

    def answered(self, part: FetchedPartition, *, by: int) -> None:
        """Hand over a broker's answer to a fetch that was under way."""
        lane = self.lane((part.topic, part.partition))
        followed = [lane.key] if by == FOLLOWER else []
        asked = FetchPartition(*lane.key, lane.source.read_at, 1)
        self.copier._on_move = lambda _: None  # type: ignore[attr-defined]
        self.copier._reader.take({lane.key: asked}, [part], followed)

    def lane(self, key: Key = ONE) -> Lane:
        return self.copier.lanes[key]

    def read_from(self, node: int) -> list[int]:
        return [lane.partition for lane in self.copier.lanes.read_from(self.source, node)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_partition_is_read_from_the_follower_that_its_leader_names_for_as_long_as_the_leader_does(
    scene: Scene,
) -> None:
    assert scene.read_from(LEADER) == [0, 1]
    scene.ask(p1=FOLLOWER)
    assert scene.asked == [(LEADER, [ONE, TWO], "r")]
    assert (scene.read_from(LEADER), scene.read_from(FOLLOWER)) == ([0], [1])
    assert [lane.partition for lane in scene.copier.lanes.led_by(scene.source, LEADER)] == [0, 1]
    scene.ask(p0=FOLLOWER)
    assert (scene.read_from(LEADER), scene.read_from(FOLLOWER)) == ([1], [0])


@pytest.mark.parametrize("node", [-1, LEADER, STRANGER])
def test_a_replica_that_is_no_follower_of_the_cluster_is_not_followed(scene: Scene, node: int) -> None:
    scene.ask(p0=node)
    assert not scene.copier.lanes.followers


def test_a_leader_that_cannot_be_asked_names_nobody(scene: Scene) -> None:
    scene.ask(p0=FOLLOWER)
    scene.silent = True
    scene.ask()
    assert scene.read_from(LEADER) == [0, 1]


def test_from_the_intent_of_a_promote_on_a_partition_is_read_from_its_leader(scene: Scene) -> None:
    scene.ask(p0=FOLLOWER, p1=FOLLOWER)
    scene.assign(promoting=True)
    assert scene.read_from(LEADER) == [0, 1]
    scene.ask(p0=FOLLOWER, p1=FOLLOWER)
    assert (len(scene.asked), scene.read_from(LEADER)) == (1, [0, 1])
    scene.assign()
    scene.ask(p0=FOLLOWER)
    assert scene.read_from(FOLLOWER) == [0]


@pytest.mark.parametrize("part", [OUT_OF_RANGE, CUT, replace(EMPTY, error=Code.NOT_LEADER_OR_FOLLOWER)])
def test_a_followers_error_says_nothing_about_the_log_and_sends_the_partition_back_to_its_leader(
    scene: Scene, part: FetchedPartition
) -> None:
    scene.ask(p0=FOLLOWER)
    scene.answered(part, by=FOLLOWER)
    source = scene.lane().source
    assert (source.looking, source.trouble, source.failures, source.cut_to) == (False, "", 0, None)
    assert not scene.copier._reader._suspected
    assert scene.read_from(LEADER) == [0, 1]


def test_the_same_answer_of_the_leader_is_believed(scene: Scene) -> None:
    scene.answered(CUT, by=LEADER)
    assert scene.lane().source.trouble.startswith("source-truncated: ")


def test_a_followers_late_error_is_not_believed_though_the_partition_is_with_its_leader_by_then(scene: Scene) -> None:
    scene.ask(p0=FOLLOWER)
    scene.assign(promoting=True)
    scene.answered(OUT_OF_RANGE, by=FOLLOWER)
    assert not scene.lane().source.looking


def test_records_of_a_follower_are_taken_and_the_leader_goes_on_behind_them(scene: Scene) -> None:
    scene.ask(p0=FOLLOWER)
    records = memoryview(bytearray(batch(10, 5)))
    scene.answered(replace(EMPTY, high_watermark=15, last_stable_offset=15, records=records), by=FOLLOWER)
    assert scene.lane().source.read_at == 15
    scene.assign(promoting=True)
    scene.answered(replace(EMPTY, high_watermark=20, last_stable_offset=20), by=LEADER)
    assert (scene.lane().source.read_at, scene.lane().source.log_end) == (15, 20)


def test_a_partition_stays_with_its_leader_for_a_while_after_a_followers_failure(scene: Scene) -> None:
    scene.ask(p0=FOLLOWER)
    scene.answered(OUT_OF_RANGE, by=FOLLOWER)
    scene.ask(29.0, p0=FOLLOWER)
    assert scene.read_from(LEADER) == [0, 1]
    scene.ask(2.0, p0=FOLLOWER)
    assert scene.read_from(FOLLOWER) == [0]


def test_a_follower_that_does_not_answer_is_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read() -> None:
        asked = asyncio.Event()

        class Silent:
            max_bytes = 0

            async def fetch(self, *_: Any, **__: Any) -> FetchAnswer:
                asked.set()
                raise Unreachable("no-answer", "the follower does not answer")

        monkeypatch.setattr(reading, "FetchSession", lambda *_, **__: Silent())
        task = asyncio.ensure_future(scene.copier._reader.run(FOLLOWER))
        async with asyncio.timeout(5):
            await asked.wait()
        task.cancel()

    scene.ask(p0=FOLLOWER)
    asyncio.run(read())
    assert scene.read_from(LEADER) == [0, 1]


def test_a_follower_that_leads_nothing_gets_a_reading_task(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(_: object) -> Any:
        return scene.source.metadata

    monkeypatch.setattr(scene.source, "refresh", known)
    monkeypatch.setattr(scene.copier, "_attend", lambda lane: None)
    side = replace(scene.copier._sides[0], work=lambda node: asyncio.sleep(0))

    async def look() -> None:
        await scene.copier._look(side)
        assert side.brokers == {LEADER}
        scene.copier.lanes.follow(ONE, FOLLOWER)
        await scene.copier._look(side)
        assert side.brokers == {LEADER, FOLLOWER}

    asyncio.run(look())


def test_a_partition_that_leaves_the_process_is_not_followed_any_more(scene: Scene) -> None:
    scene.ask(p0=FOLLOWER, p1=FOLLOWER)
    scene.copier.assign([])
    assert not scene.copier.lanes.followers


def test_without_a_rack_no_leader_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, rack="")
    asyncio.run(scene.copier._reader.follow())
    assert not scene.asked


def test_what_is_paused_is_not_asked_for(scene: Scene) -> None:
    scene.lane().paused = True
    scene.ask(p0=FOLLOWER, p1=FOLLOWER)
    assert scene.asked == [(LEADER, [TWO], "r")]
    assert scene.copier.lanes.followers == {TWO: FOLLOWER}
