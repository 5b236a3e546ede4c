"""A migration beside somebody who writes anything into kmigrate's topics and sends anything to every listener.

    python -m tests.soak.hostile [--seconds 600] [--seed N]

Two clusters, live clients, one process with mirror, router and controller. All the while strangers write rubbish into
the state log, the presence log and the offset maps, straight at the target: single records, compressed batches with
idempotence, transactions that are committed or aborted. Others send damaged requests to the router's listeners and
bytes to the metrics page. Groups and clients have hostile names. Verbs are called one after the other, each with a
deadline. In the middle clients are rolled, and the group and its topic are promoted.

The soak writes build/soak/hostile.json: seconds, records and requests that were sent, processes that ended, verbs that
outlived their deadline or ended with an internal error, and anomalies that the judge found. Exit code 1 where one of
these is not 0.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from kmigrate.sandbox.checker import FAILING
from kmigrate.sandbox.ports import free_ports
from kmigrate.state.topics import MAP_TOPIC, PRESENCE_TOPIC, STATE_TOPIC
from tests.figures import save
from tests.hostile.records import HOSTILE_NAMES, Rubbish
from tests.hostile.requests import HARMLESS, Nonsense
from tests.integration.migration import Migration, fresh_migration, usual_clients, wait_until

__all__ = ["Report", "play"]

say = Console(stderr=True, highlight=False, markup=False, emoji=False).print
_TOPICS = (STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC)
_APIS = HARMLESS | {19, 20, 21, 34, 37, 46, 75, 78, 79, 91, 92}
"""APIs that change nothing but what the request names; kmigrate's topics are among the names."""
_VERBS = (
    ("status",),
    ("doctor",),
    ("topic", "list"),
    ("topic", "show", "orders"),
    ("group", "list"),
    ("link", "list"),
    ("link", "check", "blue"),
    ("group", "show", "billing"),
)
_DEADLINE_S = 60.0
_RECORD_S, _REQUEST_S = 0.05, 0.005
"""The pause of a stranger between two records, or two requests: the machine has to carry a migration, too."""


@dataclass
class Report:
    """The figures of a run: what was sent, and the faults that were seen."""

    seconds: float = 0.0
    records: int = 0
    requests: int = 0
    processes_ended: int = 0
    verbs_hung: int = 0
    anomalies: int = 0

    @property
    def clean(self) -> bool:
        return not (self.processes_ended or self.verbs_hung or self.anomalies) and bool(self.records and self.requests)


@dataclass
class _Strangers:
    """Threads that act until they are told to stop. A thread's failure is kept."""

    report: Report
    seed: int
    over: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, act: Callable[..., None], *arguments: Any) -> None:
        dice = random.Random(f"{self.seed}-{len(self._threads)}")

        def run() -> None:
            try:
                act(dice, *arguments)
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, name=act.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), thread.name
        if self.failures:
            raise self.failures[0]

    def write(self, dice: random.Random, bootstrap: str, topic: str, kind: str) -> None:
        """Write rubbish into a topic, straight at the target."""
        kinds: dict[str, dict[str, Any]] = {
            "single": {"linger.ms": 0},
            "batches": {"enable.idempotence": True, "compression.type": "zstd", "linger.ms": 100},
            "transactions": {"transactional.id": f"stranger-{topic}", "compression.type": "lz4"},
        }
        settings = kinds[kind]
        rubbish = Rubbish(dice.randrange(1 << 30), _known(bootstrap))
        producer = Producer({"bootstrap.servers": bootstrap, "client.id": dice.choice(HOSTILE_NAMES), **settings})
        told: list[Any] = []
        if kind == "transactions":
            producer.init_transactions(30)
            producer.begin_transaction()
        while not self.over.wait(_RECORD_S):
            key, value = rubbish.next()
            with suppress(BufferError):
                producer.produce(topic, value, key, on_delivery=lambda error, _: told.append(error))
            producer.poll(0)
            if kind == "transactions" and dice.random() < 0.02:
                (producer.commit_transaction if dice.random() < 0.7 else producer.abort_transaction)(30)
                producer.begin_transaction()
        if kind == "transactions":
            producer.abort_transaction(30)
        producer.flush(30)
        self.report.records += sum(error is None for error in told)

    def ask(self, dice: random.Random, address: tuple[str, int]) -> None:
        """Send damaged requests to a listener, over connections that end in the middle of anything."""
        nonsense = Nonsense(dice.randrange(1 << 30), [*_TOPICS, *HOSTILE_NAMES], list(HOSTILE_NAMES), _APIS)
        while not self.over.is_set():
            with suppress(OSError), socket.create_connection(address, 10) as wire:
                wire.settimeout(0.05)
                for _ in range(dice.randrange(1, 30)):
                    wire.sendall(nonsense.next() if dice.random() < 0.9 else dice.randbytes(dice.randrange(1, 200)))
                    self.report.requests += 1
                    with suppress(TimeoutError):
                        if not wire.recv(65536):
                            break
                    if self.over.wait(_REQUEST_S):
                        break
            self.over.wait(_REQUEST_S)

    def browse(self, dice: random.Random, port: int) -> None:
        """Send bytes, and requests with odd paths, to the metrics page."""
        while not self.over.wait(0.1):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as wire:
                path = dice.choice(("/metrics", "/../etc", "/" + "x" * 5000, "/%00", "\x1b[31m"))
                wire.sendall(dice.choice((dice.randbytes(300), f"GET {path} HTTP/1.1\r\n\r\n".encode(), b"\0" * 4)))
                self.report.requests += 1
                wire.settimeout(1)
                wire.recv(65536)

    def look(self, dice: random.Random, bootstrap: str) -> None:
        """Come to the router as clients and groups with hostile names."""
        while not self.over.wait(1.0):
            name = dice.choice(HOSTILE_NAMES)
            consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": name, "group.id": name, "log_level": 0})
            with suppress(KafkaException):
                consumer.subscribe(["^aside.*"])  # a group that reads `orders` rightly holds its promote back
                consumer.poll(1.0)
            consumer.close()

    def call(self, dice: random.Random, run: Migration) -> None:
        """Call verbs one by one."""
        while not self.over.is_set():
            words = dice.choice(_VERBS)
            done = run._call(words).end(_DEADLINE_S)
            if done is None or "internal-error" in done[1] + done[2]:
                self.report.verbs_hung += 1
                say(f"kmigrate {' '.join(words)}: {'had not ended' if done is None else done}")


def _known(bootstrap: str) -> list[tuple[bytes, bytes]]:
    """Return some real records of the state log, of which damaged copies are made."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "stranger", "enable.auto.commit": False})
    consumer.assign([TopicPartition(STATE_TOPIC, 0, 0)])
    found = []
    for message in consumer.consume(30, 5):
        key, value = message.key(), message.value()
        if not message.error() and key and value and value.startswith(b'{"schema"'):
            found.append((bytes(key), bytes(value)))
    consumer.close()
    return found[:20]


def _listeners(bootstrap: str) -> list[tuple[str, int]]:
    """Return the addresses of the router's bootstrap listener and of its listener for each broker."""
    host, port = bootstrap.rsplit(":", 1)
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.values()
    return [(host, int(port)), *((str(each.host), int(each.port)) for each in brokers)]


@contextmanager
def _attacked(run: Migration, report: Report, seed: int, metrics: int) -> Iterator[None]:
    strangers = _Strangers(report, seed)
    for topic in _TOPICS:
        for kind in ("single", "batches", "transactions"):
            strangers.start(strangers.write, run.target.bootstrap, topic, kind)
    for address in _listeners(run.routers):
        strangers.start(strangers.ask, address)
    strangers.start(strangers.browse, metrics)
    strangers.start(strangers.look, run.routers)
    strangers.start(strangers.call, run)
    try:
        yield
    finally:
        strangers.end()


def play(folder: Path, seconds: float, seed: int) -> Report:
    """Attack a migration for `seconds`, and promote in the middle."""
    report = Report()
    (metrics,) = free_ports(1)
    settings = (
        f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n[promote]\nstraggler_window_s = 3.0\n'
        "[finish]\ndelivery_timeout_s = 5.0\n"
    )
    with ExitStack() as stack:
        run = stack.enter_context(fresh_migration(folder, settings))
        run.make_topic("orders", 3)
        run.make_topic("aside", 1)  # for the hostile groups, which nobody promotes
        run.run_clients(usual_clients("orders", "billing"))
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("run")
        run.does("topic", "mirror", "orders", "aside")
        run.does("group", "mirror", "billing")
        hostile = [name for name in HOSTILE_NAMES if "\n" not in name][:6]
        for name in hostile:
            run.make_group(name, "aside")
        _make_maps(run)
        began = time.monotonic()
        with _attacked(run, report, seed, metrics):
            run.does("group", "mirror", *hostile)
            time.sleep(seconds * 0.4)
            _promote(run)
            time.sleep(max(0.0, seconds - (time.monotonic() - began)))
            report.seconds = round(time.monotonic() - began, 1)
        report.processes_ended = sum(engine.poll() is not None for engine in run.engines.values())
        assert run.traffic is not None
        verdict = run.judge("orders")
        named = {name: finding for name, finding in verdict.named.items() if name in FAILING}
        report.anomalies = sum(finding.count for finding in named.values()) + (not verdict.offsets_identical)
        status = run.cli("status")
        for line in (f"{verdict.acked} records acknowledged: {named}", *status.told["warnings"]):
            say(line)
        if not report.clean:
            say(run.logs())
    return report


def _make_maps(run: Migration) -> None:
    """Create the topic of the offset maps, as a mapped topic would."""
    admin = AdminClient(dict(run.target.client()))
    admin.create_topics([NewTopic(MAP_TOPIC, 1, 1, config={"cleanup.policy": "compact"})])[MAP_TOPIC].result(30)
    wait_until(lambda: MAP_TOPIC in admin.list_topics(timeout=10).topics, 20, f"topic {MAP_TOPIC}")


def _promote(run: Migration) -> None:
    """Move clients and promote; a busy state log may ask for a second try."""
    assert run.traffic is not None
    run.traffic.roll("producers", run.routers)
    run.traffic.roll("consumers", run.routers)
    for words in (("group", "promote", "billing", "--yes"), ("promote", "orders", "--yes")):
        for last in (False, False, True):
            told = run.cli(*words, timeout=240)
            if not told.code:
                break
            say(f"kmigrate {' '.join(words)}: {told.told}")
            assert not last, run.logs()


def main() -> int:
    parser = argparse.ArgumentParser(description="A migration beside hostile records, requests and names.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 30)
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="kmigrate-hostile-") as folder:
        report = play(Path(folder), given.seconds, seed)
    path = save("soak/hostile", asdict(report))
    say(f"{path}: {asdict(report)}")
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
