"""Orders the fences of many topics that are promoted at once: in rounds, with a rest after each round.

From a topic's fence to its flip, writers wait also with requests to other topics, which stand behind the held request.
So a round is small: all fenced partitions share the mirror that brings them to their barriers. Nothing is fenced in the
rest, as long as the round: writers catch up. First come, first served. `tests/soak/partitions.py` measures the waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from kmigrate.net.clock import monotonic

__all__ = ["FenceRounds"]

_LONGEST_REST_S = 2.0


@dataclass(slots=True)
class _Waiting:
    """A topic in the line."""

    key: str
    partitions: int
    mates: Collection[str]
    turn: asyncio.Future[None]


class FenceRounds:
    """The line of topics, by record key, that wait for their fence; shared by all promotes of a controller."""

    def __init__(self, most: int = 100) -> None:
        """Fence at most `most` partitions in a round, or one unit with more partitions."""
        self._most = most
        self._fenced: set[str] = set()
        self._line: list[_Waiting] = []
        self._began = 0.0
        self._rest: asyncio.TimerHandle | None = None

    async def take(self, key: str, partitions: int, mates: Collection[str] = ()) -> bool:
        """Wait for a topic's turn; return whether it had to wait. A unit's `mates` share the turn and `partitions`."""
        turn = asyncio.get_running_loop().create_future()
        waiting = _Waiting(key, partitions, mates, turn)
        self._line.append(waiting)
        self._next()
        waited = not turn.done()
        try:
            await turn
        except asyncio.CancelledError:
            if waiting in self._line:
                self._line.remove(waiting)
            else:
                self.over(key)
            raise
        return waited

    def go(self, key: str) -> None:
        """Note that a topic is fenced, or will be at once, in its turn or out of turn."""
        if not self._fenced:
            self._began = monotonic()
        self._fenced.add(key)

    def over(self, key: str) -> None:
        """Note that a topic is not fenced any more."""
        if key not in self._fenced:
            return
        self._fenced.remove(key)
        if not self._fenced:
            if self._rest is not None:
                self._rest.cancel()
            rest = min(monotonic() - self._began, _LONGEST_REST_S)
            self._rest = asyncio.get_running_loop().call_later(rest, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._next()

    def _next(self) -> None:
        """Give their turns to the topics that may go now: mates of fenced topics, or the next round."""
        room = 0 if self._fenced or self._rest is not None else self._most
        alone = bool(room)
        for waiting in list(self._line):
            mate = not self._fenced.isdisjoint(waiting.mates)
            if not (mate or alone or waiting.partitions <= room):
                room = 0  # only the mate of a topic that goes may overtake this topic
                continue
            if not mate:
                room, alone = room - waiting.partitions, False
            self._line.remove(waiting)
            self.go(waiting.key)
            if not waiting.turn.done():
                waiting.turn.set_result(None)
