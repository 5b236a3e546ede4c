"""What kio writes can be walked to its end, and what announces more than it has is refused before kio sees it."""

from __future__ import annotations

import struct

import pytest

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import API_NAMES, decode_body, encode_body, entity, known_versions
from kmigrate.protocol.lengths import check_lengths
from kmigrate.protocol.primitives import write_uvarint
from tests.hostile.requests import Nonsense

_VERSIONS = [
    (key, version)
    for key in API_NAMES
    for low, high in [known_versions(key) or (0, -1)]
    for version in range(low, high + 1)
]


@pytest.mark.parametrize("side", ["request", "response"])
def test_every_message_of_every_version_is_walked_to_its_end(side: str) -> None:
    """Beyond the end is refused and so is one byte less: the walk knows where the message ends."""
    sample = Nonsense(7, ("topic",), ("group",))
    for key, version in _VERSIONS:
        kind = entity(key, version, side)
        body = encode_body(sample.message(kind))
        check_lengths(kind, bytearray(body), 0)
        if body:
            with pytest.raises(ProtocolViolation):
                check_lengths(kind, bytearray(body[:-1]), 0)


@pytest.mark.parametrize("count", [3, 1 << 20, (1 << 31) - 1])
def test_an_array_that_is_longer_than_its_message_is_refused_and_not_made_room_for(count: int) -> None:
    metadata = struct.pack(">i", count) + b"\0"
    with pytest.raises(ProtocolViolation, match="announces"):
        decode_body(entity(3, 4, "request"), bytearray(metadata), 0)
    compact = write_uvarint(count + 1) + b"\0" * 3
    with pytest.raises(ProtocolViolation):
        decode_body(entity(3, 12, "request"), bytearray(compact), 0)


def test_more_elements_than_any_message_has_are_refused_though_they_are_there() -> None:
    count = 1_000_001
    metadata = struct.pack(">i", count) + b"\0\0" * count + b"\0"
    with pytest.raises(ProtocolViolation, match="announces"):
        decode_body(entity(3, 4, "request"), bytearray(metadata), 0)


def test_a_null_where_the_schema_has_none_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="null"):
        decode_body(entity(19, 2, "request"), bytearray(struct.pack(">iib", -1, 1000, 0)), 0)
