"""Bad networks around a router, for minutes: whole migrations with live clients of two families, and the judge."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmigrate.sandbox.checker import Verdict
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.ports import free_ports
from tests.fakes.relay import Direction, Relay
from tests.integration.detour import Lines, detour, lines
from tests.integration.migration import Migration, fresh_migration, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

_RATE = 100.0
_OUTSIDE = "127.0.0.2"
"""Address at which clients find the router; relays listen there."""
_QUICK = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "socket.timeout.ms": 5000}
_BAD_S = 33.0
"""Duration of the bad network: longer than kmigrate's own request timeout, shorter than aiokafka's."""
_GO_ON_S = 10.0
_MORE_MB = 60
_QUICK_AIO = {"metadata_max_age_ms": 3000}


@dataclass(frozen=True)
class Connections:
    """Writers and readers of topics of the same route."""

    name: str

    @property
    def topics(self) -> tuple[str, str]:
        return self.name, f"{self.name}-tx"

    @property
    def group(self) -> str:
        return f"{self.name}-group"

    @property
    def writers(self) -> tuple[str, ...]:
        return f"{self.name}-rd", f"{self.name}-aio", f"{self.name}-till"

    def clients(self) -> list[ClientSpec]:
        plain, transactional = self.topics
        first, second, till = self.writers
        return [
            ProducerSpec(first, "librdkafka", plain, _RATE, settings=_QUICK),
            ProducerSpec(second, "aiokafka", plain, _RATE),
            TransactionalSpec(till, transactional, _RATE, settings=_QUICK),
            ConsumerSpec(f"{self.name}-reader-rd", "librdkafka", self.group, self.topics, _QUICK),
            ConsumerSpec(f"{self.name}-reader-aio", "aiokafka", self.group, self.topics, _QUICK_AIO),
        ]


KEPT, MOVED = Connections("kept"), Connections("moved")


@dataclass
class Scene:
    run: Migration
    source: Lines
    target: Lines
    outside: list[Relay]
    """Relays between clients and the router."""

    @property
    def lines(self) -> list[Relay]:
        return [*self.source.all, *self.target.all, *self.outside]

    def heal(self) -> None:
        for each in self.lines:
            each.heal()

    def memory_mb(self) -> int:
        """Return the router's memory."""
        return int(self._about("status").read_text(encoding="utf-8").split("VmRSS:")[1].split()[0]) // 1024

    def sockets(self) -> int:
        return len(list(self._about("fd").iterdir()))

    def _about(self, what: str) -> Path:
        return Path(f"/proc/{self.run.engines['router'].pid}", what)


@contextmanager
def scene(root: Path) -> Iterator[Scene]:
    """Start a migration with two estates, of which a single estate is promoted.

    Relays carry all networks of the router.
    """
    with fresh_migration(root, f'[router]\nadvertised_host = "{_OUTSIDE}"\n') as run, ExitStack() as relays:
        source, target = (relays.enter_context(lines(cluster)) for cluster in (run.source, run.target))
        port = free_ports(1)[0]
        run.ports["router"] = port
        for estate in (KEPT, MOVED):
            for topic in estate.topics:
                run.make_topic(topic, 3)
            run.make_group(estate.group, *estate.topics)
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "controller")
        with pytest.MonkeyPatch.context() as around:
            around.setenv("DETOUR", detour(source, target))
            run.start("router", by=("tests/integration/detour.py",))
        outside = [
            relays.enter_context(Relay(f"127.0.0.1:{at}", f"{_OUTSIDE}:{at}"))
            for at in (port, *(port + 1 + node for node in run.target.brokers))
        ]
        run.does("topic", "mirror", *KEPT.topics, *MOVED.topics)
        run.does("group", "mirror", KEPT.group, MOVED.group)
        run.run_clients([*KEPT.clients(), *MOVED.clients()], at=outside[0].address)
        run.does("group", "promote", MOVED.group, "--yes")
        run.does("promote", *MOVED.topics, "--yes")
        yield Scene(run, source, target, outside)


def harm(verdict: Verdict) -> set[str]:
    """Return the findings, without the effects that unreachable brokers have on their groups anyway."""
    found = set(verdict.named) - {"group_rereads"}
    if all(text.endswith("commit _TIMED_OUT") for text in verdict.findings["client_errors"].examples):
        found.discard("client_errors")
    return found


def judged(at: Scene) -> None:
    at.run.writers_go_on(100)
    verdict = at.run.judge(*KEPT.topics, *MOVED.topics)
    assert not harm(verdict), f"{verdict.named}\n{at.run.logs()}"
    assert verdict.acked > 2000


def cut_everywhere(at: Scene) -> None:
    """Cut all connections of a line, in the middle of requests and answers, again and again."""
    chance, until = random.Random(1), time.monotonic() + _BAD_S
    while time.monotonic() < until:
        chance.choice(at.lines).cut_after(chance.randrange(600), chance.choice(("down", "down", "up")))
        time.sleep(chance.uniform(0.05, 0.3))
    at.heal()


def short_lives(at: Scene) -> None:
    """Give every connection through the router and behind it a short life."""
    chance = random.Random(2)
    for each in at.lines:
        each.let_live(chance.uniform(0.5, 1.5) for _ in itertools.count())
        each.cut()
    time.sleep(_BAD_S)
    at.heal()


def source_answers_nothing(at: Scene) -> None:
    """Let the source accept clients' requests without an answer; kmigrate's own requests get answers."""
    stood = stalled(at, list(at.source.clients.values()), "down")
    assert all(stood[name] == 0 for name in KEPT.writers)
    assert all(stood[name] > 500 for name in MOVED.writers)


def source_is_cut_off(at: Scene) -> None:
    stood = stalled(at, at.source.all)
    assert all(stood[name] == 0 for name in KEPT.writers)
    assert all(stood[name] > 500 for name in MOVED.writers)


def target_answers_nothing(at: Scene) -> None:
    """Let the target answer nothing; the state log does not answer either."""
    stood = stalled(at, at.target.all, "down")
    assert all(stood[name] == 0 for name in MOVED.writers)
    assert stood[KEPT.writers[0]] > 500, "a client that knows its brokers asks the target nothing"


def kmigrate_hears_nothing(at: Scene) -> None:
    """Leave kmigrate's own requests without answers; clients get answers."""
    stood = stalled(at, [*at.source.control.values(), *at.target.control.values()])
    assert all(count > 500 for count in stood.values())


def fenced_in_a_stall(at: Scene) -> None:
    """Start a promote that waits for hanging requests and is taken back; afterwards the promote succeeds."""
    for each in at.source.clients.values():
        each.stall("down")
    time.sleep(3)
    told = at.run.cli("promote", *KEPT.topics, "--yes", timeout=120)
    assert (told.code != 0, bool(told.told["still_true"])) == (True, True), told
    at.heal()
    at.run.writers_go_on(100)
    at.run.does("group", "promote", KEPT.group, "--yes")
    at.run.does("promote", *KEPT.topics, "--yes")


def stalled(at: Scene, relays: list[Relay], *ways: Direction) -> dict[str, int]:
    """Return each writer's acknowledged records in a stall of some relays.

    At the end all writers go on, and memory and sockets are as before.
    """
    memory, sockets = at.memory_mb(), at.sockets()
    for each in relays:
        each.stall(*ways)
    time.sleep(2)
    before = at.run.acknowledged()
    time.sleep(_BAD_S)
    in_it = at.run.acknowledged()
    assert at.memory_mb() < memory + _MORE_MB
    at.heal()
    wait_until(lambda: went_on(in_it, at.run.acknowledged()), _GO_ON_S, lambda: f"{in_it}: {at.run.acknowledged()}")
    wait_until(lambda: at.sockets() < sockets + 20, 30, lambda: f"{at.sockets()} sockets, as {sockets} before")
    return {name: count - before[name] for name, count in in_it.items()}


def went_on(before: dict[str, int], now: dict[str, int]) -> bool:
    return all(count > before[name] + 20 for name, count in now.items())


@pytest.mark.parametrize(
    "weather",
    [
        cut_everywhere,
        short_lives,
        source_answers_nothing,
        source_is_cut_off,
        target_answers_nothing,
        kmigrate_hears_nothing,
        fenced_in_a_stall,
    ],
)
def test_clients_go_on(tmp_path: Path, weather: Callable[[Scene], None]) -> None:
    with scene(tmp_path) as at:
        weather(at)
        judged(at)
