"""Only a broker that closes the connection behind a refused Produce request with acks=0 passes the probe."""

from __future__ import annotations

import asyncio

import pytest

from kmigrate.errors import Unreachable
from kmigrate.mirror.copy.window_probe import closes_behind_refusals
from kmigrate.protocol.api import ApiKey
from tests.unit.mirror.copy.scripted_broker import ScriptedBroker

KEY = ("t", 0)


def test_a_broker_that_closes_twice_passes_and_stores_nothing() -> None:
    broker = ScriptedBroker()
    assert asyncio.run(closes_behind_refusals(broker.client, 1, KEY))
    assert [kind for kind, _ in broker.requests] == ["LIST_OFFSETS", "PRODUCE"] * 2
    assert broker.log(*KEY).kinds == ""


def test_a_broker_that_goes_on_does_not_pass() -> None:
    broker = ScriptedBroker(closes=False)
    assert not asyncio.run(closes_behind_refusals(broker.client, 1, KEY))
    assert broker.log(*KEY).kinds == ""


def test_a_connection_that_is_lost_by_chance_is_no_proof() -> None:
    """The first connection is lost; on the second the broker goes on."""
    broker = ScriptedBroker()

    def lose_first(key: ApiKey) -> None:
        broker.closes = len([kind for kind, _ in broker.requests if kind == "PRODUCE"]) < 2

    broker.before = lose_first
    assert not asyncio.run(closes_behind_refusals(broker.client, 1, KEY))


def test_a_broker_that_does_not_answer_is_asked_another_time() -> None:
    broker = ScriptedBroker()

    def fall_silent(key: ApiKey) -> None:
        if key is ApiKey.PRODUCE:
            for line in broker.opened.values():
                for _, _, answer in line.waiting:
                    if answer is not None:
                        answer.set_exception(Unreachable("no-answer", "the broker did not answer"))
                line.waiting.clear()

    broker.closes = False
    broker.before = fall_silent
    with pytest.raises(Unreachable):
        asyncio.run(closes_behind_refusals(broker.client, 1, KEY))
