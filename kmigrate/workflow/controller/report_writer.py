"""Writes the report of each promote and rollback that has ended, and deletes the oldest reports of a name.

The writer only follows the state log and the routers' reports, so no promote waits for a report. Reports are written
one by one while no topic is fenced, because this process appends one record at a time. A controller may die between the
flip and the report. The next controller's first look then finds that the report is missing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from functools import partial

from kmigrate import __version__
from kmigrate.cluster.kafka_version import kafka_version
from kmigrate.errors import KmigrateError
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import LinkRecord
from kmigrate.model.reports import MOST_REPORTS, ReportRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import TaskOwner
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.controller.hooks import Hooks
from kmigrate.workflow.promote.evidence import Ended, Witness, report_of

__all__ = ["ReportWriter"]

_LOOK_S, _PAUSE_S = 0.5, 1.0
_KEPT_S = 60.0
"""Seconds for which versions are not asked for again: many topics may be promoted at once."""
_log = logging.getLogger("kmigrate.controller")


@dataclass(slots=True)
class ReportWriter:
    """Writes a report for every request that ends; endless work of the controller that leads."""

    connections: Connections
    hooks: Hooks = field(default_factory=Hooks)
    witness: Witness = field(default_factory=Witness)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the report that is being written."""
    _known: dict[str, tuple[float, dict[str, str]]] = field(default_factory=dict)
    """The time of the last look at the versions, by the monotonic clock, and the versions, by link."""

    async def run(self) -> None:
        log, self.witness = self.connections.log, Witness()
        tasks = TaskOwner(lambda error: _log.error("a report is not written", exc_info=error))
        try:
            while True:
                self.witness.follow(log.state, log.alive(RouterPresence), monotonic())
                for ended in self.witness.due(monotonic()):
                    tasks.start(self.write(ended), ended.key)
                await log.changed(_LOOK_S)
        finally:
            await tasks.close()

    async def write(self, ended: Ended) -> None:
        """Run the hook of an end and write its report; try the write again after an error."""
        report = report_of(ended, self.connections.log.state, await self._versions(ended))
        report = replace(report, hooks=await self.hooks.after_end(report))
        told = False
        while True:
            try:
                async with self._turn:
                    await self._append(report)
                return
            except KmigrateError as error:
                if not told:
                    _log.warning("%s is not written yet: %s", report.key, error.summary)
                told = True
                await sleep(_PAUSE_S)

    async def _append(self, report: ReportRecord) -> None:
        """Write a report, and delete the reports that are no longer kept."""
        log = self.connections.log

        def decide(state: State) -> Record | None:
            link = state.link(report.link)
            return report if link is not None and not link.deleting_ms and report.key not in state.records else None

        await self._calm()
        state = await log.append(decide)
        for old in state.reports_of(report.link, report.what, report.name)[MOST_REPORTS:]:
            await self._calm()
            await log.append(partial(_drop, old.key))

    async def _calm(self) -> None:
        """Wait while writers wait: this process appends one record at a time, and flips come first."""
        while self.witness.sees_fence():
            await self.connections.log.changed(_LOOK_S)

    async def _versions(self, ended: Ended) -> dict[str, str]:
        """Return the versions of kmigrate and of both clusters; a cluster that does not answer is left out."""
        link = self.connections.log.state.link(ended.record.link)
        if link is None:
            return {"kmigrate": __version__}
        at, known = self._known.get(link.name, (-_KEPT_S, {}))
        if monotonic() - at >= _KEPT_S:
            known = await self._ask_versions(link)
            self._known[link.name] = monotonic(), known
        return known

    async def _ask_versions(self, link: LinkRecord) -> dict[str, str]:
        versions = {"kmigrate": __version__, link.target.name: await kafka_version(self.connections.target)}
        try:
            source, _ = await self.connections.source(link)
            versions[link.source.name] = await kafka_version(source)
        except KmigrateError:
            pass  # the source may be down for good by now
        return {name: version for name, version in versions.items() if version}


def _drop(key: str, state: State) -> tuple[str, None] | None:
    return (key, None) if key in state.records else None
