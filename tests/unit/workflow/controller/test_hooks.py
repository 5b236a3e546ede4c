"""Hooks: what a command gets, what its end means, and that no command outlives its limit or its controller."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.record_json import encode_record
from kmigrate.model.records import Action, Asked, TopicRecord
from kmigrate.model.rehearsals import link_of
from kmigrate.model.reports import HookPoint, HookRun, Outcome, ReportedKind, ReportRecord
from kmigrate.workflow.controller import hooks
from kmigrate.workflow.controller.hooks import Hooks, HookSettings
from tests.unit.workflow.promote.test_topic import PENDING, Stage

ASKED = Asked(Action.PROMOTE, 1_000, "ann@desk")
RECORD = replace(PENDING, asked=ASKED)
REPORT = ReportRecord("l", ReportedKind.TOPIC, "t", ASKED, Outcome.DONE, 2_000)
TELL = """
import json, os, sys
facts = {name: value for name, value in os.environ.items() if name.startswith("KMIGRATE_")}
print(json.dumps([facts, json.load(sys.stdin)]))
"""


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program)


def hooks_of(point: HookPoint, words: Sequence[str], timeout_s: float = 10.0) -> Hooks:
    return Hooks(HookSettings({point: tuple(words)}, timeout_s))


def before_fence(made: Hooks) -> str:
    """Run the hook before the fence; return the reason of a refusal, or ''."""
    try:
        asyncio.run(made.before_fence(RECORD))
    except Refused as refused:
        return refused.summary
    return ""


def after_end(made: Hooks, report: ReportRecord = REPORT) -> tuple[HookRun, ...]:
    return asyncio.run(made.after_end(report))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KMIGRATE_"):
            monkeypatch.delenv(name)


def test_a_command_before_the_fence_gets_the_request() -> None:
    made = hooks_of(HookPoint.BEFORE_FENCE, python(TELL))
    assert made.due_before_fence(RECORD)
    assert before_fence(made) == ""
    assert not made.due_before_fence(RECORD), "once per request"
    [run] = after_end(made)
    facts, document = json.loads(run.output)
    assert (run.point, run.exit_code) == (HookPoint.BEFORE_FENCE, 0)
    assert facts == {
        "KMIGRATE_HOOK": "before-fence",
        "KMIGRATE_LINK": "l",
        "KMIGRATE_TOPIC": "t",
        "KMIGRATE_ACTION": "promote",
        "KMIGRATE_ASKED_BY": "ann@desk",
    }
    asked = {"action": "promote", "at_ms": 1_000, "by": "ann@desk"}
    assert document == {"link": "l", "what": "topic", "name": "t", "asked": asked}
    assert made.due_before_fence(replace(RECORD, asked=replace(ASKED, at_ms=2_000)))


def test_no_command_runs_for_the_shadow_topics_of_a_rehearsal() -> None:
    link = link_of("ab12")
    assert not hooks_of(HookPoint.BEFORE_FENCE, python(TELL)).due_before_fence(replace(RECORD, link=link))
    assert after_end(hooks_of(HookPoint.AFTER_FLIP, python(TELL)), replace(REPORT, link=link)) == ()


@pytest.mark.parametrize(
    ("report", "point", "name"),
    [
        (REPORT, HookPoint.AFTER_FLIP, "KMIGRATE_TOPIC"),
        (replace(REPORT, what=ReportedKind.GROUP, name="t"), HookPoint.AFTER_FLIP, "KMIGRATE_GROUP"),
        (replace(REPORT, outcome=Outcome.GIVEN_UP, reason="why"), HookPoint.GIVEN_UP, "KMIGRATE_TOPIC"),
        (replace(REPORT, asked=replace(ASKED, action=Action.ROLLBACK)), HookPoint.ROLLED_BACK, "KMIGRATE_TOPIC"),
    ],
)
def test_a_command_after_the_end_gets_the_report(report: ReportRecord, point: HookPoint, name: str) -> None:
    [run] = after_end(hooks_of(point, python(TELL)), report)
    facts, document = json.loads(run.output)
    assert (facts[name], facts["KMIGRATE_OUTCOME"], facts["KMIGRATE_REASON"]) == ("t", report.outcome, report.reason)
    told = encode_record(report)
    del told["kind"]
    assert document == told
    others = [each for each in HookPoint if each is not point]
    assert [after_end(hooks_of(each, python(TELL)), report) for each in others] == [()] * 3


def test_a_command_that_fails_before_the_fence_gives_up_with_its_last_line() -> None:
    made = hooks_of(HookPoint.BEFORE_FENCE, ("sh", "-c", "echo looking; echo the window is closed; exit 3"))
    assert before_fence(made) == "hook-failed: the hook before-fence ended with exit code 3: the window is closed"
    [run] = after_end(made)
    assert (run.exit_code, run.output) == (3, "looking\nthe window is closed\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("/no/such/command",), 127, "cannot be started"),
        (("sh\0",), 127, "cannot be started"),
        (python("import os; os.kill(os.getpid(), 9)"), 137, ""),
        (python("import sys; sys.stdout.buffer.write(b'\\xff' + b'x' * 100_000 + b'end')"), 0, "end"),
        (python("import sys; print('x', file=sys.stderr)"), 0, "x"),
    ],
)
def test_every_end_of_a_command_has_a_code_and_bounded_output(words: tuple[str, ...], code: int, said: str) -> None:
    [run] = after_end(hooks_of(HookPoint.AFTER_FLIP, words))
    assert run.exit_code == code
    assert said in run.output
    assert len(run.output) <= 2_100


def test_a_command_that_is_too_late_is_killed_with_its_processes(tmp_path: Path) -> None:
    child = tmp_path / "child"
    words = ("sh", "-c", f"sleep 60 & echo $! > {child}; echo begun; wait")
    [run] = after_end(hooks_of(HookPoint.AFTER_FLIP, words, timeout_s=0.5))
    assert (run.exit_code, run.output.startswith("begun")) == (124, True)
    with pytest.raises(ProcessLookupError):
        _await_end(int(child.read_text()))


def _await_end(pid: int) -> None:
    """Raise ProcessLookupError once the process is gone, or a zombie that nobody has collected."""
    for _ in range(100):
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            raise ProcessLookupError
        asyncio.run(asyncio.sleep(0.01))


def test_a_background_process_that_keeps_the_output_open_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_LINGER_S", 0.05)
    [run] = after_end(hooks_of(HookPoint.AFTER_FLIP, ("sh", "-c", "sleep 1 & echo done")))
    assert (run.exit_code, run.output) == (0, "done\n")
    assert run.ms < 900


def test_a_controller_that_ends_kills_its_command(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    made = hooks_of(HookPoint.AFTER_FLIP, ("sh", "-c", f"echo $$ > {file}; exec sleep 60"))

    async def scene() -> None:
        running = asyncio.ensure_future(made.after_end(REPORT))
        for _ in range(500):
            if file.exists() and file.read_text().strip():
                break
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scene())
    with pytest.raises(ProcessLookupError):
        _await_end(int(file.read_text()))


class Staged:
    """A hook before the fence that notes the topic's phase; it fails where the test says so."""

    def __init__(self, stage: Stage, fails: bool) -> None:
        self.stage, self.fails = stage, fails
        self.seen: list[TopicPhase] = []

    def due_before_fence(self, record: TopicRecord) -> bool:
        return not self.seen

    async def before_fence(self, record: TopicRecord) -> None:
        await asyncio.sleep(0.02)
        self.seen.append(self.stage.record.phase)
        if self.fails:
            raise Refused("hook-failed", "the hook before-fence ended with exit code 1: no")


@pytest.mark.parametrize("fails", [False, True])
def test_a_promote_runs_the_hook_once_before_its_fence(fails: bool) -> None:
    stage = Stage()
    hook = Staged(stage, fails)
    promotion = stage.promotion()
    promotion.hook = hook
    stage.promotion = lambda: promotion  # type: ignore[method-assign]
    record: Any = asyncio.run(stage.run())
    assert hook.seen == [TopicPhase.PROMOTE_PENDING]
    if fails:
        assert (record.phase, record.fence_epoch) == (TopicPhase.MIRRORING, -1)
        assert record.reason == "hook-failed: the hook before-fence ended with exit code 1: no"
    else:
        assert record.phase is TopicPhase.PROMOTED
