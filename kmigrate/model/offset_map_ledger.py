"""Tracks which runs of a partition's offset map are stored in the map topic, and which must be stored next. Pure.

A run is stored before its first batch is sent, so that every record on the target has its run. The map is kept in
chunks under keys of their own, of which compaction keeps the newest value:

    <link uuid>/<topic>/<partition>/<term>/<number>  →  target topic id, runs

`term` is the term of the lease under which the chunk was written. A later term takes over the last chunk and continues
in chunks of its own. A reader folds terms in ascending order, and each chunk replaces everything at or beyond its first
run. So a late write of a process that lost its lease changes nothing, wherever in the log. A partition that begins anew
under the same term (a stop, a lost connection) numbers its chunks behind all others, with the same effect.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass

from kmigrate.errors import StateLogBroken
from kmigrate.model.offset_map import OffsetMap

__all__ = ["NEWER_MAP", "ChunkKey", "MapChunk", "MapLedger", "decode_chunk", "encode_chunk", "fold_chunks", "parse_key"]

NEWER_MAP = "newer-offset-map"
"""Reference of the error about a chunk that a newer version has written."""
_SCHEMA = 1
_TOP = 1 << 63
_RUNS = 512
"""Number of runs in a chunk; a chunk, some 2 kB, is written again whenever a run is added to it."""


@dataclass(frozen=True, slots=True, order=True)
class ChunkKey:
    """The key of a chunk; the order of keys is the order in which a partition's chunks are folded."""

    link_uuid: str
    topic: str
    partition: int
    term: int
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """Position of the chunk among the chunks of its partition."""
        return self.term, self.number

    def __str__(self) -> str:
        return f"{self.link_uuid}/{self.topic}/{self.partition}/{self.term}/{self.number}"


@dataclass(frozen=True, slots=True)
class MapChunk:
    """Encoded runs, and the target topic that the runs are about: a recreated topic has a map of its own."""

    target_topic_id: str
    runs: bytes


def parse_key(text: str) -> ChunkKey:
    """Return the key of a record in the map topic; raise StateLogBroken if kmigrate did not write the record."""
    try:
        uuid, topic, partition, term, number = text.split("/")
        numbers = int(partition), int(term), int(number)
        if not all(0 <= each < _TOP for each in numbers):
            raise ValueError(f"{text[:100]} names a number that no chunk has")
        return ChunkKey(uuid, topic, *numbers)
    except ValueError as error:
        raise _foreign(text, error) from error


def encode_chunk(chunk: MapChunk) -> bytes:
    runs = base64.b64encode(chunk.runs).decode()
    return json.dumps(
        {"schema": _SCHEMA, "target_topic_id": chunk.target_topic_id, "runs": runs}, separators=(",", ":")
    ).encode()


def decode_chunk(key: str, value: bytes) -> MapChunk:
    try:
        body = json.loads(value)
        if int(body["schema"]) > _SCHEMA:
            raise StateLogBroken(
                NEWER_MAP,
                f"the offset map {key} was written by a newer kmigrate",
                still_true="nothing was changed",
                next_step="use the newer version of kmigrate",
            )
        chunk = MapChunk(str(body["target_topic_id"]), base64.b64decode(body["runs"], validate=True))
        OffsetMap().extend(chunk.runs)  # raises for invalid runs, so that folding never meets them
        return chunk
    except (ArithmeticError, LookupError, RecursionError, ValueError, TypeError, binascii.Error) as error:
        raise _foreign(key, error) from error


def _foreign(key: str, error: Exception) -> StateLogBroken:
    return StateLogBroken(
        "foreign-offset-map",
        f"the offset map topic holds a record {key!r} that kmigrate did not write ({error!r})",
        still_true="nothing was changed",
        next_step="let only kmigrate's principal write that topic",
    )


def fold_chunks(chunks: Iterable[tuple[ChunkKey, MapChunk]], target_topic_id: str) -> OffsetMap:
    """Return the map that a partition's chunks make, by terms and numbers, without chunks about other target topics."""
    made = OffsetMap()
    for _, chunk in sorted((each for each in chunks if each[1].target_topic_id == target_topic_id), key=lambda c: c[0]):
        made.extend(chunk.runs)
    return made


class MapLedger:
    """The offset map of one lane: the planned runs, and how many of them are stored.

    The first chunk's `number` is behind all chunks of the term: overwriting a chunk would take its runs off the map.
    """

    def __init__(
        self,
        link_uuid: str,
        topic: str,
        partition: int,
        *,
        term: int,
        number: int = 0,
        target_topic_id: str,
        stored: OffsetMap,
    ) -> None:
        self.map = stored
        self.begins = term, number
        """Place of this ledger's first chunk; earlier chunks of other ledgers stand before this place."""
        self._key = (link_uuid, topic, partition, term)
        self._target_topic_id = target_topic_id
        self._first = max(0, len(stored) - 1) // _RUNS * _RUNS
        """Index of the first run in this ledger's first chunk; the last chunk of other ledgers is taken over."""
        self._chunks = 0
        """Number of this ledger's chunks that may be stored, including writes that were refused or broke off."""
        self._stored = self._first
        """Number of runs that are stored as they are here, except for later growth of the last run."""
        self._told = self._stored
        """Number of runs from the last `unwritten` that are still in the map: plans may be cut while being stored."""

    @property
    def dirty(self) -> bool:
        """True if planned runs are not stored yet."""
        return self._stored < len(self.map)

    def plan(self, source: int, target: int, count: int) -> None:
        """Add the records that will be sent next."""
        self.map.append(source, target, count)

    def is_stored(self, source: int) -> bool:
        """Return whether the run of a planned source offset is stored, so that its batch may be sent."""
        return self.map.index_of(source) < self._stored

    def cut(self, target_end: int) -> None:
        """Drop the plans beyond the end of the target's log; their stored chunks are replaced before the next send."""
        if target_end < self.map.target_end:
            self.map.cut(target_end)
            keep = max(0, len(self.map) - 1)
            self._first, self._stored = min(self._first, keep), min(self._stored, keep)
            self._told = min(self._told, keep)

    def adopt(self, others: OffsetMap) -> None:
        """Take over the runs of an earlier ledger beyond this map's end: that ledger's batches arrived late."""
        for run in others.runs():
            skip = max(0, self.map.target_end - run.target)
            if skip < run.length:
                self.map.append(run.source + skip, run.target + skip, run.length - skip)

    def unwritten(self) -> tuple[int, list[tuple[ChunkKey, MapChunk | None]]]:
        """Return the token that `written` takes afterwards, and the chunks to store now (None: delete the chunk).

        The last stored run is among them, because it may have grown. Chunks of cut plans are deleted first, in
        descending order: a reader after any of these writes finds no cut run behind the run that replaced it.
        """
        total = self._told = len(self.map)
        last = -(-(total - self._first) // _RUNS)
        from_ = max(0, self._stored - 1 - self._first) // _RUNS
        valid = min((self._stored - self._first) // _RUNS + 1, last)
        made: list[tuple[ChunkKey, MapChunk | None]] = [
            (self._name(number), None) for number in reversed(range(valid, self._chunks))
        ]
        for number in range(from_, last):
            first = self._first + number * _RUNS
            made.append((self._name(number), MapChunk(self._target_topic_id, self.map.encode(first, first + _RUNS))))
        self._chunks = max(self._chunks, last)
        return total, made

    def written(self, total: int) -> None:
        """Note that the chunks which `unwritten` returned are stored."""
        self._stored = self._told
        self._chunks = -(-(total - self._first) // _RUNS)

    def _name(self, number: int) -> ChunkKey:
        return ChunkKey(*self._key, self.begins[1] + number)
