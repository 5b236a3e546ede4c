"""`kmigrate verify`: the copy, proved by Spark over the ranges that both clusters have in full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from kmigrate.cli.call import Call, command
from kmigrate.cli.compared import ranges_of
from kmigrate.cli.exits import Exit
from kmigrate.cli.options import Link, Timeout, Topics
from kmigrate.cli.output import Answer, Waiting
from kmigrate.cli.report_files import ReportFiles
from kmigrate.cli.views.tables import audits_view, parity_view
from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import LinkRecord, TopicRecord
from kmigrate.model.security import Login
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.verified import Looked, standing
from kmigrate.net.clock import now_ms
from kmigrate.net.login import current_password
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.report import ParityReport, nothing_read
from kmigrate.workflow import verbs
from kmigrate.workflow.audit import GroupAudit, audit_groups
from kmigrate.workflow.estate import Estate

if TYPE_CHECKING:
    from kmigrate.spark.source import KafkaOptions

__all__ = ["MASTER", "app", "compare_new", "verify"]

app = typer.Typer()

MASTER = "local[*]"


@dataclass(frozen=True)
class _Job:
    """What Spark is to compare, and where; the topics' records are those that the ranges were made by."""

    link: LinkRecord
    topics: Sequence[TopicRecord]
    ranges: Sequence[TopicRange]
    groups: Sequence[GroupAudit]

    @property
    def anything_new(self) -> bool:
        return any(each.offsets for each in self.ranges)


@command(app, "verify")
def verify(
    call: Call,
    topics: Topics = None,
    link: Link = None,
    timeout: Timeout = 60.0,
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = MASTER,
    full: Annotated[
        bool, typer.Option("--full", help="Read everything, also what an earlier check found equal.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML for CI.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Write every finding; must not exist yet.")
    ] = None,
) -> Answer:
    """Compare source and target with Spark.

    Record by record, all mirrored topics or the named ones. A promoted topic is compared up to its barrier, a live
    one up to the source's last stable offset now, once the target has passed it (--timeout). What is equal is
    remembered: the next check of the same copy reads only what is new, unless it is --full. Positions of promoted
    groups are looked at, too.
    """
    files = ReportFiles(*(Path(each) if each else None for each in (html, junit, parquet)))
    files.check()
    job, report = _checked(call, topics, link, timeout, master, full=full, parquet=files.parquet)
    written = files.write(job.link, report, now_ms())
    sound = all(audit.sound for audit in job.groups)
    json = {"link": job.link.name, **report.as_json(), "groups": _groups_as_json(job.groups), "files": written}
    view = Group(audits_view(job.groups), parity_view(report)) if job.groups else parity_view(report)
    return Answer(json, view, Exit.OK if report.equal and sound else Exit.PARITY_MISMATCH)


def _groups_as_json(audits: Sequence[GroupAudit]) -> list[dict[str, Any]]:
    return [{**asdict(audit), "sound": audit.sound} for audit in audits]


def compare_new(call: Call, topics: list[str], link: str, timeout: float, master: str) -> ParityReport:
    """What `verify` says of these topics of a link, reading only what no check has found equal yet."""
    return _checked(call, topics, link, timeout, master)[1]


def _checked(
    call: Call,
    topics: list[str] | None,
    link: str | None,
    timeout: float,
    master: str,
    *,
    full: bool = False,
    parquet: Path | None = None,
) -> tuple[_Job, ParityReport]:
    with call.out.waiting("reading the ranges") as waiting:
        job = asyncio.run(_job(call, topics, link, timeout, waiting, full=full))
        if job.anything_new or parquet is not None:
            report = _compare(call, job, master, parquet, waiting)
        else:
            report = nothing_read(job.ranges)
        _remember(call, job, report)
    return job, report


def _compare(call: Call, job: _Job, master: str, parquet: Path | None, waiting: Waiting) -> ParityReport:
    # PySpark takes a second to import: only this command pays for it.
    from kmigrate.sandbox.jars import JarProgress, ensure_spark_kafka_jars
    from kmigrate.sandbox.java import find_java
    from kmigrate.spark.parity import verify as compare

    def on_jars(progress: JarProgress) -> None:
        waiting.say(f"fetching {progress.label}: {progress.done} of {progress.total}")

    def on_progress(stage: str, done: int, total: int) -> None:
        waiting.say(f"{stage}: {done} of {total} tasks" if total else stage)

    java = find_java()
    return compare(
        job.ranges,
        _options(call.settings.cluster(job.link.source.name)),
        _options(call.settings.cluster(job.link.target.name)),
        master=master,
        jars=ensure_spark_kafka_jars(on_jars),
        java_home=java.home,
        on_progress=on_progress,
        parquet=parquet,
    )


def _options(settings: ClusterSettings) -> KafkaOptions:
    from kmigrate.spark.source import KafkaOptions

    security = dict(settings.security.librdkafka())
    if isinstance(settings.security.sasl, Login):
        security["sasl.password"] = current_password(settings.security.sasl)
    return KafkaOptions.from_librdkafka(
        {**settings.admin, **security, "bootstrap.servers": settings.bootstrap_servers}
    )


def _remember(call: Call, job: _Job, report: ParityReport) -> None:
    """Write down what is equal; the answer of this check does not hang on it."""
    looked: dict[str, dict[int, Looked]] = {record.topic: {} for record in job.topics}
    for each in report.partitions:
        looked[each.topic][each.partition] = Looked(each.start, each.end, each.equal)

    async def write() -> None:
        async with call.estate() as estate:
            await verbs.remember_verified(estate, job.link, job.topics, looked)

    try:
        asyncio.run(write())
    except KmigrateError as error:
        call.out.note(f"not remembered, the next check reads all of it again: {error.what}")


async def _job(
    call: Call, topics: list[str] | None, link: str | None, timeout: float, waiting: Waiting, *, full: bool
) -> _Job:
    async with call.estate() as estate:
        record = verbs.resolve_link(estate.log.state, call.link(link))
        chosen = _chosen(estate, record, topics)
        source, _ = await estate.source(record)
        state = estate.log.state
        verified = {
            (topic.topic, partition): each
            for topic in chosen
            for partition, each in standing(state.verified(record.name, topic.topic), record, topic).items()
            if not full
        }
        ranges = await ranges_of(estate, source, chosen, verified, timeout, waiting)
        return _Job(record, chosen, ranges, await audit_groups(estate, record, chosen))


def _chosen(estate: Estate, link: LinkRecord, topics: list[str] | None) -> list[TopicRecord]:
    records = estate.log.state.topics(link.name)
    if topics:
        known = {record.topic: record for record in records}
        missing = [topic for topic in topics if topic not in known]
        if missing:
            raise Refused(
                "not-mirrored",
                f"link {link.name} does not mirror {', '.join(missing)}",
                still_true="nothing was read",
                next_step="kmigrate topic list",
            )
        records = [known[topic] for topic in dict.fromkeys(topics)]
    early = [r.topic for r in records if r.phase in (TopicPhase.INITIALISING, TopicPhase.ALIGNING)]
    if early or not records:
        raise Refused(
            "nothing-to-verify",
            f"not mirrored yet: {', '.join(early)}" if early else f"link {link.name} mirrors no topic",
            still_true="nothing was read",
            next_step="kmigrate status --watch" if early else "kmigrate topic mirror TOPIC...",
        )
    return records
