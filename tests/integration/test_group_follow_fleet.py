"""Groups of the new protocol (KIP-848) at several routers that are restarted one after the other.

Some of the groups are in transactions.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec
from kmigrate.sandbox.history import read_history
from kmigrate.sandbox.kafka import TARGET_VERSION, KafkaCluster
from tests.emptied import HASTY
from tests.integration.java_clients import SOURCES, JavaProgram
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.positions import committed_positions
from tests.integration.test_group_follow import NEW
from tests.integration.test_group_transactions import Copier, values

PARTITIONS = 4
PLENTY = 4
"""Number of transactions that shows progress."""


@dataclass(frozen=True)
class Fleet:
    """The readers and the routers; the last member stays on the source for the longest."""

    members: tuple[ConsumerSpec, ...]
    routers: tuple[str, ...] = ("router-a", "router-b")
    java: bool = False
    """True where Java applications, too, read, process and write in transactions."""
    config: Mapping[str, str] | None = None
    versions: tuple[str, str] = (TARGET_VERSION, TARGET_VERSION)


def reader(name: str, family: str, topic: str = "orders", **settings: str) -> ConsumerSpec:
    return ConsumerSpec(name, family, "billing", (topic,), {**NEW, **settings})  # type: ignore[arg-type]


class Applications:
    """Members of a group per library that commit their read positions in transactions, together with their output."""

    def __init__(self, run: Migration, fleet: Fleet, stack: ExitStack) -> None:
        self._run = run
        self.written = ["copied-rd", "copied-java"] if fleet.java else ["copied-rd"]
        for topic in self.written:
            run.make_topic(topic, PARTITIONS)
        self._fleet = fleet
        self._stack = stack
        self.copiers: list[Copier] = []
        self.programs: list[JavaProgram] = []

    @property
    def groups(self) -> list[str]:
        return [f"of-{topic}" for topic in self.written]

    def begin(self) -> None:
        """Begin the groups at the source: a group that never committed has nothing to carry over."""
        with Copier(self._run.source.bootstrap, "of-copied-rd", "orders", "copied-rd", "0", "consumer") as copier:
            wait_until(lambda: copier.committed > 2 or copier.errors, 60, "transactions at the source")
        assert not copier.errors
        if self._fleet.java:
            self._run.make_group("of-copied-java", "orders")

    def start(self, addresses: list[str]) -> None:
        """Start an application of each kind at each of two routers."""
        for number, address in enumerate(addresses[:2]):
            copier = Copier(address, "of-copied-rd", "orders", "copied-rd", str(number), "consumer")
            self.copiers.append(self._stack.enter_context(copier))
            if self._fleet.java:
                program = self._stack.enter_context(JavaProgram(self._run.folder, f"copied-java-{number}"))
                words = (address, "of-copied-java", f"copied-java-{number}", "orders", "copied-java", "consumer")
                program.run(SOURCES / "ReadProcessWrite.java", *words)
                self.programs.append(program)

    def _counts(self) -> list[int]:
        return [each.committed for each in self.copiers] + [each.said.count("committed") for each in self.programs]

    def go_on(self) -> None:
        """Wait until each application has committed `PLENTY` more transactions."""
        before = self._counts()
        wait_until(
            lambda: all(now > then + PLENTY for now, then in zip(self._counts(), before, strict=True)),
            60,
            lambda: (
                f"{before} {self._counts()} {[c.errors[-3:] for c in self.copiers]} "
                f"{[p.said[-1000:] for p in self.programs]}\n{self._run.logs()}"
            ),
        )

    def copied_exactly_once(self, read: Counter[bytes]) -> None:
        for topic in self.written:
            wait_until(lambda topic=topic: sum(values(self._run.target, topic).values()) >= len(read), 60, topic)  # type: ignore[misc]
        self._stack.close()
        for topic in self.written:
            assert values(self._run.target, topic) == read
        # A transaction that was overtaken by its group's promote, or by a rebalance, is aborted and repeated.
        overtaken = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
        errors = [error for copier in self.copiers for error in copier.errors]
        assert all(any(name in error for name in overtaken) for error in errors), errors
        for program in self.programs:
            assert "died" not in program.said and "ended" in program.said, program.said
            aborted = [line for line in program.said.splitlines() if line.startswith("aborted")]
            assert all("CommitFailedException" in line for line in aborted), aborted


def committed(cluster: KafkaCluster, group: str) -> dict[int, int]:
    """Return the group's committed offsets in orders."""
    return committed_positions(cluster.client(), group, "orders")


def ends(cluster: KafkaCluster) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none"})
    try:
        return {p: consumer.get_watermark_offsets(TopicPartition("orders", p), 20)[1] for p in range(PARTITIONS)}
    finally:
        consumer.close()


def read_twice(run: Migration, positions: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the records that members of billing got more than once, from these offsets on."""
    given: Counter[tuple[int, int]] = Counter()
    for event in read_history(run.folder / "history.jsonl"):
        if event.f == "poll" and event.group == "billing":
            given.update((event.partition, event.offset + n) for n in range(len(event.values)))
    return sorted(key for key, count in given.items() if count > 1 and key[1] >= positions[key[0]])


@contextmanager
def begun(folder: Path, fleet: Fleet) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 2.0\n"
    source, target = fleet.versions
    config = dict(fleet.config or {})
    with fresh_migration(folder, settings, source_version=source, target_version=target, config=config) as run:
        run.make_topic("orders", PARTITIONS)
        yield run


def migrate(folder: Path, fleet: Fleet, restarted: int) -> None:
    """Let both kinds of groups follow, restart routers one after the other, and promote everything."""
    with begun(folder, fleet) as run, ExitStack() as stack:
        applications = Applications(run, fleet, stack)
        traffic = run.run_clients([ProducerSpec("shop", "librdkafka", "orders", 100.0), *fleet.members])
        applications.begin()
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", *fleet.routers, "controller")
        run.does("topic", "mirror", "orders", *applications.written)
        run.does("group", "mirror", "billing", *applications.groups, "--mode", "follow")
        addresses = [f"127.0.0.1:{run.ports[name]}" for name in fleet.routers]
        traffic.roll("producers", run.routers)
        *moved, last = fleet.members
        for number, member in enumerate(moved):
            traffic.roll(member.name, addresses[number % len(addresses)])
        applications.start(addresses)
        wait_until(lambda: members_of_billing(run) == (len(fleet.members), 1), 30, "all but one through the routers")
        applications.go_on()
        for name in fleet.routers[:restarted]:
            run.kill(name, signal.SIGTERM)
            assert run.engines[name].wait(15) == 0, run.logs()
            run.start(name)
            applications.go_on()
        traffic.roll(last.name, addresses[-1])
        wait_until(lambda: members_of_billing(run) == (len(fleet.members), 0), 40, "all members through the routers")
        before = committed(run.source, "billing")
        told = run.does("group", "promote", "billing", "--yes")
        assert told["groups"][0]["written"] == {"orders": by_text(committed(run.source, "billing"))}
        wait_until(lambda: on_target(run, "billing") == len(fleet.members), 30, "all members on the target")
        applications.go_on()
        promoted = run.does("promote", *applications.written, "--yes")
        for group in promoted["groups"]:
            assert group["written"] == {"orders": by_text(committed(run.source, group["group"]))}
        applications.go_on()
        run.does("promote", "orders", "--yes")
        applications.go_on()
        verdict = run.judge("orders")
        assert verdict.acked > 500
        assert verdict.clean, f"{verdict.named}\n{run.logs()}"
        assert read_twice(run, before) == []
        applications.copied_exactly_once(values(run.target, "orders"))
        for group in ("billing", *applications.groups):
            assert committed(run.target, group) == ends(run.target), group


def by_text(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(positions.items())}


def status_of(run: Migration, group: str) -> Any:
    return next(each for each in run.does("status")["groups"] if each["group"] == group)


def members_of_billing(run: Migration) -> tuple[int, int]:
    """Return the number of members on the source, and how many of them came through no router."""
    found = status_of(run, "billing")
    return len(found["source_members"]), found["direct_members"]


def on_target(run: Migration, group: str) -> int:
    return int(status_of(run, group)["target_members"])


def test_groups_at_two_routers_go_on_while_one_is_restarted_and_through_all_promotes(tmp_path: Path) -> None:
    """The clients are Kafka's two most used libraries; a group commits in transactions."""
    fleet = Fleet(
        (reader("c-rd", "librdkafka", "^order.*"), reader("c-java", "java"), reader("c-left", "librdkafka")),
        config=HASTY,
    )
    migrate(tmp_path, fleet, restarted=1)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "versions", [("4.0.0", "4.3.1"), ("4.1.1", "4.2.0"), ("4.2.0", "4.0.0"), ("4.3.1", "4.1.1")], ids="-".join
)
def test_groups_of_all_libraries_go_on_at_three_routers_that_are_all_restarted(
    tmp_path: Path, versions: tuple[str, str]
) -> None:
    """The test runs between all versions of Kafka that serve the new protocol, with brokers' default heartbeats."""
    if shutil.which("go") is None or not (find_java().home / "bin" / "javac").is_file():
        pytest.skip("there is no Go or no JDK, which build the clients")
    fleet = Fleet(
        (
            reader("c-rd", "librdkafka", "^order.*"),
            reader("c-java", "java", "^orders"),
            reader("c-go", "franz-go", "^orders"),
            reader("c-static", "java", **{"group.instance.id": "static"}),
            reader("c-go-named", "franz-go"),
            reader("c-left", "librdkafka"),
        ),
        routers=("router-a", "router-b", "router-c"),
        java=True,
        versions=versions,
    )
    migrate(tmp_path, fleet, restarted=3)
