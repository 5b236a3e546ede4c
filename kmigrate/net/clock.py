"""The only home of time: all other code of kmigrate asks here, so that a test can control every wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["block", "boottime", "call_when", "cpu_s", "monotonic", "now_ms", "sleep", "steady_ms"]

_LEAST_WAIT_S = 0.001
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return wall-clock time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Return the seconds of a clock that never goes back, comparable between processes of a machine."""
    return time.monotonic()


def boottime() -> float:
    """Return `monotonic` plus the time in which the machine slept, if the system tells that time."""
    return time.clock_gettime(_BOOTTIME)


def cpu_s() -> float:
    """Return the seconds of processor time that this process has used."""
    return time.process_time()


def call_when(when: float, call: Callable[[], None]) -> None:
    """Have the running loop make a call once `monotonic()` has reached `when`, and never before.

    A quarter of uvloop's timers end up to 1 ms early; code that then waits for another event may wait for ever.
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
    """Return the wall-clock start advanced by a clock that nobody sets: for differences within this process only."""
    return _FOUND_MS + round(boottime() * 1000)


def block(seconds: float) -> None:
    """Sleep where no event loop runs (a person's command that waits for processes)."""
    time.sleep(seconds)


_FOUND_MS = now_ms() - round(boottime() * 1000)
