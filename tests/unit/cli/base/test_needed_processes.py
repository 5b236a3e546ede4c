"""Tests of verbs that need a process: the verbs wait for a process that starts, and name a process that is missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base import waiting
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.waiting import need_controller, need_copy, need_mirror
from kmigrate.errors import WaitTimedOut
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import ControllerPresence, MirrorPresence, PartitionProgress
from kmigrate.model.records import AssignmentRecord, ClusterRef, LeaseRecord, LinkRecord, TopicRecord
from kmigrate.net.clock import monotonic
from kmigrate.workflow.base.running import until_mirroring
from kmigrate.workflow.groups.uncopied import Uncopied
from kmigrate.workflow.verbs import promote as promote_verb
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
MIRROR = MirrorPresence("m", "l", 0, True, 500)
CONTROLLER = ControllerPresence("c", 0, True, 500)


class Told:
    """A call with `wait_s` as `process_wait_s`, which keeps progress texts and notes."""

    def __init__(self, wait_s: float) -> None:
        self.settings = SimpleNamespace(defaults=SimpleNamespace(process_wait_s=wait_s))
        self.out = self
        self.progress: list[str] = []
        self.notes: list[str] = []

    def waiting(self, text: str) -> Any:
        return nullcontext(SimpleNamespace(say=self.progress.append))

    def note(self, text: str) -> None:
        self.notes.append(text)


def waited(told: Told, log: MemoryLog, need: Callable[[Any, Any], Awaitable[None]], *later: Any) -> float:
    """Return the seconds until the needed process was heard of."""

    async def run() -> float:
        async def speak() -> None:
            await asyncio.sleep(0.3)
            for word in later:
                log.say(word)

        began, speaker = monotonic(), asyncio.create_task(speak())
        try:
            await need(told, SimpleNamespace(log=log))
        finally:
            speaker.cancel()
        return monotonic() - began

    return asyncio.run(run())


def mirror(call: Any, connections: Any) -> Awaitable[None]:
    return need_mirror(call, connections, "l", 60.0)


def controller(call: Any, connections: Any) -> Awaitable[None]:
    return need_controller(call, connections, 60.0)


@pytest.mark.parametrize(("need", "word"), [(mirror, MIRROR), (controller, CONTROLLER)])
def test_a_process_that_starts_meanwhile_is_waited_for_with_progress(
    need: Any, word: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_SOON_S", 0.0)
    told = Told(30.0)
    assert waited(told, MemoryLog(LINK), need, MirrorPresence("m", "other", 0, True, 500), word) < 10
    assert "waiting 30 s more. To start it: kmigrate run" in told.progress[0]
    assert len(told.notes) <= 1


@pytest.mark.parametrize(
    ("need", "ref", "what", "start"),
    [
        (mirror, "no-mirror-running", "no mirror process of link l is heard of", "kmigrate mirror run --link l"),
        (controller, "no-controller-running", "no controller process is heard of", "kmigrate controller run"),
    ],
)
def test_a_process_that_does_not_start_is_named_with_its_command_after_the_configured_time(
    need: Any, ref: str, what: str, start: str
) -> None:
    began = monotonic()
    with pytest.raises(WaitTimedOut) as late:
        waited(Told(0.5), MemoryLog(LINK), need)
    assert 0.4 < monotonic() - began < 10
    assert (late.value.ref, late.value.what) == (ref, f"{what}, for 0.5 s")
    assert start in late.value.next_step
    assert "taken up" in late.value.still_true


def test_a_promote_while_nothing_runs_names_the_mirror_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MemoryLog(LINK, TopicRecord("l", "t", TopicPhase.ALIGNING, 1))

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n[defaults]\nprocess_wait_s = 0.2\n', encoding="utf-8")
    monkeypatch.setattr(Call, "connections", opened)
    before = len(log.history)
    assert main(["promote", "t", "--config", str(config), "--json", "--yes"]) == 5
    told = json.loads(capsys.readouterr().out)
    assert told["error"] == "no-mirror-running"
    assert told["still_true"] == "nothing was changed: no topic is promoted"
    assert "kmigrate mirror run --link l" in told["next"]
    assert len(log.history) == before


def test_a_promote_is_refused_while_the_copy_waits_for_room_on_the_target() -> None:
    record = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
    log = MemoryLog(LINK, record, LeaseRecord("mirror/l", "m", 1), AssignmentRecord("l", 2, ("m",), {"t": (0,)}))
    waits = PartitionProgress(5, 5, trouble="target-disk-low: waits for room on broker 2")
    low = "target-disk-low: cluster t: broker 2, log directory /d: 1.0 GB of 100.0 GB are free"
    log.say(replace(MIRROR, active=True, topics={"t": {0: waits}}, disk_low=low))
    found = promote_verb._promote_guard(log, record)  # type: ignore[arg-type]
    assert found is not None
    assert (found.level, found.ref) == ("refuse", "target-disk-low")
    assert low in found.what
    assert "make room" in found.next_step
    log.say(replace(MIRROR, active=True, topics={"t": {0: replace(waits, trouble="")}}, disk_low=low))
    assert promote_verb._promote_guard(log, record) is None  # type: ignore[arg-type]


def test_the_guard_of_a_promote_says_whether_waiting_helps() -> None:
    log = MemoryLog(LINK)
    aligning = TopicRecord("l", "t", TopicPhase.ALIGNING, 1)
    alone = promote_verb._promote_guard(log, aligning)  # type: ignore[arg-type]
    assert alone is not None
    assert "wait" not in alone.next_step
    assert "no mirror process of link l is heard of" in alone.next_step
    log.say(MIRROR)
    assert until_mirroring(log, "l").startswith("wait until the topic is mirroring")  # type: ignore[arg-type]


def behind(copied_to: int | None, read_to: int = 5_000) -> Uncopied:
    return Uncopied(
        "g", "t", 0, TopicPhase.MIRRORING if copied_to is not None else TopicPhase.ALIGNING, read_to, copied_to
    )


def copy_waited(
    monkeypatch: pytest.MonkeyPatch, told: Told, log: MemoryLog, looks: list[list[Uncopied]], timeout: float = 60.0
) -> None:
    """Wait for the copy of group g; each look finds the next list, the last list for ever."""

    async def look(*_: Any) -> list[Uncopied]:
        return looks.pop(0) if len(looks) > 1 else looks[0]

    monkeypatch.setattr(waiting, "uncopied", look)
    monkeypatch.setattr(waiting, "_LOOK_S", 0.01)
    call: Any = told
    asyncio.run(need_copy(call, cast("Any", SimpleNamespace(log=log, target=None)), LINK, ["g"], timeout, 1_000))


def test_the_promote_of_a_group_waits_for_the_copy_and_names_partition_and_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, log = Told(60.0), MemoryLog(LINK)
    log.say(MIRROR)
    copy_waited(monkeypatch, told, log, [[behind(None)], [behind(100), behind(4_000)], [behind(4_500)]])
    first, second = told.progress
    assert first.startswith("waiting for the copy: group g has read t-0 up to offset 5,000, and the copy of t has not")
    assert first.endswith("the topic is aligning")
    assert second.endswith("and the copy holds it up to 100: 4,900 left; partitions behind: 2")


def test_looks_at_the_copy_stand_apart_however_often_processes_report_and_read_on_where_the_look_before_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(LINK)
    log.say(MIRROR)
    pauses: list[float] = []
    positions: list[object] = []

    async def look(*given: object) -> list[Uncopied]:
        positions.append(given[-1])
        log.say(MIRROR)
        return [behind(100)] if len(positions) < 3 else []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(waiting, "uncopied", look)
    monkeypatch.setattr(waiting, "sleep", pause)
    call: Any = Told(60.0)
    asyncio.run(need_copy(call, cast("Any", SimpleNamespace(log=log, target=None)), LINK, ["g"], 60.0, 1_000))
    assert pauses == [0.5, 0.5]
    assert positions == [positions[0]] * 3


def test_a_copy_that_is_not_there_in_time_changes_nothing_and_the_next_command_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(LINK)
    log.say(MIRROR)
    before = len(log.history)
    with pytest.raises(WaitTimedOut) as late:
        copy_waited(monkeypatch, Told(60.0), log, [[behind(100)]], timeout=0.05)
    assert late.value.ref == "target-behind-group"
    assert "waited 0.05 s for the copy: group g has read t-0" in late.value.what
    assert late.value.still_true.startswith("nothing was changed: group g is mirrored as before")
    assert late.value.next_step == "kmigrate group promote --timeout 1 --link l g"
    assert len(log.history) == before


def test_a_group_that_waits_for_a_copy_without_a_mirror_is_told_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WaitTimedOut) as late:
        copy_waited(monkeypatch, Told(0.05), MemoryLog(LINK), [[behind(100)]])
    assert late.value.ref == "no-mirror-running"
    assert "nothing was changed" in late.value.still_true
