"""Frames of the Kafka wire: a four-byte length, then a header, then a body.

    request   | size i32 | api key i16 | version i16 | correlation id i32 | client id nullable string | [tags] | body
    response  | size i32 | correlation id i32 | [tags] | body

A *frame* is always a bytearray that includes the size prefix, so that forwarding takes a single write. The header is
read by hand, because the router must know the header of requests that it never decodes, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.primitives import read_uvarint

__all__ = [
    "MAX_FRAME",
    "MOST_TAGS",
    "SIZE",
    "RequestHead",
    "TakePiece",
    "correlation_id",
    "encode_request_head",
    "peek_request",
    "response_body_offset",
    "set_correlation_id",
    "skip_tags",
    "take_all",
]

SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_I16 = struct.Struct(">h")

_LONGEST_ID = (1 << 15) - 1
MOST_TAGS = 1000
"""Most tagged fields in one section; Kafka has a handful, and megabytes would take seconds to step over."""
MAX_FRAME = 128 * 1024 * 1024
"""Most bytes of a frame: more than Kafka's own socket.request.max.bytes (100 MiB)."""

TakePiece = Callable[[memoryview, int], int]
"""A function that takes bytes from the front of a piece, and returns their number; it may change and keep the piece.

The second argument counts the bytes left in the frame, this piece included; the last piece must be taken whole.
"""


def take_all(piece: memoryview, _: int) -> int:
    """Take a whole piece of a frame that nobody reads."""
    return len(piece)


class RequestHead(NamedTuple):
    """The fields at the start of every request; `body` is the body's position in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


def peek_request(frame: bytearray, flexible: bool | None = None) -> RequestHead:
    """Read a request's head; pass `flexible` if the header has tagged fields (header v2)."""
    if len(frame) < 14:
        raise ProtocolViolation("short-request", f"a request of {len(frame)} bytes has no header")
    api_key, version, correlation = _HEAD.unpack_from(frame, 4)
    (length,) = _I16.unpack_from(frame, 12)
    at = 14
    client_id: str | None = None
    if length >= 0:
        if at + length > len(frame):
            raise ProtocolViolation("short-request", "the client id runs past the request")
        client_id = frame[at : at + length].decode("utf-8", "replace")
        at += length
    if flexible:
        at = skip_tags(frame, at)
    return RequestHead(api_key, version, correlation, client_id, at)


def skip_tags(frame: bytes | bytearray | memoryview, at: int) -> int:
    """Skip a tagged-field section (KIP-482) and return the offset after the section."""
    if at < len(frame) and not frame[at]:
        return at + 1
    count, at = read_uvarint(frame, at)
    if count > MOST_TAGS:
        raise ProtocolViolation("bad-tags", f"{count} tagged fields in one place")
    for _ in range(count):
        _, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        at += size
        if at > len(frame):
            raise ProtocolViolation("bad-tags", "a tagged field runs past its frame")
    return at


def correlation_id(frame: bytearray | memoryview) -> int:
    """Return the correlation id of a response frame."""
    value: int = SIZE.unpack_from(frame, 4)[0]
    return value


def set_correlation_id(frame: bytearray, value: int) -> None:
    """Put another correlation id into a response frame, in place."""
    SIZE.pack_into(frame, 4, value)


def response_body_offset(frame: bytearray | memoryview, flexible: bool) -> int:
    """Return the position of a response's body (ApiVersions never has tags in the response header: D8)."""
    return skip_tags(frame, 8) if flexible else 8


def encode_request_head(api_key: int, version: int, correlation: int, client_id: bytes, flexible: bool) -> bytes:
    """Return a header without the size prefix; cut a client id that grew too long as non-UTF-8 bytes were decoded."""
    client_id = client_id[:_LONGEST_ID]
    head = _HEAD.pack(api_key, version, correlation) + _I16.pack(len(client_id)) + client_id
    return head + b"\0" if flexible else head
