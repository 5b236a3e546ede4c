"""Wrong clocks change no decision, because machines compare only times of the state log's clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.errors import Refused
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import RouterRecord
from kmigrate.net.clock import now_ms
from kmigrate.router.process.registration import Registration
from kmigrate.workflow import verbs
from kmigrate.workflow.promote.direct_writers import direct_writers
from tests.fakes.finishing import LINK, ROUTER, TOPIC, Connections, run
from tests.fakes.proposals import run_verb
from tests.fakes.scripted_cluster import FakeCluster
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK as OF_PENDING
from tests.unit.workflow.promote.test_topic import PENDING
from tests.unit.workflow.verbs import test_forget

HOUR_MS = 3_600_000

pytestmark = pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])


def test_retries_are_waited_out_for_as_long_as_they_take(ahead_ms: int) -> None:
    for promoted_s_ago, over in ((20, False), (121, True)):
        flipped = replace(TOPIC, promoted_ms=now_ms() + ahead_ms - promoted_s_ago * 1000)
        for delete in (False, True):
            connections = Connections(LINK, flipped, ROUTER)
            connections.log.ahead_ms = ahead_ms
            try:
                run(run_verb(verbs.delete_link(connections, "l", 120.0))) if delete else connections.finish()  # type: ignore[arg-type]
                refused = ""
            except Refused as why:
                refused = why.ref
            assert refused == ("" if over else "retries-not-over")


def test_a_router_that_has_just_started_is_known_as_that_and_for_no_longer(ahead_ms: int) -> None:
    for started_s_ago, ref in ((50, "router-just-started"), (61, "")):
        router = replace(ROUTER, since_ms=now_ms() + ahead_ms - started_s_ago * 1000)
        connections = test_forget.Connections(test_forget.GROUP, router, word=test_forget.WORD)
        connections.log.ahead_ms = ahead_ms
        if ref:
            assert test_forget.refusal(connections, test_forget.forget_group) == ref
        else:
            assert test_forget.forget_group(connections).applied


def test_a_router_writes_down_when_it_started_by_the_clock_that_others_compare_it_with(ahead_ms: int) -> None:
    log = MemoryLog()
    log.ahead_ms = ahead_ms
    asyncio.run(Registration(log, "edge", "host", "i").take("host:1"))  # type: ignore[arg-type]
    router = log.state.records["router/edge"]
    assert isinstance(router, RouterRecord)
    assert abs(log.now_ms() - router.since_ms) < HOUR_MS / 2


def test_who_writes_past_routers_is_found_by_the_log_s_clock_and_told_when(ahead_ms: int) -> None:
    log = MemoryLog(OF_PENDING)
    log.ahead_ms = ahead_ms

    def found(ago_ms: int) -> list[str]:
        writer = ProducerState(7, 0, 5, log.now_ms() - ago_ms, -1)
        source = FakeCluster(producers=(writer,))
        return asyncio.run(direct_writers(log, source, PENDING, 5.0))  # type: ignore[arg-type]

    assert [sentence.rpartition(" source ")[2] for sentence in found(2_000)] == ["2.0 s ago, past every router"] * 2
    assert found(8_000) == []


def test_what_a_mirror_saw_is_dated_by_that_mirror_alone(ahead_ms: int) -> None:
    log = MemoryLog(OF_PENDING)

    def found(ago_ms: int) -> list[str]:
        said_ms = now_ms() + ahead_ms
        seen = PartitionProgress(100, direct_id=7, direct_offset=99, direct_ms=said_ms - ago_ms)
        log.say(MirrorPresence("m", "l", 1, True, 500, {"t": {0: seen}}, said_ms=said_ms))
        return asyncio.run(direct_writers(log, FakeCluster(producers=()), PENDING, 5.0))  # type: ignore[arg-type]

    assert (len(found(2_000)), found(8_000)) == (1, [])
