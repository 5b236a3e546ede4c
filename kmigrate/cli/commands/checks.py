"""The parts around a parity check: the job, Spark's settings, and the verified ranges written down afterwards."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kmigrate.cli.base.call import Call
from kmigrate.cli.base.output import Waiting
from kmigrate.cli.commands.compared import ranges_of
from kmigrate.errors import KmigrateError, Refused, UsageError
from kmigrate.model.lifecycle import NOT_COPIED_YET
from kmigrate.model.records import LinkRecord, TopicRecord
from kmigrate.model.security import Bearer, Login
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.verified import Looked, standing
from kmigrate.model.words import advised
from kmigrate.net.login import current_password, current_token
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.report import ParityReport
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.groups.audit import GroupAudit, audit_groups
from kmigrate.workflow.promote.late_findings import LateFound, find_late

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kmigrate.spark.source import KafkaOptions

__all__ = ["LOCAL", "MASTER", "Asked", "Job", "SparkChoice", "job_of", "remember", "session", "sides", "spark_choice"]

MASTER = "local[*]"
_FEW = 1_000_000
"""Maximum offsets of a small check, which ends before Java's second compiler pays off."""
_FOR_FEW: Mapping[str, str] = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True)
class Asked:
    """The topics and the link that a call asks for, and how long the target may take to catch up."""

    topics: list[str] | None
    link: str | None
    timeout: float
    full: bool = False
    reached: bool = False
    """Compare what both sides have now, instead of waiting until the target has all of the source's records."""


@dataclass(frozen=True)
class Job:
    """The ranges that Spark compares, and the topic records from which the ranges were made."""

    link: LinkRecord
    topics: Sequence[TopicRecord]
    ranges: Sequence[TopicRange]
    groups: Sequence[GroupAudit]
    late: Sequence[LateFound] = ()
    """Late writes on the source; late writes lie beyond the ranges."""

    @property
    def anything_new(self) -> bool:
        return any(each.offsets for each in self.ranges)

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.ranges)


@dataclass(frozen=True)
class SparkChoice:
    """The Spark master that compares, and the user's Spark settings beside ours."""

    master: str = MASTER
    conf: Mapping[str, str] = field(default_factory=dict)

    def sized(self, offsets: int) -> SparkChoice:
        """Return the settings for a check of this many offsets: a small local check takes fewer resources."""
        if offsets > _FEW or not self.master.startswith("local"):
            return self
        return SparkChoice(self.master, {**_FOR_FEW, **self.conf})


LOCAL = SparkChoice()


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


async def job_of(call: Call, asked: Asked, waiting: Waiting) -> Job:
    """Return the offsets to compare now, and the positions of promoted groups."""
    async with call.connections() as connections:
        record = verbs.resolve_link(connections.log.state, call.link(asked.link))
        chosen = _chosen(connections, record, asked.topics, refuse_early=not asked.reached)
        source, _ = await connections.source(record)
        state = connections.log.state
        verified = {
            (topic.topic, partition): each
            for topic in chosen
            for partition, each in standing(state.verified(record.name, topic.topic), record, topic).items()
            if not asked.full
        }
        ranges = await ranges_of(connections, source, chosen, verified, asked.timeout, waiting, reached=asked.reached)
        groups = [] if asked.reached else await audit_groups(connections, record, chosen)
        late, _ = await find_late(connections.log.state, source, chosen)
        return Job(record, chosen, ranges, groups, late)


@contextmanager
def session(choice: SparkChoice, waiting: Waiting) -> Iterator[SparkSession]:
    """Start Spark with a Kafka connector: the user's where --conf names a connector, else ours, downloaded once."""
    # PySpark takes a second to import, so only a check that reads something imports PySpark.
    from kmigrate.kafka_jars.jars import JarProgress, ensure_spark_kafka_jars
    from kmigrate.kafka_jars.java import find_java
    from kmigrate.spark.session import brings_connector, spark_session

    def on_jars(progress: JarProgress) -> None:
        waiting.say(f"fetching {progress.label}: {progress.done} of {progress.total}")

    jars = () if brings_connector(choice.conf) else ensure_spark_kafka_jars(on_jars)
    waiting.say("session")
    home = find_java().home
    with spark_session(master=choice.master, jars=jars, java_home=home, conf=choice.conf) as spark:
        yield spark


@contextmanager
def sides(call: Call, job: Job) -> Iterator[tuple[KafkaOptions, KafkaOptions]]:
    """Yield the options by which Spark reaches both clusters.

    Tokens that a command made stand in a private folder until the context ends.
    """
    with tempfile.TemporaryDirectory(prefix="kmigrate-tokens-") as folder:
        names = job.link.source.name, job.link.target.name
        first, second = (_options(call.settings.cluster(name), Path(folder) / name) for name in names)
        yield first, second


def _options(settings: ClusterSettings, token_file: Path) -> KafkaOptions:
    from kmigrate.spark.source import KafkaOptions

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


def remember(call: Call, job: Job, report: ParityReport) -> None:
    """Record the equal ranges in the state log; a failure to record does not change the result of this check."""
    looked: dict[str, dict[int, Looked]] = {record.topic: {} for record in job.topics}
    for each in report.partitions:
        looked[each.topic][each.partition] = Looked(each.start, each.end, each.equal)

    async def write() -> None:
        async with call.connections() as connections:
            await verbs.remember_verified(connections, job.link, job.topics, looked)

    try:
        asyncio.run(write())
    except KmigrateError as error:
        call.out.note(f"not remembered, the next check reads all of it again: {error.what}")


def _chosen(
    connections: Connections, link: LinkRecord, topics: list[str] | None, *, refuse_early: bool
) -> list[TopicRecord]:
    records = connections.log.state.topics(link.name)
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
    early = [r.topic for r in records if r.phase in NOT_COPIED_YET]
    if not refuse_early:
        return [record for record in records if record.topic not in early]
    if early or not records:
        raise Refused(
            "nothing-to-verify",
            f"not mirrored yet: {', '.join(early)}" if early else f"link {link.name} mirrors no topic",
            still_true="nothing was read",
            next_step="kmigrate status --watch" if early else advised("topic mirror", link.name, "TOPIC..."),
        )
    return records
