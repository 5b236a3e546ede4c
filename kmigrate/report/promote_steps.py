"""Words for the report of a promote or rollback, for the page and for the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kmigrate.model.moments import span_text, utc_text
from kmigrate.model.records import Action
from kmigrate.model.reports import Outcome, ReportedKind, ReportRecord

__all__ = ["Step", "pause_text", "steps_of", "title_of"]

_NOUNS = {Action.PROMOTE: "promote", Action.ROLLBACK: "rollback"}
_VERBS = {Action.PROMOTE: "promoted", Action.ROLLBACK: "rolled back"}


class Step(NamedTuple):
    """A step of a request, with its time and the time since the step before."""

    name: str
    time: str
    after: str


def title_of(report: ReportRecord) -> str:
    """Return the outcome in words."""
    if report.outcome is Outcome.DONE:
        return f"✓ {report.what} {report.name} is {_VERBS[report.action]}"
    return f"✗ the {_NOUNS[report.action]} of {report.what} {report.name} was given up"


def steps_of(report: ReportRecord) -> list[Step]:
    """Return the steps that were reached, in their order."""
    return list(_steps(report))


def _steps(report: ReportRecord) -> Iterator[Step]:
    before = report.asked.at_ms
    yield Step("asked", _moment(before), "")
    for name, at_ms in (("fenced", report.fenced_ms), ("barrier", report.barrier_ms), (_end(report), report.ended_ms)):
        if at_ms:
            yield Step(name, _moment(at_ms), _span(at_ms - before))
            before = at_ms


def _end(report: ReportRecord) -> str:
    if report.outcome is Outcome.GIVEN_UP:
        return "given up"
    return "flipped" if report.what is ReportedKind.TOPIC else "opened"


def _moment(ms: int) -> str:
    """Return a moment to the millisecond: the steps behind a fence are a few milliseconds apart."""
    return utc_text(ms).replace(" UTC", f".{ms % 1000:03} UTC")


def _span(ms: int) -> str:
    return f"{ms:,} ms" if ms < 10_000 else span_text(ms)


def pause_text(report: ReportRecord) -> str:
    """Return the time from the fence to its end, and the distribution of the pauses."""
    fence = f"{report.fence_ms:,} ms from the fence to its end"
    if report.pause is None:
        return f"{fence}; no router has reported a held request"
    pause = report.pause
    of = f"in {pause.partitions:,} of {report.partition_count:,} partitions"
    return f"{fence}; requests held {of}: p50 {pause.p50:,.1f}, p99 {pause.p99:,.1f}, max {pause.max:,.1f} ms"
