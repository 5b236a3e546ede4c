"""A broker that has not heard yet of a topic made a moment ago is asked again, and only that is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.errors import BrokerRefused
from kmigrate.protocol.codes import Code
from kmigrate.state.create import check_state_log
from kmigrate.state.log import PRESENCE_TOPIC, STATE_TOPIC


class LateBrokers:
    """A cluster whose brokers learn of the new topics one answer after another."""

    def __init__(self, refusals: Sequence[int]) -> None:
        self.refusals = list(refusals)
        self.topics = dict.fromkeys((STATE_TOPIC, PRESENCE_TOPIC), self)
        self.partitions = {0: None}

    async def refresh(self, names: list[str]) -> LateBrokers:
        return self

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        if self.refusals:
            code = self.refusals.pop(0)
            raise BrokerRefused("broker-refused", "the broker refused", code=code, still_true="nothing was changed")
        return {name: {"cleanup.policy": ConfigValue("compact", True)} for name in names}


def check(brokers: Any) -> None:
    asyncio.run(check_state_log(brokers, brokers))


def test_a_topic_just_made_is_asked_for_until_the_broker_knows_it() -> None:
    brokers = LateBrokers([Code.UNKNOWN_TOPIC_OR_PARTITION] * 3)
    check(brokers)
    assert not brokers.refusals


def test_any_other_refusal_is_told_at_once() -> None:
    brokers = LateBrokers([Code.TOPIC_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(BrokerRefused):
        check(brokers)
    assert len(brokers.refusals) == 1
