"""Defines the state machines of a mirrored topic and a mirrored group.

1. Only these tables decide which phase may follow another, and only `advance_*` changes a phase. An illegal event
   raises a named error and changes nothing.
2. The phase determines who serves a topic's Produce requests (`kmigrate.model.routes`). So only a record of the state
   log changes a phase: no local timer ever leaves a fence.

    initialising → aligning → mirroring → promote-pending → fencing → fenced → promoted
        ↑______________________|  ↑____________|_______________|_________|   (un-fence: back, with a reason)
         (anew: the target topic is gone or empty)

    promoted → rollback-pending → rollback-fencing → rollback-fenced → mirroring
        ↑______________|__________________|__________________|   (un-fence: back, with a reason)

A topic that another topic's flip names (`PromotedUnit`) leaves `fenced` only by its own flip. Only a topic with a way
back (`TopicRecord.way_back`) can be rolled back.

    mirrored → promoting → promoted → rolling-back → mirrored
        ↑__________|          ↑____________|   (given up: back, with a reason)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from kmigrate.errors import Refused

__all__ = [
    "AT_TARGET",
    "BEHIND_FENCE",
    "COPIED",
    "FORGETTABLE",
    "GROUP_AT_TARGET",
    "GROUP_TRANSITIONS",
    "NOT_COPIED_YET",
    "PROMOTING",
    "ROLLBACK_BEHIND_FENCE",
    "ROLLING_BACK",
    "TOPIC_TRANSITIONS",
    "GroupEvent",
    "GroupMode",
    "GroupPhase",
    "TopicEvent",
    "TopicPhase",
    "advance_group",
    "advance_topic",
]


_Phase = TypeVar("_Phase", bound=StrEnum)
_Event = TypeVar("_Event", bound=StrEnum)


class TopicPhase(StrEnum):
    """The phase of a mirrored topic."""

    INITIALISING = "initialising"
    ALIGNING = "aligning"
    MIRRORING = "mirroring"
    PROMOTE_PENDING = "promote-pending"
    FENCING = "fencing"
    FENCED = "fenced"
    PROMOTED = "promoted"
    ROLLBACK_PENDING = "rollback-pending"
    ROLLBACK_FENCING = "rollback-fencing"
    ROLLBACK_FENCED = "rollback-fenced"


BEHIND_FENCE = frozenset({TopicPhase.FENCING, TopicPhase.FENCED})
"""Phases of a promote in which writers wait."""
ROLLBACK_BEHIND_FENCE = frozenset({TopicPhase.ROLLBACK_FENCING, TopicPhase.ROLLBACK_FENCED})
"""Phases of a rollback in which writers wait."""
ROLLING_BACK = ROLLBACK_BEHIND_FENCE | {TopicPhase.ROLLBACK_PENDING}
AT_TARGET = ROLLING_BACK | {TopicPhase.PROMOTED}
"""Phases between the flip of a promote and the flip of a rollback: the newest record is at the target."""
PROMOTING = BEHIND_FENCE | {TopicPhase.PROMOTE_PENDING}
NOT_COPIED_YET = frozenset({TopicPhase.INITIALISING, TopicPhase.ALIGNING})
COPIED = PROMOTING | {TopicPhase.MIRRORING}
"""Phases in which a mirror copies from the source to the target."""
FORGETTABLE = NOT_COPIED_YET | {TopicPhase.MIRRORING, TopicPhase.PROMOTE_PENDING}
"""Phases in which a topic may be taken out of its link: before a fence nobody waits for the topic's next phase."""


class TopicEvent(StrEnum):
    CREATED = "created"
    """The target topic exists and its start offsets are decided (mirror)."""
    ALIGNED = "aligned"
    """Every partition's log start on the target is the offset that its first record will have (mirror)."""
    ANEW = "anew"
    """The target topic is gone or empty: a person asked to copy from the start again (CLI)."""
    PROMOTE_ASKED = "promote-asked"
    """A person or a playbook asked for promotion (CLI)."""
    FENCE = "fence"
    """Lag is small and every router answers: hold new forwards (controller)."""
    BARRIER = "barrier"
    """All forwards are resolved and the source's log end is known (controller)."""
    FLIP = "flip"
    """The mirror stands exactly at the barrier: writes go to the target (controller)."""
    UNFENCE = "unfence"
    """The promote is given up before the flip (controller) or taken back before the fence (CLI); all is as before.

    The same holds for a rollback.
    """
    ROLLBACK_ASKED = "rollback-asked"
    """A person or a playbook asked for a rollback (CLI)."""


_T, _E = TopicPhase, TopicEvent

TOPIC_TRANSITIONS: dict[TopicPhase, dict[TopicEvent, TopicPhase]] = {
    _T.INITIALISING: {_E.CREATED: _T.ALIGNING},
    _T.ALIGNING: {_E.ALIGNED: _T.MIRRORING},
    _T.MIRRORING: {_E.PROMOTE_ASKED: _T.PROMOTE_PENDING, _E.ANEW: _T.INITIALISING},
    _T.PROMOTE_PENDING: {_E.FENCE: _T.FENCING, _E.UNFENCE: _T.MIRRORING},
    _T.FENCING: {_E.BARRIER: _T.FENCED, _E.UNFENCE: _T.MIRRORING},
    _T.FENCED: {_E.FLIP: _T.PROMOTED, _E.UNFENCE: _T.MIRRORING},
    _T.PROMOTED: {_E.ROLLBACK_ASKED: _T.ROLLBACK_PENDING},
    _T.ROLLBACK_PENDING: {_E.FENCE: _T.ROLLBACK_FENCING, _E.UNFENCE: _T.PROMOTED},
    _T.ROLLBACK_FENCING: {_E.BARRIER: _T.ROLLBACK_FENCED, _E.UNFENCE: _T.PROMOTED},
    _T.ROLLBACK_FENCED: {_E.FLIP: _T.MIRRORING, _E.UNFENCE: _T.PROMOTED},
}


class GroupPhase(StrEnum):
    """The phase of a mirrored consumer group."""

    MIRRORED = "mirrored"
    PROMOTING = "promoting"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling-back"


GROUP_AT_TARGET = frozenset({GroupPhase.PROMOTED, GroupPhase.ROLLING_BACK})
"""Phases in which the target coordinates the group, from the opening of a promote to the opening of a rollback."""


class GroupMode(StrEnum):
    """The treatment of members that moved to a router before their group's promote."""

    HOLD = "hold"
    """The members wait."""
    FOLLOW = "follow"
    """The members belong to the source's group and read the target's copy; the offsets are identical."""


class GroupEvent(StrEnum):
    PROMOTE_ASKED = "promote-asked"
    ROLLBACK_ASKED = "rollback-asked"
    OPEN = "open"
    GIVE_UP = "give-up"


GROUP_TRANSITIONS: dict[GroupPhase, dict[GroupEvent, GroupPhase]] = {
    GroupPhase.MIRRORED: {GroupEvent.PROMOTE_ASKED: GroupPhase.PROMOTING},
    GroupPhase.PROMOTING: {GroupEvent.OPEN: GroupPhase.PROMOTED, GroupEvent.GIVE_UP: GroupPhase.MIRRORED},
    GroupPhase.PROMOTED: {GroupEvent.ROLLBACK_ASKED: GroupPhase.ROLLING_BACK},
    GroupPhase.ROLLING_BACK: {GroupEvent.OPEN: GroupPhase.MIRRORED, GroupEvent.GIVE_UP: GroupPhase.PROMOTED},
}


def advance_topic(phase: TopicPhase, event: TopicEvent) -> TopicPhase:
    """Return the phase after an event; refuse an illegal event and name the legal events."""
    return _advanced("topic", TOPIC_TRANSITIONS, phase, event)


def advance_group(phase: GroupPhase, event: GroupEvent) -> GroupPhase:
    """Return the phase after an event; refuse an illegal event and name the legal events."""
    return _advanced("group", GROUP_TRANSITIONS, phase, event)


def _advanced(what: str, transitions: Mapping[_Phase, Mapping[_Event, _Phase]], phase: _Phase, event: _Event) -> _Phase:
    legal = transitions[phase]
    if event not in legal:
        raise Refused(
            "illegal-step",
            f"a {what} that is {phase} cannot take the step '{event}'",
            still_true="nothing was changed",
            next_step=f"possible now: {', '.join(legal) or 'none, it is promoted'}",
        )
    return legal[event]
