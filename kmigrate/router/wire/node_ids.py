"""Maps target brokers to what clients see: shifted node ids, and addresses of the router's listeners.

The mapping of ids is an addition: every router maps alike without a table. Negative ids ("none") stay (D1, D5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["AddressBook", "FallbackBroker", "host_and_port"]


class FallbackBroker(NamedTuple):
    """A broker that leads nothing and coordinates nothing: another router, for the time when this router is gone."""

    node: int
    host: str
    port: int


def host_and_port(address: str) -> tuple[str, int]:
    """Split an address that a router tells of itself into host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


@dataclass(slots=True)
class AddressBook:
    """Router addresses by target node id; brokers without a listener yet are not shown to clients."""

    offset: int
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    fallbacks: tuple[FallbackBroker, ...] = ()

    def shown(self, node: int) -> int:
        """Return the node id that clients see."""
        return node + self.offset if node >= 0 else node

    def real(self, node: int) -> int:
        """Return the target's node id for a shifted id, or for the target's own id, which leaving clients know."""
        return node - self.offset if node >= self.offset else node

    def address(self, node: int) -> tuple[str, int] | None:
        """Return the address of a target broker's listener; None where there is no listener."""
        return self.addresses.get(node)
