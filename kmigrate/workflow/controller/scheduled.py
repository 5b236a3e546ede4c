"""Asks for scheduled promotes at their time, and again until their deadline.

A person has chosen the topics, the terms and the time. The guards are those of `promote`, asked when the time has come.
Without a deadline the first refusal ends the schedule. With a deadline the controller asks again after a refusal, and
after a promote that was given up; pauses grow from 5 to 60 s, because each try stops the writers for a moment.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kmigrate.errors import KmigrateError, WaitTimedOut
from kmigrate.model.lifecycle import PROMOTING
from kmigrate.model.moments import utc_text
from kmigrate.model.record_json import Record
from kmigrate.model.records import Action, Asked, LinkRecord, Schedule, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.net.retry import every
from kmigrate.net.tasks import together
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.verbs.promote import promote_topics
from kmigrate.workflow.verbs.schedule import released

__all__ = ["ScheduledPromotes"]

_LOOK_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_log = logging.getLogger("kmigrate.controller")

Batch = tuple[str, int]
"""Link and request time of topics that are scheduled together."""


@dataclass(slots=True)
class _Tries:
    """The tries of one schedule that this controller has made."""

    due: float = 0.0
    """Time of the next try, by the monotonic clock."""
    pause_s: float = _FIRST_PAUSE_S
    why: str = ""
    """Reason of the last refusal."""


@dataclass(slots=True)
class ScheduledPromotes:
    """Looks round by round at the scheduled topics, and asks for the promotes that are due."""

    connections: Connections
    reasons: dict[str, str] = field(default_factory=dict)
    """What scheduled promotes wait for, by the key of the topic's record."""
    _tries: dict[Batch, _Tries] = field(default_factory=dict)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            async for _ in every(_LOOK_S):
                await self.look()
        finally:
            self.reasons.clear()

    async def look(self) -> None:
        """Look once at all scheduled topics."""
        batches: dict[Batch, list[TopicRecord]] = {}
        scheduled: set[Batch] = set()
        for record in self.connections.log.state.topics_that(_is_scheduled):
            if record.schedule is None:
                continue
            batch = record.link, record.schedule.asked_ms
            scheduled.add(batch)
            if record.phase not in PROMOTING:
                batches.setdefault(batch, []).append(record)
        self._tries = {batch: tries for batch, tries in self._tries.items() if batch in scheduled}
        waits = await together(*(self._step(batch, records) for batch, records in batches.items()))
        self.reasons.clear()
        for records, why in zip(batches.values(), waits, strict=True):
            self.reasons.update({record.key: why for record in records if why})

    async def _step(self, batch: Batch, records: Sequence[TopicRecord]) -> str:
        """Take the next step of topics that are scheduled together; return what they wait for, or ''."""
        schedule, link = records[0].schedule, self.connections.log.state.link(batch[0])
        if schedule is None or link is None:
            return ""
        tries, at_ms = self._tries.setdefault(batch, _Tries()), self.connections.log.now_ms()
        if schedule.deadline_ms and at_ms > schedule.deadline_ms:
            last = tries.why or records[0].reason or "its time had not come"
            over = WaitTimedOut("deadline-over", f"no promote by {utc_text(schedule.deadline_ms)}: {last}")
            await self._end(records, over.summary)
            return ""
        if schedule.postponed:
            return await self._postponed(link, schedule, records)
        if at_ms < schedule.not_before_ms:
            return f"it begins at {utc_text(schedule.not_before_ms)}"
        self._note_given_up(tries, records)
        if monotonic() < tries.due:
            return f"tried again until {utc_text(schedule.deadline_ms)}: {tries.why}"
        return await self._ask(link, schedule, records, tries)

    async def _postponed(self, link: LinkRecord, schedule: Schedule, records: Sequence[TopicRecord]) -> str:
        if schedule.release_file and Path(schedule.release_file).exists():
            for record in records:
                await self._write(record, released(record))
            return ""
        file = f", or the file {schedule.release_file}" if schedule.release_file else ""
        release = advised("promote --release", link.name, *(record.topic for record in records))
        return f"postponed by {schedule.asked_by or '?'} until released: {release}{file}"

    def _note_given_up(self, tries: _Tries, records: Sequence[TopicRecord]) -> None:
        """Wait longer after each promote that was given up; a controller that begins anew tries at once."""
        given_up = next((record.reason for record in records if record.reason), "")
        if given_up and not tries.why and tries.due:
            self._later(tries, given_up)

    async def _ask(self, link: LinkRecord, schedule: Schedule, records: Sequence[TopicRecord], tries: _Tries) -> str:
        topics = [record.topic for record in records]
        try:
            proposal = await promote_topics(
                self.connections,
                link.name,
                topics,
                schedule.terms,
                straggler_window_s=link.settings.straggler_window_s,
                accept_misplaced=schedule.accept_misplaced,
                scheduled=True,
            )
            await proposal.carry_out()
        except KmigrateError as error:
            if not schedule.deadline_ms:
                await self._end(records, error.summary, error.next_step)
                return ""
            self._later(tries, error.summary)
            return f"tried again until {utc_text(schedule.deadline_ms)}: {error.summary}"
        tries.due, tries.why = monotonic(), ""
        _log.info("topic %s: promote asked, as scheduled by %s", ", ".join(topics), schedule.asked_by or "?")
        return ""

    def _later(self, tries: _Tries, why: str) -> None:
        tries.due, tries.why = monotonic() + tries.pause_s, why
        tries.pause_s = min(2 * tries.pause_s, _LONGEST_PAUSE_S)

    async def _end(self, records: Sequence[TopicRecord], reason: str, way_on: str = "") -> None:
        """End the schedule of each topic with the reason, and with a report; the topics are mirrored as before."""
        for record in records:
            if record.schedule is None:
                continue
            _log.warning("topic %s: the scheduled promote is given up: %s", record.topic, reason)
            asked = Asked(Action.PROMOTE, record.schedule.asked_ms, record.schedule.asked_by)
            ended = replace(record, schedule=None, asked=asked, since_ms=now_ms(), reason=reason, way_on=way_on)
            await self._write(record, ended)

    async def _write(self, record: TopicRecord, changed: TopicRecord) -> None:
        def decide(state: State) -> Record | None:
            return changed if state.topic(record.link, record.topic) == record else None

        await self.connections.log.append(decide)


def _is_scheduled(record: TopicRecord) -> bool:
    return record.schedule is not None and not record.at_target
