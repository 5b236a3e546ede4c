"""Clients that look for a coordinator again and again, because they connect to the address of a router that is gone.

Every router shows the same node ids. librdkafka takes its coordinator's address from the first answer with a node id,
and keeps the address until the node id changes. So after the loss of its router a member asks another router each
second, is told that router's address, and goes on at the old address. At COORDINATOR_NOT_AVAILABLE librdkafka forgets
its coordinator, and takes the next answer's address.

A client that is merely slow to connect must not begin anew each time: each such answer takes twice as many searches as
the answer before, up to a limit, because a client on a busy machine may miss several answers.
"""

from __future__ import annotations

__all__ = ["CoordinatorSearches"]

_FIRST = 3
"""Number of searches in a row that no client makes that reaches its coordinator."""
_MOST = 12
"""Most searches between two such answers."""
_PAUSE_S = 10.0
"""Longest pause between two searches in a row: librdkafka asks each second, at any of its connections."""


class CoordinatorSearches:
    """The searches of one connection for the coordinator of a group or a transactional id."""

    def __init__(self) -> None:
        self._wanted: tuple[int, str] | None = None
        self._count = 0
        self._needed = _FIRST
        self._last = 0.0

    def in_vain(self, kind: int, key: str, now: float) -> bool:
        """Take note of a search; return whether the client is to forget the coordinator that it was told."""
        if self._wanted != (kind, key) or now - self._last > _PAUSE_S:
            self._wanted, self._count, self._needed = (kind, key), 0, _FIRST
        self._last = now
        self._count += 1
        if self._count < self._needed:
            return False
        self._count, self._needed = 0, min(2 * self._needed, _MOST)
        return True
