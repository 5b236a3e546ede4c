"""Follows the states of the state log, and notes what happened to topics and groups: promotes, fences, flips, ends.

A compacted log tells what is true now, and no history: a process notes what it sees, and begins with the newest step of
each topic and group. Durations come from the times in records, so a state that was skipped falsifies no duration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kmigrate.model.lifecycle import (
    BEHIND_FENCE,
    PROMOTING,
    ROLLBACK_BEHIND_FENCE,
    ROLLING_BACK,
    GroupPhase,
    TopicPhase,
)
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.state import State

__all__ = ["Happened", "Timeline", "TimelineEvent"]

_MOST_EVENTS = 500
Listener = Callable[["TimelineEvent"], None]


class Happened(StrEnum):
    """The kinds of events."""

    LINK_CREATED = "link-created"
    LINK_FINISHED = "link-finished"
    MIRRORED = "mirrored"
    """A topic is aligned and its copy begins, or a group is mirrored."""
    PROMOTE_ASKED = "promote-asked"
    FENCED = "fenced"
    """Routers hold the writers of a topic."""
    BARRIER = "barrier"
    """The last offset of a topic is known, at the cluster that takes the writes."""
    FLIPPED = "flipped"
    """The target takes the writes of a topic, or the members of a group."""
    GIVEN_UP = "given-up"
    """A promote or a rollback was given up or taken back: all is as before."""
    ROLLBACK_ASKED = "rollback-asked"
    ROLLED_BACK = "rolled-back"
    """The source takes the writes of a topic again, or the members of a group."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to a link, a topic or a group."""

    at_ms: int
    happened: Happened
    link: str
    what: str
    """`link`, `topic` or `group`."""
    name: str
    reason: str = ""
    fence_ms: int = -1
    """Milliseconds from the fence to its end, where this event ends a fence."""
    flip_ms: int = -1
    """Milliseconds from the barrier to the flip, where the barrier was seen."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Timeline:
    """The newest events, in the order of their times; listeners hear each event that happens from now on."""

    def __init__(self) -> None:
        self.events: deque[TimelineEvent] = deque(maxlen=_MOST_EVENTS)
        self._listeners: list[Listener] = []
        self._known: State | None = None

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def follow(self, state: State) -> None:
        """Note what happened between the last state and this state; of the first state note the newest steps."""
        known, self._known = self._known, state
        if known is None:
            self.events.extend(sorted(_between(State(), state), key=lambda event: event.at_ms))
            return
        for event in _between(known, state):
            self.events.append(event)
            for listener in self._listeners:
                listener(event)


def _between(before: State, now: State) -> Iterator[TimelineEvent]:
    """Yield the events that lead from one state to another; the cost depends on the changes alone."""
    for word in ("link", "topic", "group"):
        for key, record in sorted(now.records.changed_since(before.records, word).items()):
            former = before.records.get(key)
            if isinstance(record, LinkRecord):
                yield from _link_events(former if isinstance(former, LinkRecord) else None, record)
            elif isinstance(record, TopicRecord):
                yield from _topic_events(former if isinstance(former, TopicRecord) else None, record)
            elif isinstance(record, GroupRecord):
                yield from _group_events(former if isinstance(former, GroupRecord) else None, record)


def _link_events(before: LinkRecord | None, link: LinkRecord) -> Iterator[TimelineEvent]:
    if before is not None and before.uuid != link.uuid:
        before = None
    if before is None:
        yield TimelineEvent(link.created_ms, Happened.LINK_CREATED, link.name, "link", link.name)
    if link.finished_ms and (before is None or not before.finished_ms):
        yield TimelineEvent(link.finished_ms, Happened.LINK_FINISHED, link.name, "link", link.name)


_STEPS = {
    TopicPhase.PROMOTE_PENDING: Happened.PROMOTE_ASKED,
    TopicPhase.FENCING: Happened.FENCED,
    TopicPhase.FENCED: Happened.BARRIER,
    TopicPhase.ROLLBACK_PENDING: Happened.ROLLBACK_ASKED,
    TopicPhase.ROLLBACK_FENCING: Happened.FENCED,
    TopicPhase.ROLLBACK_FENCED: Happened.BARRIER,
}


def _topic_events(before: TopicRecord | None, topic: TopicRecord) -> Iterator[TimelineEvent]:
    about = (topic.link, "topic", topic.topic)
    if before is not None and before.phase is topic.phase:
        if _given_up_unseen(before, topic):
            fence_ms = topic.since_ms - topic.fenced_ms if topic.fenced_ms > before.fenced_ms else -1
            yield TimelineEvent(topic.since_ms, Happened.GIVEN_UP, *about, topic.reason, fence_ms)
        return
    if before is not None and before.phase in ROLLING_BACK and topic.phase not in ROLLING_BACK:
        yield _rollback_ended(before, topic)
    elif topic.phase is TopicPhase.PROMOTED:
        at_barrier = before is not None and before.phase is TopicPhase.FENCED
        flip_ms = topic.promoted_ms - before.since_ms if before is not None and at_barrier else -1
        fence_ms = topic.promoted_ms - topic.fenced_ms if topic.fenced_ms else -1
        yield TimelineEvent(topic.promoted_ms, Happened.FLIPPED, *about, fence_ms=fence_ms, flip_ms=flip_ms)
    elif topic.phase is TopicPhase.MIRRORING and before is not None and before.phase in PROMOTING:
        fence_ms = topic.since_ms - before.fenced_ms if before.phase in BEHIND_FENCE else -1
        yield TimelineEvent(topic.since_ms, Happened.GIVEN_UP, *about, topic.reason, fence_ms)
    elif topic.phase is TopicPhase.MIRRORING:
        happened = Happened.GIVEN_UP if before is None and topic.reason else Happened.MIRRORED
        yield TimelineEvent(topic.since_ms, happened, *about, topic.reason)
    elif topic.phase in _STEPS:
        yield TimelineEvent(topic.since_ms, _STEPS[topic.phase], *about)


def _rollback_ended(before: TopicRecord, topic: TopicRecord) -> TimelineEvent:
    """Return the end of a rollback: the flip, or the return to promoted with a reason."""
    about = (topic.link, "topic", topic.topic)
    fenced_ms = before.way_back.fenced_ms if before.way_back is not None else 0
    if topic.phase is TopicPhase.PROMOTED:
        fence_ms = topic.since_ms - fenced_ms if before.phase in ROLLBACK_BEHIND_FENCE else -1
        reason = topic.way_back.reason if topic.way_back is not None else ""
        return TimelineEvent(topic.since_ms, Happened.GIVEN_UP, *about, reason, fence_ms)
    flip_ms = topic.rolled_back_ms - before.since_ms if before.phase is TopicPhase.ROLLBACK_FENCED else -1
    fence_ms = topic.rolled_back_ms - fenced_ms if before.phase in ROLLBACK_BEHIND_FENCE else -1
    return TimelineEvent(topic.rolled_back_ms, Happened.ROLLED_BACK, *about, fence_ms=fence_ms, flip_ms=flip_ms)


def _given_up_unseen(before: TopicRecord | GroupRecord, now: TopicRecord | GroupRecord) -> bool:
    """Return whether a promote was requested and given up between two states of the same phase."""
    mirrored = now.phase in (TopicPhase.MIRRORING, GroupPhase.MIRRORED)
    return mirrored and now.since_ms > before.since_ms and bool(now.reason)


def _group_events(before: GroupRecord | None, group: GroupRecord) -> Iterator[TimelineEvent]:
    about = (group.link, "group", group.group)
    if before is not None and before.phase is group.phase:
        if before.mode is group.mode and _given_up_unseen(before, group):
            yield TimelineEvent(group.since_ms, Happened.GIVEN_UP, *about, group.reason)
        return
    if before is not None and before.phase is GroupPhase.ROLLING_BACK:
        given_up = group.phase is GroupPhase.PROMOTED
        happened, reason = (Happened.GIVEN_UP, group.reason) if given_up else (Happened.ROLLED_BACK, "")
        yield TimelineEvent(group.since_ms, happened, *about, reason)
    elif group.phase is GroupPhase.ROLLING_BACK:
        yield TimelineEvent(group.since_ms, Happened.ROLLBACK_ASKED, *about)
    elif group.phase is GroupPhase.PROMOTED:
        yield TimelineEvent(group.promoted_ms or group.since_ms, Happened.FLIPPED, *about)
    elif group.phase is GroupPhase.PROMOTING:
        why = "no member was left on the source" if group.asked_automatically else ""
        yield TimelineEvent(group.since_ms, Happened.PROMOTE_ASKED, *about, why)
    elif before is not None or group.reason:
        yield TimelineEvent(group.since_ms, Happened.GIVEN_UP, *about, group.reason)
    else:
        yield TimelineEvent(group.since_ms, Happened.MIRRORED, *about)
