"""A whole migration for tests: two clusters, engines as processes, live clients, the CLI, and the judge.

Every verb goes through the command line in a process of its own, as an operator's verb does (`command_line`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.sandbox.checker import Verdict, check
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.history import read_history
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.processes import ProcessIdentity, identify
from kmigrate.sandbox.topics import create_topics
from kmigrate.sandbox.traffic import Traffic
from tests.clusters import running_clusters, source_and_target
from tests.integration.command_line import Call, Client, Engine, in_a_test, program
from tests.integration.positions import commit_positions

_PATIENCE_S = 120.0
"""Time for whatever happens within seconds on an idle machine; no test waits for this time to pass."""

PATIENT = "[promote]\nfence_timeout_s = 30.0\n"
"""Settings with which a promote is not given up because the machine is busy."""
_BUSY = 3
"""A busy machine gets this many times the seconds that `wait_until` is given."""


@dataclass
class Cli:
    """Exit code and outputs of a call of the command line."""

    code: int
    told: Any
    stderr: str


class Clients(Traffic):
    """Live traffic with processes that start in the shortest time."""

    def _spawn(self, launch: Path, log: Path) -> ProcessIdentity:
        if not in_a_test():
            return super()._spawn(launch, log)
        pid = Client(launch, log).pid
        return identify(pid) or ProcessIdentity(pid, "ended at once")


@dataclass
class Migration:
    """A migration on two clusters. Engines are named processes that can be killed and started again."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    settings: str = PATIENT
    engines: dict[str, Engine | subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    workers: int = 1
    """Number of processes per router."""
    traffic: Traffic | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "kmigrate.toml"
        self.config.write_text(
            f'[clusters.source]\n"bootstrap.servers" = "{self.source.bootstrap}"\n'
            f'[clusters.target]\n"bootstrap.servers" = "{self.target.bootstrap}"\n'
            f'[defaults]\ntarget = "target"\nlink = "blue"\n{self.settings}',
            encoding="utf-8",
        )

    # Processes

    def start(self, *names: str, by: Sequence[str] = (), awaited: bool = True) -> None:
        """Start engines; if `awaited`, wait until routers listen. `by` is another program that takes the words.

        A name is mirror, controller, router, router-NAME, or run for all three.
        """
        for name in names:
            kind, _, label = name.partition("-")
            verb = ("run",) if kind == "run" else (kind, "run")
            command = [*verb, "--config", str(self.config), "--json"]
            if kind in ("router", "run"):
                if name not in self.ports:
                    self.ports[name] = free_ports(1)[0]
                command += ["--port", str(self.ports[name]), "--name", label or "router"]
                command += ["--workers", str(self.workers)] if self.workers > 1 and kind == "router" else []
            log = self.folder / f"{name}.log"
            before = log.stat().st_size if log.exists() else 0
            self.engines[name] = _started(by, command, log)
            if kind in ("router", "run") and awaited:
                wait_until(
                    lambda log=log, before=before: b"router-listening" in log.read_bytes()[before:],  # type: ignore[misc]
                    _PATIENCE_S,
                    f"{name} to listen: {log}",
                )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.engines[name].send_signal(number)
        if number == signal.SIGKILL:
            self.engines[name].wait()

    def stop(self) -> None:
        if self.traffic is not None:
            self.traffic.kill("all")
        for engine in self.engines.values():
            if engine.poll() is None:
                engine.send_signal(signal.SIGCONT)
                engine.terminate()
        for engine in self.engines.values():
            try:
                engine.wait(15)
            except subprocess.TimeoutExpired:
                engine.kill()
                engine.wait()

    @property
    def routers(self) -> str:
        """Bootstrap addresses of all routers, as clients get them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    # Verbs

    def cli(self, *words: str, timeout: float = _PATIENCE_S) -> Cli:
        done = self._call(words).end(timeout)
        if done is None:
            if words == ("status",):
                pytest.fail(f"kmigrate status had not ended after {timeout:g} s\n{self.logs()}")
            found = self.cli("status", timeout=15)
            pytest.fail(f"kmigrate {' '.join(words)} had not ended after {timeout:g} s: {found}\n{self.logs()}")
        code, out, err = done
        try:
            told = json.loads(out)
        except ValueError:
            told = out
        return Cli(code, told, err)

    def _call(self, words: Sequence[str]) -> Call:
        return Call([*words, "--config", str(self.config), "--json"])

    def does(self, *words: str, timeout: float = _PATIENCE_S) -> Any:
        """Run a verb that must succeed."""
        result = self.cli(*words, timeout=timeout)
        assert result.code == 0, (
            f"kmigrate {' '.join(words)}: {result.code} {result.told} {result.stderr}\n{self.logs()}"
        )
        return result.told

    def topic_status(self, topic: str) -> dict[str, Any]:
        """Return what `kmigrate status` shows of a topic."""
        return self._of_topic(topic, "status")

    def topic_record(self, topic: str) -> dict[str, Any]:
        """Return a topic's record, as `kmigrate topic list` shows it."""
        return self._of_topic(topic, "topic", "list")

    def _of_topic(self, topic: str, *verb: str) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = [each for each in self.does(*verb)["topics"] if each["topic"] == topic]
        return found

    @contextmanager
    def doing(self, *words: str) -> Iterator[None]:
        """Run a verb during the block; the verb must succeed in the end."""
        call = self._call(words)
        try:
            yield
        finally:
            done = call.end(_PATIENCE_S)
        assert done is not None and done[0] == 0, f"kmigrate {' '.join(words)}: {done}\n{self.logs()}"

    def again(self, *words: str, during: Callable[[], None]) -> None:
        """Run a verb while `during` disturbs the verb; a verb that gave up with a reason must succeed when repeated."""
        call = self._call(words)
        try:
            during()
        finally:
            done = call.end(_PATIENCE_S)
        assert done is not None, f"kmigrate {' '.join(words)} had not ended after {_PATIENCE_S:g} s\n{self.logs()}"
        code, out, err = done
        if code == 0:
            return
        told = json.loads(out)
        assert told["still_true"], f"kmigrate {' '.join(words)}: {out} {err}\n{self.logs()}"
        self.does(*words)

    def logs(self) -> str:
        """Return the last lines of every engine's log, for a failing test."""
        return "\n".join(
            f"--- {path.name}: " + path.read_text(errors="replace")[-1500:]
            for path in sorted(self.folder.glob("*.log"))
        )

    # Clients

    def make_topic(self, name: str, partitions: int, replicas: int = 1, config: dict[str, str] | None = None) -> None:
        """Make a topic on the source, and wait until each broker there knows the topic with all its leaders.

        A consumer that subscribes to a topic at a broker which does not know the topic yet gets an error.
        """
        create_topics(self.source.client(), [NewTopic(name, partitions, replicas, config=config or {})])
        for address in self.source.bootstrap.split(","):
            broker = AdminClient({**self.source.client(), "bootstrap.servers": address})

            def is_known(broker: AdminClient = broker) -> bool:
                known = broker.list_topics(timeout=10).topics.get(name)
                return known is not None and sum(each.leader >= 0 for each in known.partitions.values()) == partitions

            wait_until(is_known, 30, f"topic {name} to be known at {address}")

    def make_group(self, name: str, *topics: str) -> None:
        """Make a group on the source that begins at the topics' starts.

        A group that never committed has nothing to carry over.
        """
        commit_positions(self.source.client(), name, [TopicPartition(topic, 0, 0) for topic in topics])

    def run_clients(self, specs: Iterable[ClientSpec], at: str = "") -> Traffic:
        """Start live clients, at the source unless `at` names another address."""
        self.traffic = Clients.create(self.folder / "traffic", specs, tied=True)
        self.traffic.start(at or self.source.bootstrap)
        return self.traffic

    def writers_go_on(self, records: int) -> None:
        """Wait until each writer among the clients has that many more records acknowledged."""
        before = self.acknowledged()
        wait_until(
            lambda: all(count >= before[name] + records for name, count in self.acknowledged().items()),
            _PATIENCE_S,
            lambda: f"every writer to go on: {before}, {self.acknowledged()}\n{self.logs()}",
        )

    def consumers_go_on(self) -> None:
        """Wait until each consumer among the clients has committed once more."""
        before = self.commits()
        wait_until(
            lambda: all(count > before[name] for name, count in self.commits().items()),
            _PATIENCE_S,
            lambda: f"every consumer to commit: {before}, {self.commits()}\n{self.logs()}",
        )

    def commits(self) -> dict[str, int]:
        """Return the number of commits of each consumer among the clients."""
        assert self.traffic is not None
        names = [client.name for client in self.traffic.clients() if isinstance(client.spec, ConsumerSpec)]
        histories = {name: self.traffic.folder.glob(f"{name}.*.jsonl") for name in names}
        return {
            name: sum(path.read_bytes().count(b'"type":"ok","f":"commit"') for path in paths)
            for name, paths in histories.items()
        }

    def acknowledged(self) -> dict[str, int]:
        """Return the number of acknowledged records of each writer among the clients."""
        assert self.traffic is not None
        names = [client.name for client in self.traffic.clients() if not isinstance(client.spec, ConsumerSpec)]
        told = {name: [path.read_bytes() for path in self.traffic.folder.glob(f"{name}.*.jsonl")] for name in names}
        return {name: sum(each.count(b'"type":"ok","f":"send"') for each in told[name]) for name in names}

    def judge(self, *topics: str) -> Verdict:
        """Stop the clients cleanly, and merge their histories.

        Return the judge's comparison of the topics' history with the records on the target.
        """
        assert self.traffic is not None
        self.traffic.stop()
        history = self.folder / "history.jsonl"
        self.traffic.write_history(history)
        final = (record for topic in topics for record in read_topic(self.target.bootstrap, topic))
        return check(read_history(history), final, topics=topics)


def _started(by: Sequence[str], words: list[str], log: Path) -> Engine | subprocess.Popen[bytes]:
    if in_a_test() and not by:
        return Engine(words, log)
    with log.open("ab") as sink:
        return subprocess.Popen(program(*(by or ["kmigrate"]), *words), stdout=sink, stderr=sink)


@contextmanager
def fresh_migration(
    root: Path,
    settings: str = PATIENT,
    brokers: int = 1,
    source_version: str = SOURCE_VERSION,
    config: dict[str, str] | None = None,
    target_version: str = TARGET_VERSION,
) -> Iterator[Migration]:
    """A migration on two clusters of its own, with a broker each by default, because a state log has a fixed name."""
    specs = source_and_target(brokers, config, source_version, target_version)
    with running_clusters(root, *specs) as (source, target):
        run = Migration(source, target, root / "run", settings)
        try:
            yield run
        finally:
            run.stop()


def assert_clean(run: Migration, *topics: str, but_for: str | None = None) -> None:
    """Check that the verdict is clean; clients may have got errors that end with `but_for`."""
    verdict = run.judge(*topics)
    assert verdict.acked > 1000
    errors = verdict.findings["client_errors"]
    if but_for is not None and all(text.endswith(but_for) for text in errors.examples):
        left = replace(errors, count=errors.count - len(errors.examples))
        verdict = replace(verdict, findings={**verdict.findings, "client_errors": left})
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"


def wait_until(true: Callable[[], Any], seconds: float, what: str | Callable[[], str]) -> Any:
    """Wait for a true value, and return the value.

    `seconds` is plenty for an idle machine, and a busy machine gets more. `what` may be a function that describes the
    state at the deadline.
    """
    deadline = time.monotonic() + _BUSY * seconds
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < deadline, (
            f"waited {_BUSY * seconds} s for {what if isinstance(what, str) else what()}"
        )
        time.sleep(0.05)


def usual_clients(topic: str, group: str, rate: float = 100.0) -> list[ClientSpec]:
    """Return the specs of two families of producers, and of a group with two families."""
    return [
        ProducerSpec("p-rd", "librdkafka", topic, rate),
        ProducerSpec("p-aio", "aiokafka", topic, rate),
        ConsumerSpec("c-rd", "librdkafka", group, (topic,)),
        # An aiokafka client whose first metadata answer is cut off joins with no partitions. Such a client looks again
        # only when its metadata is old: after five minutes by default, also with brokers alone.
        ConsumerSpec("c-aio", "aiokafka", group, (topic,), {"metadata_max_age_ms": 3000}),
    ]
