"""Promotes a group that follows: members join anew, commits stop, positions go to the target, the group opens.

    promoting ─ all have joined, or topics ready ─→ frozen ─ positions written ─→ (staged ─ topics flipped ─→) promoted
        └──────────── given up: back to mirrored, with the reason; it follows as before ───┘

A  The members see a rebalance: they commit what they have read, as at any rebalance. Each member's last step is a join,
   and its router holds that join. So a member that joins in time reads nothing twice. A member of the new protocol
   (KIP-848) has joined when the member reports that it owns no partition any more.
B  The group is frozen by a record. Before a position is read, every registered router must have applied that record and
   have no commit in flight. A transaction that is open for too long is named. Every trial join must have been answered,
   and none refused (`admission`).
C  A group whose offsets were committed in transactions is frozen between two transactions. Its members need not join
   anew: an open transaction is aborted, with its records and its offsets, so nothing is written twice. A held join
   would even leave transactions open, because Kafka Streams commits nothing while it waits for a join. Members of the
   new protocol give all partitions back before, as in A, if they do so in time. So they own no partition when they
   learn that the group is open. The group opens when the topics that these transactions write are promoted. These
   topics are fenced only when the group's positions are on the target (`staged`). So at no moment are offsets and
   records of one transaction on two clusters. A group may have members of both protocols. Then `PlaceholderMember`
   joins the group at the target as a member of the new protocol, from just before the group opens. So the target
   refuses nobody, whichever member comes first.
D  Once the flip of these topics names the group there is no way but forward (`unit`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin, GroupMember
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.groups import PlaceholderMember, is_mixed
from kmigrate.errors import KmigrateError, Refused, WaitTimedOut
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import PROMOTING, GroupEvent, GroupPhase, TopicPhase, advance_group
from kmigrate.model.members import member_mark
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, group_key
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.open_transactions import open_at_group
from kmigrate.workflow.base.unit import group_decided
from kmigrate.workflow.groups.admission import refuse_after_trials
from kmigrate.workflow.groups.handover import HandedOver, named_members, refuse_members
from kmigrate.workflow.groups.membership import NEW_PROTOCOL, still_direct, undrained_router, words_on

__all__ = ["FollowHandover"]

_PAUSE_S = 0.1
_LETTING_GO_S = 15.0
"""Longest wait until members of the new protocol (KIP-848) that commit in transactions own nothing, in seconds.

Brokers' default is five seconds between two heartbeats, and an application may take long to process what it has read. A
member that is not done by then has a transaction aborted.
"""


@dataclass(slots=True)
class FollowHandover:
    """Drives one group from promoting to promoted, from wherever the state log says the group stands."""

    link: str
    group: str
    log: StateLog
    opened: Callable[[], Awaitable[tuple[ClusterClient, Admin]]]
    """The link's source; not needed where positions stand on the target already."""
    carry: Callable[[], Awaitable[HandedOver]]
    """Reads the positions on the source and writes the positions on the target."""
    place: PlaceholderMember
    """A placeholder member in the group at the target."""
    admits: Callable[[], Awaitable[None]]
    """Raises Refused where the target would not take the positions, or not admit the members."""
    gather_s: float
    drain_s: float
    ready: Collection[tuple[str, str]] = ()
    """Topics, by link, that wait only for their groups; shared by all promotes of a controller."""
    waits: dict[str, str] = field(default_factory=dict)
    """Reasons why groups wait, by record key; shared by all promotes of a controller, which reports the reasons."""

    async def run(self) -> None:
        if not self._record().staged:
            await self.opened()  # where the source does not answer, the controller tries again and does not give up
        try:
            record = self._record()
            mixed = not record.staged and await self._is_mixed()
            if not record.frozen:
                await self.admits()
                if self._transactional():
                    await self._topics_ready()
                else:
                    await self._gather()
                await self.admits()  # members may have come meanwhile, with other settings
                await self._write(replace(record, frozen=True))
            if not record.staged:
                await self._drained()
                refuse_after_trials(self.log, record)
                # drop the placeholder of an earlier try: while a member is there, no positions can be written
                await self.place.leave()
                record = (await self.carry()).on(self._record())
                if self._waiting_topics(self.log.state):
                    record = await self._write(replace(record, staged=True))
            await self._topics_flipped()
            await (self._open_in_place(record) if mixed else self._write(self._opened(record)))
        except KmigrateError as error:
            await self._give_up(error)
            raise
        finally:
            self._waits_for(None)

    # facts

    def _record(self) -> GroupRecord:
        record = self.log.state.group(self.link, self.group)
        if record is None or record.phase is not GroupPhase.PROMOTING:
            raise Refused("not-promoting", f"group {self.group} is not being promoted any more")
        return record

    def _waits_for(self, why: str | None) -> None:
        """Note the reason for the wait, or that there is none."""
        key = group_key(self.link, self.group)
        if why is None:
            self.waits.pop(key, None)
        else:
            self.waits[key] = why

    def _unit(self, state: State) -> dict[str, TopicPhase]:
        """Return the phase of each topic that is written in transactions with this group's offsets (C)."""
        topics, _ = unit_of(state.couplings(self.link), groups=[self.group])
        return {name: found.phase for name in topics if (found := state.topic(self.link, name)) is not None}

    async def _is_mixed(self) -> bool:
        source, _ = await self.opened()
        return await is_mixed(source, self.group)

    def _transactional(self) -> bool:
        return any(self.group in t.groups for t in self.log.state.transactions(self.link))

    def _waiting_topics(self, state: State) -> list[str]:
        return sorted(name for name, phase in self._unit(state).items() if phase is not TopicPhase.PROMOTED)

    # steps

    async def _gather(self) -> None:
        """Wait until all members have joined anew (rule A)."""
        deadline = monotonic() + self.gather_s
        _, source = await self.opened()
        while True:
            missing = self._not_joined((await source.describe_groups([self.group]))[self.group].members)
            if not missing:
                return
            refuse_members(self.link, self.group, await self._outsiders(missing))
            if monotonic() > deadline:
                named = named_members(missing)
                raise Refused("members-not-joined", f"{named} did not join anew in {self.gather_s:g} s")
            self._waits_for(f"{named_members(missing)} to join anew")
            await self.log.changed(_PAUSE_S)
            await sleep(_PAUSE_S / 2)

    async def _topics_ready(self) -> None:
        """Wait until the coupled topics are ready (rule C).

        A group that is frozen sooner makes its application wait for what the topics wait for.
        """
        began = monotonic()
        while True:
            left = [t for t in self._waiting_topics(self.log.state) if (self.link, t) not in self.ready]
            waited = monotonic() - began
            if left and waited > self.gather_s:
                raise Refused("coupled-topics", f"{', '.join(left)} was not ready to be promoted with it")
            if left:
                self._waits_for(f"{', '.join(left)} to be ready to be promoted with it")
            elif waited < _LETTING_GO_S and (missing := await self._letting_go()):
                self._waits_for(f"{named_members(missing)} to give back what it reads")
                await sleep(_PAUSE_S / 2)
            else:
                return
            await self.log.changed(_PAUSE_S)

    async def _letting_go(self) -> list[GroupMember]:
        """Return members of a group with the new protocol that still own a partition; all must come through routers."""
        _, source = await self.opened()
        described = (await source.describe_groups([self.group]))[self.group]
        if described.kind != NEW_PROTOCOL or not (missing := self._not_joined(described.members)):
            return []
        refuse_members(self.link, self.group, await self._outsiders(missing))
        return missing

    def _not_joined(self, members: Sequence[GroupMember]) -> list[GroupMember]:
        joined = {mark for word in words_on(self.log, self.group) for mark in word.joined}
        return [member for member in members if member_mark(member.member_id) not in joined]

    async def _outsiders(self, members: list[GroupMember]) -> list[GroupMember]:
        known = {mark for word in words_on(self.log, self.group) for mark in word.members}
        if all(member_mark(member.member_id) in known for member in members):
            return []
        _, source = await self.opened()
        return list(await still_direct(self.log, source, self.group))

    async def _drained(self) -> None:
        """Wait until every router has frozen the group (rule B)."""
        epoch = self.log.state.epoch

        def drained(_: State) -> bool | None:
            why = undrained_router(self.log, self.group, epoch)
            self._waits_for(why)
            return True if why is None else None

        try:
            await self.log.wait(drained, self.drain_s, "every router to freeze the group")
        except WaitTimedOut as late:
            undrained = Refused("not-drained", undrained_router(self.log, self.group, epoch) or late.what)
            raise await self._open() or undrained from late

    async def _open(self) -> Refused | None:
        """Return the refusal that names an open transaction, where a router waits for such a transaction."""
        if not any(word.in_flight for word in words_on(self.log, self.group)):
            return None
        source, _ = await self.opened()
        return await open_at_group(self.log.state, source, self.link, self.group, now_ms())

    async def _topics_flipped(self) -> None:
        """Wait until the coupled topics are flipped (rule C)."""

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
        self._waits_for(f"{what} to be promoted")
        try:
            await self.log.wait(flipped, self.gather_s, what)
        except WaitTimedOut as late:
            raise Refused("coupled-topics", late.what) from late

    async def _open_in_place(self, record: GroupRecord) -> None:
        """Open a group with members of both protocols.

        The placeholder is in the group at that time, so that the target refuses no member (C17).
        """
        try:
            await self.place.take()
            await self._write(self._opened(record))
        except KmigrateError:
            await self.place.leave()
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
        former = {mark for word in words_on(self.log, self.group) for mark in word.members}
        return replace(
            record,
            phase=phase,
            since_ms=now_ms(),
            promoted_ms=self.log.now_ms(),
            frozen=False,
            staged=False,
            reason="",
            former=tuple(sorted(former)),
        )

    async def _give_up(self, error: KmigrateError) -> None:
        def decide(state: State) -> Record | None:
            record = state.group(self.link, self.group)
            if record is None or record.phase is not GroupPhase.PROMOTING:
                return None
            if group_decided(state, self.link, self.group):
                return self._opened(record)  # rule D
            phase = advance_group(record.phase, GroupEvent.GIVE_UP)
            why = f"{error.ref}: {error.what}"
            before = replace(HandedOver({}).on(record), reason=why, way_on=error.next_step)
            return replace(before, phase=phase, since_ms=now_ms(), frozen=False, staged=False)

        await self.log.append(decide)
