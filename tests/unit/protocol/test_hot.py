"""Our hand-written Produce and Fetch against kio, which is generated from Kafka's own schemas."""

from __future__ import annotations

import datetime as dt
import io
import struct
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12 import response as fetch_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, TZAware, i32, i32Timedelta, i64
from kio.static.protocol import Entity

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.hot import (
    FetchPartition,
    decode_fetch,
    decode_produce,
    decode_throttled_produce,
    encode_fetch,
    encode_produce,
)

E = TypeVar("E", bound=Entity)


def frame_of(message: E, kind: type[E]) -> bytearray:
    out = io.BytesIO()
    entity_writer(kind)(out, message)
    body = struct.pack(">i", 7) + b"\0" + out.getvalue()
    return bytearray(struct.pack(">i", len(body)) + body)


def test_kio_reads_our_produce_request() -> None:
    body = b"".join(encode_produce([("a", 0, b"xyz"), ("b", 3, b""), ("a", 2, b"q")], acks=1, timeout_ms=500))
    read, size = entity_reader(produce_request.ProduceRequest)(body, 0)
    assert size == len(body)
    assert read.acks == 1
    assert [(t.name, [(p.index, p.records) for p in t.partition_data]) for t in read.topic_data] == [
        ("a", [(0, b"xyz"), (2, b"q")]),
        ("b", [(3, b"")]),
    ]


Part = tuple[int, int, int, int | None, str | None, tuple[str, ...]]
"""Partition, error, base offset, append time in ms, message, record errors."""


def moment(ms: int) -> TZAware:
    return TZAware.parse(dt.datetime.fromtimestamp(ms / 1000, dt.UTC))


def produce_answer(topics: Mapping[str, Sequence[Part]], throttle_ms: int = 0) -> bytearray:
    written = [
        produce_response.TopicProduceResponse(
            name=TopicName(topic),
            partition_responses=tuple(
                produce_response.PartitionProduceResponse(
                    index=i32(partition),
                    error_code=ErrorCode(error),
                    base_offset=i64(base),
                    log_append_time=None if time is None else moment(time),
                    log_start_offset=i64(5),
                    record_errors=tuple(
                        produce_response.BatchIndexAndErrorMessage(batch_index=i32(1), batch_index_error_message=text)
                        for text in errors
                    ),
                    error_message=message,
                )
                for partition, error, base, time, message, errors in parts
            ),
        )
        for topic, parts in topics.items()
    ]
    answer = produce_response.ProduceResponse(
        responses=tuple(written), throttle_time=i32Timedelta.parse(dt.timedelta(milliseconds=throttle_ms))
    )
    return frame_of(answer, produce_response.ProduceResponse)


def test_we_read_a_produce_answer_that_kio_wrote() -> None:
    read = decode_produce(produce_answer({"t": [(4, 45, 99, None, "no", ("bad",))]}))
    assert (read[("t", 4)].error, read[("t", 4)].base_offset, read[("t", 4)].message) == (45, 99, "no")


PARTS = st.tuples(
    st.integers(0, 2**31 - 1),
    st.sampled_from([0, 0, 0, 45, 87]),
    st.integers(-1, 2**62),
    st.sampled_from([None, None, 0, 1_700_000_000_000]),
    st.sampled_from([None, None, None, "", "no"]),
    st.sampled_from([(), (), (), ("bad",), ("x", "y")]),
)


@given(
    st.dictionaries(
        st.sampled_from(["t", "orders", "z" * 200]),
        st.lists(PARTS, max_size=9, unique_by=lambda part: part[0]),
        max_size=3,
    ),
    st.integers(0, 60_000),
)
def test_of_every_partition_we_read_what_kio_wrote_whatever_is_said_of_the_others(
    topics: dict[str, list[Part]], throttle_ms: int
) -> None:
    read, rest_ms = decode_throttled_produce(produce_answer(topics, throttle_ms))
    assert rest_ms == throttle_ms
    assert read == {
        (topic, partition): (error, base, -1 if time is None else time, message)
        for topic, parts in topics.items()
        for partition, error, base, time, message, _ in parts
    }


def test_kio_reads_our_fetch_request() -> None:
    body = b"".join(
        encode_fetch(
            [FetchPartition("a", 1, 5, 1 << 20, 3, 2), FetchPartition("b", 0, 0, 10)],
            max_wait_ms=50,
            read_committed=True,
            session_id=8,
            session_epoch=4,
            forgotten=[("c", 2)],
            rack="eu-1a",
        )
    )
    read, size = entity_reader(fetch_request.FetchRequest)(body, 0)
    assert size == len(body)
    assert (read.isolation_level, read.session_id, read.session_epoch, read.rack_id) == (1, 8, 4, "eu-1a")
    first = read.topics[0].partitions[0]
    assert (first.partition, first.fetch_offset, first.current_leader_epoch, first.last_fetched_epoch) == (1, 5, 3, 2)
    assert [(f.topic, f.partitions) for f in read.forgotten_topics_data] == [("c", (2,))]


def fetch_answer(records: bytes | None) -> bytearray:
    part = fetch_response.PartitionData(
        partition_index=i32(2),
        error_code=ErrorCode(0),
        high_watermark=i64(50),
        last_stable_offset=i64(40),
        log_start_offset=i64(10),
        diverging_epoch=fetch_response.EpochEndOffset(epoch=i32(3), end_offset=i64(30)),
        aborted_transactions=(fetch_response.AbortedTransaction(producer_id=ProducerId(5), first_offset=i64(12)),),
        preferred_read_replica=BrokerId(-1),
        records=None if records is None else Records(records),
    )
    answer = fetch_response.FetchResponse(
        throttle_time=i32Timedelta.parse(dt.timedelta(0)),
        error_code=ErrorCode(0),
        session_id=i32(77),
        responses=(fetch_response.FetchableTopicResponse(topic=TopicName("t"), partitions=(part,)),),
    )
    return frame_of(answer, fetch_response.FetchResponse)


@pytest.mark.parametrize("records", [None, b"", b"abc" * 100])
def test_we_read_a_fetch_answer_that_kio_wrote(records: bytes | None) -> None:
    read = decode_fetch(fetch_answer(records))
    (part,) = read.partitions
    assert read.session_id == 77
    assert (part.topic, part.partition, part.high_watermark, part.last_stable_offset) == ("t", 2, 50, 40)
    assert part.aborted == ((5, 12),)
    assert part.diverging == (3, 30)
    assert bytes(part.records) == (records or b"")


def test_an_answer_cut_at_any_byte_is_a_named_violation() -> None:
    whole = fetch_answer(b"abc" * 100)
    for size in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            decode_fetch(whole[:size])
