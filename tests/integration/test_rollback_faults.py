"""A fault at each step of a rollback: the reason names the fault, the topic is promoted as before, clients go on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.lifecycle import ROLLING_BACK, TopicPhase
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.state.log import StateLog
from tests.integration.migration import Migration, assert_clean, fresh_migration, wait_until
from tests.integration.router_world import settings_of

pytestmark = pytest.mark.soak

TOPIC = "orders"
SETTINGS = """[promote]
fence_timeout_s = 4.0
pending_timeout_s = 4.0
straggler_window_s = 1.0
[hooks]
before_fence = ["sh", "-c", "touch {at}; while [ -e {hold} ]; do sleep 0.05; done"]
"""


@dataclass
class Stage:
    """A promoted topic with live producers, two routers, and a hook that holds each rollback before its fence."""

    run: Migration
    hold: Path
    at: Path

    def record(self, until: Callable[[TopicRecord], bool]) -> TopicRecord:
        """Wait until the topic's record is as wanted, and return the record."""

        async def wait() -> TopicRecord:
            def found(state: State) -> TopicRecord | None:
                record = state.topic("blue", TOPIC)
                return record if record is not None and until(record) else None

            async with (
                ClusterClient(settings_of("target", self.run.target.bootstrap)) as client,
                StateLog(client) as log,
            ):
                return await log.wait(found, 90, f"the record of {TOPIC}")

        return asyncio.run(wait())

    def reached(self, phase: TopicPhase) -> None:
        self.record(lambda record: record.phase is phase)

    def given_up(self) -> str:
        """Return the reason with which the rollback was given up; clients go on while the fault lasts."""
        record = self.record(lambda record: record.phase not in ROLLING_BACK)
        assert record.phase is TopicPhase.PROMOTED
        assert record.way_back is not None
        assert record.way_back.open
        assert record.way_back.reason
        self.run.writers_go_on(50)
        return record.way_back.reason

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Ask for a rollback; during the block the rollback waits before its fence."""
        self.at.unlink(missing_ok=True)
        self.hold.touch()
        try:
            wait_until(lambda: self.run.cli("rollback", TOPIC, "--yes", "--no-wait").code == 0, 60, self.run.logs)
            wait_until(self.at.exists, 60, self.run.logs)
            yield
        finally:
            self.hold.unlink()


@contextmanager
def standing_still(run: Migration, name: str) -> Iterator[None]:
    run.kill(name, signal.SIGSTOP)
    try:
        yield
    finally:
        run.kill(name, signal.SIGCONT)


@contextmanager
def paused(cluster: KafkaCluster) -> Iterator[None]:
    cluster.pause(1)
    try:
        yield
    finally:
        cluster.resume(1)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("faults")
    hold, at = folder / "hold", folder / "at"
    with fresh_migration(folder, SETTINGS.format(at=at, hold=hold)) as run:
        run.make_topic(TOPIC, 2)
        traffic = run.run_clients(
            [ProducerSpec("p-rd", "librdkafka", TOPIC, 200.0), ProducerSpec("p-aio", "aiokafka", TOPIC, 100.0)]
        )
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router-first", "router-second", "controller")
        run.does("topic", "mirror", TOPIC)
        traffic.roll("producers", f"127.0.0.1:{run.ports['router-first']}")
        run.does("wait", "lag <= 1000", TOPIC)
        wait_until(lambda: run.cli("promote", TOPIC, "--yes", "--way-back").code == 0, 60, run.logs)
        yield Stage(run, hold, at)
        wait_until(lambda: run.cli("rollback", TOPIC, "--yes").code == 0, 90, run.logs)
        run.writers_go_on(50)
        assert_clean(run, TOPIC)


def test_a_mirror_that_stands_still_before_the_fence_or_behind_the_fence_is_named(stage: Stage) -> None:
    with ExitStack() as stack:
        with stage.asked():
            stack.enter_context(standing_still(stage.run, "mirror"))
        assert "mirror" in stage.given_up()


def test_a_router_that_stands_still_is_named(stage: Stage) -> None:
    with ExitStack() as stack:
        with stage.asked():
            stack.enter_context(standing_still(stage.run, "router-second"))
        assert "router second" in stage.given_up()


def test_an_unreachable_source_before_the_fence_is_named(stage: Stage) -> None:
    with ExitStack() as stack:
        with stage.asked():
            stack.enter_context(paused(stage.run.source))
        assert "source" in stage.given_up()


def test_an_unreachable_source_behind_the_fence_is_named(stage: Stage) -> None:
    """The mirror stands still, so that the rollback waits behind the fence when the source's broker stands still."""
    with ExitStack() as stack:
        mirror = ExitStack()
        with stage.asked():
            mirror.enter_context(standing_still(stage.run, "mirror"))
        stage.reached(TopicPhase.ROLLBACK_FENCED)
        stack.enter_context(paused(stage.run.source))
        mirror.close()
        assert stage.given_up()


@pytest.mark.parametrize("phase", [TopicPhase.ROLLBACK_PENDING, TopicPhase.ROLLBACK_FENCED])
def test_a_target_that_stands_still_delays_a_rollback_or_gives_the_rollback_up(stage: Stage, phase: TopicPhase) -> None:
    with ExitStack() as mirror:
        with stage.asked():
            if phase is TopicPhase.ROLLBACK_FENCED:
                mirror.enter_context(standing_still(stage.run, "mirror"))
            else:
                stage.run.target.pause(1)
        if phase is TopicPhase.ROLLBACK_FENCED:
            stage.reached(phase)
            stage.run.target.pause(1)
        mirror.close()
        time.sleep(1.0)
        stage.run.target.resume(1)
    record = stage.record(lambda record: record.phase not in ROLLING_BACK)
    stage.run.writers_go_on(50)
    if record.phase is not TopicPhase.PROMOTED:
        wait_until(lambda: stage.run.cli("promote", TOPIC, "--yes", "--way-back").code == 0, 60, stage.run.logs)


def test_a_dead_router_refuses_a_rollback_until_a_person_calls_the_router_dead(stage: Stage) -> None:
    """This test is the last: the topic is mirrored again afterwards, and the second router is gone."""
    run = stage.run
    run.kill("router-second")

    def refused() -> bool:
        told = run.cli("rollback", TOPIC, "--plan").told
        return "router second" in str(told.get("what")) and told["error"] == "router-unheard"

    wait_until(refused, 60, run.logs)
    run.writers_go_on(50)
    run.does("router", "forget", "second", "--dead", "--yes")
    wait_until(lambda: run.cli("rollback", TOPIC, "--yes").code == 0, 90, run.logs)
    run.writers_go_on(50)
