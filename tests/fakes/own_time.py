"""An event loop whose clock advances only while nothing is left to do: no sleep really waits, and nothing is late."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["OwnTime"]

_T = TypeVar("_T")


class _Idle(selectors.SelectSelector):
    """A selector that advances the clock where an ordinary selector would wait."""

    now = 100.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class OwnTime(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, used as `OwnTime().run(scene())`. `time` is the monotonic clock."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now

    def run(self, scene: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self.run_until_complete(scene)
        finally:
            self.close()
