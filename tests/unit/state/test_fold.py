"""The fold of the state log: void records, repairs, chain breaks, foreign bytes (invariants A to C)."""

from __future__ import annotations

import json

import pytest

from kmigrate.errors import StateLogBroken
from kmigrate.model.records import LEAST_READER, SCHEMA, LeaseRecord
from kmigrate.records.batch import Batch, walk
from kmigrate.records.build import one_record_batch
from kmigrate.state.codec import Envelope, decode_envelope, encode_envelope
from kmigrate.state.fold import Fold


def batch(offset: int, value: bytes, key: bytes = b"lease/w", sequence: int | None = None) -> Batch:
    data = one_record_batch(
        key, value, timestamp=1, producer_id=9, epoch=0, sequence=offset if sequence is None else sequence
    )
    data[0:8] = offset.to_bytes(8, "big")
    return next(walk(memoryview(data)))


def envelope(at: int, prev: str, nonce: str, term: int) -> bytes:
    return encode_envelope(Envelope(at, prev, nonce, LeaseRecord("w", "me", term)))


def fold_of(*batches: Batch) -> Fold:
    fold = Fold()
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


def test_compacted_offsets_are_no_break() -> None:
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(7, envelope(7, "gone", "b", 2)))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 2)


def test_a_deletion_removes_the_key() -> None:
    gone = encode_envelope(Envelope(1, "a", "b", None))
    fold = fold_of(batch(0, envelope(0, "", "a", 1)), batch(1, gone))
    assert fold.state.lease("w") is None


@pytest.mark.parametrize("value", [b"", b"not json", b"[]", b'{"schema": 1}', b'{"schema": "x"}'])
def test_foreign_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(StateLogBroken):
        decode_envelope(value)


def test_a_newer_schema_is_refused_by_name() -> None:
    value = json.dumps({"schema": 2, "at": 0, "prev": "", "nonce": "", "record": None}).encode()
    with pytest.raises(StateLogBroken) as caught:
        decode_envelope(value)
    assert caught.value.ref == "newer-state-log"


def in_schema(schema: int, reader: int | None, **unknown: object) -> bytes:
    """An envelope as a later version would write it."""
    body = json.loads(envelope(0, "", "a", 7))
    body["schema"], body["record"] = schema, {**body["record"], **unknown}
    if reader is None:
        del body["reader"]
    else:
        body["reader"] = reader
    return json.dumps(body).encode()


def test_a_record_of_the_next_schema_is_read_where_it_says_that_this_version_may() -> None:
    fold = fold_of(batch(0, in_schema(SCHEMA + 1, SCHEMA, later="unknown here")))
    assert fold.state.lease("w") == LeaseRecord("w", "me", 7)


def test_a_record_that_needs_a_newer_reader_is_refused_with_both_versions() -> None:
    with pytest.raises(StateLogBroken, match=f"for readers of schema {SCHEMA + 1} and later; this one has {SCHEMA}"):
        fold_of(batch(0, in_schema(SCHEMA + 1, SCHEMA + 1)))


def test_a_record_from_before_readers_were_named_is_read() -> None:
    assert fold_of(batch(0, in_schema(SCHEMA, None))).state.lease("w") == LeaseRecord("w", "me", 7)


def test_every_record_that_is_written_can_be_read_by_the_version_that_writes_it() -> None:
    body = json.loads(envelope(0, "", "a", 1))
    assert (body["schema"], body["reader"]) == (SCHEMA, LEAST_READER)
    assert LEAST_READER <= SCHEMA
