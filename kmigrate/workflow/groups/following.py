"""Promotes a group that follows: members join anew, commits stop, positions go to the target, the group opens.

    promoting ─ all have joined, or topics ready ─→ frozen ─ positions written ─→ (staged ─ topics flipped ─→) promoted
        └──────────── given up: back to mirrored, with the reason; it follows as before ───┘

A  The members see a rebalance, and commit what they have read. Each member's last step is a join, which its router
   holds: a member that joins in time reads nothing twice. A member of the new protocol (KIP-848) has joined when the
   member reports that it owns no partition any more.
B  The group is frozen by a record. Before a position is read, every registered router has applied that record, without
   a commit in flight, and no trial join is refused or unanswered (`admission`). A long transaction is named.
C  A group whose offsets were committed in transactions is frozen between two transactions, without a join (decision
   11). An open transaction is aborted with its records and offsets, so nothing is written twice. Members of the new
   protocol give all partitions back before, as in A, if in time (decision 14). The topics that these transactions write
   are fenced only when the positions are on the target (`staged`), and the group opens when these topics are promoted.
   So offsets and records of one transaction are never on two clusters. In a group of both protocols,
   `PlaceholderMember` joins at the target with the new protocol just before the group opens, so that the target refuses
   nobody, whichever member comes first (decision 14).
D  Once the flip of these topics names the group there is no way but forward (`unit`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.groups import PlaceholderMember, is_mixed
from kmigrate.errors import KmigrateError, Refused, WaitTimedOut
from kmigrate.model.coupling import commits_in_transactions, unit_of
from kmigrate.model.lifecycle import AT_TARGET, PROMOTING, GroupEvent, GroupPhase, TopicPhase, advance_group
from kmigrate.model.members import member_mark
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, topic_key
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.open_transactions import open_at_group
from kmigrate.workflow.base.unit import PromoteProgress, group_decided
from kmigrate.workflow.groups.admission import refuse_after_trials
from kmigrate.workflow.groups.handover import GroupHandover, HandedOver
from kmigrate.workflow.groups.membership import (
    GIVING_BACK_S,
    NEW_PROTOCOL,
    members_at_routers,
    named_members,
    not_joined,
    reports_on,
    undrained_router,
)

__all__ = ["FollowHandover"]

_PAUSE_S = 0.1


@dataclass(slots=True)
class FollowHandover:
    """Drives one group from promoting to promoted, from wherever the state log says the group stands."""

    handover: GroupHandover
    placeholder: PlaceholderMember
    """A placeholder member in the group at the target."""
    gather_s: float
    progress: PromoteProgress
    """Topics that wait only for their groups, and reasons to wait; shared by all promotes of a controller."""
    link: str = field(init=False)
    group: str = field(init=False)
    log: StateLog = field(init=False)

    def __post_init__(self) -> None:
        self.link, self.group = self.handover.record.link, self.handover.record.group
        self.log = self.handover.connections.log

    async def run(self) -> None:
        # where the source does not answer, the controller tries again and does not give up
        source = None if self._record().staged else (await self.handover.open_source())[0]
        try:
            record = self._record()
            mixed = source is not None and not record.staged and await is_mixed(source, self.group)
            if not record.frozen:
                await self.handover.admits()
                if commits_in_transactions(self.log.state.transactions(self.link), self.group):
                    await self._topics_ready()
                else:
                    await self._gather()
                await self.handover.admits()  # members may have come meanwhile, with other settings
                await self._write(replace(record, frozen=True))
            if not record.staged:
                await self._drained()
                refuse_after_trials(self.log, record)
                # drop the placeholder of an earlier try: while a member is there, no positions can be written
                await self.placeholder.leave()
                record = (await self.handover.carry()).on(self._record())
                if self._waiting_topics(self.log.state):
                    record = await self._write(replace(record, staged=True))
            await self._topics_flipped()
            await (self._open_in_place(record) if mixed else self._write(self._opened(record)))
        except KmigrateError as error:
            await self._give_up(error)
            raise
        finally:
            self._note(None)

    # facts

    def _record(self) -> GroupRecord:
        record = self.log.state.group(self.link, self.group)
        if record is None or record.phase is not GroupPhase.PROMOTING:
            raise Refused("not-promoting", f"group {self.group} is not being promoted any more")
        return record

    def _note(self, why: str | None) -> None:
        self.progress.note(self.handover.record.key, why)

    def _unit(self, state: State) -> dict[str, TopicPhase]:
        """Return the phase of each topic that is written in transactions with this group's offsets (C)."""
        topics, _ = unit_of(state.couplings(self.link), groups=[self.group])
        return {name: found.phase for name in topics if (found := state.topic(self.link, name)) is not None}

    def _waiting_topics(self, state: State) -> list[str]:
        return sorted(name for name, phase in self._unit(state).items() if phase not in AT_TARGET)

    async def _described(self) -> GroupState:
        _, admin = await self.handover.open_source()
        return (await admin.describe_groups([self.group]))[self.group]

    # steps

    async def _gather(self) -> None:
        """Wait until all members have joined anew (rule A)."""
        deadline = monotonic() + self.gather_s
        while missing := not_joined(self.log, self.group, (await self._described()).members):
            await self._refuse_outsiders(missing)
            if monotonic() > deadline:
                named = named_members(missing)
                raise Refused("members-not-joined", f"{named} did not join anew in {self.gather_s:g} s")
            self._note(f"{named_members(missing)} to join anew")
            await self.log.changed(_PAUSE_S)
            await sleep(_PAUSE_S / 2)

    async def _topics_ready(self) -> None:
        """Wait until the coupled topics are ready (rule C): a frozen application would wait for them."""
        began = monotonic()
        while True:
            topics = [
                t for t in self._waiting_topics(self.log.state) if topic_key(self.link, t) not in self.progress.ready
            ]
            waited = monotonic() - began
            if topics and waited > self.gather_s:
                raise Refused("coupled-topics", f"{', '.join(topics)} was not ready to be promoted with it")
            if topics:
                self._note(f"{', '.join(topics)} to be ready to be promoted with it")
            elif waited < GIVING_BACK_S and (missing := await self._owning()):
                self._note(f"{named_members(missing)} to give back what it reads")
                await sleep(_PAUSE_S / 2)
            else:
                return
            await self.log.changed(_PAUSE_S)

    async def _owning(self) -> list[GroupMember]:
        """Return members of a group with the new protocol that still own a partition; all must come through routers."""
        described = await self._described()
        if described.kind != NEW_PROTOCOL or not (missing := not_joined(self.log, self.group, described.members)):
            return []
        await self._refuse_outsiders(missing)
        return missing

    async def _refuse_outsiders(self, members: list[GroupMember]) -> None:
        """Refuse where some of these members speak through no router."""
        if not {member_mark(member.member_id) for member in members} <= members_at_routers(self.log, self.group):
            await self.handover.refuse_outsiders()

    async def _drained(self) -> None:
        """Wait until every router has frozen the group (rule B)."""
        epoch = self.log.state.epoch
        try:
            await self.progress.wait(
                self.log,
                self.handover.record.key,
                lambda _: undrained_router(self.log, self.group, epoch),
                self.handover.timeout_s,
                "every router to freeze the group",
            )
        except WaitTimedOut as late:
            raise await self._open() or Refused("not-drained", late.what) from late

    async def _open(self) -> Refused | None:
        """Return the refusal that names an open transaction, where a router waits for such a transaction."""
        if not any(report.in_flight for report in reports_on(self.log, self.group)):
            return None
        source, _ = await self.handover.open_source()
        return await open_at_group(self.log.state, source, self._record(), now_ms())

    async def _topics_flipped(self) -> None:

        def flipped(state: State) -> bool | None:
            phases = self._unit(state)
            waiting = self._waiting_topics(state)
            back = [topic for topic in waiting if phases[topic] not in PROMOTING]
            if back:
                record = state.topic(self.link, back[0])
                why = f": {record.reason}" if record is not None and record.reason else ""
                raise Refused("coupled-topics", f"{', '.join(back)} is not being promoted{why}")
            return None if waiting else True

        what = f"the topics that transactions of group {self.group} write"
        self._note(f"{what} to be promoted")
        try:
            await self.log.wait(flipped, self.gather_s, what)
        except WaitTimedOut as late:
            raise Refused("coupled-topics", late.what) from late

    async def _open_in_place(self, record: GroupRecord) -> None:
        """Open a group of both protocols while the placeholder is in it, so that the target refuses no member (C17)."""
        try:
            await self.placeholder.take()
            await self._write(self._opened(record))
        except KmigrateError:
            await self.placeholder.leave()
            raise

    # records

    async def _write(self, changed: GroupRecord) -> GroupRecord:
        """Write the next step, unless the record has changed meanwhile."""
        before = self._record()

        def decide(state: State) -> Record | None:
            return changed if state.group(self.link, self.group) == before else None

        await self.log.append(decide)
        if self.log.state.group(self.link, self.group) != changed:
            raise Refused("changed-meanwhile", f"the record of group {self.group} was changed by somebody else")
        return changed

    def _opened(self, record: GroupRecord) -> GroupRecord:
        phase = advance_group(record.phase, GroupEvent.OPEN)
        return replace(
            record,
            phase=phase,
            since_ms=now_ms(),
            promoted_ms=self.log.now_ms(),
            frozen=False,
            staged=False,
            reason="",
            former=tuple(sorted(members_at_routers(self.log, self.group))),
        )

    async def _give_up(self, error: KmigrateError) -> None:
        def decide(state: State) -> Record | None:
            record = state.group(self.link, self.group)
            if record is None or record.phase is not GroupPhase.PROMOTING:
                return None
            if group_decided(state, self.link, self.group):
                return self._opened(record)  # rule D
            phase = advance_group(record.phase, GroupEvent.GIVE_UP)
            before = replace(HandedOver({}).on(record), reason=error.summary, way_on=error.next_step)
            return replace(before, phase=phase, since_ms=now_ms(), frozen=False, staged=False)

        await self.log.append(decide)
