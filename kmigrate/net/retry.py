"""Loops that wait: rounds for ever, looks until a condition holds, and tries with pauses and a time limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from math import inf

from kmigrate.net.clock import monotonic, sleep

__all__ = ["Backoff", "every", "until"]


class every(AsyncIterator[None]):  # noqa: N801 used like a function, in `async for _ in every(1.0)`
    """Yields after each pause, with `at_once` also before the first; no generator, which a cancel would leave open."""

    def __init__(self, pause_s: float, *, at_once: bool = False) -> None:
        self._pause_s = pause_s
        self._at_once = at_once

    async def __anext__(self) -> None:
        if not self._at_once:
            await sleep(self._pause_s)
        self._at_once = False


async def until(holds: Callable[[], bool], *, every_s: float, within_s: float) -> bool:
    """Wait until the condition holds, and return True; return False once the time is over."""
    tries = Backoff(every_s, within_s=within_s)
    while not holds():
        if tries.over:
            return False
        await tries.pause()
    return True


class Backoff:
    """The pauses between tries: each pause is twice the last pause, up to the longest; the tries may have a limit."""

    def __init__(self, first_s: float, longest_s: float = 0.0, *, within_s: float = inf) -> None:
        self._first_s = self.next_s = first_s
        self._longest_s = max(first_s, longest_s)
        self._deadline = monotonic() + within_s

    @property
    def over(self) -> bool:
        """True if the time for tries is over."""
        return monotonic() > self._deadline

    async def pause(self, failure: Exception | None = None) -> None:
        """Wait for the next try; raise `failure`, the outcome of the last try, if the time is over."""
        if failure is not None and self.over:
            raise failure
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self._longest_s)
        await sleep(pause_s)

    def reset(self) -> None:
        """Begin again with the first pause."""
        self.next_s = self._first_s
