"""The controller writes one report per request, also after a crash, and keeps the newest of each name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from kmigrate.errors import Unreachable
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import Action, Asked, GroupRecord
from kmigrate.model.reports import MOST_REPORTS, Outcome, ReportedKind, ReportRecord
from kmigrate.workflow.controller import report_writer
from kmigrate.workflow.controller.report_writer import ReportWriter
from kmigrate.workflow.promote.outcome import given_up
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING

ASKED = Asked(Action.PROMOTE, 1_000, "ann@desk")
PROMOTED = GroupRecord("l", "g", GroupPhase.PROMOTED, 1_500, promoted_ms=1_500, asked=ASKED)


@dataclass
class Lit:
    """Connections whose clusters tell their names as versions; a source that is down raises."""

    log: MemoryLog
    source_down: bool = False
    target: Any = "target"

    async def source(self, _: Any) -> Any:
        if self.source_down:
            raise Unreachable("no-broker", "no broker of s answers")
        return "source", None


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def version(client: Any) -> str:
        return f"version of the {client}"

    monkeypatch.setattr(report_writer, "kafka_version", version)
    monkeypatch.setattr(report_writer, "_PAUSE_S", 0.01)


def written(lit: Lit, until: Callable[[MemoryLog], bool]) -> list[ReportRecord]:
    """Run the writer until the log is as wanted, and return the reports."""

    async def scene() -> None:
        async with asyncio.timeout(5):
            writing = asyncio.ensure_future(ReportWriter(cast("Any", lit)).run())
            while not until(lit.log):
                await lit.log.changed(0.005)
            writing.cancel()
            await asyncio.wait([writing])

    asyncio.run(scene())
    return lit.log.state.reports()


def has_report(log: MemoryLog) -> bool:
    return bool(log.state.reports())


def test_a_request_that_ended_while_no_controller_ran_is_reported_by_the_next() -> None:
    [report] = written(Lit(MemoryLog(LINK, PROMOTED)), has_report)
    assert (report.name, report.outcome, report.asked) == ("g", Outcome.DONE, ASKED)
    assert report.versions["s"] == "version of the source"
    assert report.versions["t"] == "version of the target"
    assert report.versions["kmigrate"]


def test_a_source_that_is_down_is_left_out_of_the_versions() -> None:
    [report] = written(Lit(MemoryLog(LINK, PROMOTED), source_down=True), has_report)
    assert set(report.versions) == {"kmigrate", "t"}


def test_a_report_is_written_once_and_the_oldest_of_a_name_go() -> None:
    old = [
        ReportRecord("l", ReportedKind.GROUP, "g", Asked(Action.PROMOTE, number), Outcome.GIVEN_UP, number)
        for number in range(1, MOST_REPORTS + 2)
    ]
    other = replace(old[0], name="g/1")
    log = MemoryLog(LINK, PROMOTED, *old, other)
    reports = written(Lit(log), lambda log: len(log.state.reports()) == MOST_REPORTS + 1)
    assert [each.asked.at_ms for each in reports if each.name == "g"] == [1_000, *range(MOST_REPORTS + 1, 2, -1)]
    assert other in reports
    assert sum(isinstance(each, ReportRecord) and each.asked == ASKED for each in log.history) == 1


def test_an_append_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(LINK, PROMOTED)
    append, failures = log.append, [1, 2]

    async def failing(decide: Any, timeout: float = 30.0) -> Any:
        if failures:
            failures.pop()
            raise Unreachable("state-log-unreachable", "away")
        return await append(decide, timeout)

    log.append = failing  # type: ignore[method-assign]
    assert len(written(Lit(log), has_report)) == 1
    assert caplog.messages == ["report/l/group/g/1000 is not written yet: state-log-unreachable: away"]


def test_a_link_that_is_being_deleted_gets_no_more_records() -> None:
    deleting = replace(LINK, deleting_ms=5)
    done: list[Record | None] = []
    log = MemoryLog(deleting, PROMOTED)
    append = log.append

    async def noted(decide: Any, timeout: float = 30.0) -> Any:
        state = await append(decide, timeout)
        done.append(None)
        return state

    log.append = noted  # type: ignore[method-assign]
    assert written(Lit(log), lambda _: bool(done)) == []


def test_reports_wait_while_the_writers_of_a_topic_wait_and_are_written_one_by_one() -> None:
    """The process appends one record at a time: a hundred reports in the queue would lengthen another topic's pause."""
    fenced = replace(PENDING, phase=TopicPhase.FENCED, fence_epoch=3, asked=ASKED)
    groups = [replace(PROMOTED, group=f"g{number}") for number in range(5)]
    log = MemoryLog(LINK, fenced, *groups)
    append, running, most = log.append, 0, 0

    async def slow(decide: Any, timeout: float = 30.0) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        state = await append(decide, timeout)
        running -= 1
        return state

    log.append = slow  # type: ignore[method-assign]

    async def scene() -> list[int]:
        async with asyncio.timeout(5):
            writing = asyncio.ensure_future(ReportWriter(cast("Any", Lit(log))).run())
            await asyncio.sleep(0.05)
            during = len(log.state.reports())
            log._put(fenced.key, given_up(fenced, "not-drained: x"))
            while len(log.state.reports()) < len(groups):
                await log.changed(0.01)
            writing.cancel()
            await asyncio.wait([writing])
        return [during, most]

    assert asyncio.run(scene()) == [0, 1]
