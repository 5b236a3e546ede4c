"""Lanes of one id that merge small batches in different places, against a broker that keeps M1's rules.

Requests are lost before or after they are stored, refused though others are behind them (W3), stored on a leader that
dies before any other has them, or still on their way when their copier is killed; a barrier comes when batches across
it were merged already. Holes are one copier's under a term, and the other's under the next, with markers of the first
still on their way. The log comes out once, in order and with every record at its offset. Batches are built and read by
another project's codec.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kmigrate.mirror.lane import Lane
from kmigrate.mirror.steps import Append
from kmigrate.protocol.codes import Code
from kmigrate.records import merge
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched

CONNECTION = object()
HOLE = b""


def data(base: int, count: int) -> bytes:
    """A small plain batch whose records name their offsets."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, 4711, 0, 0, 1 << 20)
    for number in range(count):
        assert builder.append(number, 1_760_000_000_000 + base + number, None, b"%d" % (base + number), [])
    made = bytearray(builder.build())
    struct.pack_into(">qii", made, 0, base, len(made) - 12, 3)
    return bytes(made)


@dataclass
class Request:
    """What went to the broker, as it was when it went."""

    step: Append
    sent: bytes

    @property
    def sequence(self) -> int:
        return int(struct.unpack_from(">i", self.sent, 53)[0])

    @property
    def values(self) -> list[bytes]:
        read = DefaultRecordBatch(bytearray(self.sent))
        assert read.validate_crc()
        return [record.value for record in read]


@dataclass
class Broker:
    """The target's log by offset, and what Kafka remembers of the id: its next sequence and its last five batches."""

    log: list[bytes] = field(default_factory=list)
    next_sequence: int | None = None
    data_end: int = 0
    stored: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))
    replicated: int = 0
    """What a new leader is sure to have: all that was acknowledged, or read."""
    marked_under: int = 0
    """The newest term of which it holds a marker: those of older ones are refused (V3)."""

    def produce(self, request: Request) -> tuple[int, int]:
        values = request.values
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

    def mark(self, count: int, term: int) -> int:
        if term < self.marked_under:
            return Code.TRANSACTION_COORDINATOR_FENCED
        self.marked_under = term
        self.log += [HOLE] * count
        self.replicated = len(self.log)
        return 0

    def fail_over(self) -> None:
        """A new leader, with nothing but what is replicated."""
        del self.log[self.replicated :]
        while self.stored and self.stored[-1][2] >= self.replicated:
            self.next_sequence = self.stored.pop()[0]
        self.data_end = max((at + 1 for at, value in enumerate(self.log) if value != HOLE), default=0)
        if not self.data_end:
            self.next_sequence = None


@dataclass
class Scene:
    """A source log, the target and two copiers of which one fills the holes."""

    source: list[bytes]
    ends: list[int]
    """Offsets at which a batch of the source ends: where a barrier may be."""
    target: Broker = field(default_factory=Broker)
    lanes: list[Lane] = field(default_factory=list)
    wire: list[list[Request]] = field(default_factory=lambda: [[], []])
    orphans: list[Request] = field(default_factory=list)
    barrier: int | None = None
    owner: int = 0
    """Who fills the holes."""
    term: int = 1
    late: list[tuple[int, int]] = field(default_factory=list)
    """Markers that an owner before has sent, by number and term, which come behind the next owner's first."""

    def start(self, who: int) -> None:
        """A new process in the place of a killed one, whose requests may still arrive."""
        self.orphans += self.wire[who]
        self.wire[who] = []
        self.lanes[who] = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
        self.lanes[who].barrier = self.barrier

    def act(self, who: int, what: str, much: int) -> None:
        lane = self.lanes[who]
        if what == "let_go":
            lane.let_go()  # also of what stands in a lane that has lost its place
        if lane.must_recover:
            tail = self.target
            tail.replicated = len(tail.log)
            lane.recovered(len(tail.log), tail.next_sequence or 0, tail.data_end)
        getattr(self, what)(who, lane, much)
        assert not lane.stopped, lane.problem
        assert self.barrier is None or len(self.target.log) <= self.barrier

    def read(self, who: int, lane: Lane, much: int) -> None:
        if lane.reads:
            found = [each for each, end in zip(self.source, self.ends, strict=True) if end > lane.read_at]
            lane.take(lane.read_at, fetched(b"".join(found[: much + 1])), 0)

    def send(self, who: int, lane: Lane, much: int) -> None:
        sent = lane.send_next(CONNECTION, 5)
        if sent is not None:
            self.wire[who].append(Request(sent.step, bytes(sent.step.view)))

    def answer(self, who: int, lane: Lane, much: int) -> None:
        if self.wire[who]:
            request = self.wire[who].pop(0)
            lane.answered(request.step, *self.target.produce(request))
            self.target.replicated = len(self.target.log)
            self.fill(who, lane, much, told=True)

    def pause(self, who: int, lane: Lane, much: int) -> None:
        lane.paused = not lane.paused

    def let_go(self, who: int, lane: Lane, much: int) -> None:
        lane.let_go()
        assert lane.queued_bytes == 0 or not (lane.paused and not lane.in_flight)

    def refuse(self, who: int, lane: Lane, much: int) -> None:
        if self.wire[who]:
            lane.answered(self.wire[who].pop(0).step, Code.NOT_ENOUGH_REPLICAS, -1)

    def disconnect(self, who: int, lane: Lane, much: int) -> None:
        """The first so many are stored, no answer comes for any."""
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

    def fill(self, who: int, lane: Lane, much: int, *, told: bool = False) -> None:
        """As `Mender.fill`: the log's end is looked at before, but where it was told (D), and always after."""
        hole = lane.hole_due() if who == self.owner else None
        if hole is None:
            return
        lane.fill()
        if not (told and lane.marked_under == self.term) and len(self.target.log) != hole.start:
            lane.fill_failed("moved", unknown=False)
            return
        if much == 9:
            lane.fill_failed("no answer", unknown=True)  # it has not arrived
            return
        assert self.target.mark(hole.end - hole.start, self.term) == 0
        assert len(self.target.log) == hole.end, "a marker in another place"
        if much == 8:
            lane.fill_failed("no answer", unknown=True)  # it has
        else:
            lane.filled(hole.end, self.term)

    def take_over(self, who: int, lane: Lane, much: int) -> None:
        """The other one owns the holes from now on; what its forerunner is just sending comes in time, or too late."""
        before = self.lanes[self.owner]
        hole = before.hole_due()
        if hole is not None and hole.start == len(self.target.log):
            before.fill()
            if much % 2:
                assert self.target.mark(hole.end - hole.start, self.term) == 0
            else:
                self.late.append((hole.end - hole.start, self.term))
            before.fill_failed("no answer", unknown=True)
        self.owner, self.term = 1 - self.owner, self.term + 1

    def come_late(self, who: int, lane: Lane, much: int) -> None:
        while self.late and self.late[0][1] < self.target.marked_under:
            assert self.target.mark(*self.late.pop(0)) == Code.TRANSACTION_COORDINATOR_FENCED

    def elect(self, who: int, lane: Lane, much: int) -> None:
        """A leader dies with what it alone held; nobody hears of what was on its way to it."""
        for each in (0, 1):
            self.disconnect(each, self.lanes[each], 0)
        self.orphans = []
        self.target.fail_over()

    def fence(self, who: int, lane: Lane, much: int) -> None:
        """A barrier at a batch's end, behind all that was sent, in the midst of what was read and merged."""
        if self.barrier is None:
            sent = [request.step.end for wire in (*self.wire, self.orphans) for request in wire]
            behind = max([len(self.target.log), *sent])
            ahead = [end for end in self.ends if end >= behind]
            self.set_barrier(ahead[much % len(ahead)])

    def set_barrier(self, offset: int | None) -> None:
        self.barrier = offset
        for lane in self.lanes:
            lane.barrier = offset

    def drain(self) -> None:
        """Nothing is lost from here on: the first copier alone comes to the end."""
        while self.orphans:
            self.target.produce(self.orphans.pop(0))
        self.owner, self.term = 0, self.term + 1
        self.lanes[0].paused = False
        end = self.ends[-1] if self.barrier is None else self.barrier
        for _ in range(100):
            for what in ("read", "send", "answer", "fill"):
                self.act(0, what, 3)
            if self.lanes[0].position == end == len(self.target.log) and not self.lanes[0].must_recover:
                break


ACTIONS = {
    "read": 6, "send": 8, "answer": 6, "fill": 3, "refuse": 1, "disconnect": 1, "kill": 1, "arrive": 2, "elect": 1,
    "fence": 0.3, "take_over": 0.7, "come_late": 1, "pause": 0.5, "let_go": 1,
}  # fmt: skip


def scene_of(dice: random.Random) -> tuple[Scene, list[bytes]]:
    """A source of small batches and some markers, and what the target must come to hold."""
    scene = Scene([], [])
    wanted: list[bytes] = []
    for _ in range(dice.randint(1, 30)):
        base, count = len(wanted), dice.randint(1, 4)
        if dice.random() < 0.15:
            scene.source.append(batch(base, 1, attributes=CONTROL | TRANSACTIONAL))
            wanted.append(HOLE)
        else:
            scene.source.append(data(base, count))
            wanted += [b"%d" % offset for offset in range(base, base + count)]
        scene.ends.append(len(wanted))
    scene.lanes = [Lane("t", 0, producer_id=77, epoch=0, hole_limit=100) for _ in range(2)]
    return scene, wanted


@pytest.mark.parametrize("seeds", [range(at, at + 100) for at in range(0, 600, 100)], ids=str)
def test_copiers_that_merge_in_different_places_write_the_source_log_once_and_in_order(seeds: range) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        scene, wanted = scene_of(dice)
        alone = dice.random() < 0.5
        with patch.object(merge, "_FEW", 2), patch.object(merge, "_FULL", 60):
            for what in dice.choices(list(ACTIONS), list(ACTIONS.values()), k=dice.randint(5, 150)):
                scene.act(0 if alone else dice.randrange(2), what, dice.randrange(10))
            scene.drain()
            if scene.barrier is not None:
                reached = scene.lanes[0].at_barrier, len(scene.target.log)
                assert reached == (scene.barrier, scene.barrier), f"seed {seed}"
                scene.set_barrier(None)
                scene.drain()
        assert scene.target.log == wanted, f"seed {seed}"
