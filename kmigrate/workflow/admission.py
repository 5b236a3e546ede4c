"""Decides before a group opens at the target whether its members would be let in there.

A member that the target refuses cannot come back: its group is promoted, and no verb returns the group to the source.
So a promote that could not let every known member in is refused, or given up before anything has been written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.lifecycle import GroupMode
from kmigrate.model.presences import JoinTerms, RouterPresence
from kmigrate.model.records import GroupRecord
from kmigrate.model.words import advised
from kmigrate.state.log import StateLog
from kmigrate.workflow.broker_settings import BrokerSettings, limit, read_settings
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.plan import Finding

__all__ = ["admission_findings", "join_terms_of", "refuse_unadmitted"]

_MOST, _LEAST, _SIZE = "group.max.session.timeout.ms", "group.min.session.timeout.ms", "group.max.size"
_MOST_NAMED = 5


def join_terms_of(log: StateLog, group: str) -> list[JoinTerms]:
    """Return the session timeouts that the routers tell of a group's members."""
    terms = {each for router in log.alive(RouterPresence) for each in router.joins.get(group, ())}
    return sorted(terms, key=lambda each: (each.client_id, each.session_timeout_ms))


def admission_findings(
    record: GroupRecord, terms: Sequence[JoinTerms], members: Sequence[str], target: BrokerSettings
) -> list[Finding]:
    """Return a refusal for each client whose JoinGroup the target would refuse, and for a group that is too large.

    `members` are the client ids of the group's members on the source. Of a group that follows, only these count: a
    router remembers a client that has left. An unknown limit refuses nobody.
    """
    least, most, size = limit(target, _LEAST), limit(target, _MOST), limit(target, _SIZE)
    found: list[Finding] = []
    for each in _present(record, terms, members):
        if most is not None and each.session_timeout_ms > most:
            found.append(_refused(record.group, each, f"at most {most:,}", f"{_MOST}={each.session_timeout_ms}"))
        elif least is not None and each.session_timeout_ms < least:
            found.append(_refused(record.group, each, f"at least {least:,}", f"{_LEAST}={each.session_timeout_ms}"))
    if size is not None and len(members) > size:
        found.append(
            Finding(
                "refuse",
                "group-too-large",
                f"group {record.group} has {len(members)} members; the target lets {size} into a group ({_SIZE})",
                f"raise {_SIZE} on the target, or stop some of the members",
            )
        )
    return found


async def refuse_unadmitted(estate: Estate, record: GroupRecord, members: Sequence[str]) -> None:
    """Raise Refused where a member would not be let in; an unknown limit refuses nobody."""
    try:
        target = await read_settings(estate.target, estate.target_admin)
    except KmigrateError:
        return
    found = admission_findings(record, join_terms_of(estate.log, record.group), members, target)
    if found:
        raise Refused(
            found[0].ref,
            "; ".join(finding.what for finding in found[:_MOST_NAMED]),
            still_true="the group is mirrored as before; no position was written",
            next_step=f"{found[0].next_step}; then: {advised('group promote', record.link, record.group)}",
        )


def _present(record: GroupRecord, terms: Sequence[JoinTerms], members: Collection[str]) -> list[JoinTerms]:
    return [each for each in terms if record.mode is GroupMode.HOLD or each.client_id in members]


def _refused(group: str, each: JoinTerms, bound: str, change: str) -> Finding:
    return Finding(
        "refuse",
        "session-timeout-refused",
        f"member {each.client_id} of group {group} at a router has session.timeout.ms {each.session_timeout_ms:,}; "
        f"the target takes {bound}, and would refuse the member (INVALID_SESSION_TIMEOUT)",
        f"set {change} in the target brokers' server.properties and restart these one by one, or restart "
        f"{each.client_id} with another session.timeout.ms",
    )
