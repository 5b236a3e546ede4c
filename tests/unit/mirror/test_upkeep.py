"""What a round of upkeep changes: rules, configs, and how often it looks."""

from __future__ import annotations

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.mirror.access import difference
from kmigrate.mirror.configs import changes, own_configs, target_configs
from kmigrate.mirror.upkeep import round_s
from kmigrate.model.acls import Acl
from kmigrate.model.records import Seal

ANN, BOB, EVE = (Acl("topic", "t", f"User:{name}", "*", "READ") for name in ("ann", "bob", "eve"))


def test_a_rule_that_stands_already_is_not_taken_over() -> None:
    changed = difference(granted=(), wanted=(ANN, BOB), standing={ANN})
    assert (changed.create, changed.meanwhile, changed.afterwards) == ((BOB,), (BOB,), (BOB,))


def test_a_rule_that_is_gone_on_the_source_is_answered_for_until_it_is_deleted() -> None:
    changed = difference(granted=(ANN, BOB), wanted=(ANN,), standing={ANN, BOB, EVE})
    assert (changed.delete, changed.meanwhile, changed.afterwards) == ((BOB,), (ANN, BOB), (ANN,))


def test_a_rule_of_ours_that_somebody_deleted_on_the_target_comes_back() -> None:
    assert difference(granted=(ANN,), wanted=(ANN,), standing=set()).create == (ANN,)


def test_rules_of_a_promote_that_was_given_up_are_taken_back() -> None:
    write = Acl("topic", "t", "User:ann", "*", "WRITE")
    assert difference(granted=(ANN, write), wanted=(ANN,), standing={ANN, write}).delete == (write,)


def test_for_replicated_keys_the_source_decides_and_others_stay() -> None:
    standing = {"segment.ms": "5", "retention.ms": "7", "flush.ms": "1", "vendor.key": "x"}
    wanted = target_configs({"segment.bytes": "200000000"}, 1, exclude=["flush.*"]).now
    put, remove = changes(wanted, standing, ["flush.*"])
    assert put["segment.bytes"] == "200000000"
    assert put["retention.ms"] == "-1", "relaxed again, whoever set it"
    assert remove == ("segment.ms",)


def test_a_target_as_it_shall_be_is_left_alone() -> None:
    wanted = target_configs({"segment.ms": "60000", "retention.ms": "5"}, 1).now
    assert changes(wanted, wanted) == ({}, ())


def test_a_relaxed_key_that_is_not_replicated_is_put_back_as_the_target_had_it() -> None:
    made = target_configs({"retention.ms": "5"}, 1, exclude=["retention.*"], standing={"retention.ms": "9"})
    assert made.now["retention.ms"] == "-1"
    assert made.restore == {"retention.ms": "9"}
    assert "retention.bytes" in made.drop


def test_keys_that_the_target_does_not_know_are_left_out() -> None:
    made = target_configs({"compression.gzip.level": "3", "segment.ms": "5"}, 1, known={"segment.ms", "retention.ms"})
    assert made.now == {"segment.ms": "5", "retention.ms": "-1"}
    assert made.drop == ("retention.ms",)


def test_very_many_topics_are_looked_at_less_often() -> None:
    assert round_s(5.0, 10) == 5.0
    assert round_s(5.0, 1000) == 30.0


@pytest.mark.parametrize(
    ("seal", "own"),
    [(None, {}), (Seal("", {"i": "r"}), {}), (Seal("2000000", {"i": "r"}), {"max.message.bytes": "2000000"})],
)
def test_the_seal_of_a_promote_is_never_taken_for_the_topics_own_limit(seal: Seal | None, own: dict[str, str]) -> None:
    assert own_configs({"max.message.bytes": ConfigValue("1", own=True)}, "CreateTime", seal) == own
