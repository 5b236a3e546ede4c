"""Refuses members of share groups (KIP-932) on mirrored topics.

A share group keeps each record's state at its own cluster, and only its start offsets can be moved (C13). Before its
topics' promote, a share group would begin anew at the target, past what it had not read. So its members are refused
until then. Members name their topics once; later the router asks their coordinator for the topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kmigrate.protocol.api import ApiKey, Message, build_answer, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead, response_body_offset

__all__ = [
    "ask_for_subscription",
    "refuse_share",
    "share_accepted",
    "subscription_in",
]


_DESCRIBE = entity(ApiKey.SHARE_GROUP_DESCRIBE, 1, "request")


def ask_for_subscription(head: RequestHead, group: str) -> bytes:
    """Return the request that asks a group's coordinator, at this connection's end, for the members' topics."""
    return frame_request(
        _DESCRIBE(group_ids=(group,), include_authorized_operations=False), head.correlation_id, head.client_id
    )


def subscription_in(frame: bytearray, member: str) -> frozenset[str] | None:
    """Return a member's subscribed topics; None where the coordinator does not know the member or fails."""
    for group in read_answer(_DESCRIBE, frame).groups:
        for each in group.members if not code_of(group.error_code) else ():
            if each.member_id == member:
                return frozenset(map(str, each.subscribed_topic_names))
    return None


def refuse_share(
    head: RequestHead, request: Message, topics: Iterable[str], mirrored: Collection[str]
) -> tuple[bytes, str] | None:
    """Return the refusal of a member that has subscribed to a mirrored topic, and the text to log; None for others."""
    touched = sorted(set(topics).intersection(mirrored))
    if not touched:
        return None
    text = f"share group {request.group_id} on mirrored topic {', '.join(touched)} was refused until its promote"
    return build_answer(head, error_code=Code.GROUP_AUTHORIZATION_FAILED, error_message=f"kmigrate: {text}"), text


def share_accepted(frame: bytearray) -> bool:
    """Return whether the target took a member's heartbeat."""
    at = response_body_offset(frame, flexible=True) + 4  # throttle
    return frame[at : at + 2] == b"\0\0"
