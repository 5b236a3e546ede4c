"""The number with which a ledger begins, whatever became of the chunks that the same term wrote before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.fetch import PlaceLostError
from kmigrate.errors import Unreachable
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.offset_map_ledger import ChunkKey, MapChunk, encode_chunk
from kmigrate.records.batch import Batch, walk
from kmigrate.records.build import one_record_batch, read_single_record
from kmigrate.state import offset_maps
from kmigrate.state.offset_maps import OffsetMaps
from tests.unit.state.test_fold import compressed


def chunk(source: int) -> MapChunk:
    return MapChunk("T", OffsetMap([Run(source, source, 1)]).encode())


def stored(key: ChunkKey, value: MapChunk | None) -> Batch:
    body = None if value is None else encode_chunk(value)
    data = one_record_batch(str(key).encode(), body, timestamp=0, producer_id=-1, epoch=-1, sequence=-1)
    return next(walk(memoryview(data)))


def maps_with(*written: tuple[ChunkKey, MapChunk | None]) -> OffsetMaps:
    """Return maps that have read these records of the topic."""
    made = OffsetMaps(cast("ClusterClient", None))
    for key, value in written:
        made._take(stored(key, value))
    return made


def test_a_number_is_not_given_again_within_a_term_though_its_chunk_was_deleted() -> None:
    maps = maps_with(
        (ChunkKey("u", "t", 0, 4, 0), chunk(0)),
        (ChunkKey("u", "t", 0, 4, 1), chunk(5)),
        (ChunkKey("u", "t", 0, 4, 1), None),
        (ChunkKey("u", "t", 0, 3, 7), chunk(0)),
        (ChunkKey("u", "t", 1, 4, 9), chunk(0)),
    )
    assert maps.next_number("u", "t", 0, term=4) == 2
    assert maps.next_number("u", "t", 0, term=3) == 8
    assert maps.next_number("u", "t", 0, term=5) == 0


def test_nor_though_its_write_got_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*_: object, **__: object) -> Any:
        raise Unreachable("unreachable", "gone")

    monkeypatch.setattr(offset_maps, "append_alone", no_answer)
    maps = maps_with((ChunkKey("u", "t", 0, 4, 0), chunk(0)))
    with pytest.raises(Unreachable):
        asyncio.run(maps.store([(ChunkKey("u", "t", 0, 4, 1), chunk(5)), (ChunkKey("u", "t", 0, 4, 2), chunk(9))]))
    assert maps.next_number("u", "t", 0, term=4) == 3


def test_what_was_stored_before_a_ledger_is_that_of_its_own_term_too() -> None:
    maps = maps_with(*((ChunkKey("u", "t", 0, 4, number), chunk(number * 5)) for number in range(3)))
    assert list(maps.folded("u", "t", 0, "T", 0, before=(4, 2)).runs()) == [Run(0, 0, 1), Run(5, 5, 1)]
    assert len(maps.folded("u", "t", 0, "T", 0)) == 3
    assert next(maps.folded("u", "t", 0, "T", 5).runs()).target >= 5


def test_the_maps_of_a_topic_are_dropped_from_their_ends_and_no_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [ChunkKey("u", "t", 0, 4, 0), ChunkKey("u", "t", 0, 4, 1), ChunkKey("u", "t", 1, 3, 0)]
    others = [ChunkKey("v", "t", 0, 4, 0), ChunkKey("u", "another", 0, 4, 0)]
    maps = maps_with(*((key, chunk(0)) for key in (*keys, *others)))
    stored: list[tuple[ChunkKey, MapChunk | None]] = []

    async def store(chunks: Iterable[tuple[ChunkKey, MapChunk | None]]) -> None:
        stored.extend(chunks)

    async def read_to_end() -> None: ...

    monkeypatch.setattr(maps, "store", store)
    monkeypatch.setattr(maps, "read_to_end", read_to_end)
    asyncio.run(maps.drop("u", "t"))
    assert stored == [(key, None) for key in reversed(keys)]


def test_who_finds_his_place_in_the_maps_gone_reads_what_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that lost its disk copied the compacted topic from other brokers: no partition has to stop for that."""
    gone, kept, new = (ChunkKey("u", "t", partition, 4, 0) for partition in range(3))
    logs = [[gone, kept], [kept, kept, new]]

    class Tail:
        """A reader that loses its place in the log, then a reader that starts at the log's beginning."""

        def __init__(self, _c: object, _t: str, _p: int, take: Callable[[Batch], None], **_: object) -> None:
            self.take, self.keys, self.reached = take, logs.pop(0), 0

        async def poll(self, _: int) -> None:
            if self.reached == len(self.keys):
                raise PlaceLostError("log-cut", "not there")
            self.take(stored(self.keys[self.reached], chunk(0)))
            self.reached += 1

    class Client:
        end = 2

        async def topic(self, _: str) -> SimpleNamespace:
            return SimpleNamespace()

        async def list_offsets(self, wanted: dict[Any, int]) -> dict[Any, LogOffset]:
            return {key: LogOffset(0, self.end, 0) for key in wanted}

    async def scene() -> list[int]:
        monkeypatch.setattr(offset_maps, "Tail", Tail)
        client = Client()
        maps = OffsetMaps(cast("ClusterClient", client))
        await maps.read_to_end()
        client.end = 3
        await maps.read_to_end()
        return [len(maps.folded("u", "t", partition, "T", 0)) for partition in range(3)]

    assert asyncio.run(scene()) == [0, 1, 1]


class Topic:
    """The map topic: appended records are read back at the next read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[bytes, bytes | None]] = []
        self.fails = False
        self.maps = OffsetMaps(cast("ClusterClient", None))
        self._taken = 0

        async def append_alone(_c: object, _t: str, _p: int, data: Any, **_: object) -> Any:
            name, value = read_single_record(next(walk(memoryview(data))))
            self.log.append((name, value))
            if self.fails:
                raise Unreachable("no-answer", "none within 30 s")
            return SimpleNamespace(error=0)

        async def read_to_end() -> None:
            for offset, (name, value) in enumerate(self.log[self._taken :], self._taken):
                data = one_record_batch(name, value, timestamp=0, producer_id=-1, epoch=-1, sequence=-1)
                data[0:8] = offset.to_bytes(8, "big")
                self.maps._take(next(walk(memoryview(data))))
            self._taken = len(self.log)

        monkeypatch.setattr(offset_maps, "append_alone", append_alone)
        monkeypatch.setattr(self.maps, "read_to_end", read_to_end)

    def store(self, key: ChunkKey, value: MapChunk | None) -> None:
        asyncio.run(self.maps.store([(key, value)]))

    def somebody_writes(self, key: ChunkKey, value: bytes | None) -> None:
        self.log.append((str(key).encode(), value))

    def mends(self, *, needed: bool = True) -> list[ChunkKey]:
        return asyncio.run(self.maps.mend(lambda key, chunk: needed))

    def newest(self, key: ChunkKey) -> bytes | None:
        """Return the record of a key that compaction leaves."""
        return dict(self.log)[str(key).encode()]

    def runs(self) -> list[Run]:
        return list(self.maps.folded("u", "t", 0, "T", 0).runs())


OURS, THEIRS = ChunkKey("u", "t", 0, 4, 0), ChunkKey("u", "t", 0, 3, 0)
RUBBISH = [b"", b"\xff", b"7", b'{"schema": 99, "target_topic_id": "T", "runs": ""}', b"[" * 100_000]


@pytest.mark.parametrize("value", [*RUBBISH, None, encode_chunk(chunk(77))])
def test_a_chunk_that_somebody_overwrites_is_stored_again_by_its_owner(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None
) -> None:
    topic = Topic(monkeypatch)
    topic.store(OURS, chunk(0))
    topic.store(OURS, chunk(5))
    assert topic.mends() == []
    topic.somebody_writes(OURS, value)
    assert topic.mends() == [], "it may be a write of our own that was not read back yet"
    assert topic.runs() == [Run(5, 5, 1)], "the map that is told is that which was stored"
    assert topic.mends() == [OURS]
    assert topic.newest(OURS) == encode_chunk(chunk(5))
    assert topic.maps.strays.count == 1
    assert (topic.mends(), topic.mends(), len(topic.log)) == ([], [], 4)
    assert topic.runs() == [Run(5, 5, 1)]


@pytest.mark.parametrize("value", [each for each in RUBBISH if b"schema" not in each])
def test_a_stray_over_an_earlier_owners_chunk_is_overwritten_by_that_chunk(
    monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    topic = Topic(monkeypatch)
    topic.somebody_writes(THEIRS, encode_chunk(chunk(0)))
    topic.somebody_writes(THEIRS, value)
    assert (topic.mends(), topic.mends()) == ([], [THEIRS])
    assert topic.newest(THEIRS) == encode_chunk(chunk(0))
    assert (topic.mends(), topic.runs()) == ([], [Run(0, 0, 1)])


def test_a_chunk_that_was_deleted_stays_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    topic.store(OURS, chunk(0))
    topic.store(OURS, None)
    topic.somebody_writes(OURS, encode_chunk(chunk(0)))
    assert (topic.mends(), topic.mends(), topic.newest(OURS)) == ([], [OURS], None)
    assert (topic.mends(), topic.runs()) == ([], [])


def test_a_map_that_is_not_needed_or_another_processs_is_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was forgotten, and the same process deletes the chunks."""
    topic = Topic(monkeypatch)
    topic.store(OURS, chunk(0))
    assert topic.mends() == []
    topic.somebody_writes(OURS, None)
    assert (topic.mends(needed=False), topic.mends(needed=False)) == ([], [])
    assert (topic.newest(OURS), topic.runs()) == (None, [])
    assert topic.mends() == [], "what was deleted is known as deleted"


@pytest.mark.parametrize("read_before", [False, True])
def test_after_a_write_of_unknown_outcome_what_stands_in_the_log_counts(
    monkeypatch: pytest.MonkeyPatch, read_before: bool
) -> None:
    topic = Topic(monkeypatch)
    topic.store(OURS, chunk(0))
    if read_before:
        topic.mends()
    topic.fails = True
    with pytest.raises(Unreachable):
        topic.store(OURS, chunk(5))
    assert (topic.mends(), topic.mends()) == ([], [])
    assert topic.runs() == [Run(5, 5, 1)]
    topic.fails = False
    topic.store(OURS, chunk(9))
    assert (topic.mends(), topic.mends(), topic.runs()) == ([], [], [Run(9, 9, 1)])


def test_a_compressed_batch_of_strays_covers_each_chunk_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch)
    topic.store(OURS, chunk(0))
    topic.somebody_writes(THEIRS, encode_chunk(chunk(3)))
    topic.mends()
    topic.maps._take(compressed(7, str(OURS).encode(), b"\xff", b"u/t/x/y/z", str(THEIRS).encode()))
    assert (topic.mends(), topic.mends()) == ([], [THEIRS, OURS])
