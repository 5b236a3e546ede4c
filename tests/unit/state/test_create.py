"""The state topics are asked for until the broker knows them, and take records of 8 MiB where that is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.errors import BrokerRefused
from kmigrate.protocol.codes import Code
from kmigrate.state.create import check_state_log, ensure_state_log
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


class Topics:
    """A cluster of three brokers that has some topics, by how large a record they take."""

    def __init__(self, limits: Mapping[str, int], *, alters: bool = True) -> None:
        self.limits = dict(limits)
        self._alters = alters
        self.settings = SimpleNamespace(name="target")

    async def refresh(self, names: list[str]) -> SimpleNamespace:
        return SimpleNamespace(brokers=range(3), topics={n: SimpleNamespace(partitions={0: None}) for n in self.limits})

    def leader(self, topic: str, partition: int) -> int:
        return 0

    async def create_topic(self, name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> bool:
        self.limits[name] = 1 << 20
        return True

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        compact = ConfigValue("compact", True)
        return {
            name: {"cleanup.policy": compact, "max.message.bytes": ConfigValue(str(self.limits[name]), False)}
            for name in names
        }

    async def alter_topic_configs(self, name: str, put: Mapping[str, str]) -> None:
        if not self._alters:
            raise BrokerRefused("broker-refused", "the broker refused", code=Code.TOPIC_AUTHORIZATION_FAILED)
        assert list(put) == ["max.message.bytes"], "anything else stays as it is"
        self.limits[name] = int(put["max.message.bytes"])


def ensure(topics: Any) -> list[str]:
    return asyncio.run(ensure_state_log(topics, topics))


@pytest.mark.parametrize("before", [{}, {STATE_TOPIC: 1 << 20, PRESENCE_TOPIC: 1 << 20}])
def test_both_topics_take_what_a_process_says_of_20_000_partitions_also_those_of_an_older_version(
    before: dict[str, int],
) -> None:
    topics = Topics(before)
    ensure(topics)
    assert topics.limits == dict.fromkeys((STATE_TOPIC, PRESENCE_TOPIC), 8 << 20)


def test_a_limit_that_is_higher_already_stays() -> None:
    topics = Topics({STATE_TOPIC: 20 << 20, PRESENCE_TOPIC: 20 << 20})
    ensure(topics)
    assert set(topics.limits.values()) == {20 << 20}


def test_where_limits_may_not_be_altered_the_state_log_is_used_as_it_is() -> None:
    topics = Topics({STATE_TOPIC: 1 << 20, PRESENCE_TOPIC: 1 << 20}, alters=False)
    assert ensure(topics) == []
