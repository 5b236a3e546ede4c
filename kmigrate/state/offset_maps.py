"""The map topic: the offset maps of all mapped partitions, as keyed chunks in one compacted topic on the target.

Plain appends are enough: a late writer's chunk is void by its term (`model/offset_map_ledger`). A record that is no
chunk is a stray (`codec`): void, and counted. A map with a chunk of a newer version is unreadable. A reader follows the
topic to its end and keeps the newest chunk of each key; the link's uuid tells the records of a link apart.

Compaction keeps the newest record of a key, from any writer. So the owner of a map stores a chunk again that another
writer has overwritten (`mend`). The owner knows the bytes of its own chunks. Over a chunk of an earlier owner, the
owner recognises only a stray: a well-formed chunk or a tombstone may come from that earlier owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.fetch import PlaceLostError, Tail
from kmigrate.errors import Failed, ProtocolViolation, StateLogBroken, Unreachable
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.offset_map_ledger import (
    NEWER_MAP,
    ChunkKey,
    MapChunk,
    decode_chunk,
    encode_chunk,
    fold_chunks,
    parse_key,
)
from kmigrate.net.clock import now_ms
from kmigrate.protocol.codes import row
from kmigrate.records.batch import Batch
from kmigrate.records.build import one_record_batch, read_single_record
from kmigrate.records.rewrite import record_keys
from kmigrate.state.codec import Strays
from kmigrate.state.topics import MAP_TOPIC

__all__ = ["OffsetMaps"]

_MOST_UNPACKED = 16 << 20
"""Most bytes of a stray batch that are decompressed to find the keys."""

_Of = tuple[str, str, int]
"""Link uuid, topic and partition."""


class OffsetMaps:
    """The map topic on a cluster; a missing topic holds no map."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._chunks: dict[_Of, dict[ChunkKey, MapChunk]] = {}
        self._ours: dict[_Of, dict[ChunkKey, MapChunk | None]] = {}
        """Newest chunk that this process has stored, by key; None for a deleted chunk."""
        self._read: dict[ChunkKey, tuple[bytes | None, int]] = {}
        """Newest record under keys of `_ours`, with offset, until `mend`: decoding each costs as much as writing."""
        self._covered: set[ChunkKey] = set()
        """Keys whose newest record is a stray."""
        self._suspects: frozenset[ChunkKey] = frozenset()
        """Keys that the last call of `mend` found overwritten."""
        self._writing: dict[_Of, asyncio.Lock] = {}
        """Held during a write, so that no older chunk is stored after a newer chunk of the same key."""
        self._numbers: dict[tuple[str, str, int, int], int] = {}
        """Number of the next chunk, by partition and term: above every chunk that was read or is to be written."""
        self._newer: dict[_Of, StateLogBroken] = {}
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

        Target offsets below `target_start` are left out: an earlier mirror, whose map should be dropped, wrote them.
        """
        if (newer := self._newer.get((link_uuid, topic, partition))) is not None:
            raise newer
        of = link_uuid, topic, partition
        chunks = self._chunks.get(of, {}) | self._ours.get(of, {})
        stored = ((key, chunk) for key, chunk in chunks.items() if chunk is not None)
        made = fold_chunks((c for c in stored if before is None or c[0].place < before), target_topic_id)
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
            reported = (await self._client.list_offsets({key: LATEST}))[key]
            if reported.error:
                await self._client.refresh([MAP_TOPIC])
                raise Unreachable("map-topic-unreadable", f"the end of {MAP_TOPIC}: {row(reported.error).name}")
            while self._tail.reached < reported.offset:
                try:
                    await self._tail.poll(100)
                except PlaceLostError:  # only the present content of the log counts, as for a process that starts
                    self._chunks, self._newer, self.strays = {}, {}, Strays()
                    self._covered, self._read = set(), {}
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
                self._take_stray(batch, newer)
        except Exception as error:  # somebody else wrote this
            self._take_stray(batch, error)

    def _take_stray(self, batch: Batch, error: Exception) -> None:
        """Count a stray, and note the keys whose chunks compaction would remove."""
        self.strays.note(batch, error)
        with suppress(ProtocolViolation):
            for name in record_keys(batch, _MOST_UNPACKED):
                with suppress(StateLogBroken, ValueError):
                    key = parse_key((name or b"").decode())
                    if self._meant(key) is not None:
                        self._covered.add(key)

    def _take_chunk(self, batch: Batch) -> None:
        name, value = read_single_record(batch)
        key = parse_key(name.decode())
        of = _of(key)
        if key in self._ours.get(of, {}):
            self._read[key] = value, batch.base_offset
            self._covered.discard(key)
            return
        try:
            chunk = None if value is None else decode_chunk(str(key), value)
        except StateLogBroken as newer:
            if newer.ref == NEWER_MAP:
                self._newer[of] = newer
            raise
        self._note(key)
        self._covered.discard(key)
        chunks = self._chunks.setdefault(of, {})
        if chunk is not None:
            chunks[key] = chunk
            return
        chunks.pop(key, None)
        if not chunks:
            del self._chunks[of]

    async def drop(self, link_uuid: str, topic: str) -> None:
        """Drop the maps of a topic's partitions, newest chunks first: a reader may find an early end, but no gap."""
        await self.read_to_end()
        keys = sorted((key for known in self._chunks.values() for key in known), reverse=True)
        await self.store((key, None) for key in keys if (key.link_uuid, key.topic) == (link_uuid, topic))

    async def store(self, chunks: Iterable[tuple[ChunkKey, MapChunk | None]]) -> None:
        """Write chunks in this order; all replicas acknowledge each chunk before the next; raise Failed."""
        chunks = list(chunks)
        for key, _ in chunks:
            self._note(key)
        for key, chunk in chunks:
            async with self._lock_of(key):
                try:
                    await self._append(key, chunk)
                except BaseException:
                    self._disown(key)
                    raise
                self._ours.setdefault(_of(key), {})[key] = chunk

    def _disown(self, key: ChunkKey) -> None:
        """Forget which chunk this process stored under a key: from now on, the records that are read count."""
        self._ours.get(_of(key), {}).pop(key, None)
        if key not in self._read:
            return
        value, _ = self._read.pop(key)
        if value is None:
            self._chunks.get(_of(key), {}).pop(key, None)
            return
        try:
            self._chunks.setdefault(_of(key), {})[key] = decode_chunk(str(key), value)
        except StateLogBroken:
            self._covered.add(key)

    async def _append(self, key: ChunkKey, chunk: MapChunk | None) -> None:
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

    def _lock_of(self, key: ChunkKey) -> asyncio.Lock:
        return self._writing.setdefault(_of(key), asyncio.Lock())

    # chunks that another writer has overwritten

    async def mend(self, is_needed: Callable[[ChunkKey, MapChunk | None], bool]) -> list[ChunkKey]:
        """Store chunks again that another writer has overwritten, and return the keys; raise Failed.

        Only the maps' owner may call. `is_needed`: whether a chunk belongs to a present topic's map. A key is written
        at the second call that finds it overwritten: at the first, a write of this process may not be read back yet.
        """
        await self.read_to_end()
        overwritten = self._overwritten()
        found = {key for key in overwritten if is_needed(key, self._meant(key))}
        for key in overwritten - found:  # chunks of forgotten topics
            self._disown(key)
        again = sorted(found & self._suspects)
        self._suspects = frozenset(found)
        for key in again:
            async with self._lock_of(key):
                await self._append(key, self._meant(key))
            if key in self._read:
                self.strays.count += 1
                self.strays.offset, self.strays.why = self._read[key][1], "overwrites a chunk of an offset map"
        return again

    def _overwritten(self) -> set[ChunkKey]:
        """Return the keys whose newest record is not the chunk that belongs there."""
        for key, (value, _) in list(self._read.items()):
            meant = self._meant(key)
            if value == (None if meant is None else encode_chunk(meant)):
                del self._read[key]
                if meant is not None:
                    self._chunks.setdefault(_of(key), {})[key] = meant
                else:
                    self._chunks.get(_of(key), {}).pop(key, None)
        return {*self._read, *self._covered}

    def _meant(self, key: ChunkKey) -> MapChunk | None:
        """Return the chunk that belongs under a key; None for a deleted or unknown chunk."""
        ours, chunks = self._ours.get(_of(key), {}), self._chunks.get(_of(key), {})
        return ours[key] if key in ours else chunks.get(key)


def _of(key: ChunkKey) -> _Of:
    return key.link_uuid, key.topic, key.partition
