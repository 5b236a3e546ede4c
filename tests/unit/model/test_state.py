"""A state is a value: folding makes a new state and leaves the old state unchanged."""

from __future__ import annotations

import random
from dataclasses import replace

from kmigrate.model.ids import is_internal
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, LeaseRecord, TopicRecord, TransactionRecord
from kmigrate.model.state import State


def test_folding_a_record_leaves_the_old_state_as_it_was() -> None:
    before = State()
    after = before.with_record("lease/w", LeaseRecord("w", "me", 1), 4)
    assert before.lease("w") is None
    assert after.lease("w") == LeaseRecord("w", "me", 1)
    assert (before.epoch, after.epoch) == (-1, 4)
    assert after.with_record("lease/w", None, 5).lease("w") is None


def test_one_more_record_costs_the_same_however_many_there_are() -> None:
    """Streams and Flink create new transactional ids all the time; each new id used to copy all ids, at each router."""
    state = State()
    for number in range(3000):
        record = TransactionRecord("l", f"id-{number}", number, 0, number, 0)
        state = state.with_record(record.key, record, number)
    newest = state.with_record(record.key, replace(record, epoch=1), 3000)
    before, after = (each.records._kinds["transaction"].buckets for each in (state, newest))
    changed = [now for was, now in zip(before, after, strict=True) if now is not was]
    assert [record.key in bucket for bucket in changed] == [True]
    assert len(changed[0]) < 100
    assert newest.transactions()[-1].name == "id-999"
    assert (len(newest.records), len(list(newest.records))) == (3000, 3000)


def test_what_does_not_change_is_put_in_order_once() -> None:
    topic, lease = TopicRecord("l", "t", TopicPhase.MIRRORING, 1), LeaseRecord("w", "me", 1)
    state = State().with_record(topic.key, topic, 0)
    ordered = state.records._kinds["topic"].order
    assert state.with_record(lease.key, lease, 1).records._kinds["topic"].order is ordered
    assert state.with_record(topic.key, None, 1).topics() == []


def test_records_stay_in_order_and_owners_are_found_while_topics_come_and_go() -> None:
    state, rnd = State(), random.Random(7)
    for at in range(400):
        record = TopicRecord(rnd.choice("lm"), f"t{rnd.randrange(40):02}", TopicPhase.MIRRORING, at)
        state = state.with_record(record.key, record if rnd.random() < 0.7 else None, at)
        known = [state.records[key] for key in sorted(state.records)]
        assert state.topics() == known
        named = {each.topic: each for each in reversed(state.topics())}
        assert {name: state.topic_owner(name) for name in named} == named
        assert state.topic_owner("other") is None


def _is_paused(record: TopicRecord) -> bool:
    _LOOKED_AT.append(record.topic)
    return record.paused


def _is_promoting(record: GroupRecord) -> bool:
    return record.phase is GroupPhase.PROMOTING


_LOOKED_AT: list[str] = []


def test_topics_that_pass_a_test_are_found_without_a_look_at_all_topics() -> None:
    """A controller and a mirror look for the few topics with work at each state record, while a fence holds writers."""
    topics = [TopicRecord("lm"[n % 2], f"t{n:04}", TopicPhase.MIRRORING, 1, paused=n % 100 == 0) for n in range(2000)]
    state = State().with_records({record.key: record for record in topics}, 1)
    paused = [record for record in topics if record.paused]
    assert state.topics_that(_is_paused) == paused
    assert (state.topics_that(_is_paused, "l"), state.topics_that(_is_paused, "m")) == (paused, [])
    assert sorted(_LOOKED_AT) == sorted(record.topic for record in topics)
    _LOOKED_AT.clear()
    now = state.with_record(topics[1].key, replace(topics[1], paused=True), 2)
    assert now.topics_that(_is_paused, "m") == [replace(topics[1], paused=True)]
    assert state.topics_that(_is_paused) == paused, "the old state stays as it was"
    assert topics[1].topic in _LOOKED_AT
    assert len(_LOOKED_AT) < 100
    gone = now.with_record(topics[1].key, replace(topics[1], paused=True, forgotten_ms=3), 3)
    assert gone.topics_that(_is_paused, "m") == []
    assert [record.topic for record in gone.topics_that(_is_paused, "m", forgotten=True)] == ["t0001"]
    assert gone.with_record(topics[1].key, None, 4).topics_that(_is_paused, "m", forgotten=True) == []
    assert (gone.has_topic_that(_is_paused), State().has_topic_that(_is_paused)) == (True, False)


def test_groups_that_pass_a_test_are_found_likewise() -> None:
    groups = [GroupRecord("l", name, GroupPhase.PROMOTING, 1) for name in ("b", "a")]
    state = State().with_records({record.key: record for record in groups}, 1)
    assert [record.group for record in state.groups_that(_is_promoting, "l")] == ["a", "b"]
    assert state.groups_that(_is_promoting, "m") == []
    assert (state.has_group_that(_is_promoting), State().has_group_that(_is_promoting)) == (True, False)


def test_what_thousands_of_ids_couple_is_told_once_for_each_set_of_it() -> None:
    """Fences wait during this computation: 50,000 ids one by one took 60 ms each time."""
    state = State()
    for number in range(300):
        record = TransactionRecord("lm"[number % 2], f"id-{number:03}", number, 0, number, 0, ("t", "u"))
        state = state.with_record(record.key, replace(record, groups=("g",) if number == 8 else ()), number)
    alone = TransactionRecord("l", "alone", 1, 0, 1, 0, ("t",))
    state = state.with_record(alone.key, alone, 300)
    assert [(each.name, each.groups) for each in state.couplings("l")] == [("id-000", ()), ("id-008", ("g",))]
    assert [each.name for each in state.couplings("m")] == ["id-001"]
    gone = state.with_record("transaction/l/id-000", None, 301)
    assert [each.name for each in gone.couplings("l")] == ["id-002", "id-008"]


def test_what_ids_couple_is_looked_for_again_only_beside_the_one_that_changed() -> None:
    """Fences wait during this computation, and new ids come as long as there are fences.

    Among 50,000 ids each new id used to cost 30 ms.
    """
    state = State()
    for number in range(3000):
        record = TransactionRecord("l", f"id-{number}", number, 0, number, 0, ("t", "u"))
        state = state.with_record(record.key, record, number)
    assert len(state.couplings("l")) == 1
    newest = state.with_record(record.key, replace(record, groups=("g",)), 3000)
    assert sum("couplings" not in vars(bucket) for bucket in newest.records._kinds["transaction"].buckets) == 1
    assert [each.groups for each in newest.couplings("l")] == [(), ("g",)]
    assert "in_order" not in vars(newest.records._kinds["transaction"])


def test_the_owner_of_a_topic_is_found_whatever_its_link() -> None:
    record = TopicRecord("other", "t", TopicPhase.MIRRORING, 1)
    state = State().with_record(record.key, record, 0)
    assert state.topic_owner("t") == record
    assert state.topic("mine", "t") is None
    assert state.topics("mine") == []


def test_what_is_being_forgotten_is_there_only_for_who_asks_for_it() -> None:
    topic = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, forgotten_ms=7)
    group = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, forgotten_ms=7)
    state = State().with_record(topic.key, topic, 0).with_record(group.key, group, 1)
    assert (state.topics(), state.topic("l", "t"), state.groups(), state.group("l", "g")) == ([], None, [], None)
    assert (state.topics("l", forgotten=True), state.topic("l", "t", forgotten=True)) == ([topic], topic)
    assert (state.groups("l", forgotten=True), state.group("l", "g", forgotten=True)) == ([group], group)
    assert (state.topic_owner("t"), state.group_owner("g")) == (topic, group), "no link may have them yet"


def test_the_owner_of_a_group_is_found_whatever_its_link() -> None:
    record = GroupRecord("other", "g", GroupPhase.MIRRORED, 1)
    state = State().with_record(record.key, record, 0)
    assert state.group_owner("g") == record
    assert state.group_owner("another") is None
    assert state.groups("mine") == []


def test_internal_topics_are_known_by_name() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__kmigrate_state")
    assert is_internal("a.checkpoints.internal")
    assert not is_internal("orders")
