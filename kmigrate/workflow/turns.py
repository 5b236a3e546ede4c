"""Whose turn it is to be fenced, where many topics are promoted at once: first come, first served, a few at a time.

Writers wait from a topic's fence to its flip, and all partitions that are fenced share the mirror that brings them to
their barriers: the more stand fenced, the longer each stands. `tests/soak/partitions.py` measures it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

__all__ = ["Turns"]

Key = tuple[str, str]
"""Link and topic."""


class Turns:
    """Shared by all promotes of a controller."""

    def __init__(self, most: int = 200) -> None:
        """`most` partitions are fenced at once, or one unit that has more."""
        self._most = most
        self._fenced: dict[Key, int] = {}
        self._line: list[Key] = []
        self._moved = asyncio.Event()

    async def take(self, key: Key, partitions: int, mates: Collection[Key] = ()) -> bool:
        """Wait for a topic's turn; whether it had to be waited for.

        `partitions` is what it has together with the other topics of its unit (`mates`), whose turn is the same.
        """
        waited = False
        self._line.append(key)
        try:
            while not self._may_go(key, partitions, mates):
                waited = True
                await self._moved.wait()
            self.go(key, 0 if self._went(mates) else partitions)
        finally:
            self._line.remove(key)
            self._wake()
        return waited

    def go(self, key: Key, partitions: int) -> None:
        """A topic is fenced, or will be at once, whoever's turn it is."""
        self._fenced.setdefault(key, partitions)

    def over(self, key: Key) -> None:
        """A topic is fenced no more."""
        if self._fenced.pop(key, None) is not None:
            self._wake()

    def _may_go(self, key: Key, partitions: int, mates: Collection[Key]) -> bool:
        if self._went(mates):
            return True
        return self._line[0] == key and (not self._fenced or sum(self._fenced.values()) + partitions <= self._most)

    def _went(self, mates: Collection[Key]) -> bool:
        return not self._fenced.keys().isdisjoint(mates)

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
