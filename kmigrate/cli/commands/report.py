"""`kmigrate report`: the report that each promote and rollback has left."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kmigrate.cli.base import completion
from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link
from kmigrate.cli.base.output import Answer, harmless_json, write_report
from kmigrate.cli.base.words import Text
from kmigrate.cli.views.reports import report_view, reports_table
from kmigrate.errors import Refused, UsageError
from kmigrate.model.nearest import name_hint
from kmigrate.model.record_json import plain
from kmigrate.model.records import LinkRecord
from kmigrate.model.reports import ReportedKind, ReportRecord
from kmigrate.model.state import State
from kmigrate.report.promote_page import promote_page
from kmigrate.workflow import verbs
from kmigrate.workflow.status.aftermath import Aftermath, aftermath_of

__all__ = ["app", "export", "list_reports", "report_json", "show"]

app = typer.Typer(name="report", help="Reports of promotes and rollbacks.", no_args_is_help=True)

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Topic or group.", autocompletion=completion.mirrored_topics),
]
OfGroup = Annotated[bool, typer.Option("--group", help="NAME is a group that has the name of a topic.")]
Asked = Annotated[
    int | None, typer.Option("--asked", metavar="MS", help="The report of this request, as `report list` numbers it.")
]


@command(app, "list")
async def list_reports(
    call: Call,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Topics or groups.", autocompletion=completion.mirrored_topics),
    ] = None,
    link: Link = None,
) -> Answer:
    """List the reports of promotes and rollbacks, the newest first.

    The state log keeps the ten newest reports of each topic and group until `link delete`.
    """
    async with call.connections() as connections:
        at = verbs.resolve_link(connections.log.state, call.link(link))
        reports = [each for each in connections.log.state.reports(at.name) if not names or each.name in names]
    for name in names or ():
        if all(each.name != name for each in reports):
            raise _no_report(at, name, connections.log.state)
    return Answer({"reports": [_line(each) for each in reports]}, reports_table(reports))


@command(app, "show")
async def show(
    call: Call, name: Name = None, link: Link = None, of_group: OfGroup = False, asked: Asked = None
) -> Answer:
    """Show the newest report of a topic or group: who asked, the steps, the pause, the barrier, and what came after."""
    report, now, _ = await _found(call, name, link, asked, of_group=of_group)
    return Answer(report_json(report, now), report_view(report, now))


@command(app, "export")
async def export(
    call: Call,
    name: Name = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="FILE.html: a page with plots; FILE.json: the JSON.")
    ] = None,
    link: Link = None,
    of_group: OfGroup = False,
    asked: Asked = None,
) -> Answer:
    """Write the newest report of a topic or group as a self-contained HTML page, or as JSON."""
    place = Path(call.required(str(out) if out else None, "--out", "the file to write"))
    if place.suffix not in (".html", ".json"):
        raise UsageError(
            "report-format",
            f"--out {place}: the name ends neither in .html nor in .json",
            still_true="nothing was contacted or written",
            next_step="expected: FILE.html or FILE.json",
        )
    report, now, at = await _found(call, name, link, asked, of_group=of_group)
    document = json.dumps(report_json(report, now), indent=2, ensure_ascii=False) + "\n"
    text = promote_page(report, now, at.source, at.target) if place.suffix == ".html" else harmless_json(document)
    write_report(place, text, "the report is still in the state log")
    json_answer = {"link": report.link, "what": report.what.value, "name": report.name, "out": str(place)}
    return Answer(json_answer, Text(f"the report of {report.what} {report.name} → {place}"))


async def _found(
    call: Call, name: str | None, link: str | None, asked: int | None, *, of_group: bool
) -> tuple[ReportRecord, Aftermath, LinkRecord]:
    """Return the asked report, what has become of its topic or group, and the link."""
    name = call.required(name, "NAME", "the topic or group")
    async with call.connections() as connections:
        state = connections.log.state
        at = verbs.resolve_link(state, call.link(link))
    kinds = (ReportedKind.GROUP,) if of_group else tuple(ReportedKind)
    for kind in kinds:
        for report in state.reports_of(at.name, kind, name):
            if asked in (None, report.asked.at_ms):
                return report, aftermath_of(report, state), at
    raise _no_report(at, name, state)


def _no_report(link: LinkRecord, name: str, state: State) -> Refused:
    known = sorted({each.name for each in state.reports(link.name)})
    return Refused(
        "no-report",
        f"link {link.name} has no such report of {name}{name_hint(name, known)}",
        still_true="nothing was changed",
        next_step=f"kmigrate report list --link {link.name}; a report comes two seconds after the end of a promote",
    )


def report_json(report: ReportRecord, now: Aftermath) -> dict[str, Any]:
    """Return the JSON of a report with what has become of its topic or group."""
    return {**plain(report), "fence_ms": report.fence_ms, "now": asdict(now)}


def _line(report: ReportRecord) -> dict[str, Any]:
    return {
        "link": report.link,
        "what": report.what.value,
        "name": report.name,
        "action": report.action.value,
        "outcome": report.outcome.value,
        "asked_ms": report.asked.at_ms,
        "asked_by": report.asked.by,
        "ended_ms": report.ended_ms,
        "fence_ms": report.fence_ms,
        "pause_max_ms": report.pause.max if report.pause is not None else None,
        "reason": report.reason,
    }
