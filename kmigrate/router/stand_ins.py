"""What a client knows besides its own router: others, each of which receives it when its own is gone.

Many clients forget their bootstrap addresses as soon as they have seen the brokers (Java before 4.0: D3), and all
brokers that a router shows are itself. So its Metadata names up to three more, which lead nothing: listeners of other
routers that are kept for its clients alone. Who asks there is told the addresses of its own router for as long as that
takes connections, and those of the router that it asks from then on: no client goes to and fro between two. The
stand-ins that it is shown stay the same: librdkafka gives up at once a broker that is named no more, be it the one that
it asks, and goes back to its bootstrap addresses as soon as none is up, though it is just connecting (KIP-899).

Routers are known to each other by the host:port of their bootstrap listeners, a client's *home*; processes that share
one are one home. What is known of the others is what they said in the presence log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from zlib import crc32

from kmigrate.model.presences import RouterPresence
from kmigrate.router.nodeids import AddressBook, Spare, host_and_port

__all__ = ["StandIns"]

_SPARES = 3

Reach = Callable[[str, Callable[[bool], None]], None]
"""Tell whether something takes connections at host:port."""


class StandIns:
    """The other routers, as this one and its clients need them."""

    def __init__(self, book: AddressBook, reach: Reach) -> None:
        self.addresses: dict[str, str] = {}
        """host:port of the listeners that this router keeps for clients of others, by their home."""
        self._book = book
        self._reach = reach
        self._books: dict[str, AddressBook] = {}

    def follow(self, own: str, heard: Iterable[RouterPresence]) -> None:
        """Take the newest words of the routers that are heard of; `own` is this one's home."""
        others = {each.bootstrap: each for each in heard if each.bootstrap not in ("", own)}
        kept = {own: self.addresses, **{home: each.stand_ins for home, each in others.items()}}
        offset = self._book.offset
        self._book.spares = _spares(own, kept, offset)
        self._books = {
            home: AddressBook(
                offset, {node: host_and_port(at) for node, at in each.listeners.items()}, _spares(home, kept, offset)
            )
            for home, each in others.items()
        }

    def book(self, home: str, then: Callable[[AddressBook], None]) -> None:
        """Whose addresses a client of `home` is told; '' is this router's own client."""
        known = self._books.get(home)
        if known is None:
            then(self._book)
        else:
            since = AddressBook(self._book.offset, self._book.addresses, known.spares)
            self._reach(home, lambda answers: then(known if answers else since))


def _spares(home: str, kept: Mapping[str, Mapping[str, str]], offset: int) -> tuple[Spare, ...]:
    """The stand-ins of one router: the same whoever works them out, and spread over all where there are many."""
    found: dict[int, Spare] = {}
    for other in sorted(kept, key=lambda other: crc32(f"{home} {other}".encode())):
        if (at := kept[other].get(home)) and len(found) < _SPARES:
            node = 2 * offset + crc32(other.encode()) % offset
            found.setdefault(node, Spare(node, *host_and_port(at)))
    return tuple(found.values())
