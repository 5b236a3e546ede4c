"""How clients leave a router once the links are finished: they get the brokers' own addresses, and connections close.

a. A client that was told the brokers' own addresses writes nothing more here. Produce requests are answered
   NOT_LEADER_OR_FOLLOWER: surely not appended, and every client takes that for a leader that has moved.
b. A client is told only when all writes of the client here are answered. So no write is appended behind a write sent to
   the broker directly, and the routers cause no out-of-order sequence. Only the client's own router tells; a router
   that stands in cannot know (`shared.fallback_routers`). Where router processes share an address, a client may be
   connected to several, and one process would tell it too early. So links are not finished while routers share an
   address (`workflow.verbs.finish`). If a router with the same address comes later, no client is told.
c. Connections to brokers' listeners are closed in turn, idle longest first, each only while nothing is in flight there;
   from its turn on, (a) holds for the connection. Connections to the bootstrap listener close by themselves.
d. A client that was told something that is true only through this router (`shared.deferred_partitions`, D) stays until
   that is over. The client sees the router as before, and no connection of the client gets a turn. Other connections of
   the client may lead to other processes, so each process reports the clients that stay. Nobody leaves before all
   processes have acted on the finish, because until then a process may tell more clients.
e. A client that comes back after being told has no coordinator here any more. Heartbeats and transaction requests are
   answered NOT_COORDINATOR, after which every client looks for the coordinator again. Otherwise kafka-python 3 and
   Java's transactional producers would come back as long as connections are accepted at the address they remember.
   Connections from before the client was told get no such answer, because Sarama would end its session and report an
   error. They are left to (c): when such a connection closes, all libraries but those two look for the coordinator
   without an error to the application. Requests that end something are still taken. A member says only once that it
   leaves its group, and only routers know that an abort with nothing to end has succeeded
   (`shared.deferred_partitions`, C). Commits and OffsetFetch are taken, too: Java reports NOT_COORDINATOR to the
   callback of a commitAsync, and after an OffsetFetch with this code librdkafka never reads the assigned partitions
   (librdkafka issue 5586). So a client that sends only these two may come back until the router stops (kafka-python 3
   with assign()).

A client is known by host and client id. Connections of two processes that share both leave together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.routes import RoutingTable

__all__ = ["DepartingClient", "Handoff", "Who", "grouped", "mark"]

_REMEMBERED = 20_000
"""Maximum clients that are known to have been told; the oldest are forgotten first, and are told again on request."""
_SETTLING_S = 0.5
"""A younger connection may be in the login, or about to get the answer that moves its client."""
_LISTED = 64
_NAME_LENGTH = 80
"""Maximum clients that a presence record names, and letters of each name: the record is sent twice a second."""


Who = tuple[str, str, str, str]
"""Client id, host, principal, software."""


class DepartingClient(Protocol):
    """A session, as the end of connections needs to know it."""

    host: str
    client_id: str
    leaving: bool
    since: float
    active: float

    @property
    def on_broker(self) -> bool: ...

    @property
    def idle(self) -> bool: ...

    @property
    def writing(self) -> bool: ...

    @property
    def has_promised(self) -> bool: ...

    def leave(self) -> None: ...


@dataclass(slots=True)
class Handoff:
    """The connections to this router, and the clients that were told the brokers' own addresses."""

    connections: set[DepartingClient] = field(default_factory=set)
    informed: dict[tuple[str, str], float] = field(default_factory=dict)
    """Time of each client's first request whose answer holds the brokers' own addresses, by host and client id."""
    heard: tuple[RouterPresence, ...] | None = None
    """Newest reports of the other routers; None until they are known, and until then all clients stay."""
    bootstrap: str = ""
    """host:port that this router's clients are given."""
    _finished: int = -1
    """Epoch of the first table with finished links; −1 while the links are not finished."""

    def follow(self, table: RoutingTable, *, closing: bool = False) -> None:
        """Take a newer table; if the finish is taken back, no client counts as told, and no connection has a turn."""
        if not table.finished:
            if self._finished >= 0 and not closing:
                for connection in self.connections:
                    connection.leaving = False
            self.informed.clear()
            self._finished = -1
        elif self._finished < 0:
            self._finished = table.epoch

    def knows(self, connection: DepartingClient) -> bool:
        """Return whether this connection's client has been told (a)."""
        return (connection.host, connection.client_id) in self.informed

    def is_back(self, connection: DepartingClient) -> bool:
        """Return whether this connection was made after the client was told (e)."""
        return connection.since >= self.informed.get((connection.host, connection.client_id), float("inf"))

    def stays(self, connection: DepartingClient) -> bool:
        """Return whether this connection's client may not leave yet (d)."""
        kept = any(other.has_promised for other in self._with(connection)) or mark(connection) in self._elsewhere()
        return kept or not self._all_know()

    @property
    def staying(self) -> frozenset[int]:
        """The clients that this router keeps (d)."""
        return frozenset(mark(connection) for connection in self.connections if connection.has_promised)

    def _elsewhere(self) -> frozenset[int]:
        """Return the clients that other processes keep."""
        return frozenset().union(*(each.staying for each in self.heard or ()))

    def _all_know(self) -> bool:
        """Return whether every other process knows of the finish, and none shares this router's clients (b)."""
        return self.heard is not None and all(
            each.applied >= self._finished and not (self.bootstrap and each.bootstrap == self.bootstrap)
            for each in self.heard
        )

    def may_tell(self, connection: DepartingClient) -> bool:
        """Return whether a connection's client may be told now (b); from the first request on, (a) holds."""
        key = (connection.host, connection.client_id)
        if key not in self.informed:
            self.informed[key] = connection.active
            if len(self.informed) > _REMEMBERED:
                self.informed.pop(next(iter(self.informed)))
        return not any(other.writing for other in self._with(connection))

    def _with(self, connection: DepartingClient) -> Iterator[DepartingClient]:
        """Return all connections of a connection's client."""
        return (
            each for each in self.connections if (each.host, each.client_id) == (connection.host, connection.client_id)
        )

    def next(self, now: float) -> DepartingClient | None:
        """Return the connection that closes next (c, d)."""
        if not self._all_know():
            return None
        stay = self.staying | self._elsewhere()
        here = [
            g
            for g in self.connections
            if g.on_broker and not g.leaving and now - g.since >= _SETTLING_S and mark(g) not in stay
        ]
        return min(here, key=lambda connection: (not connection.idle, connection.active), default=None)


def mark(connection: DepartingClient) -> int:
    """Return a client as a number, as presence is sent twice a second; clients of one number stay for each other."""
    return crc32(f"{connection.host} {connection.client_id}".encode())


def grouped(connections: Iterable[tuple[Who, bool]]) -> tuple[tuple[ConnectedClient, ...], int]:
    """Sum up connections by client; return the clients, those that must leave first, and the number left out.

    Each connection is given as its client, and whether it leads to a broker's listener.
    """
    brokers: Counter[Who] = Counter()
    bootstrap: Counter[Who] = Counter()
    for who, on_broker in connections:
        (brokers if on_broker else bootstrap)[who] += 1
    ordered = [*sorted(brokers), *sorted(bootstrap.keys() - brokers.keys())]
    listed = []
    for who in ordered[:_LISTED]:
        client_id, host, principal, software = (name[:_NAME_LENGTH] for name in who)
        listed.append(ConnectedClient(client_id, host, principal, software, brokers[who], bootstrap[who]))
    return tuple(listed), max(0, len(ordered) - _LISTED)
