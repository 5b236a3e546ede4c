"""How many records are due now: an open-loop schedule that does not slow down with the cluster's answers.

A client that waits for each answer hides a pause, for it then sends nothing that could wait. After a
stall (a held response, a paused process) the schedule starts anew rather than sending a flood.
"""

from __future__ import annotations

import time

__all__ = ["TICK_SECONDS", "Pace"]

TICK_SECONDS = 0.02
"""What is due within it goes out together: each wakes a client, a broker, a mirror and its readers."""
_MOST_AT_ONCE = 200


class Pace:
    """The schedule of one producer."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._restart()

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._given = 0

    def due(self) -> int:
        due = int((time.monotonic() - self._since) * self._rate) - self._given
        if due > _MOST_AT_ONCE:
            self._restart()
            return _MOST_AT_ONCE
        self._given += due
        return due
