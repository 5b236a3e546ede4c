"""When a login may be tried again that a broker has refused: many loops retry, and many clusters lock such accounts.

Where one refuses it and none has accepted it since, the login may be what is wrong: for a while nobody is asked but who
has accepted it before, and each of those once. Else it is that broker, whose certificate is old, or which has not heard
of a new password yet: it alone is left in peace.
"""

from __future__ import annotations

from kmigrate.errors import AuthenticationFailed
from kmigrate.net.clock import monotonic

__all__ = ["Logins"]

_PAUSE_S = 1.0
_OTHERS_PAUSE_S = 0.75
"""Of brokers that were not asked yet; shorter, or the many loops that wait for the one would always come first."""


class Logins:
    """Of one cluster's brokers, by address."""

    def __init__(self) -> None:
        self._refused: dict[str, tuple[float, AuthenticationFailed]] = {}
        self._accepted: set[str] = set()
        self._doubt: tuple[float, AuthenticationFailed] | None = None
        """The newest refusal, where no login was accepted since."""

    def check(self, address: str) -> None:
        """Raise a refusal of a moment ago, where no other may be risked now."""
        now = monotonic()
        own = self._refused.get(address)
        if own is not None and now - own[0] < _PAUSE_S:
            raise own[1]
        if self._doubt is not None and address not in self._accepted and now - self._doubt[0] < _OTHERS_PAUSE_S:
            raise self._doubt[1]

    def refused(self, address: str, refusal: AuthenticationFailed) -> None:
        self._doubt = self._refused[address] = monotonic(), refusal
        self._accepted.discard(address)

    def accepted(self, address: str) -> None:
        self._refused.pop(address, None)
        self._accepted.add(address)
        self._doubt = None

    def doubts(self, address: str) -> tuple[float, bool]:
        """What can be asked of any broker is asked of the one with the greatest last."""
        return self._refused[address][0] if address in self._refused else 0.0, address not in self._accepted
