"""`kmigrate verify`: proof of the copy by Spark, over the ranges that both clusters hold in full."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import Link, Timeout, Topics
from kmigrate.cli.base.output import Answer, Waiting
from kmigrate.cli.commands.checks import (
    LOCAL,
    MASTER,
    Asked,
    Job,
    SparkChoice,
    job_of,
    remember,
    session,
    sides,
    spark_choice,
)
from kmigrate.cli.commands.follow import follow as go_on
from kmigrate.cli.commands.report_files import ReportFiles, not_written
from kmigrate.cli.views.tables import audits_view, late_view, parity_view
from kmigrate.errors import Failed, UsageError
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.parity.report import ParityReport, nothing_read
from kmigrate.workflow.groups.audit import GroupAudit

__all__ = ["app", "compare_new", "verify"]

app = typer.Typer()

_TRIES = 4
"""Maximum tries of a check whose ranges retention cuts meanwhile.

Each try reads the ranges again, from the logs' new beginnings.
"""


@command(app, "verify")
def verify(
    call: Call,
    topics: Topics = None,
    link: Link = None,
    timeout: Timeout = 60.0,
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = MASTER,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark (may be repeated).")
    ] = None,
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
        return go_on(call, Asked(topics, link, timeout, reached=True), choice, interval)
    files.check()
    job, report = _checked(call, Asked(topics, link, timeout, full), choice, parquet=files.parquet)
    written = files.write(job.link, report, now_ms())
    sound = all(audit.sound for audit in job.groups) and not any(late.missing for late in job.late)
    late = [each.as_json() for each in job.late]
    json = {"link": job.link.name, **report.as_json(), "groups": _groups_as_json(job.groups), "late": late}
    json["files"] = written
    view = Group(*([audits_view(job.groups)] if job.groups else []), parity_view(report), late_view(job.late))
    return Answer(json, view, Exit.OK if report.equal and sound else Exit.PARITY_MISMATCH)


def _groups_as_json(audits: Sequence[GroupAudit]) -> list[dict[str, Any]]:
    return [{**asdict(audit), "sound": audit.sound} for audit in audits]


async def compare_new(call: Call, topics: list[str], link: str, timeout: float) -> ParityReport:
    """Return the result of `verify` for these topics of a link, reading only what no check has found equal yet."""
    with call.out.waiting("reading the ranges") as waiting:
        tries = itertools.count(1)
        while True:
            job = await job_of(call, Asked(topics, link, timeout), waiting)
            try:
                return await _beside(call, job, waiting)
            except Failed as error:
                _refuse_unless_cut(error, next(tries), waiting)


async def _beside(call: Call, job: Job, waiting: Waiting) -> ParityReport:
    """Run the comparison in a thread, and end Spark when the call is cancelled.

    Ctrl-C does not reach the thread: without ending Spark the call would last until the check is complete.
    """
    work = asyncio.get_running_loop().run_in_executor(None, _report_of, call, job, LOCAL, None, waiting)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        call.out.note("ending Spark")
        while not work.done():
            _end_comparison()  # repeated, because Spark may just be starting
            await asyncio.wait([work], timeout=0.5)
        work.exception()  # Spark's own error is of no use after the cancellation
        raise


def _end_comparison() -> None:
    """Cancel Spark's jobs, if Spark compares in this process; the thread that waits for Spark then ends, too."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        context.cancelAllJobs()


def _checked(call: Call, asked: Asked, choice: SparkChoice, *, parquet: Path | None = None) -> tuple[Job, ParityReport]:
    with call.out.waiting("reading the ranges") as waiting:
        tries = itertools.count(1)
        while True:
            job = asyncio.run(job_of(call, asked, waiting))
            try:
                return job, _report_of(call, job, choice, parquet, waiting)
            except Failed as error:
                _refuse_unless_cut(error, next(tries), waiting)


def _refuse_unless_cut(error: Failed, tried: int, waiting: Waiting) -> None:
    """Raise the given error, unless retention cut the ranges meanwhile and tries are left."""
    if error.ref != "parity-range-gone" or tried >= _TRIES:
        raise error
    waiting.say("retention has deleted what was to be compared: reading the ranges again")


def _report_of(call: Call, job: Job, choice: SparkChoice, parquet: Path | None, waiting: Waiting) -> ParityReport:
    if job.anything_new or parquet is not None:
        report = _compare(call, job, choice, parquet, waiting)
    else:
        report = nothing_read(job.ranges)
    remember(call, job, report)
    return report


def _compare(call: Call, job: Job, choice: SparkChoice, parquet: Path | None, waiting: Waiting) -> ParityReport:
    def on_progress(stage: str, done: int, total: int) -> None:
        waiting.say(f"{stage}: {done} of {total} tasks" if total else stage)

    began = monotonic()
    with sides(call, job) as (source, target), session(choice.sized(job.offsets), waiting) as spark:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from kmigrate.spark.findings import write_findings
        from kmigrate.spark.parity import verify_with

        started = monotonic() - began
        report = verify_with(spark, job.ranges, source, target, on_progress=on_progress, session_seconds=started)
        if parquet is not None:
            try:
                write_findings(spark, report.findings, parquet)
            except (PySparkException, Py4JError) as error:
                raise not_written(parquet, str(error).strip().partition("\n")[0], report) from error
        return report
