"""Consumers' Fetch requests as the router reads and writes them.

The codec generated from Kafka's own schemas is the judge.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity
from kmigrate.protocol.frames import SIZE, encode_request_head, peek_request
from kmigrate.router.wire.apis import OFFERED
from kmigrate.router.wire.fetch_session import (
    FIRST_READ,
    FetchRequest,
    Partition,
    Position,
    encode,
    put_session,
    read_request,
)

VERSIONS = range(FIRST_READ, OFFERED[1].versions[1] + 1)
NAMES = ("orders", "p" * 200)
int32, int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
places = st.builds(Position, int32, int64, int32, int64, int32)
partitions = st.tuples(st.sampled_from(NAMES), st.integers(0, 5))


def topic_field(version: int, name: str) -> dict[str, Any]:
    return {"topic": name} if version < 13 else {"topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, name)}


def wire_name(version: int, name: str) -> bytes:
    """Return the topic as the request carries it: the name, or the topic id from version 13."""
    if version >= 13:
        return uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes
    length = len(name) + 1
    return (bytes((length,)) if length < 128 else bytes((length & 0x7F | 0x80, length >> 7))) + name.encode()


def message(version: int, wanted: dict[tuple[str, int], Position], gone: list[tuple[str, int]], **values: Any) -> Any:
    kind = entity(1, version, "request")
    topic_type, gone_type = element_type(kind, "topics"), element_type(kind, "forgotten_topics_data")
    part_type = element_type(topic_type, "partitions")
    topics = [
        blank(
            topic_type,
            **topic_field(version, name),
            partitions=tuple(
                blank(
                    part_type,
                    partition=index,
                    current_leader_epoch=place.leader_epoch,
                    fetch_offset=place.offset,
                    last_fetched_epoch=place.last_fetched_epoch,
                    log_start_offset=place.log_start,
                    partition_max_bytes=place.max_bytes,
                )
                for (topic, index), place in wanted.items()
                if topic == name
            ),
        )
        for name in dict.fromkeys(topic for topic, _ in wanted)
    ]
    forgotten = [
        blank(gone_type, **topic_field(version, name), partitions=tuple(p for topic, p in gone if topic == name))
        for name in dict.fromkeys(topic for topic, _ in gone)
    ]
    replica = {"replica_id": -1} if version < 15 else {}
    return blank(kind, **replica, topics=tuple(topics), forgotten_topics_data=tuple(forgotten), **values)


def framed(said: Any, version: int, correlation: int = 5, client: bytes = b"c") -> bytearray:
    whole = encode_request_head(1, version, correlation, client, True) + encode_body(said)
    return bytearray(SIZE.pack(len(whole)) + whole)


def understood(frame: bytearray) -> FetchRequest | None:
    head = peek_request(frame)
    return read_request(frame, head.version, head.body)


@given(
    st.sampled_from(VERSIONS),
    st.dictionaries(partitions, places, max_size=8),
    st.lists(partitions, unique=True, max_size=4),
    st.integers(0, (1 << 31) - 1),
    st.tuples(int32, int32, int32, int32),
    st.sampled_from(["", "a", "r" * 300]),
)
def test_a_request_is_read_and_written_as_the_schemas_have_it(
    version: int,
    wanted: dict[tuple[str, int], Position],
    gone: list[tuple[str, int]],
    wait: int,
    numbers: tuple[int, int, int, int],
    rack: str,
) -> None:
    least, most, session, epoch = numbers
    values = {"min_bytes": least, "max_bytes": most, "session_id": session, "session_epoch": epoch, "rack_id": rack}
    said = message(version, wanted, gone, max_wait=dt.timedelta(milliseconds=wait), isolation_level=1, **values)
    frame = framed(said, version)
    read = understood(frame)
    if (session, epoch) == (0, -1):
        assert read is None, "it belongs to no session"
        return
    assert read is not None
    assert (read.max_wait_ms, read.min_bytes, read.max_bytes, read.isolation) == (wait, least, most, 1)
    assert (read.session_id, read.epoch) == (session, epoch)
    assert read.positions == {(wire_name(version, name), index): place for (name, index), place in wanted.items()}
    assert sorted(read.forgotten) == sorted((wire_name(version, name), index) for name, index in gone)
    head = peek_request(frame)
    written = encode(frame, version, head.body, read, 77)
    assert written == framed(said, version, correlation=77)
    changed = bytearray(frame)
    put_session(changed, version, head.body, session_id=9, epoch=8, max_bytes=7)
    assert changed == framed(replace(said, session_id=9, session_epoch=8, max_bytes=7), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_cut_short_or_has_more_behind_it_is_not_read(version: int) -> None:
    said = message(version, {("orders", 1): Position(1, 2, 3, 4, 5)}, [("orders", 2)], rack_id="abc", session_epoch=1)
    frame = framed(said, version)
    assert understood(frame) is not None
    for size in range(15, len(frame)):
        assert understood(frame[:size]) is None, size
    assert understood(frame + b"\0") is None


def test_what_is_of_no_session_too_long_or_of_an_older_version_is_not_read() -> None:
    many = {("orders", index): Position(1, 2, 3, 4, 5) for index in range(3000)}
    assert understood(framed(message(17, many, []), 17)) is None
    assert understood(framed(message(17, {}, [], session_id=0, session_epoch=-1), 17)) is None
    assert understood(framed(message(17, {}, [], session_id=1, session_epoch=-1), 17)) is not None
    frame = framed(message(12, {}, []), 12)
    struct.pack_into(">h", frame, 6, 11)
    assert understood(frame) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_followers_request_is_not_read(version: int) -> None:
    said = message(version, {("orders", 1): Position(1, 2, 3, 4, 5)}, [])
    if version < 15:
        said = replace(said, replica_id=3)
    else:
        said = replace(said, replica_state=replace(said.replica_state, replica_id=3, replica_epoch=1))
    assert understood(framed(said, version)) is None


@given(st.sampled_from(VERSIONS), st.binary(max_size=80))
def test_rubbish_is_read_as_nothing_or_as_what_it_says(version: int, body: bytes) -> None:
    whole = encode_request_head(1, version, 5, b"c", True) + body
    frame = bytearray(SIZE.pack(len(whole)) + whole)
    read = understood(frame)
    if read is not None:
        said = decode_body(entity(1, version, "request"), frame, peek_request(frame, flexible=True).body)
        named: list[Partition] = [
            (wire_name(version, t.topic) if version < 13 else t.topic_id.bytes, p.partition)
            for t in said.topics
            for p in t.partitions
        ]
        assert set(named) == set(read.positions)
