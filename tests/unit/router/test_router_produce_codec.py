"""Which Produce answers need no reading, judged by answers that kio has written."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v11 import response as v11
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_writer
from kio.static.primitive import i32, i32Timedelta, i64

from kmigrate.router.apis.produce import ProducePart, ProduceRequest, parse_answer, plain_answer_size

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


def test_an_answer_that_names_a_node_has_not() -> None:
    hint = v11.LeaderIdAndEpoch(leader_id=BrokerId(2), leader_epoch=i32(7))
    endpoint = v11.NodeEndpoint(node_id=BrokerId(2), host="real.example", port=i32(9092), rack=None)
    for frame in (_frame(_answer(current_leader=hint)), _frame(_answer(), node_endpoints=(endpoint,))):
        assert len(frame) > plain_answer_size(REQUEST)
        assert parse_answer(frame, 11)[2] is True


def test_an_answer_with_words_has_not() -> None:
    record = v11.BatchIndexAndErrorMessage(batch_index=i32(0), batch_index_error_message=None)
    odd: dict[str, Any]
    for odd in ({"error_message": "why"}, {"record_errors": (record,)}):
        assert len(_frame(_answer(**odd))) > plain_answer_size(REQUEST)
