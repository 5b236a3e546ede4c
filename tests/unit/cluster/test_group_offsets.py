"""Positions written to a group whose coordinator is not ready: asked again, since nothing was written."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError

from kmigrate.cluster.admin import Admin, CommittedOffset
from kmigrate.model.settings import ClusterSettings


@dataclass
class _Told:
    """A position with the broker's word on it, which only librdkafka itself can put into its own class."""

    topic: str
    partition: int
    offset: int
    error: KafkaError | None


@dataclass
class _Answer:
    topic_partitions: list[_Told]


class _Coordinator:
    """Answers each write with the next code, as librdkafka's admin client does."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes

    def poll(self, _: float) -> None:
        return

    def alter_consumer_group_offsets(
        self, groups: list[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[_Answer]]:
        code = self.codes.pop(0)
        error = KafkaError(code) if code else None
        parts = [_Told(part.topic, part.partition, part.offset, error) for part in groups[0].topic_partitions]
        future: Future[_Answer] = Future()
        future.set_result(_Answer(parts))
        return {groups[0].group_id: future}


def _write(codes: list[int]) -> dict[tuple[str, int], str]:
    admin = Admin(ClusterSettings("target", "127.0.0.1:1"))
    admin._client = _Coordinator(codes)  # type: ignore[assignment]
    return asyncio.run(admin.write_group_offsets("g", {("t", 0): CommittedOffset(5, "")}))


@pytest.mark.parametrize(
    "code",
    [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE],
)
def test_a_coordinator_that_moves_or_loads_is_asked_again(code: int) -> None:
    codes = [code, code, 0]
    assert _write(codes) == {}
    assert codes == []


def test_any_other_refusal_is_told_at_once() -> None:
    told = _write([KafkaError.GROUP_AUTHORIZATION_FAILED])
    assert list(told) == [("t", 0)]
