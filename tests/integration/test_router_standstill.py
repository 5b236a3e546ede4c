"""Brokers behind a router that stand still: they accept connections and requests, answer nothing, and lead no more.

Other brokers lead after some seconds. A direct client of a cluster waits for the new leader and for its own request
timeout. A client of a router must not wait longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kmigrate.sandbox.checker import Verdict
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec, TransactionalSpec
from tests.integration.migration import Migration
from tests.soak.chaos import wait_in_sync

pytestmark = pytest.mark.soak

Names = Callable[[str], str]

_IMPATIENT = {"socket.timeout.ms": 4000, "request.timeout.ms": 4000}
_IMPATIENT_READER = {"socket.timeout.ms": 4000}
_ELECTED_S = 10.0
"""Time for an election: a broker counts as dead after nine seconds of silence."""
_GOES_ON_S = 30.0
_RATE = 60.0
_OF_SILENCE = ("commit _TIMED_OUT", "commit COORDINATOR_LOAD_IN_PROGRESS")


def test_clients_go_on_while_a_broker_stands_still(migration3: Migration, unique_name: Names) -> None:
    run = migration3
    kept, moved = unique_name("kept"), unique_name("moved")
    clients: list[ClientSpec] = []
    for topic in (kept, moved):
        for name in (topic, f"{topic}-tx"):
            run.make_topic(name, 3, 3, config={"min.insync.replicas": "2"})
        run.make_group(f"{topic}-group", topic, f"{topic}-tx")
        clients += [
            ProducerSpec(f"{topic}-rd", "librdkafka", topic, _RATE, settings=_IMPATIENT),
            TransactionalSpec(f"{topic}-till", f"{topic}-tx", _RATE, settings=_IMPATIENT),
            ConsumerSpec(f"{topic}-reader", "librdkafka", f"{topic}-group", (topic, f"{topic}-tx"), _IMPATIENT_READER),
        ]
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", kept, f"{kept}-tx", moved, f"{moved}-tx")
    run.does("group", "mirror", f"{kept}-group", f"{moved}-group")
    run.run_clients(clients, at=run.routers)
    run.does("group", "promote", f"{moved}-group", "--yes")
    run.does("promote", moved, f"{moved}-tx", "--yes")
    run.writers_go_on(100)
    for cluster in (run.source, run.target):
        cluster.pause(1)
        time.sleep(_ELECTED_S)
        went = how_long_until_all_go_on(run)
        assert max(went.values()) < _GOES_ON_S, f"{cluster.spec.name}: {went}\n{run.logs()}"
        cluster.resume(1)
        cluster.wait_ready()
        wait_in_sync(cluster)
    verdict = run.judge(kept, moved, f"{kept}-tx", f"{moved}-tx")
    assert not harm(verdict), f"{verdict.named}\n{run.logs()}"


def how_long_until_all_go_on(run: Migration) -> dict[str, float]:
    """Return for each writer the time until some seconds' records are acknowledged."""
    began, before, went = time.monotonic(), run.acknowledged(), dict[str, float]()
    while went.keys() != before.keys() and time.monotonic() < began + _GOES_ON_S:
        went |= {
            name: time.monotonic() - began
            for name, count in run.acknowledged().items()
            if name not in went and count > before[name] + _RATE * 3
        }
        time.sleep(0.1)
    return {name: went.get(name, _GOES_ON_S) for name in before}


def harm(verdict: Verdict) -> set[str]:
    """Return the findings, without the effects that an unreachable coordinator has on its groups anyway."""
    found = set(verdict.named) - {"group_rereads"}
    if all(text.endswith(_OF_SILENCE) for text in verdict.findings["client_errors"].examples):
        found.discard("client_errors")
    return found
