"""A state is a value: folding makes a new one and leaves the old alone."""

from __future__ import annotations

from kmigrate.model.ids import is_internal
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, LeaseRecord, TopicRecord
from kmigrate.model.state import State


def test_folding_a_record_leaves_the_old_state_as_it_was() -> None:
    before = State()
    after = before.with_record("lease/w", LeaseRecord("w", "me", 1), 4)
    assert before.lease("w") is None
    assert after.lease("w") == LeaseRecord("w", "me", 1)
    assert (before.epoch, after.epoch) == (-1, 4)
    assert after.with_record("lease/w", None, 5).lease("w") is None


def test_the_owner_of_a_topic_is_found_whatever_its_link() -> None:
    record = TopicRecord("other", "t", TopicPhase.MIRRORING, 1)
    state = State().with_record(record.key, record, 0)
    assert state.topic_owner("t") == record
    assert state.topic("mine", "t") is None
    assert state.topics("mine") == []


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
