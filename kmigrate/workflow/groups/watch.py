"""Watches groups until `link finish`: members at the wrong cluster, late commits, and the hold on promoted groups.

Only the lease's holder watches. The state log has the sightings: `status` and the guards know of members that left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.groups import GroupHold
from kmigrate.errors import BrokerRefused, KmigrateError
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import ClusterSide, GroupRecord, LinkRecord, MisplacedRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import together
from kmigrate.observe.registry import Kind, Metric, Registry, Sample
from kmigrate.protocol.codes import Code, row
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.misplaced import late_commits, misplaced_members, with_sightings, wrong_side

__all__ = ["METRICS", "GroupFigures", "GroupWatch", "WatchSettings"]

_MOST_AT_ONCE = 20
_SHARE = 4.0
"""The pause after a round, in lengths of that round."""
_COMMITS_EVERY_S = 30.0
_DENIED_S = 60.0
"""Seconds until kmigrate asks again for a hold that the source does not allow."""
_PASSING = frozenset({Code.INCONSISTENT_GROUP_PROTOCOL, Code.UNKNOWN_MEMBER_ID, *(14, 15, 16, 27)})
"""Answers to a hold that the next round may lift: former members have not left yet, or the coordinator has moved."""

_logger = logging.getLogger("kmigrate.controller")

_MISPLACED = Metric(
    "kmigrate_group_misplaced_members",
    Kind.GAUGE,
    "Members of a group at the cluster that does not serve it, at the last look; status names them.",
    ("link", "group", "cluster"),
)
_COMMITS = Metric(
    "kmigrate_group_late_commits",
    Kind.GAUGE,
    "Partitions with a commit on the source after the group's promote.",
    ("link", "group"),
)
_HELD = Metric(
    "kmigrate_group_held",
    Kind.GAUGE,
    "1 where a placeholder member keeps others out of a promoted group on the source, else 0.",
    ("link", "group"),
)
METRICS = (_MISPLACED, _COMMITS, _HELD)


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Timing of the watch, and whether promoted groups are held on the source."""

    interval_s: float = 5.0
    hold: bool = True


@dataclass(slots=True)
class _Figures:
    """The result of the last look at one group; −1 where the cluster did not answer."""

    cluster: ClusterSide
    members: int = -1
    commits: int = -1
    held: bool = False


@dataclass(slots=True)
class GroupFigures:
    """The figures of the leading controller's last looks, for /metrics; empty in every other process."""

    groups: dict[tuple[str, str], _Figures] = field(default_factory=dict)

    def show_in(self, registry: Registry) -> None:
        registry.add(_MISPLACED, self._members)
        registry.add(_COMMITS, lambda: self._of_promoted(lambda each: each.commits))
        registry.add(_HELD, lambda: self._of_promoted(lambda each: int(each.held)))

    def _members(self) -> list[Sample]:
        return [
            ((link, group, each.cluster.value), each.members)
            for (link, group), each in sorted(self.groups.items())
            if each.members >= 0
        ]

    def _of_promoted(self, value: Callable[[_Figures], int]) -> list[Sample]:
        promoted = [each for each in sorted(self.groups.items()) if each[1].cluster is ClusterSide.SOURCE]
        return [(key, value(each)) for key, each in promoted if value(each) >= 0]


@dataclass(slots=True)
class _Held:
    hold: GroupHold
    due: float = 0.0
    """Time of the next request for the hold."""


class GroupWatch:
    """Looks at every mirrored and promoted group of the links that are not finished, round by round."""

    def __init__(self, connections: Connections, settings: WatchSettings, figures: GroupFigures) -> None:
        self._connections = connections
        self._log = connections.log
        self._settings = settings
        self._figures = figures
        self._holds: dict[tuple[str, str], _Held] = {}
        self._commits_due: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Look at all groups again and again, until cancelled."""
        try:
            while True:
                began = monotonic()
                await self.look()
                await self._pause(max(self._settings.interval_s, _SHARE * (monotonic() - began)))
        finally:
            self._figures.groups.clear()

    async def look(self) -> None:
        watched: set[tuple[str, str]] = set()
        for link in self._log.state.links():
            if link.finished_ms or link.deleting_ms:
                continue
            records = [record for record in self._log.state.groups(link.name) if wrong_side(record) is not None]
            watched |= {(record.link, record.group) for record in records}
            await self._look_at_all(link, records)
        for key in self._holds.keys() - watched:
            await self._release(key)
        for of_group in (self._figures.groups, self._commits_due):
            for key in of_group.keys() - watched:
                del of_group[key]

    async def _pause(self, seconds: float) -> None:
        """Wait; end the pause early where a group has been promoted meanwhile, so that the group is held at once."""
        promoted = self._promoted(self._log.state)
        until = monotonic() + seconds
        while (remaining := until - monotonic()) > 0 and self._promoted(self._log.state) <= promoted:
            await self._log.changed(remaining)

    @staticmethod
    def _promoted(state: State) -> frozenset[str]:
        return frozenset(record.key for record in state.groups() if record.phase is GroupPhase.PROMOTED)

    async def _look_at_all(self, link: LinkRecord, records: list[GroupRecord]) -> None:
        source: ClusterClient | None = None
        if any(record.phase is GroupPhase.PROMOTED for record in records):
            try:
                source, _ = await self._connections.source(link)
            except KmigrateError:
                source = None  # the figures of the source's groups become unknown below
        for at in range(0, len(records), _MOST_AT_ONCE):
            await together(*(self._look_at(source, record) for record in records[at : at + _MOST_AT_ONCE]))

    async def _look_at(self, source: ClusterClient | None, record: GroupRecord) -> None:
        side = wrong_side(record)
        client = source if side is ClusterSide.SOURCE else self._connections.target
        if side is None:
            return
        key = (record.link, record.group)
        known = self._figures.groups.get(key)
        if known is None or known.cluster is not side:
            known = self._figures.groups[key] = _Figures(side)
        try:
            if client is None:
                known.members = known.commits = -1
                return
            members = await misplaced_members(client, record)
            had_members, known.members = known.members > 0, len(members)
            update = partial(with_sightings, side=side, members=members, now_ms=self._log.now_ms())
            await self._write(record, update)
            if side is ClusterSide.SOURCE:
                await self._look_at_promoted(client, record, known, had_members=had_members)
        except KmigrateError:
            known.members = known.commits = -1  # the next round asks again

    async def _look_at_promoted(
        self, source: ClusterClient, record: GroupRecord, known: _Figures, *, had_members: bool
    ) -> None:
        key = (record.link, record.group)
        in_use = known.members or had_members  # a member commits once more when the member leaves
        if in_use or known.commits < 0 or monotonic() >= self._commits_due.get(key, 0.0):
            commits = await late_commits(source, record)
            known.commits = sum(map(len, commits.values()))
            self._commits_due[key] = monotonic() + _COMMITS_EVERY_S

            def update(before: MisplacedRecord) -> MisplacedRecord:
                if before.commits == commits or not commits:
                    return before
                return replace(before, commits=commits, commits_ms=self._log.now_ms())

            await self._write(record, update)
        if self._settings.hold and not known.members:
            held = self._holds.setdefault(key, _Held(GroupHold(source, record.group)))
            if monotonic() >= held.due:
                held.due = monotonic() + await self._hold(record.group, held.hold)
            known.held = held.hold.session_s > 0
        else:
            known.held = False

    async def _hold(self, group: str, hold: GroupHold) -> float:
        """Take or renew a hold; return the seconds until the next request for it."""
        try:
            code = await hold.take()
        except BrokerRefused as refused:
            code = refused.code
        if code and code not in _PASSING:
            _logger.warning("group %s is not held on the source: JoinGroup answered %s", group, row(code).name)
            return _DENIED_S
        return 0.0 if code else hold.session_s / 3

    async def _release(self, key: tuple[str, str]) -> None:
        held = self._holds.pop(key)
        try:
            if held.hold.session_s:
                await held.hold.release()
        except KmigrateError:
            pass  # the placeholder's session expires without this request

    async def _write(self, record: GroupRecord, update: Callable[[MisplacedRecord], MisplacedRecord]) -> None:
        """Write the update, unless the update changes nothing or the group's phase has changed since the look."""

        def decide(state: State) -> Record | None:
            now = state.group(record.link, record.group)
            before = state.misplaced(record.link, record.group)
            after = update(before)
            return after if after is not before and now is not None and now.phase is record.phase else None

        if update(known := self._log.state.misplaced(record.link, record.group)) is not known:
            await self._log.append(decide)
