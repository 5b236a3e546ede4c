"""Tests of other writers of the state log, and of clusters with the same cluster id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, Refused, Unreachable
from kmigrate.model.acls import Acl
from kmigrate.model.security import Login, Security
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.state import checks
from kmigrate.state.checks import is_other_cluster, refuse_same_cluster
from kmigrate.state.topics import STATE_TOPIC
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.verbs import state_findings

OURS = Acl("topic", "__kmigrate_", "User:kmigrate", "*", "WRITE", pattern="prefixed")
THEIRS = Acl("topic", "*", "User:shop", "*", "ALL")
EVERYBODY = Acl("topic", "*", "User:*", "*", "WRITE")
OTHERS = Acl("topic", "orders", "User:till", "*", "WRITE")


def found(monkeypatch: pytest.MonkeyPatch, rules: Iterable[Acl] | None, *more: Any, **named: Any) -> list[str]:
    return [finding.what.partition(" may write")[0] for finding in findings(monkeypatch, rules, *more, **named)]


def findings(
    monkeypatch: pytest.MonkeyPatch,
    rules: Iterable[Acl] | None,
    user: str = "kmigrate",
    refused: bool = False,
    brokers: dict[str, ConfigValue] | None = None,
) -> list[Finding]:
    class Configs(nullcontext[None]):
        def __init__(self, _: Any) -> None:
            super().__init__()

        def __enter__(self) -> Any:
            return self

        async def broker_configs(self, _: int) -> dict[str, ConfigValue]:
            return brokers or {}

    monkeypatch.setattr(checks, "Admin", Configs)

    async def told(_: Any) -> frozenset[Acl] | None:
        if refused:
            raise BrokerRefused("acls-unreadable", "no")
        return None if rules is None else frozenset(rules)

    monkeypatch.setattr(checks, "read_acls", told)
    security = Security(sasl=Login("PLAIN", user)) if user else Security()
    settings = SimpleNamespace(name="target", security=security, bootstrap_servers="host:9092")
    client: Any = SimpleNamespace(settings=settings, metadata=SimpleNamespace(brokers={1: ("host", 9092)}))
    return asyncio.run(state_findings(client))


def test_others_that_may_write_the_state_log_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS, THEIRS, OTHERS]) == ["User:shop"]


def test_a_state_log_of_our_own_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS, OTHERS]) == []
    assert found(monkeypatch, [], refused=True) == []


def test_a_target_without_an_authorizer_is_open_to_everybody_and_the_acl_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(monkeypatch, None) == ["everybody who reaches target"]
    (told,) = findings(monkeypatch, None)
    assert (told.ref, told.level) == ("state-open", "warn")
    assert "--allow-principal User:kmigrate --operation All --topic __kmigrate_" in told.next_step


def test_brokers_that_let_everybody_use_what_no_acl_names_are_open_to_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"allow.everyone.if.no.acl.found": ConfigValue("", own=True)}
    assert found(monkeypatch, [OTHERS], brokers=told) == ["everybody who reaches target"]
    assert found(monkeypatch, [OURS, OTHERS], brokers=told) == []
    assert found(monkeypatch, [OTHERS], brokers={}) == []


def test_a_super_user_that_needs_no_rule_is_told_of_the_only_one_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [THEIRS]) == ["User:shop"]


def test_everybody_is_never_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [EVERYBODY], user="") == ["User:*"]
    assert found(monkeypatch, [EVERYBODY]) == ["User:*"]


def test_where_our_own_name_is_not_known_one_writer_is_taken_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [OURS], user="") == []
    assert found(monkeypatch, [OURS, THEIRS], user="") == ["User:kmigrate, User:shop"]


class Cluster:
    """A cluster with a state topic of some id (0: id not given, None: no such topic), and ends of the presence log."""

    def __init__(self, topic_id: int | None, *ends: int, cluster_id: str = "same", error: int = 0) -> None:
        self.settings = ClusterSettings("c", ())
        self.metadata = SimpleNamespace(cluster_id=cluster_id)
        self._id, self._ends, self._error = topic_id, list(ends), error

    async def topic(self, _: str) -> TopicInfo | None:
        if self._id is None:
            return None
        parts = {} if self._error else {0: PartitionInfo(1, 0, (1,))}
        return TopicInfo(STATE_TOPIC, UUID(int=self._id), parts, self._error)

    async def list_offsets(self, keys: dict[Any, int]) -> dict[Any, Any]:
        if not self._ends:
            raise Unreachable("away", "away")
        return dict.fromkeys(keys, SimpleNamespace(error=0, offset=self._ends.pop(0)))


def other(cluster: Cluster, target: Cluster) -> bool:
    return asyncio.run(is_other_cluster(cluster, target))  # type: ignore[arg-type]


def test_another_cluster_id_is_another_cluster() -> None:
    assert other(Cluster(7, cluster_id="else"), Cluster(7))


def test_a_cluster_without_the_state_topic_or_with_another_state_topic_is_another_cluster() -> None:
    assert other(Cluster(None), Cluster(7, 5, 5))
    assert other(Cluster(8, 5), Cluster(7, 5, 5))


def test_a_cluster_that_shows_the_targets_state_log_is_the_target() -> None:
    assert not other(Cluster(7, 6), Cluster(7, 5, 6))
    assert not other(Cluster(7), Cluster(7, 5, 6)), "an end that cannot be read proves nothing"


@pytest.mark.parametrize("topic_id", [0, 7])
def test_a_clone_with_the_state_log_ends_elsewhere_while_processes_run(topic_id: int) -> None:
    assert other(Cluster(topic_id, 3), Cluster(topic_id, 5, 6))
    assert not other(Cluster(topic_id, 5), Cluster(topic_id, 5, 5))


def test_the_same_cluster_is_refused_with_both_ways_on() -> None:
    with pytest.raises(Refused) as refused:
        asyncio.run(refuse_same_cluster(Cluster(7, 5), Cluster(7, 5, 5)))  # type: ignore[arg-type]
    assert refused.value.ref == "source-is-target"
    assert "correct the bootstrap addresses" in refused.value.next_step
    assert "kmigrate controller run" in refused.value.next_step


def test_a_state_topic_that_may_not_be_seen_is_told_as_a_missing_right() -> None:
    with pytest.raises(BrokerRefused, match="access-denied"):
        other(Cluster(0, error=Code.TOPIC_AUTHORIZATION_FAILED), Cluster(7))
