"""Answers ListOffsets with log ends that are never before a write acknowledged to the router's clients.

A source acknowledges a write to a mirrored topic, and the copy is at the target milliseconds later. A client takes the
log end for all records that there are. Kafka Streams restores a store up to there and goes on with the store for good.
Connect takes the newest of its own positions up to there. Spark calls an end that has gone back data loss.

So the router asks the target once the target's copy has what the source had when the client asked. If the copy does not
get there in a moment, the client gets the copy's present end. For a while the client then does not wait again, because
monitors ask for one partition after another. Other clients still wait: no client's request changes another client's
answer.

A look-up by time depends on the end, too, and `shared.time_lookups` corrects the target's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kmigrate.model.routes import Serve
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.state import TARGET, ClientLink, SharedState
from kmigrate.router.shared.time_lookups import Found, TimeAnswers, times_asked

__all__ = ["ListOffsetsHandler"]


_OF_THE_END = frozenset({-1, -3})
"""Timestamps of the end and of the record with the largest time; other negative timestamps are near the start."""
_COPIED = frozenset({Serve.FORWARD, Serve.HOLD})
_REST_S = 10.0
"""Time for which a client does not wait for a copy again, after a wait in vain."""
_Key = tuple[str, int]


@dataclass(slots=True)
class ListOffsetsHandler:
    """Asks for offsets on behalf of a client connection."""

    shared: SharedState
    client: ClientLink
    behind: dict[str, float] = field(default_factory=dict)
    """Time until which this client no longer waits for the copies of a topic, after a wait in vain."""

    def ask(self, head: RequestHead, frame: bytearray, request: Any, then: Callable[[bytearray], None]) -> None:
        """Ask the target once the copies are there; `then` gets the answer."""
        asked, times = self._asked(request), times_asked(self.shared.table.topics, request)
        waiting = set(asked)

        def answered(answer: bytearray) -> None:
            if times:
                committed = getattr(request, "isolation_level", 0) == 1
                told = TimeAnswers.read(self.shared.table.topics, times, head, answer)
                self._put_right(told, answer, committed, then)
            else:
                then(answer)

        def there(link: str) -> None:
            waiting.discard(link)
            if not waiting:
                self.client.to_target([frame], head.correlation_id, answered)

        for link, keys in asked.items():
            self._wait(link, frozenset(keys), there)
        if not asked:
            self.client.to_target([frame], head.correlation_id, answered)

    def _put_right(
        self, told: TimeAnswers, answer: bytearray, committed: bool, then: Callable[[bytearray], None]
    ) -> None:
        """Correct the target's answers for times by the answers of the sources."""
        doubted, seconds = told.doubted(), self.shared.settings.group_hold_s
        waiting = set(doubted)
        found: dict[_Key, Found] = {}
        if not doubted:
            then(answer)

        def heard(link: str, of_link: Mapping[_Key, Found]) -> None:
            found.update(of_link)
            waiting.discard(link)
            if not waiting:
                beyond = told.beyond(found)
                if beyond:
                    self.shared.backend.log_ends(TARGET, beyond, seconds).then(finish)
                else:
                    finish({})

        def finish(ends: Mapping[_Key, int]) -> None:
            then(bytearray(told.corrected(found, ends)) if found else answer)

        for link, times in doubted.items():
            self.shared.backend.look_up(link, times, seconds, read_committed=committed).then(partial(heard, link))

    def _wait(self, link: str, keys: frozenset[_Key], there: Callable[[str], None]) -> None:
        """Wait until a link's copies have what the source has now, for a moment at most."""
        seconds, began = self.shared.settings.group_hold_s, self.client.now()

        def told(ends: Mapping[_Key, int]) -> None:
            if self.client.now() - began >= seconds / 2:  # a source that answers at once does not have the others
                self._rest(keys - ends.keys())
            if ends:
                self.shared.backend.when_copied(link, ends, seconds).then(lambda yes: waited(ends, copied=yes))
            else:
                there(link)

        def waited(ends: Mapping[_Key, int], *, copied: bool) -> None:
            if not copied:
                self._rest(ends)
            there(link)

        self.shared.backend.log_ends(link, keys, seconds).then(told)

    def _rest(self, keys: Iterable[_Key]) -> None:
        now = self.client.now()
        self.behind = {topic: until for topic, until in self.behind.items() if until > now}
        self.behind |= {topic: now + _REST_S for topic, _ in keys}

    def _asked(self, request: Any) -> dict[str, set[_Key]]:
        """Return the partitions that an answer waits for, by link; offsets of a mapped topic are no source's."""
        out: dict[str, set[_Key]] = {}
        now = self.client.now()
        for topic in request.topics:
            name = str(topic.name)
            route = self.shared.table.topics.get(name)
            if route is None or route.serve not in _COPIED or route.mapped or self.behind.get(name, now) > now:
                continue
            for part in topic.partitions:
                key = name, int(part.partition_index)
                if key[1] >= 0 and (part.timestamp >= 0 or part.timestamp in _OF_THE_END):
                    out.setdefault(route.link, set()).add(key)
        return out
