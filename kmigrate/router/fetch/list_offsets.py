"""Answers ListOffsets with log ends that are never before a write acknowledged to the router's clients.

A source acknowledges a write to a mirrored topic, and the copy is at the target milliseconds later. A client takes the
log end for all records that there are. Kafka Streams restores a store up to there for good. Connect takes the newest of
its own positions up to there. Spark calls an end that has gone back data loss. So the router asks the target once the
copy has what the source had when the client asked. If the copy does not get there in a moment, the client gets the
copy's present end. Only this client then does not wait again for a while, because monitors ask for one partition after
another. `shared.time_lookups` corrects look-ups by time, which depend on the end, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmigrate.protocol.api import Message
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Conversation, together
from kmigrate.router.shared.state import TARGET, ClientLink, SharedState
from kmigrate.router.shared.time_lookups import Found, TimeAnswers, times_asked

__all__ = ["ListOffsetsHandler"]


_OF_THE_END = frozenset({-1, -3})
"""Timestamps of the end and of the record with the largest time; other negative timestamps are near the start."""
_REST_S = 10.0
"""Time for which a client does not wait for a copy again, after a wait in vain."""
_Key = tuple[str, int]


@dataclass(slots=True)
class ListOffsetsHandler:
    """Answers ListOffsets of a client connection."""

    shared: SharedState
    client: ClientLink
    behind: dict[str, float] = field(default_factory=dict)
    """Time until which this client no longer waits for the copies of a topic, after a wait in vain."""

    def answer(self, head: RequestHead, frame: bytearray, request: Message) -> Conversation[bytearray]:
        """Return the target's answer, given once the copies are there, with the sources' answers for times."""
        times = times_asked(self.shared.table.topics, request)
        yield from together(self._wait(link, frozenset(keys)) for link, keys in self._asked(request).items())
        answer = yield from self.client.ask_target([frame], head.correlation_id)
        if not times:
            return answer
        by_time = TimeAnswers.read(self.shared.table.topics, times, head, answer)
        committed, seconds = getattr(request, "isolation_level", 0) == 1, self.shared.settings.group_hold_s
        look_ups = [
            self.shared.backend.look_up(link, doubted, seconds, read_committed=committed)
            for link, doubted in by_time.doubted().items()
        ]
        found: dict[_Key, Found] = {}
        for look_up in look_ups:
            found.update((yield from look_up))
        if not found:
            return answer
        ends: Mapping[_Key, int] = {}
        if beyond := by_time.beyond(found):
            ends = yield from self.shared.backend.log_ends(TARGET, beyond, seconds)
        return bytearray(by_time.corrected(found, ends))

    def _wait(self, link: str, keys: frozenset[_Key]) -> Conversation[None]:
        """Wait until a link's copies have what the source has now, for a moment at most."""
        seconds, began = self.shared.settings.group_hold_s, self.client.now()
        ends = yield from self.shared.backend.log_ends(link, keys, seconds)
        if self.client.now() - began >= seconds / 2:  # a source that answers at once does not have the others
            self._rest(keys - ends.keys())
        if ends and not (yield from self.shared.backend.when_copied(link, ends, seconds)):
            self._rest(ends)

    def _rest(self, keys: Iterable[_Key]) -> None:
        now = self.client.now()
        self.behind = {topic: until for topic, until in self.behind.items() if until > now}
        self.behind |= {topic: now + _REST_S for topic, _ in keys}

    def _asked(self, request: Message) -> dict[str, set[_Key]]:
        """Return the partitions that an answer waits for, by link; offsets of a mapped topic are no source's."""
        out: dict[str, set[_Key]] = {}
        now = self.client.now()
        for topic in request.topics:
            name = str(topic.name)
            route = self.shared.table.topics.get(name)
            if route is None or not route.reads_copy or route.mapped or self.behind.get(name, now) > now:
                continue
            parts = [part for part in topic.partitions if part.timestamp >= 0 or part.timestamp in _OF_THE_END]
            if keys := {(name, int(part.partition_index)) for part in parts if part.partition_index >= 0}:
                out.setdefault(route.link, set()).update(keys)
        return out
