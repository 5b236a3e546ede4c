"""The controller: watches intents in the state log and drives promotes and handovers, one controller at a time.

The lease only spares double work: every step is decided on the state by compare-and-set, so two controllers that act at
once cannot contradict each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.groups import PlaceholderMember, group_members
from kmigrate.errors import Failed, KmigrateError, Refused, Unreachable
from kmigrate.model.lifecycle import NOT_COPIED_YET, PROMOTING, GroupEvent, GroupMode, GroupPhase, advance_group
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.presences import DUTY, ControllerPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, LeaseRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.net.tasks import TaskOwner
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.open_transactions import named_if_open
from kmigrate.workflow.base.unit import UnitProgress
from kmigrate.workflow.controller.keepalive import IdKeeper
from kmigrate.workflow.groups.admission import refuse_unadmitted
from kmigrate.workflow.groups.following import FollowHandover
from kmigrate.workflow.groups.handover import HandedOver, hand_over, members_left, refuse_target_members
from kmigrate.workflow.groups.membership import still_direct
from kmigrate.workflow.groups.misplaced import members_at_target
from kmigrate.workflow.groups.watch import GroupFigures, GroupWatch, WatchSettings
from kmigrate.workflow.promote.closing import SourceCloser
from kmigrate.workflow.promote.fence_rounds import FenceRounds
from kmigrate.workflow.promote.late_writes import LateWatch
from kmigrate.workflow.promote.outcome import go_forward, no_way_back
from kmigrate.workflow.promote.sealing import Sealer, may_come_off
from kmigrate.workflow.promote.topic import TopicPromotion

__all__ = ["Controller", "ControllerSettings"]

_LEASE = "controller"
_TOLD = 100
"""Maximum number of reasons in a presence message, which is sent twice a second."""
_FAILURE_TOLD_S = 60.0
"""Seconds for which presence messages name the end of a duty by an error."""
_log = logging.getLogger("kmigrate.controller")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Timing of the controller, seconds."""

    interval_s: float = 0.5
    lease_s: float = 3.0
    straggler_window_s: float = 5.0
    router_silent_s: float = 5.0
    handover_timeout_s: float = 30.0
    gather_timeout_s: float = 60.0
    """Longest time in which the members of a group that follows may join anew."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """Timing of the watch on groups, and whether promoted groups are held on the source."""


class Controller:
    """Acts on every topic that is being promoted and every group that is being handed over."""

    def __init__(
        self,
        connections: Connections,
        instance: str,
        settings: ControllerSettings | None = None,
        figures: GroupFigures | None = None,
    ) -> None:
        self._estate = connections
        self._log = connections.log
        self._instance = instance
        self._settings = settings or ControllerSettings()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._rendezvous = UnitProgress()
        self._waits: dict[str, str] = {}
        """Reasons why promotes and handovers wait, by record."""
        self._troubles: dict[str, str] = {}
        """Errors of the last try of promotes and handovers that are tried again, by record."""
        self._turns = FenceRounds()
        self._tasks = TaskOwner()
        self._keeper = IdKeeper(connections.log, connections.target, connections.target_admin, connections.source)
        self._closer = SourceCloser(connections.log, connections.source)
        self._late = LateWatch(connections.log, connections.target, connections.target_admin, connections.source)
        self._watch = GroupWatch(
            connections.log, connections.target, connections.source, self._settings.watch, figures or GroupFigures()
        )
        self._duties: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "keep ids alive": self._keeper.run,
            "watch groups": self._watch.run,
            "close sources": self._closer.run,
            "watch sources": self._late.run,
        }
        """Endless work of the controller that leads."""
        self._leading: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        """Time and reason of each duty's last end by an error, by the key under which presence messages name the duty.
        """
        self._started = monotonic()

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
        lately = {key: why for key, (at, why) in self._failures.items() if monotonic() - at <= _FAILURE_TOLD_S}
        told = lately | self._closer.troubles | self._late.troubles | self._troubles if active else {}
        told = told | self._waits
        waits = dict(islice(told.items(), _TOLD))
        with suppress(Unreachable):  # the next presence message repeats the news
            await self._log.announce(ControllerPresence(self._instance, self._log.state.epoch, active, interval, waits))

    async def _lead(self) -> bool:
        """Return True if this instance holds the lease; take the lease where its holder is silent."""
        lease = self._log.state.lease(_LEASE)
        if lease is not None and lease.holder == self._instance:
            return True
        if lease is not None and self._holder_alive(lease):
            return False
        seen = lease

        def decide(state: State) -> Record | None:
            now = state.lease(_LEASE)
            return LeaseRecord(_LEASE, self._instance, (seen.term if seen else 0) + 1) if now == seen else None

        with suppress(Failed):  # the next look tries again
            await self._log.append(decide, timeout=10.0)
        return False

    def _holder_alive(self, lease: LeaseRecord) -> bool:
        known = self._log.presence.get(f"controller/{lease.holder}")
        if known is None:
            return monotonic() - self._started < self._settings.lease_s
        return monotonic() - known[1] < self._settings.lease_s

    def _keep(self, active: bool) -> None:
        """Keep ids alive, watch groups, and close and watch sources while this controller leads."""
        if not active:
            for task in self._leading.values():
                task.cancel()
            self._leading = {}
            return
        for name, work in self._duties.items():
            if (ended := self._leading.get(name)) is not None and ended.done():
                self._note_failure(name, None if ended.cancelled() else ended.exception())
                del self._leading[name]
            if name not in self._leading:
                self._leading[name] = self._tasks.start(work(), name)

    def _note_failure(self, duty: str, error: BaseException | None) -> None:
        """Note that a duty has ended by an unforeseen error; the duty is begun anew."""
        why = f"{error.ref}: {error.what}" if isinstance(error, KmigrateError) else f"internal-error: {error!r:.200}"
        said = f"{duty}: begun anew after an error: {why}"
        if self._failures.get(f"{DUTY}{duty}", (0.0, ""))[1] != said:
            _log.error("%s: begun anew after an error", duty, exc_info=error)
        self._failures[f"{DUTY}{duty}"] = monotonic(), said

    def _act(self) -> None:
        """Start a task for every intent without a task; cancel tasks whose intent was taken back or forgotten."""
        self._collect()
        topics = [record for record in self._log.state.topics() if self._due(record)]
        groups = [record for record in self._log.state.groups() if record.phase is GroupPhase.PROMOTING]
        due = {topic.key for topic in topics} | {group.key for group in groups}
        self._troubles = {key: why for key, why in self._troubles.items() if key in due}
        for key in self._busy.keys() - due:
            if not self._busy[key].cancelling():
                self._busy[key].cancel()  # so that the task gives up its turn, and releases the others of its unit
        for topic in topics:
            if topic.key not in self._busy:
                self._busy[topic.key] = self._tasks.start(self._promote(topic), f"promote {topic.topic}")
        for group in groups:
            if group.key not in self._busy:
                self._busy[group.key] = self._tasks.start(self._hand_over(group), f"hand over {group.group}")

    def _due(self, record: TopicRecord) -> bool:
        return record.phase in PROMOTING or record.unsettled or may_come_off(self._log, record)

    def _collect(self) -> None:
        """Remove tasks that have ended, and note their errors.

        The intent of a failed task stays in the state log and is taken up again. Presence messages name the error, so
        that a waiting person learns the reason.
        """
        for key, task in [(key, task) for key, task in self._busy.items() if task.done()]:
            del self._busy[key]
            error = None if task.cancelled() else task.exception()
            if error is None:
                self._troubles.pop(key, None)
            else:
                why = f"{error.ref}: {error.what}" if isinstance(error, KmigrateError) else f"internal-error: {error!r}"
                self._troubles[key] = f"tried again: {why}"

    async def _promote(self, record: TopicRecord) -> None:
        if no_way_back(self._log.state, record):
            await go_forward(record, self._log, self._estate.target_admin)
            now = self._log.state.topic(record.link, record.topic)
            if now is None or not record.unsettled or not may_come_off(self._log, now):
                return  # the next look takes up what is left to do
            # The seal comes off the source, whatever the target has answered.
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
            source_admin,
            self._estate.target_admin,
            Sealer(self._log, source, source_admin, self._settings.router_silent_s),
            self._settings.straggler_window_s,
            self._rendezvous,
            self._waits,
            self._turns,
        ).run()

    async def _hand_over(self, record: GroupRecord) -> None:
        try:
            link = self._log.state.link(record.link)
            if link is None:
                return
            opened = partial(self._estate.source, link)
            follows = record.mode is GroupMode.FOLLOW

            async def outsiders() -> Sequence[GroupMember]:
                _, source_admin = await opened()
                if follows:
                    return await still_direct(self._log, source_admin, record.group)
                return await members_left(source_admin, record.group)

            async def admits() -> None:
                at_target = await members_at_target(self._estate.target, record.group)
                refuse_target_members(record.link, record.group, at_target)
                source, _ = await opened()
                members = [member.client_id for member in await group_members(source, record.group)]
                await refuse_unadmitted(self._estate, record, members)

            async def carry() -> HandedOver:
                source, _ = await opened()
                topics = self._log.state.topics(record.link)  # current records: members may have taken a minute to join
                positions = hand_over(
                    record.link,
                    record.group,
                    starts={topic.topic: topic.starts for topic in topics if topic.phase not in NOT_COPIED_YET},
                    unready={topic.topic for topic in topics if topic.phase in NOT_COPIED_YET},
                    maps_of=self._maps_of(record.link),
                    outsiders=outsiders,
                    still_ours=partial(self._still_ours, record),
                    source=source,
                    target=self._estate.target,
                    timeout=self._settings.handover_timeout_s,
                )
                return await named_if_open(positions, self._log, source, record)

            if follows:
                gather_s, drain_s = self._settings.gather_timeout_s, self._settings.handover_timeout_s
                await FollowHandover(
                    record.link, record.group, self._log, opened, carry,
                    PlaceholderMember(self._estate.target, record.group), admits, gather_s, drain_s,
                    self._rendezvous.pending, self._waits,
                ).run()  # fmt: skip
                return
            await admits()
            changed = replace((await carry()).on(record), promoted_ms=self._log.now_ms(), reason="")
            await self._finish(record, GroupEvent.OPEN, changed)
        except KmigrateError as error:
            if record.mode is GroupMode.FOLLOW:
                raise  # the handover gives up by itself, with the reason, unless the source cannot be asked
            given_up = replace(record, reason=f"{error.ref}: {error.what}", way_on=error.next_step)
            await self._finish(record, GroupEvent.GIVE_UP, given_up)

    async def _still_ours(self, record: GroupRecord) -> None:
        """Refuse if another process has handed the group over or given up; the state log is read to its end first.

        This process has an old copy of the state if the process has stood still.
        """
        now = (await self._log.read_to_end()).group(record.link, record.group)
        if now is None or now.phase is not GroupPhase.PROMOTING or now.staged or now.asked_ms != record.asked_ms:
            raise Refused("changed-meanwhile", f"group {record.group} was handed over, or given up, by somebody else")

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
