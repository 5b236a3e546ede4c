"""Makes readers repeat a fetch where the target's copy of a mirrored topic has not reached their position.

Members of groups get committed offsets that the copy has not reached (`groups.handler`, B). Flink, Spark and sinks
bring positions of their own. A broker answers OFFSET_OUT_OF_RANGE (1) both beyond the log's end and before its start.
The reader would then begin anew at an end of the log, as `auto.offset.reset` says. So the router answers
NOT_LEADER_OR_FOLLOWER (6), and every client repeats the fetch from its position. Once the copy has everything that the
source had at the first such answer, OFFSET_OUT_OF_RANGE is true and passes. The answer waits a moment at most for the
look-up of log ends, so that the client pauses. An answer with records of any partition does not wait: a lagging
partition does not hold up others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kmigrate.model.routes import TopicRoute
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import TARGET, ClientLink, SharedState

__all__ = ["OutOfRangeReads"]

_LOOK_S = 0.5
"""Longest time of a look-up: as long as consumers let a broker wait for records."""
_FORGOTTEN_S = 15.0
"""Time after which a suspect is forgotten: clients repeat within seconds, or read elsewhere."""
_Key = tuple[str, int]


@dataclass(slots=True)
class _Suspect:
    """A partition with a reader that the target calls out of range."""

    at: float
    """Time of the latest out-of-range answer."""
    end: int = -1
    """Log end of the source at the first out-of-range answer, as soon as known."""
    over: bool = False
    """True once the copy has reached that end."""


@dataclass(slots=True)
class OutOfRangeReads:
    """The out-of-range answers of a client connection."""

    shared: SharedState
    client: ClientLink
    _suspects: dict[_Key, _Suspect] = field(default_factory=dict)
    _new: dict[str, set[_Key]] = field(default_factory=dict)
    """Partitions whose log ends are to be looked up, by link."""
    _looking: set[_Key] = field(default_factory=set)
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def comes_again(self, topic: bytes, partition: int) -> bool:
        """Return whether an out-of-range reader of a topic (name or id) shall repeat the fetch."""
        route = self._route(topic)
        if route is None:
            return False
        key, now = (route.topic, partition), self.client.now()
        suspect = self._suspects.get(key)
        if suspect is None or now - suspect.at > _FORGOTTEN_S:
            suspect = self._suspects[key] = _Suspect(now)
        suspect.at = now
        if suspect.over:
            del self._suspects[key]
            return False
        if key not in self._looking:
            self._new.setdefault(route.link, set()).add(key)
        return True

    def when_settled(self, then: Callable[[], None], *, at_once: bool = False) -> None:
        """Look up the log ends of new suspects, then call `then`; with `at_once`, call `then` before."""
        new, self._new = self._new, {}
        for keys in new.values():
            self._looking |= keys
        if at_once:
            then()
        else:
            self._waiting.append(then)
        for link, keys in new.items():
            self.shared.conversations.start(self._look(link, keys))
        self._go_on()

    def _route(self, topic: bytes) -> TopicRoute | None:
        """Return the route of a topic that is copied under the same offsets; None for other topics."""
        routes = self.shared.table.topics
        route = routes.get(topic.decode("utf-8", "replace")) or routes.get(self.shared.ids.name_at_target(topic))
        return None if route is None or route.mapped or not route.reads_copy else route

    def _look(self, link: str, keys: set[_Key]) -> Conversation[None]:
        suspects = {key: self._suspects[key] for key in keys}
        if unknown := [key for key, suspect in suspects.items() if suspect.end < 0]:
            for key, end in (yield from self.shared.backend.log_ends(link, unknown, _LOOK_S)).items():
                suspects[key].end = end
        known = {key: suspect.end for key, suspect in suspects.items() if suspect.end >= 0}
        if known:
            copied = yield from self.shared.backend.when_copied(link, known, _LOOK_S)
            ends = known if copied else (yield from self.shared.backend.log_ends(TARGET, known, _LOOK_S))
            for key, end in ends.items():
                suspects[key].over = end >= suspects[key].end
        self._looked(keys)

    def _looked(self, keys: set[_Key]) -> None:
        self._looking -= keys
        now = self.client.now()
        for key, suspect in list(self._suspects.items()):
            if key not in self._looking and now - suspect.at > _FORGOTTEN_S:
                del self._suspects[key]
        self._go_on()

    def _go_on(self) -> None:
        if not self._looking:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()
