"""Whose turn it is to be fenced, where many topics are promoted at once: in rounds, with a rest after each.

Writers wait from a topic's fence to its flip, and who writes to many topics waits for each of them: what it sends to
the others stands behind what is held. So a round is small, for all partitions that are fenced share the mirror that
brings them to their barriers; and after it, for as long as it took, nothing is fenced and writers catch up. First come,
first served. `tests/soak/partitions.py` measures it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from kmigrate.net.clock import monotonic

__all__ = ["Turns"]

_LONGEST_REST_S = 2.0

Key = tuple[str, str]
"""Link and topic."""


@dataclass(slots=True)
class _Waiting:
    """A topic in the line."""

    key: Key
    partitions: int
    mates: Collection[Key]
    turn: asyncio.Future[None]


class Turns:
    """Shared by all promotes of a controller."""

    def __init__(self, most: int = 100) -> None:
        """`most` partitions are fenced in a round, or one unit that has more."""
        self._most = most
        self._fenced: set[Key] = set()
        self._line: list[_Waiting] = []
        self._began = 0.0
        self._rest: asyncio.TimerHandle | None = None

    async def take(self, key: Key, partitions: int, mates: Collection[Key] = ()) -> bool:
        """Wait for a topic's turn; whether it had to be waited for.

        `partitions` is what it has together with the other topics of its unit (`mates`), whose turn is the same.
        """
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

    def go(self, key: Key) -> None:
        """A topic is fenced, or will be at once, whoever's turn it is."""
        if not self._fenced:
            self._began = monotonic()
        self._fenced.add(key)

    def over(self, key: Key) -> None:
        """A topic is fenced no more."""
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
        """Give their turns to who may go now: mates of what is fenced, or the next round."""
        room = 0 if self._fenced or self._rest is not None else self._most
        alone = bool(room)
        for waiting in list(self._line):
            mate = not self._fenced.isdisjoint(waiting.mates)
            if not (mate or alone or waiting.partitions <= room):
                room = 0  # none overtakes it, but a mate of what goes
                continue
            if not mate:
                room, alone = room - waiting.partitions, False
            self._line.remove(waiting)
            self.go(waiting.key)
            if not waiting.turn.done():
                waiting.turn.set_result(None)
