"""Each row of the table of errors and actions says what is expected, and the mirror acts as the row says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from kmigrate.cluster.append import LogTail, _foreign
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata, PartitionInfo, TopicInfo
from kmigrate.mirror.copy import recovery as module
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.reactions import (
    REACTIONS,
    Action,
    Asked,
    Found,
    Reaction,
    pause_s,
    reaction_to,
    remedy_of,
)
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.stops import Remedy
from kmigrate.net.clock import monotonic
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchedPartition, FetchPartition
from kmigrate.records.batch import check_crc, walk
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched, record

FETCH, PRODUCE, MARKERS = Asked
CONNECTION = object()
AGAIN, ACCEPT, ANEW = Remedy.AGAIN, Remedy.ACCEPT_LOSS, Remedy.ANEW

EXPECTED: dict[tuple[Asked, int | Found], tuple[Action, str, Remedy]] = {
    **dict.fromkeys(((FETCH, c) for c in (5, 6, 9, 56, 72, 74, 75)), (Action.REFRESH, "", AGAIN)),
    **dict.fromkeys(((FETCH, c) for c in (1, 3, 100, 103)), (Action.LOOK, "", AGAIN)),
    **dict.fromkeys(((FETCH, c) for c in (-1, 2, 7, 13, 78)), (Action.BACK_OFF, "source-error", AGAIN)),
    (FETCH, 29): (Action.BACK_OFF, "source-denied", AGAIN),
    (FETCH, Found.GONE): (Action.BACK_OFF, "source-topic-gone", AGAIN),
    (FETCH, Found.LEADERLESS): (Action.BACK_OFF, "source-leaderless", AGAIN),
    (FETCH, Found.THROTTLED): (Action.BACK_OFF, "source-throttled", AGAIN),
    (FETCH, Found.NO_BATCH): (Action.BACK_OFF, "source-without-batch", AGAIN),
    (FETCH, Found.RANGE_DELETED): (Action.STOP, "source-range-lost", ACCEPT),
    (FETCH, Found.CUT): (Action.STOP, "source-truncated", ACCEPT),
    (FETCH, Found.RECREATED): (Action.STOP, "topic-recreated", ANEW),
    (FETCH, Found.GAP): (Action.STOP, "large-gap", AGAIN),
    (FETCH, Found.BAD_BATCH): (Action.STOP, "corrupt-source-batch", AGAIN),
    **dict.fromkeys(((PRODUCE, c) for c in (3, 5, 6, 9, 72, 74, 75, 100, 103)), (Action.REFRESH, "", AGAIN)),
    **dict.fromkeys(((PRODUCE, c) for c in (45, 46, 47, 59)), (Action.READ_TAIL, "", AGAIN)),
    **dict.fromkeys(((PRODUCE, c) for c in (7, 13, 20, Found.NO_ANSWER)), (Action.SETTLE, "", AGAIN)),
    (PRODUCE, -1): (Action.SETTLE, "target-error", AGAIN),
    (PRODUCE, 19): (Action.BACK_OFF, "target-few-replicas", AGAIN),
    **dict.fromkeys(((PRODUCE, c) for c in (56, 57)), (Action.BACK_OFF, "target-storage", AGAIN)),
    **dict.fromkeys(((PRODUCE, c) for c in (89, Found.THROTTLED)), (Action.BACK_OFF, "target-throttled", AGAIN)),
    **dict.fromkeys(((PRODUCE, c) for c in (29, 31)), (Action.BACK_OFF, "target-denied", AGAIN)),
    (PRODUCE, Found.GONE): (Action.BACK_OFF, "target-topic-gone", AGAIN),
    (PRODUCE, Found.LEADERLESS): (Action.BACK_OFF, "target-leaderless", AGAIN),
    **dict.fromkeys(
        ((PRODUCE, c) for c in (2, 10, 17, 18, 32, 40, 42, 43, 44, 76, 87, 90)),
        (Action.STOP, "target-refused", AGAIN),
    ),
    (PRODUCE, Found.CUT): (Action.READ_TAIL, "target-truncated", AGAIN),
    (PRODUCE, Found.OTHER_OFFSET): (Action.STOP, "diverged", ANEW),
    (PRODUCE, Found.OTHER_CONTENT): (Action.STOP, "diverged", ANEW),
    (PRODUCE, Found.OTHER_WRITER): (Action.STOP, "foreign-writer", ANEW),
    (PRODUCE, Found.RECREATED): (Action.STOP, "topic-recreated", ANEW),
    (PRODUCE, Found.NOT_ALIGNED): (Action.STOP, "not-aligned", ANEW),
    **dict.fromkeys(
        ((MARKERS, c) for c in (-1, 3, 5, 6, 7, 13, 14, 15, 16, 20, 51, Found.NO_ANSWER)), (Action.SETTLE, "", AGAIN)
    ),
    (MARKERS, 19): (Action.SETTLE, "target-few-replicas", AGAIN),
    (MARKERS, 56): (Action.SETTLE, "target-storage", AGAIN),
    **dict.fromkeys(((MARKERS, c) for c in (29, 31, 53)), (Action.SETTLE, "target-denied", AGAIN)),
    **dict.fromkeys(((MARKERS, c) for c in (52, 47, 49, 90)), (Action.READ_TAIL, "", AGAIN)),
}

CODES = sorted((key for key in REACTIONS if not isinstance(key[1], Found)), key=lambda key: (key[0], int(key[1])))
FINDINGS = sorted((key for key in REACTIONS if isinstance(key[1], Found)), key=lambda key: (key[0], key[1].name))


def test_the_table_says_what_is_expected_of_every_row() -> None:
    assert {key: (r.action, r.ref, r.remedy) for key, r in REACTIONS.items()} == EXPECTED


def test_every_stop_and_every_wait_for_a_person_has_a_name() -> None:
    for key, reaction in REACTIONS.items():
        assert reaction.ref or reaction.action not in (Action.STOP, Action.BACK_OFF), key


def test_a_code_without_a_row_stops_by_name_and_may_be_tried_again() -> None:
    names = {FETCH: "source-refused", PRODUCE: "target-refused", MARKERS: "hole-refused"}
    for asked, ref in names.items():
        for code in (Code.UNSUPPORTED_VERSION, 12_345):
            assert reaction_to(asked, code) == Reaction(Action.STOP, ref)
        assert remedy_of(f"{ref}: any") is AGAIN


def test_a_remedy_belongs_to_a_name_wherever_it_is_given() -> None:
    remedies: dict[str, set[Remedy]] = {}
    for reaction in REACTIONS.values():
        if reaction.action is Action.STOP:
            remedies.setdefault(reaction.ref, set()).add(reaction.remedy)
    assert all(len(found) == 1 for found in remedies.values())
    assert {ref: remedy_of(f"{ref}: what") for ref in remedies} == {ref: min(found) for ref, found in remedies.items()}
    assert remedy_of("bad-compression: a batch cannot be decompressed") is AGAIN


def test_pauses_grow_and_end_growing() -> None:
    named = [pause_s(tries, named=True) for tries in range(9)]
    assert named == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert pause_s(1, named=False) == 0.05
    assert pause_s(99, named=False) == 1.0


# The mirror acts as the rows say.


class World:
    """A copier of two partitions between clusters that do not run."""

    def __init__(self) -> None:
        self.source, self.target = (
            ClusterClient(ClusterSettings(name, (("127.0.0.1", 1),))) for name in ("source", "target")
        )
        identity = CopyIdentity(77, 0)
        holes = HoleMaker(self.target, identity, link_uuid="u", filler=HoleFiller.MARKERS)
        self.copier = Copier(CopyContext(self.source, self.target, identity, holes, MirrorSettings()))
        self.ids = UUID(int=1), UUID(int=2)
        self.topic = MirroredTopic("t", str(self.ids[0]), str(self.ids[1]), {0: 0, 1: 0})
        self.copier.assign([self.topic])
        self.called = self.copier._signals.look_now
        for lane in self.copier.lanes.values():
            lane.recovered(0, 100, 0)
        self.lane, self.neighbour = self.copier.lanes[("t", 0)], self.copier.lanes[("t", 1)]

    def shows(self, client: ClusterClient, info: TopicInfo | None) -> None:
        client.metadata_cache.known = Metadata("c", {1: ("127.0.0.1", 1)}, {} if info is None else {"t": info})

    def layout(self, source: TopicInfo | None, target: TopicInfo | None) -> None:
        self.shows(self.source, source)
        self.shows(self.target, target)
        for side in self.copier._sides:
            self.copier._check_topic(self.topic, side)

    def here(self, which: int, *, led: bool = True) -> TopicInfo:
        part = PartitionInfo(1 if led else -1, 0, (1,))
        return TopicInfo("t", self.ids[which], {self.lane.partition: part})


def filling(lane: Lane) -> Hole:
    lane.take(0, fetched(batch(0, 2, attributes=CONTROL | TRANSACTIONAL)), 5)
    hole = lane.hole_due()
    assert hole is not None
    lane.fill()
    return hole


@pytest.mark.parametrize("key", CODES, ids=lambda key: f"{key[0]}-{key[1].name}")
def test_an_error_code_is_met_as_its_row_says(key: tuple[Asked, Code]) -> None:
    asyncio.run(_meet(*key))


async def _meet(asked: Asked, code: Code) -> None:
    world, reaction = World(), REACTIONS[(asked, code)]
    lane = world.lane
    if asked is FETCH:
        refused = FetchedPartition("t", 0, code, -1, -1, -1, (), -1, memoryview(b""))
        world.copier._reader.take({lane.key: FetchPartition("t", 0, 0, 1)}, [refused])
        assert lane.source.looking == (reaction.action is Action.LOOK)
        assert world.called.is_set() == (reaction.action is Action.REFRESH)
        assert lane.stopped or lane.source.retry_at > monotonic(), "this partition waits"
        assert world.neighbour.reads and not world.neighbour.source.retry_at, "its neighbour does not"
        await world.copier._tasks.close()
    else:
        if asked is PRODUCE:
            lane.take(0, fetched(batch(0, 1)), 5)
            sent = lane.send_next(CONNECTION, 5)
            assert sent is not None
            lane.answered(sent.step, code, -1)
        else:
            lane.fill_refused(filling(lane), code)
        if reaction.action is not Action.STOP:
            assert lane.state is LaneState.LOST
            assert lane.target.unknown == (reaction.action is Action.SETTLE)
            assert bool(lane.write_pause_s) == bool(reaction.ref), "what waits for a person is tried slowly"
        assert world.neighbour.state is LaneState.PRIMING
    told = lane.progress()
    assert (told.problem if reaction.action is Action.STOP else told.trouble).startswith(reaction.ref)
    assert bool(told.problem) == (reaction.action is Action.STOP)
    assert code.name in told.problem + told.trouble


def _deleted(world: World) -> None:
    world.lane.deleted(0, 7)
    assert world.lane.report.lost_range == (0, 6)


def _no_batch(world: World) -> None:
    world.lane.take(0, fetched(b"", high_watermark=3), 5)
    world.lane.no_batch(0)


def _cut(world: World) -> None:
    world.lane.cut(3)
    world.lane.recovered(8, 1, 8)
    assert world.lane.report.lost_range == (3, 7)


def _gap(world: World) -> None:
    world.lane.take(0, fetched(batch(200_000, 1)), 5)


def _bad_batch(world: World) -> None:
    data = bytearray(batch(0, 1))
    data[-1] ^= 1
    world.lane.take(0, fetched(bytes(data)), 5)
    sent = world.lane.send_next(CONNECTION, 5)
    assert sent is not None and not check_crc(sent.step.view), "what was damaged stays so, for the target to find"
    world.lane.answered(sent.step, Code.CORRUPT_MESSAGE, -1)


def _cut_on_target(world: World) -> None:
    _sent(world, lambda lane, step: lane.answered(step, 0, 0))  # type: ignore[arg-type]
    world.lane.fill_failed("the leader moved", unknown=False)
    world.lane.recovered(0, 100, 0)


def _sent(world: World, answered: Callable[[Lane, object], None]) -> None:
    world.lane.take(0, fetched(batch(0, 1)), 5)
    sent = world.lane.send_next(CONNECTION, 5)
    assert sent is not None
    answered(world.lane, sent.step)


def _mended(world: World, tail: LogTail, *sides: bytes) -> None:
    """Recover the lane as `Recovery` does, with this tail; `sides` are the last batches on target and source."""
    lane = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100, log_start=5)
    held = {id(world.target): sides[0], id(world.source): sides[1]} if sides else {}

    async def read(*_: object, **__: object) -> LogTail:
        return tail

    async def batches(client: ClusterClient, *_: object) -> object:
        return list(walk(memoryview(bytearray(held[id(client)]))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_tail", read)
        patch.setattr(world.copier._recovery, "_batches", batches)
        asyncio.run(world.copier._recovery.recover(lane))
    world.lane = lane


def _foreign_writer(world: World) -> None:
    error = _foreign("target", ("t", 0), next(walk(memoryview(bytearray(batch(4, 1, producer=9))))))
    world.lane.stop(f"{error.ref}: {error.what}")


def _fill_unanswered(world: World) -> None:
    filling(world.lane)
    world.lane.fill_failed("lost", unknown=True)


def test_a_cluster_that_has_not_answered_yet_is_not_taken_for_one_without_the_topic() -> None:
    world = World()
    for side in world.copier._sides:
        world.copier._check_topic(world.topic, side)
    assert not world.lane.progress().trouble


SCENES: dict[tuple[Asked, Found], Callable[[World], None]] = {
    (FETCH, Found.GONE): lambda w: w.layout(None, w.here(1)),
    (FETCH, Found.LEADERLESS): lambda w: w.layout(w.here(0, led=False), w.here(1)),
    (FETCH, Found.RECREATED): lambda w: w.layout(w.here(1), w.here(1)),
    (FETCH, Found.THROTTLED): lambda w: w.lane.slow(FETCH, 1, 40),
    (FETCH, Found.NO_BATCH): _no_batch,
    (FETCH, Found.RANGE_DELETED): _deleted,
    (FETCH, Found.CUT): _cut,
    (FETCH, Found.GAP): _gap,
    (FETCH, Found.BAD_BATCH): _bad_batch,
    (PRODUCE, Found.GONE): lambda w: w.layout(w.here(0), None),
    (PRODUCE, Found.LEADERLESS): lambda w: w.layout(w.here(0), w.here(1, led=False)),
    (PRODUCE, Found.RECREATED): lambda w: w.layout(w.here(0), w.here(0)),
    (PRODUCE, Found.THROTTLED): lambda w: w.lane.slow(PRODUCE, 1, 40),
    (PRODUCE, Found.CUT): _cut_on_target,
    (PRODUCE, Found.OTHER_OFFSET): lambda w: _sent(w, lambda lane, step: lane.answered(step, 0, 9)),  # type: ignore[arg-type]
    (PRODUCE, Found.NO_ANSWER): lambda w: _sent(w, lambda lane, step: lane.unanswered(step, "lost")),  # type: ignore[arg-type]
    (PRODUCE, Found.OTHER_CONTENT): lambda w: _mended(
        w, LogTail(6, 1, 6), batch(5, 1, text=record(0)), batch(5, 1, text=record(0, value=b"w"))
    ),
    (PRODUCE, Found.OTHER_WRITER): _foreign_writer,
    (PRODUCE, Found.NOT_ALIGNED): lambda w: _mended(w, LogTail(3, 1, 3)),
    (MARKERS, Found.NO_ANSWER): _fill_unanswered,
}


def test_every_finding_has_a_scene() -> None:
    assert set(SCENES) == set(FINDINGS)


@pytest.mark.parametrize("key", FINDINGS, ids=lambda key: f"{key[0]}-{key[1].name}")
def test_a_finding_is_met_as_its_row_says(key: tuple[Asked, Found]) -> None:
    world, reaction = World(), REACTIONS[key]
    SCENES[key](world)
    told = world.lane.progress()
    if reaction.action is Action.STOP:
        assert told.problem.startswith(f"{reaction.ref}: ")
        assert world.lane.report.stop_record(5).remedy is reaction.remedy
    elif reaction.action is Action.SETTLE:
        assert world.lane.target.unknown and world.lane.state is LaneState.LOST
    else:
        assert told.trouble.startswith(f"{reaction.ref}: ")
        assert not told.problem
