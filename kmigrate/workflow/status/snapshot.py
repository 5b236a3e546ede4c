"""One immutable snapshot of a migration, computed from offsets of both clusters, never from "task running"."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.brokers import read_log_dirs, topic_bytes
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient, LogOffset
from kmigrate.cluster.transactions import OpenTransaction, open_transactions
from kmigrate.errors import KmigrateError
from kmigrate.model.lag import Lag
from kmigrate.model.lifecycle import AT_TARGET, NOT_COPIED_YET, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.presences import (
    DUTY,
    ControllerPresence,
    DiskUse,
    MirrorPresence,
    PartitionProgress,
    RefusedMember,
    RouterPresence,
)
from kmigrate.model.record_json import plain
from kmigrate.model.records import (
    DirectWriter,
    GroupRecord,
    LinkRecord,
    MisplacedMember,
    OnLate,
    RouterRecord,
    SourceAccess,
    TopicRecord,
    VerifiedRange,
)
from kmigrate.model.sharing import absence, owner_of, progress_of
from kmigrate.model.state import State
from kmigrate.model.stops import AcceptedLoss, PartitionStop
from kmigrate.model.verified import standing
from kmigrate.net.clock import now_ms
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.admission import refused_members
from kmigrate.workflow.groups.membership import members_at_routers, reports_on
from kmigrate.workflow.groups.misplaced import seen_members
from kmigrate.workflow.groups.withheld import WithheldTopic, withheld_topics
from kmigrate.workflow.promote.direct_writers import seen_direct_writers
from kmigrate.workflow.promote.late_findings import LateFound, late_of, with_unread
from kmigrate.workflow.status.group_figures import GroupFigures, ask_groups
from kmigrate.workflow.status.lags import Offsets, lags_of, lost_beginning, way_back_seconds
from kmigrate.workflow.status.missing_credentials import MissingCredential, missing_credentials

__all__ = ["GroupStatus", "LinkStatus", "PartitionStatus", "Snapshot", "TopicStatus", "group_status", "snapshot"]


_PATIENCE_S = 12.0
"""Longest wait for a source: a person looks at the status most when something stands still."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition, as the logs of both clusters show the partition; −1 where a cluster could not be asked."""

    partition: int
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    lag: int
    """Records that the source has and the target has not; −1 where unknown; 0 after promote."""
    problem: str
    hold_ms: float
    """Longest time a request was held at the last fence, −1 where none was."""
    trouble: str = ""
    """A condition that the mirror tries again or waits for; nobody has to act, or somebody outside kmigrate has to."""
    stop: PartitionStop | None = None
    losses: tuple[AcceptedLoss, ...] = ()
    waits_for: OpenTransaction | None = None
    """The open transaction on the source that keeps the mirror from the records behind."""
    lag_bytes: int = -1
    """Estimated bytes of these records (`model.lag`)."""
    lag_seconds: float = -1.0
    """Age of the next record to be copied, at most."""
    copied_by: str = ""
    """The mirror process that copies the partition now; '' for none."""
    verified_to: int = -1
    """Source offset below which `verify` found the copy equal; −1 where `verify` has not looked at this copy."""
    verified_ms: int = 0
    unverified: int = -1
    """Source offsets that no check has found equal, up to the barrier of a promoted topic; −1 where unknown."""
    source_leader: int = -1
    """Broker id of the partition's leader on the source; −1 where unknown."""
    target_leader: int = -1


@dataclass(frozen=True, slots=True)
class TopicStatus:
    link: str
    topic: str
    phase: TopicPhase
    since_ms: int
    reason: str
    offsets: str
    """The relation between source and target offsets: identical, mapped (n runs), unknown, or not yet.

    Identical: each target log begins where its mirror began and does not pass the source's. Mapped: by the offset map.
    """
    partitions: tuple[PartitionStatus, ...]
    paused: bool = False
    upkeep: str = ""
    """The reason why the target topic does not follow the source's partitions, configs and ACLs, or ''."""
    sealed_for: tuple[str, ...] = ()
    """Routers in whose place the source broker refuses every write to the topic."""
    promote_waits_for: str = ""
    """The reason why the promote waits, in the words of the controller, or ''."""
    direct_writers: tuple[DirectWriter, ...] = ()
    """Producers that wrote to the source without a router during the link, however long ago."""
    more_direct_writers: int = 0
    late: tuple[LateFound, ...] = ()
    on_late: OnLate = OnLate.ALARM
    source_closed: str = ""
    """State of a promoted topic's source: closed, closing, opening, open, or open: with the reason; else ''.

    While a way back is open, `denied to` and the principals that may not write there.
    """
    way_back: str = ""
    """State of a promoted topic's way back: open, or ended: with the reason; '' for a topic without a way back."""
    way_back_lag: int = -1
    """Records that the target has and the source lacks while the way back is open; −1 where unknown."""
    way_back_lag_seconds: float = -1.0
    """Age of the oldest of these records, at most; 0 for none, −1 where unknown."""

    @property
    def promoted(self) -> bool:
        return self.phase is TopicPhase.PROMOTED

    @property
    def at_target(self) -> bool:
        return self.phase in AT_TARGET

    @property
    def lag(self) -> int:
        return _sum([p.lag for p in self.partitions])

    @property
    def lag_bytes(self) -> int:
        return _sum([p.lag_bytes for p in self.partitions])

    @property
    def lag_seconds(self) -> float:
        """The lag in seconds of the partition that is furthest behind."""
        each = [p.lag_seconds for p in self.partitions]
        return max(each, default=-1.0) if min(each, default=-1.0) >= 0 else -1.0

    @property
    def unverified(self) -> int:
        """Source offsets that no check has found equal; −1 where no check has looked at the topic, or unknown."""
        return _sum([p.unverified for p in self.partitions]) if any(p.verified_to >= 0 for p in self.partitions) else -1


def _sum(figures: Sequence[int]) -> int:
    """Return the sum of known figures; −1 where a figure is unknown, or none is there."""
    return sum(figures) if min(figures, default=-1) >= 0 else -1


@dataclass(frozen=True, slots=True)
class GroupStatus:
    link: str
    group: str
    phase: GroupPhase
    reason: str
    source_members: tuple[GroupMember, ...] | None
    """None where the source did not answer."""
    target_members: int
    lag: int
    """Records between committed positions and the ends of the logs; −1 where no partition's lag is known."""
    mode: GroupMode = GroupMode.HOLD
    direct_members: int = -1
    """Members on the source that no router carries, for a group that follows; −1 where unknown."""
    promote_waits_for: str = ""
    unread: int = 0
    """Records that the promote left unread, because they were never copied (`GroupRecord`)."""
    read_again: int = 0
    """Records that the group has read twice since its promote, because the group had read them on the target before."""
    withheld: tuple[WithheldTopic, ...] = ()
    """Topics that members at routers are assigned and not told of, so that nobody reads them (a group that follows)."""
    more_withheld: int = 0
    """Number of further such topics, at least."""
    misplaced: tuple[MisplacedMember, ...] = ()
    """Members at the wrong cluster now: at the target before the promote, at the source after the promote."""
    misplaced_before: tuple[MisplacedMember, ...] = ()
    """Members that were seen at the wrong cluster during this link, and have gone."""
    late_commits: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Positions that were committed on the source after the promote, by topic and partition."""
    lag_unplaced: tuple[tuple[str, int], ...] = ()
    """Partitions that hold records and have no committed position: their lag is unknown, and not in `lag`."""
    lag_beyond: tuple[tuple[str, int], ...] = ()
    """Partitions whose committed position is beyond the log's end: their lag is unknown, and not in `lag`."""
    held: bool | None = None
    """True where a placeholder keeps others out of the promoted group on the source; None where unknown."""
    without_credential: tuple[MissingCredential, ...] = ()
    """Principals of members as whom the routers cannot log in to the source."""
    refused: tuple[RefusedMember, ...] = ()
    """Members at routers that the target refuses, or would refuse at the group's promote."""
    router_members: int = -1
    """Members that reach the source through routers, or, in a group that holds, clients that wait at routers.

    −1 where unknown, and after the promote: the target does not tell which members come through a router.
    """
    auto: bool = False
    """True if the controller promotes the group by itself once no direct member is left."""

    @property
    def at_source(self) -> int:
        """Number of members at the source's own address; −1 where unknown."""
        if self.direct_members >= 0 or self.source_members is None:
            return self.direct_members
        return len(self.source_members)


@dataclass(frozen=True, slots=True)
class LinkStatus:
    name: str
    source: str
    target: str
    trouble: str
    """The reason why a cluster of the link could not be asked, or ''."""
    throttle: int = 0
    """Bytes a second; 0 is no limit."""
    notes: tuple[str, ...] = ()
    """Notes of the link's mirrors: names that match and cannot be mirrored, ACLs that cannot be read."""
    finished_ms: int = 0
    """Time at which the link's clients were told to leave the routers; 0 if they were not."""
    disk_bytes: int | None = None
    """Bytes that the link's topics take on the target with all replicas; None where unknown."""
    disk_growth: int | None = None
    """Growth of these bytes in an hour; None where unknown."""
    disk_low: tuple[str, ...] = ()
    """Log directories of the target whose lack of room makes copies wait, and the next step, in the mirrors' words."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    at_ms: int
    epoch: int
    links: tuple[LinkStatus, ...]
    topics: tuple[TopicStatus, ...]
    groups: tuple[GroupStatus, ...]
    routers: tuple[RouterRecord, ...]
    routers_alive: frozenset[str]
    mirrors: tuple[MirrorPresence, ...]
    controllers: tuple[ControllerPresence, ...]
    connected: Mapping[str, RouterPresence] = field(default_factory=dict)
    """Newest report of each live router by instance, with the connected clients."""
    without_credential: tuple[MissingCredential, ...] = ()
    """Principals as whom the routers cannot log in to a source."""
    warnings: tuple[str, ...] = ()
    """Warnings about no single link: records that kmigrate did not write, routers that cannot read the state log."""

    def as_json(self) -> dict[str, Any]:
        return {
            "at_ms": self.at_ms,
            "epoch": self.epoch,
            "links": [plain(link) for link in self.links],
            "topics": [
                plain(t)
                | {"lag": t.lag, "lag_bytes": t.lag_bytes, "lag_seconds": t.lag_seconds, "unverified": t.unverified}
                | {"late": [late.as_json() for late in t.late]}
                for t in self.topics
            ],
            "groups": [plain(g) for g in self.groups],
            "without_credential": [plain(each) for each in self.without_credential],
            "routers": [
                {**plain(r), "alive": r.instance in self.routers_alive, **self._connected(r.instance)}
                for r in self.routers
            ],
            "mirrors": [
                {"instance": m.instance, "link": m.link, "active": m.active, "partitions": m.partitions}
                for m in self.mirrors
            ],
            "controllers": [{"instance": c.instance, "active": c.active} for c in self.controllers],
            "warnings": list(self.warnings),
        }

    def _connected(self, instance: str) -> dict[str, Any]:
        report = self.connected.get(instance)
        return {
            "on_brokers": report.on_brokers if report else -1,
            "clients": [plain(client) for client in report.clients] if report else [],
            "more_clients": report.more_clients if report else -1,
            "connections": report.connections if report else -1,
            "limits": plain(report.limits) if report and report.limits else None,
            "served": [plain(api) for api in report.served] if report else [],
            "kept_out": [plain(client) for client in report.kept_out] if report else [],
        }


async def snapshot(connections: Connections, *, figures: bool = True) -> Snapshot:
    """Ask both clusters now; a cluster with a leader that does not answer has unknown figures, and is named.

    Without `figures` only the state log is read.
    """
    log = connections.log
    routers, controllers = log.alive(RouterPresence), log.alive(ControllerPresence)
    mirrors = log.alive(MirrorPresence)
    links: list[LinkStatus] = []
    topics: list[TopicStatus] = []
    groups: list[GroupStatus] = []
    for link in log.state.links():
        look = _LinkLook(connections, link, mirrors, routers)
        if figures:
            await look.ask()
        links.append(await look.link_status(controllers, ask_disk=figures and not look.target_trouble))
        topics += await look.topic_statuses()
        of_link = log.state.groups(link.name, forgotten=True)
        groups += await look.group_statuses(of_link, figures=figures)
    return Snapshot(
        now_ms(),
        log.state.epoch,
        tuple(links),
        tuple(topics),
        tuple(groups),
        tuple(log.state.routers()),
        frozenset(r.instance for r in routers),
        tuple(mirrors),
        tuple(controllers),
        {r.instance: r for r in routers},
        missing_credentials(routers),
        _warnings(log, routers, controllers),
    )


async def group_status(connections: Connections, link: LinkRecord, group: GroupRecord) -> GroupStatus:
    """Ask both clusters about one group now."""
    log = connections.log
    look = _LinkLook(connections, link, log.alive(MirrorPresence), log.alive(RouterPresence))
    (status,) = await look.group_statuses([group], figures=True)
    return status


def _warnings(
    log: StateLog, routers: Iterable[RouterPresence], controllers: Iterable[ControllerPresence]
) -> tuple[str, ...]:
    strays = [each.text(topic) for topic, each in log.strays().items()]
    unread = [
        f"router {r.name} cannot read the state log and goes on with what it knew at state {r.applied}: {r.log_problem}"
        for r in routers
        if r.log_problem
    ]
    failed = [
        f"controller {each.instance}: {why}"
        for each in controllers
        for key, why in each.waits.items()
        if key.startswith(DUTY)
    ]
    kept_out = [f"router {r.name}: {client.text}" for r in routers for client in r.kept_out]
    return tuple(filter(None, (*strays, *unread, *failed, *kept_out)))


class _Bounds(NamedTuple):
    """The log starts, log ends and leaders of partitions on one cluster; −1 where unknown."""

    starts: Offsets
    ends: Offsets
    leaders: Mapping[tuple[str, int], int] = {}


@dataclass(slots=True)
class _LinkLook:
    """One look at a link: the records and reports about the link, and the answers of both clusters."""

    connections: Connections
    link: LinkRecord
    mirrors: Sequence[MirrorPresence]
    routers: Sequence[RouterPresence]
    records: list[TopicRecord] = field(init=False)
    source: ClusterClient | None = None
    """The source, where the source answers."""
    source_trouble: str = ""
    target_trouble: str = ""
    at_source: _Bounds = field(init=False)
    at_target: _Bounds = field(init=False)

    def __post_init__(self) -> None:
        self.mirrors = [mirror for mirror in self.mirrors if mirror.link == self.link.name]
        self.records = self.state.topics(self.link.name, forgotten=True)
        unknown = dict.fromkeys(self._keys(), LogOffset(-1, -1, -1))
        self.at_source = self.at_target = _Bounds(unknown, unknown)

    @property
    def state(self) -> State:
        return self.connections.log.state

    def _keys(self) -> list[tuple[str, int]]:
        return [key for record in self.records for key in record.topic_partitions]

    # the clusters

    async def ask(self) -> None:
        """Ask both clusters, the target first: newer records would otherwise seem to have passed the source."""
        try:
            self.at_target = await self._bounds(self.connections.target)
        except KmigrateError as error:
            self.target_trouble = f"target {self.link.target.name}: {error.what}"
        try:
            async with asyncio.timeout(_PATIENCE_S):
                source, _ = await self.connections.source(self.link)
                self.at_source = await self._bounds(source)
                self.source = source
        except KmigrateError as error:
            self.source_trouble = error.what
        except TimeoutError:
            self.source_trouble = f"source {self.link.source.name} has not answered within {_PATIENCE_S:g} s"

    async def _bounds(self, client: ClusterClient) -> _Bounds:
        known = (await client.refresh([record.topic for record in self.records])).topics
        keys = self._keys()
        if not keys:
            return _Bounds({}, {})
        starts = await client.list_offsets(dict.fromkeys(keys, EARLIEST))
        ends = await client.list_offsets(dict.fromkeys(keys, LATEST))
        leaders = {(name, p): part.leader for name, topic in known.items() for p, part in topic.partitions.items()}
        return _Bounds(starts, ends, leaders)

    async def _open_transactions(self) -> Mapping[tuple[str, int], OpenTransaction]:
        """Return the open transactions of partitions whose last stable offset lies before their log end."""
        copied = {record.topic for record in self.records if not record.at_target}
        keys = [key for key in self._keys() if key[0] in copied]
        if self.source is None or not keys:
            return {}
        try:
            stable = await self.source.list_offsets(dict.fromkeys(keys, LATEST), read_committed=True)
            behind = [key for key in keys if 0 <= stable[key].offset < self.at_source.ends[key].offset]
            return await open_transactions(self.source, behind)
        except KmigrateError:  # the figures that matter are there; the next look names the transactions
            return {}

    # the link

    async def link_status(self, controllers: Iterable[ControllerPresence], *, ask_disk: bool) -> LinkStatus:
        link = self.link
        notes = [f"being deleted: kmigrate link delete {link.name} ends it"] if link.deleting_ms else []
        notes += [note for mirror in self.mirrors for note in mirror.notes]
        notes += [router.trouble for router in self.routers if router.trouble]
        unwatched = [controller.waits[link.key] for controller in controllers if link.key in controller.waits]
        notes += [f"late writes are not looked for now: {why}" for why in unwatched]
        disk_bytes, disk_growth = await self._disk(ask=ask_disk)
        return LinkStatus(
            link.name,
            link.source.name,
            link.target.name,
            "; ".join(filter(None, (self.source_trouble, self.target_trouble))),
            link.throttle,
            tuple(dict.fromkeys(notes)),
            link.finished_ms,
            disk_bytes,
            disk_growth,
            tuple(dict.fromkeys(mirror.disk_low for mirror in self.mirrors if mirror.disk_low)),
        )

    async def _disk(self, *, ask: bool) -> tuple[int | None, int | None]:
        """Return bytes on the target and growth in an hour, as the leading mirror reports; brokers tell bytes alone."""
        reported = next((mirror.disk for mirror in self.mirrors if mirror.disk is not None), DiskUse())
        if reported.bytes >= 0:
            return reported.bytes, reported.per_hour
        topics = {record.topic: range(record.partitions) for record in self.records if record.starts}
        if not topics:
            return 0, None
        sizes = topic_bytes(await read_log_dirs(self.connections.target, topics), topics) if ask else None
        return (sum(sizes.values()) if sizes is not None else None), None

    # topics

    async def topic_statuses(self) -> list[TopicStatus]:
        transactions = await self._open_transactions()
        presences = self.connections.log.presence.values()
        reports = [presence for presence, _ in presences if isinstance(presence, MirrorPresence)]
        lags = await lags_of(self.records, self.at_source.ends, self.at_target.ends, reports, self.source)
        return [await self._topic_status(record, transactions, lags) for record in self.records]

    async def _topic_status(
        self,
        record: TopicRecord,
        transactions: Mapping[tuple[str, int], OpenTransaction],
        lags: Mapping[tuple[str, int], Lag],
    ) -> TopicStatus:
        progress = progress_of(self.state, record, self.mirrors)
        rows = self.partition_statuses(record, progress, transactions, lags)
        direct = self.state.direct(record.link, record.topic)
        upkeep = (mirror.upkeep[record.topic].problem for mirror in self.mirrors if record.topic in mirror.upkeep)
        late = late_of(self.state, record, {p: self.at_source.ends[record.topic, p].offset for p in record.barrier})
        return TopicStatus(
            record.link,
            record.topic,
            record.phase,
            record.since_ms,
            record.hindrance or _rollback_given_up(record),
            _mapped(progress) if record.mapped else _offsets(record, rows),
            tuple(rows),
            paused=record.paused,
            upkeep=next(upkeep, ""),
            sealed_for=tuple(sorted(set(record.seal.routers.values()))) if record.seal is not None else (),
            promote_waits_for=self.connections.waits_for(record),
            direct_writers=tuple(w for _, w in sorted(seen_direct_writers(self.connections.log, record).items())),
            more_direct_writers=direct.more if direct is not None else 0,
            late=await with_unread(self.source, late) if self.source is not None else late,
            on_late=record.on_late,
            source_closed=_source_access(record),
            way_back=_way_back(record),
            way_back_lag=(behind := self._way_back_lag(record)),
            way_back_lag_seconds=way_back_seconds(progress, behind) if record.copied_back else -1.0,
        )

    def _way_back_lag(self, record: TopicRecord) -> int:
        if not record.copied_back:
            return -1
        ends = [(self.at_source.ends[key].offset, self.at_target.ends[key].offset) for key in record.topic_partitions]
        return _sum([-1 if min(each) < 0 else max(0, each[1] - each[0]) for each in ends])

    def partition_statuses(
        self,
        record: TopicRecord,
        progress: Mapping[int, PartitionProgress],
        transactions: Mapping[tuple[str, int], OpenTransaction],
        lags: Mapping[tuple[str, int], Lag],
    ) -> list[PartitionStatus]:
        copied = record.copied and not record.forgotten_ms
        stops = record.stops if record.way_back is None or not record.copied_back else record.way_back.stops
        verified = standing(self.state.verified(record.link, record.topic), self.link, record)
        rows: list[PartitionStatus] = []
        for partition in range(record.partitions):
            key = (record.topic, partition)
            seen = progress.get(partition)
            stop = stops.get(partition)
            absent = absence(self.state, record, partition, self.mirrors) if copied and not stop else ""
            trouble = seen.trouble if seen and not stop else ""
            cut = lost_beginning(record, key, self.at_target.starts, self.at_source.starts)
            held = [r.holds_ms[record.key].get(partition, -1.0) for r in self.routers if record.key in r.holds_ms]
            verified_to, verified_ms, unverified = _verified(
                record, partition, verified.get(partition), self.at_source.ends[key].offset
            )
            rows.append(
                PartitionStatus(
                    partition,
                    self.at_source.starts[key].offset,
                    self.at_source.ends[key].offset,
                    self.at_target.starts[key].offset,
                    self.at_target.ends[key].offset,
                    lags[key].records,
                    stop.text if stop else seen.problem if seen else "",
                    max(held, default=-1.0),
                    absent or trouble or cut,
                    stop,
                    record.losses.get(partition, ()),
                    transactions.get(key),
                    lags[key].bytes,
                    lags[key].seconds,
                    "" if absent or not copied else owner_of(self.state, record, partition),
                    verified_to,
                    verified_ms,
                    unverified,
                    self.at_source.leaders.get(key, -1),
                    self.at_target.leaders.get(key, -1),
                )
            )
        return rows

    # groups

    async def group_statuses(self, groups: Sequence[GroupRecord], *, figures: bool) -> list[GroupStatus]:
        """Return the statuses of groups; only with `figures` are the clusters asked."""
        found: Mapping[str, GroupFigures] = {}
        if figures:
            reports = {group.group: reports_on(self.connections.log, group.group) for group in groups}
            answers = not self.source_trouble
            found = await ask_groups(self.connections, self.link, groups, reports, source_answers=answers)
        return [self._group_status(group, found.get(group.group, GroupFigures())) for group in groups]

    def _group_status(self, group: GroupRecord, found: GroupFigures) -> GroupStatus:
        log = self.connections.log
        reports = reports_on(log, group.group)
        known = members_at_routers(log, group.group)
        direct = -1
        if reports and found.members is not None:
            direct = sum(member_mark(member.member_id) not in known for member in found.members)
        unread, again = (sum(sum(of.values()) for of in each.values()) for each in (group.unread, group.read_again))
        recorded = self.state.misplaced(self.link.name, group.group)
        seen = seen_members(recorded, group, found.misplaced, log.now_ms())
        late = found.commits if found.commits is not None else recorded.commits
        return GroupStatus(
            group.link,
            group.group,
            group.phase,
            group.hindrance,
            found.members,
            len(found.at_target) if found.at_target is not None else -1,
            found.lag.records,
            group.mode,
            direct,
            self.connections.waits_for(group),
            unread,
            again,
            *withheld_topics(self.state, group, reports, found.names),
            misplaced=seen.there,
            misplaced_before=seen.gone,
            late_commits=late if group.at_target else {},
            lag_unplaced=found.lag.unplaced,
            lag_beyond=found.lag.beyond_end,
            held=found.held,
            without_credential=self._without_credential(group),
            refused=tuple(refused_members(log, group.group)),
            router_members=self._router_members(group, found.members, direct),
            auto=group.auto,
        )

    def _without_credential(self, group: GroupRecord) -> tuple[MissingCredential, ...]:
        if group.at_target:
            return ()
        return tuple(each for each in missing_credentials(self.routers) if group.group in each.groups)

    def _router_members(self, group: GroupRecord, members: Sequence[GroupMember] | None, direct: int) -> int:
        """Count the members at routers: carried to the source, or, in a group that holds, waiting at the routers."""
        if group.at_target:
            return -1
        if group.mode is GroupMode.HOLD:
            waiting = [router for router in self.routers if group.group in (router.waiting or ())]
            return len({each.client_id for router in waiting for each in router.joins.get(group.group, ())})
        return len(members) - direct if members is not None and direct >= 0 else 0 if members is not None else -1


def _way_back(record: TopicRecord) -> str:
    if record.way_back is None:
        return ""
    return "open" if record.way_back.open else f"ended: {record.way_back.ended}"


def _rollback_given_up(record: TopicRecord) -> str:
    way = record.way_back
    return f"its rollback was given up: {way.reason}" if way is not None and way.reason and way.open else ""


def _source_access(record: TopicRecord) -> str:
    denied = record.closed.denied if record.closed is not None else ""
    access = record.source_access
    if record.copied_back and record.denied is not None and record.closed is None:
        if record.denied.open:
            return f"{SourceAccess.OPEN}: {record.denied.open}"
        if record.denied.may_exist and record.denied.in_force:
            return f"denied to {record.denied.names}"
    if access is not None and denied:
        return f"{SourceAccess.OPEN}: {denied}"
    return access or ""


def _verified(
    record: TopicRecord, partition: int, known: VerifiedRange | None, source_end: int
) -> tuple[int, int, int]:
    """Return the verified offset, the time of the check, and the number of unverified offsets."""
    promoted = record.at_target and partition in record.barrier
    limit = record.barrier[partition].offset if promoted else source_end
    done = record.starts.get(partition, 0) if known is None else known.end
    unverified = max(0, limit - done) if limit >= 0 else -1
    return (-1, 0, unverified) if known is None else (known.end, known.at_ms, unverified)


def _mapped(progress: Mapping[int, PartitionProgress]) -> str:
    """Return "mapped" with the number of runs that the mirror reports, where a mirror runs."""
    runs = sum(seen.runs for seen in progress.values())
    return f"mapped ({runs} run{'' if runs == 1 else 's'})" if runs else "mapped"


def _offsets(record: TopicRecord, rows: list[PartitionStatus]) -> str:
    """Judge by both logs whether offsets are identical: the target begins at the start and does not pass the source."""
    if record.phase in NOT_COPIED_YET:
        return "not yet"
    for row in rows:
        start = record.starts.get(row.partition, 0)
        if record.at_target:
            begins, passed = row.target_start >= start, False  # the target's own retention decides now
        else:
            begins = start <= row.target_start <= max(start, row.source_start)
            passed = row.target_end > row.source_end >= 0
        if row.problem or passed or row.target_start < 0 or not begins:
            return "unknown"
    return "identical"
