"""Configs of the target topic while mirroring and after it."""

from __future__ import annotations

from kmigrate.mirror.configs import target_configs


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
    made = target_configs({"message.timestamp.difference.max.ms": "7", "message.timestamp.after.max.ms": "3"}, 1)
    assert made.restore["message.timestamp.before.max.ms"] == "7"
    assert made.restore["message.timestamp.after.max.ms"] == "3"
    assert "message.timestamp.difference.max.ms" not in made.now
