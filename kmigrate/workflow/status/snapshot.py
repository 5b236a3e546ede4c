"""One immutable snapshot of a migration, computed from offsets of both clusters, never from "task running"."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.brokers import read_log_dirs, topic_bytes
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient, LogOffset
from kmigrate.cluster.committed_offsets import read_positions
from kmigrate.cluster.groups import group_members, without_hold
from kmigrate.cluster.transactions import OpenTransaction, open_transactions
from kmigrate.errors import KmigrateError
from kmigrate.model.lag import Lag
from kmigrate.model.lifecycle import COPIED, NOT_COPIED_YET, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.presences import (
    DUTY,
    ControllerPresence,
    DiskUse,
    GroupReport,
    MirrorPresence,
    PartitionProgress,
    RefusedMember,
    RouterPresence,
)
from kmigrate.model.records import (
    DirectWriter,
    GroupRecord,
    LinkRecord,
    MisplacedMember,
    OnLate,
    RouterRecord,
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
from kmigrate.workflow.groups.lag import UNKNOWN, GroupLag, group_lag
from kmigrate.workflow.groups.membership import reports_on
from kmigrate.workflow.groups.misplaced import late_commits, members_at_target, not_former, seen_members
from kmigrate.workflow.groups.readers import read_logs
from kmigrate.workflow.groups.withheld import WithheldTopic, names_of, unnamed, withheld_topics
from kmigrate.workflow.promote.direct_writers import seen_direct_writers
from kmigrate.workflow.promote.late_findings import LateFound, late_of, with_unread
from kmigrate.workflow.status.lags import Offsets, lags_of, lost_beginning

__all__ = ["GroupStatus", "LinkStatus", "PartitionStatus", "Snapshot", "TopicStatus", "snapshot"]


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
    """Time of that check."""
    unverified: int = -1
    """Source offsets that no check has found equal, up to the barrier of a promoted topic; −1 where unknown."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    link: str
    topic: str
    phase: TopicPhase
    since_ms: int
    reason: str
    offsets: str
    """The relation between source and target offsets: identical, mapped (n runs), unknown, or not yet.

    Identical means that every partition's target log begins where its mirror began and does not pass the source's log.
    Mapped (n runs) means that the target's offsets are its own and the offset map holds every offset.
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
    """Number of further such producers."""
    late: tuple[LateFound, ...] = ()
    """Late writes of a promoted topic's source."""
    on_late: OnLate = OnLate.ALARM
    source_closed: str = ""
    """State of a promoted topic's source: closed, closing, opening, open, or open: with the reason; else ''."""

    @property
    def promoted(self) -> bool:
        return self.phase is TopicPhase.PROMOTED

    @property
    def lag(self) -> int:
        unknown = not self.partitions or any(p.lag < 0 for p in self.partitions)
        return -1 if unknown else sum(p.lag for p in self.partitions)

    @property
    def unverified(self) -> int:
        """Source offsets that no check has found equal; −1 where no check has looked at the topic, or unknown."""
        known = any(p.verified_to >= 0 for p in self.partitions) and all(p.unverified >= 0 for p in self.partitions)
        return sum(p.unverified for p in self.partitions) if known else -1

    @property
    def lag_bytes(self) -> int:
        unknown = not self.partitions or any(p.lag_bytes < 0 for p in self.partitions)
        return -1 if unknown else sum(p.lag_bytes for p in self.partitions)

    @property
    def lag_seconds(self) -> float:
        """The lag in seconds of the partition that is furthest behind."""
        each = [p.lag_seconds for p in self.partitions]
        return -1.0 if any(seconds < 0 for seconds in each) else max(each, default=-1.0)


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
    """The reason why the promote waits, in the words of the controller, or ''."""
    unread: int = 0
    """Records that the promote left unread, because they were never copied (`GroupRecord`)."""
    read_again: int = 0
    """Records that the group has read twice since its promote, because the group had read them on the target before."""
    withheld: tuple[WithheldTopic, ...] = ()
    """Topics that members at routers are assigned and not told of, for a group that follows; nobody reads them there.
    """
    more_withheld: int = 0
    """Number of further such topics, at least."""
    misplaced: tuple[MisplacedMember, ...] = ()
    """Members at the wrong cluster now: at the target before the promote, at the source after the promote."""
    misplaced_before: tuple[MisplacedMember, ...] = ()
    """Members that were seen at the wrong cluster during this link, and have gone."""
    late_commits: Mapping[str, Mapping[int, int]] = dataclasses.field(default_factory=dict)
    """Positions that were committed on the source after the promote, by topic and partition."""
    lag_unplaced: tuple[tuple[str, int], ...] = ()
    """Partitions that hold records and have no committed position: their lag is unknown, and not in `lag`."""
    lag_beyond: tuple[tuple[str, int], ...] = ()
    """Partitions whose committed position is beyond the log's end: their lag is unknown, and not in `lag`."""
    held: bool | None = None
    """True where a placeholder keeps others out of the promoted group on the source; None where unknown."""
    refused: tuple[RefusedMember, ...] = ()
    """Members at routers that the target refuses, or would refuse at the group's promote."""


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
    """Instances of routers that were heard of lately."""
    mirrors: tuple[MirrorPresence, ...]
    controllers: tuple[ControllerPresence, ...]
    connected: Mapping[str, RouterPresence] = dataclasses.field(default_factory=dict)
    """Newest report of each live router by instance, with the connected clients."""
    warnings: tuple[str, ...] = ()
    """Warnings about no single link: records that kmigrate did not write, routers that cannot read the state log."""

    def as_json(self) -> dict[str, Any]:
        return {
            "at_ms": self.at_ms,
            "epoch": self.epoch,
            "links": [dataclasses.asdict(link) for link in self.links],
            "topics": [
                dataclasses.asdict(t)
                | {"lag": t.lag, "lag_bytes": t.lag_bytes, "lag_seconds": t.lag_seconds, "unverified": t.unverified}
                | {"late": [late.as_json() for late in t.late]}
                for t in self.topics
            ],
            "groups": [dataclasses.asdict(g) for g in self.groups],
            "routers": [
                {**dataclasses.asdict(r), "alive": r.instance in self.routers_alive, **self._connected(r.instance)}
                for r in self.routers
            ],
            "mirrors": [
                {
                    "instance": m.instance,
                    "link": m.link,
                    "active": m.active,
                    "partitions": sum(len(partitions) for partitions in m.topics.values()),
                }
                for m in self.mirrors
            ],
            "controllers": [{"instance": c.instance, "active": c.active} for c in self.controllers],
            "warnings": list(self.warnings),
        }

    def _connected(self, instance: str) -> dict[str, Any]:
        word = self.connected.get(instance)
        return {
            "on_brokers": word.on_brokers if word else -1,
            "clients": [dataclasses.asdict(client) for client in word.clients] if word else [],
            "more_clients": word.more_clients if word else -1,
            "connections": word.connections if word else -1,
            "limits": dataclasses.asdict(word.limits) if word and word.limits else None,
        }


async def snapshot(connections: Connections, *, figures: bool = True) -> Snapshot:
    """Ask both clusters now; a cluster with a leader that does not answer has unknown figures, and is named.

    Without `figures` no cluster is asked: phases and running processes are known from the state log.
    """
    log = connections.log
    links: list[LinkStatus] = []
    topics: list[TopicStatus] = []
    groups: list[GroupStatus] = []
    mirrors = log.alive(MirrorPresence)
    routers = log.alive(RouterPresence)
    controllers = log.alive(ControllerPresence)
    for link in log.state.links():
        records = log.state.topics(link.name, forgotten=True)
        keys = [key for record in records for key in _keys(record)]
        names = [r.topic for r in records]
        trouble, away = "", ""
        source: ClusterClient | None = None
        mine = theirs = _unknown(keys)
        if figures:  # the target first: otherwise records written in between would seem to have passed the source
            mine, away = await _of_target(connections, link, names, keys)
            source, theirs, trouble = await _of_source(connections, link, names, keys)
        ending = [f"being deleted: kmigrate link delete {link.name} ends it"] if link.deleting_ms else []
        said = [note for m in mirrors if m.link == link.name for note in m.notes]
        said += [router.trouble for router in routers if router.trouble]
        said += [f"late writes are not looked for now: {c.waits[link.key]}" for c in controllers if link.key in c.waits]
        notes = tuple(dict.fromkeys([*ending, *said]))
        links.append(
            LinkStatus(
                link.name,
                link.source.name,
                link.target.name,
                "; ".join(filter(None, (trouble, away))),
                link.throttle,
                notes,
                link.finished_ms,
                *(await _disk_of(connections, link, records, mirrors, ask=figures and not away)),
                tuple(dict.fromkeys(m.disk_low for m in mirrors if m.link == link.name and m.disk_low)),
            )
        )
        mirrored = [key for r in records if r.phase is not TopicPhase.PROMOTED for key in _keys(r)]
        waits = await _waits(source, mirrored, theirs)
        words = [word for word, _ in log.presence.values() if isinstance(word, MirrorPresence)]
        lags = await lags_of(records, theirs[1], mine[1], words, source)
        for record in records:
            verified = standing(log.state.verified(link.name, record.topic), link, record)
            told = _topic_status(log.state, record, mine, theirs, waits, mirrors, routers, lags, verified)
            writers = tuple(writer for _, writer in sorted(seen_direct_writers(log, record).items()))
            known = log.state.direct(link.name, record.topic)
            topics.append(
                dataclasses.replace(
                    told,
                    promote_waits_for=connections.waits_for(record),
                    direct_writers=writers,
                    more_direct_writers=known.more if known is not None else 0,
                    late=await _late(log.state, record, theirs[1], source),
                    on_late=record.on_late,
                    source_closed=_closed(record),
                )
            )
        of_link = log.state.groups(link.name, forgotten=True)
        groups += [await _group_status(connections, link, group, trouble, figures=figures) for group in of_link]
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
        _warnings(log, routers, controllers),
    )


def _warnings(
    log: StateLog, routers: Iterable[RouterPresence], controllers: Iterable[ControllerPresence]
) -> tuple[str, ...]:
    strays = [each.told(topic) for topic, each in log.strays().items()]
    deaf = [
        f"router {r.name} cannot read the state log and goes on with what it knew at state {r.applied}: {r.deaf}"
        for r in routers
        if r.deaf
    ]
    failed = [
        f"controller {each.instance}: {why}"
        for each in controllers
        for key, why in each.waits.items()
        if key.startswith(DUTY)
    ]
    return tuple(filter(None, (*strays, *deaf, *failed)))


async def _of_target(
    connections: Connections, link: LinkRecord, names: list[str], keys: list[tuple[str, int]]
) -> tuple[tuple[Offsets, Offsets], str]:
    try:
        await connections.target.refresh(names)
        return await _bounds(connections.target, keys), ""
    except KmigrateError as error:
        return _unknown(keys), f"target {link.target.name}: {error.what}"


async def _disk_of(
    connections: Connections,
    link: LinkRecord,
    records: Iterable[TopicRecord],
    mirrors: Iterable[MirrorPresence],
    *,
    ask: bool,
) -> tuple[int | None, int | None]:
    """Return what the link's topics take on the target, and the growth in an hour; None where unknown.

    The mirror that holds the lease reports both. Without such a report the brokers are asked, which know no growth.
    """
    told = next((m.disk for m in mirrors if m.link == link.name and m.disk is not None), DiskUse())
    if told.bytes >= 0:
        return told.bytes, told.per_hour
    topics = {record.topic: range(record.partitions) for record in records if record.starts}
    if not topics:
        return 0, None
    sizes = topic_bytes(await read_log_dirs(connections.target, topics), topics) if ask else None
    return (sum(sizes.values()) if sizes is not None else None), None


async def _of_source(
    connections: Connections, link: LinkRecord, names: list[str], keys: list[tuple[str, int]]
) -> tuple[ClusterClient | None, tuple[Offsets, Offsets], str]:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            source, _ = await connections.source(link)
            await source.refresh(names)
            return source, await _bounds(source, keys), ""
    except KmigrateError as error:
        return None, _unknown(keys), error.what
    except TimeoutError:
        return None, _unknown(keys), f"source {link.source.name} has not answered within {_PATIENCE_S:g} s"


def _unknown(keys: list[tuple[str, int]]) -> tuple[Offsets, Offsets]:
    unknown = LogOffset(-1, -1, -1)
    return dict.fromkeys(keys, unknown), dict.fromkeys(keys, unknown)


async def _bounds(client: ClusterClient, keys: list[tuple[str, int]]) -> tuple[Offsets, Offsets]:
    if not keys:
        return _unknown(keys)
    return (
        await client.list_offsets(dict.fromkeys(keys, EARLIEST)),
        await client.list_offsets(dict.fromkeys(keys, LATEST)),
    )


def _keys(record: TopicRecord) -> list[tuple[str, int]]:
    return [(record.topic, partition) for partition in range(record.partitions)]


async def _waits(
    client: ClusterClient | None, keys: list[tuple[str, int]], bounds: tuple[Offsets, Offsets]
) -> Mapping[tuple[str, int], OpenTransaction]:
    """Return the open transactions of partitions whose last stable offset lies before their log end."""
    if client is None or not keys:
        return {}
    try:
        stable = await client.list_offsets(dict.fromkeys(keys, LATEST), read_committed=True)
        return await open_transactions(client, [key for key in keys if 0 <= stable[key].offset < bounds[1][key].offset])
    except KmigrateError:  # the figures that matter are there; the next look names the transactions
        return {}


def _topic_status(
    state: State,
    record: TopicRecord,
    mine: tuple[Offsets, Offsets],
    theirs: tuple[Offsets, Offsets],
    waits: Mapping[tuple[str, int], OpenTransaction],
    mirrors: list[MirrorPresence],
    routers: list[RouterPresence],
    lags: Mapping[tuple[str, int], Lag],
    verified: Mapping[int, VerifiedRange],
) -> TopicStatus:
    topic = record.topic
    progress = progress_of(state, record, mirrors)
    copied = record.phase in COPIED and not record.forgotten_ms
    holds: dict[int, float] = {}
    for router in routers:
        for partition, held in router.holds_ms.get(record.key, {}).items():
            holds[partition] = max(held, holds.get(partition, -1.0))
    rows: list[PartitionStatus] = []
    for partition in range(record.partitions):
        key = (record.topic, partition)
        seen = progress.get(partition)
        stop = record.stops.get(partition)
        absent = absence(state, record, partition, mirrors) if copied and not stop else ""
        said = seen.trouble if seen and not stop else ""
        rows.append(
            PartitionStatus(
                partition,
                theirs[0][key].offset,
                theirs[1][key].offset,
                mine[0][key].offset,
                mine[1][key].offset,
                lags[key].records,
                stop.text if stop else seen.problem if seen else "",
                holds.get(partition, -1.0),
                absent or said or lost_beginning(record, key, mine[0], theirs[0]),
                stop,
                record.losses.get(partition, ()),
                waits.get(key),
                lags[key].bytes,
                lags[key].seconds,
                "" if absent or not copied else owner_of(state, record, partition),
                *_verified(record, partition, verified.get(partition), theirs[1][key].offset),
            )
        )
    return TopicStatus(
        record.link,
        record.topic,
        record.phase,
        record.since_ms,
        record.hindrance,
        _mapped(record, progress) if record.mapped else _offsets(record, rows),
        tuple(rows),
        record.paused,
        next((m.upkeep[topic].problem for m in mirrors if m.link == record.link and topic in m.upkeep), ""),
        tuple(sorted(set(record.seal.routers.values()))) if record.seal is not None else (),
    )


def _closed(record: TopicRecord) -> str:
    """Say whether the source of a promoted topic refuses writes."""
    if record.phase is not TopicPhase.PROMOTED:
        return ""
    closed, wanted = record.closed, record.late.seal
    if closed is None:
        return "closing" if wanted else "open"
    if closed.denied:
        return f"open: {closed.denied}"
    return ("closed" if closed.proven else "closing") if wanted else "opening"


def _verified(
    record: TopicRecord, partition: int, known: VerifiedRange | None, source_end: int
) -> tuple[int, int, int]:
    """Return the verified offset, the time of the check, and the number of unverified offsets."""
    promoted = record.phase is TopicPhase.PROMOTED and partition in record.barrier
    limit = record.barrier[partition].offset if promoted else source_end
    done = record.starts.get(partition, 0) if known is None else known.end
    left = max(0, limit - done) if limit >= 0 else -1
    return (-1, 0, left) if known is None else (known.end, known.at_ms, left)


def _mapped(record: TopicRecord, progress: Mapping[int, PartitionProgress]) -> str:
    """Return "mapped" with the number of runs that the mirror reports; without a running mirror the number is
    unknown."""
    runs = sum(seen.runs for seen in progress.values())
    return f"mapped ({runs} run{'' if runs == 1 else 's'})" if runs else "mapped"


def _offsets(record: TopicRecord, rows: list[PartitionStatus]) -> str:
    """Judge by the two logs whether offsets are identical: the target begins at the start and does not pass the
    source."""
    if record.phase in NOT_COPIED_YET:
        return "not yet"
    for row in rows:
        limit = record.barrier[row.partition].offset if record.phase is TopicPhase.PROMOTED else row.source_end
        start = record.starts.get(row.partition, 0)
        if record.phase is TopicPhase.PROMOTED:
            begins = row.target_start >= start  # after the promote the target's own retention decides
            passed = False
        else:
            begins = start <= row.target_start <= max(start, row.source_start)
            passed = row.target_end > limit >= 0
        if row.problem or passed or row.target_start < 0 or not begins:
            return "unknown"
    return "identical"


@dataclass(slots=True)
class _GroupFigures:
    """The figures of one group from the two clusters; an unknown figure keeps its default."""

    members: tuple[GroupMember, ...] | None = None
    at_target: tuple[GroupMember, ...] | None = None
    lag: GroupLag = UNKNOWN
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    misplaced: tuple[GroupMember, ...] | None = None
    held: bool | None = None
    commits: Mapping[str, Mapping[int, int]] | None = None


async def _ask_group(
    connections: Connections,
    link: LinkRecord,
    group: GroupRecord,
    words: list[GroupReport],
    found: _GroupFigures,
    trouble: str,
) -> None:
    """Ask the clusters in the order of importance, and fill in the answers. Raises where a cluster does not answer."""
    if not trouble:
        source, source_admin = await connections.source(link)
        assigned: frozenset[str] = frozenset()
        if group.phase is GroupPhase.PROMOTED:
            told = await group_members(source, group.group)
            found.members = without_hold(told)
            found.held = len(found.members) < len(told)
            found.misplaced = not_former(found.members, group)
            found.commits = await late_commits(source, group)
            assigned = (await connections.target_admin.describe_groups([group.group]))[group.group].assigned
        else:
            described = (await source_admin.describe_groups([group.group]))[group.group]
            found.members = described.members
            assigned = described.assigned
            if unnamed(words):
                found.names = await names_of(source, described.assigned)
        serving = connections.target if group.phase is GroupPhase.PROMOTED else source
        found.lag = await _lag_of_group(connections, link, group.group, serving, assigned)
    found.at_target = await members_at_target(connections.target, group.group)
    if group.phase is GroupPhase.MIRRORED:
        found.misplaced = found.at_target


async def _lag_of_group(
    connections: Connections, link: LinkRecord, group: str, serving: ClusterClient, assigned: frozenset[str]
) -> GroupLag:
    """Return the lag over all partitions of the topics that the group has positions in, or is assigned."""
    positions = await read_positions(serving, group, stable=False)
    topics = {topic for topic, _ in positions} | assigned
    known = (await serving.refresh(topics)).topics if topics else {}
    partitions = {(topic, part) for topic in topics if topic in known for part in known[topic].partitions}
    partitions |= positions.keys()
    state = connections.log.state
    ends = await read_logs(state, link.name, dict.fromkeys(partitions, LATEST), serving, connections.target)
    unplaced = dict.fromkeys(partitions - positions.keys(), EARLIEST)
    starts = await read_logs(state, link.name, unplaced, serving, connections.target)
    return group_lag(positions, partitions, starts, ends)


async def _late(
    state: State, record: TopicRecord, ends: Mapping[tuple[str, int], LogOffset], source: ClusterClient | None
) -> tuple[LateFound, ...]:
    """Return the late writes of a topic, read as far as the source answers."""
    found = late_of(state, record, {p: ends[record.topic, p].offset for p in record.barrier})
    return await with_unread(source, found) if source is not None else found


async def _group_status(
    connections: Connections, link: LinkRecord, group: GroupRecord, trouble: str, *, figures: bool
) -> GroupStatus:
    words = reports_on(connections.log, group.group)
    found = _GroupFigures()
    if figures:
        with suppress(KmigrateError):  # the figures that are known by then are shown
            await _ask_group(connections, link, group, words, found, trouble)
    known = {mark for word in words for mark in word.members}
    direct = -1
    if words and found.members is not None:
        direct = sum(member_mark(member.member_id) not in known for member in found.members)
    unread, again = (sum(sum(of.values()) for of in each.values()) for each in (group.unread, group.read_again))
    recorded = connections.log.state.misplaced(link.name, group.group)
    seen = seen_members(recorded, group, found.misplaced, connections.log.now_ms())
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
        connections.waits_for(group),
        unread,
        again,
        *withheld_topics(connections.log.state, group, words, found.names),
        misplaced=seen.there,
        misplaced_before=seen.gone,
        late_commits=late if group.phase is GroupPhase.PROMOTED else {},
        lag_unplaced=found.lag.unplaced,
        lag_beyond=found.lag.beyond,
        held=found.held,
        refused=tuple(refused_members(connections.log, group.group)),
    )
