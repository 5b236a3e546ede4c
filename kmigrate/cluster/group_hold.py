"""A hold on a promoted group at its source: a placeholder member that keeps every other member out.

A  The placeholder's protocol type is not `consumer`. While the placeholder is a member, the coordinator refuses every
   other member: JoinGroup with INCONSISTENT_GROUP_PROTOCOL (23), ConsumerGroupHeartbeat with GROUP_ID_NOT_FOUND (69).
   The coordinator also refuses commits without a generation (UNKNOWN_MEMBER_ID, 25). Measured on 3.9.1 and 4.3.1.
B  The placeholder is a static member with the longest session timeout that the broker accepts. Any process of kmigrate
   takes the placeholder over by its `group.instance.id`. So the hold outlives a controller that restarts in time.
C  A coordinator accepts the placeholder only if the group has no other member. The placeholder drives nobody out.
D  Committed offsets stay, and do not expire while the placeholder is a member.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.client import ClusterClient
from kmigrate.protocol.api import ApiKey, element_type, entity
from kmigrate.protocol.codes import Code, code_of

__all__ = ["GroupHold", "without_hold"]

_INSTANCE = "kmigrate-hold"
_PROTOCOL_TYPE = "kmigrate"
_JOIN = entity(ApiKey.JOIN_GROUP, 5, "request")
_SYNC = entity(ApiKey.SYNC_GROUP, 3, "request")
_LEAVE = entity(ApiKey.LEAVE_GROUP, 3, "request")
_ANY_MEMBER = ""
_SESSION_TIMEOUTS_S = (1800, 300, 60, 30, 10)
"""Session timeouts to try, longest first.

The default maximum of brokers is 30 minutes; a broker with a lower maximum refuses a longer timeout (26).
"""
_REBALANCE_TIMEOUT = dt.timedelta(seconds=10)


def without_hold(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
    """Return the members without the placeholder: brokers derive a static member's id from its instance id."""
    return tuple(member for member in members if not member.member_id.startswith(f"{_INSTANCE}-"))


class GroupHold:
    """The placeholder member of a group at its source."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self.session_s = 0
        """The session timeout that the broker has accepted; 0 while the group is not held."""

    async def take(self) -> int:
        """Join, or renew the session; return the error code. Raise BrokerRefused or Unreachable."""
        code = 0
        for seconds in _SESSION_TIMEOUTS_S:
            code = await self._join(seconds)
            if code != Code.INVALID_SESSION_TIMEOUT:
                self.session_s = 0 if code else seconds
                return code
        self.session_s = 0
        return code

    async def release(self) -> None:
        """Remove the placeholder from the group, whichever process has joined. Raise Unreachable."""
        self.session_s = 0
        identity = element_type(_LEAVE, "members")(member_id=_ANY_MEMBER, group_instance_id=_INSTANCE)
        node = await self._client.find_coordinator(self._group)
        await self._client.call(_LEAVE(group_id=self._group, members=(identity,)), node)

    async def _join(self, session_s: int) -> int:
        """Join and, as the group's leader, sync; return the error code."""
        node = await self._client.find_coordinator(self._group)
        protocol = element_type(_JOIN, "protocols")(name=_PROTOCOL_TYPE, metadata=b"")
        joined = await self._client.call(
            _JOIN(
                group_id=self._group,
                session_timeout=dt.timedelta(seconds=session_s),
                rebalance_timeout=_REBALANCE_TIMEOUT,
                member_id=_ANY_MEMBER,
                group_instance_id=_INSTANCE,
                protocol_type=_PROTOCOL_TYPE,
                protocols=(protocol,),
            ),
            node,
        )
        if code := code_of(joined.error_code):
            return code
        assignment = element_type(_SYNC, "assignments")(member_id=joined.member_id, assignment=b"")
        synced = await self._client.call(
            _SYNC(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=_INSTANCE,
                assignments=(assignment,),
            ),
            node,
        )
        return code_of(synced.error_code)
