"""Under which number a ledger begins, whatever became of those that its term wrote before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.tail import PlaceLostError
from kmigrate.errors import Unreachable
from kmigrate.model.mapledger import ChunkKey, MapChunk, encode_chunk
from kmigrate.model.offsetmap import OffsetMap, Run
from kmigrate.records.batch import Batch, walk
from kmigrate.records.build import one_record_batch
from kmigrate.state import offset_maps
from kmigrate.state.offset_maps import OffsetMaps


def chunk(source: int) -> MapChunk:
    return MapChunk("T", OffsetMap([Run(source, source, 1)]).encode())


def stored(key: ChunkKey, value: MapChunk | None) -> Batch:
    body = None if value is None else encode_chunk(value)
    data = one_record_batch(str(key).encode(), body, timestamp=0, producer_id=-1, epoch=-1, sequence=-1)
    return next(walk(memoryview(data)))


def maps_with(*written: tuple[ChunkKey, MapChunk | None]) -> OffsetMaps:
    """What has read these records of the topic."""
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
    """A leader that lost its disk was filled again once the topic was compacted: no partition has to stop for that."""
    gone, kept, new = (ChunkKey("u", "t", partition, 4, 0) for partition in range(3))
    logs = [[gone, kept], [kept, kept, new]]

    class Tail:
        """A first one whose place is lost behind what it has read, and one that finds it from the log's beginning."""

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
