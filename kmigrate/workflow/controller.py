"""The controller: watches intents in the state log and drives promotes and handovers, one controller at a time.

The lease only spares double work: every step is decided on the state by compare-and-set, so two controllers
that act at once cannot contradict each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from kmigrate.cluster.admin import GroupMember
from kmigrate.errors import Failed, KmigrateError, Unreachable
from kmigrate.model.lifecycle import NOT_COPIED_YET, GroupEvent, GroupMode, GroupPhase, TopicPhase, advance_group
from kmigrate.model.offsetmap import OffsetMap
from kmigrate.model.records import ControllerPresence, GroupRecord, LeaseRecord, Record, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.net.tasks import TaskOwner
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.following import FollowHandover
from kmigrate.workflow.handover import Written, hand_over, members_left
from kmigrate.workflow.keepalive import IdKeeper
from kmigrate.workflow.membership import still_direct
from kmigrate.workflow.positions import Positions
from kmigrate.workflow.promote import TopicPromotion
from kmigrate.workflow.sealing import Sealer, may_come_off

__all__ = ["Controller", "ControllerSettings"]

_LEASE = "controller"
_TOLD = 100
"""Promotes of which a word is said: it is sent twice a second."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Timing of the controller, seconds."""

    interval_s: float = 0.5
    lease_s: float = 3.0
    straggler_window_s: float = 5.0
    router_silent_s: float = 5.0
    handover_timeout_s: float = 30.0
    gather_timeout_s: float = 60.0
    """How long the members of a group that follows may take to join anew."""


class Controller:
    """Acts on every topic that is being promoted and every group that is being handed over."""

    def __init__(self, estate: Estate, instance: str, settings: ControllerSettings | None = None) -> None:
        self._estate = estate
        self._log = estate.log
        self._instance = instance
        self._settings = settings or ControllerSettings()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._ready: set[tuple[str, str]] = set()
        self._pending: set[tuple[str, str]] = set()
        self._waits: dict[str, str] = {}
        self._tasks = TaskOwner()
        self._keeper = IdKeeper(estate.log, estate.target, estate.target_admin, estate.source)
        self._keeping: asyncio.Task[None] | None = None
        self._started = monotonic()
        self.trouble: KmigrateError | None = None
        """The newest error of an act that is tried again, None when all is well."""

    async def run(self) -> None:
        """Work until cancelled."""
        announced = 0.0
        try:
            while True:
                active = await self._lead()
                if monotonic() - announced >= self._settings.interval_s:
                    await self._announce(active)
                    announced = monotonic()
                self._keep(active)
                if active:
                    self._act()
                await self._log.changed(self._settings.interval_s)
        finally:
            await self._tasks.close()

    async def _announce(self, active: bool) -> None:
        interval = round(self._settings.interval_s * 1000)
        try:
            waits = dict(islice(self._waits.items(), _TOLD))
            await self._log.announce(ControllerPresence(self._instance, self._log.state.epoch, active, interval, waits))
        except Unreachable as error:
            self.trouble = error

    async def _lead(self) -> bool:
        """Whether this instance holds the lease, taking it where its holder is silent."""
        lease = self._log.state.lease(_LEASE)
        if lease is not None and lease.holder == self._instance:
            return True
        if lease is not None and self._holder_alive(lease):
            return False
        seen = lease

        def decide(state: State) -> Record | None:
            now = state.lease(_LEASE)
            return LeaseRecord(_LEASE, self._instance, (seen.term if seen else 0) + 1) if now == seen else None

        try:
            await self._log.append(decide, timeout=10.0)
        except Failed as error:
            self.trouble = error
        return False

    def _holder_alive(self, lease: LeaseRecord) -> bool:
        known = self._log.presence.get(f"controller/{lease.holder}")
        if known is None:
            return monotonic() - self._started < self._settings.lease_s
        return monotonic() - known[1] < self._settings.lease_s

    def _keep(self, active: bool) -> None:
        """Whoever leads keeps the transactional ids alive."""
        if active and self._keeping is None:
            self._keeping = self._tasks.start(self._keeper.run(), "keep ids alive")
        elif not active and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def _act(self) -> None:
        """Start a task for every intent that has none."""
        for key in [k for k, task in self._busy.items() if task.done()]:
            del self._busy[key]
        for record in self._log.state.topics():
            pending = record.phase in (TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED)
            due = pending or record.unsettled or may_come_off(self._log, record)
            if due and record.key not in self._busy:
                self._busy[record.key] = self._tasks.start(self._promote(record), f"promote {record.topic}")
        for group in self._log.state.groups():
            if group.phase is GroupPhase.PROMOTING and group.key not in self._busy:
                self._busy[group.key] = self._tasks.start(self._hand_over(group), f"hand over {group.group}")

    async def _promote(self, record: TopicRecord) -> None:
        try:
            link = self._log.state.link(record.link)
            if link is None:
                return
            source, source_admin = await self._estate.source(link)
            await TopicPromotion(
                record.link,
                record.topic,
                self._log,
                source,
                self._estate.target,
                self._estate.target_admin,
                Sealer(self._log, source, source_admin, self._settings.router_silent_s),
                self._settings.straggler_window_s,
                self._ready,
                self._pending,
                self._waits,
            ).run()
        except KmigrateError as error:
            self.trouble = error  # the intent stays in the state log and is taken up again

    async def _hand_over(self, record: GroupRecord) -> None:
        try:
            link = self._log.state.link(record.link)
            if link is None:
                return
            source, source_admin = await self._estate.source(link)
            follows = record.mode is GroupMode.FOLLOW

            async def outsiders() -> Sequence[GroupMember]:
                if follows:
                    return await still_direct(self._log, source_admin, record.group)
                return await members_left(source_admin, record.group)

            async def carry() -> Written:
                topics = self._log.state.topics(record.link)  # as they are now: members may have taken a minute to join
                return await hand_over(
                    record.group,
                    starts={topic.topic: topic.starts for topic in topics if topic.phase not in NOT_COPIED_YET},
                    unready={topic.topic for topic in topics if topic.phase in NOT_COPIED_YET},
                    maps_of=self._maps_of(record.link),
                    outsiders=outsiders,
                    source=source,
                    target=self._estate.target,
                    timeout=self._settings.handover_timeout_s,
                )

            if follows:
                gather_s, drain_s = self._settings.gather_timeout_s, self._settings.handover_timeout_s
                await FollowHandover(
                    record.link, record.group, self._log, source_admin, carry, gather_s, drain_s, self._pending
                ).run()
                return
            done = await carry()
            changed = replace(record, written=done, promoted_ms=now_ms(), reason="")
            await self._finish(record, GroupEvent.OPEN, changed)
        except KmigrateError as error:
            self.trouble = error
            if record.mode is GroupMode.FOLLOW:
                return  # it has given up by itself, with the reason
            await self._finish(record, GroupEvent.GIVE_UP, replace(record, reason=f"{error.ref}: {error.what}"))

    def _maps_of(self, link: str) -> Callable[[str], Awaitable[Mapping[int, OffsetMap]]]:
        positions = Positions(self._estate.target, self._log)

        async def maps_of(topic: str) -> Mapping[int, OffsetMap]:
            record = self._log.state.topic(link, topic)
            return {} if record is None else await positions.maps(record)

        return maps_of

    async def _finish(self, record: GroupRecord, event: GroupEvent, changed: GroupRecord) -> None:
        def decide(state: State) -> Record | None:
            if state.group(record.link, record.group) != record:
                return None
            return replace(changed, phase=advance_group(record.phase, event), since_ms=now_ms())

        await self._log.append(decide)
