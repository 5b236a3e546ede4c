"""Bytes of state-log records: an envelope around the record's JSON.

    {"schema": 4, "at": offset, "prev": nonce of the previous record, "nonce": own nonce, "record": {…}}

A dropped key has a null value, so that compaction can remove the key; its envelope, without a record, stands in the
header `kmigrate`. `schema` is the version of the record's format: a version of kmigrate reads its own format alone, and
refuses all others by name. `at` makes the log linearizable even if the broker forgot its producer state: a record at
another offset than `at` is void.

Every client with the permission to write kmigrate's topics may put anything there. A record that kmigrate did not write
is a stray, void for every reader: the record decides nothing, and ends no process. `status`, `doctor` and metrics count
and name strays, because an operator has to keep their writer out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kmigrate.errors import KmigrateError, StateLogBroken
from kmigrate.model.presences import (
    ControllerPresence,
    FencedProgress,
    MirrorPresence,
    PartitionProgress,
    RehearsalPresence,
    RouterPresence,
)
from kmigrate.model.record_json import Record, decode_part, decode_record, encode_record, number_of, plain
from kmigrate.model.records import SCHEMA
from kmigrate.records.batch import Batch
from kmigrate.state.parts import Part, PartReader, PartWriter

__all__ = [
    "ENVELOPE_HEADER",
    "NEWER_LOG",
    "OLDER_LOG",
    "Envelope",
    "Presence",
    "PresenceReader",
    "PresenceWriter",
    "Report",
    "StrayRecordError",
    "Strays",
    "Written",
    "encode_envelope",
    "read_envelope",
    "read_json",
    "why_stray",
]

_LONGEST_WHY = 120
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrayRecordError(Exception):
    """A record that kmigrate did not write, and the reason for that verdict."""


@dataclass(slots=True)
class Strays:
    """The number of stray records of a topic, with offset and reason of the newest."""

    count: int = 0
    offset: int = -1
    why: str = ""

    def note(self, batch: Batch, error: Exception) -> None:
        """Count the records of a stray batch."""
        self.count += max(1, batch.count)
        self.offset, self.why = batch.base_offset, why_stray(error)

    def text(self, topic: str) -> str:
        """Return the strays in words, '' if there are none."""
        if not self.count:
            return ""
        return (
            f"topic {topic} holds {self.count:,} records that kmigrate did not write; the newest, at offset "
            f"{self.offset}, {self.why}. They count for nothing"
        )


def why_stray(error: Exception) -> str:
    """Return why a record is stray, in a few printable words: the record's content may be anything."""
    text = error.what if isinstance(error, KmigrateError) else str(error)
    words = f"{text}" if isinstance(error, StrayRecordError) else f"cannot be read ({type(error).__name__}: {text})"
    return ascii(words[:_LONGEST_WHY])[1:-1]


def read_json(value: bytes) -> dict[str, Any]:
    """Return a record's JSON object; raise StrayRecordError also for NaN and half surrogates, which break readers."""
    try:
        body = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # nested too deeply for the parser
        raise StrayRecordError("is no JSON") from error
    if not isinstance(body, dict):
        raise StrayRecordError("is no JSON object")
    if _SURROGATE.search(value):
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except ValueError as error:
            raise StrayRecordError("holds half a surrogate pair") from error
    return body


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of kmigrate's")


NEWER_LOG, OLDER_LOG = "newer-state-log", "older-state-log"
"""References of the errors for a record of another version's format; these errors end a router, too."""
ENVELOPE_HEADER = b"kmigrate"
"""The header of a tombstone that holds the tombstone's envelope."""

Presence = MirrorPresence | RouterPresence | ControllerPresence | RehearsalPresence
Report = Presence | FencedProgress


@dataclass(frozen=True, slots=True)
class Envelope:
    """A record with its envelope; `record` is None for a deletion."""

    at: int
    prev: str
    """Nonce of the previous valid record; empty if unknown, because offsets are missing behind that record."""
    nonce: str
    record: Record | None


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the value of a record, or the header of a tombstone if the envelope has no record."""
    body: dict[str, object] = {
        "schema": SCHEMA,
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
    """Writes a process's presences as JSON; keeps the JSON of the many partitions with an unchanged progress object."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, _KeptPartitions]] = {}
        """The kept JSON by link, topic and partition."""
        self._parts = PartWriter()

    def stored(self, key: str) -> None:
        """Note that the bytes written last for a key are stored."""
        self._parts.stored(key)

    def write(self, record: Report) -> bytes:
        """Return the JSON of a presence, or of the next part of a large presence."""
        if isinstance(record, MirrorPresence | RouterPresence):
            record, part = self._parts.divide(record)
            if part is not None:
                return _text({**encode_record(record), _PART: plain(part)}).encode()
        if not isinstance(record, MirrorPresence | FencedProgress):
            return _text(encode_record(record)).encode()
        rest = encode_record(replace(record, topics={}))
        del rest["topics"]
        before = self._kept.get(record.link, {})
        now = {
            topic: _kept_partitions(before.get(topic, {}), partitions) for topic, partitions in record.topics.items()
        }
        self._kept[record.link] = now if isinstance(record, MirrorPresence) else {**before, **now}
        topics = ",".join(f"{json.dumps(topic)}:{{{_joined(kept_topic)}}}" for topic, kept_topic in now.items())
        return f'{_text(rest)[:-1]},"topics":{{{topics}}}}}'.encode()

    def forget(self, presence: MirrorPresence) -> None:
        """Drop what is kept of a link for which this process announces nothing more."""
        self._kept.pop(presence.link, None)
        self._parts.forget(presence.key)


_KeptPartitions = dict[int, tuple[PartitionProgress, str]]
"""Progress and JSON of each partition of a topic."""


def _kept_partitions(before: _KeptPartitions, partitions: Mapping[int, PartitionProgress]) -> _KeptPartitions:
    return {
        partition: kept
        if (kept := before.get(partition)) is not None and kept[0] is progress
        else (progress, f'"{partition}":{_text(plain(progress))}')
        for partition, progress in partitions.items()
    }


def _joined(kept: _KeptPartitions) -> str:
    return ",".join([text for _, text in kept.values()])


class PresenceReader:
    """Reads the presences of all processes from JSON.

    Comparing the JSON of thousands of partitions costs a tenth of decoding, so equal JSON keeps the object.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, tuple[_PartitionsJson, dict[int, PartitionProgress]]]] = {}
        """The kept values by link and instance of the mirror, and by topic."""
        self._parts = PartReader()

    def read(self, value: bytes) -> Record:
        """Return the presence; raise StrayRecordError or ValueError for a stray, StateLogBroken for a newer version."""
        body = read_json(value)
        place = body.pop(_PART, None)
        if place is None:
            record = self._read_whole(body)
            if isinstance(record, MirrorPresence | RouterPresence):
                self._parts.forget(record.key)
            return record
        record = decode_record(body)
        if not isinstance(record, MirrorPresence | RouterPresence):
            raise StrayRecordError("is a part of something that is never divided")
        return self._parts.put_together(record, decode_part(Part, place))

    def _read_whole(self, body: dict[str, Any]) -> Record:
        kind = body.get("kind")
        if not isinstance(kind, str):
            raise StrayRecordError("has no kind")
        topics = _object(body.pop("topics", {})) if kind in _BY_PARTITION else {}
        record = decode_record(body)
        if not isinstance(record, MirrorPresence | FencedProgress):
            return record
        mirror = record.link, record.instance
        before = self._kept.get(mirror, {})
        now = {topic: _decoded(of, *before.get(topic, ({}, {}))) for topic, of in topics.items()}
        self._kept[mirror] = now if isinstance(record, MirrorPresence) else {**before, **now}
        return replace(record, topics={topic: partitions for topic, (_, partitions) in now.items()})

    def forget(self, presence: Presence) -> None:
        """Drop the kept values of a process that is gone."""
        self._parts.forget(presence.key)
        if isinstance(presence, MirrorPresence):
            self._kept.pop((presence.link, presence.instance), None)


_PART = "part"
"""The field that makes a presence a part of a large presence (`state.parts`)."""
_BY_PARTITION = {MirrorPresence.__name__, FencedProgress.__name__}

_PartitionsJson = dict[str, Any]
"""The JSON of a topic's partitions."""


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StrayRecordError("has no object where one belongs")
    return value


def _decoded(
    json_now: _PartitionsJson, json_before: _PartitionsJson, before: dict[int, PartitionProgress]
) -> tuple[_PartitionsJson, dict[int, PartitionProgress]]:
    """Return the partitions of a topic; a partition with the same JSON as before keeps its object."""
    if json_now == json_before:
        return json_before, before
    now = {
        number_of(partition): before[number_of(partition)]
        if partition in json_before and json_before[partition] == progress
        else decode_part(PartitionProgress, progress)
        for partition, progress in _object(json_now).items()
    }
    return json_now, now


@dataclass(frozen=True, slots=True)
class Written:
    """An envelope with an undecoded record, and the offset that the writer expected."""

    at: int
    prev: str
    nonce: str
    schema: int
    record: Any
    """The record's JSON; None for a deletion."""

    def decoded(self) -> Envelope:
        """Return the envelope; raise StateLogBroken if the record has another format, or cannot be decoded."""
        if self.schema != SCHEMA:
            newer = self.schema > SCHEMA
            raise StateLogBroken(
                NEWER_LOG if newer else OLDER_LOG,
                f"the state log was written by {'a newer' if newer else 'an older'} kmigrate: schema {self.schema}; "
                f"this one has {SCHEMA}",
                still_true="nothing was changed",
                next_step="use the version of kmigrate that wrote the log, until its links are finished and deleted",
            )
        record = None if self.record is None else decode_record(self.record)
        return Envelope(self.at, self.prev, self.nonce, record)


def read_envelope(value: bytes, *, tombstone: bool = False) -> Written:
    """Return the envelope around a record; raise StrayRecordError if the bytes are no envelope."""
    body = read_json(value)
    try:
        schema = body["schema"]
        numbers = schema, body["at"]
        texts = body["prev"], body["nonce"]
        record = None if tombstone else body["record"]
    except KeyError as missing:
        raise StrayRecordError(f"is no envelope: it has no {missing.args[0]}") from missing
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers) or not schema:
        raise StrayRecordError("is no envelope: its numbers are none")
    ours = isinstance(record, dict) or tombstone or schema != SCHEMA
    if not all(isinstance(each, str) for each in texts) or not ours:
        raise StrayRecordError("is no envelope: its parts have other types")
    return Written(body["at"], *texts, schema, record)
