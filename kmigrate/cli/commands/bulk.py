"""`kmigrate topic mirror --engine`: the copy by Spark, from the plan to the hand-over to the mirror processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Waiting
from kmigrate.cli.base.words import Text
from kmigrate.cli.process.engine_settings import mirror_settings
from kmigrate.cli.views.bulk import progress_text, ranges_view, rounds_view
from kmigrate.cluster.client import EARLIEST, LATEST
from kmigrate.errors import Refused, UsageError
from kmigrate.extras import VERIFY
from kmigrate.kafka_jars.java import find_java
from kmigrate.mirror.bulk.ranges import Choice, CopyRange, Key, cautions, choose
from kmigrate.mirror.bulk.remaining import left_to_copy
from kmigrate.mirror.upkeep.activation import remembers_long, request_limit
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import CopyEngine, LinkRecord, TopicRecord
from kmigrate.model.sharing import by_spark
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.status.lags import copied_up_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kmigrate.spark.rounds import Round

__all__ = ["BulkOptions", "BulkPlan", "copy_by_spark", "look_at_bulk"]

_STARTS = {"earliest": EARLIEST, "latest": LATEST}
_SPECULATION = "spark.speculation"


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The options of a call that are about the copy engine."""

    engine: str
    master: str
    conf: Mapping[str, str]
    throttle: int
    continuous: bool

    @classmethod
    def given(
        cls, engine: str, master: str, conf: Sequence[str] | None, throttle: int, *, continuous: bool, no_wait: bool
    ) -> BulkOptions:
        if engine not in ("daemon", "spark", "auto"):
            raise UsageError(
                "bad-engine", f"--engine {engine}: no such engine", next_step="expected: daemon, spark or auto"
            )
        if no_wait and engine != "daemon":
            raise UsageError(
                "spark-needs-waiting",
                "--no-wait: with Spark this very process drives the copy",
                next_step="leave out --no-wait, or copy by the mirror processes: --engine daemon",
            )
        if engine == "daemon" and (conf or throttle or continuous):
            raise UsageError(
                "only-with-spark",
                "--conf, --throttle and --continuous are about Spark's tasks",
                next_step="add --engine spark; the mirror processes' limit is kmigrate link throttle",
            )
        if engine == "spark":
            VERIFY.need("kmigrate topic mirror --engine spark")
        settings: dict[str, str] = {}
        for each in conf or ():
            key, equals, value = each.partition("=")
            if not key or not equals:
                raise UsageError("bad-conf", f"--conf {each}: not a setting", next_step="expected: KEY=VALUE")
            settings[key] = value
        return cls(engine, master, settings, throttle, continuous)


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """The ranges left to copy, and the engine that copies these ranges."""

    choice: Choice
    ranges: Sequence[CopyRange]

    @property
    def one_owner(self) -> bool:
        """True if some range must not be copied by two tasks at once, so that Spark's speculation is turned off."""
        return bool(cautions(self.ranges))

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.choice.engine,
            "why": self.choice.why,
            "speculation": "off" if self.one_owner else "as Spark is set",
            "ranges": [asdict(each) for each in self.ranges],
        }

    def view(self) -> RenderableType:
        return Group(Text(f"engine {self.choice.engine}: {self.choice.why}"), ranges_view(self.ranges))


async def look_at_bulk(
    connections: Connections, link: LinkRecord, topics: Sequence[str], options: BulkOptions, *, start: str, offsets: str
) -> BulkPlan:
    """Return the ranges of topics, mirrored already or not, that are left to copy, and the engine to copy with."""
    source, _ = await connections.source(link)
    records = [record for topic in topics if (record := connections.log.state.topic(link.name, topic)) is not None]
    aligned = {record.topic: record for record in records if record.starts}
    remembers = link.copy is None or await remembers_long(connections.target, connections.target_admin)
    starts = _starts(record for record in aligned.values() if not record.mapped)
    compacted = {record.topic for record in records if record.compacted}
    ranges = await left_to_copy(source, starts, connections.target, compacted=compacted, pipelining=remembers)
    mapped = [record for record in aligned.values() if record.mapped]
    positions = {(each.topic, p): at for each in mapped for p, at in (await copied_up_to(connections, each)).items()}
    ranges += await left_to_copy(source, positions, compacted=compacted, pipelining=remembers)
    new = [topic for topic in topics if topic not in aligned]
    if new:
        seen = (await source.refresh(new)).topics
        keys = [(topic, partition) for topic in new if topic in seen for partition in seen[topic].partitions]
        at = _STARTS[start] if start in _STARTS else int(start)
        fields = await source.list_offsets(dict.fromkeys(keys, at))
        first = {key: each.offset for key, each in fields.items() if each.offset >= 0}
        ranges += await left_to_copy(source, first, pipelining=remembers)
    if options.engine != "auto":
        return BulkPlan(Choice(CopyEngine(options.engine), "as asked for"), ranges)
    any_mapped = offsets == "mapped" or any(record.mapped for record in records)
    missing = _missing()
    return BulkPlan(
        choose(ranges, mapped=any_mapped, missing=missing, remote=not options.master.startswith("local")), ranges
    )


def _starts(records: Iterable[TopicRecord]) -> dict[Key, int]:
    return {(record.topic, partition): first for record in records for partition, first in record.starts.items()}


def _missing() -> str:
    try:
        VERIFY.need("a bulk copy by Spark")
        find_java()
    except Refused as refused:
        return refused.what
    return ""


async def copy_by_spark(
    call: Call, connections: Connections, link: LinkRecord, topics: Sequence[str], plan: BulkPlan, options: BulkOptions
) -> tuple[dict[str, Any], RenderableType, Exit]:
    """Give the topics to Spark, copy until little is left, and hand them to the mirror processes."""
    # PySpark takes a second to import, so only this command imports PySpark.
    from kmigrate.mirror.bulk.task import BulkJob
    from kmigrate.spark.rounds import BulkProgress, BulkRun

    await (await verbs.set_engine(connections, link.name, topics, CopyEngine.SPARK)).carry_out()
    source, _ = await connections.source(link)
    settings_of = call.settings.cluster
    job = BulkJob(
        link.name,
        settings_of(link.source.name),
        settings_of(link.target.name),
        mirror_settings(call.settings),
        await remembers_long(connections.target, connections.target_admin),
        await request_limit(connections.target, connections.target_admin),
    )
    with call.out.waiting("starting Spark") as waiting:

        def say(progress: BulkProgress) -> None:
            waiting.say(progress_text(progress))

        async with _session(options, waiting, one_owner=plan.one_owner) as spark:
            run = BulkRun(
                spark,
                connections.log,
                source,
                connections.target,
                job,
                topics,
                throttle=options.throttle,
                on_progress=say,
            )
            try:
                rounds = await run.run(continuous=options.continuous)
            except asyncio.CancelledError:
                call.out.note(f"{', '.join(topics)}: stays with Spark; repeat, or hand over with --engine daemon")
                raise
            left = await run.left([r for r in _now(connections, link, topics) if by_spark(r)])
    await (await verbs.set_engine(connections, link.name, topics, CopyEngine.DAEMON)).carry_out()
    problems = [problem for each in rounds for problem in each.problems]
    fields = {
        **plan.as_json(),
        "rounds": [_round_as_json(each) for each in rounds],
        "problems": [{"topic": p.topic, "partition": p.partition, "problem": p.problem} for p in problems],
        "handed_over": {"offsets_left": sum(each.offsets for each in left), "to": CopyEngine.DAEMON},
    }
    return fields, Group(plan.view(), rounds_view(rounds, left)), Exit.FAILED if problems else Exit.OK


def _now(connections: Connections, link: LinkRecord, topics: Sequence[str]) -> list[TopicRecord]:
    found = (connections.log.state.topic(link.name, topic) for topic in topics)
    return [record for record in found if record is not None and record.phase is TopicPhase.MIRRORING]


def _round_as_json(each: Round) -> dict[str, Any]:
    return {
        "tasks": each.tasks,
        "partitions": each.partitions,
        "offsets": each.offsets,
        "bytes": sum(copied.size for copied in each.copied),
        "seconds": round(each.seconds, 3),
    }


@asynccontextmanager
async def _session(options: BulkOptions, waiting: Waiting, *, one_owner: bool) -> AsyncIterator[SparkSession]:
    """Yield a Spark session; a thread takes the seconds of start and end: the event loop must follow the state log."""
    from kmigrate.spark.bulk import executor_settings
    from kmigrate.spark.session import spark_session

    conf = {**executor_settings(options.master), **options.conf}
    if one_owner:
        conf[_SPECULATION] = "false"
    made = spark_session(master=options.master, java_home=find_java().home, conf=conf, connector=False)
    spark = await asyncio.to_thread(made.__enter__)
    waiting.say("Spark has started")
    try:
        yield spark
    finally:
        await asyncio.shield(asyncio.to_thread(made.__exit__, None, None, None))
