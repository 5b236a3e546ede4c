"""The time to retry a login that a broker has refused: many loops retry, and many clusters lock such accounts.

A broker has refused the login, and no broker has accepted the login since: the login itself may be wrong. For a while
only brokers that accepted the login before are asked, each of them once.

Otherwise the fault is the broker's: an old certificate, or a new password that has not arrived there yet. Then only
that broker gets a pause.
"""

from __future__ import annotations

from kmigrate.errors import AuthenticationFailed
from kmigrate.net.clock import monotonic

__all__ = ["Logins"]

_PAUSE_S = 1.0
_OTHERS_PAUSE_S = 0.75
"""Pause before a broker is asked that was not asked yet.

The pause is shorter than `_PAUSE_S`. Otherwise the many loops that wait for the refusing broker would always come
first.
"""


class Logins:
    """Login results of a cluster's brokers, by address."""

    def __init__(self) -> None:
        self._refused: dict[str, tuple[float, AuthenticationFailed]] = {}
        self._accepted: set[str] = set()
        self._doubt: tuple[float, AuthenticationFailed] | None = None
        """The newest refusal, if no login was accepted since."""

    def check(self, address: str) -> None:
        """Raise a recent refusal if no further login may be risked now."""
        now = monotonic()
        own = self._refused.get(address)
        if own is not None and now - own[0] < _PAUSE_S:
            raise own[1]
        if self._doubt is not None and address not in self._accepted and now - self._doubt[0] < _OTHERS_PAUSE_S:
            raise self._doubt[1]

    def refused(self, address: str, refusal: AuthenticationFailed) -> None:
        """Note that this broker refused the login."""
        self._doubt = self._refused[address] = monotonic(), refusal
        self._accepted.discard(address)

    def accepted(self, address: str) -> None:
        """Note that this broker accepted the login, which ends the doubt about the login itself."""
        self._refused.pop(address, None)
        self._accepted.add(address)
        self._doubt = None

    def doubts(self, address: str) -> tuple[float, bool]:
        """Return a sort key: requests that any broker can answer go last to the broker with the greatest key."""
        return self._refused[address][0] if address in self._refused else 0.0, address not in self._accepted
