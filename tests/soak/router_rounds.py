"""Promotes while a router of two is cut off, stands still or is killed with bytes under way: never both accept.

Each round has a topic of its own, with an idempotent librdkafka producer at each router. Every fourth round also has a
transactional producer at each router. The end of a round checks that every value is on the target once and in order.
The source's log must be as long as the barrier that was read before the flip, also when everything late has arrived.
And the source must take writes again once nobody is late any more.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.ports import free_ports
from tests.fakes.relay import Relay
from tests.integration.migration import Migration, wait_until
from tests.integration.router_world import InTransactions, RouterProcess, Writer, ends, start_router

__all__ = ["SETTINGS", "Fault", "Round", "Rounds"]

_PARTITIONS = 2
_MOMENT_S = (0.0, 1.0)
_PATIENCE_S = 60.0
_TRIES = 4
_EVERY = 4
"""Every fourth round has transactions. There are three faults, so each fault has its share."""
_IMPATIENT = {"transaction.timeout.ms": 5000}
"""Settings with which the coordinator aborts, within 15 s, what hangs on a router that stands still."""
SETTINGS = "[promote]\nfence_timeout_s = 10.0\nstraggler_window_s = 1.0\nrouter_silent_s = 1.5\n"


class Fault(StrEnum):
    """The faults of router b while a topic is promoted."""

    CUT_OFF = "cut off from the state log"
    STOPPED = "stopped between its check and its send"
    KILLED = "killed with bytes under way to a paused source broker"


@dataclass
class Round:
    """A promote and the findings after it."""

    fault: Fault
    transactions: int = 0
    """Committed transactions."""
    aborted: int = 0
    """Transactions that clients had to abort, and wrote again. They are no error, and are reported."""
    sealed: bool = False
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    client_errors: list[str] = field(default_factory=list)
    both_accepted: int = 0
    """Records that the source took behind the barrier."""
    fence_to_flip_ms: int = 0
    """The time of the promote that succeeded, with the wait for the router's silence, and the seal."""
    slowest_s: float = 0.0
    """The longest time from sending a record to its acknowledgement, also at the disturbed router."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.client_errors or self.both_accepted)


class Rounds:
    """Two routers in front of a migration. Router b suffers."""

    def __init__(self, run: Migration, relay: Relay, dice: random.Random) -> None:
        self._run = run
        self._relay = relay
        self._dice = dice
        self._ports = free_ports(2)
        self._routers: dict[str, RouterProcess] = {}
        self._barriers: dict[str, list[int]] = {}
        self.rounds: list[Round] = []
        self.given_up: list[str] = []
        """The reasons why promotes were given up before they succeeded."""

    def __enter__(self) -> Rounds:
        self._run.does("link", "create", "blue", "--source", "source", "--target", "target")
        self._run.start("mirror", "controller")
        for name in "ab":
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._relay.heal()
        for router in self._routers.values():
            router.process.send_signal(signal.SIGCONT)
            router.kill()

    def _start(self, name: str) -> None:
        # Router b finds that it stood still after some rounds and not after others.
        suffers: dict[str, Any] = {"state_via": self._relay.address, "stood_still_s": 4.0} if name == "b" else {}
        port = self._ports["ab".index(name)]
        self._routers[name] = start_router(name, self._run.target, port, log_level="ERROR", **suffers)

    def play(self, fault: Fault) -> Round:
        """Play a round. The next round begins when everything of this round has come to rest."""
        found, topic = Round(fault), f"round-{len(self.rounds)}"
        self._run.make_topic(topic, _PARTITIONS)
        self._run.does("topic", "mirror", topic)
        quiet = {"log_level": 0}
        addresses = {name: router.bootstrap for name, router in self._routers.items()}
        writers = [Writer(address, topic, name, quiet, partitions=_PARTITIONS) for name, address in addresses.items()]
        tills = [
            InTransactions(address, (topic,), f"{topic}-{name}", quiet | _IMPATIENT, partitions=_PARTITIONS)
            for name, address in addresses.items()
            if len(self.rounds) % _EVERY == 1
        ]
        with contextlib.ExitStack() as running:
            for writer in writers:
                running.enter_context(writer)
            for till in tills:
                running.enter_context(till)
            for writer in writers:
                writer.until(100, 60)
            for till in tills:
                till.until(10, 60)
            with self._disturbed(fault):
                told = self._promote(topic)
            found.sealed, found.fence_to_flip_ms = told["seal"] is not None, told["fence_to_flip_ms"]
            self._barriers[topic] = [told["barrier"][str(p)]["offset"] for p in range(_PARTITIONS)]
            wait_until(lambda: not self._sealed(topic), _PATIENCE_S, f"the seal of {topic} to be taken off: {fault}")
            for writer in writers:
                writer.until(writer.acked + 50, 60)
                writer.finish()
            for till in tills:
                till.until(till.transactions + 10, 60)
                till.finish()
        self._judge(found, topic, writers, tills)
        self.rounds.append(found)
        return found

    @contextmanager
    def _disturbed(self, fault: Fault) -> Iterator[None]:
        """Disturb router b for as long as the block lasts and a moment more, and make router b whole again."""
        b, dice = self._routers["b"], self._dice
        resume = threading.Timer(dice.uniform(0.3, 2.5), self._run.source.resume, [1])
        match fault:
            case Fault.CUT_OFF:
                self._relay.refuse()
            case Fault.STOPPED:
                b.stop_before_sending()
            case Fault.KILLED:
                self._run.source.pause(1)
                time.sleep(dice.uniform(0.05, 0.3))
                b.kill()
                resume.start()
        try:
            yield
            time.sleep(dice.uniform(*_MOMENT_S))
        finally:
            match fault:
                case Fault.CUT_OFF:
                    self._relay.heal()
                case Fault.STOPPED:
                    b.process.send_signal(signal.SIGCONT)
                case Fault.KILLED:
                    resume.join()
                    self._start("b")
        if fault is Fault.KILLED:
            self._run.does("router", "forget", "b", "--dead", "--yes")

    def _promote(self, topic: str) -> Any:
        """Promote the topic and return its record. A promote that is given up is noted and asked for again."""
        for _ in range(_TRIES):
            made = self._run.cli("promote", topic, "--yes")
            if made.code == 0:
                return made.told["topics"][0]
            self.given_up.append(f"{made.told['error']}: {made.told['what']}" if "error" in made.told else made.stderr)
        raise AssertionError(f"{topic} was not promoted: {self.given_up[-_TRIES:]}\n{self._run.logs()}")

    def _sealed(self, topic: str) -> bool:
        """Return whether the source still refuses writes, as librdkafka is told."""
        admin = AdminClient({"bootstrap.servers": self._run.source.bootstrap})
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(admin.describe_configs([resource])[resource].result(30)["max.message.bytes"].value) == "1"

    def _judge(self, found: Round, topic: str, writers: list[Writer], tills: list[InTransactions]) -> None:
        stored: dict[int, list[bytes]] = {partition: [] for partition in range(_PARTITIONS)}
        for record in read_topic(self._run.target.bootstrap, topic):
            stored[record.partition].append(record.value or b"")
        for till in tills:
            found.client_errors += till.errors
            found.transactions += till.transactions
            found.aborted += len(till.aborted)
            found.slowest_s = max(found.slowest_s, round(till.slowest, 3))
            for partition, sent in till.committed.items():
                mine = [value for value in stored[partition] if value.startswith(b"%s-" % till.name.encode())]
                found.records += len(sent)
                found.lost += len(set(sent) - set(mine))
                found.duplicated += len(mine) - len(set(mine)) + len(set(mine) - set(sent))
                found.reordered += mine != sent
        for writer in writers:
            found.client_errors += writer.errors
            found.slowest_s = max(found.slowest_s, round(writer.slowest, 3))
            for partition, sent in writer.sent.items():
                mine = [value for value in stored[partition] if value.startswith(b"%s-" % writer.name.encode())]
                found.records += len(sent)
                found.lost += len(set(sent) - set(mine))
                found.duplicated += len(mine) - len(set(mine))
                found.reordered += sum(later < one for one, later in pairwise(map(_number, mine)))
        found.both_accepted = self.grown([topic])

    def grown(self, topics: Iterable[str] = ()) -> int:
        """Return the number of records behind the barriers of all rounds, or of some topics, on the source now."""
        behind = [
            now - then
            for topic in topics or self._barriers
            for now, then in zip(
                ends(self._run.source.bootstrap, topic, _PARTITIONS), self._barriers[topic], strict=True
            )
        ]
        return sum(behind)


def _number(value: bytes) -> int:
    return int(value.rpartition(b"-")[2])
