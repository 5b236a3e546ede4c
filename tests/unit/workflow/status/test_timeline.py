"""The timeline of a migration: what changes of the state log mean, with the times that records name."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.workflow.status.timeline import Happened, Timeline, TimelineEvent

LINK = LinkRecord("blue", "u", ClusterRef("source", "a:1"), ClusterRef("target", "b:1"), 10)
TOPIC = TopicRecord("blue", "orders", TopicPhase.MIRRORING, 20)
GROUP = GroupRecord("blue", "billing", GroupPhase.MIRRORED, 30)


def followed(*steps: Record) -> list[TimelineEvent]:
    """Return the events that are seen while the records are written one after another, after the first three."""
    timeline, state = Timeline(), State()
    for before in (LINK, TOPIC, GROUP):
        state = state.with_record(before.key, before, state.epoch + 1)
    timeline.follow(state)
    heard: list[TimelineEvent] = []
    timeline.listen(heard.append)
    for step in steps:
        state = state.with_record(step.key, step, state.epoch + 1)
        timeline.follow(state)
    assert heard == list(timeline.events)[3:]
    return heard


def test_what_stands_at_the_beginning_is_noted_in_the_order_of_its_times_and_told_to_nobody() -> None:
    timeline, state = Timeline(), State()
    promoted = replace(TOPIC, topic="audit", phase=TopicPhase.PROMOTED, fenced_ms=12, promoted_ms=15)
    for record in (GROUP, TOPIC, promoted, LINK):
        state = state.with_record(record.key, record, state.epoch + 1)
    timeline.listen(lambda event: (_ for _ in ()).throw(AssertionError(event)))
    timeline.follow(state)
    timeline.follow(state)
    assert [(event.at_ms, event.happened, event.name) for event in timeline.events] == [
        (10, Happened.LINK_CREATED, "blue"),
        (15, Happened.FLIPPED, "audit"),
        (20, Happened.MIRRORED, "orders"),
        (30, Happened.MIRRORED, "billing"),
    ]
    assert timeline.events[1].fence_ms == 3


def test_a_promote_is_followed_from_its_request_to_its_flip() -> None:
    events = followed(
        replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING, since_ms=100),
        replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING, since_ms=100, reason="lag"),
        replace(TOPIC, phase=TopicPhase.FENCING, since_ms=110, fenced_ms=110),
        replace(TOPIC, phase=TopicPhase.FENCED, since_ms=130, fenced_ms=110),
        replace(TOPIC, phase=TopicPhase.PROMOTED, since_ms=141, fenced_ms=110, promoted_ms=140),
    )
    assert [(event.at_ms, event.happened) for event in events] == [
        (100, Happened.PROMOTE_ASKED),
        (110, Happened.FENCED),
        (130, Happened.BARRIER),
        (140, Happened.FLIPPED),
    ]
    assert (events[-1].fence_ms, events[-1].flip_ms) == (30, 10)


def test_states_that_were_skipped_falsify_no_duration() -> None:
    (flipped,) = followed(replace(TOPIC, phase=TopicPhase.PROMOTED, since_ms=141, fenced_ms=110, promoted_ms=140))
    assert (flipped.fence_ms, flipped.flip_ms) == (30, -1)


def test_a_promote_that_is_given_up_has_its_reason_and_the_length_of_its_fence() -> None:
    fencing = replace(TOPIC, phase=TopicPhase.FENCING, since_ms=110, fenced_ms=110)
    *_, event = followed(fencing, replace(TOPIC, since_ms=150, reason="a router is silent", fenced_ms=110))
    assert (event.happened, event.reason, event.fence_ms) == (Happened.GIVEN_UP, "a router is silent", 40)
    pending = replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING, since_ms=110)
    *_, event = followed(pending, replace(TOPIC, since_ms=150))
    assert (event.happened, event.fence_ms) == (Happened.GIVEN_UP, -1)


def test_a_promote_that_was_requested_and_given_up_between_two_looks_is_seen() -> None:
    (topic,) = followed(replace(TOPIC, since_ms=150, reason="a router is silent", fenced_ms=110))
    assert (topic.at_ms, topic.happened, topic.reason, topic.fence_ms) == (
        150,
        Happened.GIVEN_UP,
        "a router is silent",
        40,
    )
    (early,) = followed(replace(TOPIC, since_ms=150, reason="the lag is too large"))
    assert (early.happened, early.fence_ms) == (Happened.GIVEN_UP, -1)
    given_up = replace(GROUP, since_ms=160, reason="a member does not leave")
    (group,) = followed(given_up)
    assert (group.at_ms, group.happened, group.reason) == (160, Happened.GIVEN_UP, "a member does not leave")
    assert len(followed(given_up, replace(given_up, mode=GroupMode.FOLLOW, since_ms=170))) == 1, "no promote was asked"
    assert followed(replace(TOPIC, reason="the source deletes too early")) == []


def test_groups_and_links_have_their_own_steps() -> None:
    events = followed(
        replace(GROUP, phase=GroupPhase.PROMOTING, since_ms=100),
        replace(GROUP, since_ms=110, reason="a member does not leave"),
        replace(GROUP, phase=GroupPhase.PROMOTING, since_ms=120),
        replace(GROUP, phase=GroupPhase.PROMOTED, since_ms=131, promoted_ms=130),
        replace(LINK, finished_ms=140),
    )
    assert [(event.at_ms, event.happened, event.what) for event in events] == [
        (100, Happened.PROMOTE_ASKED, "group"),
        (110, Happened.GIVEN_UP, "group"),
        (120, Happened.PROMOTE_ASKED, "group"),
        (130, Happened.FLIPPED, "group"),
        (140, Happened.LINK_FINISHED, "link"),
    ]
    assert events[1].as_json() == {
        "at_ms": 110,
        "happened": "given-up",
        "link": "blue",
        "what": "group",
        "name": "billing",
        "reason": "a member does not leave",
        "fence_ms": -1,
        "flip_ms": -1,
    }


def test_a_rollback_of_a_group_has_its_steps() -> None:
    promoted = replace(GROUP, phase=GroupPhase.PROMOTED, since_ms=131, promoted_ms=130)
    back = replace(promoted, phase=GroupPhase.ROLLING_BACK, since_ms=140)
    events = followed(
        promoted,
        back,
        replace(back, gathering=True),
        replace(promoted, since_ms=150, reason="members-not-joined: app"),
        replace(back, since_ms=160),
        replace(GROUP, since_ms=170),
    )
    assert [(event.at_ms, event.happened, event.reason) for event in events] == [
        (130, Happened.FLIPPED, ""),
        (140, Happened.ROLLBACK_ASKED, ""),
        (150, Happened.GIVEN_UP, "members-not-joined: app"),
        (160, Happened.ROLLBACK_ASKED, ""),
        (170, Happened.ROLLED_BACK, ""),
    ]


def test_a_link_that_was_made_anew_is_another_link() -> None:
    events = followed(replace(LINK, uuid="v", created_ms=200))
    assert [(event.at_ms, event.happened) for event in events] == [(200, Happened.LINK_CREATED)]
