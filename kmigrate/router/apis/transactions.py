"""Transactions that touch a mirrored topic before its promote, refused with one named error.

Authorization errors are what clients take as the end of this transaction and not of the producer (abortable);
the same requests succeed after the promote. Everything else about transactions belongs to the target.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.blank import blank, element, frame_answer

__all__ = ["TRANSACTION_APIS", "TransactionGuard", "transaction_text"]

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
TRANSACTION_APIS = frozenset({ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT})
_NOT_ATTEMPTED = 55


def transaction_text(topic: str) -> str:
    return f"kmigrate: transactional writes to mirrored topic {topic} are possible after its promote"


@dataclass(slots=True)
class TransactionGuard:
    """One client connection's transactions: refuses what touches a mirror, and ends what never began.

    A transaction whose first step was refused does not exist at the target, and a coordinator answers the
    client's abort of it with INVALID_TXN_STATE, which librdkafka takes as the end of the producer. So the abort
    of a transaction of which nothing but refusals was seen is answered here.
    """

    _refused: set[str] = field(default_factory=set)
    _begun: set[str] = field(default_factory=set)

    def answer(
        self, head: RequestHead, request: Any, mirrored: Collection[str], held: Collection[str]
    ) -> tuple[bytes, str] | None:
        """The router's answer and what to log ('': nothing), or None where the request passes to the target."""
        kind = entity(head.api_key, head.version, "response")
        if head.api_key == END_TXN:
            nothing = self._ended(str(request.transactional_id)) and not request.committed
            return (frame_answer(blank(kind), head.correlation_id), "") if nothing else None
        if head.api_key == ADD_PARTITIONS:
            name = str(request.v3_and_below_transactional_id)
            refusal = _refuse_partitions(kind, request, mirrored)
        else:
            name = str(request.transactional_id)
            refusal = _refuse_group(kind, head.api_key, request, held)
        if refusal is None:
            self._begun.add(name)
            return None
        self._refused.add(name)
        return frame_answer(refusal[0], head.correlation_id), refusal[1]

    def _ended(self, name: str) -> bool:
        """Whether only refusals were seen of the transaction that ends now."""
        nothing = name in self._refused and name not in self._begun
        self._refused.discard(name)
        self._begun.discard(name)
        return nothing


def _refuse_partitions(kind: type[Any], request: Any, mirrored: Collection[str]) -> tuple[Any, str] | None:
    refused = sorted({str(topic.name) for topic in request.v3_and_below_topics} & set(mirrored))
    if not refused:
        return None
    return _partitions(kind, request, refused), transaction_text(", ".join(refused))


def _refuse_group(kind: type[Any], api_key: int, request: Any, held: Collection[str]) -> tuple[Any, str] | None:
    group = str(request.group_id)
    if group not in held:
        return None
    text = f"kmigrate: transactional commits of mirrored group {group} are possible after its promote"
    if api_key == ADD_OFFSETS:
        return blank(kind, error_code=Code.GROUP_AUTHORIZATION_FAILED), text
    return _commits(kind, request), text


def _partitions(kind: type[Any], request: Any, refused: list[str]) -> Any:
    topic_type = element(kind, "results_by_topic_v3_and_below")
    part_type = element(topic_type, "results_by_partition")
    topics = []
    for topic in request.v3_and_below_topics:
        code = Code.TOPIC_AUTHORIZATION_FAILED if str(topic.name) in refused else _NOT_ATTEMPTED
        parts = tuple(blank(part_type, partition_index=index, partition_error_code=code) for index in topic.partitions)
        topics.append(blank(topic_type, name=topic.name, results_by_partition=parts))
    return blank(kind, results_by_topic_v3_and_below=tuple(topics))


def _commits(kind: type[Any], request: Any) -> Any:
    topic_type = element(kind, "topics")
    part_type = element(topic_type, "partitions")
    topics = []
    for topic in request.topics:
        parts = tuple(
            blank(part_type, partition_index=part.partition_index, error_code=Code.GROUP_AUTHORIZATION_FAILED)
            for part in topic.partitions
        )
        topics.append(blank(topic_type, name=topic.name, partitions=parts))
    return blank(kind, topics=tuple(topics))
