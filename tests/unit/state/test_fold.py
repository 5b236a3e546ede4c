"""The fold of the state log: void records, repairs, chain breaks, foreign bytes (invariants A to C)."""

from __future__ import annotations

import json
from dataclasses import replace

import cramjam
import pytest

from kmigrate.errors import StateLogBroken
from kmigrate.model.records import SCHEMA, LeaseRecord
from kmigrate.protocol.primitives import read_varint, zigzag
from kmigrate.records.batch import HEADER_SIZE, Batch, assemble, walk
from kmigrate.records.build import one_record_batch
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, StrayRecordError, encode_envelope, read_envelope
from kmigrate.state.fold import CompactedUnreadError, Fold


def batch(offset: int, value: bytes, key: bytes = b"lease/w", sequence: int | None = None) -> Batch:
    return standing(offset, key, value, None, sequence)


def tombstone(offset: int, envelope: bytes | None, key: bytes = b"lease/w") -> Batch:
    return standing(offset, key, None, None if envelope is None else (ENVELOPE_HEADER, envelope))


def standing(
    offset: int, key: bytes, value: bytes | None, header: tuple[bytes, bytes] | None, sequence: int | None = None
) -> Batch:
    data = one_record_batch(
        key,
        value,
        header=header,
        timestamp=1,
        producer_id=9,
        epoch=0,
        sequence=offset if sequence is None else sequence,
    )
    data[0:8] = offset.to_bytes(8, "big")
    return next(walk(memoryview(data)))


def emptied(batch: Batch) -> Batch:
    """Return a producer's newest batch as the cleaner leaves the batch after its record goes."""
    head = bytearray(batch.view[:HEADER_SIZE])
    head[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    head[57:61] = bytes(4)
    return next(walk(memoryview(head)))


def envelope(at: int, prev: str, nonce: str, term: int) -> bytes:
    return encode_envelope(Envelope(at, prev, nonce, LeaseRecord("w", "me", term)))


def dropped(at: int, prev: str, nonce: str) -> bytes:
    return encode_envelope(Envelope(at, prev, nonce, None))


def fold_of(*batches: Batch) -> Fold:
    fold = Fold(9)
    for one in batches:
        fold.take(one)
    return fold


def test_records_fold_in_order() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, envelope(1, "a", "b", 2)))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)
    assert (fold.next_offset, fold.sequence, fold.last_nonce) == (2, 2, "b")


def test_a_record_that_stands_elsewhere_is_void_and_asks_for_a_repair() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, envelope(0, "", "zombie", 99)))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)
    assert fold.repair() == ("lease/w", LeaseRecord("w", "me", 1))


def test_a_repair_ends_when_the_key_is_written_again() -> None:
    fold = fold_of(
        batch(0, envelope(0, "", "a", 1)),
        batch(1, envelope(0, "", "zombie", 99)),
        batch(2, envelope(2, "a", "b", 1)),
    )
    assert fold.repair() is None


def test_the_next_sequence_is_read_from_the_newest_batch_not_counted() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, envelope(0, "", "zombie", 99), sequence=40))
    assert (fold.next_offset, fold.sequence) == (2, 41)


def test_a_break_of_the_chain_is_refused() -> None:
    with pytest.raises(StateLogBroken) as caught:
        fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, envelope(1, "other", "b", 2)))
    assert caught.value.ref == "forked-state-log"


@pytest.mark.parametrize("prev", ["a", "other", ""], ids=["chained", "another-chain", "no-chain"])
@pytest.mark.parametrize("producer", [-1, 4711], ids=["plain", "idempotent"])
@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA + 1], ids=["readable", "of-a-newer-version"])
def test_a_copy_of_the_format_by_another_producer_is_a_stray_whatever_it_names(
    prev: str, producer: int, schema: int
) -> None:
    """kmigrate writes the state log with a single producer id that no broker hands out."""
    body = {**json.loads(envelope(1, prev, "b", 99)), "schema": schema}
    copied = replace(batch(1, json.dumps(body).encode()), producer_id=producer)
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), copied)
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)
    assert (fold.strays.count, fold.strays.offset, fold.last_nonce) == (1, 1, "a")
    assert "another producer" in fold.strays.why
    assert fold.repair() == ("lease/w", LeaseRecord("w", "me", 1))
    fold.take(batch(2, envelope(2, "a", "c", 2), sequence=1))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)


def test_a_dropped_key_by_another_producer_drops_nothing() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), replace(tombstone(1, dropped(1, "a", "b")), producer_id=-1))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)


def test_compacted_offsets_are_no_break() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(7, envelope(7, "gone", "b", 2)))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)


def test_a_record_behind_a_void_one_behind_compacted_offsets_is_no_break() -> None:
    fold = fold_of(
        batch(0, envelope(0, "", "a", 1)),
        batch(2, envelope(1, "a", "zombie", 99)),
        batch(3, envelope(3, "gone", "b", 2)),
    )
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)


def test_a_tombstone_removes_the_key_and_is_a_link_of_the_chain() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), tombstone(1, dropped(1, "a", "b")))
    assert fold.state.lease("w") is None
    assert (fold.last_nonce, fold.nonces[1], fold.state.epoch) == ("b", "b", 1)
    with pytest.raises(StateLogBroken, match="follows another record"):
        fold.take(batch(2, envelope(2, "a", "c", 2)))


def test_a_null_record_is_a_stray_because_a_tombstone_drops_a_key() -> None:
    gone = json.dumps({"schema": SCHEMA, "at": 1, "prev": "a", "nonce": "b", "record": None}).encode()
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, gone))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)
    assert (fold.strays.count, fold.last_nonce) == (1, "a")


def test_a_tombstone_that_stands_elsewhere_is_void_and_asks_for_a_repair() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), tombstone(1, dropped(0, "", "zombie")))
    assert fold.repair() == ("lease/w", LeaseRecord("w", "me", 1))
    fold.take(batch(2, envelope(2, "a", "b", 1)))
    assert fold.repair() is None


def test_a_void_record_over_a_tombstone_asks_for_a_tombstone() -> None:
    void = batch(2, envelope(1, "a", "zombie", 99))
    assert fold_of(batch(0, envelope(0, "", "a", 1)), tombstone(1, dropped(1, "a", "b")), void).repair() == (
        "lease/w",
        None,
    )
    assert fold_of(void).repair() == ("lease/w", None), "also where the tombstone is gone"


@pytest.mark.parametrize(
    "stray",
    [
        tombstone(1, None),
        standing(1, b"lease/w", None, (b"traceparent", b"00-1-1-01")),
        tombstone(1, b"not ours"),
        batch(1, b"not json"),
        batch(1, b"7"),
        batch(1, b"[" * 100_000),
        batch(1, b'{"schema": 99, "reader": 99}'),
        batch(1, b'{"schema": 99, "reader": 99, "at": 7, "prev": "a", "nonce": "n", "record": {}}'),
        batch(
            1,
            b'{"schema": %d, "at": 1, "prev": "x", "nonce": "n", "record": {"kind": "LeaseRecord", "term": []}}'
            % SCHEMA,
        ),
        batch(1, b'{"schema": %d, "at": 1, "prev": "a", "nonce": 7, "record": {}}' % SCHEMA),
        batch(1, b'{"schema": 1e400, "at": 1, "prev": "a", "nonce": "", "record": {}}'),
        batch(1, b'{"schema": %d, "at": 1, "prev": "\\ud800", "nonce": "\\udfff", "record": {}}' % SCHEMA),
    ],
    ids=lambda each: repr(bytes(each.view[61:100])),
)
def test_a_stray_is_void_and_its_key_is_repaired(stray: Batch) -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), stray)
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)
    assert fold.repair() == ("lease/w", LeaseRecord("w", "me", 1))
    fold.take(batch(2, envelope(2, "a", "b", 2)))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)
    assert fold.repair() is None


def compressed(offset: int, *keys: bytes, codec: int = 4, attributes: int = 0, producer: int = -1) -> Batch:
    """Return a compressed batch of several records as clients write such batches."""
    records = b"".join(
        bytes(one_record_batch(key, b"stray", timestamp=1, producer_id=-1, epoch=-1, sequence=-1)[61:]) for key in keys
    )
    parts, at = bytearray(), 0
    for delta in range(len(keys)):  # each record's offset delta follows length, attributes and time
        size, begin = read_varint(records, at)
        record = bytearray(records[begin : begin + size])
        record[2:3] = zigzag(delta)
        parts += zigzag(len(record)) + record
        at = begin + size
    payload = bytes(cramjam.zstd.compress(bytes(parts))) if codec == 4 else bytes(parts)
    data = assemble(
        payload, count=len(keys), attributes=codec | attributes, base_timestamp=1, max_timestamp=1,
        producer_id=producer, epoch=0 if producer >= 0 else -1, sequence=0 if producer >= 0 else -1,
    )  # fmt: skip
    data[0:8] = offset.to_bytes(8, "big")
    return next(walk(memoryview(data)))


def test_a_compressed_batch_of_strays_is_void_and_each_live_key_in_it_is_repaired() -> None:
    fold = fold_of(
        batch(0, envelope(0, "", "a", 1)),
        batch(1, envelope(1, "a", "b", 1), key=b"lease/v"),
        compressed(2, b"lease/w", b"who/knows", b"\xff"),
    )
    assert (fold.next_offset, fold.strays.count, fold.strays.offset) == (5, 3, 2)
    assert fold.repairs == {"lease/w"}
    fold.take(batch(5, envelope(5, "b", "c", 2)))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)


def test_where_nobody_can_tell_the_keys_of_a_stray_all_live_keys_are_repaired() -> None:
    broken = compressed(1, b"lease/w")
    broken.view[70:] = bytes(len(broken.view) - 70)
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), broken)
    assert fold.repairs == {"lease/w"}


@pytest.mark.parametrize("attributes", [0x10, 0x20], ids=["transactional", "control"])
def test_batches_of_transactions_decide_nothing(attributes: int) -> None:
    valid = batch(1, envelope(1, "a", "b", 99))
    forged = replace(valid, attributes=attributes)
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), forged)
    assert fold.state.lease("w") == LeaseRecord("w", "me", 1)
    assert fold.next_offset == 2


def test_another_producers_sequences_leave_the_next_write_where_it_was() -> None:
    """A client with idempotence has other sequences: taken for ours, they would have each later write refused."""
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), compressed(1, b"k", b"k", producer=4711))
    assert (fold.next_offset, fold.sequence) == (3, 1)


def test_an_epoch_that_a_marker_has_raised_is_followed_from_sequence_0() -> None:
    marker = replace(batch(1, b"marker"), attributes=0x20, producer_epoch=5, base_sequence=-1)
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), marker)
    assert (fold.producer_epoch, fold.sequence) == (5, 0)


def test_a_record_that_names_the_one_before_it_and_cannot_be_read_stops_every_reader() -> None:
    """Only kmigrate knows that nonce, so a reader that ignored the record would go on with another state."""
    body = {**json.loads(envelope(1, "a", "b", 1)), "record": {"kind": "LeaseRecord", "term": "x"}}
    with pytest.raises(StateLogBroken) as caught:
        fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, json.dumps(body).encode()))
    assert caught.value.ref == "malformed-record"


def test_strays_are_told_in_printable_words() -> None:
    fold = fold_of(batch(0, b"\x1b[31mred"))
    told = fold.strays.text("__kmigrate_state")
    assert "1 records that kmigrate did not write" in told
    assert "offset 0" in told
    assert told.isprintable()
    assert fold_of(batch(0, envelope(0, "", "a", 1))).strays.text("t") == ""


def test_keys_that_strangers_make_up_do_not_pile_up_to_be_repaired() -> None:
    fold = Fold(9)
    for offset in range(3000):
        fold.take(batch(offset, envelope(offset + 1, "", "x", 1), key=b"lease/%d" % offset))
    assert len(fold.repairs) == 1000


def test_a_tombstone_of_a_newer_version_is_refused() -> None:
    body = {**json.loads(dropped(0, "", "a")), "schema": SCHEMA + 1}
    with pytest.raises(StateLogBroken) as caught:
        fold_of(tombstone(0, json.dumps(body).encode()))
    assert caught.value.ref == "newer-state-log"


def test_behind_an_emptied_batch_the_sequence_goes_on_and_no_record_is_named() -> None:
    """The newest record, a tombstone, is gone: a process that opens the log now cannot know the tombstone's nonce."""
    gone = tombstone(1, dropped(1, "a", "b"))
    late = fold_of(batch(0, envelope(0, "", "a", 1), key=b"lease/v"), emptied(gone))
    assert (late.next_offset, late.sequence, late.last_nonce) == (2, 2, "")
    written = batch(2, envelope(2, late.last_nonce, "c", 3))
    late.take(written)
    fold_of(batch(0, envelope(0, "", "a", 1), key=b"lease/v"), gone, written)


def test_who_has_read_a_void_tombstone_that_is_gone_now_takes_what_is_written_behind_it() -> None:
    valid, void = batch(0, envelope(0, "", "a", 1)), tombstone(1, dropped(0, "", "zombie"), key=b"lease/v")
    late = fold_of(valid, emptied(void))
    written = batch(2, envelope(2, late.last_nonce, "b", 2))
    late.take(written)
    assert fold_of(valid, void, written).state.lease("w") == LeaseRecord("w", "me", 2)


def test_a_record_that_names_none_before_it_is_a_break_where_none_can_be_missing() -> None:
    """A record with a value stays until another record replaces it."""
    with pytest.raises(StateLogBroken) as caught:
        fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, envelope(1, "", "b", 2)))
    assert caught.value.ref == "forked-state-log"


@pytest.mark.parametrize("met", [batch(2, envelope(2, "b", "c", 2)), emptied(tombstone(1, dropped(1, "a", "b")))])
def test_who_follows_the_log_is_told_where_offsets_are_gone_before_he_read_them(met: Batch) -> None:
    """A key may have been dropped at these offsets, and the key's tombstone may be gone."""
    fold = fold_of(batch(0, envelope(0, "", "a", 1)))
    fold.following = True
    with pytest.raises(CompactedUnreadError):
        fold.take(met)


def test_who_opens_a_compacted_log_has_come_as_far_as_those_who_have_read_what_is_gone() -> None:
    """A promote waits until all processes have read the newest record; a process that starts now may find it gone."""
    gone, void = tombstone(1, dropped(1, "a", "b")), batch(2, envelope(0, "", "zombie", 99))
    kept = batch(0, envelope(0, "", "a", 1), key=b"lease/v")
    assert fold_of(kept, void).state.epoch == fold_of(kept, gone, void).state.epoch == 1
    assert fold_of(kept, emptied(gone)).state.epoch == fold_of(kept, gone).state.epoch == 1
    late = fold_of(kept)
    late.pass_over(2)
    assert late.state.epoch == 1


@pytest.mark.parametrize("value", [b"", b"not json", b"[]", b'{"schema": 1}', b'{"schema": "x"}'])
def test_foreign_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(StrayRecordError):
        read_envelope(value).decoded()


@pytest.mark.parametrize(
    ("schema", "ref", "says"),
    [(SCHEMA + 1, "newer-state-log", "by a newer kmigrate"), (SCHEMA - 1, "older-state-log", "by an older kmigrate")],
)
@pytest.mark.parametrize("drops", [False, True], ids=["record", "tombstone"])
def test_a_record_of_another_versions_format_is_refused_by_name_with_both_versions(
    drops: bool, schema: int, ref: str, says: str
) -> None:
    """A field that one version does not know may decide what the other version does."""
    written = dropped(0, "", "a") if drops else envelope(0, "", "a", 1)
    value = json.dumps({**json.loads(written), "schema": schema}).encode()
    with pytest.raises(StateLogBroken) as caught:
        fold_of(tombstone(0, value) if drops else batch(0, value))
    assert caught.value.ref == ref
    assert caught.value.what.endswith(f"{says}: schema {schema}; this one has {SCHEMA}")


def test_a_record_of_the_first_versions_is_refused_by_name_too() -> None:
    value = json.dumps({"schema": 1, "reader": 1, "at": 0, "prev": "", "nonce": "", "record": None}).encode()
    with pytest.raises(StateLogBroken) as caught:
        read_envelope(value).decoded()
    assert caught.value.ref == "older-state-log"


def test_every_record_that_is_written_can_be_read_by_the_version_that_writes_it() -> None:
    assert json.loads(envelope(0, "", "a", 1))["schema"] == SCHEMA
    assert fold_of(batch(0, envelope(0, "", "a", 7))).state.lease("w") == LeaseRecord("w", "me", 7)
