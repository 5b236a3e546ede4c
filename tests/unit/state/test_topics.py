"""Tests of the creation of the state topics, of their configs, and of topics that cannot hold state."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kmigrate
from kmigrate.cli.reference.source import parse_source
from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, KmigrateError, Refused, Unreachable
from kmigrate.model.security import Bearer, Login, Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.state.topics import (
    MAP_TOPIC,
    PRESENCE_TOPIC,
    STATE_TOPIC,
    check_state_log,
    ensure_map_topic,
    ensure_state_log,
    single_partition_topic,
)


class Told:
    """A cluster with the same answer about a topic at each refresh, and the same log end for all partitions."""

    def __init__(self, partitions: int, error: int = 0, end: int = 0, end_error: int = 0) -> None:
        self.settings = ClusterSettings("target", (("h", 9092),), security=Security(None, Login("PLAIN", "mover", "x")))
        parts = {number: PartitionInfo(1, 0, (1,)) for number in range(partitions)}
        self._info = TopicInfo(STATE_TOPIC, None, parts, error)
        self._end = SimpleNamespace(offset=end, error=end_error)

    async def topic(self, name: str) -> TopicInfo:
        return self._info

    async def list_offsets(self, keys: dict[tuple[str, int], int]) -> dict[tuple[str, int], Any]:
        return dict.fromkeys(keys, self._end)


def refusal(told: Told, patience_s: float = 0.0) -> KmigrateError:
    with pytest.raises(KmigrateError) as caught:
        asyncio.run(single_partition_topic(told, STATE_TOPIC, patience_s))  # type: ignore[arg-type]
    return caught.value


def test_a_topic_that_may_not_be_seen_has_no_wrong_number_of_partitions() -> None:
    error = refusal(Told(0, Code.TOPIC_AUTHORIZATION_FAILED))
    assert isinstance(error, BrokerRefused)
    assert f"refused DESCRIBE on topic {STATE_TOPIC} to User:mover" in error.what
    assert "partitions" not in error.what


def test_a_topic_whose_leader_is_not_elected_yet_has_no_wrong_number_of_partitions() -> None:
    error = refusal(Told(0, Code.LEADER_NOT_AVAILABLE))
    assert isinstance(error, Unreachable)
    assert "LEADER_NOT_AVAILABLE" in error.what


def test_only_a_topic_that_surely_holds_no_record_may_be_deleted() -> None:
    assert isinstance(refusal(Told(3)), Refused)
    assert "delete the empty topic" in refusal(Told(3)).next_step
    for told in (Told(3, end=1), Told(3, end_error=Code.TOPIC_AUTHORIZATION_FAILED)):
        assert "delete" not in refusal(told).next_step
        assert f"keep topic {STATE_TOPIC}" in refusal(told).next_step


@pytest.mark.parametrize(
    ("security", "named"),
    [
        (Security(None, Login("PLAIN", "mover", "secret")), "User:mover"),
        (Security(None, Bearer("token")), "the principal of its token"),
        (Security(Tls(cert_file="me.pem")), "the principal of certificate me.pem"),
        (Security(), "User:ANONYMOUS"),
    ],
)
def test_a_principal_is_named_as_far_as_the_configuration_tells_it(security: Security, named: str) -> None:
    assert security.principal == named


_DESTROYS = re.compile(r"\b(delete|remove|drop)\b.*(\btopics?\b|STATE_TOPIC|PRESENCE_TOPIC|MAP_TOPIC|__kmigrate)")
_ASKS_FIRST = ("delete_unneeded(", "empty topic", "delete the copy on the target")


def _advice() -> Iterator[tuple[str, str]]:
    """Return every next step in the source code, with the names of values in place of the values."""
    for file in sorted(Path(kmigrate.__file__).parent.rglob("*.py")):
        for node in ast.walk(parse_source(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "next_step":
                yield file.name, ast.unparse(node.value)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and len(node.args) > 3:
                yield file.name, ast.unparse(node.args[3])


def test_no_message_advises_to_delete_a_topic_that_somebody_may_need() -> None:
    found = list(_advice())
    assert len(found) > 200
    unasked = [
        (file, text)
        for file, text in found
        if _DESTROYS.search(text) and not any(words in text for words in _ASKS_FIRST)
    ]
    assert not unasked


class LateBrokers:
    """A cluster whose brokers learn of the new topics with each answer."""

    def __init__(self, refusals: Sequence[int]) -> None:
        self.refusals = list(refusals)
        self.topics = dict.fromkeys((STATE_TOPIC, PRESENCE_TOPIC), self)
        self.partitions = {0: SimpleNamespace(replicas=(0, 1, 2))}
        self.brokers = range(3)
        self.error = 0

    async def refresh(self, names: list[str]) -> LateBrokers:
        return self

    async def topic(self, name: str) -> LateBrokers | None:
        return self.topics.get(name)

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
    """A cluster of three brokers with some topics, given by the largest record that each topic accepts."""

    def __init__(self, limits: Mapping[str, int], *, alters: bool = True) -> None:
        self.limits = dict(limits)
        self._alters = alters
        self.replicas = 3
        self.settings = SimpleNamespace(name="target")

    async def refresh(self, names: list[str]) -> SimpleNamespace:
        kept = SimpleNamespace(partitions={0: SimpleNamespace(replicas=range(self.replicas))}, error=0)
        return SimpleNamespace(brokers=range(3), topics=dict.fromkeys(self.limits, kept))

    async def topic(self, name: str) -> SimpleNamespace | None:
        known: dict[str, SimpleNamespace] = (await self.refresh([name])).topics
        return known.get(name)

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


def ensure(topics: Any) -> list[tuple[str, str]]:
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


class Altered(Topics):
    """A cluster whose topics were created by an older version, or altered by somebody."""

    def __init__(self, configs: Mapping[str, str], *, alters: bool = True, own: bool = True) -> None:
        super().__init__(dict.fromkeys((STATE_TOPIC, PRESENCE_TOPIC), 8 << 20), alters=alters)
        self.own = own
        self.configs = {name: dict(configs) for name in self.limits}

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        told = await super().topic_configs(names)
        for name in names:
            told[name].update({key: ConfigValue(value, self.own) for key, value in self.configs[name].items()})
        return told

    async def alter_topic_configs(self, name: str, put: Mapping[str, str]) -> None:
        if not self._alters:
            raise BrokerRefused("broker-refused", "not allowed", code=Code.TOPIC_AUTHORIZATION_FAILED)
        self.configs[name].update(put)


WEAK = {
    "compression.type": "lz4",
    "message.timestamp.type": "CreateTime",
    "unclean.leader.election.enable": "true",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "1000",
}


def test_a_state_topic_on_which_the_log_cannot_rest_is_put_right() -> None:
    topics = Altered(WEAK)
    assert ensure(topics) == []
    assert topics.configs[STATE_TOPIC] == {
        "compression.type": "producer",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "min.compaction.lag.ms": "86400000",
        "delete.retention.ms": "86400000",
    }
    assert topics.configs[PRESENCE_TOPIC]["min.compaction.lag.ms"] == "120000", "new readers read the last minute"
    topics = Altered({"min.compaction.lag.ms": "86400001", "min.insync.replicas": "3"})
    before = dict(topics.configs[STATE_TOPIC])
    assert (ensure(topics), topics.configs[STATE_TOPIC]) == ([], before), "what is safer stays"


@pytest.mark.parametrize("own", [True, False])
def test_how_soon_the_log_cleaner_comes_is_left_to_who_has_set_it_on_the_topic(own: bool) -> None:
    topics = Altered({"segment.bytes": "1073741824", "max.compaction.lag.ms": "9223372036854775807"}, own=own)
    assert ensure(topics) == []
    assert (topics.configs[STATE_TOPIC]["segment.bytes"] == "16777216") == (not own)


def test_what_may_not_be_put_right_is_named() -> None:
    told = ensure(Altered(WEAK, alters=False))
    assert [ref for ref, _ in told] == ["state-log-weak"] * 9
    assert told[0][1].startswith(f"topic {STATE_TOPIC} has compression.type=lz4; ")


def test_replicas_that_may_be_out_of_sync_are_named_and_not_asked_for_again() -> None:
    """Somebody may have lowered the value on purpose, to go on with a single broker."""
    topics = Altered({"min.insync.replicas": "1"})
    assert [what.partition(";")[0] for _, what in ensure(topics)] == [
        f"topic {name} has min.insync.replicas=1" for name in (STATE_TOPIC, PRESENCE_TOPIC)
    ]
    assert topics.configs[STATE_TOPIC] == {"min.insync.replicas": "1"}


def test_of_a_topic_with_one_replica_no_more_are_asked_for_than_it_has() -> None:
    """With two in-sync replicas demanded, nothing could be written to the topic, however many brokers there are now."""
    topics = Altered({"min.insync.replicas": "1"})
    topics.replicas = 1
    assert ensure(topics) == []


@pytest.mark.parametrize("value", ["", "unlimited"])
def test_a_config_whose_value_a_cluster_hides_is_no_fault(value: str) -> None:
    """The cluster returns the config without a value, or with a text of its own."""
    topics = Altered(dict.fromkeys(["delete.retention.ms", "min.compaction.lag.ms", "max.message.bytes"], value))
    assert ensure(topics) == []
    assert topics.configs[STATE_TOPIC]["delete.retention.ms"] == value


def test_a_state_topic_whose_policy_a_cluster_hides_is_refused_by_name() -> None:
    class Silent(Altered):
        async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
            return {name: {} for name in names}

    with pytest.raises(Refused, match=r"cleanup\.policy"):
        ensure(Silent({}))


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_of_offset_maps_that_would_age_out_is_put_right(policy: str) -> None:
    """A map is written once and needed for good; the topic may have been created with a cluster's defaults."""
    topics = Altered({})
    topics.limits[MAP_TOPIC] = 1 << 20
    topics.configs[MAP_TOPIC] = {"cleanup.policy": policy, **WEAK}
    assert ensure(topics) == []
    assert topics.configs[MAP_TOPIC] == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "min.compaction.lag.ms": "0",
        "delete.retention.ms": "1000",
    }
    topics = Altered({}, alters=False)
    topics.limits[MAP_TOPIC], topics.configs[MAP_TOPIC] = 1 << 20, {"cleanup.policy": policy}
    assert [what.partition(";")[0] for _, what in ensure(topics)] == [f"topic {MAP_TOPIC} has cleanup.policy={policy}"]


def test_who_may_not_ask_for_the_configs_of_offset_maps_uses_the_state_log_all_the_same() -> None:
    class Guarded(Altered):
        async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
            if MAP_TOPIC in names:
                raise BrokerRefused("broker-refused", "not allowed", code=Code.TOPIC_AUTHORIZATION_FAILED)
            return await super().topic_configs(names)

    topics = Guarded(WEAK)
    topics.limits[MAP_TOPIC] = 1 << 20
    assert ensure(topics) == []
    assert topics.configs[STATE_TOPIC]["compression.type"] == "producer"


def test_who_has_no_mapped_topic_is_made_no_topic_of_offset_maps() -> None:
    topics = Topics({})
    ensure(topics)
    assert MAP_TOPIC not in topics.limits
    asyncio.run(ensure_map_topic(topics, topics))  # type: ignore[arg-type]
    assert MAP_TOPIC in topics.limits
