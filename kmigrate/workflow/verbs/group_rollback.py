"""`group rollback`: promoted groups go back to the source, with the committed offsets of the target.

The topics that a group reads have to be mirrored, or promoted with an open way back: otherwise the source lacks records
that the group reads. A group whose offsets go into transactions goes back with the topics of these transactions, by
`rollback`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.client import ClusterClient, api_versions
from kmigrate.cluster.committed_offsets import read_positions
from kmigrate.cluster.rights import read_rights
from kmigrate.errors import Failed
from kmigrate.model.acl_commands import acl_command
from kmigrate.model.lifecycle import GroupEvent, GroupMode, GroupPhase, advance_group
from kmigrate.model.records import Action, Asked, GroupRecord, LinkRecord
from kmigrate.model.rights import Standing
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.protocol.api import ApiKey
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn
from kmigrate.workflow.base.running import registered_routers
from kmigrate.workflow.groups.coupled_topics import coupled_topics_of
from kmigrate.workflow.groups.membership import NEW_PROTOCOL, named_members
from kmigrate.workflow.groups.misplaced import misplaced_findings, misplaced_in, seen_members, without_placeholder
from kmigrate.workflow.groups.readers import settled_groups
from kmigrate.workflow.groups.returning import against_returning, at_source, mode_after, records_missing
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.proposal import Judged, Proposal, Write, propose

__all__ = ["judged_group_rollback", "roll_back_groups", "rollback_guards"]

_MOST_NAMED = 3


async def roll_back_groups(
    connections: Connections, link_name: str | None, groups: Sequence[str], *, who: str
) -> Proposal:
    """Propose to roll groups back by the controller: their committed offsets go to the source."""
    link = resolve_link(connections.log.state, link_name)
    judged = judged_group_rollback(connections.log, link.name, who)
    records, found = judged.look(connections.log.state, groups)
    if not records:
        return propose(connections.log, judged.verb, found)
    refuse_finished(link)
    found += _silent_routers(connections.log)
    writes: list[Write] = []
    for record in records.values():
        found += _transactions(connections.log.state, record)
        found += await rollback_guards(connections, link, record)
        alone = ", without an automatic promote afterwards" if record.auto else ""
        writes.append((f"roll back group {record.group}{alone}", judged.write(record.group)))
    return propose(connections.log, judged.verb, found, writes)


def judged_group_rollback(log: StateLog, link: str, who: str) -> Judged[GroupRecord]:
    """Return the rollback of single groups of a link."""

    def change(record: GroupRecord) -> GroupRecord:
        now, asked = now_ms(), Asked(Action.ROLLBACK, log.now_ms(), who)
        phase = advance_group(record.phase, GroupEvent.ROLLBACK_ASKED)
        return replace(record, phase=phase, since_ms=now, asked_ms=now, asked=asked, reason="", way_on="")

    return Judged.groups("group rollback", link, _guard, change)


def _guard(record: GroupRecord) -> Finding | None:
    """Return why the group's own state keeps a rollback back, or needs none; None where the rollback may go on."""
    group = record.group
    if record.phase is GroupPhase.ROLLING_BACK:
        return ok("under-way", f"the rollback of group {group} is under way")
    back = record.asked is not None and record.asked.action is Action.ROLLBACK
    if record.phase is GroupPhase.MIRRORED and back:
        return ok("already-rolled-back", f"group {group} is rolled back already: it is mirrored")
    if record.phase is not GroupPhase.PROMOTED:
        return refuse("not-promoted", f"group {group} is {record.phase}: only a promoted group can be rolled back")
    return None


def _silent_routers(log: StateLog) -> list[Finding]:
    """Refuse while a router is silent: the rollback would wait for its word, and the members with it."""
    return [
        refuse(
            "router-silent",
            f"router {router.name} on {router.host} is silent: nobody knows which members commit through it",
            f"start it again, or, if its process has ended: kmigrate router forget {router.name} --dead",
        )
        for router, presence in registered_routers(log)
        if presence is None
    ]


async def rollback_guards(connections: Connections, link: LinkRecord, record: GroupRecord) -> list[Finding]:
    """Return the findings about a group's rollback, from its members and positions on both clusters."""
    state, target, group = connections.log.state, connections.target, record.group
    source, _ = await connections.source(link)
    described = (await settled_groups(target, [group]))[group]
    committed = await read_positions(target, group, stable=False)
    topics = {topic for topic, _ in committed} | described.assigned
    against = against_returning(state, record, topics)
    found = [*against, *_target_members(connections.log, record, described)]
    found += await _rights(source, group)
    found += await _source_members(connections, source, record)
    if described.kind == NEW_PROTOCOL and ApiKey.CONSUMER_GROUP_HEARTBEAT not in await api_versions(source):
        what = f"group {group} uses the new group protocol (KIP-848), which {link.source.name} does not serve"
        found.append(refuse("source-lacks-protocol", what, "restart its members with group.protocol=classic first"))
    if not against:
        wanted = await at_source(Positions(target, connections.log), state, record, committed)
        missing = await records_missing(source, wanted)
        found += [
            refuse(
                "source-behind-group",
                f"group {group} has read {count:,} records of {topic}-{partition} that the source lacks",
                "wait until the copy to the source has caught up (kmigrate status), then repeat",
            )
            for (topic, partition), count in missing.items()
            if count > link.settings.lag_threshold
        ][:_MOST_NAMED]
    return found + _mode(state, record, topics, described)


async def _rights(source: ClusterClient, group: str) -> list[Finding]:
    """Refuse where the source would not let kmigrate commit for the group; the members would wait meanwhile."""
    if (await read_rights(source, (), [group])).standing("GROUP", "READ", group) is not Standing.MISSING:
        return []
    settings = source.settings
    what = f"{settings.security.principal} lacks READ on group {group} of {settings.name}; needed for: its offsets"
    return [refuse("right-missing", what, str(acl_command(settings, "GROUP", ("READ",), [group])))]


def _transactions(state: State, record: GroupRecord) -> list[Finding]:
    """Refuse a group alone whose positions are committed in transactions: it goes back with their topics."""
    if topics := [each.topic for each in coupled_topics_of(state, record, at_target=True)]:
        what = f"transactions that commit positions of group {record.group} write {', '.join(topics)}"
        together = advised("rollback", record.link, *topics)
        return [refuse("coupled-topics", what, f"roll the topics back, and the group goes with them: {together}")]
    names = sorted(each.name for each in state.transactions(record.link) if record.group in each.groups)
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    what = f"positions of group {record.group} are committed in transactions of {', '.join(names[:_MOST_NAMED])}{more}"
    return [refuse("group-in-transactions", what, "the group stays at the target")]


def _target_members(log: StateLog, record: GroupRecord, described: GroupState) -> list[Finding]:
    """Refuse members without any router to bring them back; the controller finds others that came past the routers."""
    group = record.group
    members = without_placeholder(described.members, group)
    if members and not registered_routers(log):
        what = f"group {group} has {len(members)} member(s) on the target, and no router runs: {named_members(members)}"
        return [refuse("members-past-routers", what, "restart those consumers with a router's address, then repeat")]
    return []


async def _source_members(connections: Connections, source: ClusterClient, record: GroupRecord) -> list[Finding]:
    """Refuse while a member is on the source: the source then takes no positions from outside the group."""
    there = (await misplaced_in(source, [record]))[record.group]
    if isinstance(there, Failed):
        raise there
    known, now = connections.log.state.misplaced(record.link, record.group), connections.log.now_ms()
    return misplaced_findings(record, seen_members(known, record, there, now), now)


def _mode(state: State, record: GroupRecord, topics: Collection[str], described: GroupState) -> list[Finding]:
    """Say what members at routers do after the rollback."""
    group = record.group
    if mode_after(state, record, topics) is GroupMode.FOLLOW:
        return [ok("follows", f"members of {group} at routers read on after the rollback, and commit at the source")]
    if not described.members:
        return [ok("holds", f"members of {group} at routers wait after the rollback, for the next promote")]
    again = advised("group promote", record.link, group)
    how = f"restart them with the source's address; or promote the group again: {again}"
    return [warn("holds", f"members of {group} at routers stop reading: the group holds after the rollback", how)]
