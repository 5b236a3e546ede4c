"""Takes members that have moved out of the group that they have left at the other cluster.

A router does so for each member with a held join. Members of a group in transactions do not join anew before their
group moves. The cluster that they have left would list them until their sessions end, and would take no positions from
outside the group meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.groups import group_members, remove_members
from kmigrate.errors import KmigrateError
from kmigrate.model.members import member_mark

__all__ = ["take_out_former"]


async def take_out_former(client: ClusterClient, group: str, marks: Collection[str]) -> None:
    """Take the members with these marks out of a cluster's group; where that fails, their sessions end."""
    with suppress(KmigrateError):
        found = [member.member_id for member in await group_members(client, group)]
        if former := [member for member in found if member_mark(member) in marks]:
            await remove_members(client, group, former)
