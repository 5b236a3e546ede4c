"""The comparison of a job by Spark: the session, the options of both clusters, and a repeated reading of cut ranges."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kmigrate.errors import Failed, UsageError
from kmigrate.model.security import Bearer, Login
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import monotonic
from kmigrate.net.login import current_password, current_token
from kmigrate.parity.report import ParityReport, nothing_read
from kmigrate.verify.job import Caller, Job, Selection, find_job, remember
from kmigrate.verify.report_files import not_written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kmigrate.spark.options import KafkaOptions

__all__ = ["MASTER", "SparkChoice", "check", "check_in_thread", "options_of", "session", "show_stages", "spark_choice"]

MASTER = "local[*]"
_FEW = 1_000_000
"""Maximum offsets of a small check, which ends before Java's second compiler pays off."""
_JAVA = "spark.driver.extraJavaOptions"
_FOR_FEW: Mapping[str, str] = {_JAVA: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_FOR_MANY: Mapping[str, str] = {_JAVA: "-XX:+UseParallelGC -XX:NewRatio=4"}
"""Java's default collector sets whole regions aside for each fetch, because in a heap of this size a fetch is huge.

A record is garbage once read, so the part of the heap for new objects is always filled: a fifth of the heap makes the
process smaller than Java's third, and the check as fast.
"""
_TRIES = 4
"""Maximum tries of a check whose ranges retention cuts; each try reads again from the logs' new beginnings."""


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """The Spark master that compares, and the user's Spark settings beside ours."""

    master: str = MASTER
    conf: Mapping[str, str] = field(default_factory=dict)

    def sized(self, offsets: int) -> SparkChoice:
        """Return the settings for a check of this many offsets on this machine."""
        if not self.master.startswith("local"):
            return self
        return SparkChoice(self.master, {**(_FOR_FEW if offsets <= _FEW else _FOR_MANY), **self.conf})


def spark_choice(master: str, conf: Sequence[str]) -> SparkChoice:
    """Return the flags --master and --conf as a value."""
    pairs = {}
    for each in conf:
        name, found, value = each.partition("=")
        if not found or not name.startswith("spark."):
            raise UsageError(
                "bad-spark-conf",
                f"--conf {each} is no setting of Spark",
                still_true="nothing was read",
                next_step="give --conf spark.NAME=VALUE, for instance --conf spark.driver.memory=4g",
            )
        pairs[name] = value
    return SparkChoice(master, pairs)


async def check_in_thread(caller: Caller, selection: Selection) -> ParityReport:
    """Check with a local Spark in a thread; a cancelled call ends Spark, because Ctrl-C does not reach the thread."""
    tries = itertools.count(1)
    while True:
        job = await find_job(caller, selection)
        work = asyncio.get_running_loop().run_in_executor(None, _report_of, caller, job, SparkChoice(), None)
        try:
            return await asyncio.shield(work)
        except Failed as error:
            _raise_unless_cut(error, next(tries), caller)
        except asyncio.CancelledError:
            caller.note("ending Spark")
            while not work.done():
                _end_spark_jobs()  # repeated, because Spark may just be starting
                await asyncio.wait([work], timeout=0.5)
            work.exception()  # Spark's own error is of no use after the cancellation
            raise


def _end_spark_jobs() -> None:
    """Cancel Spark's jobs, if Spark compares in this process; the thread that waits for Spark then ends, too."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        context.cancelAllJobs()


def check(
    caller: Caller, selection: Selection, choice: SparkChoice, parquet: Path | None = None
) -> tuple[Job, ParityReport]:
    """Compare what the selection names, and record equal ranges; `parquet` is a folder for every finding."""
    tries = itertools.count(1)
    while True:
        job = asyncio.run(find_job(caller, selection))
        try:
            return job, _report_of(caller, job, choice, parquet)
        except Failed as error:
            _raise_unless_cut(error, next(tries), caller)


def _raise_unless_cut(error: Failed, tried: int, caller: Caller) -> None:
    """Raise the given error, unless retention cut the ranges meanwhile and tries are left."""
    if error.ref != "parity-range-gone" or tried >= _TRIES:
        raise error
    caller.say("retention has deleted what was to be compared: reading the ranges again")


def _report_of(caller: Caller, job: Job, choice: SparkChoice, parquet: Path | None) -> ParityReport:
    to_read = job.offsets or parquet is not None
    report = _compare(caller, job, choice, parquet) if to_read else nothing_read(job.ranges)
    asyncio.run(remember(caller, job, report))
    return report


def _compare(caller: Caller, job: Job, choice: SparkChoice, parquet: Path | None) -> ParityReport:
    began = monotonic()
    with options_of(caller, job) as (source, target), session(choice.sized(job.offsets), caller.say) as spark:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from kmigrate.spark.parity import compare_clusters, write_findings

        started = monotonic() - began
        report = compare_clusters(
            spark, job.ranges, source, target, on_progress=show_stages(caller.say), session_seconds=started
        )
        if parquet is not None:
            try:
                write_findings(spark, report.findings, parquet)
            except (PySparkException, Py4JError) as error:
                raise not_written(parquet, str(error).strip().partition("\n")[0], report) from error
        return report


def show_stages(say: Callable[[str], None]) -> Callable[[str, int, int], None]:
    """Return a function that shows how many tasks of a stage are done."""
    return lambda stage, done, total: say(f"{stage}: {done} of {total} tasks" if total else stage)


@contextmanager
def session(choice: SparkChoice, say: Callable[[str], None]) -> Iterator[SparkSession]:
    """Start Spark with a Kafka connector: the user's where --conf names a connector, else ours, downloaded once."""
    # PySpark takes a second to import, so only a check that reads something imports PySpark.
    from kmigrate.kafka_jars.jars import JarProgress, ensure_spark_kafka_jars
    from kmigrate.kafka_jars.java import find_java
    from kmigrate.spark.session import brings_connector, spark_session

    def on_jars(progress: JarProgress) -> None:
        say(f"fetching {progress.label}: {progress.done} of {progress.total}")

    jars = () if brings_connector(choice.conf) else ensure_spark_kafka_jars(on_jars)
    say("session")
    home = find_java().home
    with spark_session(master=choice.master, jars=jars, java_home=home, conf=choice.conf) as spark:
        yield spark


@contextmanager
def options_of(caller: Caller, job: Job) -> Iterator[tuple[KafkaOptions, KafkaOptions]]:
    """Yield the options by which Spark reaches both clusters; commands' tokens stand in a private folder meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kmigrate-tokens-") as folder:
        source, target = (
            _options(caller.cluster(name), Path(folder) / name) for name in (job.link.source.name, job.link.target.name)
        )
        yield source, target


def _options(settings: ClusterSettings, token_file: Path) -> KafkaOptions:
    from kmigrate.spark.options import KafkaOptions

    security = dict(settings.security.librdkafka())
    sasl = settings.security.sasl
    if isinstance(sasl, Login):
        security["sasl.password"] = current_password(sasl)
    given = {**settings.admin, **security, "bootstrap.servers": settings.bootstrap_servers}
    if not isinstance(sasl, Bearer):
        return KafkaOptions.from_librdkafka(given)
    token = current_token(sasl)
    if not sasl.token_file:
        token_file.touch(mode=0o600)
        token_file.write_text(token, encoding="ascii")
    return KafkaOptions.from_librdkafka(given, token=token, token_file=Path(sasl.token_file or token_file))
