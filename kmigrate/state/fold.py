"""How a reader turns the state log's batches into a `State`, pure.

Invariants:
A  A record counts only where its `at` equals its offset; elsewhere it is void, and the key's last valid value
   must be appended again by the next writer, because compaction would keep the void one.
B  `prev` names the last valid record before it; with no offsets missing in between, another name is a break.
C  The sequence after the newest batch's is the only one the broker accepts next (compare-and-set): it is read
   from that batch's header, never counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.errors import StateLogBroken
from kmigrate.model.record_json import Record
from kmigrate.model.state import State
from kmigrate.records.batch import Batch, next_sequence
from kmigrate.records.build import read_single_record
from kmigrate.state.codec import decode_envelope

__all__ = ["Fold"]


@dataclass(slots=True)
class Fold:
    """The running fold; `repairs` are keys whose newest record is void (invariant A)."""

    state: State = field(default_factory=State)
    next_offset: int = 0
    sequence: int = 0
    last_nonce: str = ""
    repairs: set[str] = field(default_factory=set)
    nonces: dict[int, str] = field(default_factory=dict)
    """Nonces of recent valid records by offset, so that a writer can recognise its own."""
    _contiguous_from: int = 0

    def take(self, batch: Batch) -> None:
        """Fold one batch in."""
        if batch.is_control or batch.count == 0:
            self._skip(batch)
            return
        offset = batch.base_offset
        key_bytes, value = read_single_record(batch)
        if offset != self.next_offset:
            self._contiguous_from = offset  # compacted offsets: the chain cannot be checked across them
        key = key_bytes.decode("utf-8", "replace")
        if value is None:
            raise StateLogBroken("foreign-tombstone", f"the state log holds a bare tombstone at offset {offset}")
        envelope = decode_envelope(value)
        if envelope.at != offset:
            self.repairs.add(key)
        else:
            if self.last_nonce and self._contiguous_from < offset and envelope.prev != self.last_nonce:
                raise StateLogBroken(
                    "forked-state-log",
                    f"the record at offset {offset} of the state log follows another record than the one before it",
                    still_true="no decision was taken on it",
                    next_step="stop every kmigrate process and look at the log (docs/state-log.md)",
                )
            self.last_nonce = envelope.nonce
            self.repairs.discard(key)
            self.state = self.state.with_record(key, envelope.record, offset)
            self.nonces[offset] = envelope.nonce
            if len(self.nonces) > 4096:
                for old in sorted(self.nonces)[:2048]:
                    del self.nonces[old]
        self._skip(batch)

    def _skip(self, batch: Batch) -> None:
        self.next_offset = batch.next_offset
        if batch.base_sequence >= 0:
            self.sequence = next_sequence(batch.base_sequence, batch.last_offset_delta + 1)

    def repair(self) -> tuple[str, Record | None] | None:
        """A key that must be written again before anything else, with its last valid value."""
        for key in sorted(self.repairs):
            return key, self.state.records.get(key)
        return None
