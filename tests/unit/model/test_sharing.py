"""The presences of many mirrors read together: only a partition's owner counts for that partition."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.record_json import Record, decode_record, encode_record
from kmigrate.model.records import AssignmentRecord, Claim, CopyEngine, LeaseRecord, TopicRecord
from kmigrate.model.sharing import absence, by_spark, owner_of, progress_of
from kmigrate.model.state import State

TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=4)
LEASE = LeaseRecord("mirror/l", "a", 3)
SHARED = AssignmentRecord("l", 5, ("a", "b"), {"t": (0, 1, ~0)})


def state(*records: Record) -> State:
    made = State()
    for number, record in enumerate(records or (LEASE, SHARED)):
        made = made.with_record(record.key, record, number)
    return made


def word(
    instance: str, *partitions: int, position: int = 7, active: bool = False, link: str = "l", applied: int = 9
) -> MirrorPresence:
    topics = {"t": {p: PartitionProgress(position) for p in partitions}}
    return MirrorPresence(instance, link, applied, active, 500, topics)


def test_a_partition_is_told_by_its_owner_whoever_else_speaks_of_it() -> None:
    words = [word("a", 0, 1, 2, position=7), word("b", 0, 1, position=8), word("c", 0, position=99)]
    assert {p: seen.position for p, seen in progress_of(state(), TOPIC, words).items()} == {0: 7, 1: 8}


def test_words_of_another_link_or_from_before_a_moment_do_not_count() -> None:
    assert progress_of(state(), TOPIC, [word("a", 0, link="other")]) == {}
    words = [word("a", 0, applied=20), word("b", 1, applied=19)]
    assert set(progress_of(state(), TOPIC, words, applied=20)) == {0}


def test_a_mapped_topic_is_told_by_the_leases_holder() -> None:
    mapped = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, mapped=True)
    assert owner_of(state(), mapped, 0) == "a"
    assert owner_of(state(LeaseRecord("mirror/l", "", 3)), mapped, 0) == ""


def test_what_keeps_a_whole_topic_from_getting_on_is_told_with_its_first_partition() -> None:
    told = MirrorPresence("a", "l", 9, True, 500, problems={"t": "no-leader: none"})
    assert progress_of(state(LEASE), TOPIC, [told])[0].problem == "no-leader: none"
    former = MirrorPresence("b", "l", 9, False, 500, problems={"t": "no-leader: none"})
    assert progress_of(state(LEASE), TOPIC, [former]) == {}


def test_a_partition_that_nobody_copies_says_why() -> None:
    words = [word("a", 0), word("c")]
    assert absence(state(), TOPIC, 0, words) == ""
    assert absence(state(), TOPIC, 1, words).startswith("not-copied: mirror process b is silent")
    assert absence(state(), TOPIC, 2, words).startswith("moving: mirror process a lets go")
    assert absence(state(), TOPIC, 3, words) == "not-copied: a mirror process is about to take it"
    assert absence(state(), TOPIC, 1, [*words, word("b")]) == "not-copied: a mirror process is about to take it"
    assert absence(state(), TOPIC, 1, []) == "", "that no mirror runs is told once"


BULK = replace(TOPIC, engine=CopyEngine.SPARK, claims={0: Claim("task", 9)})


def test_a_topic_that_spark_copies_is_owned_by_whoever_has_claimed_it_whatever_the_assignment_says() -> None:
    assert [owner_of(state(), BULK, partition) for partition in range(3)] == ["task", "", ""]
    assert absence(state(), BULK, 0, [word("task", 0)]) == ""
    assert "no Spark task copies it now" in absence(state(), BULK, 1, [word("a", 0)])


def test_from_its_promote_on_a_topic_is_the_daemons_again() -> None:
    pending = replace(BULK, phase=TopicPhase.PROMOTE_PENDING)
    assert (by_spark(BULK), by_spark(pending), by_spark(replace(BULK, mapped=True))) == (True, False, False)
    assert [owner_of(state(), pending, partition) for partition in range(3)] == ["a", "b", ""]


def test_after_a_rollback_a_topic_stays_the_daemons() -> None:
    """Spark's tasks write under the link's producer id, and after a rollback the copy has another."""
    assert not by_spark(replace(BULK, resumed={0: 5}))


def test_records_from_before_there_were_engines_are_the_daemons() -> None:
    old = {k: v for k, v in encode_record(TOPIC).items() if k not in ("engine", "claims", "claimed_term")}
    assert decode_record(old) == TOPIC
    assert decode_record(encode_record(BULK)) == BULK
