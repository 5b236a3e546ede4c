"""Admin requests: refused whole where they would change a mirrored topic, node ids in them made real.

While a topic is mirrored its shape and configuration follow the source, so a change at the target would be
undone or, worse, break identity. POLICY_VIOLATION is what admin clients show with the message beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.blank import blank, element, frame_answer
from kmigrate.router.apis.broker_names import make_names_real
from kmigrate.router.apis.quorum import ALTER_REASSIGNMENTS, make_replicas_real
from kmigrate.router.nodeids import AddressBook

__all__ = ["ADMIN_APIS", "make_nodes_real", "refuse_admin"]

CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 19, 20, 21
ALTER_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 33, 37, 44
ADMIN_APIS = frozenset(
    {CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, ALTER_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS}
)
_TOPIC_RESOURCE = 2
_REFUSED = Code.POLICY_VIOLATION


def refuse_admin(head: RequestHead, request: Any, mirrored: Mapping[str, str]) -> tuple[bytes, str] | None:
    """The refusal and what to log, or None where no mirrored topic is touched; `mirrored` has their ids, too."""
    names = {target_id: name for name, target_id in mirrored.items()}
    touched = sorted({names.get(told, told) for told in _TOPICS[head.api_key](request)} & mirrored.keys())
    if not touched:
        return None
    kind = entity(head.api_key, head.version, "response")
    answer = _SHAPES[head.api_key](kind, request, touched)
    text = f"a change of mirrored topic {', '.join(touched)} was refused until its promote"
    return frame_answer(answer, head.correlation_id), text


def make_nodes_real(head: RequestHead, request: Any, book: AddressBook, asked: Collection[str] = ()) -> Any | None:
    """The request with the target's own broker ids, or None where it names no broker; `asked` are those in words."""
    if head.api_key == ALTER_REASSIGNMENTS:
        return make_replicas_real(request, book)
    if asked:
        return make_names_real(request, book)
    found = False
    topics = []
    for topic in getattr(request, "topics", None) or ():
        changed = []
        for assignment in getattr(topic, "assignments", None) or ():
            found = True
            nodes = tuple(book.real(int(node)) for node in assignment.broker_ids)
            changed.append(dataclasses.replace(assignment, broker_ids=nodes))
        topics.append(dataclasses.replace(topic, assignments=tuple(changed)) if changed else topic)
    return dataclasses.replace(request, topics=tuple(topics)) if found else None


def _why(name: str, touched: Sequence[str]) -> str:
    if name in touched:
        return f"kmigrate: topic {name} is mirrored; its source decides its shape until its promote"
    return f"kmigrate: sent together with mirrored topic {', '.join(touched)}; nothing of this request was done"


def _named_topics(request: Any) -> list[str]:
    return [str(topic.name) for topic in request.topics]


def _deleted_topics(request: Any) -> list[str]:
    """Names, or ids from version 6 on."""
    if hasattr(request, "topic_names"):
        return [str(name) for name in request.topic_names]
    return [str(topic.topic_id if topic.name is None else topic.name) for topic in request.topics]


def _configured_topics(request: Any) -> list[str]:
    return [str(r.resource_name) for r in request.resources if int(r.resource_type) == _TOPIC_RESOURCE]


def _answer_topics(kind: type[Any], request: Any, touched: list[str]) -> Any:
    topic_type = element(kind, "topics")
    topics = tuple(
        blank(topic_type, name=t.name, error_code=_REFUSED, error_message=_why(str(t.name), touched))
        for t in request.topics
    )
    return blank(kind, topics=topics)


def _answer_results(kind: type[Any], request: Any, touched: list[str]) -> Any:
    result_type = element(kind, "results")
    results = tuple(
        blank(result_type, name=t.name, error_code=_REFUSED, error_message=_why(str(t.name), touched))
        for t in request.topics
    )
    return blank(kind, results=results)


def _answer_deleted(kind: type[Any], request: Any, touched: list[str]) -> Any:
    result_type = element(kind, "responses")
    named = [{"name": name} for name in getattr(request, "topic_names", ())]
    named += [{"name": topic.name, "topic_id": topic.topic_id} for topic in getattr(request, "topics", ())]
    results = tuple(
        blank(result_type, **one, error_code=_REFUSED, error_message=_why(str(one["name"] or touched[0]), touched))
        for one in named
    )
    return blank(kind, responses=results)


def _answer_records(kind: type[Any], request: Any, _: list[str]) -> Any:
    topic_type = element(kind, "topics")
    part_type = element(topic_type, "partitions")
    topics = []
    for topic in request.topics:
        parts = tuple(
            blank(part_type, partition_index=part.partition_index, low_watermark=-1, error_code=_REFUSED)
            for part in topic.partitions
        )
        topics.append(blank(topic_type, name=topic.name, partitions=parts))
    return blank(kind, topics=tuple(topics))


def _answer_configs(kind: type[Any], request: Any, touched: list[str]) -> Any:
    result_type = element(kind, "responses")
    results = tuple(
        blank(
            result_type,
            error_code=_REFUSED,
            error_message=_why(str(resource.resource_name), touched),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    )
    return blank(kind, responses=results)


_TOPICS: dict[int, Callable[[Any], list[str]]] = {
    CREATE_TOPICS: _named_topics,
    DELETE_TOPICS: _deleted_topics,
    DELETE_RECORDS: _named_topics,
    ALTER_CONFIGS: _configured_topics,
    CREATE_PARTITIONS: _named_topics,
    INCREMENTAL_ALTER_CONFIGS: _configured_topics,
}
_SHAPES: dict[int, Callable[[type[Any], Any, list[str]], Any]] = {
    CREATE_TOPICS: _answer_topics,
    DELETE_TOPICS: _answer_deleted,
    DELETE_RECORDS: _answer_records,
    ALTER_CONFIGS: _answer_configs,
    CREATE_PARTITIONS: _answer_results,
    INCREMENTAL_ALTER_CONFIGS: _answer_configs,
}
