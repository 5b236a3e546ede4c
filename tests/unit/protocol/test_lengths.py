"""Every message that kio writes can be walked to its end; a message that announces too much is refused before kio."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from kio.schema.index import schema_name_map

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import API_NAMES, decode_body, encode_body, entity
from kmigrate.protocol.lengths import checked
from kmigrate.protocol.primitives import write_uvarint
from tests.hostile.requests import Nonsense

_VERSIONS = [(key, int(version)) for key, name in API_NAMES.items() for version in sorted(schema_name_map[name])]


@pytest.mark.parametrize("side", ["request", "response"])
def test_every_message_of_every_version_is_walked_to_its_end(side: str) -> None:
    """A byte beyond the end is refused, and so is a byte less: the walk knows where the message ends."""
    sample = Nonsense(7, ("topic",), ("group",))
    for key, version in _VERSIONS:
        kind = entity(key, version, side)
        body = encode_body(sample.message(kind))
        checked(kind, bytearray(body), 0)
        if body:
            with pytest.raises(ProtocolViolation):
                checked(kind, bytearray(body[:-1]), 0)


@pytest.mark.parametrize("count", [3, 1 << 20, (1 << 31) - 1])
def test_an_array_that_is_longer_than_its_message_is_refused_and_not_made_room_for(count: int) -> None:
    metadata = struct.pack(">i", count) + b"\0"
    with pytest.raises(ProtocolViolation, match="announces"):
        decode_body(entity(3, 4, "request"), bytearray(metadata), 0)
    compact = write_uvarint(count + 1) + b"\0" * 3
    with pytest.raises(ProtocolViolation):
        decode_body(entity(3, 12, "request"), bytearray(compact), 0)


@pytest.mark.parametrize(("side", "most"), [("request", 100_000), ("response", 1_000_000)])
def test_more_elements_than_any_message_has_are_refused_though_they_are_there(side: str, most: int) -> None:
    """A client's long request delays all other clients, so a client gets a tenth of a cluster's limit."""
    metadata = {"request": (b"", b"\0"), "response": (b"\0" * 4, b"\xff\xff" + b"\0" * 8)}
    before, after = metadata[side]
    element = b"\0\0" if side == "request" else b"\0" * 12

    def announced(count: int) -> bytearray:
        return bytearray(before + struct.pack(">i", count) + element * count + after)

    checked(entity(3, 4, side), announced(most), 0)
    with pytest.raises(ProtocolViolation, match=f"announces more than {most} elements in all"):
        checked(entity(3, 4, side), announced(most + 1), 0)


def test_a_client_may_ask_for_all_partitions_of_a_great_estate() -> None:
    """Exporters ask like this for each group: numbers are read a hundred times faster than elements with names."""
    kind, topics, partitions = entity(9, 5, "request"), 5_000, 100

    def asked(topics: int) -> bytearray:
        topic = b"\0\1t" + struct.pack(">i", partitions) + bytes(4 * partitions)
        return bytearray(b"\0\1g" + struct.pack(">i", topics) + topic * topics)

    assert sum(len(t.partition_indexes) for t in decode_body(kind, asked(topics), 0).topics) == 500_000
    with pytest.raises(ProtocolViolation, match="more than 100000 elements"):
        checked(kind, asked(2 * topics), 0)


def test_a_null_where_the_schema_has_none_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="null"):
        decode_body(entity(19, 2, "request"), bytearray(struct.pack(">iib", -1, 1000, 0)), 0)


_UNKNOWN = b"\x70\2ab"
"""Tag 112 with two bytes."""


@pytest.mark.parametrize("side", ["request", "response"])
def test_a_tag_that_nobody_knows_yet_is_no_reason_to_refuse_a_message(side: str) -> None:
    """Kafka adds tagged fields to versions that are released already."""
    sample = Nonsense(9, ("topic",), ("group",))
    tried = 0
    for key, version in _VERSIONS:
        kind = entity(key, version, side)
        body = encode_body(sample.message(kind))
        if kind.__flexible__ and not _has_tags(kind):
            assert body.endswith(b"\0")  # the number of the message's own tagged fields
            with_one = bytearray(body[:-1] + b"\1" + _UNKNOWN)
            assert decode_body(kind, with_one, 0) == decode_body(kind, bytearray(body), 0), (key, version)
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("places", [1, 2000])
def test_tags_beyond_any_number_that_is_meant_are_refused_before_they_are_read(places: int) -> None:
    """A tag takes two bytes of a request and fifty times as much memory, and ApiVersions is read before any login."""
    many = 1_001_000 // places
    tags = write_uvarint(many) + b"\x70\0" * many
    kind, body = (
        (entity(18, 3, "request"), b"\2a\2b" + tags)
        if places == 1
        else (entity(3, 12, "request"), write_uvarint(places + 1) + (b"\0" * 16 + b"\2a" + tags) * places + b"\1\0\0")
    )
    with pytest.raises(ProtocolViolation, match="tagged fields in one place"):
        decode_body(kind, bytearray(body), 0)


def _has_tags(kind: type) -> bool:
    return any("tag" in field.metadata for field in dataclasses.fields(kind))


def test_unknown_tags_inside_known_ones_are_cut_out_too() -> None:
    kind = entity(1, 16, "response")
    before = struct.pack(">ihi", 0, 0, 7) + b"\1"  # throttle time, error, session, no topics
    endpoint = struct.pack(">i", 5) + b"\2h" + struct.pack(">i", 9092) + b"\0"
    inside = b"\2" + endpoint + b"\1" + _UNKNOWN
    body = before + b"\2" + b"\0" + write_uvarint(len(inside)) + inside + _UNKNOWN
    told = decode_body(kind, bytearray(b"head" + body), 4)
    assert (int(told.session_id), told.responses) == (7, ())
    assert [(int(node.node_id), str(node.host), int(node.port)) for node in told.node_endpoints] == [(5, "h", 9092)]
