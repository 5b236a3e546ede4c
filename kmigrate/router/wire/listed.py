"""Answers ListGroups while groups follow: followed groups appear as their source has them.

A broker lists the groups that the broker coordinates, and clients put together all lists. So a group that follows is
left out of every broker's list, and the first broker that clients see lists all groups that follow.
"""

from __future__ import annotations

from collections.abc import Collection

from kmigrate.protocol.api import ApiKey, Message, blank, element_type, entity, replace
from kmigrate.protocol.codes import Code, code_of

__all__ = [
    "DESCRIBE",
    "DESCRIBE_NEW",
    "DESCRIBE_VERSION",
    "dead",
    "describe_new_request",
    "describe_request",
    "with_followed",
    "without_followed",
]

DESCRIBE_VERSION = 5
DESCRIBE = entity(ApiKey.DESCRIBE_GROUPS, DESCRIBE_VERSION, "request")
DESCRIBE_NEW = entity(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, "request")
_DEAD = "Dead"
_CLASSIC, _NEW = "classic", "consumer"
_CONSUMERS = "consumer"
"""Protocol type by which clients recognise groups of consumers; groups of the new protocol (KIP-848) have only this."""
_NOT_NOW = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})


def describe_request(groups: Collection[str]) -> Message:
    """Return the DescribeGroups request for a source about groups that follow."""
    return blank(DESCRIBE, groups=tuple(sorted(groups)))


def dead(described: Message) -> tuple[str, ...]:
    """Return the groups that the source does not have as groups of the classic protocol."""
    return tuple(str(g.group_id) for g in described.groups if str(g.group_state) == _DEAD and not code_of(g.error_code))


def describe_new_request(groups: Collection[str]) -> Message:
    """Return the ConsumerGroupDescribe request for a source about groups that may be of the new protocol."""
    return blank(DESCRIBE_NEW, group_ids=tuple(groups))


def without_followed(answer: Message, followed: Collection[str]) -> Message:
    """Return a broker's list without the groups that are coordinated at a source."""
    return replace(answer, groups=tuple(g for g in answer.groups if str(g.group_id) not in followed))


def with_followed(request: Message, answer: Message, *answers: Message) -> Message:
    """Return the list with the groups that filters and rights allow; "still loading" if any cannot be described now."""
    described = [group for each in answers for group in each.groups]
    if any(code_of(group.error_code) in _NOT_NOW for group in described):
        return blank(type(answer), error_code=Code.COORDINATOR_LOAD_IN_PROGRESS)
    states = {str(state).lower() for state in getattr(request, "states_filter", None) or ()}
    kinds = {str(kind).lower() for kind in getattr(request, "types_filter", None) or ()}
    group_type = element_type(type(answer), "groups")

    def wanted(group: Message) -> bool:
        state = str(group.group_state)
        if code_of(group.error_code) or state == _DEAD or (kinds and _kind(group) not in kinds):
            return False
        return not states or state.lower() in states

    listed = (
        blank(
            group_type,
            group_id=group.group_id,
            protocol_type=getattr(group, "protocol_type", _CONSUMERS),
            group_state=group.group_state,
            group_type=_kind(group),
        )
        for group in filter(wanted, described)
    )
    return replace(answer, groups=(*answer.groups, *listed))


def _kind(group: Message) -> str:
    return _CLASSIC if hasattr(group, "protocol_type") else _NEW
