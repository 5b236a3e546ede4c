"""The topics that are rolled back with a group, because transactions write them and commit the group's positions.

No transaction may be on two clusters, so the steps of a unit's rollback have this order:

1. The topics could be fenced, and the group's members are known.
2. No transaction begins any more, and the open transactions end (`TopicRollback`, rule C).
3. The group is frozen, and its positions go to the source.
4. The topics flip, and the first flip decides (`base.unit`).
5. The group opens at the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kmigrate.errors import Refused
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import ROLLING_BACK
from kmigrate.model.records import Action, GroupRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.unit import PromoteProgress

__all__ = ["CoupledTopics", "coupled_topics_of"]

_PAUSE_S = 0.05
_AS_BEFORE = "the group is promoted as before; its members go on at the target"


def coupled_topics_of(state: State, group: GroupRecord, *, at_target: bool) -> list[TopicRecord]:
    """Return the topics of a group's unit that take their writes at the target, or at the source."""
    names, _ = unit_of(state.couplings(group.link), groups=[group.group])
    known = (state.topic(group.link, name) for name in sorted(names))
    return [topic for topic in known if topic is not None and topic.at_target is at_target]


@dataclass(frozen=True, slots=True)
class CoupledTopics:
    """The topics of a group's unit, as the rollback of the group waits for them."""

    log: StateLog
    group: GroupRecord
    progress: PromoteProgress
    """Progress of the topics; shared by all promotes and rollbacks of a controller."""

    def left(self) -> list[TopicRecord]:
        """Return the topics that have not gone back yet."""
        return coupled_topics_of(self.log.state, self.group, at_target=True)

    async def ready(self, within_s: float) -> None:
        """Wait until all topics are being rolled back, and wait only for the group."""

        def is_ready(topic: TopicRecord) -> bool:
            if self._was_asked(topic):
                _refuse_given_up(topic)
            return topic.phase in ROLLING_BACK and topic.key in self.progress.ready

        await self._wait(is_ready, within_s, "get ready to be rolled back with the group")

    async def closed(self, within_s: float) -> None:
        """Wait until no transaction is open on the topics, and none begins."""

        def is_closed(topic: TopicRecord) -> bool:
            _refuse_given_up(topic)
            return topic.key in self.progress.closed

        await self._wait(is_closed, within_s, "end its open transactions")

    async def flipped(self, within_s: float) -> None:
        """Wait until all topics have gone back."""

        def has_flipped(topic: TopicRecord) -> bool:
            _refuse_given_up(topic)
            return False

        await self._wait(has_flipped, within_s, "go back")

    def _was_asked(self, topic: TopicRecord) -> bool:
        """Return whether somebody has asked to roll the topic back since the group's own request."""
        of_group, of_topic = self.group.asked, topic.asked
        if of_group is None or of_topic is None or of_topic.action is not Action.ROLLBACK:
            return False
        return of_topic.at_ms >= of_group.at_ms

    async def _wait(self, done: Callable[[TopicRecord], bool], within_s: float, what: str) -> None:
        deadline = monotonic() + within_s
        while names := ", ".join(topic.topic for topic in self.left() if not done(topic)):
            self.progress.note(self.group.key, f"{names} to {what}")
            if monotonic() > deadline:
                raise _refused(f"{names} did not {what} within {within_s:g} s")
            await self.log.changed(_PAUSE_S)


def _refuse_given_up(topic: TopicRecord) -> None:
    if topic.phase not in ROLLING_BACK:
        reason = topic.way_back.reason if topic.way_back is not None else ""
        raise _refused(f"{topic.topic} is not being rolled back" + (f": {reason}" if reason else ""))


def _refused(what: str) -> Refused:
    return Refused("coupled-topics", what, still_true=_AS_BEFORE)
