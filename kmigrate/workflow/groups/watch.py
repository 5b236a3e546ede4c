"""Watches groups until `link finish`: members at the wrong cluster, late commits, and the hold on promoted groups.

Only the lease's holder watches. The state log has the sightings: `status` and the guards know of members that left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import read_all_positions
from kmigrate.cluster.coordinators import answered
from kmigrate.cluster.groups import GroupHold
from kmigrate.errors import BrokerRefused, Failed, KmigrateError
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import ClusterSide, GroupRecord, LinkRecord, MisplacedRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import together
from kmigrate.observe.registry import Kind, Metric, Registry, Sample
from kmigrate.protocol.codes import Code, row
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.misplaced import misplaced_in, moved_commits, with_sightings, wrong_side

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


_Promote = tuple[str, str, int]
"""Link, group, and the time since when the group is promoted."""


def _promote_of(record: GroupRecord) -> _Promote:
    """Name the promote that a hold belongs to: each rollback, even if given up, ends the hold."""
    return record.link, record.group, record.since_ms


class GroupWatch:
    """Looks at every mirrored and promoted group of the links that are not finished, round by round."""

    def __init__(self, connections: Connections, settings: WatchSettings, figures: GroupFigures) -> None:
        self._connections = connections
        self._log = connections.log
        self._settings = settings
        self._figures = figures
        self._holds: dict[_Promote, _Held] = {}
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
        of_link = [
            (link, [record for record in self._log.state.groups(link.name) if wrong_side(record) is not None])
            for link in self._log.state.links()
            if not link.finished_ms and not link.deleting_ms
        ]
        records = [record for _, there in of_link for record in there]
        holdable = {_promote_of(record) for record in records if wrong_side(record) is ClusterSide.SOURCE}
        for promote in self._holds.keys() - holdable:  # before the next holds of the same groups are taken
            await self._release(promote)
        for link, there in of_link:
            await self._look_at_all(link, there)
        watched = {(record.link, record.group) for record in records}
        for of_group in (self._figures.groups, self._commits_due):
            for key in of_group.keys() - watched:
                del of_group[key]

    async def _pause(self, seconds: float) -> None:
        """Wait; end the pause early where a group has been promoted meanwhile, so that the group is held at once."""
        seen, until = self._log.state, monotonic() + seconds
        promoted = self._promoted(seen)
        while (remaining := until - monotonic()) > 0:
            state = self._log.state
            if state.epoch != seen.epoch and not self._promoted(state) <= promoted:
                return
            seen = state
            await self._log.changed(remaining)

    @staticmethod
    def _promoted(state: State) -> frozenset[str]:
        return frozenset(record.key for record in state.groups() if record.phase is GroupPhase.PROMOTED)

    async def _look_at_all(self, link: LinkRecord, records: list[GroupRecord]) -> None:
        for side in ClusterSide:
            there = [record for record in records if wrong_side(record) is side]
            if not there:
                continue
            known = {record.group: self._known(record, side) for record in there}
            try:
                client = self._connections.target if side is ClusterSide.TARGET else await self._source(link)
                await self._look_at(client, side, there, known)
            except KmigrateError:
                for each in known.values():
                    each.members = each.commits = -1  # the next round asks again

    async def _source(self, link: LinkRecord) -> ClusterClient:
        source, _ = await self._connections.source(link)
        return source

    def _known(self, record: GroupRecord, side: ClusterSide) -> _Figures:
        """Return the figures of the last look at a group on this cluster."""
        key = (record.link, record.group)
        known = self._figures.groups.get(key)
        if known is None or known.cluster is not side:
            known = self._figures.groups[key] = _Figures(side)
        return known

    async def _look_at(
        self, client: ClusterClient, side: ClusterSide, records: list[GroupRecord], known: Mapping[str, _Figures]
    ) -> None:
        """Ask a cluster about all groups that have no members there."""
        members = await misplaced_in(client, records)
        in_use: set[str] = set()
        for record in records:
            figures, there = known[record.group], members[record.group]
            if isinstance(there, Failed):
                figures.members = figures.commits = -1
                continue
            if there or figures.members > 0:  # a member commits once more when the member leaves
                in_use.add(record.group)
            figures.members = len(there)
            update = partial(with_sightings, side=side, members=there, now_ms=self._log.now_ms())
            await self._write(record, update)
        if side is ClusterSide.SOURCE:
            await self._look_at_commits(client, records, known, in_use)
            answered_groups = [record for record in records if known[record.group].members >= 0]
            for at in range(0, len(answered_groups), _MOST_AT_ONCE):
                part = answered_groups[at : at + _MOST_AT_ONCE]
                await together(*(self._keep_hold(client, record, known[record.group]) for record in part))

    async def _look_at_commits(
        self, source: ClusterClient, records: list[GroupRecord], known: Mapping[str, _Figures], in_use: Container[str]
    ) -> None:
        """Compare the source's committed offsets of groups in use, and of all groups from time to time."""
        now = monotonic()
        due = [
            record
            for record in records
            if known[record.group].members >= 0
            and (
                record.group in in_use
                or known[record.group].commits < 0
                or now >= self._commits_due.get((record.link, record.group), 0.0)
            )
        ]
        positions = answered(await read_all_positions(source, (record.group for record in due)))
        for record in due:
            figures = known[record.group]
            if record.group not in positions:
                figures.commits = -1
                continue
            commits = moved_commits(positions[record.group], record)
            figures.commits = sum(map(len, commits.values()))
            self._commits_due[record.link, record.group] = now + _COMMITS_EVERY_S
            if commits:
                await self._write(record, partial(self._with_commits, commits))

    def _with_commits(self, commits: Mapping[str, Mapping[int, int]], before: MisplacedRecord) -> MisplacedRecord:
        if before.commits == commits:
            return before
        return replace(before, commits=commits, commits_ms=self._log.now_ms())

    async def _keep_hold(self, source: ClusterClient, record: GroupRecord, known: _Figures) -> None:
        """Hold a promoted group that has no members on the source."""
        if not self._settings.hold or known.members:
            known.held = False
            return
        key = _promote_of(record)
        held = self._holds.setdefault(key, _Held(GroupHold(source, record.group)))
        try:
            if monotonic() >= held.due:
                held.due = monotonic() + await self._hold(record.group, held.hold)
            known.held = held.hold.session_s > 0
        except KmigrateError:
            known.members = known.commits = -1  # the next round asks again

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

    async def _release(self, key: _Promote) -> None:
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
