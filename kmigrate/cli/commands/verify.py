"""`kmigrate verify`: proof of the copy by Spark, over the ranges that both clusters hold in full."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import Conf, Link, Master, Timeout, Topics
from kmigrate.cli.base.output import Answer, Waiting
from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import audits_view, late_view, parity_view
from kmigrate.errors import KmigrateError, UsageError
from kmigrate.extras import VERIFY
from kmigrate.net.clock import now_ms
from kmigrate.parity.report import ParityReport
from kmigrate.verify.compare import MASTER, SparkChoice, check, check_in_thread, spark_choice
from kmigrate.verify.job import Caller, Selection
from kmigrate.verify.report_files import ReportFiles
from kmigrate.verify.rounds import Totals, compare_in_rounds

__all__ = ["app", "compare_new", "ended", "verify"]

app = typer.Typer()


@command(app, "verify")
def verify(
    call: Call,
    topics: Topics = None,
    link: Link = None,
    timeout: Timeout = 60.0,
    master: Master = MASTER,
    conf: Conf = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read everything, also what an earlier check found equal.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until Ctrl-C, beside a live mirror; JSON lines with --json.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="With --follow: seconds between two looks.")
    ] = 5.0,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML for CI.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Write every finding; must not exist yet.")
    ] = None,
) -> Answer:
    """Compare source and target with Spark.

    Record by record, all mirrored topics or the named topics. A promoted topic is compared up to its barrier, a live
    topic up to the source's last stable offset now, once the target has passed that offset (--timeout). Equal ranges
    are remembered: the next check of the same copy reads only what is new, unless --full is given. Committed offsets of
    promoted groups are checked, too. With --follow everything that both clusters have is compared again and again.
    """
    VERIFY.need("kmigrate verify")
    files = ReportFiles(*(Path(each) if each else None for each in (html, junit, parquet)))
    choice = spark_choice(master, conf or ())
    if follow:
        if full or any((html, junit, parquet)):
            raise UsageError(
                "follow-goes-on",
                "--follow has no end to write a report of, and begins where earlier checks have ended",
                still_true="nothing was read",
                next_step="leave out --full, --html, --junit and --parquet, or leave out --follow",
            )
        return _follow(call, Selection(topics or (), call.link(link), timeout, reached=True), choice, interval)
    files.check()
    selection = Selection(topics or (), call.link(link), timeout, full)
    with call.out.waiting("reading the ranges") as waiting:
        job, report = check(_caller(call, waiting), selection, choice, files.parquet)
    written = files.write(job.link, report, now_ms())
    sound = all(audit.sound for audit in job.groups) and not any(late.missing for late in job.late)
    json = {
        "link": job.link.name,
        **report.as_json(),
        "groups": [{**asdict(audit), "sound": audit.sound} for audit in job.groups],
        "late": [each.as_json() for each in job.late],
        "files": written,
    }
    view = Group(*([audits_view(job.groups)] if job.groups else []), parity_view(report), late_view(job.late))
    return Answer(json, view, Exit.OK if report.equal and sound else Exit.PARITY_MISMATCH)


def _caller(call: Call, waiting: Waiting) -> Caller:
    return Caller(call.connections, call.settings.cluster, waiting.say, call.out.note)


async def compare_new(call: Call, topics: list[str], link: str, timeout: float) -> ParityReport:
    """Return the result of `verify` for these topics of a link, reading only what no check has found equal yet."""
    with call.out.waiting("reading the ranges") as waiting:
        return await check_in_thread(_caller(call, waiting), Selection(topics, link, timeout))


def _follow(call: Call, selection: Selection, choice: SparkChoice, interval: float) -> Answer:
    """Compare and print a line for each round until the user ends the call."""
    call.out.as_lines()
    totals, link = Totals(), ""
    with call.out.waiting("starting Spark") as waiting:
        rounds = compare_in_rounds(_caller(call, waiting), selection, choice, interval, totals)
        with closing(rounds):
            for found in rounds:
                match found:
                    case str():
                        link = found
                        call.out.line({"event": "following", "link": link}, f"following link {link}")
                    case ParityReport():
                        call.out.line(_round_json(link, found), _round_text(found))
                    case KmigrateError():
                        fields = {"event": "not-compared", **found.as_json()}
                        call.out.line(fields, f"not compared, tried again: {found.what}")
                if call.out.reader_left:
                    break
    return ended(link, totals)


def ended(link: str, totals: Totals) -> Answer:
    """Return the final answer of `verify --follow`."""
    json = {
        "event": "ended",
        "link": link,
        "equal": not totals.mismatches,
        "rounds": totals.rounds,
        "records": totals.records,
        "mismatches": totals.mismatches,
        "differing": [key._asdict() for key in sorted(totals.differing)],
    }
    if not totals.mismatches:
        return Answer(json, Text(f"✓ equal: {totals.records:,} records in {totals.rounds} rounds", style="green"))
    names = ", ".join(f"{key.topic}-{key.partition}" for key in sorted(totals.differing))
    text = Text(f"✗ {totals.mismatches} mismatches in {totals.records:,} records: {names}", style="bold red")
    return Answer(json, text, Exit.PARITY_MISMATCH)


def _round_json(link: str, report: ParityReport) -> Mapping[str, Any]:
    fields = report.as_json()
    names = ("equal", "records", "mismatches", "anomalies", "unexamined_buckets", "unnamed_buckets", "examples")
    return {
        "event": "compared",
        "at_ms": now_ms(),
        "link": link,
        **{name: fields[name] for name in names},
        "partitions": [
            {"topic": row.topic, "partition": row.partition, "start": row.start, "end": row.end, "equal": row.equal}
            for row in report.partitions
        ],
        "seconds": report.seconds["total"],
    }


def _round_text(report: ParityReport) -> str:
    at = dt.datetime.fromtimestamp(now_ms() / 1000).strftime("%H:%M:%S")  # noqa: DTZ006 the reader's own clock
    where = f"{at}  {report.records:,} records of {len(report.partitions)} partitions"
    if report.equal:
        return f"{where} equal"
    named = ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items() if count) or "not named"
    partitions = ", ".join(f"{row.topic}-{row.partition}" for row in report.partitions if not row.equal)
    return f"{where}: {report.mismatches} mismatches ({named}) in {partitions}, which is not followed any more"
