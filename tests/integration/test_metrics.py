"""Real processes are scraped while they work: their metrics, their readiness, and the web page beside them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TopicRecord
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.workflow.status.lags import lags_of
from tests.integration.command_line import program
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import bounds, log_bytes, produce, read_all, settings_of, transactions
from tests.integration.router_world import links_gone
from tests.prometheus_text import Exposition, parse


@dataclass
class Watched:
    """A process and the address of its metrics."""

    process: subprocess.Popen[str]
    url: str

    def ready(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of /readyz."""
        try:
            with urllib.request.urlopen(self.url.replace("/metrics", "/readyz"), timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read())

    def scrape(self) -> Exposition:
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return parse(answer.read().decode())


@contextmanager
def engine(run: Migration, kind: str, *more: str) -> Iterator[Watched]:
    command = program("kmigrate", kind, "run", "--metrics", "127.0.0.1:0", *more)
    with subprocess.Popen(
        [*command, "--config", str(run.config), "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert said["event"] == "metrics-listening", said
            if kind == "router":
                assert json.loads(process.stdout.readline())["event"] == "router-listening"
            yield Watched(process, said["url"])
        finally:
            process.terminate()
            assert process.wait(15) == 0


@pytest.fixture
def run(source: KafkaCluster, target: KafkaCluster, tmp_path: Path) -> Migration:
    return Migration(source, target, tmp_path / "run")


def test_what_a_mirror_tells_is_what_librdkafka_counts(
    run: Migration, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    link, plain, ledger = unique_name("link"), unique_name("plain"), unique_name("ledger")
    make_topic(run.source, plain, 3)
    make_topic(run.source, ledger, 1)
    produce(run.source.bootstrap, plain, 10_000, partitions=3)
    transactions(run.source.bootstrap, ledger, 10, name=unique_name("tx"))
    run.does("link", "create", link, "--source", "source", "--target", "target")

    with engine(run, "mirror", "--link", link) as watched:
        run.does("topic", "mirror", plain, ledger, "--link", link)
        _until_equal(run, plain, ledger)
        seen = wait_until(lambda: _caught_up(watched.scrape(), link), 10, "the mirror to say that it is at the end")
        _compare(run, seen, link, plain)
        _compare(run, seen, link, ledger)
        assert seen.value("kmigrate_mirror_lease_held", link=link) == 1
        assert seen.value("kmigrate_link_info", link=link, source="source", target="target") == 1
        assert seen.value("kmigrate_mirror_link_latency_seconds_count", link=link) == 10_000 + 40
        assert _topic(run, plain)["lag_seconds"] == _topic(run, plain)["lag_bytes"] == 0
        _other_pages(watched.url)
        taken = run.cli("mirror", "run", "--link", link, "--metrics", watched.url.split("/")[2])
        assert (taken.code, taken.told["error"]) == (3, "http-port-taken")

    stopped_ms = time.time() * 1000
    produce(run.source.bootstrap, plain, 1_500, partitions=3, first=10_000)
    told = _topic(run, plain)
    assert told["lag"] == 1_500
    assert 1_500 * 10 < told["lag_bytes"] < 1_500 * 150
    behind = time.time() - stopped_ms / 1000
    assert behind / 2 < told["lag_seconds"] < behind + 10
    assert all(p["lag"] == 500 and p["lag_seconds"] > 0 for p in told["partitions"])

    with engine(run, "mirror", "--link", link) as watched:
        _until_equal(run, plain)
        wait_until(lambda: _caught_up(watched.scrape(), link), 10, "the mirror to say that it is at the end")
        told = _topic(run, plain)
        assert (told["lag"], told["lag_bytes"], told["lag_seconds"]) == (0, 0, 0)


def test_a_mirror_that_is_held_back_says_by_what_and_how_far_it_is_behind(
    run: Migration, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    link, topic = unique_name("link"), unique_name("slow")
    make_topic(run.source, topic, 1)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    run.does("link", "throttle", "200kB", "--link", link)
    produce(run.source.bootstrap, topic, 30_000, age_ms=3_600_000)
    with engine(run, "mirror", "--link", link) as watched:
        run.does("topic", "mirror", topic, "--link", link)
        seen = wait_until(
            lambda: (
                (told := watched.scrape()).series("kmigrate_mirror_position", topic=topic)
                and 0 < told.value("kmigrate_mirror_position", topic=topic) < 29_000
                and told
            ),
            20,
            "the copy to be under way",
        )
        behind = seen.value("kmigrate_mirror_lag_records", topic=topic)
        assert behind == 30_000 - seen.value("kmigrate_mirror_position", topic=topic)
        assert 3_590 < seen.value("kmigrate_mirror_lag_seconds", topic=topic) < 3_700
        each = log_bytes(run.source, topic) / 30_000
        assert 0.5 < seen.value("kmigrate_mirror_lag_bytes", topic=topic) / (behind * each) < 1.5
        assert seen.value("kmigrate_mirror_slowed_seconds_total", link=link, by="link-throttle") > 0
        run.does("link", "throttle", "off", "--link", link)
        _until_equal(run, topic)
        run.does("topic", "pause", topic, "--link", link)
        produce(run.source.bootstrap, topic, 70, first=30_000)
        wait_until(
            lambda: watched.scrape().value("kmigrate_mirror_lag_records", topic=topic) == 70,
            15,
            "a paused partition to say that its source goes on",
        )


def test_a_router_tells_of_its_clients(
    run: Migration, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("direct")
    make_topic(run.target, topic, 1)
    port = free_ports(1)[0]
    with engine(run, "router", "--port", str(port), "--name", unique_name("router")) as watched:
        produce(f"127.0.0.1:{port}", topic, 100)
        seen = watched.scrape()
        assert seen.value("kmigrate_router_requests_total", api="produce") >= 1
        assert seen.value("kmigrate_router_forwarded_batches_total") == 0, "nothing of this topic is mirrored"
        assert seen.value("process_cpu_seconds_total") > 0
        assert seen.value("process_resident_memory_bytes") > 10 << 20
        _ready_as_it_is(run, watched, f"127.0.0.1:{port}")


def _ready_as_it_is(run: Migration, watched: Watched, bootstrap: str) -> None:
    """A router without its state log is not ready until the log is read again, and a router that ends is not ready."""
    assert watched.ready() == (
        200,
        {
            "ready": True,
            "closing": False,
            "engines": [{"engine": "router", "link": None, "ready": True, "role": None, "reason": None, "detail": ""}],
        },
    )
    for node in run.target.brokers:
        run.target.pause(node)
    try:
        status, told = wait_until(lambda: (lost := watched.ready())[0] == 503 and lost, 30, "the log to be lost")
        assert (status, told["ready"], told["engines"][0]["reason"]) == (503, False, "state-log-lost"), told
        with urllib.request.urlopen(watched.url.replace("/metrics", "/healthz"), timeout=10) as answer:
            assert answer.status == 200, "the process lives: a restart would help nobody"
    finally:
        for node in run.target.brokers:
            run.target.resume(node)
    wait_until(lambda: watched.ready()[0] == 200, 30, "the log to be read again")
    host, client_port = bootstrap.split(":")
    with socket.create_connection((host, int(client_port))):
        watched.process.terminate()
        status, told = wait_until(lambda: (closing := watched.ready())[0] == 503 and closing, 5, "the router to close")
        assert (told["closing"], told["engines"][0]["reason"]) == (True, "closing")


def test_the_web_page_has_a_process_of_its_own_that_ends_with_the_engines(
    run: Migration, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    link, topic = unique_name("link"), unique_name("shown")
    make_topic(run.source, topic, 2)
    produce(run.source.bootstrap, topic, 500, partitions=2)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    run.does("topic", "mirror", topic, "--link", link, "--no-wait")
    command = [*program("kmigrate", "run", "--http", "127.0.0.1:0", "--log-format", "json"), "--port", "0"]
    log = run.folder / "page.log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            [*command, "--name", unique_name("router"), "--config", str(run.config)], stdout=sink, stderr=sink
        ) as process,
    ):
        try:
            told = wait_until(lambda: _event(log, "page-listening"), 60, "the page to be served")
            url = told["url"]
            page = wait_until(
                lambda: (shown := _status(url, link, topic)) and shown["lag"] == 0 and shown, 40, "the copy"
            )
            assert page["phase"] == "mirroring"
            assert page["attention"] == {"need": "steady", "reason": ""}
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert b"<title>kmigrate</title>" in answer.read()
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            with urllib.request.urlopen(f"{url}metrics", timeout=10) as answer:
                seen = parse(answer.read().decode())
            assert seen.value("kmigrate_status_topic_lag_records", link=link, topic=topic) == 0
            with urllib.request.urlopen(f"{url}api/history", timeout=10) as answer:
                happened = {(each["happened"], each["name"]) for each in json.loads(answer.read())["events"]}
            assert {("link-created", link), ("mirrored", topic)} <= happened
            rebound = urllib.request.Request(url, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="421"):
                urllib.request.urlopen(rebound, timeout=10)
        finally:
            process.kill()
    wait_until(lambda: not _answers(url), 15, "the page's process to end with its killed parent")
    # The mirrors of later tests would wait until the killed router hides each topic that needs fillers.
    asyncio.run(links_gone(run.target, link))
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert all({"time", "level", "component", "link", "message"} <= line.keys() for line in lines)
    assert {"mirror", "router", "controller", "page", "process"} <= {line["component"] for line in lines}
    assert {line["link"] for line in lines if line["component"] == "mirror"} >= {link}


def _event(log: Path, event: str) -> dict[str, Any] | None:
    found = [line for line in log.read_text(encoding="utf-8").splitlines() if f'"event": "{event}"' in line]
    told: dict[str, Any] | None = json.loads(found[0]) if found else None
    return told


def _status(url: str, link: str, topic: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"{url}api/status", timeout=10) as answer:
            topics = json.loads(answer.read())["topics"]
    except urllib.error.HTTPError as refusal:
        if refusal.code != 503:
            raise
        return None
    return next((each for each in topics if (each["link"], each["topic"]) == (link, topic)), None)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}healthz", timeout=10):
            return True
    except OSError:
        return False


def _topic(run: Migration, topic: str) -> dict[str, Any]:
    return next(each for each in run.does("status")["topics"] if each["topic"] == topic)


def _until_equal(run: Migration, *topics: str) -> None:
    for topic in topics:
        wait_until(
            lambda topic=topic: bounds(run.source.bootstrap, topic) == bounds(run.target.bootstrap, topic),  # type: ignore[misc]
            40,
            f"{topic} to be copied",
        )


def _caught_up(seen: Exposition, link: str) -> Exposition | None:
    lags = seen.series("kmigrate_mirror_lag_records", link=link)
    return seen if lags and not any(lags.values()) else None


def _compare(run: Migration, seen: Exposition, link: str, topic: str) -> None:
    wanted = read_all(run.source.bootstrap, topic)
    for partition, (start, end) in bounds(run.source.bootstrap, topic).items():
        of = {"link": link, "topic": topic, "partition": str(partition)}
        records = len(wanted[partition])
        assert seen.value("kmigrate_mirror_records_total", **of) == records
        assert seen.value("kmigrate_mirror_hole_offsets_total", **of) == end - start - records
        assert seen.value("kmigrate_mirror_replication_latency_seconds_count", **of) == records
        assert seen.value("kmigrate_mirror_position", **of) == end
        assert seen.value("kmigrate_mirror_source_end", **of) == end
        assert seen.value("kmigrate_mirror_lag_seconds", **of) == 0
        values = sum(len(record[2] or b"") for record in wanted[partition])
        assert seen.value("kmigrate_mirror_bytes_total", **of) > values
        assert seen.value("kmigrate_mirror_batches_total", form="verbatim", **of) >= 1
        age = time.time() - min(record[4][1] for record in wanted[partition]) / 1000
        assert 0 <= seen.value("kmigrate_mirror_replication_latency_seconds", quantile="1", **of) <= age


def _other_pages(url: str) -> None:
    with urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=10) as answer:
        assert answer.read() == b"ok\n"
    with urllib.request.urlopen(url.replace("/metrics", "/readyz"), timeout=10) as answer:
        (mirror,) = json.loads(answer.read())["engines"]
    assert (mirror["engine"], mirror["ready"], mirror["role"]) == ("mirror", True, "leads")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url.replace("/metrics", "/"), timeout=10)


def test_where_no_mirror_has_spoken_the_next_batch_itself_says_how_far_behind_the_target_is(
    source: KafkaCluster, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("silent")
    make_topic(source, topic, 2)
    produce(source.bootstrap, topic, 400, partitions=2, age_ms=3_600_000)

    async def ask() -> None:
        async with ClusterClient(settings_of("source", source.bootstrap)) as client:
            await client.refresh([topic])
            record = TopicRecord("l", topic, TopicPhase.MIRRORING, 0, partitions=2)
            ends = {(topic, p): LogOffset(0, 200, 0) for p in range(2)}
            at = {(topic, 0): LogOffset(0, 50, 0), (topic, 1): LogOffset(0, 200, 0)}
            lags = await lags_of([record], ends, at, [], client)
        behind, level = lags[(topic, 0)], lags[(topic, 1)]
        assert (level.records, level.bytes, level.seconds) == (0, 0, 0)
        assert behind.records == 150
        assert 3_590 < behind.seconds < 3_700
        assert 150 * 10 < behind.bytes < 150 * 100

    asyncio.run(ask())
