"""How a reader turns the state log's batches into a `State`, pure.

Invariants:
A  A record counts only where its `at` equals its offset; elsewhere it is void, and the key's last valid value
   must be appended again by the next writer, because compaction would keep the void one.
B  `prev` names the last valid record before it. Where offsets are missing in between nobody can compare, and who writes
   behind them names none; where none is missing, another name is a break.
C  The sequence after the newest batch's is the only one the broker accepts next (compare-and-set): it is read
   from that batch's header, never counted.
D  Compaction takes a dropped key's tombstone away, too, long after it was written. So who has read the log to its end
   and then finds offsets missing cannot know what was dropped there: he reads the log anew, from its beginning. What
   he then finds may be more than he knew, and less, but no other record at an offset of which he knew one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.errors import StateLogBroken
from kmigrate.model.record_json import Record
from kmigrate.model.state import State
from kmigrate.records.batch import Batch, next_sequence
from kmigrate.records.build import read_header, read_single_record
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, decode_envelope

__all__ = ["CompactedUnreadError", "Fold"]


class CompactedUnreadError(Exception):
    """Offsets are gone that who follows the log had not read (invariant D)."""


@dataclass(slots=True)
class Fold:
    """The running fold; `repairs` are keys whose newest record is void (invariant A)."""

    following: bool = False
    """Whether the log was read to its end once (invariant D)."""
    next_offset: int = 0
    sequence: int = 0
    last_nonce: str = ""
    """Of the last valid record; empty where offsets are missing behind it."""
    repairs: set[str] = field(default_factory=set)
    nonces: dict[int, str] = field(default_factory=dict)
    """Nonces of recent valid records by offset, so that a writer can recognise its own."""
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
        if batch.base_sequence >= 0:
            self.sequence = next_sequence(batch.base_sequence, batch.last_offset_delta + 1)

    def pass_over(self, end: int) -> None:
        """The log was read to this offset; no batch may have been left up to it."""
        if end > self.next_offset:
            self.next_offset, self._epoch, self.last_nonce = end, max(self._epoch, end - 1), ""

    def _take_record(self, batch: Batch) -> None:
        offset = batch.base_offset
        key_bytes, value = read_single_record(batch)
        key = key_bytes.decode("utf-8", "replace")
        envelope = decode_envelope(value) if value is not None else _of_tombstone(batch)
        if envelope.at != offset:
            self.repairs.add(key)
            self._stays = False
            return
        if self.last_nonce and envelope.prev != self.last_nonce and (envelope.prev or self._stays):
            raise StateLogBroken(
                "forked-state-log",
                f"the record at offset {offset} of the state log follows another record than the one before it",
                still_true="no decision was taken on it",
                next_step="stop every kmigrate process and look at the log (docs/state-log.md)",
            )
        self.last_nonce = envelope.nonce
        self._stays = value is not None
        self.repairs.discard(key)
        self._newer[key], self._epoch = envelope.record, offset
        self.nonces[offset] = envelope.nonce
        if len(self.nonces) > 4096:
            for old in sorted(self.nonces)[:2048]:
                del self.nonces[old]

    def contradicts(self, before: Fold) -> bool:
        """Whether another record stands in the log than was read at its offset before."""
        return any(self.nonces.get(offset, nonce) != nonce for offset, nonce in before.nonces.items())

    def repair(self) -> tuple[str, Record | None] | None:
        """A key that must be written again before anything else, with its last valid value."""
        for key in sorted(self.repairs):
            return key, self.state.records.get(key)
        return None


def _of_tombstone(batch: Batch) -> Envelope:
    envelope = read_header(batch, ENVELOPE_HEADER)
    if envelope is None:
        raise StateLogBroken("foreign-tombstone", f"the state log holds a bare tombstone at offset {batch.base_offset}")
    return decode_envelope(envelope, tombstone=True)
