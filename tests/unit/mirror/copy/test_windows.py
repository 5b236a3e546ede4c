"""A window is batches and the holes behind them in one round trip; no marker is ever written without its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from kmigrate.mirror.copy import markers
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.markers import marker_purpose
from kmigrate.mirror.copy.min_insync import MinInsync
from kmigrate.mirror.copy.windows import WindowSender
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.protocol.codes import Code
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched, record
from tests.unit.mirror.copy.scripted_broker import ScriptedBroker

TERM = 4
CONNECTION = object()


class Scene:
    """Lanes of one leader, each behind its first hole, so that windows are allowed."""

    def __init__(self, partitions: int = 1, *, pipelining: bool = True) -> None:
        self.broker = ScriptedBroker()
        self.term = TERM
        self.ended: list[Lane] = []
        identity = CopyIdentity(77, 0)
        self.holes = HoleMaker(self.broker.client, identity, link_uuid="u", filler=HoleFiller.MARKERS)
        context = CopyContext(
            self.broker.client,
            self.broker.client,
            identity,
            self.holes,
            MirrorSettings(),
            owner_term=lambda _: self.term,
            pipelining=pipelining,
        )
        self.signals = context.signals
        self.sender = WindowSender(context, answered=self.ended.append)
        self.lanes = [Lane("t", each * 2, producer_id=77, epoch=0, hole_limit=100) for each in range(partitions)]

    async def begin(self) -> Lane:
        """Write a record and the first hole of each lane."""
        for lane in self.lanes:
            lane.recovered(0, 0, 0)
            read(lane, 1)
            self.send(lane)
            hole = lane.hole_due()
            assert hole is not None
            await self.holes.prepare(*lane.key, self.term)
            lane.fill()
            made = await self.holes.make(
                *lane.key, hole, self.term, epoch=lane.begin_marking(self.term), may_write=lambda: True
            )
            lane.filled(made.end, self.term, made.epoch)
            lane.saw_end(monotonic())
            assert self.holes.takes_windows(lane.key)
            lane.allow_windows(self.term)
        self.broker.requests.clear()
        return self.lanes[0]

    def send(self, lane: Lane) -> None:
        """Send the next batch alone, with acks=all."""
        sent = lane.send_next(CONNECTION, 5)
        assert sent is not None
        log = self.broker.log(*lane.key)
        base = len(log.kinds)
        code = log.produce(bytes(sent.step.view))
        lane.answered(sent.step, code, base if not code else -1)

    def kinds(self, lane: Lane) -> str:
        return self.broker.log(*lane.key).kinds


def read(lane: Lane, count: int, holes: int = 1) -> None:
    """Read a batch of `count` records, and a hole behind the batch."""
    at = lane.source.read_at
    data = batch(at, count, timestamp=now_ms(), text=b"".join(map(record, range(count))))
    lane.take(at, fetched(data + batch(at + count, holes, attributes=CONTROL | TRANSACTIONAL)), 5)


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_a_batch_its_markers_and_the_question_for_the_log_end_leave_at_once_on_one_connection() -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        it.broker.holds = True
        for _ in range(3):
            read(lane, 2)
        assert lane.holds_back and lane.window_due
        it.sender.send(lane)
        await turns()
        (line,) = [each for each in it.broker.opened.values() if each.purpose == marker_purpose(lane.key)]
        assert len(line.waiting) == 3
        assert not lane.window_due, "nothing else is in flight"
        it.broker.holds = False
        line.work()
        await turns()
        assert [kind for kind, _ in it.broker.requests] == ["PRODUCE", "WRITE_TXN_MARKERS", "LIST_OFFSETS"]
        assert (it.kinds(lane), lane.target.position, lane.state) == ("DMDDM", 5, LaneState.PIPING)
        assert it.ended == [lane]
        assert lane.tally.copies.records == 2
        for _ in range(2):
            it.sender.send(lane)
            await turns()
        assert (it.kinds(lane), lane.target.position, lane.target.queued_bytes) == ("DMDDMDDMDDM", 11, 0)

    run(scene)


@pytest.mark.parametrize("alone", [False, True])
def test_behind_a_window_the_writers_are_woken_only_for_a_batch_without_a_window(alone: bool) -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        read(lane, 1)
        if alone:
            at = lane.source.read_at
            lane.take(at, fetched(batch(at, 1, timestamp=now_ms())), 5)
        writer = asyncio.get_running_loop().create_task(it.signals.wait(it.signals.moved))
        await asyncio.sleep(0)
        it.sender.send(lane)
        await turns()
        assert (it.kinds(lane), writer.done()) == ("DMDM", alone)
        writer.cancel()

    run(scene)


def test_partitions_of_a_leader_share_the_requests() -> None:
    async def scene() -> None:
        it = Scene(3)
        await it.begin()
        for lane in it.lanes:
            read(lane, 1)
            it.sender.send(lane)
        await turns()
        assert [kind for kind, _ in it.broker.requests] == ["PRODUCE", "WRITE_TXN_MARKERS", "LIST_OFFSETS"]
        assert [(it.kinds(lane), lane.target.position) for lane in it.lanes] == [("DMDM", 4)] * 3

    run(scene)


class _Long:
    """A target on which every topic may be sent long windows."""

    def is_one(self, topic: str) -> bool:
        return True


def long_windows(it: Scene) -> None:
    it.holes._min_insync = cast("MinInsync", _Long())


def test_a_long_window_takes_a_single_question_for_the_log_end() -> None:
    async def scene() -> None:
        it = Scene(2)
        lane, neighbour = (await it.begin(), it.lanes[1])
        long_windows(it)
        for _ in range(3):
            read(lane, 2)
        read(neighbour, 1, holes=2)
        for each in it.lanes:
            it.sender.send(each)
        await turns()
        kinds = [kind for kind, _ in it.broker.requests]
        assert kinds == ["PRODUCE", "WRITE_TXN_MARKERS"] * 3 + ["LIST_OFFSETS"]
        assert (it.kinds(lane), it.kinds(neighbour)) == ("DMDDMDDMDDM", "DMDMM")
        assert (lane.target.position, neighbour.target.position) == (11, 5)
        assert (lane.tally.copies.records, lane.target.queued_bytes) == (6, 0)
        assert {fence for key, _, fence in it.broker.marked if key == lane.key} == {TERM << 10}, "all are known"

    run(scene)


def test_each_hole_of_a_group_of_long_windows_gets_its_own_markers() -> None:
    async def scene() -> None:
        it = Scene(2)
        lane, neighbour = (await it.begin(), it.lanes[1])
        long_windows(it)
        for ours, theirs in ((1, 2), (2, 1), (1, 2), (1, 1)):
            read(lane, 1, ours)
            read(neighbour, 1, theirs)
        read(lane, 1, 2)
        for each in it.lanes:
            it.sender.send(each)
        await turns()
        assert [kind for kind, _ in it.broker.requests].count("LIST_OFFSETS") == 1
        assert it.kinds(lane) == "DM" + "DM" + "DMM" + "DM" + "DM" + "DMM"
        assert it.kinds(neighbour) == "DM" + "DMM" + "DM" + "DMM" + "DM"

    run(scene)


def test_a_refused_batch_in_a_long_window_is_the_end_of_the_window() -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        long_windows(it)
        for _ in range(3):
            read(lane, 1)
        produced: list[int] = []

        def refuse_second(key: int) -> None:
            produced.append(key)
            if produced.count(0) == 2:
                it.broker.log(*lane.key).refusal = Code.MESSAGE_TOO_LARGE

        it.broker.before = refuse_second
        it.sender.send(lane)
        await turns()
        assert it.kinds(lane) == "DMDM"
        assert (lane.state, lane.target.unknown, lane.target.position) == (LaneState.LOST, True, 2)
        lane.recovered(4, it.broker.log(*lane.key).next_sequence or 0, 3, 1)
        lane.saw_end(monotonic())
        it.broker.log(*lane.key).refusal = 0
        it.broker.before = lambda _: None
        it.send(lane)
        assert (it.kinds(lane), lane.begin_marking(TERM)) == ("DMDMD", 2), "the old connection's batches are late"

    run(scene)


def test_a_marker_that_is_refused_within_a_long_window_is_an_unknown_outcome() -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        long_windows(it)
        for _ in range(2):
            read(lane, 1)

        def refuse_first(key: int) -> None:
            marked = [kind for kind, _ in it.broker.requests].count("WRITE_TXN_MARKERS")
            it.broker.markers_error = Code.NOT_ENOUGH_REPLICAS if marked == 1 else 0

        it.broker.before = refuse_first
        it.sender.send(lane)
        await turns()
        assert it.kinds(lane) == "DMDDM", "the second batch stands where the marker belongs"
        assert (lane.state, lane.target.unknown, lane.target.doubtful) == (LaneState.LOST, True, True)
        assert "target-few-replicas" in lane.report.trouble

    run(scene)


def test_behind_a_refused_batch_no_marker_is_written_and_the_batch_goes_alone_to_give_the_refusal_a_name() -> None:
    async def scene() -> None:
        it = Scene(2)
        lane, neighbour = (await it.begin(), it.lanes[1])
        for each in it.lanes:
            read(each, 1)
            it.sender.send(each)
        it.broker.log(*lane.key).refusal = Code.MESSAGE_TOO_LARGE
        await turns()
        assert (it.kinds(lane), it.kinds(neighbour)) == ("DM", "DMD"), "the neighbour's batch is stored"
        assert [each.state for each in it.lanes] == [LaneState.LOST] * 2
        assert [each.settle_s for each in it.lanes] == [1.0] * 2
        for each, end in ((lane, 2), (neighbour, 3)):
            assert each.must_recover and each.has_late_writes
            log = it.broker.log(*each.key)
            assert log.next_sequence is not None
            each.recovered(end, log.next_sequence, end, log.epoch)
            each.saw_end(monotonic())
            assert not each.holds_back
        it.send(lane)
        assert lane.stopped and "MESSAGE_TOO_LARGE" in lane.report.problem
        assert neighbour.hole_due() is not None, "its batch is on the log, the hole is not filled"

    run(scene)


async def replaced(it: Scene, lane: Lane, count: int) -> Lane:
    """Hold a window of `count` records on its way, and return the next owner's lane with the same records."""
    read(lane, count)
    it.broker.holds = True
    it.sender.send(lane)
    await turns()
    log = it.broker.log(*lane.key)
    assert log.next_sequence is not None
    newer = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
    newer.recovered(2, log.next_sequence, 2, log.epoch)
    newer.saw_end(monotonic())
    read(newer, count)
    return newer


async def arrives(it: Scene) -> None:
    """Let the broker work on what was held on its way."""
    it.broker.holds = False
    for line in list(it.broker.opened.values()):
        line.work()
    await turns()


def test_a_late_window_of_an_earlier_owner_is_refused_with_its_markers() -> None:
    """The window was sent before the next owner's first marker, and arrives behind that marker."""

    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        newer = await replaced(it, lane, 2)
        log = it.broker.log(*lane.key)
        it.send(newer)
        it.send(newer)
        assert it.kinds(newer) == "DMDD", "the first record went alone (M)"
        hole = newer.hole_due()
        assert hole is not None and newer.first_marker_settle_s == 0
        newer.fill()
        epoch = newer.begin_marking(TERM + 1)
        assert log.mark(epoch, (TERM + 1) << 10) == 0
        newer.filled(5, TERM + 1, epoch)
        await arrives(it)
        assert it.kinds(newer) == "DMDDM"
        assert lane.state is LaneState.LOST

    run(scene)


@pytest.mark.parametrize("count", [1, 2])
def test_a_late_window_that_comes_before_the_next_owners_first_marker_finds_a_gap_or_the_log_at_rest(
    count: int,
) -> None:
    """Of a batch with one record no first record goes alone, so the log must be at rest before the marker."""

    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        newer = await replaced(it, lane, count)
        while newer.hole_due() is None:
            it.send(newer)
        await arrives(it)
        if count == 1:
            assert newer.first_marker_settle_s == 1.0
        else:
            assert (it.kinds(newer), newer.first_marker_settle_s) == ("DMDD", 0.0), "the late batch was a gap"

    run(scene)


def test_a_window_is_not_sent_once_another_process_may_own_the_partition() -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        read(lane, 1)
        it.sender.send(lane)
        it.term = 0
        await turns()
        assert it.broker.requests == []
        assert not lane.holds_back, "the batch goes alone, as before"
        it.send(lane)
        assert it.kinds(lane) == "DMD"

    run(scene)


@pytest.mark.parametrize("change", ["paused", "barrier", "closed"])
def test_a_window_that_waits_for_its_turn_can_be_withdrawn(change: str) -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        read(lane, 1)
        it.sender.send(lane)
        if change == "paused":
            lane.paused = True
        elif change == "barrier":
            lane.barrier = 3
        else:
            it.sender.close()
        await turns()
        assert it.broker.requests == []
        assert it.kinds(lane) == "DM"

    run(scene)


def test_what_the_target_may_forget_early_and_what_has_no_open_connection_goes_alone() -> None:
    async def scene() -> None:
        slow = Scene(pipelining=False)
        lane = await slow.begin()
        read(lane, 1)
        slow.sender.send(lane)
        assert not lane.holds_back
        lost = Scene()
        lane = await lost.begin()
        read(lane, 1)
        lost.broker.opened[marker_purpose(lane.key)].lose()
        lost.sender.send(lane)
        assert not lane.holds_back

    run(scene)


@pytest.mark.parametrize("moved", [False, True])
def test_a_connection_that_owes_an_answer_is_left_by_reset(monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    monkeypatch.setattr(markers, "_LOOK_S", 0.02)

    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        it.broker.settings.request_timeout_s = 60 if moved else 0.05
        read(lane, 1)
        it.broker.holds = True
        it.sender.send(lane)
        await turns()
        if moved:
            it.broker.node = 2
        (line,) = [each for each in it.broker.opened.values() if each.purpose == marker_purpose(lane.key)]
        for _ in range(100):
            await asyncio.sleep(0.01)
            if line.given_up:
                break
        await turns()
        assert ("another broker leads" if moved else "no answer") in line.given_up
        assert (lane.state, lane.target.unknown, lane.settle_s) == (LaneState.LOST, True, 1.0)
        assert [step.start for step in lane.target.failed] == [2]

    run(scene)


def test_a_marker_too_many_behind_a_window_is_seen_at_the_log_end() -> None:
    async def scene() -> None:
        it = Scene()
        lane = await it.begin()
        read(lane, 1)
        it.sender.send(lane)

        def intrude(key: int) -> None:
            if key == 1:
                raise AssertionError
            it.broker.log(*lane.key).kinds += "M" if key == 27 else ""

        it.broker.before = lambda key: None if key == 0 else intrude(key)
        await turns()
        assert (lane.state, lane.target.unknown) == (LaneState.LOST, True)
        assert "the target's log moved" in lane.report.trouble

    run(scene)
