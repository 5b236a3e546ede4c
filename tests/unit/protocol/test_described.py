"""DescribeTransactions answers are read as kio writes them, and where kio cannot read them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity
from kmigrate.protocol.described import DescribedTopic, DescribedTransaction

KIND = entity(65, 0, "response")


def _answer() -> bytes:
    state = element_type(KIND, "transaction_states")
    topic = element_type(state, "topics")
    topics = (blank(topic, topic="t", partitions=(0, 7)), blank(topic, topic="u", partitions=()))

    def told(name: str, start: dt.datetime, topics: tuple[Any, ...], **values: Any) -> Any:
        return blank(state, transactional_id=name, transaction_start_time=start, topics=topics, **values)

    start = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    open_ = told("x", start, topics, transaction_state="Ongoing", producer_id=9, producer_epoch=3,
                 transaction_timeout=dt.timedelta(seconds=60))  # fmt: skip
    return encode_body(blank(KIND, transaction_states=(open_, told("y", start, (), error_code=105))))


def test_what_kio_has_written_is_read() -> None:
    one, other = decode_body(KIND, bytearray(_answer()), 0).transaction_states
    topics = (DescribedTopic("t", (0, 7)), DescribedTopic("u", ()))
    assert one == DescribedTransaction(0, "x", "Ongoing", 60_000, 1_700_000_000_000, 9, 3, topics)
    assert (other.error_code, other.topics) == (105, ())


def test_a_transaction_without_a_start_is_read() -> None:
    start = (1_700_000_000_000).to_bytes(8, "big")
    raw = _answer().replace(start, b"\xff" * 8)
    states = decode_body(KIND, bytearray(raw), 0).transaction_states
    assert [state.transaction_start_time for state in states] == [-1, -1]


def test_no_cut_answer_is_believed() -> None:
    whole = bytearray(_answer())
    for cut in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            decode_body(KIND, whole[:cut], 0)
