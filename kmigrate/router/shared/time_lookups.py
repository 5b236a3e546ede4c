"""Corrects look-ups by time (ListOffsets) in logs that the mirror copied under the source's offsets.

The mirror fills holes with control markers, and a broker gives each marker the time of writing. So the target names the
first marker for every time before the copy: never later than the right answer, and often earlier, so that a reader that
begins there reads again. While the topic is mirrored, the source's answer is right. After the promote the source still
holds what was copied, as far as retention allows:

A  An answer of the target at or beyond the barrier is right: no marker stands there.
B  For other answers the source is believed where its log still reaches down to the target's answer, and the topic is
   the same. If the source has no record below the barrier, the answer is the first record beyond the barrier, if any.
   A topic with a way back is copied to the source, so the source's answer beyond the barrier is right, too.
C  In every other case the target's answer stays. No answer is ever later than the right answer.
D  The record with the largest time is the source's, below the barrier, as long as the target's log ends at the barrier.
   A record that the target has taken since is older than the target's answer, or is that answer (A).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kmigrate.model.ids import LARGEST
from kmigrate.model.routes import Serve, TopicRoute
from kmigrate.protocol.api import answer_type, decode_answer, frame_answer
from kmigrate.protocol.frames import RequestHead

__all__ = ["Found", "TimeAnswers", "times_asked"]

_Key = tuple[str, int]


class Found(NamedTuple):
    """A source's answer for a time: the log start, the record's offset (−1: none) and the record's time."""

    start: int
    offset: int
    timestamp: int


def times_asked(routes: Mapping[str, TopicRoute], request: Any) -> dict[_Key, int]:
    """Return the times that a request asks for, by partition, of topics that were copied under the source's offsets."""
    return {
        (str(topic.name), int(part.partition_index)): int(part.timestamp)
        for topic in request.topics
        if (route := routes.get(str(topic.name))) is not None and not route.mapped and route.serve is not Serve.HIDDEN
        for part in topic.partitions
        if part.timestamp >= 0 or part.timestamp == LARGEST
    }


@dataclass(slots=True)
class TimeAnswers:
    """The target's answer to a request, and the partitions to correct in it."""

    routes: Mapping[str, TopicRoute]
    asked: Mapping[_Key, int]
    head: RequestHead
    message: Any

    @classmethod
    def read(
        cls, routes: Mapping[str, TopicRoute], asked: Mapping[_Key, int], head: RequestHead, answer: bytearray
    ) -> TimeAnswers:
        return cls(routes, asked, head, decode_answer(answer_type(head), answer))

    def doubted(self) -> dict[str, dict[_Key, int]]:
        """Return the times to ask the sources for, by link and partition."""
        out: dict[str, dict[_Key, int]] = {}
        for key, part in self._parts():
            route = self.routes.get(key[0])
            if route is not None and not part.error_code and _may_be_wrong(route, key[1], int(part.offset)):
                out.setdefault(route.link, {})[key] = self.asked[key]
        return out

    def beyond(self, found: Mapping[_Key, Found]) -> set[_Key]:
        """Return the partitions with an answer beyond the barrier, if the target's log goes on there."""
        return {
            key
            for key, told in found.items()
            if (route := self.routes[key[0]]).at_target
            and (self.asked[key] == LARGEST) is (0 <= told.offset < route.barrier.get(key[1], 0))
        }

    def corrected(self, found: Mapping[_Key, Found], ends: Mapping[_Key, int]) -> bytes:
        """Return the answer with the sources' records; `ends`: the target's log ends of the `beyond` partitions."""
        topics = []
        for topic in self.message.topics:
            name = str(topic.name)
            parts = tuple(self._part(part, (name, int(part.partition_index)), found, ends) for part in topic.partitions)
            topics.append(dataclasses.replace(topic, partitions=parts))
        return frame_answer(dataclasses.replace(self.message, topics=tuple(topics)), self.head.correlation_id)

    def _parts(self) -> list[tuple[_Key, Any]]:
        named = ((str(topic.name), part) for topic in self.message.topics for part in topic.partitions)
        return [(key, part) for name, part in named if (key := (name, int(part.partition_index))) in self.asked]

    def _part(self, part: Any, key: _Key, found: Mapping[_Key, Found], ends: Mapping[_Key, int]) -> Any:
        route, told = self.routes.get(key[0]), found.get(key)
        if route is None or told is None or part.error_code:
            return part
        right = _right(route, key[1], int(part.offset), self.asked[key], told, ends.get(key))
        if right is None:
            return part
        changed: dict[str, Any] = {"offset": right[0], "timestamp": right[1]}
        if hasattr(part, "leader_epoch"):
            changed["leader_epoch"] = -1  # an epoch of the other cluster would have readers rewind (V5)
        return dataclasses.replace(part, **changed)


def _may_be_wrong(route: TopicRoute, partition: int, offset: int) -> bool:
    """Return whether the target's answer may name a marker (rule A)."""
    if not route.at_target:
        return True
    return 0 <= offset < route.barrier.get(partition, 0)


def _right(
    route: TopicRoute, partition: int, offset: int, asked: int, told: Found, end: int | None
) -> tuple[int, int] | None:
    """Return the right offset and time; None where the target's answer stays."""
    start = route.starts.get(partition, 0)
    if not route.at_target:
        beyond_copy = 0 <= told.offset < start  # the copy began later
        return None if beyond_copy else (told.offset, told.timestamp)
    barrier = route.barrier.get(partition, 0)
    if asked == LARGEST:
        return (told.offset, told.timestamp) if end is not None and end <= barrier else None
    if told.start > offset or 0 <= told.offset < offset:
        return None
    if 0 <= told.offset < barrier or (route.copied_back and told.offset >= barrier):
        return told.offset, told.timestamp
    return (-1, -1) if end is not None and end <= barrier else (barrier, asked)
