"""Verbs on consumer groups: registered first, promoted when no member is left on the source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kmigrate.cluster.admin import HOLD_TYPE, Admin
from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient
from kmigrate.cluster.committed_offsets import read_all_positions, read_positions
from kmigrate.cluster.coordinators import all_answered
from kmigrate.cluster.groups import CONSUMERS, group_members, protocol_type
from kmigrate.errors import KmigrateError, Refused, UsageError
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import (
    NOT_COPIED_YET,
    PROMOTING,
    GroupEvent,
    GroupMode,
    GroupPhase,
    advance_group,
)
from kmigrate.model.nearest import name_hint
from kmigrate.model.patterns import NamePattern, chosen_groups
from kmigrate.model.record_json import Record
from kmigrate.model.records import Action, Asked, GroupRecord, LinkRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.broker_settings import (
    BrokerSettings,
    Scope,
    compare_settings,
    limit,
    read_both,
    settings_unknown,
)
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.plan import Finding, Level, ok, refuse, warn
from kmigrate.workflow.base.running import until_mirroring
from kmigrate.workflow.groups.admission import (
    admission_findings,
    join_terms_of,
    refused_member_findings,
    refused_members,
)
from kmigrate.workflow.groups.coupled_topics import coupled_topics_of
from kmigrate.workflow.groups.membership import outsiders, reports_on
from kmigrate.workflow.groups.misplaced import members_at_target, misplaced_findings, seen_members
from kmigrate.workflow.groups.readers import GroupReads, group_reads, read_logs
from kmigrate.workflow.groups.uncopied import Uncopied, uncopied
from kmigrate.workflow.groups.withheld import names_of, unnamed, withheld_topics
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.position_guards import moved_positions_guards
from kmigrate.workflow.verbs.proposal import Judged, Proposal, Write, by_regex, owned, propose, refuse_if

__all__ = [
    "coupled_groups",
    "judged_promote",
    "mirror_groups",
    "mode_for",
    "promote_groups",
    "promote_guards",
    "unmirrored_readers",
    "unpromoted_topics",
]

_AUTO = "auto"
"""Follow where following is possible; a group that is mirrored already keeps its mode."""
_CARRIED = frozenset({"classic", "consumer", "unknown"})
"""Types of groups that can follow, by librdkafka's names: both group protocols (KIP-848), or no members yet."""
_MODES = (_AUTO, *GroupMode)
_EMPTY = "empty"
"""State of a group without members, by librdkafka's name."""


async def mirror_groups(
    connections: Connections,
    link_name: str | None,
    groups: Sequence[str],
    *,
    mode: str = GroupMode.HOLD,
    auto: bool | None = None,
) -> Proposal:
    """Propose to register groups, without a write to the target before their promote; mirrored groups get the mode.

    With `auto` the controller promotes the groups by itself; None leaves mirrored groups as they are.
    """
    _check_mode(mode)
    link = resolve_link(connections.log.state, link_name)
    mirrored = {
        group: record for group in groups if (record := connections.log.state.group(link.name, group)) is not None
    }
    found = [ok("already-mirrored", f"group {r.group} is {r.phase} already") for r in mirrored.values()]
    asked = [g for g in dict.fromkeys(groups) if g not in mirrored or mirrored[g].phase is GroupPhase.MIRRORED]
    if not asked:
        return propose(connections.log, "group mirror", found)
    refuse_finished(link)
    source, source_admin = await connections.source(link)
    known = await source_admin.groups()
    kinds = await _unlisted_kinds(source, connections.log.state, asked, known)
    known |= {group: _EMPTY for group, kind in kinds.items() if kind == HOLD_TYPE}
    read = await _reads_of(source, connections.log.state, link, asked, known) if mode != GroupMode.HOLD else {}
    new: list[str] = []
    writes: list[Write] = []
    for group in asked:
        owner = connections.log.state.group_owner(group)
        if owner is not None and (owner.link != link.name or owner.forgotten_ms):
            found.append(owned("group", owner.group, owner))
            continue
        if owner is not None and not _changes_mode(owner, mode):
            writes += _auto_writes(owner, auto)
            continue
        if owner is None and group not in known:
            found.append(_not_listed(link, group, kinds.get(group, ""), known))
            continue
        reads = read.get(group)
        given, why = mode_for(connections.log.state, link.name, group, reads, mode)
        found.append(why)
        change = (
            f"register group {group} ({given})" if owner is None else f"group {group}: {owner.mode} becomes {given}"
        )
        writes.append((change, partial(_register, link.name, group, reads, mode)))
        writes += _auto_writes(owner or GroupRecord(link.name, group, GroupPhase.MIRRORED, 0), auto)
        new.append(group)
    found += _auto_findings(connections.log.state, link.name, asked) if auto else []
    if new:
        found += await _mirror_setting_guards(connections, link, source, new)
    return propose(connections.log, "group mirror", found, writes)


async def _unlisted_kinds(
    source: ClusterClient, state: State, groups: Sequence[str], listed: Collection[str]
) -> dict[str, str]:
    """Return the protocol types of new groups that the source does not list as consumers' groups.

    A promoted group that was rolled back keeps the placeholder's type until a consumer joins.
    """
    new = [group for group in groups if group not in listed and state.group_owner(group) is None]
    return {group: await protocol_type(source, group) for group in new}


async def _reads_of(
    source: ClusterClient, state: State, link: LinkRecord, groups: Sequence[str], listed: Collection[str]
) -> dict[str, GroupReads]:
    """Return what groups read that the link has, or may take."""
    owners = {group: state.group_owner(group) for group in groups}
    asked = [name for name, owner in owners.items() if (name in listed if owner is None else owner.link == link.name)]
    return await group_reads(source, asked)


def _not_listed(link: LinkRecord, group: str, kind: str, known: Collection[str]) -> Finding:
    source = link.source.name
    if kind and kind != CONSUMERS:
        return refuse(
            "not-of-consumers",
            f"group {group} on the source {source} is of type {kind}, not of consumers: it has no positions to carry "
            "over",
            "its workers move all at once: docs/groups.md",
        )
    hint = name_hint(group, known)
    check = "check the name; a group that never committed has nothing to carry over"
    as_expression = f"to mirror by expression: {by_regex('group', link.name, group)}"
    advice = as_expression if "as an expression" in hint else check
    return refuse("unknown-group", f"the source {source} has no group {group}{hint}", advice)


def _auto_writes(record: GroupRecord, auto: bool | None) -> list[Write]:
    """Return the write that turns a group's automatic promote on or off, where that is a change."""
    if auto is None or auto == record.auto:
        return []

    def decide(state: State) -> Record | None:
        now = state.group(record.link, record.group)
        if now is None or now.phase is not GroupPhase.MIRRORED or now.auto == auto:
            return None
        return replace(now, auto=auto)

    words = "the controller promotes it once no member is left on the source" if auto else "no automatic promote"
    return [(f"group {record.group}: {words}", decide)]


def _auto_findings(state: State, link: str, groups: Sequence[str]) -> list[Finding]:
    """Warn of groups that no controller promotes by itself, because transactions couple the groups with topics."""
    records = [GroupRecord(link, group, GroupPhase.MIRRORED, 0) for group in groups]
    return [
        warn(
            "auto-promote-off",
            f"group {record.group} is not promoted automatically: transactions that commit its positions write "
            f"{', '.join(topics)}",
            f"promote the topics, and the group goes with them: {advised('promote', link, *topics)}",
        )
        for record in records
        if (topics := unpromoted_topics(state, record))
    ]


def unpromoted_topics(state: State, record: GroupRecord) -> list[str]:
    """Return the topics, not promoted yet, that are written in the transactions that commit the group's positions."""
    return [each.topic for each in coupled_topics_of(state, record, at_target=False)]


def _changes_mode(record: GroupRecord, asked: str) -> bool:
    return asked not in (_AUTO, record.mode)


def _register(link: str, group: str, reads: GroupReads | None, asked: str, state: State) -> Record | None:
    """Return a group's record, judged at its write: a promote, a registration or a finish may have come between."""
    refuse_finished(resolve_link(state, link))
    owner = state.group_owner(group)
    if owner is not None and (owner.link != link or owner.forgotten_ms):
        refuse_if("group mirror", owned("group", owner.group, owner))
    if owner is not None and not _changes_mode(owner, asked):
        return None
    if owner is not None and owner.phase is not GroupPhase.MIRRORED:
        raise Refused(
            "changed-meanwhile",
            f"group {group} is {owner.phase} by now",
            still_true="nothing was changed",
            next_step="kmigrate group list",
        )
    given, why = mode_for(state, link, group, reads, asked)
    refuse_if("group mirror", why)
    if owner is None:
        return GroupRecord(link, group, GroupPhase.MIRRORED, now_ms(), mode=given)
    return replace(owner, mode=given, since_ms=now_ms())


def _check_mode(mode: str) -> None:
    """Raise UsageError if a word is no mode."""
    if mode not in _MODES:
        raise UsageError(
            "bad-group-mode",
            f"--mode {mode}: no such mode",
            still_true="nothing was changed",
            next_step=f"expected: {', '.join(_MODES)}",
        )


def mode_for(state: State, link: str, group: str, reads: GroupReads | None, asked: str) -> tuple[GroupMode, Finding]:
    """Return a group's mode with the reason, or the refusal of the asked mode; `reads` may be None for mode hold."""
    if reads is None:
        return GroupMode.HOLD, ok("holds", f"members of {group} that move wait for its promote")
    against = _against_following(state, link, reads)
    if not against:
        return GroupMode.FOLLOW, ok("follows", f"members of {group} that move stay members of its group")
    if asked == _AUTO:
        return GroupMode.HOLD, ok("holds", f"members of {group} that move wait for its promote: {against}")
    return GroupMode.HOLD, refuse(
        "cannot-follow", f"group {group} cannot follow: {against}", "mirror it with --mode hold"
    )


def _against_following(state: State, link: str, reads: GroupReads) -> str:
    """Return why members at the target's copy cannot share offsets with members at the source; '' where they can."""
    if reads.kind not in _CARRIED:
        return f"it is a {reads.kind} group, whose requests to the coordinator are not carried over"
    for topic in sorted(reads.topics):
        record = state.topic(link, topic)
        if record is None:
            return f"it reads {topic}, which is not mirrored"
        if record.phase in NOT_COPIED_YET:
            return f"{topic} is {record.phase}: whether its offsets are identical is not known yet"
        if record.mapped:
            return f"the offsets of {topic} are mapped"
        if record.phase in PROMOTING:
            return f"{topic} is {record.phase}: in a moment the source does not get its records any more"
        if record.at_target:
            return f"{topic} is promoted: the source does not get its records any more"
    return ""


async def promote_groups(
    connections: Connections, link_name: str | None, groups: Sequence[str], *, waits: bool = False, who: str = ""
) -> Proposal:
    """Propose to promote groups: committed offsets are carried over, then the groups' reads open.

    With `waits` the caller waits for the copy before it writes: a copy that is behind is a warning, not a refusal.
    """
    link = resolve_link(connections.log.state, link_name)
    judged = judged_promote(link.name, who, connections.log.now_ms)
    records, found = judged.look(connections.log.state, groups)
    for record in records.values():
        found += await promote_guards(connections, link, record, waits=waits)
        found += _coupled_guards(connections.log.state, record)
    if waits and records:
        positions = Positions(connections.target, connections.log)
        found += _behind_findings(await uncopied(connections, link, list(records), positions))
    writes = [(f"promote group {group}", judged.write(group)) for group in records]
    return propose(connections.log, judged.verb, found, writes)


def _behind_findings(behind: Sequence[Uncopied]) -> list[Finding]:
    """Return a warning for each topic whose copy lacks records that a group has read."""
    worst: dict[tuple[str, str], Uncopied] = {}
    for each in behind:
        known = worst.get((each.group, each.topic))
        if known is None or (each.left or 0) > (known.left or 0):
            worst[each.group, each.topic] = each
    again = "the promote waits for the copy: --timeout says how long"
    return [warn("target-behind-group", str(each), again) for each in worst.values()]


def judged_promote(link: str, who: str = "", clock: Callable[[], int] = now_ms) -> Judged[GroupRecord]:
    """Return the promote of single groups of a link; nothing is left to do where a promote is under way already.

    The record names who asked, and the time of the request by `clock`.
    """

    def guard(record: GroupRecord) -> Finding | None:
        return None if record.phase is GroupPhase.MIRRORED else ok("already", f"group {record.group} is {record.phase}")

    def change(record: GroupRecord) -> GroupRecord:
        phase = advance_group(record.phase, GroupEvent.PROMOTE_ASKED)
        now = now_ms()
        changed = replace(record, phase=phase, since_ms=now, asked_ms=now, asked=Asked(Action.PROMOTE, clock(), who))
        return replace(changed, reason="", way_on="", asked_automatically=False)

    return Judged.groups("group promote", link, guard, change)


async def promote_guards(
    connections: Connections, link: LinkRecord, record: GroupRecord, *, waits: bool = False
) -> list[Finding]:
    """Return the findings about a group's promote, from its members and positions on both clusters."""
    source, source_admin = await connections.source(link)
    members = await outsiders(connections.log, source_admin, record)
    found = [
        refuse(
            "members-on-source",
            f"group {record.group} still has member {m.client_id} at {m.host} on the source",
            "restart that consumer with the router's address",
        )
        for m in members
    ]
    now = connections.log.now_ms()
    at_target = await members_at_target(connections.target, record.group)
    seen = seen_members(connections.log.state.misplaced(link.name, record.group), record, at_target, now)
    found += misplaced_findings(record, seen, now)
    found += await _setting_guards(connections, link, source, record)
    found += refused_member_findings(record, refused_members(connections.log, record.group))
    found += await _offset_guards(connections, link, source, record.group, waits=waits)
    found += await _withheld_guards(connections, source, source_admin, record)
    return found + await moved_positions_guards(connections, link, source, record.group)


async def _mirror_setting_guards(
    connections: Connections, link: LinkRecord, source: ClusterClient, groups: Sequence[str]
) -> list[Finding]:
    """Compare the clusters' settings on groups, and these groups' metadata with the target's limit."""
    try:
        here, there = await read_both(connections, link)
        found = await _metadata_guards(source, groups, there, "warn")
    except KmigrateError as error:
        return [settings_unknown(error)]
    return [*found, *compare_settings(here, there, {Scope.GROUPS})]


async def _setting_guards(
    connections: Connections, link: LinkRecord, source: ClusterClient, record: GroupRecord
) -> list[Finding]:
    """Compare the clusters' settings on groups, and hold the known members against the target's limits."""
    try:
        here, there = await read_both(connections, link)
        members = [member.client_id for member in await group_members(source, record.group)]
    except KmigrateError as error:
        return [settings_unknown(error)]
    terms = join_terms_of(connections.log, record.group)
    return [
        *admission_findings(record, terms, members, there),
        *await _metadata_guards(source, [record.group], there, "refuse"),
        *compare_settings(here, there, {Scope.GROUPS}),
    ]


async def _metadata_guards(
    source: ClusterClient, groups: Sequence[str], target: BrokerSettings, level: Level
) -> list[Finding]:
    """Name positions whose metadata is longer than the target takes: the promote could not write these."""
    most = limit(target, "offset.metadata.max.bytes")
    if most is None:
        return []
    positions = all_answered(await read_all_positions(source, groups))
    return [
        Finding(
            level,
            "commit-metadata-too-large",
            f"group {group} has committed {topic}-{partition} with {length:,} characters of metadata; the target takes "
            f"{most:,} (offset.metadata.max.bytes)",
            f"set offset.metadata.max.bytes={length} or more in the target brokers' server.properties, and restart "
            "these one by one",
        )
        for group in groups
        for (topic, partition), committed in sorted(positions[group].items())
        if (length := len(committed.metadata.encode("utf-16-le")) // 2) > most
    ]


async def _withheld_guards(
    connections: Connections, source: ClusterClient, source_admin: Admin, record: GroupRecord
) -> list[Finding]:
    """Warn of withheld topics: members have no positions there; after the promote nobody reads them at the source."""
    reports = reports_on(connections.log, record.group)
    names: Mapping[str, str] = {}
    if unnamed(reports):
        described = (await source_admin.describe_groups([record.group]))[record.group]
        names = await names_of(source, described.assigned)
    withheld, more = withheld_topics(connections.log.state, record, reports, names)
    found = [warn(each.ref, each.said_of(record.group), each.next) for each in withheld]
    if more:
        found.append(warn("topics-withheld", f"group {record.group}: at least {more} such topics more"))
    return found


def _coupled_guards(state: State, record: GroupRecord) -> list[Finding]:
    """Refuse a group alone where the transactions that commit its positions write topics: all are promoted together."""
    if record.mode is not GroupMode.FOLLOW:
        return []
    left = unpromoted_topics(state, record)
    return [
        refuse("coupled-topics",
            f"transactions that commit positions of group {record.group} write {', '.join(left)}",
            f"promote the topics, and the group goes with them: {advised('promote', record.link, *left)}")
    ] if left else []  # fmt: skip


def coupled_groups(state: State, link: str, topics: Collection[str]) -> list[GroupRecord]:
    """Return groups that go to and fro with these topics, because transactions commit their positions."""
    _, names = unit_of(state.couplings(link), topics)
    found = (state.group(link, name) for name in sorted(names))
    return [record for record in found if record is not None and record.mode is GroupMode.FOLLOW]


async def unmirrored_readers(
    connections: Connections, source: ClusterClient, source_admin: Admin
) -> dict[str, list[str]]:
    """Return groups that nobody mirrors, by the topics that they have positions in: these would stay behind."""
    mirrored = {group.group for group in connections.log.state.groups()}
    names = [name for name in chosen_groups([NamePattern(".*")], await source_admin.groups()) if name not in mirrored]
    found: dict[str, list[str]] = {}
    for group, positions in all_answered(await read_all_positions(source, names)).items():
        for topic in {topic for topic, _ in positions}:
            found.setdefault(topic, []).append(group)
    return {topic: sorted(groups) for topic, groups in found.items()}


async def _offset_guards(
    connections: Connections, link: LinkRecord, source: ClusterClient, group: str, *, waits: bool
) -> list[Finding]:
    """Return findings for positions that cannot move (C5): beyond the log, or in a topic not mirrored or not copied."""
    offsets = await read_positions(source, group, stable=False)
    topics = connections.log.state.topics(link.name)
    mirrored = {topic.topic for topic in topics}
    found = [
        warn("topic-not-mirrored", f"group {group} has positions in {topic}, which is not mirrored")
        for topic in sorted({t for t, _ in offsets} - mirrored)
    ]
    found += [
        refuse(
            "topic-not-ready",
            f"group {group} has positions in {topic.topic}, which is {topic.phase}: the mirror does not copy it yet",
            f"{until_mirroring(connections.log, link.name)}; then repeat",
        )
        for topic in topics
        if not waits and topic.phase in NOT_COPIED_YET and any(name == topic.topic for name, _ in offsets)
    ]
    keys = [key for key in offsets if key[0] in mirrored]
    state = connections.log.state
    ends = await read_logs(state, link.name, dict.fromkeys(keys, LATEST), source, connections.target)
    starts = await read_logs(state, link.name, dict.fromkeys(keys, EARLIEST), source, connections.target)
    for key in keys:
        end, first = ends[key], starts[key]
        if not end.error and offsets[key].offset > end.offset and end.offset > first.offset:
            found.append(
                refuse(
                    "position-beyond-log",
                    f"group {group} committed {offsets[key].offset} on {key[0]}-{key[1]}, "
                    f"whose log ends at {end.offset}",
                    "reset that position on the source to one that exists",
                )
            )
    return found
