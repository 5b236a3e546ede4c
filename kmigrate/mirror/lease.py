"""Which process copies a link: one lease in the state log, held as long as its holder is heard.

A lease here is not a fence: plain data needs none, as two copiers cannot harm each other (append rule). Only
holes do, so a holder makes them only while its own last word, counted from before it was sent, is younger than
a part of the time after which others take over; a late request of a former holder is refused by its term (V3).
"""

from __future__ import annotations

from kmigrate.model.records import LeaseRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.state.log import StateLog

__all__ = ["Lease"]

_SURE = 0.6
"""Part of the lease time during which a holder may rely on its own last word."""


class Lease:
    """One process's view of `lease/mirror/<link>`."""

    def __init__(self, log: StateLog, link: str, instance: str, lease_s: float) -> None:
        self._log = log
        self._what = f"mirror/{link}"
        self._instance = instance
        self._lease_s = lease_s
        self._said = -1e9
        self._watched: LeaseRecord | None = None
        self._since = monotonic()

    @property
    def held(self) -> bool:
        record = self._log.state.lease(self._what)
        return record is not None and record.holder == self._instance

    @property
    def term(self) -> int:
        record = self._log.state.lease(self._what)
        return record.term if record is not None else 0

    def said(self, sent: float) -> None:
        """Others have our word, sent at this moment of our clock."""
        self._said = sent

    def confirmed(self) -> bool:
        """Whether nobody can have taken the lease yet, as far as clocks run evenly."""
        return self.held and monotonic() - self._said < self._lease_s * _SURE

    def _vacant(self) -> bool:
        """Whether the holder is gone: released, or not heard for the lease time by our own clock."""
        record = self._log.state.lease(self._what)
        now = monotonic()
        if record != self._watched:
            self._watched, self._since = record, now
        if record is None or not record.holder:
            return True
        mine = self._log.presence.get(f"mirror/{self._instance}")
        if mine is None or now - mine[1] > self._lease_s / 2:
            return False  # who does not hear itself cannot say that others are silent
        word = self._log.presence.get(f"mirror/{record.holder}")
        heard = max(self._since, word[1] if word is not None else self._since)
        return now - heard >= self._lease_s

    async def take_if_vacant(self) -> bool:
        """Become the holder where there is none; True if we are it."""
        if self.held:
            return True
        if not self._vacant():
            return False
        seen = self._log.state.lease(self._what)

        def decide(state: State) -> LeaseRecord | None:
            if state.lease(self._what) != seen:
                return None
            return LeaseRecord(self._what, self._instance, (seen.term if seen is not None else 0) + 1)

        await self._log.append(decide)
        return self.held

    async def release(self) -> None:
        """Let another process take over at once; the term stays counted."""

        def decide(state: State) -> LeaseRecord | None:
            record = state.lease(self._what)
            if record is None or record.holder != self._instance:
                return None
            return LeaseRecord(self._what, "", record.term)

        if self.held:
            await self._log.append(decide, timeout=2.0)
