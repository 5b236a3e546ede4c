"""Bytes of state-log records: an envelope around the record's JSON.

    {"schema": 1, "reader": 1, "at": offset, "prev": nonce of the record before, "nonce": own nonce, "record": {…}}

`schema` is the version of the shape it was written in, `reader` the lowest version that may act on it: what is newer
than we are, but says that we may, is read without the fields that we do not know.
`at` makes the log linearizable even where the broker forgot its producer state: a record that stands elsewhere
than it says is void.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kmigrate.errors import StateLogBroken
from kmigrate.model.records import LEAST_READER, SCHEMA, Record, decode_record, encode_record

__all__ = ["Envelope", "decode_envelope", "encode_envelope"]


@dataclass(frozen=True, slots=True)
class Envelope:
    """One record as it was written; `record` is None for a deletion."""

    at: int
    prev: str
    nonce: str
    record: Record | None


def encode_envelope(envelope: Envelope) -> bytes:
    body = {
        "schema": SCHEMA,
        "reader": LEAST_READER,
        "at": envelope.at,
        "prev": envelope.prev,
        "nonce": envelope.nonce,
        "record": None if envelope.record is None else encode_record(envelope.record),
    }
    return json.dumps(body, separators=(",", ":")).encode()


def decode_envelope(value: bytes) -> Envelope:
    """Read an envelope; what needs a newer reader, or is of another kind, is refused, never skipped."""
    try:
        body: dict[str, Any] = json.loads(value)
        schema = int(body["schema"])
        reader = int(body.get("reader", schema))
    except (ValueError, KeyError, TypeError) as error:
        raise StateLogBroken(
            "foreign-record",
            f"the state log holds a record that kmigrate did not write ({error!r})",
            still_true="nothing was changed",
            next_step="let only kmigrate's principal write the state topic (EO-95)",
        ) from error
    if reader > SCHEMA:
        raise StateLogBroken(
            "newer-state-log",
            f"the state log was written by a newer kmigrate: schema {schema}, for readers of schema {reader} and "
            f"later; this one has {SCHEMA}",
            still_true="nothing was changed",
            next_step="use the newer version of kmigrate",
        )
    try:
        record = body["record"]
        return Envelope(
            int(body["at"]),
            str(body["prev"]),
            str(body["nonce"]),
            None if record is None else decode_record(record),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateLogBroken("malformed-record", f"a record of the state log cannot be read: {error!r}") from error
