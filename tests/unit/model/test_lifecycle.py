"""The lifecycles of topic and group: legal steps advance, all other steps refuse and name the possible steps."""

from __future__ import annotations

import itertools

import pytest

from kmigrate.errors import Refused
from kmigrate.model.lifecycle import (
    GROUP_TRANSITIONS,
    TOPIC_TRANSITIONS,
    GroupEvent,
    GroupPhase,
    TopicEvent,
    TopicPhase,
    advance_group,
    advance_topic,
)


def test_the_way_of_a_topic_reaches_promoted() -> None:
    phase = TopicPhase.INITIALISING
    for event in (
        TopicEvent.CREATED,
        TopicEvent.ALIGNED,
        TopicEvent.PROMOTE_ASKED,
        TopicEvent.FENCE,
        TopicEvent.BARRIER,
        TopicEvent.FLIP,
    ):
        phase = advance_topic(phase, event)
    assert phase is TopicPhase.PROMOTED


@pytest.mark.parametrize("phase", [TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED])
def test_every_step_before_the_flip_can_be_undone(phase: TopicPhase) -> None:
    assert advance_topic(phase, TopicEvent.UNFENCE) is TopicPhase.MIRRORING


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(TopicPhase, TopicEvent)))
def test_a_topic_step_outside_the_table_is_refused_by_name(phase: TopicPhase, event: TopicEvent) -> None:
    legal = TOPIC_TRANSITIONS[phase].get(event)
    if legal is not None:
        assert advance_topic(phase, event) is legal
        return
    with pytest.raises(Refused) as caught:
        advance_topic(phase, event)
    assert caught.value.ref == "illegal-step"
    assert all(name in caught.value.next_step for name in TOPIC_TRANSITIONS[phase])


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(GroupPhase, GroupEvent)))
def test_a_group_step_outside_the_table_is_refused_by_name(phase: GroupPhase, event: GroupEvent) -> None:
    legal = GROUP_TRANSITIONS[phase].get(event)
    if legal is not None:
        assert advance_group(phase, event) is legal
        return
    with pytest.raises(Refused):
        advance_group(phase, event)


def test_every_phase_has_its_row() -> None:
    assert set(TOPIC_TRANSITIONS) == set(TopicPhase)
    assert set(GROUP_TRANSITIONS) == set(GroupPhase)
