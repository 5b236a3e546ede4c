"""Asks both clusters about the groups of a link: members, committed offsets, lags and misplaced members.

All groups are asked about together, in a few requests to each coordinator. An answer that a cluster does not give
leaves the figures of its groups unknown; the figures that are known by then are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.committed_offsets import Committed, read_all_positions
from kmigrate.cluster.coordinators import answered
from kmigrate.cluster.groups import describe_groups, without_hold
from kmigrate.errors import KmigrateError
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.presences import GroupReport
from kmigrate.model.records import GroupRecord, LinkRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.misplaced import moved_commits, not_former, without_placeholder
from kmigrate.workflow.groups.readers import read_logs
from kmigrate.workflow.groups.withheld import names_of, unnamed
from kmigrate.workflow.status.lags import UNKNOWN, GroupLag, Offsets, group_lag

__all__ = ["GroupFigures", "ask_groups"]


@dataclass(slots=True)
class GroupFigures:
    """The figures of one group from the two clusters; an unknown figure keeps its default."""

    members: tuple[GroupMember, ...] | None = None
    at_target: tuple[GroupMember, ...] | None = None
    lag: GroupLag = UNKNOWN
    names: Mapping[str, str] = field(default_factory=dict)
    misplaced: tuple[GroupMember, ...] | None = None
    held: bool | None = None
    commits: Mapping[str, Mapping[int, int]] | None = None


async def ask_groups(
    connections: Connections,
    link: LinkRecord,
    groups: Sequence[GroupRecord],
    reports: Mapping[str, Collection[GroupReport]],
    *,
    source_answers: bool,
) -> dict[str, GroupFigures]:
    """Return the figures of each group by name; `reports` are the routers' reports by group."""
    look = _GroupsLook(connections, link, groups, {group.group: GroupFigures() for group in groups})
    if groups and source_answers:
        with suppress(KmigrateError):
            await look.ask_source(reports)
    if groups:
        with suppress(KmigrateError):
            await look.ask_target(source_answers=source_answers)
    return look.found


@dataclass(frozen=True, slots=True)
class _GroupsLook:
    """One look at the groups of a link."""

    connections: Connections
    link: LinkRecord
    groups: Sequence[GroupRecord]
    found: dict[str, GroupFigures]

    def _of(self, *, promoted: bool) -> list[GroupRecord]:
        return [group for group in self.groups if group.at_target is promoted]

    async def ask_source(self, reports: Mapping[str, Collection[GroupReport]]) -> None:
        source, _ = await self.connections.source(self.link)
        described = answered(await describe_groups(source, self.found))
        positions = answered(await read_all_positions(source, self.found))
        for group in self._of(promoted=True):
            self._fill_promoted(group, described.get(group.group), positions.get(group.group))
        waiting = [group.group for group in self._of(promoted=False) if group.group in described]
        for name in waiting:
            self.found[name].members = without_placeholder(described[name].members, name)
        await self._name_topics(source, {name: described[name] for name in waiting if unnamed(reports.get(name, ()))})
        read = {name: (positions[name], described[name].assigned) for name in waiting if name in positions}
        await self._measure(read, source)

    def _fill_promoted(self, group: GroupRecord, described: GroupState | None, positions: Committed | None) -> None:
        figures = self.found[group.group]
        if described is not None:
            figures.members = without_hold(described.members)
            figures.held = len(figures.members) < len(described.members)
            figures.misplaced = not_former(figures.members, group)
        if positions is not None:
            figures.commits = moved_commits(positions, group)

    async def _name_topics(self, source: ClusterClient, described: Mapping[str, GroupState]) -> None:
        """Find the names of topics that routers withhold and know by id alone."""
        if not described:
            return
        names = await names_of(source, {topic for state in described.values() for topic in state.assigned})
        for name in described:
            self.found[name].names = names

    async def ask_target(self, *, source_answers: bool) -> None:
        """Ask for members at the target, and for the lags of promoted groups, if the source has answered, too."""
        target = self.connections.target
        described = answered(await describe_groups(target, self.found))
        for group in self.groups:
            if (state := described.get(group.group)) is not None:
                figures = self.found[group.group]
                figures.at_target = without_placeholder(state.members, group.group)
                if group.phase is GroupPhase.MIRRORED:
                    figures.misplaced = not_former(figures.at_target, group)
        promoted = [group.group for group in self._of(promoted=True) if group.group in described]
        if promoted and source_answers:
            positions = answered(await read_all_positions(target, promoted))
            read = {name: (positions[name], described[name].assigned) for name in promoted if name in positions}
            await self._measure(read, target)

    async def _measure(self, read: Mapping[str, tuple[Committed, frozenset[str]]], serving: ClusterClient) -> None:
        """Fill in lags over all partitions of the topics that each group has positions in, or is assigned."""
        topics = {topic for positions, assigned in read.values() for topic in _topics(positions, assigned)}
        known = (await serving.refresh(sorted(topics))).topics if topics else {}
        partitions = {topic: [(topic, part) for part in known[topic].partitions] for topic in topics & known.keys()}
        of_group = {
            name: {*positions, *(key for topic in _topics(positions, assigned) for key in partitions.get(topic, ()))}
            for name, (positions, assigned) in read.items()
        }
        ends = await self._logs(LATEST, of_group.values(), serving)
        unplaced = (keys - read[name][0].keys() for name, keys in of_group.items())
        starts = await self._logs(EARLIEST, unplaced, serving)
        for name, keys in of_group.items():
            self.found[name].lag = group_lag(read[name][0], keys, starts, ends)

    async def _logs(self, what: int, keys: Iterable[Collection[tuple[str, int]]], serving: ClusterClient) -> Offsets:
        wanted = dict.fromkeys((key for each in keys for key in each), what)
        state, target = self.connections.log.state, self.connections.target
        return await read_logs(state, self.link.name, wanted, serving, target, partly=True)


def _topics(positions: Committed, assigned: frozenset[str]) -> set[str]:
    return {topic for topic, _ in positions} | assigned
