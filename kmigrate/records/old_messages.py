"""Message sets of magic 0 and 1, found in the logs of old brokers, and their conversion to batches.

    offset  size  field
         0     8  offset; a wrapper has the offset of its last message
         8     4  message size (bytes after this field)
        12     4  CRC-32 of all bytes after this field
        16     1  magic (0 or 1)
        17     1  attributes: 0-2 codec, 3 timestamp type (magic 1)
        18     8  timestamp (magic 1 only)
         …     4  key length (−1: null), then the key
         …     4  value length (−1: null), then the value

A message with a codec is a wrapper: its value is a message set of the same magic. Inner offsets are absolute in magic
0, and relative in magic 1, where the last inner message has the wrapper's offset (KIP-31). A broker's timestamp in a
wrapper of magic 1 is that of all inner messages (KIP-32). Magic 0 has no timestamp; readers see −1.

A Fetch of any version that kmigrate sends returns the log's own format (seen on 2.8.2), and Produce accepts only magic
2 (A11). Records depend on old messages alone; batch boundaries do not matter: target sequences are offsets (M1).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.primitives import zigzag
from kmigrate.records.batch import CODEC_MASK, LOG_APPEND_TIME, Batch, walk
from kmigrate.records.rewrite import MOST_BYTES, MOST_RECORDS, Packer, Run, decompress

__all__ = ["OldMessages", "as_batch", "is_old", "walk_all"]

_PREFIX = struct.Struct(">qi")
_HEAD = struct.Struct(">IBB")
_MAGIC_AT = 16
_SMALLEST = 14
"""Bytes of CRC, magic, attributes and two lengths: a message of magic 0 without key and value."""
_GROUP_BYTES = 256 << 10
"""Most bytes of uncompressed messages that share a batch; a batch per message would cost the target 30 µs each."""
_MOST_WRITTEN = 8 << 20
"""Most bytes of a producer's message set without compression: a batch of this size is made in one step."""
_NULL = zigzag(-1)
_NO_HEADERS = b"\0"
_LZ4 = 3
_LZ4_MAGIC = b"\x04\x22\x4d\x18"


@dataclass(frozen=True, slots=True)
class _Message:
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


@dataclass(frozen=True, slots=True)
class OldMessages:
    """Messages that are copied together, at least one: the messages of a wrapper, or consecutive plain messages."""

    messages: tuple[_Message, ...]
    codec: int

    @property
    def base_offset(self) -> int:
        return self.messages[0].offset

    @property
    def next_offset(self) -> int:
        return self.messages[-1].offset + 1

    @property
    def has_gaps(self) -> bool:
        """True if a log cleaner removed messages between the first and the last."""
        return len(self.messages) != self.next_offset - self.base_offset

    def runs(self, start: int) -> list[Run]:
        """Return the messages from offset `start` on as batches without gaps."""
        packer = Packer(self.codec, leader_epoch=-1)
        for message in self.messages:
            if message.offset >= start:
                packer.add(message.offset, message.timestamp, 0, _rest(message))
        return packer.ended()

    def contents(self) -> dict[int, tuple[int, bytes]]:
        """Return the data that readers see, by offset, in the shape of `rewrite.contents`."""
        return {message.offset: (message.timestamp, _rest(message)) for message in self.messages}


def is_old(data: memoryview) -> bool:
    """Return whether a records field begins with messages of magic 0 or 1."""
    return len(data) > _MAGIC_AT and data[_MAGIC_AT] < 2


def as_batch(data: memoryview) -> memoryview:
    """Return a producer's message set as one batch without a producer id, compressed as the set is.

    The offsets in the set say nothing: the broker that stores the batch assigns them.
    """
    codec, left = 0, _MOST_WRITTEN
    messages: list[_Message] = []
    for message in _messages(data):
        inner: tuple[_Message, ...] = (message,)
        if message.attributes & CODEC_MASK:
            codec = message.attributes & CODEC_MASK
            inner = tuple(_inner(message, left))
        left -= sum(len(each.key or b"") + len(each.value or b"") for each in inner)
        messages += inner
    if not messages or left < 0:
        raise ProtocolViolation("too-many-records", f"a message set holds none, or more than {_MOST_WRITTEN} bytes")
    packer = Packer(codec, leader_epoch=-1)
    for offset, message in enumerate(messages):
        packer.add(offset, message.timestamp, 0, _rest(message))
    (run,) = packer.ended()
    return run.view


def walk_all(data: memoryview) -> Iterator[Batch | OldMessages]:
    """Yield a records field's content in order, each stretch in its (raised) format, without a cut-off last entry."""
    at = 0
    while True:
        for batch in walk(data[at:], until_old=True):
            at += len(batch.view)
            yield batch
        end = _end_of_old(data, at)
        if end == at:
            return
        yield from _groups(data[at:end])
        at = end


def _end_of_old(data: memoryview, at: int) -> int:
    """Return the end of the whole messages of magic 0 and 1 from `at` on."""
    while at + _MAGIC_AT < len(data) and data[at + _MAGIC_AT] < 2:
        offset, size = _PREFIX.unpack_from(data, at)
        if size < _SMALLEST:
            raise ProtocolViolation("bad-batch-length", f"the message at offset {offset} says length {size}")
        if at + _PREFIX.size + size > len(data):
            break
        at += _PREFIX.size + size
    return at


def _groups(data: memoryview) -> Iterator[OldMessages]:
    plain: list[_Message] = []
    size = 0
    for message in _messages(data):
        codec = message.attributes & CODEC_MASK
        if plain and (codec or size > _GROUP_BYTES or message.offset <= plain[-1].offset):
            yield OldMessages(tuple(plain), 0)
            plain, size = [], 0
        if codec:
            yield OldMessages(_unwrap(message), codec)
        else:
            plain.append(message)
            size += len(message.key or b"") + len(message.value or b"")
    if plain:
        yield OldMessages(tuple(plain), 0)


def _messages(data: memoryview) -> Iterator[_Message]:
    """Yield the messages of a whole message set; check each message against its CRC."""
    at = 0
    while at < len(data):
        if at + _PREFIX.size > len(data):
            raise ProtocolViolation("short-record", "a message set ends inside a message")
        offset, size = _PREFIX.unpack_from(data, at)
        at += _PREFIX.size
        if size < _SMALLEST or at + size > len(data):
            raise ProtocolViolation("short-record", f"the message at offset {offset} runs past its set")
        yield _message(offset, data[at : at + size])
        at += size


def _message(offset: int, body: memoryview) -> _Message:
    crc, magic, attributes = _HEAD.unpack_from(body)
    if zlib.crc32(body[4:]) != crc:
        raise ProtocolViolation("corrupt-source-batch", f"the message at offset {offset} does not fit its CRC")
    if magic > 1:
        raise ProtocolViolation("mixed-message-formats", f"the message at offset {offset} has message format {magic}")
    try:
        (timestamp,) = struct.unpack_from(">q", body, _HEAD.size) if magic else (-1,)
        key, at = _field(body, _HEAD.size + 8 * magic)
        value, at = _field(body, at)
    except struct.error:
        raise ProtocolViolation("short-record", f"the message at offset {offset} ends too early") from None
    if at != len(body):
        raise ProtocolViolation("surplus-bytes", f"the message at offset {offset} is longer than key and value")
    return _Message(offset, magic, attributes, timestamp, key, value)


def _field(body: memoryview, at: int) -> tuple[memoryview | None, int]:
    (size,) = struct.unpack_from(">i", body, at)
    at += 4
    if size < 0:
        return None, at
    if at + size > len(body):
        raise struct.error
    return body[at : at + size], at + size


def _unwrap(wrapper: _Message) -> tuple[_Message, ...]:
    """Return the messages of a wrapper, with the offsets and timestamps that readers see."""
    at, inner = wrapper.offset, _inner(wrapper, MOST_BYTES)
    # Some librdkafka releases left offset 0 in wrappers of magic 1: Kafka's readers take inner offsets unchanged, too.
    shift = at - inner[-1].offset if wrapper.magic and at else 0
    stamped = bool(wrapper.magic and wrapper.attributes & LOG_APPEND_TIME)
    messages = tuple(
        _Message(
            each.offset + shift,
            each.magic,
            each.attributes,
            wrapper.timestamp if stamped else each.timestamp,
            each.key,
            each.value,
        )
        for each in inner
    )
    if messages[0].offset < 0 or any(a.offset >= b.offset for a, b in pairwise(messages)):
        raise ProtocolViolation("bad-wrapper", f"the offsets in the compressed message at offset {at} do not rise")
    return messages


def _inner(wrapper: _Message, most: int) -> list[_Message]:
    """Return the messages of a wrapper as they stand in it; `most` limits their bytes."""
    at, codec = wrapper.offset, wrapper.attributes & CODEC_MASK
    if wrapper.value is None:
        raise ProtocolViolation("bad-compression", f"the compressed message at offset {at} has no value")
    payload = _repaired(wrapper.value) if wrapper.magic == 0 and codec == _LZ4 else wrapper.value
    inner = list(islice(_messages(memoryview(decompress(codec, payload, most))), MOST_RECORDS + 1))
    if len(inner) > MOST_RECORDS:
        raise ProtocolViolation(
            "too-many-records", f"the compressed message at offset {at} holds more than {MOST_RECORDS} messages"
        )
    if not inner or any(each.magic != wrapper.magic or each.attributes & CODEC_MASK for each in inner):
        raise ProtocolViolation("bad-wrapper", f"the compressed message at offset {at} holds no plain message set")
    return inner


def _rest(message: _Message) -> bytes:
    """Return key, value and no headers in the layout of a record of magic 2."""
    out: list[bytes | memoryview] = []
    for part in (message.key, message.value):
        out += (_NULL,) if part is None else (zigzag(len(part)), part)
    out.append(_NO_HEADERS)
    return b"".join(out)


# lz4 of magic 0


def _repaired(frame: memoryview) -> memoryview:
    """Return an lz4 frame with a correct header checksum; in magic 0 also of the frame's magic (KAFKA-3160)."""
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        return frame
    flags = frame[4]
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if len(frame) <= end:
        return frame
    fixed = bytearray(frame)
    fixed[end] = (_xxh32(bytes(frame[4:end])) >> 8) & 0xFF
    return memoryview(fixed)


_MASK = 0xFFFFFFFF


def _xxh32(data: bytes) -> int:
    """Return the xxHash-32 with seed 0 of less than 16 bytes; a frame's header is never longer."""
    found = 374761393 + len(data)
    at = 0
    while at + 4 <= len(data):
        found = _rotated(found + int.from_bytes(data[at : at + 4], "little") * 3266489917, 17) * 668265263
        at += 4
    for byte in data[at:]:
        found = _rotated(found + byte * 374761393, 11) * 2654435761
    found &= _MASK
    found = ((found ^ (found >> 15)) * 2246822519) & _MASK
    found = ((found ^ (found >> 13)) * 3266489917) & _MASK
    return found ^ (found >> 16)


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (32 - bits))) & _MASK
