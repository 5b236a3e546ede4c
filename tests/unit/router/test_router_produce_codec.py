"""Which Produce answers need no reading, and which say that all is stored, judged by answers that kio has written."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.produce.v11 import response as v11
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import i32, i32Timedelta, i64

from kmigrate.router.apis.produce import ProducePart, ProduceRequest, all_stored, parse_answer, plain_answer_size

TOPICS = {"orders": (0, 1, 7), "z" * 200: (3,)}
REQUEST = ProduceRequest(
    11, None, -1, 0, 1000, tuple(ProducePart(name, p, memoryview(b"")) for name, parts in TOPICS.items() for p in parts)
)


def _answer(error: ErrorCode = ErrorCode.none, **odd: Any) -> v11.PartitionProduceResponse:
    fields: dict[str, Any] = {
        "index": i32(0), "error_code": error, "base_offset": i64(1 << 40), "log_append_time": None,
        "log_start_offset": i64(5), "record_errors": (), "error_message": None, **odd,
    }  # fmt: skip
    return v11.PartitionProduceResponse(**fields)


def _frame(first: v11.PartitionProduceResponse, **odd: Any) -> bytearray:
    """An answer to REQUEST whose first partition is given; the others are plain."""
    responses = []
    for name, parts in TOPICS.items():
        told = [first if name == "orders" and p == 0 else _answer() for p in parts]
        responses.append(v11.TopicProduceResponse(name=TopicName(name), partition_responses=tuple(told)))
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
    assert all_stored(frame, 11, len(REQUEST.parts)) is (error is ErrorCode.none)


def test_an_answer_that_names_a_node_has_not() -> None:
    hint = v11.LeaderIdAndEpoch(leader_id=BrokerId(2), leader_epoch=i32(7))
    endpoint = v11.NodeEndpoint(node_id=BrokerId(2), host="real.example", port=i32(9092), rack=None)
    for frame in (_frame(_answer(current_leader=hint)), _frame(_answer(), node_endpoints=(endpoint,))):
        assert len(frame) > plain_answer_size(REQUEST)
        assert parse_answer(frame, 11)[2] is True
        assert not all_stored(frame, 11, len(REQUEST.parts))


def test_an_answer_with_words_has_not() -> None:
    record = v11.BatchIndexAndErrorMessage(batch_index=i32(0), batch_index_error_message=None)
    odd: dict[str, Any]
    for odd in ({"error_message": "why"}, {"record_errors": (record,)}):
        frame = _frame(_answer(**odd))
        assert len(frame) > plain_answer_size(REQUEST)
        assert not all_stored(frame, 11, len(REQUEST.parts))


def _told(version: int, errors: list[list[int]], message: str | None) -> bytearray:
    """An answer of any version, with errors by topic and partition."""
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


_CODES = st.lists(st.lists(st.sampled_from((0, 0, 0, 0, 0, 6, 45)), min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.integers(3, 11), _CODES, st.sampled_from((None, None, "", "why")))
def test_all_is_stored_where_no_partition_has_an_error_or_words(
    version: int, errors: list[list[int]], message: str | None
) -> None:
    frame, count = _told(version, errors, message), sum(map(len, errors))
    plain = not any(map(any, errors)) and (message is None or version < 8)
    assert all_stored(frame, version, count) is plain
    assert not all_stored(frame, version, count + 1)
    assert not all_stored(frame, version, count - 1)


@given(st.integers(3, 11), _CODES, st.integers(0, 60), st.binary(min_size=1, max_size=3))
def test_an_answer_that_is_cut_off_or_goes_on_says_nothing(
    version: int, errors: list[list[int]], cut: int, more: bytes
) -> None:
    frame, count = _told(version, [[0 for _ in codes] for codes in errors], None), sum(map(len, errors))
    assert not all_stored(frame + more, version, count)
    assert not all_stored(frame[: -1 - cut], version, count)


@given(st.integers(3, 11), st.binary(max_size=80), st.integers(1, 3))
def test_nonsense_is_never_believed_to_say_that_all_is_stored(version: int, noise: bytes, count: int) -> None:
    frame = bytearray(8) + noise
    if all_stored(frame, version, count):
        answers, _, hints = parse_answer(frame, version)
        assert ([answer.error for answer in answers], hints) == ([0] * count, False)
