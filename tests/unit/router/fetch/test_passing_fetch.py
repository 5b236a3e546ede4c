"""Fetch answers that pass while they arrive: cut anywhere, the pieces equal the whole answer, byte for byte.

The codec generated from Kafka's own schemas writes and reads the answers.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import blank, decode_body, element_type, entity, frame_answer
from kmigrate.protocol.frames import SIZE, response_body_offset
from kmigrate.protocol.primitives import read_uvarint
from kmigrate.router.wire.apis import OFFERED
from kmigrate.router.wire.fetch import PassingFetch, rewrite_fetch
from kmigrate.router.wire.node_ids import AddressBook

BOOK = AddressBook(1_000_000, {1: ("router", 9001), 2: ("router", 9002)})
VERSIONS = range(OFFERED[1].versions[0], OFFERED[1].versions[1] + 1)


def answered(version: int, *, host: str = "", sizes: tuple[int, ...] = (300, 0, 40)) -> bytes:
    """Return an answer with two topics and a topic without partitions, with every field that the version has."""
    kind = entity(1, version, "response")
    topic_type = element_type(kind, "responses")
    part_type = element_type(topic_type, "partitions")
    aborted = element_type(part_type, "aborted_transactions")
    parts = []
    for index, size in enumerate(sizes):
        values: dict[str, Any] = {
            "partition_index": index,
            "high_watermark": 9,
            "records": random.Random(size).randbytes(size),
            "aborted_transactions": tuple(aborted(producer_id=n, first_offset=n) for n in range(index)),
        }
        if version >= 11:
            values["preferred_read_replica"] = (2, -1, 7)[index % 3]
        if version >= 12:
            leader = part_type.__dataclass_fields__["current_leader"].default
            values["current_leader"] = replace(leader, leader_id=1 + index, leader_epoch=3)
            diverging = part_type.__dataclass_fields__["diverging_epoch"].default
            values["diverging_epoch"] = replace(diverging, epoch=4, end_offset=5)
        parts.append(blank(part_type, **values))

    def topic(name: str, *of: Any) -> Any:
        named = {"topic": name} if version < 13 else {"topic_id": uuid.UUID(int=len(name))}
        return blank(topic_type, **named, partitions=of)

    message = blank(kind, responses=(topic("one", *parts[:-1]), topic("none"), topic("other", *parts)))
    if version >= 16 and host:
        endpoint = element_type(kind, "node_endpoints")
        message = replace(message, node_endpoints=(endpoint(node_id=1, host=host, port=9, rack="a"),))
    return frame_answer(message, 77)


def read(frame: bytes, version: int) -> Any:
    assert len(frame) == SIZE.unpack_from(frame)[0] + 4
    kind = entity(1, version, "response")
    return decode_body(kind, bytearray(frame), response_body_offset(bytearray(frame), version >= 12))


def passed(frame: bytes, version: int, pieces: Iterable[bytes], size: int = 0) -> Iterator[bytes]:
    """Yield the bytes that leave for each arriving piece.

    Bytes that are not taken are shown again, before the next piece.
    """
    answer, left, due = PassingFetch(version, BOOK), b"", size or len(frame)
    for piece in pieces:
        come = bytearray(left + piece)
        untouched = bytes(come)
        taken = answer.take(memoryview(come), due)
        due -= taken
        yield bytes(come[:taken])
        left = untouched[taken:]
        assert come[taken:] == left, "what stays is as it came"
    assert left == b""


def cut(frame: bytes, *places: int) -> list[bytes]:
    return [frame[a:b] for a, b in itertools.pairwise([0, *sorted(places), len(frame)])]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_is_cut_in_two_anywhere_leaves_as_the_whole_one_would(version: int) -> None:
    frame = answered(version)
    whole = bytes(rewrite_fetch(bytearray(frame), version, BOOK).frame)
    seen = read(whole, version).responses[2].partitions
    assert version < 11 or [int(p.preferred_read_replica) for p in seen] == [1_000_002, -1, 1_000_007]
    assert version < 12 or [int(p.current_leader.leader_id) for p in seen] == [1_000_001, 1_000_002, 1_000_003]
    assert [bytes(p.records) for p in seen] == [random.Random(size).randbytes(size) for size in (300, 0, 40)]
    for place in range(1, len(frame)):
        assert b"".join(passed(frame, version, cut(frame, place))) == whole, place


@pytest.mark.parametrize("version", VERSIONS)
def test_however_often_it_is_cut_it_is_the_same(version: int) -> None:
    frame, dice = answered(version, sizes=(600, 17, 200, 1, 0)), random.Random(version)
    whole = bytes(rewrite_fetch(bytearray(frame), version, BOOK).frame)
    assert b"".join(passed(frame, version, cut(frame, *range(1, len(frame))))) == whole, "byte by byte"
    for _ in range(100):
        places = dice.sample(range(1, len(frame)), dice.randrange(1, 30))
        assert b"".join(passed(frame, version, cut(frame, *places))) == whole, places


@pytest.mark.parametrize("version", VERSIONS)
def test_records_leave_at_once_and_what_stands_before_them_when_it_is_known(version: int) -> None:
    frame = answered(version, sizes=(50_000,))
    begin = frame.index(random.Random(50_000).randbytes(50_000))
    left = [len(out) for out in passed(frame, version, cut(frame, begin + 10, begin + 20_000))]
    assert left == [begin + 10, 19_990, len(frame) - begin - 20_000]


# Node endpoints, after the length has left


def leaders(frame: bytes, version: int) -> list[tuple[int, str, int, str]]:
    return [(int(e.node_id), e.host, int(e.port), e.rack) for e in read(frame, version).node_endpoints]


SHOWN = [(1_000_001, "router", 9001, "a")]


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 16])
@pytest.mark.parametrize(
    ("longer", "names"),
    [(-6, False), (-1, False), (1, False), *((n, True) for n in (0, 2, 3, 120, 129, 130, 131, 300, 16_387, 40_000))],
)
def test_endpoints_are_written_anew_in_the_room_there_is_or_left_to_metadata(
    version: int, longer: int, names: bool
) -> None:
    """Endpoints are padded up to the longest hosts; an endpoint that is too long, or a byte too short, is left out."""
    for spare in range(longer - 2, longer + 3):
        frame = answered(version, host="h" * max(1, len("router") + spare), sizes=(10,))
        [shown] = {b"".join(passed(frame, version, cut(frame, at))) for at in range(len(frame) - 40, len(frame))}
        assert len(shown) == len(frame)
        told = leaders(shown, version)
        assert told in (SHOWN, [])
        assert leaders(bytes(rewrite_fetch(bytearray(frame), version, BOOK).frame), version) == SHOWN
        if spare == longer and len("router") + spare > 0:
            assert (told == SHOWN) == names
        assert b"hhhh" not in shown


ROOMS = [*range(3, 400), *range(16_380, 16_395), *range(2_097_150, 2_097_160)]


def test_any_room_is_filled_with_fields_that_nobody_knows() -> None:
    """The content of an unknown field of the broker does not leave, and the answer keeps its length."""
    begin = answered(16, sizes=(1,))[:-1]
    for room in ROOMS:
        digits = 1 if room < 100 else 5  # A length in more bytes than necessary leaves no size out.
        size = room - 2 - digits
        length = bytes((size >> 7 * n & 0x7F) | (0x80 if n < digits - 1 else 0) for n in range(digits))
        field = b"\1\x64" + length + b"s" * size
        frame = SIZE.pack(len(begin) + room - 4) + begin[4:] + field
        shown = b"".join(passed(frame, 16, [frame]))
        count, at = read_uvarint(shown, len(begin))
        tags = []
        for _ in range(count):
            tag, at = read_uvarint(shown, at)
            size, at = read_uvarint(shown, at)
            assert shown[at : at + size] == bytes(size)
            at += size
            tags.append(tag)
        assert at == len(shown) == len(frame)
        assert tags == sorted(set(tags))
        assert 0 not in tags
        assert leaders(shown, 16) == []


# Senseless bytes


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 11])
def test_an_answer_that_ends_too_early_or_too_late_is_refused_whole_or_in_pieces(version: int) -> None:
    frame = answered(version, sizes=(20, 5))
    for broken in (*(frame[:end] for end in range(8, len(frame))), frame + b"\0", frame + b"\1\2\3"):
        with pytest.raises(ProtocolViolation, match=r"cannot be read|ends at"):
            rewrite_fetch(bytearray(broken), version, BOOK)
        with pytest.raises(ProtocolViolation, match=r"cannot be read|ends at"):
            list(passed(broken, version, cut(broken, len(broken) // 2)))


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 11])
def test_records_that_run_past_the_answer_are_refused_before_they_have_come(version: int) -> None:
    frame = answered(version, sizes=(50_000,))
    begin = frame.index(random.Random(50_000).randbytes(50_000))
    came = passed(frame, version, cut(frame, begin + 10), size=begin + 40_000)
    with pytest.raises(ProtocolViolation, match="cannot be read"):
        next(came)
