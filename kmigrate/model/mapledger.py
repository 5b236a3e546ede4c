"""A partition's offset map on its way into the map topic: which runs are stored, what must be stored next. Pure.

A run is stored before its first batch is sent, so that no record ever stands on the target without its run. The map
is kept in chunks under keys of their own, which compaction reduces to the newest of each:

    <link uuid>/<topic>/<partition>/<term>/<number>  →  target topic id, runs

`term` is that of the lease under which they were written. A later term takes over the last chunk and goes on in its
own; a reader folds terms in ascending order, and each chunk replaces whatever stood at or beyond its first run. So
a late write of a process that lost its lease changes nothing, wherever it lands in the log. A partition that begins
anew under the same term, after a stop or a lost connection, does likewise: its chunks are numbered behind all others.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass

from kmigrate.errors import StateLogBroken
from kmigrate.model.offsetmap import OffsetMap

__all__ = ["NEWER_MAP", "ChunkKey", "MapChunk", "MapLedger", "decode_chunk", "encode_chunk", "fold_chunks", "parse_key"]

NEWER_MAP = "newer-offset-map"
"""Reference of the error on a chunk that a newer version has written."""
_SCHEMA = 1
_TOP = 1 << 63
_RUNS = 512
"""Runs in a chunk: a chunk is written again whenever one is added to it, some 2 kB."""


@dataclass(frozen=True, slots=True, order=True)
class ChunkKey:
    """The name of one chunk; sorts in the order in which chunks of a partition are folded."""

    link_uuid: str
    topic: str
    partition: int
    term: int
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """Where the chunk stands among those of its partition."""
        return self.term, self.number

    def __str__(self) -> str:
        return f"{self.link_uuid}/{self.topic}/{self.partition}/{self.term}/{self.number}"


@dataclass(frozen=True, slots=True)
class MapChunk:
    """Encoded runs, and the target topic that they are about: a topic made anew has a map of its own."""

    target_topic_id: str
    runs: bytes


def parse_key(text: str) -> ChunkKey:
    """The key of a record of the map topic; StateLogBroken where somebody else wrote it."""
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
        OffsetMap().extend(chunk.runs)  # whoever folds chunks must not meet runs that are none
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
    """The map that chunks of one partition make, in the order of their terms and numbers."""
    made = OffsetMap()
    for _, chunk in sorted((each for each in chunks if each[1].target_topic_id == target_topic_id), key=lambda c: c[0]):
        made.extend(chunk.runs)
    return made


class MapLedger:
    """One lane's map: what is planned, and how much of it is stored.

    `number` is that of its first chunk, behind all that were ever written under its term: one of those written over
    would take its runs out of the map.
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
        """Place of this ledger's first chunk: all that other ledgers wrote before it stands before that."""
        self._key = (link_uuid, topic, partition, term)
        self._target_topic_id = target_topic_id
        self._first = max(0, len(stored) - 1) // _RUNS * _RUNS
        """Index of the first run of this ledger's first chunk: the last chunk of the others is taken over."""
        self._chunks = 0
        """Chunks of this ledger that may be stored, with what was refused or broke off."""
        self._stored = self._first
        """Runs that are stored as they are here, but for the growth of the last one."""
        self._told = self._stored
        """Of the runs that `unwritten` has told, those still here: plans are cut also while they are stored."""

    @property
    def dirty(self) -> bool:
        """Whether runs are planned that are not stored."""
        return self._stored < len(self.map)

    def plan(self, source: int, target: int, count: int) -> None:
        """These records will be sent next."""
        self.map.append(source, target, count)

    def is_stored(self, source: int) -> bool:
        """Whether the run of a planned source offset is stored, so that its batch may go."""
        return self.map.index_of(source) < self._stored

    def cut(self, target_end: int) -> None:
        """The target's log ends here: plans beyond are void, and what was stored of them goes before the next send."""
        if target_end < self.map.target_end:
            self.map.cut(target_end)
            keep = max(0, len(self.map) - 1)
            self._first, self._stored = min(self._first, keep), min(self._stored, keep)
            self._told = min(self._told, keep)

    def adopt(self, others: OffsetMap) -> None:
        """Take over the runs of an earlier ledger beyond our own end: its batches arrived late, but they arrived."""
        for run in others.runs():
            skip = max(0, self.map.target_end - run.target)
            if skip < run.length:
                self.map.append(run.source + skip, run.target + skip, run.length - skip)

    def unwritten(self) -> tuple[int, list[tuple[ChunkKey, MapChunk | None]]]:
        """What must be stored now (None: deleted), and the token that `written` takes afterwards.

        The last stored run belongs to it: it may have grown before a new one began. Chunks of plans that were cut go
        first, the last of them before the others: whoever reads after any of these writes finds none behind a run
        that took its place.
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
        """What `unwritten` told is stored."""
        self._stored = self._told
        self._chunks = -(-(total - self._first) // _RUNS)

    def _name(self, number: int) -> ChunkKey:
        return ChunkKey(*self._key, self.begins[1] + number)
