"""The recovery fills holes and recovers lanes.

A hole may be filled without a look at the log end before the hole. A log that ends elsewhere before a hole gets no
marker. A log that ends elsewhere behind a hole gets no data until its tail is read.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from kmigrate.cluster.append import LogTail
from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.errors import AuthenticationFailed, BrokerRefused, Failed, Unreachable
from kmigrate.mirror.copy import recovery as module
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.markers import Made
from kmigrate.mirror.copy.recovery import Recovery
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.records.batch import Batch, walk
from kmigrate.records.rewrite import MOST_RECORDS
from tests.unit.mirror.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, batch, fetched, record

TERM = 4


class Target:
    """The leader of a single partition, with the connection for markers."""

    batch_offsets = 5_000

    def __init__(self, end: int, *, is_ready: bool = True) -> None:
        self.end = end
        self.is_ready = is_ready
        self.more = 0
        """Number of foreign markers that are written together with the hole."""
        self.asked: list[str] = []

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        self.asked.append("end")
        return LogOffset(0, self.end, 0)

    def ready(self, *_: Any) -> bool:
        return self.is_ready

    async def prepare(self, *_: Any) -> None:
        self.asked.append("prepare")

    async def make(self, topic: str, partition: int, hole: Hole, term: int, **_: Any) -> Made:
        self.asked.append("make")
        self.end += hole.end - hole.start + self.more
        return Made(0, self.end)

    def takes_windows(self, key: tuple[str, int]) -> bool:
        return False


def context(source: ClusterClient, target: ClusterClient, holes: HoleMaker = cast("HoleMaker", None)) -> CopyContext:  # noqa: B008
    identity = CopyIdentity(77, 0)
    return CopyContext(source, target, identity, holes, MirrorSettings(), owner_term=lambda _: TERM)


def before_hole(marked_under: int) -> Lane:
    """Return a lane at offset 5, where the source holds a marker."""
    lane = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
    lane.recovered(5, 100, 5)
    lane.target.marked_under = marked_under
    lane.take(5, fetched(batch(5, 1, attributes=CONTROL | TRANSACTIONAL)), 5)
    return lane


def fill(lane: Lane, target: Target, *, end_known: bool) -> None:
    async def check(*_: Any) -> None: ...

    client, holes = cast("ClusterClient", target), cast("HoleMaker", target)
    recovery = Recovery(context(client, client, holes), check)
    hole = lane.hole_due()
    assert hole is not None
    lane.fill()
    asyncio.run(recovery.fill(lane, hole, end_known=end_known))


def test_a_hole_is_made_at_once_where_its_start_was_just_told_and_a_marker_of_this_term_stands() -> None:
    lane, target = before_hole(TERM), Target(5)
    fill(lane, target, end_known=True)
    assert target.asked == ["make"]
    assert (lane.target.position, lane.target.marked_under) == (6, TERM)


@pytest.mark.parametrize(
    ("told", "marked_under", "is_ready"),
    [(False, TERM, True), (True, TERM - 1, True), (True, 0, True), (True, TERM, False)],
    ids=["told long ago", "another term's", "none", "to be connected"],
)
def test_else_the_logs_end_is_looked_at_before_a_hole(told: bool, marked_under: int, is_ready: bool) -> None:
    lane, target = before_hole(marked_under), Target(5, is_ready=is_ready)
    fill(lane, target, end_known=told)
    assert target.asked == ["prepare", "end", "make"]
    assert lane.target.position == 6


def test_a_log_that_ends_elsewhere_before_a_hole_gets_no_marker() -> None:
    lane, target = before_hole(0), Target(4)
    fill(lane, target, end_known=True)
    assert target.asked == ["prepare", "end"]
    assert (lane.state, lane.target.unknown) == (LaneState.LOST, False)


def test_a_log_that_ends_elsewhere_behind_a_hole_gets_no_data_until_its_tail_is_read() -> None:
    lane, target = before_hole(TERM), Target(5)
    target.more = 1
    fill(lane, target, end_known=True)
    assert (lane.state, lane.target.unknown, lane.target.marked_under) == (LaneState.LOST, True, 0)


def test_markers_without_an_answer_are_waited_for_also_where_the_lane_lost_its_place_meanwhile() -> None:
    """Markers without an answer make the outcome unknown, also when the source is truncated meanwhile.

    The markers may still be written behind the tail that the lane reads next.
    """
    lane, target = before_hole(TERM), Target(5)

    async def make(*_: Any, **__: Any) -> Made:
        lane.cut(5)
        raise Unreachable("connection-lost", "the connection was lost")

    target.make = make  # type: ignore[method-assign]
    fill(lane, target, end_known=True)
    assert (lane.state, lane.target.unknown) == (LaneState.LOST, True)


@pytest.mark.parametrize("failure", [AuthenticationFailed, BrokerRefused, Unreachable])
def test_a_lane_whose_broker_cannot_be_asked_says_so_and_asks_again(
    monkeypatch: pytest.MonkeyPatch, failure: type[Failed]
) -> None:
    """A broker with an expired certificate does not end the copier; the lane reports the error and asks again."""
    lane, looks = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100), list[str]()

    async def look(*_: Any, **__: Any) -> LogTail:
        looks.append(lane.report.trouble)
        if len(looks) < 3:
            raise failure("certificate-expired", "the certificate of broker 1 has expired")
        return LogTail(0, 0, 0)

    monkeypatch.setattr(module, "read_tail", look)
    monkeypatch.setattr(module, "sleep", lambda _: asyncio.sleep(0))
    nowhere = cast("ClusterClient", None)
    calls: list[int] = []
    recovery = Recovery(context(nowhere, nowhere), cast("Any", None))
    monkeypatch.setattr(recovery._context.signals, "call_for_look", lambda: calls.append(1))
    asyncio.run(recovery.recover(lane))
    assert looks == ["", *["certificate-expired: the certificate of broker 1 has expired"] * 2]
    assert (lane.target.position, len(calls)) == (0, 2)


class Source:
    """A source that holds these offsets."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    async def log_start(self, key: tuple[str, int]) -> LogOffset:
        return LogOffset(0, self.start, 0)

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return dict.fromkeys(wanted, LogOffset(0, self.end, 0))


def recovered(
    monkeypatch: pytest.MonkeyPatch,
    end: int,
    ours: bytes,
    theirs: bytes,
    *,
    epoch: int = 0,
    position: int = -1,
    start: int = 0,
    source_end: int = -1,
) -> Lane:
    """Return a lane of a process that has just started, or that has lost its `position`.

    `ours` are the last batches of the target, `theirs` those of the source from `start` on.
    """
    lane = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
    target, source = object(), Source(start, end if source_end < 0 else source_end)
    if position >= 0:
        lane.recovered(position, 1, position, epoch)
        lane.fill_failed("no answer", unknown=False)

    async def look(*_: Any, **__: Any) -> LogTail:
        return LogTail(end, 1, end, epoch)

    async def batches(client: object, _: Lane, at: int, end: int) -> list[Batch]:
        if client is source and at < start:
            return []  # out of range
        found = walk(memoryview(bytearray(ours if client is target else theirs)))
        return [each for each in found if not each.is_control]

    recovery = Recovery(context(cast("Any", source), cast("Any", target)), cast("Any", None))
    monkeypatch.setattr(module, "read_tail", look)
    monkeypatch.setattr(recovery, "_batches", batches)
    asyncio.run(recovery.recover(lane))
    return lane


def test_batches_are_looked_into_one_pair_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one pair of batches is compared at a time.

    A comparison may need most of a gigabyte of memory, and a process that starts compares all its partitions.
    """
    lanes = [Lane("t", partition, producer_id=77, epoch=0, hole_limit=100) for partition in range(3)]
    inside, begun, crowds, go_on = threading.Lock(), threading.Event(), list[int](), threading.Event()

    async def look(*_: Any, **__: Any) -> LogTail:
        return LogTail(1, 1, 1)

    async def batches(client: object, *_: Any) -> list[Batch]:
        return []

    def first_difference(*_: Any) -> None:
        if not inside.acquire(blocking=False):
            crowds.append(1)
            return
        begun.set()
        go_on.wait()
        inside.release()

    async def scene() -> None:
        nowhere = cast("ClusterClient", None)
        recovery = Recovery(context(nowhere, nowhere), cast("Any", None))
        monkeypatch.setattr(recovery, "_batches", batches)
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(recovery.recover(lane))
            await asyncio.to_thread(begun.wait)
            for _ in range(20):
                await asyncio.to_thread(int)  # threads that were requested before have started by now
            go_on.set()

    monkeypatch.setattr(module, "read_tail", look)
    monkeypatch.setattr(module, "_first_difference", first_difference)
    asyncio.run(scene())
    assert crowds == []
    assert [lane.target.position for lane in lanes] == [1, 1, 1]


def test_a_batch_that_went_as_it_was_is_known_again_however_much_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was copied unchanged is recognised after a restart, however many records the batch holds.

    The records of such a large batch are not compared, so the bytes decide.
    """
    many = MOST_RECORDS + 1
    theirs = batch(0, many, producer=9, epoch=4, sequence=3, text=b"more than are looked at")
    ours = batch(0, many, producer=77, epoch=1, sequence=0, text=b"more than are looked at")
    lane = recovered(monkeypatch, many, ours, theirs)
    assert (lane.report.problem, lane.target.position) == ("", many)


@pytest.mark.parametrize(
    "theirs",
    [
        batch(0, 2, text=record(0) + record(1, value=b"w")),
        batch(0, 2, text=record(0) + record(1), timestamp=1_001),
        batch(0, 2, text=record(0) + record(1), attributes=LOG_APPEND_TIME, timestamp=999),
    ],
)
def test_a_batch_that_is_not_the_sources_is_known_by_its_bytes_and_its_times(
    monkeypatch: pytest.MonkeyPatch, theirs: bytes
) -> None:
    lane = recovered(monkeypatch, 2, batch(0, 2, producer=77, text=record(0) + record(1)), theirs)
    assert lane.report.problem.startswith("diverged: t-0 holds another record at offset ")


MARKER = CONTROL | TRANSACTIONAL


def one(offset: int, *, value: bytes = b"v") -> bytes:
    return batch(offset, 1, producer=77, text=record(0, value=value))


@pytest.mark.parametrize("position", [-1, 0, 4])
def test_a_shift_by_a_marker_that_a_long_window_lacks_stops_the_partition(
    monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """The source has markers at 1, 3 and 5; the second marker was refused, and the third batch was stored."""
    theirs = one(0) + batch(1, 1, attributes=MARKER) + one(2) + batch(3, 1, attributes=MARKER)
    theirs += one(4) + batch(5, 1, attributes=MARKER)
    shifted = one(0) + one(2) + one(3)
    found = recovered(monkeypatch, 4, shifted, theirs, epoch=1, position=position)
    if position == 4:
        assert not found.stopped, "what was confirmed before is not compared again"
    else:
        assert found.report.problem.startswith("diverged: t-0 holds a record at offset 3 on the target that the source")
    right = one(0) + one(2) + one(4)
    assert recovered(monkeypatch, 5, right, theirs, epoch=1, position=position).target.position == 5


def test_records_that_the_source_has_deleted_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = batch(3, 1, attributes=MARKER) + one(4)
    for ours in (one(2, value=b"gone") + one(4), one(4)):
        assert recovered(monkeypatch, 5, ours, theirs, epoch=1, start=3).target.position == 5
    other = recovered(monkeypatch, 5, one(3) + one(4), theirs, epoch=1, start=3)
    assert other.report.problem.startswith("diverged: t-0 holds a record at offset 3 on the target")


def test_records_that_the_source_does_not_show_any_more_are_left_to_the_look_at_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an unclean election the source is cut, and a new leader's high watermark may lag for a moment."""
    found = recovered(monkeypatch, 5, one(3) + one(4), one(3), epoch=1, position=3, source_end=4)
    assert found.target.position == 5


def test_a_lane_asks_for_the_batches_of_its_own_era_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane("t", 0, producer_id=90, epoch=0, hole_limit=100, log_start=40, since=40)
    asked: list[tuple[int, int]] = []

    async def look(client: object, topic: str, partition: int, producer_id: int, *, since: int, **_: Any) -> LogTail:
        asked.append((producer_id, since))
        return LogTail(40, 40, 40)

    nowhere = cast("ClusterClient", None)
    monkeypatch.setattr(module, "read_tail", look)
    asyncio.run(Recovery(context(nowhere, nowhere), cast("Any", None)).recover(lane))
    assert asked == [(90, 40)]
    assert (lane.target.position, lane.target.sequence, lane.source.read_at) == (40, 40, 40)


def test_a_written_log_that_ends_before_the_era_stops_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane("t", 0, producer_id=90, epoch=0, hole_limit=100, log_start=40, since=40)

    async def look(*_: Any, **__: Any) -> LogTail:
        return LogTail(39, 39, 39)

    nowhere = cast("ClusterClient", None)
    monkeypatch.setattr(module, "read_tail", look)
    asyncio.run(Recovery(context(nowhere, nowhere), cast("Any", None)).recover(lane))
    assert lane.report.problem.startswith("not-aligned: ")
