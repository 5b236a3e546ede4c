"""Metadata responses by hand are what kio reads."""

from __future__ import annotations

import datetime as dt
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import ApiKey, element_type, encode_body, entity
from kmigrate.protocol.metadata import (
    METADATA_VERSION,
    PartitionInfo,
    ReportedMetadata,
    ReportedTopic,
    decode_metadata,
)

_HEAD = b"\0\0\0\x10\0\0\0\1\0"
"""Size and correlation id of a response, and no tags."""
_KIND = entity(ApiKey.METADATA, METADATA_VERSION, "response")
_TOPIC, _BROKER = element_type(_KIND, "topics"), element_type(_KIND, "brokers")
_PARTITION = element_type(_TOPIC, "partitions")
REPORTED = ReportedMetadata(
    {1: ("127.0.0.1", 9092), 2_000_000_000: ("h" * 200, 65_535)},
    "cluster",
    [
        ReportedTopic(
            0,
            "orders",
            UUID(int=7),
            {0: PartitionInfo(1, 4, (1, 2, 3), (1, 3)), 200: PartitionInfo(-1, -1, tuple(range(150)), ())},
        ),
        ReportedTopic(29, "ü", None, {}),
    ],
)


def frame_of(reported: ReportedMetadata, cluster: str | None = "cluster") -> bytearray:
    """Return a response as kio writes the response."""
    brokers = tuple(
        _BROKER(node_id=node, host=host, port=port, rack="r" if node == 1 else None)
        for node, (host, port) in reported.brokers.items()
    )
    topics = tuple(
        _TOPIC(
            error_code=ErrorCode(topic.error),
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=True,
            partitions=tuple(
                _PARTITION(
                    error_code=ErrorCode.none if part.in_sync else ErrorCode.leader_not_available,
                    partition_index=number,
                    leader_id=part.leader,
                    leader_epoch=part.leader_epoch,
                    replica_nodes=part.replicas,
                    isr_nodes=part.in_sync,
                    offline_replicas=(2,),
                )
                for number, part in topic.partitions.items()
            ),
        )
        for topic in reported.topics
    )
    answer = _KIND(
        throttle_time=dt.timedelta(milliseconds=3), brokers=brokers, cluster_id=cluster, controller_id=1, topics=topics
    )
    return bytearray(_HEAD + encode_body(answer))


def test_a_response_of_kio_is_read() -> None:
    assert decode_metadata(frame_of(REPORTED)) == REPORTED
    assert decode_metadata(frame_of(REPORTED, cluster=None)) == REPORTED._replace(cluster_id="")


def test_unknown_tags_are_skipped() -> None:
    frame = frame_of(REPORTED)
    assert frame[-1] == 0, "no tags behind the response"
    assert decode_metadata(frame[:-1] + b"\1\x63\2ab") == REPORTED


def test_a_response_that_ends_too_early_is_refused_at_every_place() -> None:
    frame = frame_of(REPORTED)
    for end in range(len(_HEAD), len(frame)):
        with pytest.raises(ProtocolViolation):
            decode_metadata(frame[:end])
