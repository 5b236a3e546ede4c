"""The one home of time: the rest of kmigrate asks here, so that a test can look at every wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["block", "boottime", "call_when", "monotonic", "now_ms", "sleep", "steady_ms"]

_LEAST_WAIT_S = 0.001
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Wall-clock time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds of a clock that never goes back, comparable between processes of one machine."""
    return time.monotonic()


def boottime() -> float:
    """The same, counting also the time in which the machine slept, where the system tells it."""
    return time.clock_gettime(_BOOTTIME)


def call_when(when: float, call: Callable[[], None]) -> None:
    """Have the running loop make a call once `monotonic()` is at `when`, and never before.

    uvloop's timers end up to a millisecond early, one in four of them: who then looks at the clock, finds that it is
    not time yet and waits for the next event, may wait for ever.
    """
    loop = asyncio.get_running_loop()

    def look() -> None:
        left = when - monotonic()
        if left > 0:
            loop.call_later(max(left, _LEAST_WAIT_S), look)
        else:
            call()

    loop.call_later(max(0.0, when - monotonic()), look)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def steady_ms() -> int:
    """Wall-clock time as this process found it, gone on with by a clock that nobody sets: it never jumps.

    It is for differences of what one process has said; between two processes it is as far off as their wall clocks.
    """
    return _FOUND_MS + round(boottime() * 1000)


def block(seconds: float) -> None:
    """Sleep where no event loop runs (a person's command that waits for processes)."""
    time.sleep(seconds)


_FOUND_MS = now_ms() - round(boottime() * 1000)
