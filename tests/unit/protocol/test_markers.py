"""WriteTxnMarkers by hand is what kio writes and reads, and so is the request for the log ends behind the markers."""

from __future__ import annotations

import pytest

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import ApiKey, decode_body, element_type, encode_body, entity
from kmigrate.protocol.hot import Buffer
from kmigrate.protocol.markers import Marks, decode_marker_codes, encode_log_ends, encode_markers


def joined(body: list[Buffer]) -> bytearray:
    return bytearray(b"".join(map(bytes, body)))


def test_each_marker_of_a_request_names_the_partitions_that_need_so_many() -> None:
    marks = [
        Marks("a", 0, 1, 5, 7, 77),
        Marks("b", 3, 2, 5, 7, 77),
        Marks("a", 1, 1, 5, 7, 77),
        Marks("ü", 2, 1, 6, 7, 77),
    ]
    request = decode_body(entity(ApiKey.WRITE_TXN_MARKERS, 1, "request"), joined(encode_markers(marks)), 0)
    found = [
        (m.producer_epoch, m.coordinator_epoch, {str(t.name): tuple(t.partition_indexes) for t in m.topics})
        for m in request.markers
    ]
    assert found == [
        (5, 7, {"a": (0, 1), "b": (3,)}),
        (5, 7, {"b": (3,)}),
        (6, 7, {"ü": (2,)}),
    ]
    assert {(m.producer_id, m.transaction_result) for m in request.markers} == {(77, True)}


def test_producer_ids_do_not_share_a_marker() -> None:
    marks = [Marks("a", 0, 1, 5, 7, 77), Marks("a", 1, 1, 5, 7, 78)]
    request = decode_body(entity(ApiKey.WRITE_TXN_MARKERS, 1, "request"), joined(encode_markers(marks)), 0)
    assert [(m.producer_id, [list(t.partition_indexes) for t in m.topics]) for m in request.markers] == [
        (77, [[0]]),
        (78, [[1]]),
    ]


def test_the_first_error_of_a_partition_is_its_code() -> None:
    kind = entity(ApiKey.WRITE_TXN_MARKERS, 1, "response")
    result = element_type(kind, "markers")
    topic = element_type(result, "topics")
    part = element_type(topic, "partitions")
    error = type(part(partition_index=0, error_code=_code(0)).error_code)
    answer = kind(
        markers=tuple(
            result(
                producer_id=77,
                topics=(
                    topic(name="a", partitions=tuple(part(partition_index=p, error_code=error(c)) for p, c in told)),
                ),
            )
            for told in (((0, 0), (1, 52)), ((1, 0), (2, 0)))
        )
    )
    assert decode_marker_codes(bytearray(9) + encode_body(answer)) == {("a", 0): 0, ("a", 1): 52, ("a", 2): 0}


def _code(number: int) -> object:
    from kio.schema.errors import ErrorCode

    return ErrorCode(number)


def test_log_ends_are_asked_for() -> None:
    body = joined(encode_log_ends([("a", 0), ("b", 2), ("a", 5)]))
    request = decode_body(entity(ApiKey.LIST_OFFSETS, 5, "request"), body, 0)
    assert request.replica_id == -2
    asked = [(str(t.name), p.partition_index, p.timestamp) for t in request.topics for p in t.partitions]
    assert asked == [("a", 0, -1), ("a", 5, -1), ("b", 2, -1)]


def test_an_answer_that_ends_too_early_is_named() -> None:
    with pytest.raises(ProtocolViolation) as raised:
        decode_marker_codes(bytearray(9) + b"\2" + bytes(8) + b"\2\2a\2\0")
    assert raised.value.ref == "short-markers-answer"
