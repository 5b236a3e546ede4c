"""Rolls one promoted group back: the promote of a group that follows (`following`) with the clusters exchanged.

    rolling-back ─ all are named ─→ gathering ─ all have joined anew ─→ frozen ─ positions are on the source ─→ mirrored
        │                                                                └─→ staged ─ topics flipped ─→ mirrored
        └─────────────────── given up: promoted as before, with the reason ───────────────────┘

A  First the routers name the members of the target's group, whose requests they passed on unread before. Meanwhile the
   members read on. A member that no router names came past the routers, and the rollback is given up. Then the members
   join anew, whatever the group's mode: each commits what it has read, and its router holds the join.
B  The group is frozen by a record, as in a promote. The positions are written only when the source's log holds all
   records below (`returning`).
C  The placeholder that holds the group on the source (`GroupHold`) leaves first, and so do members that came to the
   target with the promote (`former`): with a member in the group, the source takes no positions from outside.
D  A source that does not answer ends the rollback, because the members wait meanwhile.
E  The controller does not promote a group again by itself after a rollback: a person has decided.
F  A group whose positions are committed in transactions goes back with the topics of its unit (`coupled_topics`). It is
   frozen without a join, as in a promote (`following`, rule C), once none of these transactions is open. Members of the
   new protocol give all partitions back before, if in time (decision 14). `staged` says that the positions are on the
   source. The flip that names the group decides (`base.unit`), and the group opens when all topics have gone back. The
   members leave the target's group before (`former`), so that the next promote can write positions there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import Committed, read_positions, write_positions
from kmigrate.cluster.groups import GroupHold, PlaceholderMember, group_members, is_mixed, without_hold
from kmigrate.cluster.requests import Key
from kmigrate.errors import KmigrateError, Refused, WaitTimedOut
from kmigrate.model.coupling import commits_in_transactions
from kmigrate.model.lifecycle import GroupEvent, GroupPhase, advance_group
from kmigrate.model.members import member_mark
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LinkRecord, group_key, misplaced_key
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.retry import Backoff
from kmigrate.protocol.codes import Code
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.open_transactions import named_if_open
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.base.unit import PromoteProgress, group_decided
from kmigrate.workflow.groups.coupled_topics import CoupledTopics
from kmigrate.workflow.groups.former import take_out_former
from kmigrate.workflow.groups.handover import ByPartition, by_partition
from kmigrate.workflow.groups.membership import (
    GIVING_BACK_S,
    NEW_PROTOCOL,
    members_at_routers,
    named_members,
    not_joined,
    still_direct,
    undrained_router,
)
from kmigrate.workflow.groups.misplaced import without_placeholder
from kmigrate.workflow.groups.readers import REBALANCING
from kmigrate.workflow.groups.returning import against_returning, at_source, mode_after, records_missing

__all__ = ["GroupRollback"]

_PAUSE_S = 0.1
_GIVING_UP_S = 2.0
"""Longest wait for the source's positions when a rollback is given up; the members wait meanwhile."""
_OF_A_MEMBER = frozenset({Code.UNKNOWN_MEMBER_ID.name, Code.REBALANCE_IN_PROGRESS.name})
"""Errors of a commit from outside the group while a member is in it."""
_AS_BEFORE = "the group is promoted as before; its members go on at the target"


@dataclass(slots=True)
class GroupRollback:
    """Drives one group from rolling-back to mirrored, from wherever the state log says the group stands."""

    connections: Connections
    link: LinkRecord
    group: str
    gather_s: float
    timeout_s: float
    progress: PromoteProgress
    """Progress of coupled topics, and reasons to wait; shared by all promotes and rollbacks of a controller."""
    key: str = field(init=False)
    log: StateLog = field(init=False)
    _positions: Positions = field(init=False)
    _asked_ms: int = field(init=False)
    """Time of the request, which tells this rollback from a later one."""
    _writes: bool = field(default=False, init=False)
    """True once the source may have got positions."""

    def __post_init__(self) -> None:
        self.key, self.log = group_key(self.link.name, self.group), self.connections.log
        self._positions = Positions(self.connections.target, self.log)
        known = self.log.state.group(self.link.name, self.group)
        self._asked_ms = known.asked_ms if known is not None else 0

    async def run(self) -> None:
        """Go on from the record in the state log; on failure the group is promoted as before."""
        try:
            record = self._record()
            topics = CoupledTopics(self.log, record, self.progress)
            if not record.frozen:
                record = await self._freeze(record, topics)
            self.progress.ready.add(self.key)
            source, _ = await self.connections.source(self.link)
            place = PlaceholderMember(source, self.group)
            if not record.staged:
                await self._drained()
                await place.leave()  # of an earlier try: while a member is there, no positions can be written
                record = replace(record, written=await self._carry(source, record))
                if topics.left():
                    record = await self._write(replace(record, staged=True))
            await topics.flipped(self.gather_s)
            await self._forget_sightings()
            opened = self._opened(record)
            if self._in_transactions:
                await take_out_former(self.connections.target, self.group, opened.former)
            await (self._open_in_place(place, opened) if await self._is_mixed() else self._write(opened))
        except KmigrateError as error:
            await self._give_up(error)
            raise
        finally:
            self.progress.leave(self.key)

    # facts

    def _record(self) -> GroupRecord:
        record = self.log.state.group(self.link.name, self.group)
        if record is None or record.phase is not GroupPhase.ROLLING_BACK:
            raise Refused("changed-meanwhile", f"group {self.group} is not being rolled back any more")
        return record

    @property
    def _in_transactions(self) -> bool:
        return commits_in_transactions(self.log.state.transactions(self.link.name), self.group)

    @property
    def _again(self) -> str:
        return advised("group rollback", self.link.name, self.group)

    # steps

    async def _freeze(self, record: GroupRecord, topics: CoupledTopics) -> GroupRecord:
        """Have the members join anew, or the transactions end (rule F), and freeze the group."""
        if not record.gathering:
            await self._ready(record)
            await topics.ready(self.gather_s)
            record = await self._write(replace(record, gathering=True))
        if self._in_transactions:
            await self._let_go()
            self.progress.ready.add(self.key)
            await topics.closed(self.gather_s)
        else:
            await self._gather()
        return await self._write(replace(record, frozen=True))

    async def _let_go(self) -> None:
        """Give members of the new protocol time to give back what they read (rule F)."""
        deadline = monotonic() + GIVING_BACK_S
        while monotonic() < deadline and (missing := await self._owning()):
            self.progress.note(self.key, f"{named_members(missing)} to give back what it reads")
            await self.log.changed(_PAUSE_S)

    async def _owning(self) -> list[GroupMember]:
        """Return members of a group with the new protocol that still own a partition."""
        described = (await self.connections.target_admin.describe_groups([self.group]))[self.group]
        return not_joined(self.log, self.group, described.members) if described.kind == NEW_PROTOCOL else []

    async def _ready(self, record: GroupRecord) -> None:
        """Wait until every member is named by a router, nobody rebalances, and the source is close (rules A and B)."""
        tries = Backoff(_PAUSE_S, within_s=self.gather_s)
        source, _ = await self.connections.source(self.link)
        while (why := await self._why_not_ready(source, record)) is not None:
            self.progress.note(self.key, why.what)
            await self.log.changed(_PAUSE_S)
            await tries.pause(why)

    async def _why_not_ready(self, source: ClusterClient, record: GroupRecord) -> Refused | None:
        described = (await self.connections.target_admin.describe_groups([self.group]))[self.group]
        known = members_at_routers(self.log, self.group)
        members = without_placeholder(described.members, self.group)
        if direct := [member for member in members if member_mark(member.member_id) not in known]:
            return self._past_routers(direct)
        if described.state in REBALANCING:
            what = f"group {self.group} is in a rebalance on the target: a member has yet to join"
            return Refused("members-not-joined", what, still_true=_AS_BEFORE, next_step=f"repeat: {self._again}")
        on_target = await read_positions(self.connections.target, self.group, stable=False)
        _refuse(against_returning(self.log.state, record, {topic for topic, _ in on_target}))
        wanted = await at_source(self._positions, self.log.state, record, on_target)
        missing = await records_missing(source, wanted)
        if max(missing.values(), default=0) > self.link.settings.lag_threshold:
            return self._behind(missing)
        return None

    async def _gather(self) -> None:
        """Wait until all members of the target's group have joined anew (rule A)."""
        deadline = monotonic() + self.gather_s
        while missing := not_joined(self.log, self.group, await self._members()):
            await self._refuse_direct()
            if monotonic() > deadline:
                named = named_members(missing)
                raise Refused("members-not-joined", f"{named} did not join anew in {self.gather_s:g} s")
            self.progress.note(self.key, f"{named_members(missing)} to join anew")
            await self.log.changed(_PAUSE_S)
            await sleep(_PAUSE_S / 2)

    async def _members(self) -> tuple[GroupMember, ...]:
        described = (await self.connections.target_admin.describe_groups([self.group]))[self.group]
        return without_placeholder(described.members, self.group)

    async def _refuse_direct(self) -> None:
        """Refuse where members of the target's group came past the routers."""
        direct = await still_direct(self.log, self.connections.target_admin, self.group)
        if direct := without_placeholder(direct, self.group):
            raise self._past_routers(direct)

    def _past_routers(self, direct: Sequence[GroupMember]) -> Refused:
        return Refused(
            "members-past-routers",
            f"group {self.group} has {len(direct)} member(s) on the target that no router names: "
            f"{named_members(direct)}",
            still_true=_AS_BEFORE,
            next_step=f"restart those consumers with the router's address, then: {self._again}",
        )

    async def _drained(self) -> None:
        """Wait until every router has frozen the group (rule B)."""
        epoch = self.log.state.epoch
        try:
            await self.progress.wait(
                self.log,
                self.key,
                lambda _: undrained_router(self.log, self.group, epoch, "the target"),
                self.timeout_s,
                "every router to freeze the group",
            )
        except WaitTimedOut as late:
            raise Refused("not-drained", late.what) from late

    async def _carry(self, source: ClusterClient, record: GroupRecord) -> ByPartition:
        """Write the target's positions to the source, exactly, and compare both clusters afterwards."""
        target = self.connections.target
        await self._refuse_direct()
        reads = read_positions(target, self.group, self.timeout_s)
        on_target = await named_if_open(reads, self.log, target, record)
        _refuse(against_returning(self.log.state, record, {topic for topic, _ in on_target}))
        wanted = await at_source(self._positions, self.log.state, record, on_target)
        await self._held_by(source, wanted)
        await take_out_former(source, self.group, record.former)
        await self._written(source, wanted)
        back = await read_positions(source, self.group, self.timeout_s)
        wrong = [key for key, offset in wanted.items() if back.get(key) != offset]
        if wrong:
            raise Refused("offsets-not-read-back", f"the source does not show what was written for {wrong[:3]}")
        await self._refuse_direct()
        if await read_positions(target, self.group, self.timeout_s) != on_target:
            raise Refused(
                "offsets-moved",
                f"positions of group {self.group} moved on the target while they were handed over",
                still_true=_AS_BEFORE,
                next_step=f"find who commits for {self.group} on the target, then: {self._again}",
            )
        return by_partition({key: at.offset for key, at in wanted.items()})

    async def _held_by(self, source: ClusterClient, wanted: Committed) -> None:
        """Wait until the source's log holds all records below the positions (rule B)."""
        tries = Backoff(_PAUSE_S, within_s=self.timeout_s)
        while missing := await records_missing(source, wanted):
            self.progress.note(self.key, f"the copy to the source: {_missing_text(missing)}")
            await tries.pause(self._behind(missing))

    def _behind(self, missing: Mapping[Key, int]) -> Refused:
        return Refused(
            "source-behind-group",
            f"group {self.group} has read records that the source lacks: {_missing_text(missing)}",
            still_true=_AS_BEFORE,
            next_step=f"wait until the copy to the source has caught up (kmigrate status), then: {self._again}",
        )

    async def _written(self, source: ClusterClient, wanted: Committed) -> None:
        """Write the positions once nobody is in the source's group; a watch may take the hold once more (rule C)."""
        tries, hold = Backoff(_PAUSE_S, within_s=self.timeout_s), GroupHold(source, self.group)
        while True:
            await hold.release()
            if members := without_hold(await group_members(source, self.group)):
                raise Refused(
                    "member-on-source",
                    f"group {self.group} has {len(members)} member(s) on the source: {named_members(members)}",
                    still_true=_AS_BEFORE,
                    next_step=f"stop those consumers, then: {self._again}",
                )
            self._writes = True
            failed = await write_positions(source, self.group, wanted, self._still_ours)
            if not failed:
                return
            (topic, partition), why = next(iter(failed.items()))
            refused = Refused(
                "offsets-not-written",
                f"the source refused {len(failed)} position(s) of group {self.group}, first {topic}-{partition}: {why}",
                still_true=_AS_BEFORE,
                next_step=f"see whether somebody runs this group on the source itself, then: {self._again}",
            )
            if not _OF_A_MEMBER.issuperset(failed.values()):
                raise refused
            await tries.pause(refused)

    async def _still_ours(self) -> None:
        """Refuse if another process has ended the rollback; the state log is read to its end first."""
        now = (await self.log.read_to_end()).group(self.link.name, self.group)
        if now is None or now.phase is not GroupPhase.ROLLING_BACK or now.asked_ms != self._asked_ms or not now.frozen:
            what = f"the rollback of group {self.group} was ended by somebody else"
            raise Refused("changed-meanwhile", what)

    async def _is_mixed(self) -> bool:
        """Return whether the group has members of both protocols, so that a placeholder joins first (decision 14)."""
        return await is_mixed(self.connections.target, self.group)

    # records

    async def _open_in_place(self, place: PlaceholderMember, opened: GroupRecord) -> None:
        """Open the group while a placeholder of the new protocol is in the source's group (C17)."""
        await place.take()
        try:
            await self._write(opened)
        except KmigrateError:
            await place.leave()
            raise

    async def _write(self, changed: GroupRecord) -> GroupRecord:
        """Write the next step, unless the record has changed meanwhile."""
        before = self._record()
        await self.log.append(lambda state: changed if state.group(self.link.name, self.group) == before else None)
        if self.log.state.group(self.link.name, self.group) != changed:
            raise Refused("changed-meanwhile", f"the record of group {self.group} was changed by somebody else")
        return changed

    async def _forget_sightings(self) -> None:
        """Forget members and commits that were seen on the source after the promote: they have their place again.

        The group opens afterwards: once a group is open, the controller cancels this work.
        """
        key = misplaced_key(self.link.name, self.group)
        await self.log.append(lambda state: (key, None) if key in state.records else None)

    def _opened(self, record: GroupRecord) -> GroupRecord:
        """Return the record of the group at the source (rule E)."""
        return GroupRecord(
            record.link,
            record.group,
            advance_group(record.phase, GroupEvent.OPEN),
            now_ms(),
            written=record.written,
            granted_acls=record.granted_acls,
            mode=mode_after(self.log.state, record, record.written),
            former=tuple(sorted(members_at_routers(self.log, self.group))),
            asked=record.asked,
        )

    async def _give_up(self, error: KmigrateError) -> None:
        """Return to promoted with the reason, unless a flip has decided; the source may have got positions."""
        before = self.log.state.group(self.link.name, self.group)
        left_at = await self._left_at() if self._writes or (before is not None and before.staged) else None

        def decide(state: State) -> Record | None:
            record = state.group(self.link.name, self.group)
            if record is None or record.phase is not GroupPhase.ROLLING_BACK:
                return None
            if record.staged and group_decided(state, self.link.name, self.group, back=True):
                return self._opened(record)
            return replace(
                record,
                phase=advance_group(record.phase, GroupEvent.GIVE_UP),
                since_ms=now_ms(),
                gathering=False,
                frozen=False,
                staged=False,
                reason=error.summary,
                way_on=error.next_step,
                left_at=record.left_at if left_at is None else left_at,
            )

        await self.log.append(decide)

    async def _left_at(self) -> Mapping[str, Mapping[int, int]] | None:
        """Return the positions on the source, so that the watch takes none of them for a later commit."""
        with suppress(KmigrateError):
            source, _ = await self.connections.source(self.link)
            positions = await read_positions(source, self.group, _GIVING_UP_S)
            return by_partition({key: at.offset for key, at in positions.items()})
        return None


def _missing_text(missing: Mapping[Key, int]) -> str:
    worst = max(missing, key=lambda key: missing[key])
    more = f", and {len(missing) - 1} more partition(s)" if len(missing) > 1 else ""
    return f"{missing[worst]:,} of {worst[0]}-{worst[1]}{more}"


def _refuse(found: list[Finding]) -> None:
    if found:
        what = "; ".join(each.what for each in found[:5])
        raise Refused(found[0].ref, what, still_true=_AS_BEFORE, next_step=found[0].next_step)
