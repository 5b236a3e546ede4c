"""A decoder answers any bytes of a peer with a value or with the decoder's own error."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.described import read_described
from kmigrate.protocol.frames import peek_request, response_body_offset
from kmigrate.protocol.hot import decode_fetch, decode_produce, decode_throttled_produce
from kmigrate.protocol.metadata import decode_metadata
from kmigrate.protocol.offsets import decode_offsets
from kmigrate.protocol.primitives import read_compact_string, read_string, read_uvarint, write_uvarint

_HUGE = write_uvarint((1 << 35) - 1)
_HEAD = struct.pack(">ii", 0, 7) + b"\0"

PRODUCED = (
    _HEAD
    + b"\2\2t\2"
    + struct.pack(">ihqqq", 3, 0, 41, -1, 0)
    + b"\2\0\0\0\1\2x\0\3no\0"
    + b"\0"
    + struct.pack(">i", 5)
    + b"\0"
)
FETCHED = (
    _HEAD
    + struct.pack(">ihi", 0, 0, 9)
    + b"\2\2t\2"
    + struct.pack(">ihqqq", 3, 0, 10, 10, 0)
    + b"\2"
    + struct.pack(">qq", 5, 1)
    + b"\0"
    + struct.pack(">i", -1)
    + b"\4abc"
    + b"\1\0\x0d"
    + struct.pack(">iq", 4, 8)
    + b"\0"
    + b"\0\0"
)
DESCRIBED = (
    struct.pack(">i", 0)
    + b"\2"
    + struct.pack(">h", 0)
    + b"\2t\3On"
    + struct.pack(">iqqh", 1, -1, 5, 0)
    + b"\2\2t\2"
    + struct.pack(">i", 3)
    + b"\0\0\0"
)
METADATA = (
    _HEAD
    + struct.pack(">i", 0)
    + b"\2"
    + struct.pack(">i", 1)
    + b"\2h"
    + struct.pack(">i", 9092)
    + b"\0\0"
    + b"\2c"
    + struct.pack(">i", 1)
    + b"\2\0\0\2t"
    + b"\7" * 16
    + b"\0\2"
    + struct.pack(">hiii", 0, 3, 1, 4)
    + b"\2\0\0\0\1" * 2
    + b"\1\0"
    + struct.pack(">i", 0)
    + b"\0"
    + struct.pack(">i", 0)
    + b"\0"
)
OFFSETS = struct.pack(">iiiih", 0, 7, 0, 1, 1) + b"t" + struct.pack(">iihqqi", 1, 3, 0, -1, 41, 4)
REQUEST = struct.pack(">ihhih", 20, 3, 12, 1, 1) + b"c" + b"\1\0\1x" + b"\0"

DECODERS: dict[str, tuple[bytes, Callable[[bytearray], Any]]] = {
    "produce": (PRODUCED, decode_produce),
    "throttled produce": (PRODUCED, decode_throttled_produce),
    "fetch": (FETCHED, decode_fetch),
    "metadata": (METADATA, decode_metadata),
    "offsets": (OFFSETS, decode_offsets),
    "described transactions": (DESCRIBED, lambda frame: read_described(bytes(frame), 0)),
    "request head": (REQUEST, peek_request),
    "request head with tags": (REQUEST, lambda frame: peek_request(frame, flexible=True)),
    "response head": (_HEAD, lambda frame: response_body_offset(frame, flexible=True)),
    "varint": (b"\xff\xff\xff\xff\x01", lambda frame: read_uvarint(frame, 0)),
    "string": (b"\0\1x", lambda frame: read_string(frame, 0)),
    "compact string": (b"\2x", lambda frame: read_compact_string(frame, 0)),
}


def mutated(whole: bytes) -> st.SearchStrategy[bytes]:
    """Return messages that are cut off, with some bytes overwritten, and with nonsense inserted."""
    return st.builds(
        lambda stop, at, junk, into, put: _changed(whole, stop, at, junk, into, put),
        st.integers(0, len(whole)),
        st.integers(0, len(whole)),
        st.binary(max_size=6),
        st.integers(0, len(whole)),
        st.sampled_from([b"", b"", _HUGE, b"\xff" * 9, b"\x80", b"\0" * 4, b"\x7f\xff\xff\xff"]),
    )


def _changed(whole: bytes, stop: int, at: int, junk: bytes, into: int, put: bytes) -> bytes:
    out = whole[:at] + junk + whole[at + len(junk) :]
    out = out[:into] + put + out[into:]
    return out[: stop + len(put)] if stop % 3 == 0 else out


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_reads_what_it_is_for(name: str) -> None:
    whole, decode = DECODERS[name]
    decode(bytearray(whole))


@pytest.mark.parametrize("name", DECODERS)
def test_a_changed_message_is_a_value_or_a_violation(name: str) -> None:
    whole, decode = DECODERS[name]

    @settings(max_examples=150)
    @given(st.one_of(mutated(whole), st.binary(max_size=80)))
    @example(whole[: len(whole) // 2] + b"\xff\xfe" * 20)
    def holds(data: bytes) -> None:
        with contextlib.suppress(ProtocolViolation):
            decode(bytearray(data))

    holds()


@pytest.mark.parametrize("name", ["produce", "fetch", "metadata", "described transactions"])
@pytest.mark.parametrize("count", [(1 << 35) - 1, (1 << 28) - 1, 200])
def test_an_announced_count_costs_nothing(name: str, count: int) -> None:
    """Elements are read singly, and no memory is reserved: the first missing element ends the decoding."""
    whole, decode = DECODERS[name]
    first = whole.index(b"\2")
    with pytest.raises(ProtocolViolation):
        decode(bytearray(whole[:first] + write_uvarint(count) + whole[first + 1 :]))


def test_text_that_is_no_text_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="UTF-8"):
        read_compact_string(b"\3\xff\xfe", 0)
    with pytest.raises(ProtocolViolation, match="UTF-8"):
        read_string(b"\0\2\xff\xfe", 0)
