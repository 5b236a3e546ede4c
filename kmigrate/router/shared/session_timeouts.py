"""Session timeouts that members of mirrored groups request in JoinGroup at this router. Pure.

The target refuses a session timeout beyond its own limits, so a promote has to know the members' timeouts before the
group opens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from kmigrate.model.presences import JoinTerms

__all__ = ["SessionTimeouts"]

_MOST_CLIENTS = 50
"""Maximum client ids kept per group; a presence record must fit into a message."""
_WAITING_S = 60.0
"""Age from which a JoinGroup of a held group no longer counts: a member that waits repeats the request."""


@dataclass(slots=True)
class SessionTimeouts:
    """The newest session timeout of each client id, by group, with the time of the request."""

    _asked: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)

    def asked(self, group: str, client_id: str, session_timeout_ms: int, now: float) -> None:
        """Note a JoinGroup."""
        known = self._asked.setdefault(group, {})
        known.pop(client_id, None)  # so that the newest stay last
        known[client_id] = (session_timeout_ms, now)
        if len(known) > _MOST_CLIENTS:
            del known[next(iter(known))]

    def words(self, held: Collection[str], followed: Collection[str], now: float) -> dict[str, tuple[JoinTerms, ...]]:
        """Return the terms of groups that are held or follow; forget all other groups."""
        for group in list(self._asked):
            known = self._asked[group]
            if group in held:
                known = {client: each for client, each in known.items() if now - each[1] <= _WAITING_S}
            if known and (group in held or group in followed):
                self._asked[group] = known
            else:
                del self._asked[group]
        return {
            group: tuple(JoinTerms(client, timeout) for client, (timeout, _) in sorted(known.items()))
            for group, known in sorted(self._asked.items())
        }
