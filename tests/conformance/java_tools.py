"""Kafka's own verifiable tools. Each scene is judged by what the tools themselves say they wrote and read.

The scenes are short forms of Apache's system tests with these tools. A scene takes a topic that is mirrored when the
producer starts and promoted in the middle. On a plain broker the same scene runs without a promote.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from kmigrate.kafka_jars.jars import ensure_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.topics import create_topics
from tests.conformance.suite import BROKER_VERSION, Hidden, Outcome, Place, Results, execute

__all__ = ["JavaTools", "read_events"]

_LIMIT_S = 120
_RECORDS = 20_000
_COPIED = 3_000
_THROUGHPUT = 2_000
_PARTITIONS = 4

Written = dict[int, list[tuple[int, str]]]
"""Offset and value by partition, in the order of the offsets."""


class SceneFailed(Exception):
    """A scene did not end as it must."""


class JavaTools:
    name = "java"
    package = "org.apache.kafka:kafka-tools"
    version = BROKER_VERSION
    settings: Mapping[str, str] = {
        "records": str(_RECORDS),
        "copied in transactions": str(2 * _COPIED),
        "records a second while a topic is promoted": str(_THROUGHPUT),
    }
    broker: Mapping[str, str] = {}
    hidden: Mapping[str, Hidden] = {}

    def __init__(self) -> None:
        self._count = 0

    @property
    def floor(self) -> int:
        return len(_SCENES)

    def prepare(self) -> None:
        find_java()
        ensure_jars("kafka-tools", self.version)

    def run(self, place: Place, only: Collection[str] = ()) -> Results:
        found: Results = {}
        for name, scene in _SCENES.items():
            if only and name not in only:
                continue
            self._count += 1  # a scene that is repeated has topics of its own
            try:
                scene(Tools(place, f"{name}-{self._count}"))
                found[name] = Outcome.PASSED
            except SceneFailed as failed:
                found[name] = Outcome.FAILED
                with place.log.open("a", encoding="utf-8") as log:
                    log.write(f"{name}: {failed}\n")
        return found


class Tools:
    """The tools at an address, for a scene with a name of its own."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self._jars = ensure_jars("kafka-tools", BROKER_VERSION)

    def _command(self, tool: str, *words: str) -> list[str]:
        java = str(find_java().executable)
        flags = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return [java, *flags, "-cp", f"{self._jars}/*", f"org.apache.kafka.tools.{tool}", *words]

    def tool(self, tool: str, *words: str) -> str:
        """Run a tool to its end and return its output."""
        said = execute(self._command(tool, *words), self.place.folder, self.place.log, seconds=_LIMIT_S)
        if said.code != 0:
            raise SceneFailed(f"{tool} ended with {said.code}: {said.output[-1000:]}")
        return said.output

    def topic(self, name: str) -> None:
        """Create a topic before it is written.

        A broker takes any first sequence on a new partition (B3). So an idempotent producer is out of order for good if
        its first batch met no leader yet and its second batch did. The same happens on a plain broker.
        """
        try:
            create_topics({"bootstrap.servers": self.place.bootstrap}, [NewTopic(name, _PARTITIONS, 1)])
        except KafkaException as error:
            raise SceneFailed(f"topic {name}: {error}") from error

    def properties(self, name: str, **settings: str) -> str:
        path = self.place.folder / f"{name}.properties"
        path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()), "utf-8")
        return str(path)

    def _producer(self, topic: str, count: int, throughput: int) -> list[str]:
        return [
            "--bootstrap-server", self.place.bootstrap, "--topic", topic, "--max-messages", str(count),
            "--throughput", str(throughput), "--acks", "-1", "--repeating-keys", "100",
            "--command-config", self.properties("idempotent", enable_idempotence="true", retries="1000000"),
        ]  # fmt: skip

    def produce(self, topic: str, count: int, throughput: int = -1) -> Written:
        return acknowledged(self.tool("VerifiableProducer", *self._producer(topic, count, throughput)), count)

    @contextlib.contextmanager
    def producing(self, topic: str, count: int, throughput: int) -> Iterator[Producing]:
        command = self._command("VerifiableProducer", *self._producer(topic, count, throughput))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            late = threading.Timer(_LIMIT_S, process.kill)
            late.start()
            try:
                yield Producing(process, count)
            finally:
                late.cancel()
                process.kill()

    def consume(self, topic: str, count: int, protocol: str, isolation: str = "read_uncommitted") -> Written:
        said = self.tool(
            "VerifiableConsumer", "--bootstrap-server", self.place.bootstrap, "--topic", topic, "--verbose",
            "--group-id", f"{self.name}-{protocol}", "--group-protocol", protocol, "--max-messages", str(count),
            "--reset-policy", "earliest", "--command-config", self.properties("reader", isolation_level=isolation),
        )  # fmt: skip
        return records(said, "record_data")


class Producing:
    """A running VerifiableProducer, with a wait for the records that it has written."""

    def __init__(self, process: subprocess.Popen[str], count: int) -> None:
        assert process.stdout is not None
        self._lines = process.stdout
        self._process = process
        self._count = count
        self._said: list[str] = []

    def until(self, count: int) -> None:
        """Read on until another `count` records are acknowledged."""
        while count:
            line = self._lines.readline()
            if not line:
                raise SceneFailed(f"the producer ended early: {''.join(self._said)[-1000:]}")
            self._said.append(line)
            count -= "producer_send_success" in line

    def finish(self) -> Written:
        self._said.extend(self._lines)
        if self._process.wait() != 0:
            raise SceneFailed(f"the producer ended with {self._process.returncode}: {''.join(self._said)[-1000:]}")
        return acknowledged("".join(self._said), self._count)


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a tool, a JSON object on each line. Other lines are the tool's log."""
    events = []
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    return events


def records(text: str, kind: str) -> Written:
    found: Written = {}
    for event in read_events(text):
        if event.get("name") == kind:
            found.setdefault(event["partition"], []).append((event["offset"], event["value"]))
    return {partition: sorted(written) for partition, written in found.items()}


def acknowledged(text: str, count: int) -> Written:
    """Return the stored records of a producer. Each value up to `count` must be there once, and none refused."""
    refused = [event for event in read_events(text) if event.get("name") == "producer_send_error"]
    written = records(text, "producer_send_success")
    values = Counter(int(value) for all_of in written.values() for _, value in all_of)
    if refused or values != Counter(range(count)):
        raise SceneFailed(f"{len(refused)} refused, {values.total()} of {count} acknowledged: {refused[:3]}")
    return written


def same(written: Written, read: Written) -> None:
    if written != read:
        sizes = [{p: len(each) for p, each in sorted(side.items())} for side in (written, read)]
        raise SceneFailed(f"what was read is not what was written: {sizes[1]} of {sizes[0]} records by partition")


def produce_then_consume(tools: Tools, protocol: str) -> None:
    tools.topic(tools.name)
    written = tools.produce(tools.name, _RECORDS)
    same(written, tools.consume(tools.name, _RECORDS, protocol))


def copy_in_transactions(tools: Tools) -> None:
    """Run two copiers with random aborts, each with its own input partition. Each record must be committed once."""
    source, out = f"{tools.name}-in", f"{tools.name}-out"
    tools.topic(source)
    tools.topic(out)
    written = tools.produce(source, 4 * _COPIED)
    total = 0
    for partition in (0, 1):
        total += len(written[partition])
        tools.tool(
            "TransactionalMessageCopier", "--broker-list", tools.place.bootstrap, "--input-topic", source,
            "--input-partition", str(partition), "--output-topic", out, "--transactional-id", f"{out}-{partition}",
            "--transaction-size", "400", "--transaction-timeout", "40000", "--consumer-group", f"{out}-group",
            "--max-messages", str(len(written[partition])), "--use-group-metadata", "--enable-random-aborts",
        )  # fmt: skip
    copied = tools.consume(out, total, "CLASSIC", "read_committed")
    expected = Counter(value for partition in (0, 1) for _, value in written[partition])
    if Counter(value for each in copied.values() for _, value in each) != expected:
        raise SceneFailed(f"not each of the {total} records was committed once")


def performance(tools: Tools) -> None:
    tools.topic(tools.name)
    told = tools.tool(
        "ProducerPerformance", "--topic", tools.name, "--num-records", str(_RECORDS), "--record-size", "500",
        "--throughput", "-1", "--bootstrap-server", tools.place.bootstrap,
    )  # fmt: skip
    if f"{_RECORDS} records sent" not in told:
        raise SceneFailed(told[-500:])
    told = tools.tool(
        "ConsumerPerformance", "--bootstrap-server", tools.place.bootstrap, "--topic", tools.name,
        "--num-records", str(_RECORDS), "--group", tools.name, "--timeout", "60000", "--hide-header",
    )  # fmt: skip
    read = re.findall(r"^\d[^,]*(?:,[^,]+){3},\s*(\d+)(?:,[^,]+)+$", told, re.MULTILINE)
    if read != [str(_RECORDS)]:
        raise SceneFailed(f"read {read}: {told[-500:]}")


def end_to_end(tools: Tools) -> None:
    tools.tool(
        "EndToEndLatency", "--bootstrap-server", tools.place.bootstrap, "--topic", tools.name, "--num-records", "500",
        "--producer-acks", "all", "--record-size", "100",
    )  # fmt: skip


def compatibility(tools: Tools) -> None:
    """Run the compatibility test over all of its APIs, with what the tool expects of a broker of today."""
    supported = (
        "offsets-for-times", "cluster-id", "create-topics", "describe-acls", "describe-configs",
        "idempotent-producer",
    )  # fmt: skip
    flags = [word for each in supported for word in (f"--{each}-supported", "true")]
    tools.tool(
        "ClientCompatibilityTest", "--bootstrap-server", tools.place.bootstrap, "--topic", tools.name,
        "--num-cluster-nodes", "1", "--expect-record-too-large-exception", "false", *flags,
    )  # fmt: skip


def promote_in_the_middle(tools: Tools) -> None:
    tools.place.promotion.mirror(tools.name, 3)
    count = 12 * _THROUGHPUT
    with tools.producing(tools.name, count, _THROUGHPUT) as producer:
        producer.until(count // 6)
        done: list[BaseException | None] = []

        def promote() -> None:
            try:
                tools.place.promotion.promote(tools.name)
                done.append(None)
            except BaseException as failed:  # reported where the scene waits for the promote
                done.append(failed)

        thread = threading.Thread(target=promote)
        thread.start()
        written = producer.finish()
        thread.join(_LIMIT_S)
    if done != [None]:
        raise SceneFailed(f"the promote: {done or 'still under way'}")
    same(written, tools.consume(tools.name, count, "CLASSIC"))


_SCENES: dict[str, Callable[[Tools], None]] = {
    "producer_then_classic_consumer": lambda tools: produce_then_consume(tools, "CLASSIC"),
    "producer_then_consumer_of_the_new_protocol": lambda tools: produce_then_consume(tools, "CONSUMER"),
    "copied_in_transactions_with_random_aborts": copy_in_transactions,
    "performance_tools": performance,
    "end_to_end_latency": end_to_end,
    "client_compatibility": compatibility,
    "producer_through_a_promote": promote_in_the_middle,
}
