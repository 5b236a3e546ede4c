"""ListOffsets by hand is what kio writes and reads."""

from __future__ import annotations

import datetime as dt

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import ApiKey, element_type, encode_body, entity
from kmigrate.protocol.offsets import LIST_OFFSETS_VERSION, LogOffset, decode_offsets, encode_offsets

_HEAD = bytes.fromhex("00000000 00000007")
"""Size and correlation id of a response."""


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("epochs", [{}, {("a", 5): 3}])
def test_a_request_is_what_kio_writes(committed: bool, epochs: dict[tuple[str, int], int]) -> None:
    wanted = {("a", 0): -1, ("ü", 2): -2, ("a", 5): 1_700_000_000_000}
    kind = entity(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, "request")
    topic = element_type(kind, "topics")
    part = element_type(topic, "partitions")

    def parts(name: str) -> tuple[object, ...]:
        return tuple(
            part(partition_index=key[1], timestamp=timestamp, current_leader_epoch=epochs.get(key, -1))
            for key, timestamp in wanted.items()
            if key[0] == name
        )

    topics = tuple(topic(name=name, partitions=parts(name)) for name in ("a", "ü"))
    expected = encode_body(kind(replica_id=-2, isolation_level=int(committed), topics=topics))
    assert encode_offsets(wanted, epochs, replica_id=-2, read_committed=committed) == [expected]


def test_a_response_of_kio_is_read() -> None:
    kind = entity(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, "response")
    topic = element_type(kind, "topics")
    part = element_type(topic, "partitions")
    answers = {
        ("a", 3): LogOffset(0, 9, 1),
        ("a", 4): LogOffset(6, -1, -1),
        ("ü", 0): LogOffset(0, 1 << 40, 7, 1_700_000_000_000),
    }

    def parts(name: str) -> tuple[object, ...]:
        return tuple(
            part(
                partition_index=key[1],
                error_code=ErrorCode(each.error),
                timestamp=each.timestamp,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
            )
            for key, each in answers.items()
            if key[0] == name
        )

    topics = tuple(topic(name=name, partitions=parts(name)) for name in ("a", "ü"))
    frame = bytearray(_HEAD + encode_body(kind(throttle_time=dt.timedelta(milliseconds=5), topics=topics)))
    assert decode_offsets(frame) == answers
    with pytest.raises(ProtocolViolation) as raised:
        decode_offsets(frame[:-1])
    assert raised.value.ref == "short-offsets-answer"
