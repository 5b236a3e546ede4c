"""The fetch requests to a source's leader while many partitions lag.

The tests show which partitions come first, and how much memory the records take.
"""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.mirror.copy import reading
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.lanes import LOOK_S, Lanes, Signals
from kmigrate.mirror.copy.reading import SourceReader
from kmigrate.mirror.copy.throttle import Throttle
from kmigrate.mirror.partition import steps
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.partition.reactions import Asked
from kmigrate.mirror.partition.steps import Reading, read_steps
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.hot import FetchAnswer, FetchedPartition, FetchPartition
from tests.unit.mirror.batches import LOG_APPEND_TIME, batch, fetched, record

KIB = 1 << 10
SETTINGS = MirrorSettings(
    fetch_max_bytes=512 * KIB, partition_max_bytes=64 * KIB, backlog_bytes=128 * KIB, backlog_total_bytes=2048 * KIB
)
_PAYLOAD = bytes(16 * KIB)


def _lanes(**topics: int) -> Lanes:
    made = Lanes()
    for topic, partitions in topics.items():
        for partition in range(partitions):
            lane = Lane(topic, partition, producer_id=1, epoch=0, hole_limit=1)
            lane.recovered(0, 0, 0)
            lane.urgent = topic == "promoted"
            made[lane.key] = lane
    return made


class EnoughError(Exception):
    """The test has seen what it wanted to see."""


class Still(Signals):
    """Signals without changes: nothing is written and no time passes, so a wait never ends."""

    async def wait(self, moved: int, most_s: float = LOOK_S, *, reads: bool = False) -> None:
        if self.moved == moved:
            raise EnoughError


class Leader:
    """A leader that fills an answer as a broker does: in the order of the request, until the answer is full."""

    def __init__(self, lanes: Lanes, after: Callable[[], None], answers: int) -> None:
        self.lanes = lanes
        self.after = after
        self.left = answers
        self.got: Counter[Key] = Counter()
        self.max_bytes = 0

    def session(self, *_: Any, max_bytes: int, **__: Any) -> Leader:
        self.max_bytes = max_bytes
        return self

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        if not self.left:
            raise EnoughError
        self.left -= 1
        await asyncio.sleep(0)
        room = self.max_bytes
        out: list[FetchedPartition] = []
        for key, part in asked.items():
            data, at = b"", part.offset
            while len(data) + len(_PAYLOAD) < min(part.max_bytes, room) and (key[0] != "promoted" or not at):
                data += batch(at, 1, text=_PAYLOAD)
                at += 1
            room -= len(data)
            self.got[key] += at - part.offset
            answer = fetched(data)
            out.append(FetchedPartition(*key, 0, 1_000_000, 1_000_000, 0, (), -1, answer.records) if data else answer)
        self.after()
        return FetchAnswer(0, 0, 0, [each for each in out if len(each.records)])


class Source:
    """A cluster with a single broker."""

    metadata = object()
    settings = SimpleNamespace(request_timeout_s=30)

    def leader(self, *_: object) -> int:
        return 1


def _reader(monkeypatch: pytest.MonkeyPatch, leader: Leader, signals: Signals) -> SourceReader:
    monkeypatch.setattr(reading, "FetchSession", leader.session)
    nobody = cast("Any", None)
    context = CopyContext(cast("Any", Source()), nobody, nobody, nobody, SETTINGS, lanes=leader.lanes, signals=signals)
    return SourceReader(
        context,
        Throttle(),
        TaskOwner(),
        on_move=lambda _: None,
        check_anew=cast("Any", None),
    )


def _read(monkeypatch: pytest.MonkeyPatch, leader: Leader) -> Counter[Key]:
    """Run the reader until the leader has answered often enough or gets no request; return the record counts."""
    with pytest.raises((EnoughError, TimeoutError)):
        asyncio.run(asyncio.wait_for(_reader(monkeypatch, leader, Still()).run(1), 2.0))
    return leader.got


class SlowLine(Leader):
    """A leader over a connection of `rate` bytes a second; the reader gives up after half a minute."""

    def __init__(self, lanes: Lanes, answers: int, rate: float) -> None:
        super().__init__(lanes, self._take, answers)
        self.rate = rate
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        before = self.got.copy()
        answer = await super().fetch(asked, max_wait_ms=max_wait_ms, full=full)
        seconds = sum(len(part.records) for part in answer.partitions) / self.rate
        self.now += min(seconds, 30)
        if seconds > 30:
            self.got = before
            raise Unreachable("no-answer", "not all of it has come")
        return answer

    def _take(self) -> None:
        """Do nothing, as if read records were written at once."""


def test_over_a_slow_line_less_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader asks for less over a slow connection, so that an answer arrives in time.

    Otherwise the reader would give up each answer halfway, and ask for the same records again.
    """
    leader = SlowLine(_lanes(bulk=30), 12, rate=8 * KIB)
    monkeypatch.setattr(reading, "monotonic", leader.monotonic)
    monkeypatch.setattr(reading, "sleep", lambda _: asyncio.sleep(0))
    assert sum(_read(monkeypatch, leader).values()) > 0


class Waits(Leader):
    """A leader that answers full fetches at once; its fetch session has nothing new."""

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        if not full:
            await asyncio.Event().wait()
        return await super().fetch(asked, max_wait_ms=max_wait_ms, full=full)

    async def open(self) -> None: ...


def test_what_writers_wait_for_is_read_while_the_broker_makes_the_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = _lanes(bulk=30, promoted=1)
    got = _read(monkeypatch, Waits(lanes, lambda: None, 3))
    assert got == {("promoted", 0): 1}


class Distrusted(Leader):
    """A leader whose certificate has expired, beside brokers with valid certificates."""

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        if not self.left:
            raise EnoughError
        self.left -= 1
        raise AuthenticationFailed("certificate-expired", "the certificate of broker 1 has expired")

    async def open(self) -> None:
        raise AuthenticationFailed("certificate-expired", "the certificate of broker 1 has expired")


def test_a_broker_that_is_not_trusted_ends_nobody_elses_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader reports the expired certificate and goes on, so the copier of the whole link does not end."""
    monkeypatch.setattr(reading, "sleep", lambda _: asyncio.sleep(0))
    leader, signals = Distrusted(_lanes(bulk=2), lambda: None, 3), Still()
    called = signals.look_now
    leader.lanes[("bulk", 1)].promoting = True  # the second connection is opened before the fence
    with pytest.raises(EnoughError):
        asyncio.run(_reader(monkeypatch, leader, signals).run(1))
    assert signals.trouble == "certificate-expired: the certificate of broker 1 has expired"
    assert called.is_set()


def test_a_fence_is_read_for_at_once_whatever_the_broker_was_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = _lanes(bulk=1)
    signals = Signals()
    leader = Waits(lanes, lambda: None, 1)

    async def scene() -> None:
        reading = asyncio.create_task(_reader(monkeypatch, leader, signals).run(1))
        await asyncio.sleep(0.01)
        lanes[("bulk", 0)].urgent = True
        signals.assign()
        await asyncio.wait_for(reading, 2.0)

    with pytest.raises(EnoughError):
        asyncio.run(scene())
    assert leader.got[("bulk", 0)] > 0


def test_an_answer_to_what_was_read_meanwhile_over_the_other_connection_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = _lanes(t=1)
    lane = lanes[("t", 0)]
    lane.source.read_at = 7
    reader = _reader(monkeypatch, Leader(lanes, lambda: None, 0), Signals())
    late = FetchedPartition("t", 0, 1, -1, -1, -1, (), -1, memoryview(b""))
    reader.take({("t", 0): FetchPartition("t", 0, 5, 1024)}, [late])
    assert (lane.source.looking, lane.source.trouble, lane.source.read_at) == (False, "", 7)


class Stamped(Leader):
    """A leader whose first partition has a batch with broker timestamps; other partitions have nothing.

    The partitions of each request are noted.
    """

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(lanes, lambda: None, 50)
        self.asked: list[set[int]] = []
        self.waits: list[int] = []
        self.asked_often = asyncio.Event()

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        self.asked.append({partition for _, partition in asked})
        self.waits.append(max_wait_ms)
        if self.asked[3:]:
            self.asked_often.set()
        if self.asked[2:] and 0 in self.asked[-1]:
            raise EnoughError
        await asyncio.sleep(0.001)
        text = record(0) + record(1)
        data = b"" if self.asked[1:] else batch(0, 2, attributes=LOG_APPEND_TIME, text=text)
        return FetchAnswer(0, 0, 0, [FetchedPartition("t", 0, 0, 9, 9, 0, (), -1, fetched(data).records)])


def test_while_a_thread_rewrites_for_one_partition_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other partitions are read while a thread rewrites a large batch.

    Rewriting a million records takes seconds. Without a thread, leases and announcements would wait, too.
    """
    monkeypatch.setattr(reading, "_MOST_EFFORT", 1)
    lanes, begun, go_on = _lanes(t=2), threading.Event(), threading.Event()
    leader, lane = Stamped(lanes), lanes[("t", 0)]

    def rewritten(*args: Any, **kwargs: Any) -> Reading:
        begun.set()
        assert go_on.wait(10)
        return read_steps(*args, **kwargs)

    monkeypatch.setattr(steps, "read_steps", rewritten)

    async def scene() -> None:
        reader = asyncio.create_task(_reader(monkeypatch, leader, Signals()).run(1))
        assert await asyncio.to_thread(begun.wait, 10)
        await asyncio.wait_for(leader.asked_often.wait(), 10)
        assert lane.source.read_at == 0
        assert leader.asked[0] == {0, 1}
        assert set(map(frozenset, leader.asked[1:])) == {frozenset({1})}
        assert set(leader.waits[1:]) == {reading._SHORT_WAIT_MS}, "it is asked for again soon"
        go_on.set()
        with pytest.raises(EnoughError):
            await reader

    asyncio.run(scene())
    sent = lane.send_next(object(), 1)
    assert (lane.source.read_at, lane.source.rest, sent and (sent.step.start, sent.step.end)) == (2, None, (0, 2))


def test_what_a_thread_has_read_of_a_source_that_was_cut_meanwhile_is_forgotten() -> None:
    lane = _lanes(t=1)[("t", 0)]
    data = batch(0, 2, attributes=LOG_APPEND_TIME, text=record(0) + record(1))
    lane.take(0, fetched(data), 5, most=1)
    rest = lane.source.rest
    assert rest is not None and not lane.reads
    read = rest()
    lane.cut(0)
    lane.recovered(0, 0, 0)
    assert (lane.source.read_at, lane.source.rest, lane.reads) == (0, None, True)
    lane.take_rest(rest, 0, read, 5, 5)
    assert (lane.source.read_at, bool(lane.target.queue)) == (0, False)


def test_what_writers_wait_for_is_the_next_that_a_thread_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread rewrites partitions behind a fence before the partitions that lag.

    Each rewrite may take a second or more.
    """
    monkeypatch.setattr(reading, "_MOST_EFFORT", 1)
    lanes, read = _lanes(bulk=4, promoted=1), list[Key]()
    begun, go_on = threading.Event(), threading.Event()
    data = batch(0, 2, attributes=LOG_APPEND_TIME, text=record(0) + record(1))
    parts = {key: FetchedPartition(*key, 0, 9, 9, 0, (), -1, fetched(data).records) for key in lanes}
    whose = {id(part.records): key for key, part in parts.items()}
    asked = {key: FetchPartition(*key, 0, 1024) for key in lanes}

    def rewritten(records: memoryview, *args: Any, **kwargs: Any) -> Reading:
        read.append(whose[id(records)])
        begun.set()
        assert go_on.wait(10)
        return read_steps(records, *args, **kwargs)

    monkeypatch.setattr(steps, "read_steps", rewritten)

    async def scene() -> None:
        signals = Signals()
        reader = _reader(monkeypatch, Leader(lanes, lambda: None, 0), signals)
        *bulk, promoted = parts.values()
        reader.take(asked, bulk)
        assert await asyncio.to_thread(begun.wait, 10)
        lanes[("bulk", 3)].promoting = True
        reader.take(asked, [promoted])
        go_on.set()
        moved = signals.moved
        while any(lane.source.rest for lane in lanes.values()):
            await signals.wait(moved)
            moved = signals.moved

    asyncio.run(asyncio.wait_for(scene(), 10))
    assert read == [("bulk", 0), ("promoted", 0), ("bulk", 3), ("bulk", 1), ("bulk", 2)]
    assert {lane.source.read_at for lane in lanes.values()} == {2}


def test_what_a_stopped_partition_was_to_read_is_not_kept_in_memory() -> None:
    lane = _lanes(t=1)[("t", 0)]
    data = batch(0, 2, attributes=LOG_APPEND_TIME, text=record(0) + record(1))
    lane.take(0, fetched(data), 5, most=1)
    assert lane.source.rest is not None
    lane.stop("diverged: by a person")
    assert lane.source.rest is None


def test_what_waits_for_a_thread_does_not_keep_the_answers_of_others_in_memory() -> None:
    """Dozens of partitions may wait for the thread, and each keeps only its own part of an answer."""
    data = batch(0, 2, attributes=LOG_APPEND_TIME, text=record(0) + record(1))
    lanes = _lanes(t=20)
    tracemalloc.start()
    try:
        for key, lane in lanes.items():
            lane.send_next(object(), 1)
            lane.state = LaneState.PIPING
            answer = bytearray(1 << 20)
            answer[: len(data)] = data
            part = FetchedPartition(*key, 0, 99, 99, 0, (), -1, memoryview(answer)[: len(data)])
            lane.take(0, part, 1, most=1)
            assert lane.source.rest is not None
            del answer, part
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_what_thousands_that_lag_have_in_memory_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = _lanes(bulk=300)
    _read(monkeypatch, Leader(lanes, lambda: None, 200))
    held = sum(lane.target.queued_bytes for lane in lanes.values())
    fair = 300 * 2 * 64 * KIB  # the smallest room of each partition, and what a single answer may add
    assert SETTINGS.backlog_total_bytes < held <= max(fair, 2 * SETTINGS.backlog_total_bytes)
    assert held < 300 * SETTINGS.backlog_bytes


class Large(Leader):
    """A leader with batches above a partition's limit; like a broker it still gives the first batch whole."""

    size = 512 * KIB

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        if not self.left:
            raise EnoughError
        self.left -= 1
        await asyncio.sleep(0)
        key = min(asked, key=lambda each: (self.got[each], each))
        at = asked[key].offset
        self.got[key] += 1
        data = fetched(batch(at, 1, text=bytes(self.size))).records
        self.after()
        return FetchAnswer(0, 0, 0, [FetchedPartition(*key, 0, 1_000, 1_000, 0, (), -1, data)])


def test_large_batches_of_thousands_that_wait_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit also holds when each waiting partition could keep a large batch."""
    lanes = _lanes(bulk=300)
    _read(monkeypatch, Large(lanes, lambda: None, 200))
    held = sum(lane.target.queued_bytes for lane in lanes.values())
    assert SETTINGS.backlog_total_bytes < held <= 2 * SETTINGS.backlog_total_bytes + Large.size


def test_partitions_that_the_target_refuses_leave_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = _lanes(denied=30, well=3)
    denied, well = (([lane for lane in lanes.values() if lane.topic == topic]) for topic in ("denied", "well"))
    for lane in denied:
        lane.fill_failed("target-denied", unknown=False)
    connection = object()

    def write() -> None:
        for lane in well:
            while (sent := lane.send_next(connection, 1)) is not None:
                lane.answered(sent.step, 0, sent.step.start)

    _read(monkeypatch, Large(lanes, write, 200))
    assert all(lane.target.position >= 5 for lane in well)
    assert any(lane.target.queued_bytes for lane in denied)
    assert any(lane.source.read_at < 0 for lane in denied)
    for lane in denied:
        lane.recovered(0, 0, 0)
        assert lane.source.read_at == lane.target.queued_bytes // Large.size, "what was let go of is read again"


def _leaderless(lane: Lane) -> None:
    lane.report.metadata_trouble[Asked.PRODUCE] = "target-leaderless: no broker leads it now"


def _unserved(lane: Lane) -> None:
    lane.unserved("the certificate of broker 1 has expired")


@pytest.mark.parametrize("befallen", [_leaderless, _unserved])
def test_partitions_that_no_broker_of_the_target_takes_leave_room_for_the_others(
    monkeypatch: pytest.MonkeyPatch, befallen: Callable[[Lane], None]
) -> None:
    """Partitions without a serving broker on the target give up their queued records.

    No batch of these partitions was in flight when the broker went, so no answer tells their lanes about the failure.
    """
    lanes = _lanes(gone=30, well=1)
    well = lanes[("well", 0)]
    well.paused = True
    _read(monkeypatch, Large(lanes, lambda: None, 30))
    well.paused = False
    gone = [lane for lane in lanes.values() if lane is not well]
    for lane in gone:
        befallen(lane)
    assert sum(lane.target.queued_bytes for lane in gone) >= 2 * SETTINGS.backlog_total_bytes
    assert _read(monkeypatch, Large(lanes, lambda: None, 40))[well.key]
    held_up = [lane for lane in gone if lane.must_recover]
    assert held_up
    for lane in held_up:
        lane.recovered(0, 0, 0)
        assert (lane.source.read_at, lane.drop_waiting()) == (0, 0), "it is read again, and what it has is its own"


def test_paused_partitions_leave_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = _lanes(paused=30, well=1)
    well = lanes[("well", 0)]
    well.paused = True
    _read(monkeypatch, Large(lanes, lambda: None, 30))
    for lane in lanes.values():
        lane.paused = not lane.paused
    assert sum(lane.target.queued_bytes for lane in lanes.values()) >= 2 * SETTINGS.backlog_total_bytes
    assert _read(monkeypatch, Large(lanes, lambda: None, 1)) == {well.key: 1}
    assert {lane.source.read_at for lane in lanes.values() if lane is not well} == {0}


def test_a_partition_that_waits_does_not_keep_the_answers_of_others_in_memory() -> None:
    lane = Lane("t", 0, producer_id=1, epoch=0, hole_limit=1)
    lane.recovered(0, 0, 0)
    lane.fill_failed("target-leaderless", unknown=False)
    tracemalloc.start()
    try:
        for offset in range(50):
            own = batch(offset, 1)
            answer = bytearray(1 << 20)
            answer[: len(own)] = own
            part = FetchedPartition("t", 0, 0, 99, 99, 0, (), -1, memoryview(answer)[: len(own)])
            lane.take(offset, part, 1)
            del answer, part
        assert lane.source.read_at == 50
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("error", "told"), [(-1, "source-error: "), (35, "source-error: "), (70, ""), (71, ""), (106, "")]
)
def test_what_a_whole_request_is_refused_with_is_told_of_all_its_partitions(
    monkeypatch: pytest.MonkeyPatch, error: int, told: str
) -> None:
    """An error of the whole response is reported by every partition of the request.

    A broker names no partition with such an error where topics are named by id. An error of the fetch session only
    makes the reader ask again at once.
    """
    lanes = _lanes(t=2)
    leader = Leader(lanes, lambda: None, 1)

    async def fetch(asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        assert len(asked) == 2
        if not leader.left:
            raise EnoughError
        leader.left -= 1
        return FetchAnswer(error, 0, 0, [])

    monkeypatch.setattr(leader, "fetch", fetch)
    _read(monkeypatch, leader)
    for lane in lanes.values():
        assert lane.progress().trouble.startswith(told)
        assert not lane.stopped
        assert bool(lane.progress().trouble) == bool(told)
        assert bool(lane.source.retry_at) == bool(told)


class Bare(Leader):
    """A leader that leaves partitions without news out of its answers.

    Asked for a single partition, the leader gives a batch if the partition has a batch.
    """

    throttle_ms = 0

    def __init__(self, lanes: Lanes) -> None:
        super().__init__(lanes, lambda: None, 1)
        self.alone: list[Key] = []
        self.rounds = 0
        for lane in lanes.values():
            lane.take(0, self._nothing(lane.key), 5)

    @staticmethod
    def _nothing(key: Key) -> FetchedPartition:
        return FetchedPartition(*key, 0, 10, 10, 0, (), -1, memoryview(b""))

    async def fetch(self, asked: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        if not self.left:
            raise EnoughError
        self.left -= 1
        return FetchAnswer(0, 0, self.throttle_ms, [])

    async def sleep(self, _: float) -> None:
        self.rounds += 1
        if self.rounds > 3:
            raise EnoughError

    async def fetch_one(self, _: Any, node: int, part: FetchPartition, **more: Any) -> FetchedPartition:
        assert (node, part.offset, more["read_committed"]) == (1, 0, True)
        key = (part.topic, part.partition)
        self.alone.append(key)
        if key == ("full", 1):
            raise Unreachable("no-answer", "for a moment")
        return fetched(batch(0, 1)) if part.topic == "full" else self._nothing(key)

    def look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _read(monkeypatch, self)
        monkeypatch.setattr(reading, "fetch_one", self.fetch_one)
        monkeypatch.setattr(reading, "sleep", self.sleep)
        with pytest.raises(EnoughError):
            asyncio.run(_reader(monkeypatch, self, Still()).look_for_batches())


def test_a_partition_whose_log_cleaner_left_no_batch_up_to_the_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose log cleaner left no batch up to the log end is reported.

    The case happens on sources before Kafka 4.0 (KAFKA-17076): the copy would stay behind for ever without a reason.
    """
    lanes = _lanes(bare=1, full=2)
    source = Bare(lanes)
    source.look(monkeypatch)
    assert source.alone == [("bare", 0), ("full", 0), ("full", 1), ("full", 0), ("full", 1)], "one is known"
    assert [bool(lane.progress().trouble) for lane in lanes.values()] == [True, False, False]
    lane = lanes[("bare", 0)]
    assert "source-without-batch: the source has no batch from offset 0 to its end 10;" in lane.progress().trouble
    lane.take(0, fetched(batch(1, 1)), 5)
    told = lane.progress()
    assert "source-without-batch" not in told.trouble + told.problem, "what is written next shows that there is a hole"


def test_a_partition_whose_newest_offsets_the_source_has_lost_is_no_longer_called_bare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report ends when a new leader does not know the newest offsets.

    The log of the new leader ends with its last batch, and so does the copy.
    """
    lanes = _lanes(bare=1)
    Bare(lanes).look(monkeypatch)
    lane = lanes[("bare", 0)]
    assert lane.progress().trouble
    lane.take(0, fetched(b"", high_watermark=0), 5)
    assert not lane.progress().trouble


def test_what_a_quota_holds_back_is_not_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a quota every answer is empty, and each further request would delay the next request."""
    source = Bare(_lanes(bare=1))
    source.throttle_ms = 1
    source.look(monkeypatch)
    assert source.alone == []
