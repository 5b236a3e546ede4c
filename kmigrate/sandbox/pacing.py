"""An open-loop schedule of sends, which does not slow down with the cluster's answers.

A client that waits for each answer hides a pause, because the client then sends nothing that could wait. After a stall
(a held response, a paused process) the schedule starts anew and does not send a flood.
"""

from __future__ import annotations

import time

__all__ = ["TICK_SECONDS", "Pace"]

TICK_SECONDS = 0.02
"""The length of a tick. Records that are due within a tick go out together.

Each send wakes a client, a broker, a mirror and the readers.
"""
_MOST_AT_ONCE = 200


class Pace:
    """The schedule of a producer."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._restart()

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._given = 0

    def due(self) -> int:
        """Return the number of records to send now, at most `_MOST_AT_ONCE`. After a stall start the schedule anew."""
        due = int((time.monotonic() - self._since) * self._rate) - self._given
        if due > _MOST_AT_ONCE:
            self._restart()
            return _MOST_AT_ONCE
        self._given += due
        return due
