"""Reads and writes Produce requests and answers, versions 0 to 11, down to partitions; batches stay views of the frame.

    request   | (transactional id ≥ 3) | acks i16 | timeout i32 | [topic | [partition i32, records bytes] ]
    answer    | [topic | [index i32, error i16, base i64, (append time i64 ≥ 2), (log start i64 ≥ 5),
              |           (record errors, message ≥ 8), (tags: current leader ≥ 10)] ] | (throttle i32 ≥ 1) | (tags ≥ 9)

Answers of brokers are read from version 3 on.

From version 9 on strings and arrays are compact and every structure ends in tags. A parsed message can be written again
in another version, so a client's request may be split over brokers of different age.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.frames import SIZE, RequestHead, correlation_id, encode_request_head, skip_tags
from kmigrate.protocol.primitives import I32, read_uvarint, write_compact_string, write_string, write_uvarint
from kmigrate.protocol.reader import Reader

__all__ = [
    "FIRST_WITH_BATCHES",
    "FLEXIBLE",
    "PartitionAnswer",
    "ProducePart",
    "ProduceReader",
    "ProduceRequest",
    "all_stored",
    "encode_answer",
    "encode_request",
    "parse_answer",
    "parse_request",
    "plain_answer_size",
    "read_produce",
    "without_hints",
]


FIRST_WITH_BATCHES = 3
"""First version that carries batches and a transactional id; before, requests carry message sets (`old_produce`)."""
FLEXIBLE = 9
"""First version with compact fields and tags."""
_FIRST_WITH_HINTS = 10

Buffer = bytes | bytearray | memoryview

_ACKS = struct.Struct(">hi")
_PART = struct.Struct(">ii")
_ANSWER_0 = struct.Struct(">ihq")
_ANSWER = struct.Struct(">ihqq")
"""`_ANSWER_0` with the append time."""
_ANSWER_8 = struct.Struct(">ihqqq")
"""`_ANSWER` with the log start offset."""
_NOTHING_MORE = b"\1\0\0"
"""No record errors, no message, no tags, as versions with compact fields encode them."""
_PLAIN_3 = struct.Struct(">4xh16x0s")
"""Error of a partition's answer, and the bytes behind the partition's figures where there is nothing more to tell."""
_PLAIN_5 = struct.Struct(">4xh24x0s")
_PLAIN_8 = struct.Struct(">4xh24x6s")
_PLAIN_9 = struct.Struct(">4xh24x3s")
_NOTHING_MORE_8 = b"\0\0\0\0\xff\xff"
_I64 = struct.Struct(">q")
_PLAIN_ANSWER = 4 + 4 + 1 + 4 + 1
"""Bytes of an answer beside its topics: size, correlation id, the header's tags, throttle time, tags."""
_CORRELATED = 8
"""End of size and correlation id in an answer."""
_BEGINS_AT = 12
"""Offset behind size, api key, version and correlation id of a request."""
_ONE = write_uvarint(1 + 1)
_NO_TAGS = b"\0\0"
"""Bytes behind the last partition of a request: no tags of the topic, and no tags of the request."""
_LONGEST_BEGIN = 1024
"""Maximum bytes of a request's beginning kept per connection: names in a request may have megabytes."""
_FEW = 100
"""Maximum number of a plain answer's partitions that are checked in a single step."""
_PLAIN_PARTITION = _ANSWER.size + _I64.size + 1 + 1 + 1
"""Size of a partition with log start, and without record errors, message and tags."""
_MOST = 100_000
"""Maximum number of topics, partitions (of all topics) or record errors in a message; a higher number is nonsense.

The limit also bounds a request's memory: a partition of six bytes on the wire becomes two objects here.
"""


class ProducePart(NamedTuple):
    """A partition of a request; `records` is a view of the client's frame."""

    topic: str
    partition: int
    records: memoryview


class ProduceRequest(NamedTuple):
    """A parsed request."""

    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    parts: tuple[ProducePart, ...]
    parts_at: int = 0
    """Offset of the partitions in the frame if the request has a single topic; 0 otherwise."""
    answer_begins: bytes = b""
    """Bytes of the answer between the correlation id and the number of partitions; empty where they are not known."""


class PartitionAnswer(NamedTuple):
    """The answer to a client about a batch."""

    topic: str
    partition: int
    error: int
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    message: str | None = None


def _count(read: Reader, before: int = 0) -> int:
    """Return the number of elements that follow; the number together with `before` is bounded."""
    value = read.length()
    if before + value > _MOST:
        raise ProtocolViolation("absurd-count", f"a Produce message announces {value} elements")
    return value


def _read_parts(read: Reader, topic: str, count: int, view: memoryview) -> list[ProducePart]:
    """Return a topic's many partitions, in one loop without the reader's calls, for `make bench-router`."""
    frame, at, flexible = read.frame, read.at, read.flexible
    stop, out = len(frame), []
    for _ in range(count):
        if flexible:
            (partition,) = I32.unpack_from(frame, at)
            size, at = read_uvarint(frame, at + I32.size)
            size -= 1
        else:
            partition, size = _PART.unpack_from(frame, at)
            at += _PART.size
        end = at + size if size > 0 else at  # a null is empty
        if end > stop:
            raise ProtocolViolation("short-produce", "a batch runs past its request")
        out.append(ProducePart(topic, partition, view[at:end]))
        at = end
        if flexible:
            at = end + 1 if end < stop and not frame[end] else skip_tags(frame, end)  # a partition rarely has tags
    read.at = at
    return out


def parse_request(frame: bytearray, version: int, body: int) -> ProduceRequest:
    """Read a client's request; anything that does not add up raises ProtocolViolation."""
    try:
        read = Reader(frame, body, version >= FLEXIBLE)
        transactional_id = read.string() if version >= FIRST_WITH_BATCHES else None
        acks, timeout_ms = read.unpack(_ACKS)
        view = memoryview(frame)
        parts: list[ProducePart] = []
        topics, parts_at = _count(read), 0
        for _ in range(topics):
            topic = read.string() or ""
            parts_at = read.at if topics == 1 else 0
            parts += _read_parts(read, topic, _count(read, len(parts)), view)
            read.tags()
        read.tags()
        if read.at != len(frame):
            raise ProtocolViolation("trailing-bytes", f"{len(frame) - read.at} bytes follow a Produce message")
    except (struct.error, UnicodeDecodeError) as broken:
        raise ProtocolViolation("broken-produce", f"a Produce request cannot be read: {broken}") from None
    return ProduceRequest(version, transactional_id, acks, timeout_ms, tuple(parts), parts_at)


def read_produce(frame: bytearray, head: RequestHead) -> ProduceRequest:
    """Read a client's request from a whole frame whose head is read."""
    return parse_request(frame, head.version, skip_tags(frame, head.body) if head.version >= FLEXIBLE else head.body)


class _Shape(NamedTuple):
    """The bytes and fields that a client's requests for a topic have in common."""

    begins: bytes
    """Bytes of the requests from the client id up to the topic's name."""
    topic: str
    like: ProduceRequest
    """A request of this shape, without its partitions."""


class ProduceReader:
    """Reads a connection's requests; of most (single topic) only what differs: correlation id, partitions, batches."""

    def __init__(self) -> None:
        self._shape: _Shape | None = None

    def read(self, frame: bytearray, head: RequestHead) -> ProduceRequest:
        """Read the next request; anything that does not add up raises ProtocolViolation."""
        shape = self._shape
        if shape is not None and head.version == shape.like.version and frame.startswith(shape.begins, _BEGINS_AT):
            parts = _parts_alone(shape.topic, frame, shape.like.parts_at)
            if parts is not None:
                version, transactional_id, acks, timeout_ms, _, parts_at, answer_begins = shape.like
                return ProduceRequest(version, transactional_id, acks, timeout_ms, parts, parts_at, answer_begins)
        request = read_produce(frame, head)
        self._shape = _shape(request, frame)
        return request


def _parts_alone(topic: str, frame: bytearray, at: int) -> tuple[ProducePart, ...] | None:
    """Return the partitions of a request's only topic, from `at` on; None for tags or broken bytes."""
    read = Reader(frame, at, flexible=True)
    try:
        parts = _read_parts(read, topic, _count(read), memoryview(frame))
    except struct.error:
        return None
    return tuple(parts) if parts and frame[read.at :] == _NO_TAGS else None


def _shape(request: ProduceRequest, frame: bytearray) -> _Shape | None:
    """Return the shape of a request for a single topic, where its beginning is short enough to be kept."""
    if request.version < FLEXIBLE or not request.parts or not 0 < request.parts_at <= _LONGEST_BEGIN:
        return None
    topic = request.parts[0].topic
    answer = b"\0" + _ONE + write_compact_string(topic)
    begins = bytes(frame[_BEGINS_AT : request.parts_at])
    return _Shape(begins, topic, request._replace(parts=(), answer_begins=answer))


def encode_request(
    request: ProduceRequest,
    parts: Iterable[ProducePart],
    *,
    version: int,
    acks: int,
    correlation: int,
    client_id: str | None,
) -> list[Buffer]:
    """Return some partitions of a request as another request, batches uncopied."""
    flexible = version >= FLEXIBLE
    string = write_compact_string if flexible else write_string
    tags = b"\0" if flexible else b""
    topics: dict[str, list[ProducePart]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(part)
    head = encode_request_head(ApiKey.PRODUCE, version, correlation, (client_id or "").encode(), flexible)
    text = head + string(request.transactional_id) + _ACKS.pack(acks, request.timeout_ms)
    text += _array(len(topics), flexible)
    out: list[Buffer] = []
    for topic, named in topics.items():
        text += string(topic) + _array(len(named), flexible)
        for part in named:
            text += I32.pack(part.partition) + _array(len(part.records), flexible)
            out += [text, part.records]
            text = tags
        text += tags
    out.append(text + tags)
    out.insert(0, SIZE.pack(sum(len(piece) for piece in out)))
    return out


def _array(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else I32.pack(count)


def plain_answer_size(request: ProduceRequest) -> int:
    """Return the length of an answer with only figures for each partition; for versions with compact fields.

    An answer of this length, the shortest, has no errors by record, text or tags, and needs no reading.
    """
    if request.answer_begins:  # the header's tags are part of `answer_begins`
        return _PLAIN_ANSWER - 1 + len(request.answer_begins) + _plain_partitions(len(request.parts))
    topics: dict[str, int] = {}
    for part in request.parts:
        topics[part.topic] = topics.get(part.topic, 0) + 1
    size = _PLAIN_ANSWER + len(write_uvarint(len(topics) + 1))
    for topic, partitions in topics.items():
        size += len(write_compact_string(topic)) + _plain_partitions(partitions)
    return size


@lru_cache(maxsize=1024)
def _plain_partitions(count: int) -> int:
    """Return the length of `count` plain partitions of a topic, with their number and the topic's tags."""
    return len(write_uvarint(count + 1)) + count * _PLAIN_PARTITION + 1


def without_hints(frame: bytearray, request: ProduceRequest) -> Buffer:
    """Return a broker's answer to a whole request, without leader hints (D5); without any, the same frame."""
    if request.version < _FIRST_WITH_HINTS or len(frame) == plain_answer_size(request):
        return frame
    answers, throttle, hints = parse_answer(frame, request.version)
    if not hints:
        return frame
    return encode_answer(answers, version=request.version, correlation=correlation_id(frame), throttle_ms=throttle)


def parse_answer(frame: bytearray, version: int) -> tuple[list[PartitionAnswer], int, bool]:
    """Return a broker's answer: partitions, throttle time, and whether it has node ids or addresses."""
    try:
        read = Reader(frame, _CORRELATED, version >= FLEXIBLE)
        read.tags()
        out: list[PartitionAnswer] = []
        hints = False
        for _ in range(_count(read)):
            topic = read.string() or ""
            for _ in range(_count(read)):
                after = read.at + _ANSWER_8.size
                if version >= FLEXIBLE and frame[after : after + len(_NOTHING_MORE)] == _NOTHING_MORE:
                    out.append(PartitionAnswer(topic, *_ANSWER_8.unpack_from(frame, read.at)))
                    read.at = after + len(_NOTHING_MORE)
                    continue
                out.append(_parse_partition(read, topic, version))
                hints |= read.tags()
            read.tags()
        (throttle,) = read.unpack(I32)
        hints |= read.tags()
    except (struct.error, UnicodeDecodeError) as broken:
        raise ProtocolViolation("broken-produce-answer", f"a Produce answer cannot be read: {broken}") from None
    return out, throttle, hints


def all_stored(frame: bytearray, request: ProduceRequest) -> bool:
    """Return whether a broker's answer to a whole request says only that all is stored, and a throttle time."""
    version, count, begins = request.version, len(request.parts), request.answer_begins
    if begins and count <= _FEW:
        shape, stored = _stored(count)
        at = _CORRELATED + len(begins)
        whole = len(frame) == at + shape.size and frame.startswith(begins, _CORRELATED)
        return whole and shape.unpack_from(frame, at) == stored
    if begins and (len(frame) != plain_answer_size(request) or not frame.startswith(begins, _CORRELATED)):
        return False
    shape, nothing_more = _plain_partition(version)
    try:
        read = Reader(frame, _CORRELATED, version >= FLEXIBLE)
        tagged = read.tags()
        for _ in range(_count(read)):
            read.string()
            partitions = _count(read)
            end = read.at + partitions * shape.size
            for error, more in shape.iter_unpack(memoryview(frame)[read.at : end]):
                if error or more != nothing_more:
                    return False
            count -= partitions
            read.at = end
            tagged |= read.tags()
        read.unpack(I32)
        tagged |= read.tags()
    except (struct.error, ProtocolViolation):
        return False
    return not count and not tagged and read.at == len(frame)


@cache
def _stored(count: int) -> tuple[struct.Struct, tuple[int | bytes, ...]]:
    """Return how an answer with `count` partitions of a topic goes on, and the values that mean that all is stored."""
    partitions = struct.Struct(">B" + count * _PLAIN_9.format[1:] + "B4xB")
    return partitions, (count + 1, *(0, _NOTHING_MORE) * count, 0, 0)


def _plain_partition(version: int) -> tuple[struct.Struct, bytes]:
    """Return the layout of a partition's error and further fields, and the bytes of empty further fields."""
    if version >= FLEXIBLE:
        return _PLAIN_9, _NOTHING_MORE
    if version == 8:
        return _PLAIN_8, _NOTHING_MORE_8
    return (_PLAIN_5 if version >= 5 else _PLAIN_3), b""


def _parse_partition(read: Reader, topic: str, version: int) -> PartitionAnswer:
    index, error, base, append_time = read.unpack(_ANSWER)
    log_start = read.unpack(_I64)[0] if version >= 5 else -1
    if version < 8:
        return PartitionAnswer(topic, index, error, base, append_time, log_start)
    errors: list[tuple[int, str | None]] = []
    for _ in range(_count(read)):
        (batch_index,) = read.unpack(I32)
        errors.append((batch_index, read.string()))
        read.tags()
    message = read.string()
    return PartitionAnswer(topic, index, error, base, append_time, log_start, tuple(errors), message)


def encode_answer(answers: Sequence[PartitionAnswer], *, version: int, correlation: int, throttle_ms: int = 0) -> bytes:
    """Return the answer to a client, partitions in the given order, without any hint about leaders (D5)."""
    flexible = version >= FLEXIBLE
    string = write_compact_string if flexible else write_string
    tags = b"\0" if flexible else b""
    topics: dict[str, list[PartitionAnswer]] = {}
    for one in answers:
        topics.setdefault(one.topic, []).append(one)
    out = bytearray(I32.pack(correlation) + tags + _array(len(topics), flexible))
    for topic, named in topics.items():
        out += string(topic) + _array(len(named), flexible)
        for one in named:
            if version < 2:
                out += _ANSWER_0.pack(one.partition, one.error, one.base_offset)
                continue
            out += _ANSWER.pack(one.partition, one.error, one.base_offset, one.append_time)
            if version >= 5:
                out += _I64.pack(one.log_start)
            if version >= 8:
                out += _array(len(one.record_errors), flexible)
                for index, text in one.record_errors:
                    out += I32.pack(index) + string(text) + tags
                out += string(one.message)
            out += tags
        out += tags
    if version:
        out += I32.pack(throttle_ms) + tags
    return SIZE.pack(len(out)) + bytes(out)
