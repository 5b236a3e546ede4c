"""Limits for the connections, memory and idle time of a router's clients; connections beyond a limit are closed.

a. A connection beyond `max_connections`, or beyond `max_connections_per_address` of its host, is closed at once, with
   TLS before the handshake. A connection in a handshake counts like any other.
b. A connection in its TLS handshake, or before a required login, counts apart from `max_connections`. Beyond
   `max_connections_before_login` the router closes the oldest such connection of the host that has most of them. So
   clients that do not log in keep out no others. The memory kept for all of these connections is limited, too.
c. Memory is limited twice. The router reads no further from a connection while too much of that connection waits
   (`Session.congested`, `FrameStream`). All clients together may use `max_buffered_bytes`; beyond, the clients that use
   most are reset until the rest fits: they do not read their answers, or send requests without end. The router looks
   only at clients that `watch` noted and that still use memory, so ten thousand quiet connections cost nothing.
d. A connection with nothing in flight and no whole request for `max_idle_s` is closed, as brokers do.
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
    """The limit for which a connection was closed; each is counted."""

    CONNECTIONS = "connections"
    ADDRESS = "address"
    LOGIN = "login"
    MEMORY = "memory"
    IDLE = "idle"


_SHARE_BEFORE_LOGIN = 16
"""Divisor of `max_bytes`: clients before their login may use a sixteenth of the memory of all clients."""


class Client(Protocol):
    """A client connection, as the limits see it."""

    @property
    def named(self) -> str:
        """Name of the client, for people."""

    @property
    def held(self) -> int:
        """Bytes kept for the client: half requests, waiting requests and answers, unread answers."""

    def idle_for(self, now: float) -> float:
        """Return the seconds since the last request, with no answer due; 0 while the client is active."""

    def close(self, reason: str) -> None: ...

    def reset(self, reason: str) -> None:
        """Close the connection at once, which frees the memory kept for the client."""


@dataclass(slots=True)
class Limits:
    """The connections and the memory of one router's clients, with the limits for them."""

    max_connections: int
    max_per_address: int
    max_bytes: int
    max_idle_s: float
    max_before_login: int
    ended: Counter[Ended] = field(default_factory=Counter)
    last_ended: dict[Ended, str] = field(default_factory=dict)
    """Client whose connection was closed last for each limit."""
    buffered: int = 0
    """Bytes that were kept for all clients at the last look."""
    _watched: dict[Client, None] = field(default_factory=dict)
    _hosts: Counter[str] = field(default_factory=Counter)
    _connections: int = 0
    _before_login: dict[object, tuple[str, Callable[[], None]]] = field(default_factory=dict)
    """Handshakes and connections before their login, the oldest first, with the host and the call that ends each."""

    def admit(self, host: str, *, logged_in: bool = True) -> str:
        """Count a connection until `left`; return why the connection is refused, or ''."""
        self._hosts[host] += 1
        self._connections += 1
        if logged_in and (refusal := self._full(host, self.max_connections)):
            return refusal
        if 0 < self.max_per_address < self._hosts[host]:
            self._end(Ended.ADDRESS, host)
            return f"more than {self.max_per_address} connections of {host}"
        return ""

    def _full(self, host: str, most: int) -> str:
        """Return why there are too many connections, or ''."""
        if self._connections - len(self._before_login) <= most:
            return ""
        self._end(Ended.CONNECTIONS, host)
        return "too many connections"

    def has_room(self, host: str) -> str:
        """Return why a connection behind the handshake that still counts as before a login is refused, or ''."""
        return self._full(host, self.max_connections - 1)

    def not_logged_in(self, who: object, host: str, end: Callable[[], None]) -> None:
        """Count an admitted connection as before the login; if there are too many, end another connection."""
        self._before_login[who] = host, end
        if len(self._before_login) > self.max_before_login:
            crowd = Counter(host for host, _ in self._before_login.values())
            ((most, _),) = crowd.most_common(1)
            oldest = next(each for each, (host, _) in self._before_login.items() if host == most)
            _, end = self._before_login.pop(oldest)
            self._end(Ended.LOGIN, most)
            end()

    def logged_in(self, who: object) -> str:
        """Count a connection as logged in; return why the connection is not accepted as logged in, or ''."""
        host, _ = self._before_login.pop(who, ("", None))
        return self._full(host, self.max_connections) if host else ""

    def settled(self, who: object) -> None:
        """Take a handshake that is over, or a connection that is gone, out of the count before the login."""
        self._before_login.pop(who, None)

    def _end(self, limit: Ended, who: str) -> None:
        self.ended[limit] += 1
        self.last_ended[limit] = who

    def told(self) -> RouterLimits:
        """Return the report of these limits for the presence record."""
        return RouterLimits(
            self.max_connections,
            max(self._hosts.values(), default=0),
            self.max_per_address,
            self.buffered,
            self.max_bytes,
            {limit.value: EndedClients(count, self.last_ended[limit]) for limit, count in self.ended.items()},
        )

    def gone(self, client: Client, host: str) -> None:
        """Note the end of an established connection."""
        self._watched.pop(client, None)
        self.settled(client)
        self.left(host)

    def left(self, host: str) -> None:
        """Note the end of an admitted connection, established or not."""
        self._connections -= 1
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]

    def watch(self, client: Client) -> None:
        """Note that memory is kept for a client, or may be."""
        self._watched[client] = None

    def relieve(self) -> None:
        """Measure the memory in use, and reset the clients that use most until the rest fits."""
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
