"""Finds which members of a followed group speak through routers, and which came to the source directly.

Every router names the members that speak through the router (`GroupWord`). A member that no router names is direct. A
router names a new member within a heartbeat, also after the router's own start. So no member is called direct at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.cluster.admin import Admin, GroupMember
from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupWord, RouterPresence
from kmigrate.net.clock import monotonic, sleep
from kmigrate.state.log import StateLog

__all__ = ["NEW_PROTOCOL", "still_direct", "undrained_router", "words_on"]

_HEARTBEATS_S = 4.0
"""Longer than any client's usual interval between two heartbeats, and a router's between two reports."""
_NEW_HEARTBEATS_S = 7.0
"""The same interval for the new protocol (KIP-848), where brokers set five seconds between two heartbeats."""
NEW_PROTOCOL = "consumer"
"""The type of a group with members of the new protocol, as librdkafka names the type."""
_PAUSE_S = 0.2


def words_on(log: StateLog, group: str) -> list[GroupWord]:
    """Return what the live routers report about a group."""
    return [word for router in log.alive(RouterPresence) if (word := router.groups.get(group)) is not None]


async def still_direct(log: StateLog, source: Admin, group: str) -> Sequence[GroupMember]:
    """Return the members that no router has named for a while."""
    began = monotonic()
    while True:
        described = (await source.describe_groups([group]))[group]
        known = {mark for word in words_on(log, group) for mark in word.members}
        found = [member for member in described.members if member_mark(member.member_id) not in known]
        if not found or monotonic() > began + (_NEW_HEARTBEATS_S if described.kind == NEW_PROTOCOL else _HEARTBEATS_S):
            return found
        await sleep(_PAUSE_S)


def undrained_router(log: StateLog, group: str, epoch: int) -> str | None:
    """Name a registered router that the group's handover waits for, with the reason; None for no such router.

    Such a router has not applied the state of `epoch`, or commits of the group or trial joins are still in flight
    there.
    """
    told = {router.instance: router for router in log.alive(RouterPresence)}
    for router in log.state.routers():
        word = told.get(router.instance)
        if word is None or word.applied < epoch:
            return f"router {router.name} on {router.host} has not said that it lets the group commit no more"
        if group in word.groups and word.groups[group].in_flight:
            return f"router {router.name} still waits for commits or transactions of group {group} at the source"
        if group in word.groups and word.groups[group].trials:
            return f"router {router.name} still waits for the target's answers to trial joins of group {group}"
    return None
