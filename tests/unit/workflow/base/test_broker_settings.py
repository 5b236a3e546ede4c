"""Broker settings are reported only where the target's value can harm clients of the source."""

from __future__ import annotations

import pytest

from kmigrate.workflow.base.broker_settings import ALL, BrokerSettings, Scope, compare_settings, limit

SERVED = {"group.coordinator.rebalance.protocols": ("classic,consumer",)}


def sentences(source: BrokerSettings, target: BrokerSettings) -> list[str]:
    return [finding.what for finding in compare_settings(source, target)]


def test_a_lower_limit_is_named_with_both_values_the_effect_and_the_change() -> None:
    key = "group.max.session.timeout.ms"
    (finding,) = compare_settings({key: ("600000",)}, {key: ("60000",)})
    assert (finding.level, finding.ref) == ("warn", "broker-setting")
    assert finding.what.startswith(f"{key} is 600,000 on the source and 60,000 on the target: ")
    assert "INVALID_SESSION_TIMEOUT" in finding.what
    assert f"{key}=600000" in finding.next_step


@pytest.mark.parametrize(
    ("key", "source", "target"),
    [
        ("group.max.session.timeout.ms", "60000", "600000"),
        ("group.min.session.timeout.ms", "6000", "1000"),
        ("connections.max.idle.ms", "600000", "-1"),
        ("auto.create.topics.enable", "false", "true"),
        ("group.coordinator.rebalance.protocols", "classic", "classic,consumer,streams"),
    ],
)
def test_a_target_that_allows_more_is_not_named(key: str, source: str, target: str) -> None:
    assert sentences({key: (source,)}, {key: (target,)}) == []


@pytest.mark.parametrize(
    ("key", "source", "target"),
    [
        ("group.min.session.timeout.ms", "1000", "6000"),
        ("connections.max.idle.ms", "-1", "600000"),
        ("auto.create.topics.enable", "true", "false"),
        ("group.coordinator.rebalance.protocols", "classic,consumer", "classic"),
        ("offsets.retention.minutes", "10080", "1440"),
        ("max.connections.per.ip", "2147483647", "100"),
    ],
)
def test_a_target_that_allows_less_is_named(key: str, source: str, target: str) -> None:
    assert len(sentences({key: (source,)}, {key: (target,)})) == 1


def test_brokers_that_differ_count_by_the_worst_of_the_target_and_the_best_of_the_source() -> None:
    key = "message.max.bytes"
    (said,) = sentences({key: ("1000", "5000")}, {key: ("4000", "9000")})
    assert "5,000 on the source and 4,000 on the target" in said


def test_an_unknown_value_is_not_compared() -> None:
    key = "transaction.max.timeout.ms"
    assert sentences({key: ()}, {key: ("1",)}) == []
    assert sentences({key: ("1",)}, {}) == []
    assert limit({key: ()}, key) is None


def test_kafkas_own_assignors_are_the_same_by_class_and_by_name() -> None:
    key, package = "group.consumer.assignors", "org.apache.kafka.coordinator.group.assignor"
    source = {key: (f"{package}.UniformAssignor,{package}.RangeAssignor",), **SERVED}
    assert sentences(source, {key: ("uniform,range",), **SERVED}) == []
    (said,) = sentences({key: ("uniform,com.example.Own",), **SERVED}, {key: ("uniform",), **SERVED})
    assert "com.example.Own" in said
    assert sentences({key: ("com.example.Own",)}, {key: ("uniform",)}) == [], "the source does not serve the protocol"


def test_a_step_hears_of_its_own_settings_only() -> None:
    source = {"message.max.bytes": ("9",), "group.max.size": ("9",)}
    target = {"message.max.bytes": ("8",), "group.max.size": ("8",)}
    assert len(compare_settings(source, target, {Scope.GROUPS})) == 1
    assert len(compare_settings(source, target, ALL)) == 2
