"""Writes of clients before Kafka 0.11: message sets become batches, and answers are in the client's version.

Requests are packed, and answers are read, by hand: Kafka 4 and kio do not know these versions any more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code
from kmigrate.records.batch import Batch, check_crc, walk
from kmigrate.records.rewrite import contents
from tests.unit.records.test_old_messages import message, wrapper
from tests.unit.router.router_fakes import SHIFT, Sent, Stage, route

OLD = range(3)
OWN_ID = 40
"""The producer id that the router gets for writes without a producer id."""


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _request(version: int, *sets: tuple[str, int, bytes], acks: int = -1, correlation: int = 3) -> bytearray:
    """Return a request with a topic of its own for each message set."""
    body = struct.pack(">hhi", 0, version, correlation) + _text("old") + struct.pack(">hii", acks, 900, len(sets))
    for topic, partition, records in sets:
        body += _text(topic) + struct.pack(">iii", 1, partition, len(records)) + records
    return bytearray(struct.pack(">i", len(body)) + body)


def _read(frame: bytes, version: int) -> tuple[int, list[tuple[str, int, int, int]], int | None]:
    """Return the correlation id, (topic, partition, error, base offset) of each partition, and the throttle time."""
    size, correlation, topics = struct.unpack_from(">iii", frame)
    assert size == len(frame) - 4
    at, found = 12, []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", frame, at)
        topic = frame[at + 2 : at + 2 + length].decode()
        (partitions,) = struct.unpack_from(">i", frame, at + 2 + length)
        at += 2 + length + 4
        for _ in range(partitions):
            partition, error, base = struct.unpack_from(">ihq", frame, at)
            found.append((topic, partition, error, base))
            at += 14 + (8 if version >= 2 else 0)
    throttle = struct.unpack_from(">i", frame, at)[0] if version else None
    assert at + (4 if version else 0) == len(frame)
    return correlation, found, throttle


def _stage(*routes: tuple[str, Serve]) -> Stage:
    return Stage(*(route(topic, serve) for topic, serve in routes))


def _batch(sent: Sent, index: int = 0) -> Batch:
    (found,) = walk(sent.request.parts[index].records)
    assert check_crc(found.view)
    return found


def _messages(found: Batch) -> list[tuple[int, bytes]]:
    return [content for _, content in sorted(contents(found).items())]


def _content(key: bytes, value: bytes, timestamp: int) -> tuple[int, bytes]:
    """Return a record as readers see it: time, and key, value and headers with the lengths of magic 2."""
    return timestamp, bytes((2 * len(key),)) + key + bytes((2 * len(value),)) + value + b"\0"


@pytest.mark.parametrize("version", OLD)
def test_a_write_to_a_topic_without_a_link_reaches_the_target_as_a_batch_and_is_answered_in_its_version(
    version: int,
) -> None:
    stage = _stage()
    magic = 1 if version == 2 else 0
    stage.session.frame(_request(version, ("free", 4, message(0, b"k", b"v", magic=magic, timestamp=77))))
    (sent,) = stage.edge.sent
    assert (sent.where, sent.request.version, sent.request.acks, sent.request.timeout_ms) == ("target", 3, -1, 900)
    found = _batch(sent)
    assert (found.producer_id, found.count, found.base_offset) == (-1, 1, 0)
    assert _messages(found) == [_content(b"k", b"v", 77 if magic else -1)]
    sent.answer(base=12)
    assert _read(bytes(stage.edge.replies[0]), version) == (3, [("free", 4, 0, 12)], 0 if version else None)


@pytest.mark.parametrize("version", OLD)
def test_a_forwarded_write_gets_the_routers_own_producer_id_so_that_it_is_no_direct_writers(version: int) -> None:
    """Producers without an id would count as clients past the routers, and no promote would be possible."""
    stage = _stage(("t", Serve.FORWARD))
    stage.session.frame(_request(version, ("t", 0, message(0, b"a", b"1") + message(0, b"b", b"2"))))
    stage.backend.ids.pop()(OWN_ID)
    (sent,) = stage.edge.sent
    found = _batch(sent)
    assert (sent.where, found.producer_id, found.base_sequence, found.count) == ("source 1", OWN_ID + SHIFT, 0, 2)
    assert _messages(found) == [_content(b"a", b"1", -1), _content(b"b", b"2", -1)]
    sent.answer(Code.NOT_LEADER_OR_FOLLOWER)
    assert _read(bytes(stage.edge.replies[0]), version)[1] == [("t", 0, Code.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_compressed_set_becomes_a_compressed_batch_whatever_its_offsets_say() -> None:
    inner = b"".join(message(offset, b"", b"%d" % offset, magic=1, timestamp=9) for offset in (0, 0, 7))
    stage = _stage()
    stage.session.frame(_request(2, ("free", 0, wrapper(0, inner, magic=1) + message(0, b"", b"last", magic=1))))
    found = _batch(stage.edge.sent[0])
    assert (found.codec, found.count, found.last_offset_delta) == (1, 4, 3)
    assert [content[1] for content in _messages(found)] == [
        _content(b"", value, 9)[1] for value in (b"0", b"0", b"7", b"last")
    ]


def test_a_write_waits_at_a_fence_and_goes_to_the_target_after_the_flip() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=2))
    stage.session.frame(_request(1, ("t", 0, message(0, b"a", b"1"))))
    assert stage.edge.sent == []
    stage.swap(route("t", Serve.HOLD, fence_epoch=2), route("other", Serve.FORWARD))
    assert stage.edge.sent == []
    stage.swap(route("t", Serve.LOCAL))
    (sent,) = stage.edge.sent
    assert (sent.where, _batch(sent).producer_id) == ("target", -1)
    sent.answer(base=5)
    assert _read(bytes(stage.edge.replies[0]), 1) == (3, [("t", 0, 0, 5)], 0)


def test_answers_of_old_and_new_writes_leave_in_the_order_of_requests() -> None:
    stage = _stage()
    stage.session.frame(_request(0, ("free", 0, message(0, b"", b"1")), correlation=1))
    stage.session.frame(_request(2, ("free", 0, message(0, b"", b"2", magic=1)), correlation=2))
    stage.edge.sent[1].answer()
    assert stage.edge.replies == []
    stage.edge.sent[0].answer()
    told = [_read(bytes(frame), version)[0] for frame, version in zip(stage.edge.replies, (0, 2), strict=True)]
    assert told == [1, 2]


def test_a_write_without_an_answer_stays_without_an_answer() -> None:
    stage = _stage(("t", Serve.FORWARD))
    stage.session.frame(_request(1, ("free", 0, message(0, b"", b"1")), acks=0))
    assert (stage.edge.sent[0].request.acks, stage.edge.replies) == (0, [])


def _broken() -> Sequence[bytes]:
    whole = message(0, b"k", b"v", magic=1)
    return [whole[:-1], whole[:-1] + b"x", wrapper(0, b"", magic=1), wrapper(0, whole, magic=1)[:-4] + b"xxxx"]


@pytest.mark.parametrize("records", _broken(), ids=["cut", "crc", "empty", "wrapper"])
def test_a_broken_set_is_refused(records: bytes) -> None:
    stage = _stage(("t", Serve.FORWARD))
    stage.session.frame(_request(2, ("t", 0, records)))
    assert stage.edge.sent == []
    assert _read(bytes(stage.edge.replies[0]), 2)[1] == [("t", 0, Code.INVALID_RECORD, -1)]
