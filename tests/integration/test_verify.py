"""`kmigrate verify` on a live link: the command line's report of a comparison, and the compared offsets."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kmigrate.cli.app import main
from kmigrate.kafka_jars.jars import ensure_spark_kafka_jars
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.command_line import program
from tests.integration.migration import Cli, Migration, wait_until
from tests.integration.mirror_world import bounds, produce, read_all, transactions
from tests.integration.spark_cluster import spark_cluster
from tests.json_output import check_output


@contextmanager
def mirror_of(run: Migration, link: str) -> Iterator[None]:
    """Run a mirror of only this link until the block ends."""
    with (run.folder / "mirror.log").open("ab") as sink:
        process = subprocess.Popen(
            program("kmigrate", "mirror", "run", "--link", link, "--config", str(run.config)),
            stdout=sink,
            stderr=sink,
        )
    try:
        # Verbs wait four seconds for a process that was just started, and on a busy machine Python takes that long to
        # start.
        wait_until(lambda: link in (run.folder / "mirror.log").read_text(), 60, "the mirror's start")
        yield
    finally:
        process.terminate()
        assert process.wait(15) == 0


def here(run: Migration, *words: str) -> Cli:
    """Run a verb in this process, which saves the start of another process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([*words, "--config", str(run.config), "--json"])
    check_output(words, out.getvalue())
    return Cli(code, json.loads(out.getvalue()), err.getvalue())


@pytest.fixture
def warm(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make checks in this process use the running Spark; test_verify_follow covers the command line's own Spark."""

    @contextmanager
    def session(choice: object, say: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("kmigrate.verify.compare.session", session)


def rows(told: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    return [row for row in told["by_partition"] if row["topic"] == topic]


def topics_of(run: Migration) -> dict[str, dict[str, Any]]:
    return {each["topic"]: each for each in here(run, "status").told["topics"]}


def failed_cases(junit: Path) -> list[str | None]:
    return [case.get("name") for case in ET.parse(junit).iter("testcase") if case.find("failure") is not None]


@pytest.mark.usefixtures("warm")
def test_topics_of_both_kinds_are_equal_and_a_foreign_write_is_named_with_both_offsets(
    tmp_path: Path,
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: Callable[..., None],
    unique_name: Callable[[str], str],
) -> None:
    run = Migration(source, target, tmp_path / "run")
    link, plain, mapped = unique_name("link"), unique_name("plain"), unique_name("mapped")
    for topic in (plain, mapped):
        make_topic(source, topic, 2)
        produce(source.bootstrap, topic, 400, partitions=2)
        transactions(source.bootstrap, topic, 30, name=unique_name("tx"), partitions=2)
        produce(source.bootstrap, topic, 100, partitions=2, first=400)
    make_topic(target, mapped, 2)
    produce(target.bootstrap, mapped, 60, partitions=2, first=9_000)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    with mirror_of(run, link):
        run.does("topic", "mirror", plain, "--link", link)
        run.does("topic", "mirror", mapped, "--offsets", "mapped", "--link", link)
        page, junit = tmp_path / "report.html", tmp_path / "report.xml"
        told = here(run, "verify", "--link", link, "--html", str(page), "--junit", str(junit)).told
    assert (told["equal"], told["topics"], told["records"]) == (True, 2, 2 * (500 + 24 * 5))
    assert [(r["target_start"], r["target_records"]) for r in rows(told, mapped)] == [(30, 310), (30, 310)]
    assert told["files"] == {"html": str(page), "junit": str(junit)}
    assert "✓ equal" in page.read_text(encoding="utf-8")
    assert failed_cases(junit) == []
    ends = bounds(source.bootstrap, mapped)[0][1], bounds(target.bootstrap, mapped)[0][1]
    others = bounds(source.bootstrap, mapped)[1][1]
    told_before = sum(end for _, end in bounds(source.bootstrap, plain).values())
    assert ends[0] > ends[1], "the markers were left out"
    status = topics_of(run)
    assert status[mapped]["unverified"] == status[plain]["unverified"] == 0
    produce(source.bootstrap, mapped, 20, first=500)
    write_again(source, target, mapped, 20, 7)  # This takes the place of the mirror, which is stopped.
    wait_until(lambda: bounds(target.bootstrap, mapped)[0][1] == ends[1] + 20, 10, "the foreign records")

    findings = tmp_path / "findings"
    told = here(run, "verify", "--link", link, "--junit", str(junit), "--parquet", str(findings))

    assert told.code == 4
    assert told.told["files"] == {"junit": str(junit), "parquet": str(findings)}
    assert list(findings.glob("*.parquet"))
    assert failed_cases(junit) == [f"{mapped}-0"]
    assert told.told["records"] == 20, "only what is new was read"
    assert told.told["examples"] == [
        {
            "kind": "altered",
            "topic": mapped,
            "source": {"partition": 0, "offset": ends[0] + 7},
            "target": {"partition": 0, "offset": ends[1] + 7},
            "parts": ["value"],
        },
        {
            "kind": "lost",
            "topic": mapped,
            "source": {"partition": 0, "offset": ends[0] + 19},
            "target": None,
        },
        {
            "kind": "duplicated",
            "topic": mapped,
            "source": {"partition": 0, "offset": 3},
            "target": {"partition": 0, "offset": ends[1] + 19},
        },
    ]
    status = topics_of(run)
    assert [p["verified_to"] for p in status[mapped]["partitions"]] == [ends[0], others]
    assert (status[mapped]["unverified"], status[plain]["unverified"]) == (20, 0)
    again = here(run, "verify", plain, "--link", link).told
    assert (again["records"], again["verified_before"]) == (0, told_before), "nothing new, so nothing was started"
    assert again["seconds"] == {"total": 0.0}
    refused = here(run, "promote", mapped, "--link", link, "--verify", "--no-wait", "--yes")
    assert (refused.code, refused.told["topics"], refused.told["parity"]["mismatches"]) == (4, [], 3)
    assert topics_of(run)[mapped]["phase"] == "mirroring", "nothing was promoted"
    delete_below(target, plain, 40)
    told = here(run, "verify", plain, "--link", link)
    assert (told.code, told.told["mismatches"], told.told["anomalies"]["lost"]) == (4, 40, 40), "found equal before"
    produce(target.bootstrap, plain, 1, partitions=2)
    told = here(run, "verify", plain, "--link", link)
    assert (told.code, told.told["error"]) == (4, "target-ahead"), "the source is idle and has no record there"


def delete_below(cluster: KafkaCluster, topic: str, offset: int) -> None:
    """Delete the beginning of partition 0, as somebody does who mistakes the copy for another topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    [moved] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    assert moved.result(20).low_watermark == offset


def write_again(source: KafkaCluster, target: KafkaCluster, topic: str, count: int, changed: int) -> None:
    """Write the source's last records of partition 0 to the target, as a foreign producer.

    A record is changed, and the last record is replaced by a copy of an old record.
    """
    producer = Producer({"bootstrap.servers": target.bootstrap})
    records = read_all(source.bootstrap, topic)[0]
    for number, (_, key, value, headers, (_, stamp)) in enumerate([*records[-count:-1], records[3]]):
        written = b"another" if number == changed else value
        producer.produce(topic, written, key, 0, timestamp=stamp, headers=headers)  # type: ignore[arg-type]
    assert producer.flush(20) == 0


@pytest.mark.soak
def test_a_cluster_of_two_workers_says_the_same_with_jars_of_its_own(
    tmp_path: Path,
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: Callable[..., None],
    unique_name: Callable[[str], str],
) -> None:
    run = Migration(source, target, tmp_path / "run")
    link, topic = unique_name("link"), unique_name("topic")
    make_topic(source, topic, 4)
    produce(source.bootstrap, topic, 4_000, partitions=4)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    with mirror_of(run, link):
        run.does("topic", "mirror", topic, "--link", link)
        wait_until(lambda: bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic), 60, "the copy")
    with spark_cluster(tmp_path / "spark", workers=2, cores=1) as cluster:
        jars = "spark.jars=" + ",".join(map(str, ensure_spark_kafka_jars()))
        spark = ("--master", cluster.master, "--conf", jars, "--conf", "spark.executor.memory=512m")
        told = run.does("verify", "--link", link, *spark)
        assert (told["equal"], told["records"]) == (True, 4_000)
        produce(source.bootstrap, topic, 20, first=4_000)
        write_again(source, target, topic, 20, 7)
        code = run.cli("verify", "--link", link, *spark)
        assert (code.code, code.told["anomalies"]["altered"], code.told["records"]) == (4, 1, 20)
        assert all(cluster.says(f"worker{number}", "Asked to launch executor") for number in range(2))
