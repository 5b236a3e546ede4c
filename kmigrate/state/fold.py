"""How a reader turns the state log's batches into a `State`, pure.

Invariants:
A  A record counts only where `at` equals the offset; elsewhere the record is void, and the key's last valid value
   must be appended again by the next writer, because compaction would keep the void record. A record without an
   envelope is a stray (`strays`): void in whatever shape, and counted. A live key that a stray stands under, or may
   stand under, is repaired, too.
B  `prev` names the last valid record before it. Where offsets are missing in between nobody can compare, and who writes
   behind them names none; where none is missing, another name is a break. A record that names the valid record before
   was written by kmigrate: a version that cannot read such a record stops there.
C  The sequence after the newest batch of the state log's own producer is the only sequence that the broker accepts
   next (compare-and-set). The fold reads that sequence from the batch's header and never counts. Sequences of other
   producers say nothing.
D  Compaction takes a dropped key's tombstone away, too, long after it was written. So who has read the log to its end
   and then finds offsets missing cannot know what was dropped there: he reads the log anew, from its beginning. What
   he then finds may be more than he knew, and less, but no other record at an offset of which he knew one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from kmigrate.errors import ProtocolViolation, StateLogBroken
from kmigrate.model.record_json import Record
from kmigrate.model.state import State
from kmigrate.records.batch import Batch, next_sequence
from kmigrate.records.build import read_header, read_single_record
from kmigrate.records.rewrite import record_keys
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, Written, read_envelope
from kmigrate.state.strays import StrayRecordError, Strays

__all__ = ["CompactedUnreadError", "Fold", "state_producer_id"]


def state_producer_id(topic: str) -> int:
    """Return 2^62 + a hash of the topic's name: the same for every writer, allocated by nobody (M5)."""
    return (1 << 62) + int.from_bytes(hashlib.sha256(topic.encode()).digest()[:7])


class CompactedUnreadError(Exception):
    """Offsets are gone that who follows the log had not read (invariant D)."""


@dataclass(slots=True)
class Fold:
    """The running fold; `repairs` are keys whose newest record is void (invariant A)."""

    producer_id: int
    """The state log's own producer (invariant C)."""
    following: bool = False
    """Whether the log was read to its end once (invariant D)."""
    next_offset: int = 0
    sequence: int = 0
    producer_epoch: int = 0
    """Epoch of the state log's own producer. kmigrate never raises this epoch, but somebody else may have."""
    last_nonce: str = ""
    """Of the last valid record; empty where offsets are missing behind it."""
    repairs: set[str] = field(default_factory=set)
    nonces: dict[int, str] = field(default_factory=dict)
    """Nonces of recent valid records by offset, so that a writer can recognise its own."""
    strays: Strays = field(default_factory=Strays)
    _state: State = field(default_factory=State)
    _newer: dict[str, Record | None] = field(default_factory=dict)
    """What was read since anybody asked for the state, which who opens a long log does once."""
    _epoch: int = -1
    """Of the newest valid record, or of what is missing behind it: others may have read one there, and wait for who
    has read as far."""
    _stays: bool = False
    """Whether the newest batch is a valid record with a value: compaction leaves it there until there is another."""

    @property
    def state(self) -> State:
        if self._newer or self._state.epoch < self._epoch:
            self._state = self._state.with_records(self._newer, self._epoch)
            self._newer = {}
        return self._state

    def take(self, batch: Batch) -> None:
        """Fold one batch in."""
        offset = batch.base_offset
        if offset != self.next_offset or batch.count == 0:  # brokers keep a producer's newest batch without its record
            if self.following:
                raise CompactedUnreadError(f"{self.next_offset} to {batch.last_offset}")
            self.last_nonce = ""
            self._epoch = max(self._epoch, batch.last_offset if batch.count == 0 else offset - 1)
        if batch.count and not batch.is_control:
            self._take_record(batch)
        self.next_offset = batch.next_offset
        if batch.producer_id == self.producer_id:
            self._follow_producer(batch)

    def _follow_producer(self, batch: Batch) -> None:
        if batch.is_control:  # an epoch that a marker has raised begins with sequence 0 (V3, M2)
            if batch.producer_epoch > self.producer_epoch:
                self.sequence = 0
        elif batch.base_sequence >= 0:
            self.sequence = next_sequence(batch.base_sequence, batch.last_offset_delta + 1)
        self.producer_epoch = max(self.producer_epoch, batch.producer_epoch)

    def pass_over(self, end: int) -> None:
        """The log was read to this offset; no batch may have been left up to it."""
        if end > self.next_offset:
            self.next_offset, self._epoch, self.last_nonce = end, max(self._epoch, end - 1), ""

    def _take_record(self, batch: Batch) -> None:
        try:
            key, written, is_value = _written(batch)
        except (StrayRecordError, ProtocolViolation) as stray:
            self._void(batch, stray)
            return
        if written.at != batch.base_offset:
            if self._lives(key) or len(self.repairs) < _MOST_OF_GONE:
                self.repairs.add(key)
            self._stays = False
            return
        envelope = self._chained(batch, written)
        if envelope is None:
            return
        self.last_nonce = envelope.nonce
        self._stays = is_value
        self.repairs.discard(key)
        self._newer[key], self._epoch = envelope.record, batch.base_offset
        self.nonces[batch.base_offset] = envelope.nonce
        if len(self.nonces) > 4096:
            for old in sorted(self.nonces)[:2048]:
                del self.nonces[old]

    def _chained(self, batch: Batch, written: Written) -> Envelope | None:
        """Return the envelope of a record in the chain; None for a stray that names the right offset."""
        named = bool(self.last_nonce) and written.prev == self.last_nonce
        try:
            envelope = written.decoded()
        except StateLogBroken as broken:
            if named or broken.ref != "malformed-record":
                raise
            self._void(batch, broken)  # nothing says that kmigrate wrote it
            return None
        if self.last_nonce and not named and (written.prev or self._stays):
            raise StateLogBroken(
                "forked-state-log",
                f"the record at offset {batch.base_offset} of the state log follows another record than the one "
                "before it",
                still_true="no decision was taken on it",
                next_step="stop every kmigrate process and look at the log (docs/state-log.md)",
            )
        return envelope

    def _void(self, batch: Batch, error: Exception) -> None:
        """Pass over a stray, and note the live keys that compaction would lose."""
        self.strays.note(batch, error)
        self._stays = False
        try:
            keys = {key.decode("utf-8", "replace") for key in record_keys(batch, _MOST_UNPACKED) if key is not None}
        except ProtocolViolation:  # nobody can tell, so that it may be each of them
            keys = {*self.state.records, *(key for key, record in self._newer.items() if record is not None)}
        self.repairs.update(key for key in keys if self._lives(key))

    def _lives(self, key: str) -> bool:
        return self._newer[key] is not None if key in self._newer else key in self._state.records

    def contradicts(self, before: Fold) -> bool:
        """Whether another record stands in the log than was read at its offset before."""
        return any(self.nonces.get(offset, nonce) != nonce for offset, nonce in before.nonces.items())

    def repair(self) -> tuple[str, Record | None] | None:
        """A key that must be written again before anything else, with its last valid value."""
        for key in sorted(self.repairs):
            return key, self.state.records.get(key)
        return None


def _written(batch: Batch) -> tuple[str, Written, bool]:
    """Return a record's key, envelope, and whether there is a value; raises for what kmigrate never writes."""
    key, value = read_single_record(batch)
    if batch.is_transactional:
        raise StrayRecordError("is part of a transaction")
    try:
        text = key.decode()
    except ValueError as error:
        raise StrayRecordError("has a key that is no text") from error
    if value is not None:
        return text, read_envelope(value), True
    envelope = read_header(batch, ENVELOPE_HEADER)
    if envelope is None:
        raise StrayRecordError("is a bare tombstone")
    return text, read_envelope(envelope, tombstone=True), False


_MOST_OF_GONE = 1000
"""Keys to repair from which on none is taken up that no valid record has: anybody can make such keys up."""
_MOST_UNPACKED = 16 << 20
"""Bytes of a stray batch that are unpacked for its keys."""
