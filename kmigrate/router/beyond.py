"""Readers whose position a mirrored topic's copy has not come to yet: they are told to come again.

Members of groups are told committed offsets that the copy has not reached (`follow`, B). Flink, Spark and sinks bring
positions of their own. A broker says OFFSET_OUT_OF_RANGE (1) to one beyond its log's end: they would begin anew at an
end of the log, as `auto.offset.reset` says. It says the same to one before its log's start, and not which. So who
would be told it is told NOT_LEADER_OR_FOLLOWER (6) instead, at which every client asks again from where it is. Once the
copy has all that the source had when it was first said, it is true of whom it is said to again.

While something is found out the answer waits, for a moment at most: else its client would ask again without a pause.
An answer with records of any partition does not wait: a lagging partition does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kmigrate.model.routes import Serve, TopicRoute
from kmigrate.router.core import TARGET, Core, Edge

__all__ = ["Beyond"]

_LOOK_S = 0.5
"""As long as consumers let a broker wait for records."""
_FORGOTTEN_S = 15.0
"""Clients come again within seconds: who has not by then reads elsewhere."""
_COPIED = frozenset({Serve.FORWARD, Serve.HOLD})
_Key = tuple[str, int]


@dataclass(slots=True)
class _Doubt:
    """A partition of which it was said."""

    at: float
    """When it was said last."""
    end: int = -1
    """Where the source's log ended when it was said first, as soon as that is known."""
    over: bool = False
    """Whether the copy has come to that end."""


@dataclass(slots=True)
class Beyond:
    """One client connection's."""

    core: Core
    edge: Edge
    _doubts: dict[_Key, _Doubt] = field(default_factory=dict)
    _new: dict[str, set[_Key]] = field(default_factory=dict)
    """By link what is to be found out."""
    _looking: set[_Key] = field(default_factory=set)
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def comes_again(self, topic: bytes, partition: int) -> bool:
        """Whether a reader that the target calls out of range shall come again; `topic`: its name, or its id."""
        route = self._route(topic)
        if route is None:
            return False
        key, now = (route.topic, partition), self.edge.now()
        doubt = self._doubts.get(key)
        if doubt is None or now - doubt.at > _FORGOTTEN_S:
            doubt = self._doubts[key] = _Doubt(now)
        doubt.at = now
        if doubt.over:
            del self._doubts[key]
            return False
        if key not in self._looking:
            self._new.setdefault(route.link, set()).add(key)
        return True

    def when_settled(self, then: Callable[[], None], *, at_once: bool = False) -> None:
        """Find out what there is to be, and go on; `at_once`: go on before that."""
        new, self._new = self._new, {}
        for keys in new.values():
            self._looking |= keys
        if at_once:
            then()
        else:
            self._waiting.append(then)
        for link, keys in new.items():
            self._look(link, keys)
        self._go_on()

    def _route(self, topic: bytes) -> TopicRoute | None:
        """Of a topic that is copied under the same offsets."""
        routes = self.core.table.topics
        route = routes.get(topic.decode("utf-8", "replace")) or routes.get(self.core.ids.name_at_target(topic))
        return None if route is None or route.mapped or route.serve not in _COPIED else route

    def _look(self, link: str, keys: set[_Key]) -> None:
        doubts = {key: self._doubts[key] for key in keys}

        def ended(ends: Mapping[_Key, int]) -> None:
            for key, end in ends.items():
                doubts[key].end = end
            known = {key: doubt.end for key, doubt in doubts.items() if doubt.end >= 0}
            if known:
                self.core.outside.when_copied(link, known, _LOOK_S, lambda yes: copied(known, all_=yes))
            else:
                self._looked(keys)

        def copied(known: Mapping[_Key, int], *, all_: bool) -> None:
            if all_:
                here(known)
            else:
                self.core.outside.ends(TARGET, known, _LOOK_S, here)

        def here(ends: Mapping[_Key, int]) -> None:
            for key, end in ends.items():
                doubts[key].over = end >= doubts[key].end
            self._looked(keys)

        unknown = [key for key, doubt in doubts.items() if doubt.end < 0]
        if unknown:
            self.core.outside.ends(link, unknown, _LOOK_S, ended)
        else:
            ended({})

    def _looked(self, keys: set[_Key]) -> None:
        self._looking -= keys
        now = self.edge.now()
        self._doubts = {
            key: doubt
            for key, doubt in self._doubts.items()
            if key in self._looking or now - doubt.at <= _FORGOTTEN_S
        }
        self._go_on()

    def _go_on(self) -> None:
        if not self._looking:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()
