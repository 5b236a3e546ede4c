"""A look at thousands of groups costs a few requests to each coordinator, and every group has its own outcome."""

from __future__ import annotations

import asyncio

import pytest

from kmigrate.cluster import coordinators
from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.committed_offsets import CommittedOffset, read_all_positions
from kmigrate.cluster.groups import describe_groups
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code
from tests.fakes.group_brokers import OLD, GroupBrokers

MEMBER = GroupMember("m-1", "app", "/10.0.0.7")
PARTS = {"m-1": (("orders", 0), ("orders", 1))}
POSITIONS = {("orders", 0): CommittedOffset(7, "x")}


def described(name: str, kind: str = "classic") -> GroupState:
    return GroupState(name, "stable", kind, (MEMBER,), frozenset({"orders"}), PARTS)


def brokers(count: int, kind: str = "classic") -> GroupBrokers:
    names = [f"g-{number}" for number in range(count)]
    return GroupBrokers({name: described(name, kind) for name in names}, dict.fromkeys(names, POSITIONS))


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_two_thousand_groups_are_described_with_twenty_requests(kind: str) -> None:
    cluster = brokers(2_000, kind)
    found = asyncio.run(describe_groups(cluster, cluster.groups))
    assert found == cluster.groups
    each = 8 + 6 + 6  # 800, 600 and 600 groups of three coordinators, a hundred with a request
    assert cluster.requests.pop(ApiKey.API_VERSIONS.name) == (1 if kind == "classic" else 4)
    modern = {} if kind == "classic" else {"CONSUMER_GROUP_DESCRIBE": each}
    assert cluster.requests == {"FIND_COORDINATOR": 20, "DESCRIBE_GROUPS": each, **modern}


def test_the_committed_offsets_of_two_thousand_groups_are_read_with_twenty_requests() -> None:
    cluster = brokers(2_000)
    assert asyncio.run(read_all_positions(cluster, cluster.groups)) == cluster.positions
    assert cluster.requests == {"API_VERSIONS": 4, "FIND_COORDINATOR": 20, "OFFSET_FETCH": 20}


def test_brokers_of_kafka_2_8_are_asked_about_one_group_at_a_time() -> None:
    cluster = brokers(40)
    cluster.versions = dict(OLD)
    assert asyncio.run(read_all_positions(cluster, cluster.groups)) == cluster.positions
    assert asyncio.run(describe_groups(cluster, cluster.groups)) == cluster.groups
    assert cluster.requests["OFFSET_FETCH"] == 40
    assert cluster.requests["DESCRIBE_GROUPS"] == 3, "each version of DescribeGroups takes many groups"


def test_no_group_costs_no_request() -> None:
    cluster = brokers(0)
    assert asyncio.run(describe_groups(cluster, [])) == {}
    assert not cluster.requests


def test_a_silent_coordinator_is_the_failure_of_its_groups_alone() -> None:
    cluster = brokers(1_000)
    cluster.silent = 1
    found = asyncio.run(describe_groups(cluster, cluster.groups))
    failed = {name for name, outcome in found.items() if isinstance(outcome, Unreachable)}
    assert failed == {name for name in cluster.groups if cluster.coordinator(name) == 1}
    assert cluster.requests["DESCRIBE_GROUPS"] == 4 + 1 + 3, "a coordinator that was silent once is not asked again"


def test_a_coordinator_that_moves_is_asked_again_and_a_refusal_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "_PAUSE_S", 0.001)
    cluster = brokers(4)
    cluster.codes = {"g-1": [Code.NOT_COORDINATOR], "g-2": [Code.GROUP_AUTHORIZATION_FAILED]}
    found = asyncio.run(read_all_positions(cluster, cluster.groups))
    refused = found.pop("g-2")
    assert isinstance(refused, BrokerRefused)
    assert "OffsetFetch of group g-2 with GROUP_AUTHORIZATION_FAILED" in refused.what
    assert found == {name: POSITIONS for name in cluster.groups if name != "g-2"}


def test_an_unknown_group_is_dead_and_a_malformed_assignment_names_nothing() -> None:
    cluster = brokers(1)
    found = asyncio.run(describe_groups(cluster, ["g-0", "other-1"]))
    assert found["other-1"] == GroupState("other-1", "dead", "unknown", ())
    cluster.malformed = True
    unnamed = GroupState("g-0", "stable", "classic", (MEMBER,), assignments={"m-1": ()})
    assert asyncio.run(describe_groups(cluster, ["g-0"])) == {"g-0": unnamed}
