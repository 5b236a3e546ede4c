"""Real clusters for every test that asks for clusters, and the summary of the run.

`source` and `target` have a single broker each, the sides of `clusters3` three brokers each. All are started once a
session, when first asked for, and stopped after the last test that needs them. Without these clusters tests fail: a
suite that skips its brokers proves nothing.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.ports import port_range
from kmigrate.sandbox.topics import create_topics
from tests.again import AGAIN, PROVOKED_BEFORE, SUMMARY
from tests.clusters import pause_all, running_clusters, shared, source_and_target, start_once, stop_shared
from tests.emptied import KEPT
from tests.provoked import PROVOKED, faults_of_all_tests, record


@dataclass(frozen=True)
class Pair:
    """A source and a target cluster, both ready."""

    source: KafkaCluster
    target: KafkaCluster


FORGETFUL = {"producer.id.expiration.check.interval.ms": "1000"}
"""The source looks for producers whose newest record is older than a day (V6) each second, not each ten minutes."""


RACKS = {
    "broker.rack": "rack-{node}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""Each of three source brokers stands in a rack of its own, and sends readers that name a rack to the broker there."""


def _run_pair(brokers: int) -> Iterator[Pair]:
    root = Path(tempfile.mkdtemp(prefix="kmigrate-test-"))
    try:
        source, target = source_and_target(brokers)
        with (
            running_clusters(
                root, replace(source, config=FORGETFUL | (RACKS if brokers > 1 else {})), target
            ) as clusters,
            shared(clusters),
        ):
            yield Pair(*clusters)
    finally:
        shutil.rmtree(root, ignore_errors=True)


# An example's duration depends on how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

# Brokers that live for a minute or stand idle are cheaper without Java's second compiler. The start takes a third less
# processor time, the rest half. Benchmarks run brokers with Java's defaults.
os.environ.setdefault("KMIGRATE_SANDBOX_JVM", "-XX:TieredStopAtLevel=1")
# Spark, too: half of a small check's CPU was the second compiler, and a quarter of the CPU among a million records.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

# Each of the parallel test processes takes its brokers' ports from a range of its own, so no two ports collide.
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = port_range()
_share = len(_ports) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_first = _ports[_worker * _share]
os.environ["KMIGRATE_SANDBOX_PORTS"] = f"{_first}-{_first + _share - 1}"

_TURN = pytest.StashKey[int]()
_LAST_TURN = 3
_SHARED = ("pair", "clusters", "_clusters3")
"""Fixtures with brokers that many tests share."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share brokers one after the other, in any order of tests: idle brokers take CPU from every test.

    The secure pair has the first turn, then follow the pair that most tests share, tests that share no brokers, and the
    clusters of three brokers.

    Among parallel test processes, a single process runs all tests that need brokers, from the start, except tests that
    another process runs aside. Two tests of live clients would wait for each other's processor time, and some tests
    promise a time.
    """
    on_clusters = {item.path for item in items if "clusters" in _fixtures(item)}
    for item in items:
        names = _fixtures(item)
        assert sum(name in names for name in _SHARED) < 2, f"{item.nodeid} needs brokers of two turns"
        turn = 1 if item.path in on_clusters else 2
        item.stash[_TURN] = _LAST_TURN if "_clusters3" in names else 0 if "pair" in names else turn
    items.sort(key=lambda item: item.stash[_TURN])
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (*_LONG_WORK, _work(item.nodeid)).index(_work(item.nodeid)))


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


_LONG_WORK = ("brokers", "aside")
_ASIDE = (
    "aligning",
    "bulk",
    "cli_sandbox",
    "group_follow_fleet",
    "kept_clusters",
    "marker_windows",
    "mirror_attacks",
    "mirror_batches",
    "mirror_fa",
    "mirror_racks",
    "mirror_soak",
    "odd_clusters",
    "odd_logs",
    "offset_map",
    "old_sources",
    "parity",
    "router_large_reads",
    "router_leaders",
    "router_standstill",
    "sandbox",
    "security",
    "slow_follower",
    "spark",
    "state_log",
    "stray_records",
    "upkeep",
    "verify",
)
"""Tests that may take any time: of Spark, of logs that exist before the copy, of rights, of brokers alone.

All tests on clusters of three brokers are here, so a single process starts these clusters.
"""
_FILES_ASIDE = tuple(f"tests/integration/test_{name}" for name in _ASIDE)


def _work(nodeid: str) -> str:
    """Return the piece of work that a test belongs to; a single process runs all of a piece."""
    if nodeid.startswith(_FILES_ASIDE):
        return "aside"
    return "brokers" if nodeid.startswith("tests/integration/") else nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a parallel test process make room for others once only unit tests are left to the process."""
    if "PYTEST_XDIST_WORKER" in os.environ and _work(item.nodeid) not in _LONG_WORK:
        _make_room()
    else:
        _begin_turn(item.stash[_TURN])


@functools.cache
def _begin_turn(turn: int) -> None:
    """Stop the brokers that only tests of earlier turns need."""
    stop_shared()
    if turn == _LAST_TURN:
        KEPT.stop_idle()


@functools.cache
def _make_room() -> None:
    """Pause the brokers of this process, and run unit tests in the gaps that tests with brokers leave."""
    pause_all()
    os.nice(10)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import all test modules in a parallel process, each process from another module on.

    The first import compiles a module. Processes that all began at the same module would all compile every module.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and _is_whole(session.config):
        root = session.config.rootpath
        paths = sorted(root.glob("tests/**/test_*.py"))
        first = len(paths) * _worker // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for path in paths[first:] + paths[:first]:
            # Collection imports a module that fails here once more, and tells why.
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(path.relative_to(root).with_suffix("").parts))


class _BrokersTogether(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
    """A scheduler that hands out test files singly, and tests that need brokers as two pieces of work."""

    def _split_scope(self, nodeid: str) -> str:
        return _work(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _BrokersTogether(config, log)


def pytest_configure() -> None:
    record()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the references that a parallel test process has seen."""
    PROVOKED.update(getattr(node, "workeroutput", {}).get("provoked", ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hold the registry of references against a run of all tests; such a run fails where a reference is missing."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["provoked"] = sorted(PROVOKED)
        return
    before = config.rootpath / PROVOKED_BEFORE
    if AGAIN in os.environ:
        PROVOKED.update(json.loads(before.read_text(encoding="utf-8")))
    elif not _is_whole(config):
        return
    if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        before.parent.mkdir(parents=True, exist_ok=True)
        before.write_text(json.dumps(sorted(PROVOKED)), encoding="utf-8")
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        faults = faults_of_all_tests(PROVOKED)
        print("".join(f"\n{each}" for each in faults))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if faults else session.exitstatus


def _is_whole(config: pytest.Config) -> bool:
    """Return whether this is a run of all tests of every day."""
    option = config.option
    failed_alone = getattr(option, "lf", False)  # absent without pytest's cache
    given = (option.keyword, option.deselect, failed_alone, option.collectonly, option.markexpr != "not soak")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(given)


@pytest.fixture(scope="session", autouse=True)
def _clusters_are_kept() -> Iterator[None]:
    """Emptied clusters wait for the next test that needs a plain cluster of its own."""
    with KEPT.kept():
        yield


@pytest.fixture(scope="session")
def clusters() -> Iterator[Pair]:
    """Yield clusters of one broker a side, shared by all tests: use your own topics, groups, transactional ids."""
    yield from _run_pair(1)


@pytest.fixture(scope="session")
def _clusters3() -> Iterator[Pair]:
    yield from _run_pair(3)


@pytest.fixture
def clusters3(_clusters3: Pair) -> Iterator[Pair]:
    """Yield clusters of three brokers a side; after a test that kills or pauses a broker all brokers run again."""
    yield _clusters3
    for cluster in (_clusters3.source, _clusters3.target):
        for node, broker in cluster.brokers.items():
            if broker.alive:
                cluster.resume(node)
            else:
                cluster.restart(node)
        cluster.wait_ready()


@pytest.fixture(scope="session")
def source(clusters: Pair) -> KafkaCluster:
    return clusters.source


@pytest.fixture(scope="session")
def target(clusters: Pair) -> KafkaCluster:
    return clusters.target


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """Yield `own_cluster(version=…, brokers=…, config={…})`, which makes a cluster for this test alone."""
    started: list[KafkaCluster] = []

    def start(version: str = TARGET_VERSION, brokers: int = 1, config: dict[str, str] | None = None) -> KafkaCluster:
        sides = {SOURCE_VERSION: "source", TARGET_VERSION: "target"}
        name = sides.get(version, "")
        if not name or name in {each.spec.name for each in started}:
            name = f"own{len(started)}"
        cluster = KEPT.take(ClusterSpec(name, version, brokers, config or {}), tmp_path)
        started.append(cluster)
        start_once(cluster)
        cluster.wait_ready()
        return cluster

    yield start
    for cluster in started:
        KEPT.give_back(cluster)


@pytest.fixture
def source_admin(source: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": source.bootstrap})


@pytest.fixture
def target_admin(target: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": target.bootstrap})


_numbers = itertools.count()
_session = uuid4().hex[:6]


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return `unique_name("orders")`, which makes a topic, group or id that no other test of this run has."""

    def name(stem: str = "t") -> str:
        return f"{stem}-{_session}-{next(_numbers)}"

    return name


@pytest.fixture(scope="session")
def make_topic() -> Callable[..., None]:
    """Return `make_topic(cluster, name, partitions=1, replicas=1, config={…})`, which waits for all leaders."""
    return _make_topic


def _make_topic(
    cluster: KafkaCluster,
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    config: dict[str, str] | None = None,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    create_topics(cluster.client(), [NewTopic(name, partitions, replicas, config=config or {})])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = admin.list_topics(topic=name, timeout=10).topics[name]
        if (
            found.error is None
            and len(found.partitions) == partitions
            and all(partition.leader > 0 for partition in found.partitions.values())
        ):
            return
        time.sleep(0.05)
    raise AssertionError(f"topic {name} has no leaders after 30 s")


@pytest.fixture(scope="session")
def set_topic_config() -> Callable[[KafkaCluster, str, dict[str, str]], None]:
    """Return a function that changes a topic's configuration in place, and leaves other keys alone."""

    def change(cluster: KafkaCluster, topic: str, config: dict[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(30)

    return change


_OUTCOMES = ("passed", "failed", "skipped")
_started = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write build/test/summary.json; an error of a fixture counts as a failure.

    A second run of failed tests leaves the summary of the first run alone.
    """
    if AGAIN in os.environ:
        return
    counts = {outcome: len(terminalreporter.getreports(outcome)) for outcome in _OUTCOMES}
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    counts["failed"] = len(failed)
    summary = {
        **counts,
        "seconds": round(time.monotonic() - _started, 1),
        "whole": _is_whole(config),
        "failures": {each.nodeid: _message(each) for each in failed},
    }
    path = config.rootpath / SUMMARY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary) + "\n", encoding="utf-8")


def _message(failed: pytest.TestReport) -> str:
    """Return pytest's lines about the error itself, without the test's source."""
    lines = failed.longreprtext.splitlines()
    told = [line[1:].strip() for line in lines if line.startswith("E ") and "Full diff: (-: missing in" not in line]
    return "\n".join(told) or lines[-1]
