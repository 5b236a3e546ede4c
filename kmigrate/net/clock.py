"""The one home of time: the rest of kmigrate asks here, so that a test can look at every wait."""

from __future__ import annotations

import asyncio
import time

__all__ = ["block", "boottime", "monotonic", "now_ms", "sleep"]


def now_ms() -> int:
    """Wall-clock time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic() -> float:
    """Seconds of a clock that never goes back, comparable between processes of one machine."""
    return time.monotonic()


def boottime() -> float:
    """The same, counting also the time in which the machine slept, where the system tells it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def block(seconds: float) -> None:
    """Sleep where no event loop runs (a person's command that waits for processes)."""
    time.sleep(seconds)
