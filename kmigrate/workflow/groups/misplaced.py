"""Group members at the wrong cluster: at the target before the group's promote, at the source after the promote.

A member that comes back to the source reads all records a second time. A member at the target's own address commits
positions that the promote overwrites. `GroupWatch` records both until `link finish`; the verbs and `status` ask again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import Committed, read_all_positions
from kmigrate.cluster.groups import describe_groups, group_members, placeholder_id, without_hold
from kmigrate.errors import Failed
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.members import member_mark
from kmigrate.model.records import ClusterSide, GroupRecord, LinkRecord, MisplacedMember, MisplacedRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, refuse, warn

__all__ = [
    "ACCEPT_MISPLACED",
    "COMMITS_WAY_ON",
    "Seen",
    "commits_sentence",
    "member_sentence",
    "members_at_target",
    "misplaced_findings",
    "misplaced_in",
    "moved_commits",
    "not_former",
    "promoted_group_findings",
    "seen_members",
    "way_on",
    "with_sightings",
    "without_placeholder",
    "wrong_side",
]

COMMITS_WAY_ON = "find that consumer, and restart it with the router's address"
ACCEPT_MISPLACED = "--accept-misplaced-members"
_MOST = 20
"""Sightings that a record keeps; a client that restarts again and again gets a new member id each time."""
_REFRESH_MS = 60_000
"""Age at which a recorded sighting is written again."""
_THERE_MS = 15_000
"""Age up to which a sighting counts as present: three rounds of the watch."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The sightings of one group, and the members that are at the wrong cluster now."""

    record: MisplacedRecord
    there: tuple[MisplacedMember, ...]
    gone: tuple[MisplacedMember, ...]


_WRONG_SIDE = {GroupPhase.PROMOTED: ClusterSide.SOURCE, GroupPhase.MIRRORED: ClusterSide.TARGET}


def wrong_side(record: GroupRecord) -> ClusterSide | None:
    """Return the cluster at which the group has no members; None while a promote or rollback is under way."""
    return _WRONG_SIDE.get(record.phase)


def not_former(members: Sequence[GroupMember], record: GroupRecord) -> tuple[GroupMember, ...]:
    """Leave out the members that were at routers until the promote or rollback: they are listed until sessions end."""
    former = frozenset(record.former)
    return tuple(member for member in members if member_mark(member.member_id) not in former)


async def members_at_target(target: ClusterClient, group: str) -> tuple[GroupMember, ...]:
    """Ask the target for the group's members, without the placeholder of a promote."""
    return without_placeholder(await group_members(target, group), group)


def without_placeholder(members: Sequence[GroupMember], group: str) -> tuple[GroupMember, ...]:
    """Leave out the placeholder that keeps a group in the new protocol during its promote or rollback."""
    ours = placeholder_id(group)
    return tuple(member for member in members if member.member_id != ours)


async def misplaced_in(
    client: ClusterClient, records: Sequence[GroupRecord]
) -> dict[str, tuple[GroupMember, ...] | Failed]:
    """Ask a cluster for the members of groups that have no members there, without kmigrate's own."""
    described = await describe_groups(client, (record.group for record in records))
    found: dict[str, tuple[GroupMember, ...] | Failed] = {}
    for record in records:
        state = described[record.group]
        found[record.group] = state if isinstance(state, Failed) else _not_ours(state.members, record)
    return found


def _not_ours(members: Sequence[GroupMember], record: GroupRecord) -> tuple[GroupMember, ...]:
    if wrong_side(record) is ClusterSide.TARGET:
        return not_former(without_placeholder(members, record.group), record)
    return not_former(without_hold(members), record)


def moved_commits(positions: Committed, record: GroupRecord) -> dict[str, dict[int, int]]:
    """Return the positions on the source that a commit has moved since the group's promote."""
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), committed in positions.items():
        if record.left_at.get(topic, {}).get(partition) != committed.offset:
            found.setdefault(topic, {})[partition] = committed.offset
    return found


def with_sightings(
    known: MisplacedRecord,
    side: ClusterSide,
    members: Sequence[GroupMember],
    now_ms: int,
    *,
    refresh_ms: int = _REFRESH_MS,
) -> MisplacedRecord:
    """Return the record with these members in it; the same record where nothing justifies a write."""
    found = {(each.cluster, each.member_id): each for each in known.members}
    for member in members:
        key = (side, member.member_id)
        old = found.get(key, MisplacedMember(side, member.member_id, member.client_id, member.host, now_ms, now_ms))
        found[key] = replace(old, last_ms=now_ms) if now_ms - old.last_ms >= refresh_ms else old
    newest = sorted(found.values(), key=lambda each: (-each.last_ms, each.member_id))
    kept = tuple(newest[:_MOST])
    if kept == known.members:
        return known
    return replace(known, members=kept, more_members=known.more_members + max(0, len(newest) - _MOST))


def seen_members(
    known: MisplacedRecord, record: GroupRecord, now_there: Sequence[GroupMember] | None, now_ms: int
) -> Seen:
    """Merge the record with a cluster's present answer; None where the cluster was not asked, or did not answer."""
    side = wrong_side(record)
    if side is None:
        return Seen(known, (), ())
    ids: set[str] = set()
    if now_there is not None:
        known = with_sightings(known, side, now_there, now_ms, refresh_ms=0)
        ids = {member.member_id for member in now_there}

    def is_there(member: MisplacedMember) -> bool:
        return now_ms - member.last_ms <= _THERE_MS if now_there is None else member.member_id in ids

    of_side = [each for each in known.members if each.cluster is side]
    return Seen(known, tuple(filter(is_there, of_side)), tuple(e for e in of_side if not is_there(e)))


def member_sentence(group: str, member: MisplacedMember, now_ms: int, *, there: bool) -> str:
    """Name a member, its host and the cluster that the member is at, and say what follows."""
    who = f"member {member.client_id} at {member.host} ({member.member_id}) of group {group}"
    ago = max(0, now_ms - member.last_ms) / 1000
    verb, when = ("is", "") if there else ("was", f", last seen {ago:,.0f} s ago")
    if member.cluster is ClusterSide.SOURCE:
        read = "reads" if there else "read"
        return (
            f"{who} {verb} on the source after the group's promote{when}: what this member {read} there is read twice"
        )
    commits = "commits" if there else "has committed"
    return (
        f"{who} {verb} on the target before the group's promote, past every router{when}: "
        f"the promote overwrites the positions that this member {commits}"
    )


def way_on(member: MisplacedMember) -> str:
    """Return the next step for a member that is at the wrong cluster."""
    restart = f"restart {member.client_id} with the router's address"
    return restart if member.cluster is ClusterSide.SOURCE else f"{restart}, not the target's own"


def commits_sentence(group: str, commits: Mapping[str, Mapping[int, int]]) -> str:
    """Name the positions that were committed on the source after the promote; '' for none."""
    named = [
        f"{topic}-{partition} to {offset:,}"
        for topic, parts in sorted(commits.items())
        for partition, offset in sorted(parts.items())
    ]
    if not named:
        return ""
    more = f" and {len(named) - 5} more" if len(named) > 5 else ""
    return (
        f"group {group} has commits on the source after its promote: {', '.join(named[:5])}{more}: "
        "a consumer that came through no router has read there"
    )


def misplaced_findings(
    record: GroupRecord, seen: Seen, now_ms: int, *, accepted: bool = False, verb: str = ""
) -> list[Finding]:
    """Return the findings for one group: a refusal for each member that is there, a warning for each past sighting."""
    ref = "member-on-source" if wrong_side(record) is ClusterSide.SOURCE else "member-on-target"
    may_accept = f"; or, where its reading does no harm: {verb} {ACCEPT_MISPLACED}" if verb else ""
    group = record.group
    found = [
        (warn if accepted else refuse)(ref, member_sentence(group, each, now_ms, there=True), way_on(each) + may_accept)
        for each in seen.there
    ]
    found += [warn(ref, member_sentence(group, each, now_ms, there=False), way_on(each)) for each in seen.gone]
    if record.phase is GroupPhase.PROMOTED and (what := commits_sentence(group, seen.record.commits)):
        found.append(warn("commits-on-source", what, COMMITS_WAY_ON))
    return found


async def promoted_group_findings(
    connections: Connections,
    link: LinkRecord,
    source: ClusterClient,
    *,
    topics: Collection[str] | None = None,
    accepted: bool = False,
    verb: str = "",
) -> list[Finding]:
    """Return findings for promoted groups, or for those that read some topics; a cluster that is silent only warns."""
    state, now = connections.log.state, connections.log.now_ms()
    promoted = [record for record in state.groups(link.name) if record.phase is GroupPhase.PROMOTED]
    asked = [r for r in promoted if topics is None or not r.written or any(topic in r.written for topic in topics)]
    members = await misplaced_in(source, asked)
    positions = await read_all_positions(source, (record.group for record in asked))
    found: list[Finding] = []
    for record in asked:
        known, there, committed = (
            state.misplaced(link.name, record.group),
            members[record.group],
            positions[record.group],
        )
        failed = next((answer for answer in (there, committed) if isinstance(answer, Failed)), None)
        if failed is not None:
            what = f"whether group {record.group} is used on the source could not be asked: {failed.what}"
            found.append(warn("members-unknown", what, failed.next_step))
        if not isinstance(committed, Failed):
            known = replace(known, commits=moved_commits(committed, record) or known.commits)
        seen = seen_members(known, record, None if isinstance(there, Failed) else there, now)
        found += misplaced_findings(record, seen, now, accepted=accepted, verb=verb)
    return found
