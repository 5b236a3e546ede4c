"""Questions about single partitions, asked together: while a broker works on one request, those for the next gather.

A thousand partitions that begin at once all ask the same; each in a request of its own would keep us and the broker
busy for seconds. An answer is always one that was asked for after its question came, as if that had gone alone. What
is asked of one broker waits for no other, and fails with no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

from kmigrate.errors import Failed

__all__ = ["Gathered"]

_MOST = 500
"""Of one request: a larger one would keep the event loop, and so the copy, standing while it is written and read."""

_V = TypeVar("_V")
Key = tuple[str, int]


class _Round(Generic[_V]):
    """What goes into one request, and what came of it."""

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.answers: Mapping[Key, _V] | None = None
        self.failure: Failed | None = None


class _Line(Generic[_V]):
    """Those who wait for one broker."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.gathering: _Round[_V] = _Round()


class Gathered(Generic[_V]):
    """One kind of question; `ask` asks it about many partitions, and has an answer for each of them."""

    def __init__(self, ask: Callable[[Collection[Key]], Awaitable[Mapping[Key, _V]]]) -> None:
        self._ask = ask
        self._lines: dict[int, _Line[_V]] = {}

    async def ask(self, node: int, key: Key) -> _V:
        """The answer about one partition, which this broker leads as far as we know."""
        line = self._lines.setdefault(node, _Line())
        if len(line.gathering.keys) >= _MOST:
            line.gathering = _Round()
        mine = line.gathering
        mine.keys[key] = None
        async with line.turn:
            if mine.answers is None and mine.failure is None:
                if line.gathering is mine:
                    line.gathering = _Round()
                try:
                    mine.answers = await self._ask(mine.keys)
                except Failed as failure:
                    mine.failure = failure
        if mine.answers is None:
            assert mine.failure is not None
            raise mine.failure
        return mine.answers[key]
