"""What clients may cost one router: connections, memory, time without a word; who goes beyond it is parted from.

a. A connection beyond `max_connections`, or beyond `max_connections_per_address` of its host, is closed at once: with
   TLS before its handshake, and who is still in one is a connection as any other.
b. A connection in its TLS handshake, or before its login where one is asked for, counts apart from `max_connections`.
   Beyond `max_connections_before_login` the oldest one is closed, of the host that has most of them. So nobody who
   does not log in keeps anybody out who does. What is kept for all of them is bounded, too.
c. What a client makes this router keep for it is bounded twice: one connection is read no further while too much of
   it waits (`Session.congested`, `FrameStream`), and all together may hold `max_buffered_bytes`. Beyond that those
   who hold most are reset, until it fits again: they do not read their answers, or send requests and no end of them.
d. A connection of which nothing waits and nothing has come for `max_idle_s` is closed, as brokers do. Half a request
   is nothing.

Only who has been seen to hold something is looked at for (c): `watch` says so, and it is forgotten when it holds
nothing any more. So ten thousand quiet connections cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from kmigrate.model.presences import EndedClients, RouterLimits

__all__ = ["Client", "Ended", "Limits"]


class Ended(Enum):
    """Why a client was parted from; each is counted."""

    CONNECTIONS = "connections"
    ADDRESS = "address"
    LOGIN = "login"
    MEMORY = "memory"
    IDLE = "idle"


_SHARE_BEFORE_LOGIN = 16
"""Clients before their login may make the router keep a sixteenth of what all may."""


class Client(Protocol):
    """A client connection, as its limits see it."""

    @property
    def named(self) -> str:
        """Whose connection it is, for people."""

    @property
    def held(self) -> int:
        """Bytes that are kept for it: half requests, what waits, what it has not read."""

    def idle_for(self, now: float) -> float:
        """For how long it has said nothing and is owed nothing; 0 while it is."""

    def close(self, reason: str) -> None: ...

    def reset(self, reason: str) -> None:
        """End it at once: what is kept for it is free."""


@dataclass(slots=True)
class Limits:
    """The account of one router."""

    max_connections: int
    max_per_address: int
    max_bytes: int
    max_idle_s: float
    max_before_login: int
    ended: Counter[Ended] = field(default_factory=Counter)
    last_ended: dict[Ended, str] = field(default_factory=dict)
    """Whose connection was the last to end for each."""
    buffered: int = 0
    """Bytes that were held for all clients when they were last looked at."""
    _watched: dict[Client, None] = field(default_factory=dict)
    _hosts: Counter[str] = field(default_factory=Counter)
    _connections: int = 0
    _before_login: dict[object, tuple[str, Callable[[], None]]] = field(default_factory=dict)
    """Handshakes and connections before their login, the oldest first: their host, and what ends each."""

    def admit(self, host: str, *, logged_in: bool = True) -> str:
        """Why a connection is not taken beside those that are, '' where it is; it counts until `left`."""
        self._hosts[host] += 1
        self._connections += 1
        if logged_in and (refusal := self._full(host, self.max_connections)):
            return refusal
        if 0 < self.max_per_address < self._hosts[host]:
            self._end(Ended.ADDRESS, host)
            return f"more than {self.max_per_address} connections of {host}"
        return ""

    def _full(self, host: str, most: int) -> str:
        """Return why there are too many connections, '' where there are not."""
        if self._connections - len(self._before_login) <= most:
            return ""
        self._end(Ended.CONNECTIONS, host)
        return "too many connections"

    def has_room(self, host: str) -> str:
        """Return why a connection behind the handshake that still counts as before a login is not taken."""
        return self._full(host, self.max_connections - 1)

    def not_logged_in(self, who: object, host: str, end: Callable[[], None]) -> None:
        """Count an admitted connection as before the login, and end another connection where there are too many."""
        self._before_login[who] = host, end
        if len(self._before_login) > self.max_before_login:
            crowd = Counter(host for host, _ in self._before_login.values())
            ((most, _),) = crowd.most_common(1)
            oldest = next(each for each, (host, _) in self._before_login.items() if host == most)
            _, end = self._before_login.pop(oldest)
            self._end(Ended.LOGIN, most)
            end()

    def logged_in(self, who: object) -> str:
        """Count a connection as logged in; return why the connection is not taken as logged in, or ''."""
        host, _ = self._before_login.pop(who, ("", None))
        return self._full(host, self.max_connections) if host else ""

    def settled(self, who: object) -> None:
        """Take a handshake that is over, or a connection that is gone, out of the count before the login."""
        self._before_login.pop(who, None)

    def _end(self, limit: Ended, who: str) -> None:
        self.ended[limit] += 1
        self.last_ended[limit] = who

    def told(self) -> RouterLimits:
        """What everybody is told of it."""
        return RouterLimits(
            self.max_connections,
            max(self._hosts.values(), default=0),
            self.max_per_address,
            self.buffered,
            self.max_bytes,
            {limit.value: EndedClients(count, self.last_ended[limit]) for limit, count in self.ended.items()},
        )

    def gone(self, client: Client, host: str) -> None:
        """A connection that was made has ended."""
        self._watched.pop(client, None)
        self.settled(client)
        self.left(host)

    def left(self, host: str) -> None:
        """What was admitted, taken or not, is no more."""
        self._connections -= 1
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]

    def watch(self, client: Client) -> None:
        """Something is kept for a client, or may be."""
        self._watched[client] = None

    def relieve(self) -> None:
        """Measure what is held, and part from those who hold most until it fits."""
        held = {client: size for client in self._watched if (size := client.held)}
        self._watched = dict.fromkeys(held)
        before_login = {client: size for client, size in held.items() if client in self._before_login}
        for client in self._part(before_login, self.max_bytes // _SHARE_BEFORE_LOGIN):
            del held[client]
        gone = sum(held[client] for client in self._part(held, self.max_bytes))
        self.buffered = sum(held.values()) - gone

    def _part(self, held: Mapping[Client, int], most: int) -> list[Client]:
        """End the clients that hold most until the rest fits; return these clients."""
        left, parted = sum(held.values()), []
        for client in sorted(held, key=lambda each: held[each], reverse=True):
            if left <= most:
                break
            left -= held[client]
            parted.append(client)
            self._end(Ended.MEMORY, client.named)
            client.reset(f"{held[client] >> 20} MB are kept for it, and all clients together are beyond the limit")
        return parted

    def part_from_idle(self, clients: Iterable[Client], now: float) -> None:
        """Close connections that nobody uses."""
        for client in list(clients):
            if client.idle_for(now) > self.max_idle_s:
                self._end(Ended.IDLE, client.named)
                client.close("")
