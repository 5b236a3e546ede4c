"""Where a log ends, as clients at the router ask it (ListOffsets): never before what was acknowledged to them.

A write to a mirrored topic is acknowledged by its source, and its copy is at the target milliseconds later. Who asks
where the log ends takes that for all that there is: Kafka Streams restores a store up to there and goes on with it for
good, Connect takes the newest of its own positions up to there, Spark calls an end that has gone back data loss. So the
target is asked once its copy has what the source had when the client asked. Where the copy does not come to it in a
moment, the client is told how far it is, and nobody waits again at once: monitors ask of one partition after another.

By a time, too, is asked what depends on the end: of a record that is not copied yet there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kmigrate.model.routes import Serve
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.core import Core, Edge

__all__ = ["LIST_OFFSETS", "ask_ends"]

LIST_OFFSETS = 2
_OF_THE_END = frozenset({-1, -3})
"""The end itself, and the record with the largest time; what else has a number below 0 is near the start."""
_COPIED = frozenset({Serve.FORWARD, Serve.HOLD})
_REST_S = 10.0
"""After somebody has waited in vain for a topic's copy."""


def ask_ends(
    core: Core, edge: Edge, head: RequestHead, frame: bytearray, request: Any, then: Callable[[bytearray], None]
) -> None:
    """Ask the target for offsets on behalf of a client, when its copies are there; `then` gets the answer."""
    asked = _asked(core, request, edge.now())
    waiting = len(asked)

    def ask(link: str, keys: frozenset[tuple[str, int]]) -> None:
        def told(ends: Mapping[tuple[str, int], int]) -> None:
            if ends:
                core.outside.when_copied(link, ends, seconds, lambda yes: there(copied=yes))
            else:
                there(copied=False)

        def there(*, copied: bool) -> None:
            nonlocal waiting
            if not copied:
                _note_behind(core, {topic for topic, _ in keys}, edge.now())
            waiting -= 1
            if not waiting:
                edge.to_target([frame], head.correlation_id, then)

        seconds = core.settings.group_hold_s
        core.outside.ends(link, keys, seconds, told)

    for link, keys in asked.items():
        ask(link, frozenset(keys))
    if not asked:
        edge.to_target([frame], head.correlation_id, then)


def _note_behind(core: Core, topics: set[str], now: float) -> None:
    core.behind = {topic: until for topic, until in core.behind.items() if until > now}
    core.behind |= dict.fromkeys(topics, now + _REST_S)


def _asked(core: Core, request: Any, now: float) -> dict[str, set[tuple[str, int]]]:
    """By link the partitions whose copies matter to the answer; offsets of a mapped topic are no source's."""
    out: dict[str, set[tuple[str, int]]] = {}
    for topic in request.topics:
        name = str(topic.name)
        route = core.table.topics.get(name)
        if route is None or route.serve not in _COPIED or route.mapped or core.behind.get(name, now) > now:
            continue
        for part in topic.partitions:
            if part.timestamp >= 0 or part.timestamp in _OF_THE_END:
                out.setdefault(route.link, set()).add((name, int(part.partition_index)))
    return out
