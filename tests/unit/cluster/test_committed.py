"""Committed positions, as confluent-kafka hands them over."""

from __future__ import annotations

from typing import Any, cast

from confluent_kafka import TopicPartition

from kmigrate.cluster.admin import metadata_of


class Unended:
    """A position whose metadata confluent-kafka reads on behind its end."""

    def __init__(self, memory: bytes) -> None:
        self._memory = memory

    @property
    def metadata(self) -> str:
        return self._memory.decode()


def test_what_lies_behind_a_positions_metadata_is_not_taken_for_it() -> None:
    assert metadata_of(cast("Any", Unended("kgo-µ".encode() + b"\xff\x01"))) == "kgo-µ"
    assert metadata_of(TopicPartition("t", 0, 5, metadata="m")) == "m"
    assert metadata_of(TopicPartition("t", 0, 5)) == ""
