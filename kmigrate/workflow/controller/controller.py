"""The controller: watches intents in the state log and drives promotes and handovers, one controller at a time.

The lease only spares double work: every step is a compare-and-set on the state, so two controllers cannot clash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from kmigrate.cluster.groups import PlaceholderMember
from kmigrate.errors import Failed, KmigrateError, Unreachable
from kmigrate.model.lifecycle import PROMOTING, ROLLING_BACK, GroupMode, GroupPhase
from kmigrate.model.presences import DUTY, ControllerPresence
from kmigrate.model.records import GroupRecord, LeaseRecord, TopicRecord
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner
from kmigrate.workflow.base.connections import Connections, LinkClusters
from kmigrate.workflow.base.unit import PromoteProgress
from kmigrate.workflow.controller.auto_promote import AutoPromote, AutoSettings
from kmigrate.workflow.controller.hooks import Hooks, HookSettings
from kmigrate.workflow.controller.keepalive import IdKeeper
from kmigrate.workflow.controller.report_writer import ReportWriter
from kmigrate.workflow.controller.scheduled import ScheduledPromotes
from kmigrate.workflow.groups.following import FollowHandover
from kmigrate.workflow.groups.handover import GroupHandover
from kmigrate.workflow.groups.readers import ReaderLooks
from kmigrate.workflow.groups.rollback import GroupRollback
from kmigrate.workflow.groups.watch import GroupFigures, GroupWatch, WatchSettings
from kmigrate.workflow.promote.closing import SourceCloser
from kmigrate.workflow.promote.denying import WriterDenier
from kmigrate.workflow.promote.fence_rounds import FenceRounds
from kmigrate.workflow.promote.late_writes import LateWatch
from kmigrate.workflow.promote.outcome import go_forward, no_way_back
from kmigrate.workflow.promote.rollback import TopicRollback
from kmigrate.workflow.promote.sealing import Sealer, may_come_off
from kmigrate.workflow.promote.topic import TopicPromotion
from kmigrate.workflow.rehearsal.cleaning import RehearsalCleaner

__all__ = ["Controller", "ControllerSettings", "is_moving", "is_moving_group"]

_LEASE = "controller"
_MOST_REASONS = 100
"""Maximum number of reasons in a presence message, which is sent twice a second."""
_FAILURE_NAMED_S = 60.0
"""Seconds for which presence messages name the end of a duty by an error."""
_log = logging.getLogger("kmigrate.controller")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Timing of the controller, seconds."""

    interval_s: float = 0.5
    lease_s: float = 3.0
    handover_timeout_s: float = 30.0
    gather_timeout_s: float = 60.0
    """Longest time in which the members of a group that follows may join anew."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """Timing of the watch on groups, and whether promoted groups are held on the source."""
    auto: AutoSettings = field(default_factory=AutoSettings)
    """Timing of automatic promotes of groups."""
    hooks: HookSettings = field(default_factory=HookSettings)
    """Commands that run at points of promotes and rollbacks."""


class Controller:
    """Acts on every topic that is being promoted and every group that is being handed over."""

    def __init__(
        self,
        connections: Connections,
        instance: str,
        settings: ControllerSettings | None = None,
        figures: GroupFigures | None = None,
    ) -> None:
        self._connections = connections
        self._log = connections.log
        self._instance = instance
        self._settings = settings or ControllerSettings()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._progress = PromoteProgress()
        self._troubles: dict[str, str] = {}
        """Errors of the last try of promotes and handovers that are tried again, by record."""
        self._rounds = FenceRounds()
        self._readers = ReaderLooks()
        self._tasks = TaskOwner()
        self._closer = SourceCloser(connections)
        self._denier = WriterDenier(connections)
        self._late = LateWatch(connections)
        self._auto = AutoPromote(connections, self._settings.auto)
        self._scheduled = ScheduledPromotes(connections)
        self._hooks = Hooks(self._settings.hooks)
        self._duties: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "keep ids alive": IdKeeper(connections).run,
            "watch groups": GroupWatch(connections, self._settings.watch, figures or GroupFigures()).run,
            "close sources": self._closer.run,
            "deny writers": self._denier.run,
            "watch sources": self._late.run,
            "promote groups": self._auto.run,
            "promote on schedule": self._scheduled.run,
            "write reports": ReportWriter(connections, self._hooks).run,
            "remove rehearsals": RehearsalCleaner(connections).run,
        }
        """Endless work of the controller that leads."""
        self._leading: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        """Time and reason of each duty's last end by an error, by the duty's key in presence messages."""
        self._started = monotonic()

    async def run(self) -> None:
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
        lately = {key: why for key, (at, why) in self._failures.items() if monotonic() - at <= _FAILURE_NAMED_S}
        duties = (self._closer.troubles, self._denier.troubles, self._late.troubles, self._troubles)
        reasons = {key: why for each in (lately, *duties) for key, why in each.items()} if active else {}
        reasons |= self._progress.waits
        for later in (self._auto.reasons, self._scheduled.reasons):
            reasons |= {key: why for key, why in later.items() if key not in reasons}
        waits = dict(islice(reasons.items(), _MOST_REASONS))
        with suppress(Unreachable):  # the next presence message repeats the news
            await self._log.announce(ControllerPresence(self._instance, self._log.state.epoch, active, interval, waits))

    async def _lead(self) -> bool:
        """Return True if this instance holds the lease; take the lease where its holder is silent."""
        lease = self._log.state.lease(_LEASE)
        if lease is not None:
            if lease.holder == self._instance:
                return True
            _, heard = self._log.presence.get(f"controller/{lease.holder}", (None, self._started))
            if monotonic() - heard < self._settings.lease_s:
                return False
        ours = LeaseRecord(_LEASE, self._instance, lease.term + 1 if lease is not None else 1)
        with suppress(Failed):  # the next look tries again
            await self._log.append(lambda state: ours if state.lease(_LEASE) == lease else None, timeout=10.0)
        return False

    def _keep(self, active: bool) -> None:
        """Do the endless work, such as to keep ids alive and to watch groups, while this controller leads."""
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
        report = f"{duty}: begun anew after an error: {_cause(error)}"
        if self._failures.get(f"{DUTY}{duty}", (0.0, ""))[1] != report:
            _log.error("%s: begun anew after an error", duty, exc_info=error)
        self._failures[f"{DUTY}{duty}"] = monotonic(), report

    def _act(self) -> None:
        """Start a task for every intent without a task; cancel tasks whose intent was taken back or forgotten."""
        self._collect()
        state = self._log.state
        moving = state.topics_that(is_moving)
        due: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            record.key: partial(self._promote, record)
            for record in moving
            if record.phase in PROMOTING or record.unsettled or may_come_off(self._log, record)
        }
        for record in moving:
            if record.phase in ROLLING_BACK and record.key not in due:
                due[record.key] = partial(self._roll_back, record)
        for group in state.groups_that(is_moving_group):
            step = self._hand_over if group.phase is GroupPhase.PROMOTING else self._roll_group_back
            due[group.key] = partial(step, group)
        self._troubles = {key: why for key, why in self._troubles.items() if key in due}
        for key in self._busy.keys() - due.keys():
            if not self._busy[key].cancelling():
                self._busy[key].cancel()  # so that the task gives up its turn, and releases the others of its unit
        for key, work in due.items():
            if key not in self._busy:
                self._busy[key] = self._tasks.start(work(), key)

    def _collect(self) -> None:
        """Remove ended tasks, and note their errors for presence messages; a failed task's intent is taken up again."""
        for key, task in [(key, task) for key, task in self._busy.items() if task.done()]:
            del self._busy[key]
            error = None if task.cancelled() else task.exception()
            if error is None:
                self._troubles.pop(key, None)
            else:
                self._troubles[key] = f"tried again: {_cause(error)}"

    async def _promote(self, record: TopicRecord) -> None:
        target, target_admin = self._connections.target, self._connections.target_admin
        if no_way_back(self._log.state, record):
            await go_forward(record, self._log, target_admin)
            now = self._log.state.topic(record.link, record.topic)
            if now is None or not record.unsettled or not may_come_off(self._log, now):
                return  # the next look takes up what is left to do
            # The seal comes off the source, whatever the target has answered.
        link = self._log.state.link(record.link)
        if link is None:
            return
        source, source_admin = await self._connections.source(link)
        await TopicPromotion(
            record.link,
            record.topic,
            LinkClusters(self._log, source, source_admin, target, target_admin),
            Sealer(self._log, source, source_admin, link.settings.router_silent_s),
            link.settings.straggler_window_s,
            self._progress,
            self._rounds,
            self._readers,
            self._hooks,
        ).run()

    async def _roll_back(self, record: TopicRecord) -> None:
        link = self._log.state.link(record.link)
        if link is None:
            return
        source, source_admin = await self._connections.source(link)
        target, target_admin = self._connections.target, self._connections.target_admin
        clusters = LinkClusters(self._log, source, source_admin, target, target_admin)
        await TopicRollback(record.link, record.topic, clusters, self._progress, self._rounds, self._hooks).run()

    async def _roll_group_back(self, record: GroupRecord) -> None:
        link, settings = self._log.state.link(record.link), self._settings
        if link is not None:
            times = settings.gather_timeout_s, settings.handover_timeout_s
            await GroupRollback(self._connections, link, record.group, *times, self._progress).run()

    async def _hand_over(self, record: GroupRecord) -> None:
        link = self._log.state.link(record.link)
        if link is None:
            return
        handover = GroupHandover(self._connections, link, record, self._settings.handover_timeout_s)
        if record.mode is GroupMode.FOLLOW:
            placeholder = PlaceholderMember(self._connections.target, record.group)
            await FollowHandover(handover, placeholder, self._settings.gather_timeout_s, self._progress).run()
        else:
            await handover.promote()


def is_moving(record: TopicRecord) -> bool:
    """Return whether a promote, a rollback or a seal of a topic may be under way."""
    return record.phase in PROMOTING | ROLLING_BACK or record.unsettled or record.seal is not None


def is_moving_group(record: GroupRecord) -> bool:
    """Return whether a promote or a rollback of a group is under way."""
    return record.phase in (GroupPhase.PROMOTING, GroupPhase.ROLLING_BACK)


def _cause(error: BaseException | None) -> str:
    return error.summary if isinstance(error, KmigrateError) else f"internal-error: {error!r:.200}"
