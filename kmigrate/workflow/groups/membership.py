"""Finds which members of a followed group speak through routers, and which came to the source directly.

A member that no router names (`GroupReport`) is direct, but not at once: routers name new members within a heartbeat,
also after a router's start.
"""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.cluster.admin import Admin, GroupMember
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode
from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupReport, RouterPresence
from kmigrate.model.records import GroupRecord
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, sleep
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.running import registered_routers
from kmigrate.workflow.groups.misplaced import without_placeholder

__all__ = [
    "GIVING_BACK_S",
    "NEW_PROTOCOL",
    "members_at_routers",
    "named_members",
    "not_joined",
    "outsiders",
    "refuse_members",
    "reports_on",
    "still_direct",
    "undrained_router",
]

_HEARTBEATS_S = 4.0
"""Longer than any client's usual interval between two heartbeats, and a router's between two reports."""
_NEW_HEARTBEATS_S = 7.0
"""The same interval for the new protocol (KIP-848), where brokers set five seconds between two heartbeats."""
NEW_PROTOCOL = "consumer"
"""The type of a group with members of the new protocol, as librdkafka names the type."""
GIVING_BACK_S = 15.0
"""Longest wait until members of the new protocol (KIP-848) that commit in transactions own nothing, in seconds.

By default heartbeats are five seconds apart, and work may take long. A late member has a transaction aborted.
"""
_PAUSE_S = 0.2


def reports_on(log: StateLog, group: str) -> list[GroupReport]:
    """Return the reports of the live routers about a group."""
    return [router.groups[group] for router in log.alive(RouterPresence) if group in router.groups]


def members_at_routers(log: StateLog, group: str) -> frozenset[str]:
    """Return the marks of the members that speak through live routers."""
    return frozenset(mark for report in reports_on(log, group) for mark in report.members)


async def outsiders(log: StateLog, source: Admin, record: GroupRecord) -> Sequence[GroupMember]:
    """Return the members that may commit on the source past all routers."""
    if record.mode is GroupMode.FOLLOW:
        return await still_direct(log, source, record.group)
    return without_placeholder((await source.describe_groups([record.group]))[record.group].members, record.group)


def refuse_members(record: GroupRecord, members: Sequence[GroupMember]) -> None:
    """Refuse a promote while members are on the source, and name the members."""
    if members:
        raise Refused(
            "members-on-source",
            f"group {record.group} still has {len(members)} member(s) on the source: {named_members(members)}",
            still_true="the group reads on the source as before; members at the router wait",
            next_step="restart those consumers with the router's address, then: "
            f"{advised('group promote', record.link, record.group)}",
        )


def named_members(members: Sequence[GroupMember]) -> str:
    """Name the first five members by client id, host and member id, and count the others."""
    more = f" and {len(members) - 5} more" if len(members) > 5 else ""
    return ", ".join(f"{m.client_id} at {m.host} ({m.member_id})" for m in members[:5]) + more


async def still_direct(log: StateLog, cluster: Admin, group: str) -> Sequence[GroupMember]:
    """Return the members of a cluster's group that no router has named for a while."""
    began = monotonic()
    while True:
        described = (await cluster.describe_groups([group]))[group]
        known = members_at_routers(log, group)
        members = without_placeholder(described.members, group)
        found = [member for member in members if member_mark(member.member_id) not in known]
        if not found or monotonic() > began + (_NEW_HEARTBEATS_S if described.kind == NEW_PROTOCOL else _HEARTBEATS_S):
            return found
        await sleep(_PAUSE_S)


def not_joined(log: StateLog, group: str, members: Sequence[GroupMember]) -> list[GroupMember]:
    """Return the members of which no router says that they have joined anew."""
    joined = {mark for report in reports_on(log, group) for mark in report.joined}
    return [each for each in without_placeholder(members, group) if member_mark(each.member_id) not in joined]


def undrained_router(log: StateLog, group: str, epoch: int, side: str = "the source") -> str | None:
    """Name a registered router that has not applied `epoch`, or has commits or trial joins of the group in flight."""
    for router, presence in registered_routers(log):
        if presence is None or presence.applied < epoch:
            return f"router {router.name} on {router.host} has not said that it lets the group commit no more"
        report = presence.groups.get(group, GroupReport())
        if report.in_flight:
            return f"router {router.name} still waits for commits or transactions of group {group} at {side}"
        if report.trials:
            return f"router {router.name} still waits for the target's answers to trial joins of group {group}"
    return None
