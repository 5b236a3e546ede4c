"""A second `kmigrate run` under the name of a router is refused while that router answers.

Clients notice nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.presences import ControllerPresence
from kmigrate.model.records import RouterRecord
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.state.log import StateLog
from tests.integration.command_line import program
from tests.integration.migration import Migration, wait_until
from tests.integration.router_process import cluster_settings
from tests.integration.router_world import links_gone


class Run:
    """A running `kmigrate run`; `said` holds the events that the process has printed."""

    def __init__(self, migration: Migration, log: Path, *more: str) -> None:
        self._log = log
        command = program("kmigrate", "run", "--config", str(migration.config), "--json", *more)
        with log.open("wb") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)

    @property
    def said(self) -> list[dict[str, object]]:
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def has_said(self, event: str) -> bool:
        return any(each.get("event") == event for each in self.said)

    def listens(self) -> str:
        wait_until(lambda: self.has_said("router-listening"), 30, f"a router to listen: {self._log}")
        return next(str(each["bootstrap"]) for each in self.said if each.get("event") == "router-listening")


@contextmanager
def runs(migration: Migration, folder: Path) -> Iterator[Callable[..., Run]]:
    """Yield a function that starts `kmigrate run`; stop all processes at the end."""
    started: list[Run] = []

    def start(*more: str) -> Run:
        started.append(Run(migration, folder / f"run-{len(started)}.log", *more))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            if each.process.poll() is None:
                each.process.terminate()
        for each in started:
            each.process.wait(20)
        asyncio.run(links_gone(migration.target))  # a killed router's record would keep later tests' promotes back


def registered(target: KafkaCluster, name: str) -> tuple[RouterRecord | None, set[str]]:
    """Return the registered router of a name, and the instances of controllers with a recent presence."""

    async def look() -> tuple[RouterRecord | None, set[str]]:
        async with ClusterClient(cluster_settings("target", target.bootstrap)) as client, StateLog(client) as log:
            await asyncio.sleep(1.0)
            router = next((each for each in log.state.routers() if each.name == name), None)
            return router, {each.instance for each in log.alive(ControllerPresence)}

    return asyncio.run(look())


def test_a_second_run_is_refused_a_take_over_leaves_the_first_its_mirror_and_a_killed_run_comes_back_at_once(
    source: KafkaCluster, target: KafkaCluster, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    migration = Migration(source, target, tmp_path / "run")
    name = unique_name("edge")
    ports = free_ports(2)
    with runs(migration, tmp_path) as start:
        first = start("--name", name, "--port", str(ports[0]))
        client = AdminClient({"bootstrap.servers": first.listens()})
        assert client.list_topics(timeout=10).brokers

        # The message of a taken port once advised another port.
        refused = migration.cli("run", "--name", name, "--port", str(ports[1]))
        assert (refused.code, refused.told["error"]) == (3, "router-runs"), refused
        assert f"process {first.process.pid} on" in refused.told["what"]
        assert "--take-over" in refused.told["next"]
        assert client.list_topics(timeout=10).brokers
        before, _ = registered(target, name)
        assert before is not None
        assert before.pid == first.process.pid

        second = start("--name", name, "--port", str(ports[1]), "--take-over")
        second.listens()
        wait_until(lambda: first.has_said("router-replaced"), 20, "the first run to be evicted")
        after, controllers = registered(target, name)
        assert after is not None
        assert after.pid == second.process.pid
        assert first.process.poll() is None
        for each in (first, second):
            assert any(instance.startswith(f"{each.process.pid}-") for instance in controllers)
        assert AdminClient({"bootstrap.servers": second.listens()}).list_topics(timeout=10).brokers

        second.process.kill()
        began = time.monotonic()
        third = start("--name", name, "--port", str(ports[1]))
        third.listens()
        seconds = time.monotonic() - began
        assert not any(each.get("error") == "router-runs" for each in third.said)
        assert third.process.poll() is None
        assert seconds < 20, "as long as a start takes on a busy machine, and no patience on top"
