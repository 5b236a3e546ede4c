"""Two owners write the same mapped partition, and the former owner does not know about its successor.

The result is a single log and a single map, without loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.mirror.partition.lane import Sent
from kmigrate.mirror.partition.mapped import MappedLane
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.offset_map_ledger import ChunkKey, MapChunk, MapLedger, fold_chunks
from kmigrate.protocol.codes import Code
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched

CONNECTION = object()
MARKER = CONTROL | TRANSACTIONAL
BEFORE = 7
"""Number of offsets that the target topic held before the mirror."""


@dataclass
class Target:
    """A log that accepts only batches whose sequence follows, and the topic of offset maps."""

    log: list[int] = field(default_factory=list)
    """Source offset of each record of the mirror."""
    appends: list[tuple[int, int, int]] = field(default_factory=list)
    chunks: dict[ChunkKey, MapChunk] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return BEFORE + len(self.log)

    def produce(self, start: int, count: int, sequence: int) -> tuple[int, int]:
        for stored, length, base in self.appends[-5:]:
            if (stored, length) == (sequence, count):
                return 0, base
        if sequence != len(self.log):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        self.appends.append((sequence, count, self.end))
        self.log += range(start, start + count)
        return 0, self.appends[-1][2]

    def folded(self, before: tuple[int, int] | None = None) -> OffsetMap:
        made = fold_chunks(
            ((key, chunk) for key, chunk in self.chunks.items() if before is None or key.place < before), "T"
        )
        made.close(self.end)
        return made


@dataclass
class Owner:
    """A copier of the partition under a single lease term, with its unanswered requests."""

    term: int
    target: Target
    source: list[tuple[int, int, bool]]
    sure: bool = True
    """True while the lease is confirmed. Recovery waits for the confirmation; requests already begun continue."""
    lane: MappedLane = field(init=False)
    wire: list[tuple[Sent, int]] = field(default_factory=list)
    looked: tuple[int, int] | None = None
    """Log end of the target and next sequence, read by a recovery that is under way."""

    def __post_init__(self) -> None:
        self.lane = MappedLane("t", 0, producer_id=77, epoch=0, log_start=0, target_start=BEFORE, target_topic_id="T")

    def look(self) -> None:
        """Do the first half of a recovery as `Recovery` does.

        An earlier fetch may be answered before the second half.
        """
        it, target = self.lane, self.target
        if it.ledger is None:
            it.ledger = MapLedger("u", "t", 0, term=self.term, target_topic_id="T", stored=target.folded())
        it.stands_at(target.end, target.folded(it.ledger.begins))
        if target.log:
            assert it.ledger.map.to_source(target.end - 1) == (target.log[-1], True)
        self.looked = target.end, len(target.log)

    def recover(self) -> None:
        if self.looked is None:
            self.look()
        assert self.looked is not None
        (end, sequence), self.looked = self.looked, None
        self.lane.recovered(end, sequence, end)

    def store(self) -> None:
        ledger = self.lane.ledger
        assert ledger is not None
        token, chunks = ledger.unwritten()
        for key, chunk in chunks:
            if chunk is None:
                self.target.chunks.pop(key, None)
            else:
                self.target.chunks[key] = chunk
        ledger.written(token)

    def act(self, what: int) -> None:
        it = self.lane
        if what == 6:  # drop waiting records while the lane is paused or has lost its place
            it.drop_waiting()
            it.paused = not it.paused
            it.drop_waiting()
        if it.must_recover and self.sure:
            if what == 0 and self.looked is None:
                self.look()
            elif what:
                self.recover()
        if what == 0 and it.reads:
            found = [each for each in self.source if each[1] > it.source.read_at][
                :2
            ]  # owners may differ in what they read
            data = b"".join(
                batch(start, end - start, attributes=0 if is_data else MARKER) for start, end, is_data in found
            )
            it.take(it.source.read_at, fetched(data), 0)
        elif what == 1 and it.map_due:
            self.store()
        elif what in (2, 3):
            sent = it.send_next(CONNECTION, 5)
            if sent is not None:
                sequence = int.from_bytes(bytes(sent.step.view)[53:57], "big")
                self.wire.append((sent, sequence))
        elif what in (4, 5) and self.wire:
            self.deliver(lost=what == 5)

    def deliver(self, *, lost: bool) -> None:
        sent, sequence = self.wire.pop(0)
        error, base = self.target.produce(sent.step.start, sent.step.end - sent.step.start, sequence)
        if not lost:
            self.lane.answered(sent.step, error, base)
            return
        self.lane.unanswered(sent.step, "lost")
        for later, _ in self.wire:  # the connection is lost
            self.lane.unanswered(later.step, "lost")
        self.wire.clear()


@settings(max_examples=400)
@given(
    shape=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=3, max_size=12),
    alone=st.lists(st.integers(0, 6), max_size=40),
    both=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), min_size=20, max_size=150),
)
def test_the_log_comes_out_once_and_in_order_and_the_map_finds_every_record(
    shape: list[tuple[int, bool]], alone: list[int], both: list[tuple[int, int]]
) -> None:
    source, at = [], 0
    for count, is_data in shape:
        source.append((at, at + count, is_data))
        at += count
    target = Target()
    owners = [Owner(1, target, source), Owner(2, target, source)]
    for what in alone:
        owners[0].act(what)
    owners[0].sure = False
    for who, what in both:
        owners[who].act(what)
    owners[1].lane.paused = False
    for _ in range(100):  # then the owner alone reaches the end, without lost answers
        for what in (0, 1, 2, 4):
            owners[1].act(what)
    assert not owners[1].lane.report.problem
    assert target.log == [offset for start, end, is_data in source if is_data for offset in range(start, end)]
    assert owners[1].lane.target.position == at
    made = target.folded()
    for index, offset in enumerate(target.log):
        assert made.to_target(offset) == (BEFORE + index, True)
