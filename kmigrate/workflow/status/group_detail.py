"""One group in detail: each member with its place and partitions, and the lag of each partition."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from kmigrate.cluster.admin import Admin, GroupState
from kmigrate.cluster.client import LATEST
from kmigrate.cluster.committed_offsets import read_positions
from kmigrate.cluster.groups import without_hold
from kmigrate.errors import KmigrateError
from kmigrate.model.lifecycle import GroupMode
from kmigrate.model.members import member_mark
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import GroupRecord, LinkRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.membership import members_at_routers
from kmigrate.workflow.groups.misplaced import without_placeholder
from kmigrate.workflow.groups.readers import read_logs

__all__ = ["GroupDetail", "MemberDetail", "PartitionDetail", "Place", "group_detail"]

Key = tuple[str, int]
"""A topic and a partition."""


class Place(StrEnum):
    """The place where a member of a group is."""

    SOURCE = "source"
    """At the source's own address."""
    ROUTER = "router"
    """At a router, before the group's promote."""
    TARGET = "target"
    """On the target, directly or through a router: the target does not tell."""


@dataclass(frozen=True, slots=True)
class MemberDetail:
    """A member of the group; a client that waits at a router has no member id and no partitions yet."""

    place: Place
    client_id: str
    host: str
    member_id: str = ""
    assigned: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionDetail:
    """A partition that the group reads, on the cluster that keeps the group's committed offsets."""

    topic: str
    partition: int
    committed: int
    """The committed offset; −1 for none."""
    end: int
    """The end of the log to which the committed offset belongs; −1 where unknown."""
    reader: str = ""
    """Member id of the member that has the partition."""

    @property
    def lag(self) -> int:
        """Records from the committed offset to the log's end; −1 without such an offset, or with an offset beyond."""
        known = 0 <= self.committed <= self.end
        return self.end - self.committed if known else -1


@dataclass(frozen=True, slots=True)
class GroupDetail:
    link: str
    group: str
    members: tuple[MemberDetail, ...]
    partitions: tuple[PartitionDetail, ...]
    trouble: str = ""
    """The reason why a cluster could not be asked, or ''."""

    def as_json(self) -> dict[str, Any]:
        return {
            "members": [asdict(each) for each in self.members],
            "partitions": [asdict(each) | {"lag": each.lag} for each in self.partitions],
            "trouble": self.trouble,
        }


async def group_detail(connections: Connections, link: LinkRecord, group: GroupRecord) -> GroupDetail:
    """Ask both clusters about one group; a cluster that does not answer is named, and leaves its part empty."""
    troubles: list[str] = []
    source = await _described(_source_admin(connections, link), group.group, troubles)
    target = await _described(_target_admin(connections), group.group, troubles)
    partitions: tuple[PartitionDetail, ...] = ()
    try:
        partitions = await _partitions(connections, link, group, target if _promoted(group) else source)
    except KmigrateError as error:
        troubles.append(error.what)
    members = (*_at_source(connections, group, source), *_waiting(connections, group), *_at_target(group, target))
    return GroupDetail(link.name, group.group, members, partitions, "; ".join(dict.fromkeys(troubles)))


async def _described(admin: Awaitable[Admin], group: str, troubles: list[str]) -> GroupState:
    """Describe the group; without an answer note the trouble, and return a group without members."""
    try:
        return (await (await admin).describe_groups([group]))[group]
    except KmigrateError as error:
        troubles.append(error.what)
        return GroupState(group, "", "", ())


async def _source_admin(connections: Connections, link: LinkRecord) -> Admin:
    return (await connections.source(link))[1]


async def _target_admin(connections: Connections) -> Admin:
    return connections.target_admin


def _promoted(group: GroupRecord) -> bool:
    return group.at_target


def _at_source(connections: Connections, group: GroupRecord, found: GroupState) -> Iterator[MemberDetail]:
    carried = members_at_routers(connections.log, group.group)
    for each in without_placeholder(without_hold(found.members), group.group):
        place = Place.ROUTER if member_mark(each.member_id) in carried else Place.SOURCE
        assigned = found.assignments.get(each.member_id, ())
        yield MemberDetail(place, each.client_id, each.host, each.member_id, assigned)


def _at_target(group: GroupRecord, found: GroupState) -> Iterator[MemberDetail]:
    for each in without_placeholder(found.members, group.group):
        assigned = found.assignments.get(each.member_id, ())
        yield MemberDetail(Place.TARGET, each.client_id, each.host, each.member_id, assigned)


def _waiting(connections: Connections, group: GroupRecord) -> Iterator[MemberDetail]:
    """Return the clients that wait at routers for the promote of a group that holds."""
    if group.mode is not GroupMode.HOLD or _promoted(group):
        return
    for router in connections.log.alive(RouterPresence):
        if group.group in (router.waiting or ()):
            hosts = {client.client_id: client.host for client in router.clients}
            for each in router.joins.get(group.group, ()):
                yield MemberDetail(Place.ROUTER, each.client_id, hosts.get(each.client_id, ""))


async def _partitions(
    connections: Connections, link: LinkRecord, group: GroupRecord, described: GroupState
) -> tuple[PartitionDetail, ...]:
    """Return the partitions with a committed offset, and the partitions that members have."""
    target = connections.target
    serving = target if _promoted(group) else (await connections.source(link))[0]
    readers = {key: member for member, keys in described.assignments.items() for key in keys}
    positions = await read_positions(serving, group.group, stable=False)
    keys: Mapping[Key, int] = dict.fromkeys(sorted(readers.keys() | positions.keys()), LATEST)
    logs = partial(read_logs, connections.log.state, link.name, source=serving, target=target)
    ends = await logs(keys) if keys else {}
    return tuple(
        PartitionDetail(*key, positions[key].offset if key in positions else -1, ends[key].offset, readers.get(key, ""))
        for key in keys
    )
