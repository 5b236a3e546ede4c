"""Two lanes with the same producer id merge small batches in different places, under faults of every kind.

The broker follows rule M1. The faults are:

- A request is lost before or after the broker stores the batch.
- A request is refused although other requests follow behind it (W3).
- A leader stores a batch and dies before a follower has the batch.
- A request is still on its way when its copier is killed.
- A barrier comes after batches across the barrier are merged.
- The other copier owns the holes under the next term, while markers of the former owner are still on their way.
- A window (`lane`, L, O) is refused, loses its answer, or arrives after the next owner's first batch or first marker.
- A part of a long window arrives, and the rest arrives after its owner has begun anew.

The target gets the source log exactly once, in order, and each record has its offset. The codec of another project
builds and reads the batches.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.steps import Append
from kmigrate.mirror.partition.window import LONG, Window
from kmigrate.protocol.codes import Code
from kmigrate.records import merge
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched

CONNECTION = object()
HOLE = b""


def data(base: int, count: int) -> bytes:
    """Return a small batch without transaction whose record values are their offsets."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, 4711, 0, 0, 1 << 20)
    for number in range(count):
        assert builder.append(number, 1_760_000_000_000 + base + number, None, b"%d" % (base + number), [])
    made = bytearray(builder.build())
    struct.pack_into(">qii", made, 0, base, len(made) - 12, 3)
    return bytes(made)


@dataclass
class Request:
    """A request to the broker, with the bytes of the moment when it was sent."""

    step: Append
    sent: bytes

    @property
    def epoch(self) -> int:
        return int(struct.unpack_from(">h", self.sent, 51)[0])

    @property
    def sequence(self) -> int:
        return int(struct.unpack_from(">i", self.sent, 53)[0])

    @property
    def values(self) -> list[bytes]:
        read = DefaultRecordBatch(bytearray(self.sent))
        assert read.validate_crc()
        return [record.value for record in read]


@dataclass
class SentWindow:
    """Batches and the markers behind them, on their way under a term."""

    window: Window
    term: int
    requests: deque[Request | int]
    """The requests that the broker has not read yet; a number is so many markers."""

    @classmethod
    def of(cls, window: Window, term: int) -> SentWindow:
        requests: deque[Request | int] = deque()
        for appends, hole in window.parts:
            requests += [Request(append, bytes(append.view)) for append in appends]
            requests.append(hole.end - hole.start)
        return cls(window, term, requests)


@dataclass
class Broker:
    """The target's log by offset, and Kafka's state of the producer id: epoch, next sequence and last five batches."""

    log: list[bytes] = field(default_factory=list)
    next_sequence: int | None = None
    data_end: int = 0
    stored: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    replicated: int = 0
    """End of the offsets that every new leader has: all offsets that were acknowledged or read."""
    marked_under: int = 0
    """Newest term with a marker in the log; markers of older terms are refused (V3)."""
    epoch: int = 0

    def produce(self, request: Request) -> tuple[int, int]:
        values = request.values
        assert request.epoch <= self.epoch, "only a marker raises the epoch"
        if request.epoch < self.epoch:
            return Code.INVALID_PRODUCER_EPOCH, -1
        for sequence, count, base in self.stored:
            if (sequence, count) == (request.sequence, len(values)):
                return 0, base
        if self.next_sequence not in (None, request.sequence):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        base = len(self.log)
        self.stored.append((request.sequence, len(values), base))
        self.log += values
        self.next_sequence = request.sequence + len(values)
        self.data_end = len(self.log)
        return 0, base

    def mark(self, count: int, term: int, epoch: int) -> int:
        if epoch < self.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if term < self.marked_under:
            return Code.TRANSACTION_COORDINATOR_FENCED
        if epoch > self.epoch:
            self.epoch, self.next_sequence = epoch, 0
            self.stored.clear()
        self.marked_under = term
        self.log += [HOLE] * count
        self.replicated = len(self.log)
        return 0

    def fail_over(self) -> None:
        """Elect a leader that has only the replicated offsets."""
        del self.log[self.replicated :]
        while self.stored and self.stored[-1][2] >= self.replicated:
            self.next_sequence = self.stored.pop()[0]
        self.data_end = max((at + 1 for at, value in enumerate(self.log) if value != HOLE), default=0)
        if not self.data_end and not self.epoch:
            self.next_sequence = None


@dataclass
class Scene:
    """A source log, the target and two copiers; the owner among the copiers fills the holes."""

    source: list[bytes]
    ends: list[int]
    """Ends of the source's batches: the possible offsets of a barrier."""
    target: Broker = field(default_factory=Broker)
    lanes: list[Lane] = field(default_factory=list)
    wire: list[list[Request]] = field(default_factory=lambda: [[], []])
    orphans: list[Request] = field(default_factory=list)
    barrier: int | None = None
    owner: int = 0
    """Index of the copier that fills the holes."""
    term: int = 1
    late: list[tuple[int, int, int]] = field(default_factory=list)
    """Markers of a former owner, by count, term and epoch, that arrive after the next owner's first markers."""
    flying: SentWindow | None = None
    """The owner's window without an answer yet."""
    late_windows: list[SentWindow] = field(default_factory=list)
    """Windows of former owners, and of killed ones, that may still arrive."""
    recovered_at: list[int] = field(default_factory=lambda: [-1, -1])
    """Log end that each copier has found last."""
    windows: int = 0
    """Number of windows that were stored."""
    long: bool = False
    """True if windows may have several holes."""
    long_windows: int = 0
    """Number of windows with several holes that were stored."""

    def start(self, who: int) -> None:
        """Start a process in place of a killed process, whose requests may still arrive."""
        self.orphans += self.wire[who]
        self.wire[who] = []
        if who == self.owner and self.flying is not None:
            self.late_windows.append(self.flying)
            self.flying = None
            self.owner_began_anew()
        self.lanes[who] = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
        self.lanes[who].barrier = self.barrier

    def act(self, who: int, what: str, much: int) -> None:
        lane = self.lanes[who]
        if what == "let_go":
            lane.drop_waiting()  # also records in a lane that has lost its place
        if lane.must_recover:
            tail = self.target
            tail.replicated = len(tail.log)
            lane.recovered(len(tail.log), tail.next_sequence or 0, tail.data_end, tail.epoch)
            self.recovered_at[who] = len(tail.log)
        getattr(self, what)(who, lane, much)
        assert not lane.stopped, lane.report.problem
        assert self.barrier is None or len(self.target.log) <= self.barrier

    def read(self, who: int, lane: Lane, much: int) -> None:
        if lane.reads:
            found = [each for each, end in zip(self.source, self.ends, strict=True) if end > lane.source.read_at]
            lane.take(lane.source.read_at, fetched(b"".join(found[: much + 1])), 0)

    def send(self, who: int, lane: Lane, much: int) -> None:
        if who == self.owner and lane.holds_back:
            self.send_window(who, lane, much)
            return
        sent = lane.send_next(CONNECTION, 5)
        if sent is not None:
            self.wire[who].append(Request(sent.step, bytes(sent.step.view)))

    def answer(self, who: int, lane: Lane, much: int) -> None:
        if self.wire[who]:
            request = self.wire[who].pop(0)
            lane.answered(request.step, *self.target.produce(request))
            self.target.replicated = len(self.target.log)
            self.fill(who, lane, much, end_known=True)

    def send_window(self, who: int, lane: Lane, much: int) -> None:
        holes = LONG if self.long else 1
        window = lane.begin_window(self.term, holes=holes) if self.flying is None else None
        if window is not None:
            self.flying = SentWindow.of(window, self.term)

    def end_window(self, who: int, lane: Lane, much: int) -> None:
        """Have the broker work on the owner's window; break the window somewhere or lose the answer now and then."""
        flying, lane = self.flying, self.lanes[self.owner]
        if flying is None:
            return
        self.flying = None
        stored = self.arrive_window(flying, much if much < 4 else len(flying.requests))
        if stored and much != 4:
            assert len(self.target.log) == flying.window.end
            assert lane.window_stored(flying.window, flying.term)
            self.windows += 1
            self.long_windows += len(flying.window.parts) > 1
            return
        lane.window_failed(flying.window, "no answer")
        if much % 2 and len(flying.window.parts) > 1:  # the broker reads on, although the client has left
            self.late_windows.append(flying)  # of other windows `MarkerWriter` counts the unknown markers

    def arrive_window(self, sent: SentWindow, most: int = 1 << 10) -> bool:
        """Work on a window's next requests as a broker does: behind a refused batch nothing is read."""
        refused = 0
        while sent.requests and most:
            request, most = sent.requests.popleft(), most - 1
            if isinstance(request, int):
                refused = refused or self.target.mark(request, sent.term, sent.window.epoch)
                continue
            code, _ = self.target.produce(request)
            if code:
                sent.requests.clear()
                refused = code
        return not refused and not sent.requests

    def arrive_late(self, who: int, lane: Lane, much: int) -> None:
        """Let the windows of former owners arrive, but not while the owner stands at a hole that it has just found.

        The owner looks at the log end right before its first marker there.
        """
        for sent in self.late_windows:
            self.arrive_window(sent)
        self.late_windows.clear()

    def pause(self, who: int, lane: Lane, much: int) -> None:
        lane.paused = not lane.paused

    def let_go(self, who: int, lane: Lane, much: int) -> None:
        lane.drop_waiting()
        assert lane.target.queued_bytes == 0 or not (lane.paused and not lane.target.sent)

    def refuse(self, who: int, lane: Lane, much: int) -> None:
        if self.wire[who]:
            lane.answered(self.wire[who].pop(0).step, Code.NOT_ENOUGH_REPLICAS, -1)

    def disconnect(self, who: int, lane: Lane, much: int) -> None:
        """Store the first `much % 4` requests, and lose all answers."""
        for request in self.wire[who][: much % 4]:
            self.target.produce(request)
        for request in self.wire[who]:
            lane.unanswered(request.step, "lost")
        self.wire[who] = []

    def kill(self, who: int, lane: Lane, much: int) -> None:
        self.start(who)

    def arrive(self, who: int, lane: Lane, much: int) -> None:
        if self.orphans:
            self.target.produce(self.orphans.pop(0))

    def fill(self, who: int, lane: Lane, much: int, *, end_known: bool = False) -> None:
        """Fill a hole as `Recovery.fill` does.

        The log end is read before the hole unless an answer has just told the log end (D), and always after the hole.
        """
        hole = lane.hole_due() if who == self.owner else None
        if hole is None:
            return
        lane.fill()
        known = end_known and lane.target.marked_under == self.term
        if not known and lane.first_marker_settle_s:
            self.arrive_late(who, lane, 0)  # the log comes to rest
        if not known and len(self.target.log) != hole.start:
            lane.fill_failed("moved", unknown=False)
            return
        if self.recovered_at[who] < hole.start:  # the worst moment, between the look and the markers (M)
            self.arrive_late(who, lane, 0)
        epoch = lane.begin_marking(self.term)
        if much == 9:
            lane.fill_failed("no answer", unknown=True)  # the markers have not arrived
            return
        assert self.target.mark(hole.end - hole.start, self.term, epoch) == 0
        assert len(self.target.log) == hole.end, "a marker in another place"
        if much == 8:
            lane.fill_failed("no answer", unknown=True)  # the markers have arrived
        else:
            lane.filled(hole.end, self.term, epoch)
            lane.allow_windows(self.term)

    def take_over(self, who: int, lane: Lane, much: int) -> None:
        """Make the other copier the owner of the holes; markers of the former owner arrive in time or too late."""
        before = self.lanes[self.owner]
        hole = before.hole_due()
        if hole is not None and hole.start == len(self.target.log):
            before.fill()
            epoch = before.begin_marking(self.term)
            if much % 2:
                assert self.target.mark(hole.end - hole.start, self.term, epoch) == 0
            else:
                self.late.append((hole.end - hole.start, self.term, epoch))
            before.fill_failed("no answer", unknown=True)
        if self.flying is not None:
            self.late_windows.append(self.flying)
            before.window_failed(self.flying.window, "no answer")
            self.flying = None
        before.forbid_windows()
        self.owner = 1 - self.owner
        self.owner_began_anew()

    def owner_began_anew(self) -> None:
        """Begin the next term, in which the owner has seen nothing yet."""
        self.term += 1

    def come_late(self, who: int, lane: Lane, much: int) -> None:
        while self.late and self.late[0][1] < self.target.marked_under:
            assert self.target.mark(*self.late.pop(0)) in (
                Code.TRANSACTION_COORDINATOR_FENCED,
                Code.INVALID_PRODUCER_EPOCH,
            )

    def elect(self, who: int, lane: Lane, much: int) -> None:
        """Kill the leader with the offsets that no follower has; requests on their way get no answer."""
        for each in (0, 1):
            self.disconnect(each, self.lanes[each], 0)
        if self.flying is not None:
            self.lanes[self.owner].window_failed(self.flying.window, "lost")
            self.flying = None
        self.orphans = []
        self.late_windows = []
        self.target.fail_over()

    def fence(self, who: int, lane: Lane, much: int) -> None:
        """Set a barrier at the end of a batch, behind all sent requests, but within the batches read and merged."""
        if self.barrier is None:
            sent = [request.step.end for wire in (*self.wire, self.orphans) for request in wire]
            sent += [each.window.end for each in (*self.late_windows, self.flying) if each is not None]
            behind = max([len(self.target.log), *sent])
            ahead = [end for end in self.ends if end >= behind]
            self.set_barrier(ahead[much % len(ahead)])

    def set_barrier(self, offset: int | None) -> None:
        self.barrier = offset
        for lane in self.lanes:
            lane.barrier = offset

    def drain(self) -> None:
        """Let the first copier alone reach the end, with nothing lost any more."""
        while self.orphans:
            self.target.produce(self.orphans.pop(0))
        self.end_window(0, self.lanes[0], 5)
        self.arrive_late(0, self.lanes[0], 0)
        self.lanes[self.owner].forbid_windows()
        self.owner, self.term = 0, self.term + 1
        self.lanes[0].paused = False
        end = self.ends[-1] if self.barrier is None else self.barrier
        for _ in range(100):
            for what in ("read", "send", "answer", "end_window", "fill"):
                self.act(0, what, 3)
            if self.lanes[0].target.position == end == len(self.target.log) and not self.lanes[0].must_recover:
                break


ACTIONS = {
    "read": 6, "send": 8, "answer": 6, "fill": 3, "refuse": 1, "disconnect": 1, "kill": 1, "arrive": 2, "elect": 1,
    "fence": 0.3, "take_over": 0.7, "come_late": 1, "pause": 0.5, "let_go": 1, "end_window": 6, "arrive_late": 1,
}  # fmt: skip


OF_WINDOWS = {
    **ACTIONS, "read": 14, "send": 10, "end_window": 9, "refuse": 0.2, "disconnect": 0.2, "kill": 0.3, "elect": 0.2,
    "pause": 0.1, "let_go": 0.3, "fence": 0.1, "take_over": 0.3,
}  # fmt: skip
"""Weights of actions with which most windows end well."""


def scene_of(dice: random.Random, *, long: bool) -> tuple[Scene, list[bytes]]:
    """Return a source of small batches and some markers, and the content that the target must get."""
    scene = Scene([], [], long=long)
    wanted: list[bytes] = []
    for _ in range(dice.randint(10, 150) if long else dice.randint(1, 30)):
        base, count = len(wanted), dice.randint(1, 4)
        if dice.random() < (0.4 if long else 0.15):
            scene.source.append(batch(base, 1, attributes=CONTROL | TRANSACTIONAL))
            wanted.append(HOLE)
        else:
            scene.source.append(data(base, count))
            wanted += [b"%d" % offset for offset in range(base, base + count)]
        scene.ends.append(len(wanted))
    scene.lanes = [Lane("t", 0, producer_id=77, epoch=0, hole_limit=100) for _ in range(2)]
    return scene, wanted


def play(seed: int, *, long: bool) -> Scene:
    """Play random actions; the log of the scene's target is right in the end."""
    dice = random.Random(seed)
    scene, wanted = scene_of(dice, long=long)
    alone = dice.random() < 0.5
    actions = OF_WINDOWS if long else ACTIONS
    with patch.object(merge, "_FEW", 2), patch.object(merge, "_FULL", 60):
        for what in dice.choices(list(actions), list(actions.values()), k=dice.randint(5, 400 if long else 150)):
            scene.act(0 if alone else dice.randrange(2), what, dice.randrange(10))
        scene.drain()
        if scene.barrier is not None:
            reached = scene.lanes[0].at_barrier, len(scene.target.log)
            assert reached == (scene.barrier, scene.barrier), f"seed {seed}"
            scene.set_barrier(None)
            scene.drain()
    assert scene.target.log == wanted, f"seed {seed}"
    return scene


@pytest.mark.parametrize("seeds", [range(at, at + 100) for at in range(0, 600, 100)], ids=str)
def test_copiers_that_merge_in_different_places_write_the_source_log_once_and_in_order(seeds: range) -> None:
    assert sum(play(seed, long=False).windows for seed in seeds) > 10


@pytest.mark.parametrize("seeds", [range(at, at + 100) for at in range(0, 300, 100)], ids=str)
def test_long_windows_write_the_source_log_once_and_in_order(seeds: range) -> None:
    assert sum(play(seed, long=True).long_windows for seed in seeds) > 30
