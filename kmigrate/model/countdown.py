"""Estimates when a falling number reaches nothing, from the number's own fall."""

from __future__ import annotations

from collections import deque

from kmigrate.model.amounts import left_text

__all__ = ["Countdown", "about"]

_WINDOW_S = 30.0
_LEAST_S = 2.0
"""A shorter observation says nothing about the pace."""


class Countdown:
    """The values of a falling number in the last half minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seconds_left(self, at_s: float, left: int) -> float | None:
        """Take the number that is left at a moment; return the seconds until nothing is left, None while unknown."""
        self._seen.append((at_s, left))
        while at_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        first_s, first = self._seen[0]
        if at_s - first_s < _LEAST_S or first <= left:
            return None
        return left * (at_s - first_s) / (first - left)


def about(seconds: float | None) -> str:
    """Return an estimate in words, rounded to what a person can use; '' where there is none."""
    return "" if seconds is None else f"about {left_text(max(1.0, seconds))} left"
