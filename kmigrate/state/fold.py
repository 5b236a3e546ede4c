"""The fold: turns the state log's batches into a `State`, without I/O.

Invariants:
A  A record counts only if `at` equals its offset. Otherwise the record is void, and the next writer must append the
   key's last valid value again, because compaction would keep the void record. A record without an envelope, or by
   another producer id than the state log's own, is a stray (`codec`): always void, and counted. The next writer also
   repairs a live key that a stray has or may have.
B  `prev` names the nonce of the last valid record before; behind missing offsets it names none, because no reader can
   compare. If no offset is missing, another nonce is a break, and every reader stops: two writers have decided on two
   histories, because the log was cut in between. A writer that forges the producer id, too, looks the same. A record
   with the right `prev` was written by kmigrate: a version that cannot read that record stops there.
C  The broker accepts only the sequence after the newest batch of the state log's own producer (compare-and-set). The
   fold reads that sequence from the batch's header and never counts. Sequences of other producers say nothing.
D  Compaction also removes a dropped key's tombstone, long after the write. A reader that has read to the end and then
   finds missing offsets cannot know which keys were dropped there, and reads the log again from the beginning. The new
   read may hold more records or fewer, but never another record at a known offset.
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
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, StrayRecordError, Strays, Written, read_envelope

__all__ = ["CompactedUnreadError", "Fold", "state_producer_id"]


def state_producer_id(topic: str) -> int:
    """Return 2^62 + a hash of the topic's name: the same id for every writer, allocated by no broker (M5)."""
    return (1 << 62) + int.from_bytes(hashlib.sha256(topic.encode()).digest()[:7])


class CompactedUnreadError(Exception):
    """Offsets are gone that a following reader had not read (invariant D)."""


@dataclass(slots=True)
class Fold:
    """The running fold; `repairs` are keys with a void newest record (invariant A)."""

    producer_id: int
    """Producer id of the state log's own producer (invariant C)."""
    following: bool = False
    """True if the log was read to its end once (invariant D)."""
    next_offset: int = 0
    sequence: int = 0
    producer_epoch: int = 0
    """Epoch of the state log's own producer. kmigrate never raises this epoch, but somebody else may have done so."""
    last_nonce: str = ""
    """Nonce of the last valid record; empty if offsets are missing behind that record."""
    repairs: set[str] = field(default_factory=set)
    nonces: dict[int, str] = field(default_factory=dict)
    """Nonces of recent valid records by offset, so that a writer can recognise its own record."""
    strays: Strays = field(default_factory=Strays)
    _state: State = field(default_factory=State)
    _newer: dict[str, Record | None] = field(default_factory=dict)
    """Records read since `state` was last accessed: while a long log is opened, that is once, at the end."""
    _epoch: int = -1
    """Offset of the newest valid record, or of a later missing offset, for which other processes may wait."""
    _stays: bool = False
    """True if the newest batch is a valid record with a value: compaction keeps such a record until the next record."""

    @property
    def state(self) -> State:
        """The state after all batches so far."""
        if self._newer or self._state.epoch < self._epoch:
            self._state = self._state.with_records(self._newer, self._epoch)
            self._newer = {}
        return self._state

    def take(self, batch: Batch) -> None:
        """Fold a batch in."""
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
        if batch.is_control:  # a marker raised the epoch: sequences begin at 0 (V3, M2)
            if batch.producer_epoch > self.producer_epoch:
                self.sequence = 0
        elif batch.base_sequence >= 0:
            self.sequence = next_sequence(batch.base_sequence, batch.last_offset_delta + 1)
        self.producer_epoch = max(self.producer_epoch, batch.producer_epoch)

    def pass_over(self, end: int) -> None:
        """Note that the log was read to offset `end`; no batch may be left below `end`."""
        if end > self.next_offset:
            self.next_offset, self._epoch, self.last_nonce = end, max(self._epoch, end - 1), ""

    def _take_record(self, batch: Batch) -> None:
        try:
            key, written, is_value = self._written(batch)
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

    def _written(self, batch: Batch) -> tuple[str, Written, bool]:
        """Return a record's key, envelope, and if there is a value; raise for records that kmigrate never writes."""
        key, value = read_single_record(batch)
        if batch.is_transactional:
            raise StrayRecordError("is part of a transaction")
        if batch.producer_id != self.producer_id:
            raise StrayRecordError("was written by another producer than kmigrate's")
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

    def _chained(self, batch: Batch, written: Written) -> Envelope | None:
        """Return the envelope of a record in the chain; None for a stray that names the right offset."""
        named = bool(self.last_nonce) and written.prev == self.last_nonce
        try:
            envelope = written.decoded()
        except StateLogBroken as broken:
            if named or broken.ref != "malformed-record":
                raise
            self._void(batch, broken)  # nothing says that kmigrate wrote the record
            return None
        if self.last_nonce and not named and (written.prev or self._stays):
            raise StateLogBroken(
                "forked-state-log",
                f"the record at offset {batch.base_offset} of the state log follows another record than the one "
                "before it",
                still_true="no decision was taken on it",
                next_step="stop mirrors and controllers, let routers run, and look at the log (docs/state-log.md)",
            )
        return envelope

    def _void(self, batch: Batch, error: Exception) -> None:
        """Skip a stray, and note the live keys that compaction would lose."""
        self.strays.note(batch, error)
        self._stays = False
        try:
            keys = {key.decode("utf-8", "replace") for key in record_keys(batch, _MOST_UNPACKED) if key is not None}
        except ProtocolViolation:  # the keys are unknown, so any live key may be among them
            keys = {*self.state.records, *(key for key, record in self._newer.items() if record is not None)}
        self.repairs.update(key for key in keys if self._lives(key))

    def _lives(self, key: str) -> bool:
        return self._newer[key] is not None if key in self._newer else key in self._state.records

    def contradicts(self, before: Fold) -> bool:
        """Return whether the log holds another record at an offset than the fold `before` read there."""
        return any(self.nonces.get(offset, nonce) != nonce for offset, nonce in before.nonces.items())

    def repair(self) -> tuple[str, Record | None] | None:
        """Return a key that must be written again before any other record, with the key's last valid value."""
        for key in sorted(self.repairs):
            return key, self.state.records.get(key)
        return None


_MOST_OF_GONE = 1000
"""Number of keys to repair above which a key without a valid record is ignored: anybody can invent such keys."""
_MOST_UNPACKED = 16 << 20
"""Most bytes of a stray batch that are decompressed to find the keys."""
