"""Refuses members of share groups (KIP-932) on mirrored topics, and rewrites leaders in answers to share reads.

A share group keeps the state of each record at its own cluster, and only its start offsets can be moved (C13). A share
group that came to the router before its topics' promote would begin anew at the target. The group would pass over what
it had not read. So its members are refused until the promote.

Members name their topics once; later the router asks their coordinator for the topics. Answers to share reads name
leaders and the leaders' addresses, like answers to Fetch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from kmigrate.protocol.api import (
    ApiKey,
    answer_type,
    blank,
    decode_answer,
    entity,
    frame_answer,
    frame_request,
    read_answer,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead, response_body_offset
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.not_ready import IsUnready

__all__ = [
    "ask_for_subscription",
    "refuse_share",
    "share_accepted",
    "show_leaders",
    "subscription_told",
]


_DESCRIBE = entity(ApiKey.SHARE_GROUP_DESCRIBE, 1, "request")


def ask_for_subscription(head: RequestHead, group: str) -> bytes:
    """Return the request that asks a group's coordinator, at the end of this connection, for the topics of the
    members."""
    return frame_request(
        _DESCRIBE(group_ids=(group,), include_authorized_operations=False), head.correlation_id, head.client_id
    )


def subscription_told(answer: bytearray, member: str) -> frozenset[str] | None:
    """Return the topics that a member has subscribed to; None where the coordinator does not know the member or
    fails."""
    for group in read_answer(_DESCRIBE, answer).groups:
        for each in group.members if not code_of(group.error_code) else ():
            if each.member_id == member:
                return frozenset(map(str, each.subscribed_topic_names))
    return None


def refuse_share(
    head: RequestHead, request: Any, topics: Iterable[str], mirrored: Collection[str]
) -> tuple[bytes, str] | None:
    """Return the refusal of a member that has subscribed to a mirrored topic, and the text to log; None for others."""
    touched = sorted(set(topics).intersection(mirrored))
    if not touched:
        return None
    text = f"share group {request.group_id} on mirrored topic {', '.join(touched)} was refused until its promote"
    kind = answer_type(head)
    answer = blank(kind, error_code=Code.GROUP_AUTHORIZATION_FAILED, error_message=f"kmigrate: {text}")
    return frame_answer(answer, head.correlation_id), text


def share_accepted(answer: bytearray) -> bool:
    """Return whether the target took a member's heartbeat."""
    at = response_body_offset(answer, flexible=True) + 4  # throttle
    return answer[at : at + 2] == b"\0\0"


def show_leaders(answer: bytearray, head: RequestHead, book: AddressBook, is_unready: IsUnready) -> bytes:
    """Return the answer with leaders and endpoints as the router shows them; brokers without a listener are left out.

    Records of partitions that are not ready are left out, too.
    """
    kind = answer_type(head)
    message = decode_answer(kind, answer)
    topics = []
    for topic in message.responses:
        parts = []
        for part in topic.partitions:
            if is_unready(topic.topic_id.bytes if topic.topic_id is not None else b"", int(part.partition_index)):
                part = _without_records(part)
            leader = dataclasses.replace(part.current_leader, leader_id=book.shown(int(part.current_leader.leader_id)))
            parts.append(dataclasses.replace(part, current_leader=leader))
        topics.append(dataclasses.replace(topic, partitions=tuple(parts)))
    endpoints = []
    for each in message.node_endpoints:
        known = book.address(int(each.node_id))
        if known is not None:
            named = {"node_id": book.shown(int(each.node_id)), "host": known[0], "port": known[1]}
            endpoints.append(dataclasses.replace(each, **named))
    shown = dataclasses.replace(message, responses=tuple(topics), node_endpoints=tuple(endpoints))
    return frame_answer(shown, head.correlation_id)


def _without_records(part: Any) -> Any:
    """Return a partition of an answer with an error in place of records, if the answer may have records."""
    if not hasattr(part, "records"):
        return part
    error = ErrorCode(Code.NOT_LEADER_OR_FOLLOWER)
    return dataclasses.replace(part, error_code=error, records=b"", acquired_records=())
