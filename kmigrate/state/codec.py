"""Bytes of state-log records: an envelope around the record's JSON.

    {"schema": 2, "reader": 2, "at": offset, "prev": nonce of the record before, "nonce": own nonce, "record": {…}}

Where a key is dropped the value is null, that compaction may take it away, and the envelope, which has no record,
stands in the header `kmigrate`.

`schema` is the version of the shape it was written in, `reader` the lowest version that may act on it: what is newer
than we are, but says that we may, is read without the fields that we do not know.
`at` makes the log linearizable even where the broker forgot its producer state: a record that stands elsewhere
than it says is void.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kmigrate.errors import StateLogBroken
from kmigrate.model.presences import (
    ControllerPresence,
    FencedProgress,
    MirrorPresence,
    PartitionProgress,
    RouterPresence,
)
from kmigrate.model.record_json import Record, decode_part, decode_record, encode_record, number_of, plain
from kmigrate.model.records import LEAST_READER, SCHEMA
from kmigrate.state.strays import StrayRecordError, read_json

__all__ = [
    "ENVELOPE_HEADER",
    "NEWER_LOG",
    "Envelope",
    "Presence",
    "PresenceReader",
    "PresenceWriter",
    "Word",
    "Written",
    "decode_envelope",
    "encode_envelope",
    "read_envelope",
]

NEWER_LOG = "newer-state-log"
"""Reference of the error on a record that this version must not act on; this error ends a router, too."""
ENVELOPE_HEADER = b"kmigrate"
"""The header of a tombstone that holds its envelope."""

Presence = MirrorPresence | RouterPresence | ControllerPresence
Word = Presence | FencedProgress


@dataclass(frozen=True, slots=True)
class Envelope:
    """One record as it was written; `record` is None for a deletion."""

    at: int
    prev: str
    """Empty where offsets are missing behind the record before it, so that nobody can tell its nonce."""
    nonce: str
    record: Record | None


def encode_envelope(envelope: Envelope) -> bytes:
    """The value of a record; where a key is dropped, of the tombstone's header."""
    body: dict[str, object] = {
        "schema": SCHEMA,
        "reader": LEAST_READER,
        "at": envelope.at,
        "prev": envelope.prev,
        "nonce": envelope.nonce,
    }
    if envelope.record is not None:
        body["record"] = encode_record(envelope.record)
    return _text(body).encode()


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class PresenceWriter:
    """One process's words as JSON, over and over.

    A mirror tells of each of its partitions each time, of thousands at times, and most of them stand still: the words
    for a partition are kept for as long as it is the very same value that is to be said.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, _Said]] = {}
        """By link, topic and partition."""

    def write(self, record: Word) -> bytes:
        if not isinstance(record, MirrorPresence | FencedProgress):
            return _text(encode_record(record)).encode()
        rest = encode_record(replace(record, topics={}))
        del rest["topics"]
        before = self._kept.get(record.link, {})
        now = {topic: _said(before.get(topic, {}), partitions) for topic, partitions in record.topics.items()}
        self._kept[record.link] = now if isinstance(record, MirrorPresence) else {**before, **now}
        topics = ",".join(f"{json.dumps(topic)}:{{{_joined(said)}}}" for topic, said in now.items())
        return f'{_text(rest)[:-1]},"topics":{{{topics}}}}}'.encode()


    def forget(self, link: str) -> None:
        """Nothing more is said of a link."""
        self._kept.pop(link, None)


_Said = dict[int, tuple[PartitionProgress, str]]
"""The words for each partition of a topic."""


def _said(before: _Said, partitions: Mapping[int, PartitionProgress]) -> _Said:
    return {
        partition: kept
        if (kept := before.get(partition)) is not None and kept[0] is progress
        else (progress, f'"{partition}":{_text(plain(progress))}')
        for partition, progress in partitions.items()
    }


def _joined(said: _Said) -> str:
    return ",".join([words for _, words in said.values()])


class PresenceReader:
    """The processes' words out of JSON, over and over.

    Everybody hears each mirror tell of all of its partitions, of thousands at times: one that is told of as in the last
    word is the very same value again, for to compare what was said costs a tenth of reading it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, tuple[_Told, dict[int, PartitionProgress]]]] = {}
        """By link and instance of the mirror, and by topic."""

    def read(self, value: bytes) -> Record:
        """Return the word; raises StrayRecordError or ValueError where no process of kmigrate's can have said that.

        StateLogBroken where a newer version may have said so.
        """
        body = read_json(value)
        kind = body.get("kind")
        if not isinstance(kind, str):
            raise StrayRecordError("has no kind")
        told = _object(body.pop("topics", {})) if kind in _BY_PARTITION else {}
        record = decode_record(body)
        if not isinstance(record, MirrorPresence | FencedProgress):
            return record
        mirror = record.link, record.instance
        before = self._kept.get(mirror, {})
        now = {topic: _again(of, *before.get(topic, ({}, {}))) for topic, of in told.items()}
        self._kept[mirror] = now if isinstance(record, MirrorPresence) else {**before, **now}
        return replace(record, topics={topic: partitions for topic, (_, partitions) in now.items()})

    def forget(self, mirror: MirrorPresence) -> None:
        """Who said this is gone."""
        self._kept.pop((mirror.link, mirror.instance), None)


_BY_PARTITION = {MirrorPresence.__name__, FencedProgress.__name__}

_Told = dict[str, Any]
"""A topic's partitions as they were said."""


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StrayRecordError("has no object where one belongs")
    return value


def _again(
    said: _Told, said_before: _Told, before: dict[int, PartitionProgress]
) -> tuple[_Told, dict[int, PartitionProgress]]:
    """The partitions of one topic: the same values as before for those of which the same is said."""
    if said == said_before:
        return said_before, before
    now = {
        number_of(partition): before[number_of(partition)]
        if partition in said_before and said_before[partition] == words
        else decode_part(PartitionProgress, words)
        for partition, words in _object(said).items()
    }
    return said, now


@dataclass(frozen=True, slots=True)
class Written:
    """An envelope whose record is not decoded yet, with the place in the log that the writer meant."""

    at: int
    prev: str
    nonce: str
    schema: int
    reader: int
    record: Any
    """The record's JSON, None for a deletion."""

    def decoded(self) -> Envelope:
        """Return the envelope; StateLogBroken where this version must not act on the record, or cannot decode."""
        if self.reader > SCHEMA:
            raise StateLogBroken(
                NEWER_LOG,
                f"the state log was written by a newer kmigrate: schema {self.schema}, for readers of schema "
                f"{self.reader} and later; this one has {SCHEMA}",
                still_true="nothing was changed",
                next_step="use the newer version of kmigrate",
            )
        record = None if self.record is None else decode_record(self.record)
        return Envelope(self.at, self.prev, self.nonce, record)


def read_envelope(value: bytes, *, tombstone: bool = False) -> Written:
    """Return the envelope around a record; StrayRecordError where the bytes are no envelope."""
    body = read_json(value)
    try:
        schema = body["schema"]
        numbers = schema, body.get("reader", schema), body["at"]
        texts = body["prev"], body["nonce"]
        record = None if tombstone else body["record"]  # null, of a dropped key, up to schema 1
    except KeyError as missing:
        raise StrayRecordError(f"is no envelope: it has no {missing.args[0]}") from missing
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers) or not schema:
        raise StrayRecordError("is no envelope: its numbers are none")
    if not all(isinstance(each, str) for each in texts) or not isinstance(record, dict | None):
        raise StrayRecordError("is no envelope: its parts have other types")
    return Written(numbers[2], *texts, numbers[0], numbers[1], record)


def decode_envelope(value: bytes, *, tombstone: bool = False) -> Envelope:
    """Return an envelope with its record; raises StrayRecordError and StateLogBroken as the two steps do."""
    return read_envelope(value, tombstone=tombstone).decoded()
