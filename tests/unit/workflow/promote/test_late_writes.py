"""Late writes: the watch finds records beyond the barrier, copies records where wanted, and reports them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.errors import Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import (
    LatePolicy,
    LateRecord,
    LateWrites,
    OnLate,
    PartitionBarrier,
    PromoteTerms,
    TopicRecord,
)
from kmigrate.protocol.hot import FetchedPartition
from kmigrate.workflow.promote import late_findings as late_read
from kmigrate.workflow.promote import late_writes as late
from kmigrate.workflow.promote.late_findings import LateFound, find_late, late_of
from kmigrate.workflow.promote.late_writes import LateWatch, late_producer_id, quarantine_topic, watched
from kmigrate.workflow.verbs.late import late_findings
from tests.fakes.finishing import FINISHED, LINK
from tests.fakes.state_log import MemoryLog
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch

PROMOTED = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, partitions=1, barrier={0: PartitionBarrier(100, 3)})


def wanting(on_late: OnLate) -> TopicRecord:
    return replace(PROMOTED, terms=PromoteTerms(1, late=LatePolicy(on_late=on_late)))


@dataclass
class Source:
    """A partition of the source, as its log from offset 100 on."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 100
    metadata: Any = field(default_factory=lambda: SimpleNamespace(topics={"t": None}))

    def write(self, count: int) -> None:
        self.batches.append(batch(self.end, count, producer=7))
        self.end += count

    def placed(self) -> list[tuple[int, bytes]]:
        """Return the batches with their base offsets."""
        return [(int.from_bytes(each[:8], "big"), each) for each in self.batches]

    async def log_ends(self, keys: Any) -> Any:
        return {key: LogOffset(0, self.end, 3) for key in keys}

    async def refresh(self, _: Any) -> None: ...

    def leader(self, *_: Any) -> int:
        return 1


@dataclass
class World:
    """A watch over a topic; appended batches are noted by topic and sequence."""

    record: TopicRecord
    source: Source = field(default_factory=Source)
    appended: list[tuple[str, int]] = field(default_factory=list)
    dies_after: int = 1_000
    batches_at_once: int = 1_000
    """Number of batches in a fetch answer of the source."""

    def __post_init__(self) -> None:
        self.log = MemoryLog(LINK, self.record)

    def look(self) -> LateWrites | None:
        async def source_of(_: Any) -> Any:
            return self.source, None

        watch = LateWatch(SimpleNamespace(log=self.log, source=source_of))  # type: ignore[arg-type]

        async def fetch(_: Any, __: int, part: Any, **___: Any) -> FetchedPartition:
            later = [each for at, each in self.source.placed() if at >= part.offset]
            data = b"".join(later[: self.batches_at_once])
            return FetchedPartition("t", 0, 0, self.source.end, self.source.end, 0, (), -1, memoryview(bytearray(data)))

        async def append(topic: str, _: int, view: memoryview) -> None:
            if len(self.appended) >= self.dies_after:
                raise asyncio.CancelledError
            self.appended.append((topic, int.from_bytes(view[53:57], "big")))

        async def make(*_: Any) -> None: ...

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(late_read, "fetch_one", fetch)
            patch.setattr(LateWatch, "_append", lambda _, *given: append(*given))
            patch.setattr(LateWatch, "_make", make)
            asyncio.run(watch.look(LINK, [self.record]))
        known = self.log.state.late("l", "t")
        return known.partitions[0] if known is not None else None


def test_a_source_that_stands_at_its_barrier_is_no_news() -> None:
    world = World(PROMOTED)
    assert world.look() is None
    assert len(world.log.history) == 2


def test_late_records_are_named_with_their_producer_and_stay_where_they_are() -> None:
    world = World(PROMOTED)
    world.source.write(3)
    found = world.look()
    assert found is not None
    assert (found.start, found.end, found.records, found.lost, found.producers) == (100, 103, 3, 3, ((7, 0),))
    world.source.write(2)
    found = world.look()
    assert found is not None
    assert (found.end, found.records, world.appended) == (105, 5, [])


@pytest.mark.parametrize(("on_late", "topic"), [(OnLate.COPY, "t"), (OnLate.QUARANTINE, "kmigrate-late-t")])
def test_late_records_go_where_a_person_wants_them(on_late: OnLate, topic: str) -> None:
    world = World(wanting(on_late))
    world.source.write(3)
    world.source.write(2)
    found = world.look()
    assert found is not None
    assert (found.handled, found.handled_to, found.lost) == (5, 105, 0)
    assert world.appended == [(topic, 0), (topic, 3)]
    world.source.write(1)
    world.look()
    assert world.appended[2:] == [(topic, 5)]


def test_a_long_backlog_is_told_to_the_state_log_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long backlog is written to the state log in portions.

    A look is given up after a minute, and the next look continues from the last portion.
    """
    monkeypatch.setattr(late, "_MOST_READS", 2)
    world = World(PROMOTED, batches_at_once=1)
    for _ in range(5):
        world.source.write(1)
    assert [found.read_to for found in (world.look(), world.look(), world.look()) if found is not None] == [
        102,
        104,
        105,
    ]


def test_a_source_that_tells_nothing_for_a_moment_is_asked_at_the_next_look() -> None:
    world = World(wanting(OnLate.COPY))
    world.source.write(3)
    world.log = MemoryLog(
        LINK, world.record, LateRecord("l", "t", {0: LateWrites(100, 103, 3, 103, 1, 1, handled_to=100)})
    )
    world.batches_at_once = 0
    found = world.look()
    assert found is not None and found.handled == 0
    world.batches_at_once = 9
    found = world.look()
    assert found is not None and found.handled == 3


def test_a_trouble_goes_with_what_it_was_about() -> None:
    async def no_source(_: Any) -> Any:
        raise AssertionError("nothing is looked at")

    watch = LateWatch(SimpleNamespace(log=MemoryLog(), source=no_source))  # type: ignore[arg-type]
    copied, alarmed = wanting(OnLate.COPY), replace(PROMOTED, topic="alarmed")
    watch.troubles = dict.fromkeys((LINK.key, copied.key, alarmed.key, "link/gone", "topic/l/gone"), "why")
    watch._forget_troubles([(LINK, [copied, alarmed])])
    assert set(watch.troubles) == {LINK.key, copied.key}
    watch._forget_troubles([(LINK, [])])
    assert not watch.troubles


def test_a_controller_that_dies_in_between_repeats_no_more_than_a_broker_remembers() -> None:
    world = World(wanting(OnLate.COPY), dies_after=7)
    for _ in range(10):
        world.source.write(1)
    with pytest.raises(asyncio.CancelledError):
        world.look()
    world.dies_after = 1_000
    world.look()
    sequences = [sequence for _, sequence in world.appended]
    assert sequences == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9]


def test_a_topic_is_watched_until_its_link_is_finished() -> None:
    assert watched(MemoryLog(LINK, PROMOTED).state, LINK) == [PROMOTED]
    assert watched(MemoryLog(FINISHED, PROMOTED).state, FINISHED) == []


def test_what_the_source_holds_beyond_the_barrier_is_late_though_no_controller_has_seen_it() -> None:
    (found,) = late_of(MemoryLog(LINK, PROMOTED).state, PROMOTED, {0: 104})
    assert (found.writes.start, found.writes.end, found.writes.unread, found.missing) == (100, 104, 4, True)
    assert "offsets 100 to 103" in found.text
    assert late_of(MemoryLog(LINK, PROMOTED).state, PROMOTED, {0: 100}) == ()


def read_now(monkeypatch: pytest.MonkeyPatch, end: int, *batches: bytes) -> LateFound:
    """Return the finding on a source that ends at `end` and that the watch has not read."""
    placed = [(int.from_bytes(each[:8], "big"), each) for each in batches]

    async def fetch(_: Any, __: int, part: Any, **___: Any) -> FetchedPartition:
        data = b"".join(each for at, each in placed if at >= part.offset)
        return FetchedPartition("t", 0, 0, end, end, 0, (), -1, memoryview(bytearray(data)))

    monkeypatch.setattr(late_read, "fetch_one", fetch)
    source: Any = Source(end=end)
    found, why = asyncio.run(find_late(MemoryLog(LINK, PROMOTED).state, source, [PROMOTED]))
    (told,) = found
    assert why == ""
    return told


def test_a_late_transaction_marker_is_no_missing_record_though_the_watch_has_not_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marker = batch(100, 1, producer=7, attributes=TRANSACTIONAL | CONTROL)
    told = read_now(monkeypatch, 101, marker)
    assert (told.writes.records, told.writes.unread, told.missing) == (0, 0, False)
    assert "no record that a reader sees" in told.text
    told = read_now(monkeypatch, 103, marker, batch(101, 2, producer=8))
    assert (told.writes.records, told.writes.unread, told.missing, told.writes.producers) == (2, 0, True, ((8, 0),))
    told = read_now(monkeypatch, 101, marker, batch(101, 2, producer=8))
    assert (told.writes.end, told.writes.records, told.missing) == (103, 2, True), "written while the source was asked"


def test_what_an_open_transaction_holds_back_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = read_now(monkeypatch, 105, batch(100, 1, producer=7, attributes=TRANSACTIONAL | CONTROL))
    assert (told.writes.records, told.writes.unread, told.missing) == (0, 4, True)


def test_late_offsets_that_cannot_be_read_now_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(*_: Any, **__: Any) -> FetchedPartition:
        raise Unreachable("broker-away", "gone")

    monkeypatch.setattr(late_read, "fetch_one", fetch)
    source: Any = Source(end=104)
    (told,) = asyncio.run(find_late(MemoryLog(LINK, PROMOTED).state, source, [PROMOTED]))[0]
    assert (told.writes.end, told.writes.unread, told.missing) == (104, 4, True)


def test_a_finish_is_refused_while_the_target_lacks_a_late_record() -> None:
    known = LateWrites(100, 103, 2, 103, 1, 1, producers=((7, 0),))
    log = MemoryLog(LINK, PROMOTED, LateRecord("l", "t", {0: known}))
    found = late_of(log.state, PROMOTED, {})
    assert [(each.level, each.ref) for each in late_findings("l", found, accepted=False)] == [("refuse", "late-writes")]
    assert [each.level for each in late_findings("l", found, accepted=True)] == ["warn"]
    log = MemoryLog(LINK, PROMOTED, LateRecord("l", "t", {0: replace(known, handled=2, handled_to=103)}))
    assert [each.level for each in late_findings("l", late_of(log.state, PROMOTED, {}), accepted=False)] == ["warn"]


def test_names_are_as_long_as_kafka_takes_them() -> None:
    assert quarantine_topic("t") == "kmigrate-late-t"
    assert len(quarantine_topic("t" * 249)) == 249
    assert quarantine_topic("t" * 249) != quarantine_topic("t" * 248 + "u")
    assert late_producer_id("u", "a") != late_producer_id("u", "b")
