"""Looks at a migration for all readers of its page: a look every two seconds while somebody reads, else seldom.

A look is a snapshot, as `kmigrate status` takes one. After a look the feed rests for fifteen times the processor time
that the look took, so that large estates cost less than a tenth of a core.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from kmigrate.errors import KmigrateError
from kmigrate.net.clock import cpu_s, monotonic, sleep
from kmigrate.web.history import History, sample_of
from kmigrate.workflow.status.document import status_document
from kmigrate.workflow.status.progress import Progress, ProgressTracker
from kmigrate.workflow.status.snapshot import Snapshot
from kmigrate.workflow.status.timeline import Timeline

__all__ = ["Feed"]

_PAUSE_S = 2.0
_UNREAD_PAUSE_S = 15.0
_READING_S = 10.0
"""Seconds after a request in which its reader counts as reading."""
_REST_FOR_WORK = 15.0


class Feed:
    """The newest status of a migration, as JSON for the page and as values for metrics."""

    def __init__(self, look: Callable[[], Awaitable[Snapshot]], timeline: Timeline) -> None:
        self._look = look
        self._timeline = timeline
        self._tracker = ProgressTracker()
        self._history = History()
        self._status = ""
        self._newest: tuple[Snapshot, Progress] | None = None
        self._trouble = ""
        """The reason why the last look failed, or ''."""
        self._read_at = float("-inf")
        self._wanted = asyncio.Event()

    @property
    def newest(self) -> tuple[Snapshot, Progress] | None:
        """The newest snapshot with its progress; None before the first."""
        return self._newest

    async def run(self) -> None:
        """Look again and again; a cluster that does not answer is named, and the last status stays."""
        while True:
            began = cpu_s()
            try:
                shot = await self._look()
            except KmigrateError as error:
                self._trouble = error.summary
            else:
                self.take(shot)
            await self._rest(cpu_s() - began)

    def take(self, shot: Snapshot, at_s: float | None = None) -> None:
        """Take a snapshot, made `at_s` by a clock that never goes back (else: now), as the newest."""
        progress = self._tracker.add(shot, at_s)
        self._trouble = ""
        self._newest = shot, progress
        self._history.add(sample_of(shot, progress))
        self._status = json.dumps(status_document(shot, progress))

    async def _rest(self, worked_s: float) -> None:
        await sleep(max(_PAUSE_S, worked_s * _REST_FOR_WORK))
        if monotonic() - self._read_at > _READING_S:
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNREAD_PAUSE_S):
                    await self._wanted.wait()

    # readers

    def status(self) -> Iterator[str]:
        """Yield the newest status, the document of `kmigrate status --json`; nothing before the first look."""
        self._read_at = monotonic()
        self._wanted.set()
        yield self._status

    def history(self) -> Iterator[str]:
        """Yield the samples and events since this process began, and why the last look failed."""
        events = [event.as_json() for event in self._timeline.events]
        yield json.dumps({"trouble": self._trouble, **self._history.as_json(), "events": events})
