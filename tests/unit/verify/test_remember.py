"""The result of a check enters the state log when the result is new, and leaves with the link."""

from __future__ import annotations

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.verified import Looked
from kmigrate.verify.job import _grown
from kmigrate.workflow.verbs.links import link_keys

LINK = LinkRecord("blue", "u1", ClusterRef("old", "a:1"), ClusterRef("new", "b:1"), 0)
TOPIC = TopicRecord("blue", "orders", TopicPhase.MIRRORING, 1, partitions=1)
STATE = State().with_record(LINK.key, LINK, 0).with_record(TOPIC.key, TOPIC, 1)


def test_what_is_new_is_written_and_the_same_again_is_not() -> None:
    written = _grown(LINK, TOPIC, {0: Looked(0, 9, True)}, STATE)
    assert written is not None
    state = STATE.with_record(written.key, written, 2)
    assert state.verified("blue", "orders") == written
    assert _grown(LINK, TOPIC, {0: Looked(9, 9, True)}, state) is None
    assert _grown(LINK, TOPIC, {0: Looked(9, 12, False)}, state) is None


def test_a_difference_that_takes_the_last_range_back_is_written() -> None:
    written = _grown(LINK, TOPIC, {0: Looked(0, 9, True)}, STATE)
    assert written is not None
    state = STATE.with_record(written.key, written, 2)
    taken = _grown(LINK, TOPIC, {0: Looked(0, 9, False)}, state)
    assert taken is not None and not taken.ranges


def test_nothing_is_written_where_nothing_is_equal_or_the_topic_is_gone() -> None:
    assert _grown(LINK, TOPIC, {0: Looked(0, 9, False)}, STATE) is None
    gone = STATE.with_record(TOPIC.key, None, 2)
    assert _grown(LINK, TOPIC, {0: Looked(0, 9, True)}, gone) is None


def test_a_deleted_link_takes_along_what_was_verified_of_it() -> None:
    written = _grown(LINK, TOPIC, {0: Looked(0, 9, True)}, STATE)
    assert written is not None
    assert written.key in link_keys(STATE.with_record(written.key, written, 2), "blue")
