"""Reads requests of the transaction APIs, and builds the router's own answers in the client's version.

The APIs are InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit;
`router.transactions.handler` decides about the requests. A producer id gives no right to anything, and brokers do not
check to which client an id was given (M5). But a broker gives ids only to clients that may write at least a single
topic. While topics are mirrored, their writers have no right to write at the target yet (`model.acls`). So the router
gives such clients an id of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    answer_type,
    blank,
    build_answer,
    decode_request,
    element_type,
    entity,
    frame_answer,
    is_flexible,
    read_answer,
    recast,
    replace,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead, peek_request
from kmigrate.router.wire.refusals import refusals

__all__ = [
    "error_answer",
    "given_id",
    "is_refused_id",
    "partition_codes",
    "partitions_answer",
    "partitions_of",
    "partitions_request",
    "producer_of",
    "source_request",
]

_FIRST_WITH_FENCED: dict[int, int] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
_SOURCE_VERSION = 3
"""Version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn in which the router asks a source."""


def producer_of(head: RequestHead, request: Message) -> tuple[str, int, int]:
    """Return transactional id, producer id and epoch of a request; −1 where the request has none."""
    prefix = "v3_and_below_" if head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN else ""
    name = str(getattr(request, prefix + "transactional_id"))
    producer_id, epoch = (int(getattr(request, prefix + field, -1)) for field in ("producer_id", "producer_epoch"))
    return name, producer_id, epoch


def partitions_of(request: Message) -> dict[str, tuple[int, ...]]:
    """Return the partitions that an AddPartitionsToTxn request names, by topic."""
    return {str(topic.name): tuple(map(int, topic.partitions)) for topic in request.v3_and_below_topics}


def partitions_request(
    kind: type[Message], producer: tuple[str, int, int], partitions: Mapping[str, tuple[int, ...]]
) -> Message:
    """Return an AddPartitionsToTxn request of a producer: transactional id, producer id, epoch."""
    topic_type = element_type(kind, "v3_and_below_topics")
    return blank(
        kind,
        v3_and_below_transactional_id=producer[0],
        v3_and_below_producer_id=producer[1],
        v3_and_below_producer_epoch=producer[2],
        v3_and_below_topics=tuple(topic_type(name=name, partitions=parts) for name, parts in partitions.items()),
    )


def source_request(head: RequestHead, request: Message, producer_id: int, epoch: int) -> Message:
    """Return a client's request under a source's producer id and epoch, in the version in which the router asks.

    TxnOffsetCommit stays in the client's version, because `router.groups` asks the group coordinator.
    """
    prefix = "v3_and_below_" if head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN else ""
    if head.api_key != ApiKey.TXN_OFFSET_COMMIT:
        request = recast(request, entity(head.api_key, _SOURCE_VERSION, "request"))
    return replace(request, **{prefix + "producer_id": producer_id, prefix + "producer_epoch": epoch})


def _fenced_code(head: RequestHead) -> int:
    """Return the error code by which this version of an API refuses a producer of an older epoch."""
    new = head.version >= _FIRST_WITH_FENCED.get(head.api_key, 1 << 15)
    return Code.PRODUCER_FENCED if new else Code.INVALID_PRODUCER_EPOCH


def error_answer(head: RequestHead, request: Message, code: int) -> bytes:
    """Return an answer with the same code for everything in the request; 0 is a plain success."""
    if code == Code.PRODUCER_FENCED:
        code = _fenced_code(head)
    if head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return partitions_answer(head, request, {}, code)
    if head.api_key == ApiKey.TXN_OFFSET_COMMIT:
        return frame_answer(refusals(answer_type(head), "topics", request.topics, code), head.correlation_id)
    empty = {"producer_id": -1, "producer_epoch": -1} if code and head.api_key == ApiKey.INIT_PRODUCER_ID else {}
    return build_answer(head, error_code=code, **empty)


def partitions_answer(
    head: RequestHead,
    request: Message,
    codes: Mapping[tuple[str, int], int],
    other: int = Code.OPERATION_NOT_ATTEMPTED,
) -> bytes:
    """Return an AddPartitionsToTxn answer: the given codes, and `other` for partitions without a code."""
    topic_type = element_type(answer_type(head), "results_by_topic_v3_and_below")
    part_type = element_type(topic_type, "results_by_partition")

    def result(topic: str, index: int) -> Message:
        code = codes.get((topic, index), other)
        shown = _fenced_code(head) if code == Code.PRODUCER_FENCED else code
        return blank(part_type, partition_index=index, partition_error_code=shown)

    topics = (
        topic_type(name=name, results_by_partition=tuple(result(name, index) for index in partitions))
        for name, partitions in partitions_of(request).items()
    )
    return build_answer(head, results_by_topic_v3_and_below=tuple(topics))


def partition_codes(message: Message) -> dict[tuple[str, int], int]:
    """Return the error codes of an AddPartitionsToTxn answer."""
    return {
        (str(topic.name), int(part.partition_index)): code_of(part.partition_error_code)
        for topic in message.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }


def is_refused_id(head: RequestHead, request: bytearray, frame: bytearray) -> bool:
    """Return whether the target has refused an id to an idempotent producer; transactional ones need another right."""
    if code_of(read_answer(head, frame).error_code) != Code.CLUSTER_AUTHORIZATION_FAILED:
        return False
    asked = decode_request(request, peek_request(request, is_flexible(ApiKey.INIT_PRODUCER_ID, head.version)))
    return asked.transactional_id is None


def given_id(head: RequestHead, producer_id: int) -> bytes:
    """Return the answer that gives a producer id."""
    return build_answer(head, producer_id=producer_id, producer_epoch=0)
