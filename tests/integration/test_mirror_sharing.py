"""Several mirror processes share the partitions of a link; whichever process dies, stops or joins, nothing is doubled.

Transactions write to the same partitions, so that the current owners must make holes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.sharing import assigned, lease_of
from kmigrate.model.state import State
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.command_line import program
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import (
    World,
    all_the_time,
    assert_identical,
    link_between,
    mirror_process,
    produce,
    read_all,
    transactions,
)

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

PARTITIONS = 12
TAKEN_OVER_S = 10
"""Time that the mirror promises."""


def writing(bootstrap: str, topic: str) -> AbstractContextManager[None]:
    """Write plain records and transactions to all partitions while the block lasts."""

    def write(number: int) -> int:
        produce(bootstrap, topic, 120, partitions=PARTITIONS, first=number)
        transactions(bootstrap, topic, 3, name=f"{topic}-live", partitions=PARTITIONS, first=number)
        return number + 120

    return all_the_time(write)


def owners(world: World, state: State, topic: str) -> dict[int, str]:
    """Return the owner of each partition by the assignment, without the link's name."""
    made = state.assignment(world.link)
    return {p: assigned(made, topic, p).removeprefix(f"{world.link}-") for p in range(PARTITIONS)}


async def shared(world: World, topic: str, among: set[str], timeout: float) -> dict[int, str]:
    """Wait until these processes own equally many partitions, and each process reports its own partitions."""

    def found(state: State) -> dict[int, str] | None:
        now = owners(world, state, topic)
        even = Counter(now.values()) == Counter(dict.fromkeys(among, PARTITIONS // len(among)))
        return now if even and len(world.progress(topic)) == PARTITIONS else None

    return await world.log.wait(found, timeout, f"{topic} to be shared by {sorted(among)}")


async def all_get_on(world: World, topic: str, timeout: float = 20) -> None:
    """Wait until every partition is copied further."""
    before = {p: seen.position for p, seen in world.progress(topic).items()}
    await world.until(
        topic,
        lambda told: len(told) == PARTITIONS and all(told[p].position > at for p, at in before.items()),
        "every partition to be copied",
        timeout,
    )


def leader(world: World) -> str:
    lease = world.log.state.lease(lease_of(world.link))
    assert lease is not None
    return lease.holder.removeprefix(f"{world.link}-")


def test_processes_share_a_topic_and_take_over_from_one_another_under_writes(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("shared")
    make_topic(source, topic, partitions=PARTITIONS)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.mirror(topic)
            with contextlib.ExitStack() as stack, writing(source.bootstrap, topic):
                running = {name: stack.enter_context(mirror_process(world, name)) for name in "abc"}
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await shared(world, topic, set("abc"), 30)
                await all_get_on(world, topic)

                dead = leader(world)
                running.pop(dead).kill()
                await shared(world, topic, set(running), TAKEN_OVER_S)
                assert leader(world) in running
                await all_get_on(world, topic)

                before = owners(world, world.log.state, topic)
                running["d"] = stack.enter_context(mirror_process(world, "d"))
                after = await shared(world, topic, set(running), TAKEN_OVER_S)
                assert sum(after[p] != before[p] for p in after) == PARTITIONS // 3, "no more moved than had to"

                stopped = next(name for name in running if name != leader(world))
                running[stopped].send_signal(signal.SIGSTOP)
                await shared(world, topic, set(running) - {stopped}, TAKEN_OVER_S)
                await all_get_on(world, topic)
                running[stopped].send_signal(signal.SIGCONT)
                await shared(world, topic, set(running), TAKEN_OVER_S)
                await all_get_on(world, topic)

                stopped = leader(world)
                running[stopped].send_signal(signal.SIGSTOP)
                await shared(world, topic, set(running) - {stopped}, TAKEN_OVER_S)
                await all_get_on(world, topic)
                running[stopped].send_signal(signal.SIGCONT)
                await shared(world, topic, set(running), TAKEN_OVER_S)
                await all_get_on(world, topic)
            with mirror_process(world, "last"):
                await world.caught_up(topic)
                told = world.progress(topic)
                assert not {p: seen.problem for p, seen in told.items() if seen.problem}
                assert_identical(world, topic, at_least=1_000)

    asyncio.run(scene())


class Workers:
    """`kmigrate mirror run --workers 2`, as an operator starts the command."""

    def __init__(self, run: Migration) -> None:
        self.run = run
        command = program("kmigrate", "mirror", "run", "--workers", "2")
        self.process = subprocess.Popen(
            [*command, "--config", str(run.config), "--json"], stdout=subprocess.PIPE, text=True
        )

    def next_worker(self) -> int:
        """Return the process id of the next started worker."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            if told["event"] == "worker-started":
                return int(told["pid"])
        raise AssertionError("no worker was started")

    def shown(self, topic: str) -> dict[str, Any]:
        told: dict[str, Any] = next(each for each in self.run.does("status")["topics"] if each["topic"] == topic)
        return told

    def copiers(self, topic: str) -> Counter[int]:
        """Return how many of the topic's partitions each process id copies, by `status`."""
        return Counter(int(part["copied_by"].partition("-")[0] or -1) for part in self.shown(topic)["partitions"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


def test_workers_share_the_partitions_of_a_topic_to_its_promote_and_end_with_the_process_that_started_them(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    run = Migration(source, target, tmp_path / "run", "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 0.0\n")
    link, topic = unique_name("link"), unique_name("worked")
    make_topic(source, topic, partitions=4)
    produce(source.bootstrap, topic, 4_000, partitions=4)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    workers = Workers(run)
    try:
        first = workers.next_worker()
        run.does("topic", "mirror", topic, "--link", link)
        shared = {workers.process.pid: 2, first: 2}
        wait_until(lambda: workers.copiers(topic) == shared, 30, "both processes to copy two partitions each")

        subprocess.run(["kill", "-9", str(first)], check=True)
        second = workers.next_worker()
        shared = {workers.process.pid: 2, second: 2}
        wait_until(lambda: workers.copiers(topic) == shared, 30, "another worker to have taken the place")
        produce(source.bootstrap, topic, 400, partitions=4, first=4_000)
        wait_until(lambda: workers.shown(topic)["lag"] == 0, 30, "the copy to be at the end")
        assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)

        run.start("controller")
        # The promote needs the reports of both processes at the barrier.
        run.does("promote", topic, "--link", link, "--yes")
        assert workers.shown(topic)["phase"] == "promoted"
    finally:
        workers.end()
        run.stop()
    assert workers.process.stdout is not None
    rest = workers.process.stdout.read()  # The output ends when the worker, too, has closed the pipe.
    assert json.loads(rest.splitlines()[-1])["event"] == "stopped", rest
