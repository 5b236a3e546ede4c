"""How clients leave a router once the links are finished: told the brokers' own addresses, then seen off one by one.

a. A client that was told real addresses writes nothing more through this router: its Produce requests are answered
   NOT_LEADER_OR_FOLLOWER, which is surely not appended, and which every client takes for a leader that has moved.
b. It is told only when everything that it has written here is answered; and only by its own router, for one that
   stands in for that cannot know (`stand_ins`). So no write of a client is appended behind one that it has sent to
   the broker itself, and no sequence is ever out of order by our doing. A client that is at several processes at once
   would be told too early by one: links are not finished while routers share an address (`workflow.verbs.finish`), and
   nobody is told while one that came later does.
c. Connections to listeners of brokers end in turn, those that are idle longest first, each only while nothing of it
   is under way; from its turn on, (a) holds for it, too. The bootstrap listener's end by themselves.

d. Whom a router has told what is so only through it (`late`, D) stays until that is over: it is shown the router as
   before, and none of its connections has its turn. Its other connections may lead to other processes, so each says
   whom it keeps; and as one that has not acted on the finish yet may still tell more, nobody leaves before all have.

e. Who comes back after it was told has no coordinator here any more: its heartbeats and its words of transactions are
   answered NOT_COORDINATOR, at which every client asks anew who coordinates. Else those that remember a coordinator's
   address for as long as it takes connections (kafka-python 3, Java's transactional producers) would come back all the
   time. Connections that it had before are left to (c): at their end the others ask by themselves, in silence, while
   Sarama's heartbeat ends its session at this code and tells the application.
   What ends something is taken here still: a member that leaves its group says so once, and of an abort that has
   nothing to end only routers know that it has succeeded (`late`, C). So are commits and questions for positions, be it
   that who only sends those may come back until the router stops (kafka-python 3 with assign()): Java tells a
   commitAsync of this code, and librdkafka, told it of the positions of what it was assigned, never reads (its issue
   5586).

A client is known by its host and the name that it gives itself: connections of one process cannot be told from those
of another that shares both, and these go together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.routes import RoutingTable

__all__ = ["Farewell", "Guest", "Who", "grouped", "mark"]

_REMEMBERED = 20_000
"""Clients that are known to have been told; the oldest are forgotten first, and are told again when they ask."""
_SETTLING_S = 0.5
"""A connection this young may be one that is being logged in, or the way to the answer that moves its client."""
_LISTED = 64
_NAME_LENGTH = 80
"""Clients that a presence record names, and letters of each of their names: it is sent twice a second."""


Who = tuple[str, str, str, str]
"""Client id, host, principal, software."""


class Guest(Protocol):
    """A session, as its leaving sees it."""

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
    def owes(self) -> bool: ...

    def leave(self) -> None: ...


@dataclass(slots=True)
class Farewell:
    """Who is connected to this router, and which clients have been told where the brokers really are."""

    guests: set[Guest] = field(default_factory=set)
    told: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each first asked for them."""
    heard: tuple[RouterPresence, ...] | None = None
    """The newest words of the other routers; None until it is known who is there, and until then all stay."""
    bootstrap: str = ""
    """host:port that this router's clients are given."""
    _finished: int = -1
    """The epoch of the first table that says that the links are finished; −1 while they are not."""

    def follow(self, table: RoutingTable, *, closing: bool = False) -> None:
        """Take a newer table; when the finish is taken back nobody counts as told any more, nor has his turn."""
        if not table.finished:
            if self._finished >= 0 and not closing:
                for guest in self.guests:
                    guest.leaving = False
            self.told.clear()
            self._finished = -1
        elif self._finished < 0:
            self._finished = table.epoch

    def knows(self, guest: Guest) -> bool:
        """Whether this guest's client has been told (a)."""
        return (guest.host, guest.client_id) in self.told

    def is_back(self, guest: Guest) -> bool:
        """Whether this guest has come after its client was told (e)."""
        return guest.since >= self.told.get((guest.host, guest.client_id), float("inf"))

    def stays(self, guest: Guest) -> bool:
        """Whether this guest's client may not leave yet (d)."""
        kept = any(other.owes for other in self._with(guest)) or mark(guest) in self._elsewhere()
        return kept or not self._all_know()

    @property
    def staying(self) -> frozenset[int]:
        """The clients that this router keeps (d)."""
        return frozenset(mark(guest) for guest in self.guests if guest.owes)

    def _elsewhere(self) -> frozenset[int]:
        """The clients that the others keep."""
        return frozenset().union(*(each.staying for each in self.heard or ()))

    def _all_know(self) -> bool:
        """Whether every other knows of the finish, and none of them has this router's clients, too (b)."""
        return self.heard is not None and all(
            each.applied >= self._finished and not (self.bootstrap and each.bootstrap == self.bootstrap)
            for each in self.heard
        )

    def may_tell(self, guest: Guest) -> bool:
        """Whether it may be told now (b); from the first time it is asked for, (a) holds."""
        key = (guest.host, guest.client_id)
        if key not in self.told:
            self.told[key] = guest.active
            if len(self.told) > _REMEMBERED:
                self.told.pop(next(iter(self.told)))
        return not any(other.writing for other in self._with(guest))

    def _with(self, guest: Guest) -> Iterator[Guest]:
        """All connections of a guest's client."""
        return (each for each in self.guests if (each.host, each.client_id) == (guest.host, guest.client_id))

    def next(self, now: float) -> Guest | None:
        """Whose connection ends next (c, d)."""
        if not self._all_know():
            return None
        stay = self.staying | self._elsewhere()
        here = [
            g
            for g in self.guests
            if g.on_broker and not g.leaving and now - g.since >= _SETTLING_S and mark(g) not in stay
        ]
        return min(here, key=lambda guest: (not guest.idle, guest.active), default=None)


def mark(guest: Guest) -> int:
    """A guest's client as a number: presence is sent twice a second. Two that share one stay for each other."""
    return crc32(f"{guest.host} {guest.client_id}".encode())


def grouped(connections: Iterable[tuple[Who, bool]]) -> tuple[tuple[ConnectedClient, ...], int]:
    """Connections (whose, and whether to a broker's listener) summed up by client, and how many clients are left out.

    Those who must leave come first.
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
