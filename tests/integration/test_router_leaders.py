"""A router lives for weeks while leaders move, and brokers of both sides die and return.

The topics are forwarded to the source, or promoted, so that the router passes their writes on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals

import pytest

from kmigrate.sandbox.checker import Verdict
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC
from tests.integration.migration import Migration, wait_until
from tests.integration.router_world import quietly
from tests.soak.chaos import move_leaders, wait_in_sync

Names = Callable[[str], str]

_OF_BROKERS = ["__consumer_offsets", "__transaction_state"]
_OF_RETRIES = {"duplicated", "reordered", "misplaced", "group_rereads"}
"""Findings that a producer without idempotence causes by resending, with brokers alone too."""
_OF_COORDINATORS = ("commit COORDINATOR_LOAD_IN_PROGRESS", "commit _WAIT_COORD")
"""Errors of commits that brokers cause by themselves.

While a broker has just taken over a group, librdkafka retries a few times and then reports the error. After a
coordinator's death librdkafka postpones a commit while no coordinator is known, for as long as a session lasts.
"""
_RATE = 30.0
_GAP_S = (0.2, 0.8)
_MOVES = 6
"""Least number of moved leaders of each side before the first broker is stopped."""
_MOVES_S = 60.0
_DEAD_S = 7.0


@dataclass(frozen=True)
class Connections:
    """Topics of a route with their writers and readers.

    A topic is for writers that store each record once, the other topic for writers that may store a record twice.
    """

    once: str
    again: str

    @property
    def topics(self) -> tuple[str, str]:
        return self.once, self.again

    @property
    def group(self) -> str:
        return f"{self.once}-group"

    def clients(self) -> list[ClientSpec]:
        return [
            ProducerSpec(f"{self.once}-idempotent", "librdkafka", self.once, _RATE),
            TransactionalSpec(f"{self.once}-till", self.once, _RATE / 3),  # each is a hole, slow with three replicas
            ProducerSpec(f"{self.again}-bare", "librdkafka", self.again, _RATE, idempotent=False),
            *(ConsumerSpec(f"{self.once}-reader-{n}", "librdkafka", self.group, self.topics) for n in (1, 2)),
        ]


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param([], id="leaders-alone"),
        pytest.param([(1, SIGKILL)], id="one-of-each-side", marks=pytest.mark.soak),
        pytest.param(
            [(node, how) for how in (SIGTERM, SIGKILL) for node in (1, 2, 3)],
            id="all-in-turn",
            marks=[pytest.mark.soak, pytest.mark.timeout(600)],
        ),
    ],
)
def test_no_client_of_a_router_is_harmed_when_leaders_move_and_brokers_of_both_sides_come_and_go(
    migration3: Migration, unique_name: Names, stops: list[tuple[int, Signals]]
) -> None:
    run = migration3
    kept, moved = (Connections(unique_name(name), unique_name(f"{name}-again")) for name in ("kept", "moved"))
    topics = [*kept.topics, *moved.topics]
    for topic in topics:
        run.make_topic(topic, 3, 3, config={"min.insync.replicas": "2"})
    for connections in (kept, moved):
        run.make_group(connections.group, *connections.topics)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", *topics)
    run.does("group", "mirror", kept.group, moved.group)
    run.run_clients([*kept.clients(), *moved.clients()], at=run.routers)
    run.does("group", "promote", moved.group, "--yes")
    run.does("promote", *moved.topics, "--yes")
    asyncio.run(disturbed(run, topics, stops))
    run.writers_go_on(30)
    once, again = run.judge(kept.once, moved.once), run.judge(kept.again, moved.again)
    assert harm(once) <= {"group_rereads"}, f"{once.named}\n{run.logs()}"
    assert harm(again) <= _OF_RETRIES, f"{again.named}\n{run.logs()}"


def harm(verdict: Verdict) -> set[str]:
    """Return the findings, without the errors that clients get from brokers alone, too."""
    found = set(verdict.named)
    if all(text.endswith(_OF_COORDINATORS) for text in verdict.findings["client_errors"].examples):
        found.discard("client_errors")
    return found


async def disturbed(run: Migration, topics: list[str], stops: list[tuple[int, Signals]]) -> None:
    """Move leaders while a broker of each side after the other is gone and returns."""
    moves = {"source": 0, "target": 0}
    ours = [STATE_TOPIC, PRESENCE_TOPIC]
    async with asyncio.TaskGroup() as group:
        moving = [
            group.create_task(move_leaders(cluster, [*topics, *of_it], random.Random(), moves, _GAP_S))
            for cluster, of_it in ((run.source, _OF_BROKERS), (run.target, _OF_BROKERS + ours))
        ]
        await quietly(wait_until, lambda: min(moves.values()) >= _MOVES, _MOVES_S, lambda: f"leaders to move: {moves}")
        for stop in stops:
            async with asyncio.TaskGroup() as sides:
                for cluster in (run.source, run.target):
                    sides.create_task(quietly(is_gone_for_a_while, cluster, *stop))
        for task in moving:
            task.cancel()


def is_gone_for_a_while(cluster: KafkaCluster, node: int, how: Signals) -> None:
    """Stop a broker until other brokers lead its partitions, also where the broker had no time to hand them over."""
    if how is SIGKILL:
        cluster.kill(node)
        time.sleep(_DEAD_S)
    else:
        cluster.terminate(node)
    cluster.restart(node)
    cluster.wait_ready()
    wait_in_sync(cluster)
