"""Parsing of Produce requests, and of answers: which answers need no parsing, and which say that all is stored.

Requests and answers come from kio.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.produce.v11 import response as v11
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import i16, i32, i32Timedelta, i64

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import RequestHead, peek_request
from kmigrate.router.wire.produce import (
    ProducePart,
    ProduceReader,
    ProduceRequest,
    all_stored,
    parse_answer,
    plain_answer_size,
    read_produce,
    without_hints,
)

TOPICS = {"orders": (0, 1, 7), "z" * 200: (3,)}
REQUEST = ProduceRequest(
    11, None, -1, 1000, tuple(ProducePart(name, p, memoryview(b"")) for name, parts in TOPICS.items() for p in parts)
)


def _answer(error: ErrorCode = ErrorCode.none, **odd: Any) -> v11.PartitionProduceResponse:
    fields: dict[str, Any] = {
        "index": i32(0), "error_code": error, "base_offset": i64(1 << 40), "log_append_time": None,
        "log_start_offset": i64(5), "record_errors": (), "error_message": None, **odd,
    }  # fmt: skip
    return v11.PartitionProduceResponse(**fields)


def _frame(first: v11.PartitionProduceResponse, **odd: Any) -> bytearray:
    """Return an answer to REQUEST with the given first partition; the other partitions are plain."""
    responses = []
    for name, parts in TOPICS.items():
        told = [first if name == "orders" and p == 0 else _answer() for p in parts]
        responses.append(v11.TopicProduceResponse(name=TopicName(name), partition_responses=tuple(told)))
    return _answer_frame(responses, **odd)


def _answer_frame(responses: list[v11.TopicProduceResponse], **odd: Any) -> bytearray:
    out = io.BytesIO(bytes(9))
    out.seek(9)
    entity_writer(v11.ProduceResponse)(
        out, v11.ProduceResponse(responses=tuple(responses), throttle_time=i32Timedelta.parse(dt.timedelta(0)), **odd)
    )
    return bytearray(out.getvalue())


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.not_leader_or_follower])
def test_an_answer_of_figures_alone_has_the_plain_size(error: ErrorCode) -> None:
    frame = _frame(_answer(error))
    assert len(frame) == plain_answer_size(REQUEST)
    assert parse_answer(frame, 11)[2] is False
    assert all_stored(frame, REQUEST) is (error is ErrorCode.none)


def test_an_answer_that_names_a_node_has_not() -> None:
    hint = v11.LeaderIdAndEpoch(leader_id=BrokerId(2), leader_epoch=i32(7))
    endpoint = v11.NodeEndpoint(node_id=BrokerId(2), host="real.example", port=i32(9092), rack=None)
    for frame in (_frame(_answer(current_leader=hint)), _frame(_answer(), node_endpoints=(endpoint,))):
        assert len(frame) > plain_answer_size(REQUEST)
        assert parse_answer(frame, 11)[2] is True
        assert not all_stored(frame, REQUEST)


def test_an_answer_with_words_has_not() -> None:
    record = v11.BatchIndexAndErrorMessage(batch_index=i32(0), batch_index_error_message=None)
    odd: dict[str, Any]
    for odd in ({"error_message": "why"}, {"record_errors": (record,)}):
        frame = _frame(_answer(**odd))
        assert len(frame) > plain_answer_size(REQUEST)
        assert not all_stored(frame, REQUEST)


def _told(version: int, errors: list[list[int]], message: str | None) -> bytearray:
    """Return an answer in the given version, with errors by topic and partition."""
    schema = importlib.import_module(f"kio.schema.produce.v{version}.response")

    def made(kind: type[Any], **fields: Any) -> Any:
        known = {field.name for field in dataclasses.fields(kind)}
        return kind(**{name: value for name, value in fields.items() if name in known})

    def partition(index: int, code: int) -> Any:
        return made(
            schema.PartitionProduceResponse, index=i32(index), error_code=ErrorCode(code), base_offset=i64(9),
            log_append_time=None, log_start_offset=i64(5), record_errors=(), error_message=message,
        )  # fmt: skip

    topics = tuple(
        schema.TopicProduceResponse(
            name=TopicName(f"t{at}"), partition_responses=tuple(partition(p, code) for p, code in enumerate(codes))
        )
        for at, codes in enumerate(errors)
    )
    out = io.BytesIO(bytes(9))
    out.seek(9 if version >= 9 else 8)
    entity_writer(schema.ProduceResponse)(
        out, schema.ProduceResponse(responses=topics, throttle_time=i32Timedelta.parse(dt.timedelta(milliseconds=7)))
    )
    return bytearray(out.getvalue())


def _asked(version: int, count: int) -> ProduceRequest:
    return ProduceRequest(version, None, -1, 1000, tuple(ProducePart("t", p, memoryview(b"")) for p in range(count)))


_CODES = st.lists(st.lists(st.sampled_from((0, 0, 0, 0, 0, 6, 45)), min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.integers(3, 11), _CODES, st.sampled_from((None, None, "", "why")))
def test_all_is_stored_where_no_partition_has_an_error_or_words(
    version: int, errors: list[list[int]], message: str | None
) -> None:
    frame, count = _told(version, errors, message), sum(map(len, errors))
    plain = not any(map(any, errors)) and (message is None or version < 8)
    assert all_stored(frame, _asked(version, count)) is plain
    assert not all_stored(frame, _asked(version, count + 1))
    assert not all_stored(frame, _asked(version, count - 1))


@given(st.integers(3, 11), _CODES, st.integers(0, 60), st.binary(min_size=1, max_size=3))
def test_an_answer_that_is_cut_off_or_goes_on_says_nothing(
    version: int, errors: list[list[int]], cut: int, more: bytes
) -> None:
    frame, count = _told(version, [[0 for _ in codes] for codes in errors], None), sum(map(len, errors))
    assert not all_stored(frame + more, _asked(version, count))
    assert not all_stored(frame[: -1 - cut], _asked(version, count))


@given(st.integers(3, 11), st.binary(max_size=80), st.integers(1, 3))
def test_nonsense_is_never_believed_to_say_that_all_is_stored(version: int, noise: bytes, count: int) -> None:
    frame = bytearray(8) + noise
    if all_stored(frame, _asked(version, count)):
        answers, _, hints = parse_answer(frame, version)
        assert ([answer.error for answer in answers], hints) == ([0] * count, False)


def _request(version: int, acks: int, client: str, parts: list[tuple[str, int, bytes]]) -> bytearray:
    """Return a request whose body kio wrote."""
    schema = importlib.import_module(f"kio.schema.produce.v{version}.request")
    topics: dict[str, list[Any]] = {}
    for topic, partition, records in parts:
        topics.setdefault(topic, []).append(schema.PartitionProduceData(index=i32(partition), records=records))
    body = io.BytesIO()
    entity_writer(schema.ProduceRequest)(
        body,
        schema.ProduceRequest(
            transactional_id=None, acks=i16(acks), timeout=i32Timedelta.parse(dt.timedelta(seconds=30)),
            topic_data=tuple(
                schema.TopicProduceData(name=TopicName(name), partition_data=tuple(data))
                for name, data in topics.items()
            ),
        ),
    )  # fmt: skip
    head = struct.pack(">hhih", 0, version, acks, len(client)) + client.encode() + (b"\0" if version >= 9 else b"")
    return bytearray(struct.pack(">i", len(head) + len(body.getvalue())) + head + body.getvalue())


def _read(read: Callable[[bytearray, RequestHead], ProduceRequest], frame: bytearray) -> ProduceRequest | str:
    try:
        return read(frame, peek_request(frame))._replace(answer_begins=b"")
    except ProtocolViolation as violation:
        return f"{violation.ref} {violation.what}"


_RECORDS = st.sampled_from((b"", b"\0\0\0", b"r", b"r" * 120, b"r" * 300, b"\0" * 20_000))
_PART = st.tuples(st.sampled_from(("orders", "orders", "order", "z" * 200)), st.integers(0, 300), _RECORDS)
_REQUEST = st.builds(
    _request,
    st.sampled_from((7, 9, 11, 11, 11)),
    st.sampled_from((-1, -1, 1)),
    st.sampled_from(("me", "me", "you")),
    st.one_of(
        st.lists(_PART, min_size=1, max_size=3),
        st.lists(_PART, min_size=1, max_size=8).map(lambda parts: [("orders", *rest) for _, *rest in parts]),
    ),
)
_DAMAGE = st.one_of(st.none(), st.tuples(st.one_of(st.integers(12, 400), st.integers(-4, -1)), st.binary(max_size=3)))


@given(st.lists(st.tuples(_REQUEST, _DAMAGE), min_size=1, max_size=8))
def test_a_request_is_read_alike_whatever_was_read_before_it(requests: list[tuple[bytearray, Any]]) -> None:
    reader = ProduceReader()
    for whole, damage in requests:
        frame = bytearray(whole)
        if damage is not None:
            at, put = damage
            frame[at : at + len(put) or None] = put
        assert _read(reader.read, frame) == _read(read_produce, frame)


@pytest.mark.parametrize(("before", "count"), [(1, 1), (1, 6), (6, 1), (6, 126), (126, 127), (200, 1000)])
def test_the_second_for_one_topic_is_not_read_field_by_field(
    before: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ProduceReader()
    first, second = (
        _request(11, -1, "me", [("orders", partition, b"r" * 40 * (partition + 1)) for partition in range(parts)])
        for parts in (before, count)
    )
    reader.read(first, peek_request(first))
    monkeypatch.setattr("kmigrate.router.wire.produce.read_produce", None)
    read = reader.read(second, peek_request(second))
    assert read._replace(answer_begins=b"") == read_produce(second, peek_request(second))
    first.clear()  # Nothing holds a reference to the first request any more.


_HINT = v11.LeaderIdAndEpoch(leader_id=BrokerId(2), leader_epoch=i32(7))
_TOLD_MORE = (("current_leader", _HINT), ("error_message", "why"))


@given(
    st.sampled_from((0, 0, 6, 45)),
    st.sampled_from((None, None, *_TOLD_MORE)),
    st.integers(0, 1000),
    st.sampled_from((1, 1, 2, 6, 100, 101, 130)),
    st.integers(0, 129),
)
def test_of_the_answer_to_one_that_was_read_at_a_glance_as_much_is_seen(
    code: int, odd: Any, partition: int, count: int, which: int
) -> None:
    reader = ProduceReader()
    frame = _request(11, -1, "me", [("orders", partition + at, b"r" * 40) for at in range(count)])
    reader.read(frame, peek_request(frame))
    glanced, whole = reader.read(frame, peek_request(frame)), read_produce(frame, peek_request(frame))
    assert glanced.answer_begins
    assert plain_answer_size(glanced) == plain_answer_size(whole)
    parts = [_answer(index=i32(partition + at)) for at in range(count)]
    parts[which % count] = _answer(ErrorCode(code), index=i32(partition), **dict([odd] if odd else []))
    told = tuple(parts)
    answer = _answer_frame([v11.TopicProduceResponse(name=TopicName("orders"), partition_responses=told)])
    assert all_stored(answer, glanced) is all_stored(answer, whole) is (not code and odd is None)
    assert without_hints(answer, glanced) == without_hints(answer, whole)
    another = _answer_frame([v11.TopicProduceResponse(name=TopicName("others"), partition_responses=told)])
    assert not all_stored(another, glanced)
    fewer = _answer_frame([v11.TopicProduceResponse(name=TopicName("orders"), partition_responses=told[1:])])
    assert not all_stored(fewer, glanced)
    assert not all_stored(answer + b"\0", glanced)
    assert not all_stored(answer[:-1], glanced)


def test_names_of_any_length_are_read_and_no_connection_keeps_long_ones() -> None:
    reader = ProduceReader()
    for length in (1, 800, 1000, 30_000):
        frame = _request(11, -1, "c" * length, [("orders", 3, b"r")])
        for _ in range(2):
            read = reader.read(frame, peek_request(frame))
        assert read._replace(answer_begins=b"") == read_produce(frame, peek_request(frame))
        assert bool(read.answer_begins) is (length <= 800)


def test_a_request_with_tags_is_read_field_by_field() -> None:
    reader = ProduceReader()
    frame = _request(11, -1, "me", [("orders", 3, b"r")])
    tagged = frame[:-1] + b"\1\5\1x"
    for _ in range(2):
        assert not reader.read(tagged, peek_request(tagged)).answer_begins
    reader.read(frame, peek_request(frame))
    assert not reader.read(tagged, peek_request(tagged)).answer_begins
    reader.read(frame, peek_request(frame))
    assert reader.read(frame, peek_request(frame)).answer_begins
