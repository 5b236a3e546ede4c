"""Tests of telling two clusters apart that have the same cluster id."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import BrokerRefused, Refused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.state.identity import is_other_cluster, refuse_same_cluster
from kmigrate.state.log import STATE_TOPIC


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
