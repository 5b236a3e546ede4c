"""The other routers that a client knows, each of which receives the client when the client's own router is gone.

Many clients forget their bootstrap addresses as soon as they have seen the brokers (Java before 4.0: D3), and all
brokers that a router shows are the router itself. So the router's Metadata names up to three more brokers, which lead
no partition: listeners of other routers, kept for the first router's clients alone. A client that asks there gets the
first router's addresses as long as that router accepts connections; from then on those of the router that it asks. So
no client goes to and fro. The fallbacks in the client's metadata stay the same, also when the first router is not heard
of any more: librdkafka gives up a broker at once that metadata no longer names, even the broker that gave the metadata.
librdkafka goes back to the bootstrap addresses as soon as no broker is up, even while connecting (KIP-899).

Routers know each other from the presence log, by the host:port of their bootstrap listeners, a client's *home*;
processes that share a bootstrap address are a single home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from zlib import crc32

from kmigrate.model.presences import RouterPresence
from kmigrate.router.shared.conversation import Conversation, Future
from kmigrate.router.wire.node_ids import AddressBook, FallbackBroker, host_and_port

__all__ = ["FallbackRouters"]

_SPARES = 3

Reach = Callable[[str], Future[bool]]
"""Finds out whether a process accepts connections at host:port."""


class FallbackRouters:
    """The other routers, as this router and its clients need them."""

    def __init__(self, book: AddressBook, reach: Reach) -> None:
        self.addresses: dict[str, str] = {}
        """host:port of the listeners that this router keeps for clients of other routers, by their home."""
        self._book = book
        self._reach = reach
        self._shown: dict[str, AddressBook] = {}
        """Addresses that a client of a home is told while that router is there, for each router that is heard of."""
        self._since: dict[str, AddressBook] = {}
        """Addresses that a client of a home is told once that router is gone: here, and the same fallback routers."""

    def follow(self, own: str, heard: Iterable[RouterPresence]) -> None:
        """Take the newest reports of the live routers; `own` is this router's home."""
        others = {each.bootstrap: each for each in heard if each.bootstrap not in ("", own)}
        kept = {own: self.addresses, **{home: each.fallbacks for home, each in others.items()}}
        offset = self._book.offset
        self._book.fallbacks = _fallbacks(own, kept, offset)
        self._since = {
            home: AddressBook(offset, self._book.addresses, _fallbacks(home, kept, offset))
            for home in {*others, *self.addresses} - {""}
        }
        self._shown = {
            home: AddressBook(
                offset,
                {node: host_and_port(at) for node, at in each.listeners.items()},
                self._since[home].fallbacks,
            )
            for home, each in others.items()
        }

    def book(self, home: str) -> Conversation[AddressBook]:
        """Find the addresses that a client of `home` is told; '' is this router's own client."""
        since = self._since.get(home, self._book)
        shown = self._shown.get(home)
        if shown is None:
            return since
        return shown if (yield from self._reach(home)) else since


def _fallbacks(home: str, kept: Mapping[str, Mapping[str, str]], offset: int) -> tuple[FallbackBroker, ...]:
    """Return the fallback routers of a router: the same at every router, and spread over all."""
    found: dict[int, FallbackBroker] = {}
    for other in sorted(kept, key=lambda other: crc32(f"{home} {other}".encode())):
        if (at := kept[other].get(home)) and len(found) < _SPARES:
            node = 2 * offset + crc32(other.encode()) % offset
            found.setdefault(node, FallbackBroker(node, *host_and_port(at)))
    return tuple(found.values())
