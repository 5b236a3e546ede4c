"""Refuses a group's promote, or gives the promote up before the group opens, if the target would refuse members.

A refused member would stand still until a rollback of its group. The target's limits are compared with what members ask
for, and the target itself answers the routers' trial joins (`router.groups.trials`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.lifecycle import GroupMode
from kmigrate.model.presences import JoinTerms, RefusedMember, RouterPresence
from kmigrate.model.records import GroupRecord
from kmigrate.model.words import advised
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.broker_settings import BrokerSettings, limit, read_settings
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, refuse

__all__ = [
    "admission_findings",
    "join_terms_of",
    "refuse_after_trials",
    "refuse_unadmitted",
    "refused_member_findings",
    "refused_members",
    "refused_sentence",
    "refused_way_on",
]

_MOST, _LEAST, _SIZE = "group.max.session.timeout.ms", "group.min.session.timeout.ms", "group.max.size"
_MOST_NAMED = 5
_WAYS_ON = {
    "GROUP_AUTHORIZATION_FAILED": "give the member's principal READ on group {group} at the target",
    "TOPIC_AUTHORIZATION_FAILED": "give the member's principal DESCRIBE and READ on its topics at the target",
    "INVALID_SESSION_TIMEOUT": f"raise {_MOST} on the target, or restart the member with a shorter session.timeout.ms",
    "UNSUPPORTED_ASSIGNOR": "add the member's group.remote.assignor to group.consumer.assignors on the target's "
    "brokers, or restart the member with an assignor that the target has",
    "INCONSISTENT_GROUP_PROTOCOL": "stop the members of group {group} at the target that share no "
    "partition.assignment.strategy with this member, or give all members a common strategy",
    "GROUP_MAX_SIZE_REACHED": f"raise {_SIZE} on the target, or stop some of the members",
}


def join_terms_of(log: StateLog, group: str) -> list[JoinTerms]:
    """Return the session timeouts that the routers report for a group's members."""
    terms = {each for router in log.alive(RouterPresence) for each in router.joins.get(group, ())}
    return sorted(terms, key=lambda each: (each.client_id, each.session_timeout_ms))


def admission_findings(
    record: GroupRecord, terms: Sequence[JoinTerms], members: Sequence[str], target: BrokerSettings
) -> list[Finding]:
    """Return a refusal for each client whose JoinGroup the target would refuse, and for a group that is too large.

    `members` are client ids on the source. A following group counts only these: a router remembers clients that left.
    An unknown limit refuses nobody.
    """
    least, most, size = limit(target, _LEAST), limit(target, _MOST), limit(target, _SIZE)
    found: list[Finding] = []
    for each in terms:
        asked = each.session_timeout_ms
        if record.mode is not GroupMode.HOLD and each.client_id not in members:
            continue
        if most is not None and asked > most:
            found.append(_refused(record.group, each, f"at most {most:,}", f"{_MOST}={asked}"))
        elif least is not None and asked < least:
            found.append(_refused(record.group, each, f"at least {least:,}", f"{_LEAST}={asked}"))
    if size is not None and len(members) > size:
        what = f"group {record.group} has {len(members)} members; the target lets {size} into a group ({_SIZE})"
        found.append(refuse("group-too-large", what, f"raise {_SIZE} on the target, or stop some of the members"))
    return found


async def refuse_unadmitted(connections: Connections, record: GroupRecord, members: Sequence[str]) -> None:
    """Raise Refused where the target would not admit a member; an unknown limit refuses nobody."""
    try:
        target = await read_settings(connections.target, connections.target_admin)
    except KmigrateError:
        return
    _refuse(record, admission_findings(record, join_terms_of(connections.log, record.group), members, target))
    refuse_after_trials(connections.log, record)


def refused_members(log: StateLog, group: str) -> list[RefusedMember]:
    """Return the members that the target refuses, as all routers report them."""
    refused = {each for router in log.alive(RouterPresence) for each in router.refused.get(group, ())}
    return sorted(refused, key=lambda each: (each.client_id, each.host, each.member_id))


def refused_member_findings(record: GroupRecord, refused: Sequence[RefusedMember]) -> list[Finding]:
    group = record.group
    return [
        refuse("member-refused", refused_sentence(group, each, opened=False), refused_way_on(group, each))
        for each in refused
    ]


def refuse_after_trials(log: StateLog, record: GroupRecord) -> None:
    _refuse(record, refused_member_findings(record, refused_members(log, record.group)))


def refused_sentence(group: str, each: RefusedMember, *, opened: bool) -> str:
    """Name a refused member and the target's error; `opened`: the group is promoted."""
    named = f" ({each.member_id})" if each.member_id else ""
    who = f"member {each.client_id or 'without a client id'} at {each.host}{named} of group {group}"
    return f"{who} is refused by the target: {each.error}" if opened else f"the target would refuse {who}: {each.error}"


def refused_way_on(group: str, each: RefusedMember) -> str:
    known = _WAYS_ON.get(each.error)
    return known.format(group=group) if known else f"find out why the target answers {each.error} to the member's join"


def _refuse(record: GroupRecord, found: Sequence[Finding]) -> None:
    if found:
        raise Refused(
            found[0].ref,
            "; ".join(finding.what for finding in found[:_MOST_NAMED]),
            still_true="the group is mirrored as before; its members read on",
            next_step=f"{found[0].next_step}; then: {advised('group promote', record.link, record.group)}",
        )


def _refused(group: str, each: JoinTerms, bound: str, change: str) -> Finding:
    return refuse(
        "session-timeout-refused",
        f"member {each.client_id} of group {group} at a router has session.timeout.ms {each.session_timeout_ms:,}; "
        f"the target takes {bound}, and would refuse the member (INVALID_SESSION_TIMEOUT)",
        f"set {change} in the target brokers' server.properties and restart these one by one, or restart "
        f"{each.client_id} with another session.timeout.ms",
    )
