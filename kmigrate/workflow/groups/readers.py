"""Finds what groups read, and the groups that a topic has to wait for.

A group reads the topics of its committed offsets, and of its members' assignments: new members have committed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.admin import Admin, GroupState
from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.committed_offsets import Committed, read_all_positions
from kmigrate.cluster.coordinators import all_answered
from kmigrate.cluster.groups import describe_groups
from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import GroupMode, GroupPhase
from kmigrate.model.patterns import NamePattern, chosen_groups
from kmigrate.model.records import GroupRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, sleep
from kmigrate.workflow.base.plan import Finding, refuse

__all__ = [
    "REBALANCING",
    "GroupReads",
    "ReaderLooks",
    "group_reads",
    "read_logs",
    "readers_at",
    "reading_groups",
    "settled_groups",
]

REBALANCING = frozenset({"preparing_rebalancing", "completing_rebalancing"})
"""States in which a coordinator does not tell assignments."""
_REBALANCE_S = 5.0
"""Longest wait for a rebalance; a rebalance may take as long as a dead member's session."""
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class GroupReads:
    """The topics that a group reads on the source, and the group's protocol."""

    kind: str
    topics: frozenset[str]


async def group_reads(source: ClusterClient, groups: Collection[str]) -> dict[str, GroupReads]:
    """Return what each group reads; raise the failure of the first group that was not described."""
    described = await settled_groups(source, groups)
    positions = all_answered(await read_all_positions(source, groups))
    return {name: _reads(described[name], positions[name]) for name in groups}


async def reading_groups(state: State, link: str, topics: Collection[str], source: ClusterClient) -> list[Finding]:
    """Return a finding for each unpromoted group that reads a topic: the topic has to wait for the group."""
    groups = _unpromoted(state, link)
    if not topics or not groups:
        return []
    read = {name: reads.topics for name, reads in (await group_reads(source, groups)).items()}
    return _waits_for(state, groups, read, topics)


async def readers_at(cluster: ClusterClient, admin: Admin, topics: Collection[str]) -> dict[str, list[str]]:
    """Return the groups of a cluster by topic: groups with a position in the topic, or members that are assigned it."""
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    names = chosen_groups([NamePattern(".*")], await admin.groups())
    for group, reads in (await group_reads(cluster, names)).items():
        for topic in reads.topics & found.keys():
            found[topic].append(group)
    return {topic: sorted(groups) for topic, groups in found.items() if groups}


class ReaderLooks:
    """Looks at the members of a source's groups; promotes that ask at the same time share a look.

    A source may have thousands of groups, and a hundred topics may be fenced in a round.
    """

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}
        self._newest: dict[str, _Look] = {}
        """The newest look of each link."""

    async def refuse(self, state: State, link: str, topic: str, source: ClusterClient) -> None:
        """Refuse a fence where a member is assigned the topic by now; commits of members that left do not count."""
        groups = _unpromoted(state, link)
        described = await self._look(link, groups, source)
        found = _waits_for(state, groups, {name: described[name].assigned for name in groups}, [topic])
        if found:
            raise Refused(found[0].ref, "; ".join(finding.what for finding in found))

    async def _look(self, link: str, groups: Collection[str], source: ClusterClient) -> Mapping[str, GroupState]:
        """Return what a look that began after this call has found, or raise the look's failure."""
        called = monotonic()
        async with self._turns.setdefault(link, asyncio.Lock()):
            look = self._newest.get(link)
            if look is None or look.began <= called or not look.groups.issuperset(groups):
                look = self._newest[link] = await _Look.made(groups, source)
        if look.failure is not None:
            raise look.failure
        return look.described


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at groups has found, or why it failed."""

    began: float
    groups: frozenset[str]
    described: Mapping[str, GroupState]
    failure: KmigrateError | None = None

    @staticmethod
    async def made(groups: Collection[str], source: ClusterClient) -> _Look:
        began, names = monotonic(), frozenset(groups)
        try:
            return _Look(began, names, await settled_groups(source, groups))
        except KmigrateError as error:
            return _Look(began, names, {}, error)


async def read_logs(
    state: State,
    link: str,
    wanted: Mapping[tuple[str, int], int],
    source: ClusterClient,
    target: ClusterClient,
    *,
    partly: bool = False,
) -> dict[tuple[str, int], LogOffset]:
    """Look up offsets (`wanted`) in the logs to which the positions of unpromoted groups belong, mostly the source's.

    `partly`: the partitions of a silent leader have no answer; else a silent leader raises Unreachable.

    A promoted topic with identical offsets has the target's. Up to the barrier both logs are equal; beyond the barrier
    only members of a group that follows read, on the target.
    """
    moved = {record.topic for record in state.topics(link) if record.at_target and not record.mapped}
    found: dict[tuple[str, int], LogOffset] = {}
    for client, at_target in ((source, False), (target, True)):
        asked = {key: offset for key, offset in wanted.items() if (key[0] in moved) is at_target}
        if asked:
            await client.refresh(sorted({topic for topic, _ in asked}))  # the same request again costs nothing
            found |= await (client.list_offsets(asked, partly=True) if partly else client.list_offsets(asked))
    return found


def _unpromoted(state: State, link: str) -> dict[str, GroupRecord]:
    return {record.group: record for record in state.groups(link) if record.phase is not GroupPhase.PROMOTED}


async def settled_groups(cluster: ClusterClient, groups: Iterable[str]) -> dict[str, GroupState]:
    """Describe each group once the group does not rebalance, or after a moment."""
    deadline = monotonic() + _REBALANCE_S
    described: dict[str, GroupState] = {}
    asked = list(groups)
    while True:
        described |= all_answered(await describe_groups(cluster, asked))
        asked = [group for group in asked if described[group].state in REBALANCING]
        if not asked or monotonic() > deadline:
            return described
        await sleep(_PAUSE_S)


def _reads(described: GroupState, positions: Committed) -> GroupReads:
    return GroupReads(described.kind, described.assigned | {topic for topic, _ in positions})


def _waits_for(
    state: State, groups: Mapping[str, GroupRecord], read: Mapping[str, Collection[str]], topics: Collection[str]
) -> list[Finding]:
    found: list[Finding] = []
    for name, group in groups.items():
        coupled = _coupled_topics(state, group)
        waiting = [topic for topic in topics if topic in read[name] and topic not in coupled]
        way = advised("group promote", group.link, name)
        if coupled:
            first, then = advised("promote", group.link, *coupled), advised("promote", group.link, *waiting)
            way = f"first {first}, with which group {name} goes; then {then}"
        found += [
            refuse("group-not-promoted", f"group {name} reads {topic} and is {group.phase}", way) for topic in waiting
        ]
    return found


def _coupled_topics(state: State, group: GroupRecord) -> list[str]:
    """Return the unpromoted topics written in the transactions that commit a group's offsets; not forgotten topics."""
    if group.mode is not GroupMode.FOLLOW:
        return []
    names, _ = unit_of(state.couplings(group.link), groups=[group.group])
    found = filter(None, (state.topic(group.link, name) for name in sorted(names)))
    return [record.topic for record in found if not record.at_target]
