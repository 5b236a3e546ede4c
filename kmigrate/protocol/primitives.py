"""The few field readers and writers that the hot path needs; kio reads and writes everything else."""

from __future__ import annotations

import struct

from kmigrate.errors import ProtocolViolation

__all__ = [
    "I16",
    "I32",
    "read_compact_string",
    "read_length",
    "read_string",
    "read_uvarint",
    "read_varint",
    "write_compact_string",
    "write_string",
    "write_uvarint",
    "zigzag",
]

I16, I32 = struct.Struct(">h"), struct.Struct(">i")
_BYTES = [bytes((value,)) for value in range(0x80)]


def read_uvarint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned varint of at most five bytes, and the offset after the varint."""
    try:
        value = data[at]
        at += 1
        if value < 0x80:
            return value, at
        value &= 0x7F
        shift = 7
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 28:
                break
    except IndexError:
        raise ProtocolViolation("short-varint", "a varint runs past its frame") from None
    byte = data[at] if at < len(data) else 0x80
    if byte >= 0x80:
        raise ProtocolViolation("long-varint", "a varint has more than five bytes")
    return value | (byte << shift), at + 1


def read_length(
    data: bytes | bytearray | memoryview, at: int, flexible: bool, plain: struct.Struct = I32
) -> tuple[int, int]:
    """Return a length (`plain` I16: a string's) and the offset after it; null is 0, flexible a varint plus one."""
    if flexible:
        value, at = read_uvarint(data, at)
        return (value - 1 if value else 0), at
    (value,) = plain.unpack_from(data, at)
    return max(0, value), at + plain.size


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return a signed varint of a record, and the offset after the varint.

    Raise IndexError after ten bytes (timestamps have 64 bits) or past the record; the caller knows which record.
    """
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    raw, shift = byte & 0x7F, 7
    while shift <= 63:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise IndexError


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _BYTES[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """Return a signed varint, as records use them."""
    return write_uvarint((value << 1) ^ (value >> 63))


def read_string(data: bytes | bytearray | memoryview, at: int) -> tuple[str | None, int]:
    """Return a nullable string with a two-byte length, and the offset after the string."""
    if at + 2 > len(data):
        raise ProtocolViolation("short-string", "a string's length runs past its frame")
    (length,) = I16.unpack_from(data, at)
    at += 2
    if length < 0:
        return None, at
    if at + length > len(data):
        raise ProtocolViolation("short-string", "a string runs past its frame")
    return _text(data[at : at + length]), at + length


def read_compact_string(data: bytes | bytearray | memoryview, at: int) -> tuple[str | None, int]:
    """Return a nullable string with a varint length (plus one), and the offset after the string."""
    length, at = read_uvarint(data, at)
    if length == 0:
        return None, at
    end = at + length - 1
    if end > len(data):
        raise ProtocolViolation("short-string", "a string runs past its frame")
    return _text(data[at:end]), end


def _text(raw: bytes | bytearray | memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolViolation("bad-string", f"a string is not UTF-8: {error.reason}") from None


def write_string(value: str | None) -> bytes:
    if value is None:
        return I16.pack(-1)
    raw = value.encode()
    return I16.pack(len(raw)) + raw


def write_compact_string(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    raw = value.encode()
    return write_uvarint(len(raw) + 1) + raw
