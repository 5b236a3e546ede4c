"""Histories of a state log that is compacted while processes write and read: all readers agree.

The cleaner is modelled on Kafka's. Of each key only the newest record stays, void or not. A tombstone is marked in the
first pass that reaches the tombstone, and goes in a later pass. The newest batch of all stays, emptied at most, until
its producer is forgotten. The log relies on two limits of the cleaner. Records younger than `min.compaction.lag.ms`
stay, so that a void record is repaired before the valid record beneath goes. A marked tombstone stays until all readers
that began to open the log before the mark have finished (`delete.retention.ms`).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from kmigrate.model.records import LeaseRecord
from kmigrate.records.batch import HEADER_SIZE, Batch, next_sequence, walk
from kmigrate.records.build import one_record_batch
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, encode_envelope
from kmigrate.state.fold import CompactedUnreadError, Fold

KEYS = ("lease/a", "lease/b")


@dataclass
class Stored:
    """A batch as stored in the log."""

    offset: int
    key: str
    data: bytearray
    tombstone: bool
    marked: int = -1
    """The cleaner's pass in which the tombstone was marked."""
    empty: bool = False

    def read(self) -> Batch:
        return next(walk(memoryview(self.data)))


@dataclass
class Reader:
    """A reader that folds the log; `began` is the cleaner's pass after which the reader opened the log."""

    began: int
    fold: Fold = field(default_factory=lambda: Fold(9))


class History:
    """A log, its readers and writers, and the state that the log should hold."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log: list[Stored] = []
        self.end = 0
        self.truth: dict[str, LeaseRecord] = {}
        self.void: dict[str, int] = {}
        """Keys whose newest record is void, with the offset of the first void record."""
        self.readers = [Reader(0)]
        self.passes = 0
        self.nonces = 0
        self.decided = -1
        """Offset of the newest valid record; processes that have read that record wait for the other processes."""
        self.seen: Counter[str] = Counter()
        """Counts of rare events, so that histories without any such event are noticed."""

    def step(self) -> None:
        act = self.chance.choices((self.write, self.read, self.clean, self.open, self.write_late), (6, 3, 3, 1, 1))
        act[0]()
        for reader in self.readers:
            if reader.fold.next_offset == self.end:
                assert dict(reader.fold.state.records) == self.truth
                if self.log and self.log[-1].offset == self.end - 1:
                    assert reader.fold.sequence == self._expected_sequence(), "the broker would refuse it"
            if reader.fold.following:
                assert reader.fold.state.epoch >= self.decided or reader.fold.next_offset < self.end

    # the broker

    def _store(self, key: str, envelope: Envelope, sequence: int) -> None:
        text = encode_envelope(envelope)
        tombstone = envelope.record is None
        data = one_record_batch(
            key.encode(),
            None if tombstone else text,
            header=(ENVELOPE_HEADER, text) if tombstone else None,
            timestamp=1,
            producer_id=9,
            epoch=0,
            sequence=sequence,
        )
        data[0:8] = self.end.to_bytes(8, "big")
        self.log.append(Stored(self.end, key, data, tombstone))
        self.end += 1

    def _expected_sequence(self) -> int:
        return next_sequence(self.log[-1].read().base_sequence, 1) if self.log else 0

    def clean(self) -> None:
        """Run some passes of the cleaner over the log, up to some offset."""
        share = self.chance.randint(1, 4)
        for _ in range(self.chance.randint(1, 3)):
            self.passes += 1
            self._clean(share)

    def _clean(self, share: int) -> None:
        young = min((at for key, at in self.void.items() if key in self.truth), default=self.end)
        until = min(self.end * share // 4, young)
        newest = {each.key: each.offset for each in self.log if each.offset < until and not each.empty}
        began = min((each.began for each in self.readers if not each.fold.following), default=self.passes)
        kept: list[Stored] = []
        for each in self.log:
            stays = each.offset >= until or (not each.empty and newest[each.key] == each.offset)
            if stays and each.offset < until and each.tombstone:
                if each.marked < 0:
                    each.marked = self.passes
                stays = each.marked == self.passes or each.marked > began
            if stays:
                kept.append(each)
                continue
            self.seen["a tombstone was taken away"] += each.tombstone and not each.empty
            if each.offset == self.end - 1 and each.empty and self.chance.random() < 0.5:
                self.seen["no batch was left up to the end"] += 1
            elif each.offset == self.end - 1:
                head = each.data[:HEADER_SIZE]
                head[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
                head[57:61] = bytes(4)
                kept.append(replace(each, data=head, empty=True))
        self.log = kept

    # readers

    def open(self) -> None:
        if len(self.readers) < 3:
            self.readers.append(Reader(self.passes))

    def read(self) -> None:
        self._read(self.chance.choice(self.readers), self.chance.choice((1, 3, 100)))

    def _read(self, reader: Reader, batches: int) -> None:
        fold = reader.fold
        try:
            for each in [each for each in self.log if each.offset >= fold.next_offset][:batches]:
                fold.take(each.read())
        except CompactedUnreadError:
            assert {each.offset for each in self.log if not each.empty} < set(range(self.end))
            self.seen["a follower read anew"] += 1
            self.readers[self.readers.index(reader)] = Reader(self.passes)
            return
        if not fold.following and not any(each.offset >= fold.next_offset for each in self.log):
            fold.pass_over(self.end)
            fold.following = True

    # writers

    def write(self) -> None:
        """Write as a process that has read the whole log; some writes drop the key."""
        reader = self.chance.choice(self.readers)
        self._read(reader, len(self.log))
        fold = reader.fold
        if fold.next_offset < self.end:
            return
        key, record = fold.repair() or self._something("w")
        self.nonces += 1
        offset, nonce = self.end, str(self.nonces)
        self.seen["behind a tombstone that was gone"] += bool(self.end and not fold.last_nonce)
        self._store(key, Envelope(offset, fold.last_nonce, nonce, record), fold.sequence)
        self.void.pop(key, None)
        self.truth.pop(key, None)
        if isinstance(record, LeaseRecord):
            self.truth[key] = record
        self.decided = offset
        self._read(reader, 1)
        assert fold.nonces[offset] == nonce, "who reads back his nonce has written"

    def _something(self, who: str) -> tuple[str, LeaseRecord | None]:
        key = self.chance.choice(KEYS)
        return key, LeaseRecord(key, who, self.chance.randint(1, 9)) if self.chance.random() < 0.5 else None

    def write_late(self) -> None:
        """Write as a process that has not read the newest records, at a broker that has forgotten the producer."""
        if not self.end:
            return
        at = max(0, self.end - self.chance.randint(1, 5))
        key, record = self._something("late")
        self.void.setdefault(key, self.end)
        self._store(key, Envelope(at, "late", "late", record), at)
        self.seen["a tombstone was void"] += record is None


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_all_who_read_a_log_that_is_compacted_agree(seed: int) -> None:
    seen: Counter[str] = Counter()
    for each in range(seed, seed + 50):
        history = History(each)
        for _ in range(60):
            history.step()
        for reader in (*history.readers, Reader(history.passes)):
            history._read(reader, len(history.log))
        seen.update(history.seen)
    assert len(+seen) == 5, f"none of them came to more than {seen}"
