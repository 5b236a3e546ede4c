"""Heads of requests and primitives: a peer's bytes are checked before use."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import encode_request_head, peek_request, response_body_offset, set_correlation_id
from kmigrate.protocol.primitives import (
    read_compact_string,
    read_string,
    read_uvarint,
    write_compact_string,
    write_string,
    write_uvarint,
)


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("client", ["", "app", "ünï"])
def test_a_request_head_is_read_back(flexible: bool, client: str) -> None:
    head = encode_request_head(3, 9, 77, client.encode(), flexible)
    frame = bytearray(struct.pack(">i", len(head)) + head + b"body")
    seen = peek_request(frame, flexible)
    assert (seen.api_key, seen.version, seen.correlation_id, seen.client_id) == (3, 9, 77, client)
    assert frame[seen.body :] == b"body"


def test_a_null_client_id_is_none() -> None:
    frame = bytearray(struct.pack(">ihhih", 10, 18, 3, 1, -1))
    assert peek_request(frame).client_id is None


@pytest.mark.parametrize("size", [0, 4, 13])
def test_a_request_too_short_for_its_head_is_refused(size: int) -> None:
    with pytest.raises(ProtocolViolation):
        peek_request(bytearray(size))


def test_a_client_id_longer_than_the_request_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        peek_request(bytearray(struct.pack(">ihhih", 10, 18, 3, 1, 500)))


def test_the_correlation_id_is_replaced_in_place() -> None:
    frame = bytearray(struct.pack(">iib", 5, 1, 0))
    set_correlation_id(frame, 9)
    assert frame == struct.pack(">iib", 5, 9, 0)
    assert response_body_offset(frame, flexible=True) == 9
    assert response_body_offset(frame, flexible=False) == 8


@given(st.integers(0, 2**31 - 1))
def test_varints_come_back(value: int) -> None:
    raw = write_uvarint(value)
    assert read_uvarint(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff\xff\xff\xff\xff\xff"])
def test_a_broken_varint_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_uvarint(raw, 0)


@given(st.none() | st.text(max_size=50))
def test_strings_come_back(value: str | None) -> None:
    assert read_string(write_string(value), 0)[0] == value
    assert read_compact_string(write_compact_string(value), 0)[0] == value


def test_a_string_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        read_string(struct.pack(">h", 50) + b"x", 0)
    with pytest.raises(ProtocolViolation):
        read_compact_string(write_uvarint(50) + b"x", 0)


def test_more_tagged_fields_than_anybody_has_are_refused_before_they_are_stepped_over() -> None:
    few = write_uvarint(1000) + b"\5\0" * 1000
    assert response_body_offset(bytearray(8) + few, flexible=True) == 8 + len(few)
    with pytest.raises(ProtocolViolation, match="1001 tagged fields"):
        response_body_offset(bytearray(8) + write_uvarint(1001) + b"\5\0" * 1001, flexible=True)
