"""Questions about single partitions, sent together: while a broker works on a request, the next questions gather.

A thousand partitions that begin at once all ask the same question. A request per partition would keep kmigrate and the
broker busy for seconds. Each answer comes from a request that was sent after its question arrived, as with a request of
its own. The questions for a broker never wait for another broker, and never fail with another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

from kmigrate.errors import Failed

__all__ = ["RequestBatcher"]

_MOST = 500
"""Most questions in a request: writing and reading a larger request would stop the event loop, and so the copy."""

_V = TypeVar("_V")
Key = tuple[str, int]


class _Round(Generic[_V]):
    """The keys of a request, and its answers or its failure."""

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.answers: Mapping[Key, _V] | None = None
        self.failure: Failed | None = None


class _Line(Generic[_V]):
    """The questions that wait for a broker."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.gathering: _Round[_V] = _Round()


class RequestBatcher(Generic[_V]):
    """A kind of question; `ask` sends the question for many partitions, and returns an answer for each of them."""

    def __init__(self, ask: Callable[[Collection[Key]], Awaitable[Mapping[Key, _V]]]) -> None:
        self._ask = ask
        self._lines: dict[int, _Line[_V]] = {}

    async def ask(self, node: int, key: Key) -> _V:
        """Return the answer about a partition; as far as we know, this broker leads the partition."""
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
