"""Clients as whom the router cannot log in to a source, so that their writes and group requests are refused. Pure.

A record stays until the source takes a login of the principal, or the table of clients changes, or no request was
refused for ten minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from kmigrate.model.presences import ClientWithoutCredential

__all__ = ["MissingCredentials"]

_MOST_TOLD = 20
"""Maximum clients reported; a presence record must fit into one message."""
_MOST_KEPT = 1_000
_MOST_GROUPS = 10
"""Maximum groups reported per client."""
_KEPT_S = 600.0
_Key = tuple[str, str, str, str]
"""Link, principal, client id and host."""


@dataclass(slots=True)
class MissingCredentials:
    """The clients without a usable credential, each with the time of its newest refusal."""

    _known: dict[_Key, tuple[float, ClientWithoutCredential]] = field(default_factory=dict)

    def refused(self, client: ClientWithoutCredential, now: float) -> bool:
        """Note that a request of a client was refused; return whether the router has not reported that yet."""
        key = (client.link, client.principal, client.client_id, client.host)
        before = self._known.pop(key, None)  # so that the newest stay last
        if before is not None:
            client = replace(client, groups=before[1].groups, writes=client.writes or before[1].writes)
        self._known[key] = (now, client)
        if len(self._known) > _MOST_KEPT:
            del self._known[next(iter(self._known))]
        return before is None or before[1].refusal != client.refusal

    def of_group(self, link: str, client_id: str, group: str) -> None:
        """Note that a refused request was about a group."""
        for key, (when, client) in self._known.items():
            if (key[0], key[2]) == (link, client_id) and group not in client.groups[:_MOST_GROUPS]:
                groups = tuple(sorted({*client.groups, group})[:_MOST_GROUPS])
                self._known[key] = (when, replace(client, groups=groups))

    def accepted(self, link: str, principal: str) -> None:
        """Note that a source has taken a login of a principal."""
        for key in [key for key in self._known if key[:2] == (link, principal)]:
            del self._known[key]

    def clear(self) -> None:
        """Forget all clients: another table of clients is in force."""
        self._known.clear()

    def words(
        self, links: Collection[str], followed: Collection[str], now: float
    ) -> tuple[ClientWithoutCredential, ...]:
        """Return the clients for the router's report; `links`: those that take writes."""
        kept: dict[_Key, tuple[float, ClientWithoutCredential]] = {}
        for key, (when, client) in self._known.items():
            groups = tuple(group for group in client.groups if group in followed)
            writes = client.writes and client.link in links
            if now - when <= _KEPT_S and (groups or writes):
                kept[key] = (when, replace(client, groups=groups, writes=writes))
        self._known = kept
        return tuple(kept[key][1] for key in sorted(kept)[:_MOST_TOLD])

    def counts(self) -> dict[str, int]:
        """Return the number of clients by link."""
        found: dict[str, int] = {}
        for link, *_ in self._known:
            found[link] = found.get(link, 0) + 1
        return found
