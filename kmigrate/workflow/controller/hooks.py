"""Runs commands of the configuration at named points of promotes and rollbacks; no command runs inside a fence.

No command runs for the shadow topics of a rehearsal.

A command gets the facts in its environment (`KMIGRATE_LINK`, `KMIGRATE_TOPIC`, …) and a JSON document on its standard
input. The last lines of its output and its exit code go to the log and into the report of the request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kmigrate.errors import Refused
from kmigrate.model.record_json import plain
from kmigrate.model.records import Action, Asked, TopicRecord
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.model.reports import HookPoint, HookRun, Outcome, ReportedKind, ReportRecord, report_key
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import until
from kmigrate.net.tasks import TaskOwner

__all__ = ["HookSettings", "Hooks"]

_MOST_OUTPUT = 2_000
"""Number of bytes that are kept of a command's output, its end."""
_LOOK_S = 0.02
_LINGER_S = 1.0
"""Seconds that the output may stay open after the command has ended: a process in its background may hold it."""
_NOT_STARTED, _TOO_LATE = 127, 124
"""Exit codes as a shell and `timeout` give them."""
_log = logging.getLogger("kmigrate.controller")


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The commands by point, each as a list of words, and their time limit."""

    commands: Mapping[HookPoint, Sequence[str]] = field(default_factory=dict)
    timeout_s: float = 30.0


@dataclass(slots=True)
class Hooks:
    """Runs the commands of one controller, and keeps the runs before fences for the reports."""

    settings: HookSettings = field(default_factory=HookSettings)
    _before: dict[str, HookRun] = field(default_factory=dict)
    """Runs before a fence by the key of the request's report; each request has one."""

    def due_before_fence(self, record: TopicRecord) -> bool:
        """Return whether the command before the fence has yet to run for the topic's request."""
        wanted = bool(self.settings.commands.get(HookPoint.BEFORE_FENCE)) and record.asked is not None
        return wanted and _key(record) not in self._before and not is_rehearsal(record.link)

    async def before_fence(self, record: TopicRecord) -> None:
        """Run the command before the fence; raise Refused where the command does not succeed."""
        asked = record.asked
        if asked is None or not self.due_before_fence(record):
            return
        facts = _facts(record.link, ReportedKind.TOPIC, record.topic, asked)
        document = {"link": record.link, "what": "topic", "name": record.topic, "asked": plain(asked)}
        run = await self._run(HookPoint.BEFORE_FENCE, facts, document)
        if run is None:
            return
        self._before[_key(record)] = run
        if run.exit_code:
            said = run.output.strip().rpartition("\n")[2] or "it has printed nothing"
            raise Refused(
                "hook-failed",
                f"the hook before-fence ended with exit code {run.exit_code}: {said}",
                next_step=f"see the hook's whole output: kmigrate report show {record.topic}",
            )

    async def after_end(self, report: ReportRecord) -> tuple[HookRun, ...]:
        """Run the command for the end of a request; return the runs of the request."""
        if is_rehearsal(report.link):
            return ()
        before = self._before.pop(report.key, None)
        facts = _facts(report.link, report.what, report.name, report.asked)
        facts |= {"KMIGRATE_OUTCOME": report.outcome.value, "KMIGRATE_REASON": report.reason}
        after = await self._run(_point_of(report), facts, plain(report))
        return tuple(run for run in (before, after) if run is not None)

    async def _run(self, point: HookPoint, facts: Mapping[str, str], document: Mapping[str, Any]) -> HookRun | None:
        """Run the command of a point to its end; None where the configuration names none."""
        words = self.settings.commands.get(point)
        if not words:
            return None
        environment = {**os.environ, **facts, "KMIGRATE_HOOK": point.value}
        began = monotonic()
        code, output = await _ended(words, environment, json.dumps(document).encode(), self.settings.timeout_s)
        run = HookRun(point, code, round((monotonic() - began) * 1000), output)
        name = facts.get("KMIGRATE_TOPIC") or facts.get("KMIGRATE_GROUP", "")
        level = logging.WARNING if code else logging.INFO
        _log.log(level, "hook %s of %s: exit code %d after %d ms: %s", point, name, code, run.ms, output.strip())
        return run


def _key(record: TopicRecord) -> str:
    return report_key(record.link, ReportedKind.TOPIC, record.topic, record.asked.at_ms if record.asked else 0)


def _facts(link: str, what: ReportedKind, name: str, asked: Asked) -> dict[str, str]:
    return {
        "KMIGRATE_LINK": link,
        f"KMIGRATE_{what.upper()}": name,
        "KMIGRATE_ACTION": asked.action.value,
        "KMIGRATE_ASKED_BY": asked.by,
    }


def _point_of(report: ReportRecord) -> HookPoint:
    if report.outcome is Outcome.GIVEN_UP:
        return HookPoint.GIVEN_UP
    return HookPoint.ROLLED_BACK if report.action is Action.ROLLBACK else HookPoint.AFTER_FLIP


async def _ended(
    words: Sequence[str], environment: Mapping[str, str], given: bytes, timeout_s: float
) -> tuple[int, str]:
    """Run a command in a session of its own; return its exit code and the end of its output."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words, env=environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
    except (OSError, ValueError) as error:  # ValueError: a word with a zero byte
        return _NOT_STARTED, f"{words[0]} cannot be started: {error}"
    kept = bytearray()
    pipes = TaskOwner()
    reading = pipes.start(_keep_end(process, kept))
    try:
        giving = pipes.start(_give(process, given))
        # `wait` of asyncio would also wait for the pipes, which a process in the command's background may hold.
        ended = await until(lambda: process.returncode is not None, every_s=_LOOK_S, within_s=timeout_s)
        if ended:
            await asyncio.wait([giving, reading], timeout=_LINGER_S)
        output = kept.decode(errors="replace")
        if process.returncode is None:
            return _TOO_LATE, f"{output.rstrip()}\nended after {timeout_s:g} s, the limit of hooks".lstrip()
        return (process.returncode if process.returncode >= 0 else 128 - process.returncode), output
    finally:
        await pipes.close()
        await _kill_all_of(process)


async def _give(process: Process, given: bytes) -> None:
    """Write the document to the command's standard input; a command need not read it."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


async def _keep_end(process: Process, kept: bytearray) -> None:
    assert process.stdout is not None
    while piece := await process.stdout.read(1 << 16):
        kept += piece
        del kept[:-_MOST_OUTPUT]


async def _kill_all_of(process: Process) -> None:
    """Kill a command that runs on, with its processes; also where the controller ends."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
