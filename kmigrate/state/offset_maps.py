"""The map topic: the offset maps of all mapped partitions, as keyed chunks in one compacted topic on the target.

The link's uuid tells the records of a link apart. Plain appends are enough: a chunk of a late writer is void by its
term (`model/mapledger`). A reader follows the topic to its end and keeps the newest chunk of each key. A record that is
no chunk is a stray (`strays`): void, and counted. A map with a chunk of a newer version is unreadable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.producer import append_alone
from kmigrate.cluster.tail import PlaceLostError, Tail
from kmigrate.errors import Failed, StateLogBroken, Unreachable
from kmigrate.model.mapledger import (
    NEWER_MAP,
    ChunkKey,
    MapChunk,
    decode_chunk,
    encode_chunk,
    fold_chunks,
    parse_key,
)
from kmigrate.model.offsetmap import OffsetMap
from kmigrate.net.clock import now_ms
from kmigrate.protocol.codes import row
from kmigrate.records.batch import Batch
from kmigrate.records.build import one_record_batch, read_single_record
from kmigrate.state.strays import Strays

__all__ = ["MAP_TOPIC", "OffsetMaps"]

MAP_TOPIC = "__kmigrate_offset_maps"


class OffsetMaps:
    """The map topic on a cluster; a missing topic holds no map."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._chunks: dict[tuple[str, str, int], dict[ChunkKey, MapChunk]] = {}
        self._numbers: dict[tuple[str, str, int, int], int] = {}
        """Number of the next chunk, by partition and term: above every chunk that was read or is to be written."""
        self._newer: dict[tuple[str, str, int], StateLogBroken] = {}
        """Partitions with a chunk that this version cannot read."""
        self.strays = Strays()
        self._tail = self._new_tail()
        self._turn = asyncio.Lock()

    def folded(
        self,
        link_uuid: str,
        topic: str,
        partition: int,
        target_topic_id: str,
        target_start: int,
        *,
        before: tuple[int, int] | None = None,
    ) -> OffsetMap:
        """Return a partition's map as read so far; with `before`, use only the chunks before that place.

        The map leaves out all target offsets below `target_start`. An earlier mirror of the topic wrote those records.
        The map of that mirror should have been dropped when the topic was forgotten.
        """
        if (newer := self._newer.get((link_uuid, topic, partition))) is not None:
            raise newer
        chunks = self._chunks.get((link_uuid, topic, partition), {}).items()
        made = fold_chunks((c for c in chunks if before is None or c[0].place < before), target_topic_id)
        made.leave_out(target_start)
        return made

    def next_number(self, link_uuid: str, topic: str, partition: int, *, term: int) -> int:
        """Return the number of a new ledger's first chunk: above all chunks of its term, also chunks on their way."""
        return self._numbers.get((link_uuid, topic, partition, term), 0)

    def _note(self, key: ChunkKey) -> None:
        of = (key.link_uuid, key.topic, key.partition, key.term)
        self._numbers[of] = max(self._numbers.get(of, 0), key.number + 1)

    async def read_to_end(self) -> None:
        """Read every record that was stored before this call."""
        async with self._turn:
            if await self._client.topic(MAP_TOPIC) is None:
                return
            key = (MAP_TOPIC, 0)
            told = (await self._client.list_offsets({key: LATEST}))[key]
            if told.error:
                await self._client.refresh([MAP_TOPIC])
                raise Unreachable("map-topic-unreadable", f"the end of {MAP_TOPIC}: {row(told.error).name}")
            while self._tail.reached < told.offset:
                try:
                    await self._tail.poll(100)
                except PlaceLostError:  # only the present content of the log counts, as for a process that starts
                    self._chunks, self._newer, self.strays = {}, {}, Strays()
                    self._tail = self._new_tail()

    def _new_tail(self) -> Tail:
        return Tail(self._client, MAP_TOPIC, 0, self._take, purpose="map-read")

    def _take(self, batch: Batch) -> None:
        if batch.is_control or not batch.count:
            return
        try:
            self._take_chunk(batch)
        except StateLogBroken as newer:
            if newer.ref != NEWER_MAP:
                self.strays.note(batch, newer)
        except Exception as error:  # somebody else wrote this
            self.strays.note(batch, error)

    def _take_chunk(self, batch: Batch) -> None:
        name, value = read_single_record(batch)
        key = parse_key(name.decode())
        of = key.link_uuid, key.topic, key.partition
        try:
            chunk = None if value is None else decode_chunk(str(key), value)
        except StateLogBroken as newer:
            if newer.ref == NEWER_MAP:
                self._newer[of] = newer
            raise
        self._note(key)
        chunks = self._chunks.setdefault(of, {})
        if chunk is not None:
            chunks[key] = chunk
            return
        chunks.pop(key, None)
        if not chunks:
            del self._chunks[of]

    async def drop(self, link_uuid: str, topic: str) -> None:
        """Drop the maps of all partitions of a topic, newest chunks first.

        A concurrent reader finds a map that ends early, but never a map with a gap.
        """
        await self.read_to_end()
        keys = sorted((key for known in self._chunks.values() for key in known), reverse=True)
        await self.store((key, None) for key in keys if (key.link_uuid, key.topic) == (link_uuid, topic))

    async def store(self, chunks: Iterable[tuple[ChunkKey, MapChunk | None]]) -> None:
        """Write chunks in this order; all replicas acknowledge each chunk before the next; raise Failed."""
        chunks = list(chunks)
        for key, _ in chunks:
            self._note(key)
        for key, chunk in chunks:
            batch = one_record_batch(
                str(key).encode(),
                None if chunk is None else encode_chunk(chunk),
                timestamp=now_ms(),
                producer_id=-1,
                epoch=-1,
                sequence=-1,
            )
            answer = await append_alone(self._client, MAP_TOPIC, 0, batch, purpose="map-write")
            if answer.error:
                await self._client.refresh([MAP_TOPIC])
                kind = Unreachable if row(answer.error).retriable else Failed
                raise kind("map-not-stored", f"the offset map {key} was refused: {row(answer.error).name}")
