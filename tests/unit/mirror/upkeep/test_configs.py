"""Configs of the target topic during mirroring and after the promote."""

from __future__ import annotations

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.mirror.upkeep.configs import carried_configs, own_configs, target_configs, topic_defaults

FOR_EVER = str((1 << 63) - 1)


def told(**values: str) -> dict[str, ConfigValue]:
    """Return configs as brokers report them; in the names _ stands for a dot."""
    return {key.replace("_", "."): ConfigValue(value, own=False) for key, value in values.items()}


def test_the_sources_own_configs_come_along_and_nothing_ages_out_while_mirroring() -> None:
    made = target_configs({"retention.ms": "1000", "segment.ms": "60000", "confluent.placement": "x"}, 1)
    assert made.now["retention.ms"] == "-1"
    assert made.now["segment.ms"] == "60000"
    assert "confluent.placement" not in made.now
    assert made.restore == {"retention.ms": "1000"}
    assert "retention.ms" not in made.drop
    assert "retention.bytes" in made.drop


def test_a_compacted_topic_is_compacted_again_only_at_promote() -> None:
    made = target_configs({"cleanup.policy": "compact"}, 1)
    assert made.now["cleanup.policy"] == "delete"
    assert made.restore["cleanup.policy"] == "compact"


def test_values_that_the_target_cannot_take_are_bounded() -> None:
    made = target_configs({"segment.bytes": "1000", "min.insync.replicas": "2"}, 1)
    assert made.restore["segment.bytes"] == str(1 << 20)
    assert made.now["segment.bytes"] == made.now["max.message.bytes"]
    assert made.now["min.insync.replicas"] == "1"


def test_every_config_set_for_mirroring_is_either_restored_or_dropped() -> None:
    own = {"max.message.bytes": "5", "compression.type": "gzip"}
    made = target_configs(own, 3)
    changed = {key for key, value in made.now.items() if own.get(key) != value}
    assert changed == set(made.restore) | set(made.drop)


def test_the_one_time_limit_of_older_kafkas_becomes_the_two_of_newer_ones() -> None:
    set_on = {"message.timestamp.difference.max.ms": "7", "message.timestamp.after.max.ms": "3"}
    own = own_configs({key: ConfigValue(value, own=True) for key, value in set_on.items()})
    assert own == {"message.timestamp.before.max.ms": "7", "message.timestamp.after.max.ms": "3"}


def test_what_the_sources_brokers_give_a_topic_is_carried_where_the_targets_would_give_it_another_value() -> None:
    source = told(retention_ms="-1", cleanup_policy="compact", max_message_bytes="10000000", segment_ms="5")
    own = {"delete.retention.ms": ConfigValue("9", own=True)}
    defaults = {"retention.ms": "604800000", "cleanup.policy": "delete", "max.message.bytes": "10000000"}
    assert carried_configs({**source, **own}, defaults) == {"retention.ms": "-1", "cleanup.policy": "compact"}


def test_a_default_that_the_target_does_not_tell_is_taken_for_another_one() -> None:
    assert carried_configs(told(retention_bytes="-1"), {}) == {"retention.bytes": "-1"}


@pytest.mark.parametrize(("source", "target", "carried"), [("2", "1", True), ("1", "2", False), ("2", "2", False)])
def test_a_target_that_wants_more_replicas_in_sync_than_the_source_keeps_to_it(
    source: str, target: str, *, carried: bool
) -> None:
    found = carried_configs(told(min_insync_replicas=source), {"min.insync.replicas": target})
    assert found == ({"min.insync.replicas": source} if carried else {})


@pytest.mark.parametrize(
    "source",
    [
        told(message_timestamp_difference_max_ms=FOR_EVER),
        told(
            message_timestamp_difference_max_ms=FOR_EVER,
            message_timestamp_after_max_ms=FOR_EVER,
            message_timestamp_before_max_ms=FOR_EVER,
        ),
    ],
    ids=["2.8", "3.9"],
)
def test_the_hour_that_newer_kafkas_give_times_to_come_is_not_forced_on_the_producers_of_older_ones(
    source: dict[str, ConfigValue],
) -> None:
    newer = {"message.timestamp.after.max.ms": "3600000", "message.timestamp.before.max.ms": FOR_EVER}
    assert carried_configs(source, newer) == {"message.timestamp.after.max.ms": FOR_EVER}


def test_the_topics_own_limit_for_both_times_is_not_taken_for_its_brokers() -> None:
    own = {"message.timestamp.difference.max.ms": ConfigValue("7", own=True)}
    assert carried_configs(own, {}) == {}


@pytest.mark.parametrize(
    ("broker", "retention"),
    [
        (told(log_retention_ms="", log_retention_minutes="", log_retention_hours="168"), "604800000"),
        (told(log_retention_ms="", log_retention_minutes="30", log_retention_hours="168"), "1800000"),
        (told(log_retention_ms="5", log_retention_minutes="30", log_retention_hours="168"), "5"),
        (told(log_retention_minutes="-1"), "-1"),
    ],
    ids=["hours", "minutes", "ms", "for-ever"],
)
def test_a_brokers_retention_is_read_from_the_first_of_its_three_configs_that_is_set(
    broker: dict[str, ConfigValue], retention: str
) -> None:
    assert topic_defaults(broker) == {"retention.ms": retention}


def test_a_brokers_defaults_are_told_by_the_names_that_a_topic_has_for_them() -> None:
    broker = told(
        log_cleanup_policy="compact,delete",
        message_max_bytes="9",
        log_message_timestamp_difference_max_ms="7",
        log_message_timestamp_after_max_ms="3",
        log_segment_bytes="5",
    )
    assert topic_defaults(broker) == {
        "cleanup.policy": "compact,delete",
        "max.message.bytes": "9",
        "message.timestamp.after.max.ms": "3",
        "message.timestamp.before.max.ms": "7",
    }
