"""A plan's findings on values that topics inherit from the source's brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kmigrate.cli.commands.target_configs import default_findings
from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, KmigrateError, Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import DefaultsFrom, LinkSettings
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord
from kmigrate.state.topics import STATE_TOPIC
from kmigrate.workflow.base.plan import Finding
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
MIRRORED = TopicRecord("l", "mirrored", TopicPhase.MIRRORING, 1, partitions=1)
ADDED_TO = TopicRecord("l", "added-to", TopicPhase.MIRRORING, 1, partitions=1, target_starts={0: 5})


class Source:
    """A source that keeps all records for ever, except in a topic with a retention of its own."""

    async def topic_config_outcomes(self, topics: Sequence[str]) -> dict[str, dict[str, ConfigValue] | KmigrateError]:
        told: dict[str, dict[str, ConfigValue] | KmigrateError] = {
            topic: {"retention.ms": ConfigValue("-1", topic == "own"), "max.message.bytes": ConfigValue("9", own=False)}
            for topic in topics
        }
        return {**told, "hidden": BrokerRefused("broker-refused", "TOPIC_AUTHORIZATION_FAILED", code=29)}


class Target:
    """A target whose brokers keep records for a week; three of its topics hold data."""

    metadata = SimpleNamespace(brokers={1: ("h", 2)})

    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    async def refresh(self, topics: Sequence[str]) -> SimpleNamespace:
        standing = {"mirrored", "added-to", "filled"} & set(topics)
        part = PartitionInfo(1, 0, (1,))
        return SimpleNamespace(topics={topic: TopicInfo(topic, None, {0: part}) for topic in standing})

    async def list_offsets(self, keys: dict[tuple[str, int], int]) -> dict[tuple[str, int], SimpleNamespace]:
        return {key: SimpleNamespace(offset=7) for key in keys}

    async def broker_configs(self, _: int) -> dict[str, ConfigValue]:
        if self.away:
            raise Unreachable("cluster-unreachable", "cluster t did not answer", next_step="look at it")
        values = {"log.retention.hours": "168", "message.max.bytes": "9"}
        return {key: ConfigValue(value, own=False) for key, value in values.items()}

    async def topic_configs(self, _: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        return {STATE_TOPIC: {"retention.ms": ConfigValue("5", own=True)}}


def found(*topics: str, settings: LinkSettings | None = None, target: Target | None = None) -> list[Finding]:
    there: Any = target or Target()

    async def source(_: LinkRecord) -> tuple[None, Source]:
        return None, Source()

    connections: Any = SimpleNamespace(
        source=source, target=there, target_admin=there, log=MemoryLog(LINK, MIRRORED, ADDED_TO)
    )
    return asyncio.run(default_findings(connections, replace(LINK, settings=settings or LinkSettings()), topics))


def test_a_topic_that_the_targets_brokers_would_give_another_value_is_named_with_both() -> None:
    what = "topic {} keeps what the source's brokers give it: retention.ms=-1 (the target's: 604800000)"
    assert [each.what for each in found("new", "own", "mirrored")] == [what.format("new"), what.format("mirrored")]


def test_a_topic_that_keeps_the_targets_own_configs_is_not_named() -> None:
    assert found("filled", "added-to") == []


def test_what_a_person_leaves_to_the_target_is_not_named() -> None:
    assert found("new", settings=LinkSettings(config_exclude=("retention.*",))) == []
    assert found("new", settings=LinkSettings(use_defaults_from=DefaultsFrom.TARGET)) == []


def test_a_target_that_does_not_tell_its_defaults_is_a_warning() -> None:
    (finding,) = found("new", target=Target(away=True))
    assert (finding.level, finding.ref, finding.what) == ("warn", "cluster-unreachable", "cluster t did not answer")
