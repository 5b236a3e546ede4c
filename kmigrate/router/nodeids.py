"""Target brokers as clients see them: node ids in a block of our own, addresses of the router's listeners.

The mapping of ids is one addition, so every router maps alike and no table is kept; negative ids mean "none"
and stay (D1, D5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["AddressBook", "Spare", "host_and_port"]


class Spare(NamedTuple):
    """A broker that leads nothing and coordinates nothing: another router, for when this one is gone."""

    node: int
    host: str
    port: int


def host_and_port(told: str) -> tuple[str, int]:
    """An address as routers tell it of themselves."""
    host, _, port = told.rpartition(":")
    return host, int(port)


@dataclass(slots=True)
class AddressBook:
    """Router addresses by target node id; brokers without a listener yet are not shown to anybody."""

    offset: int
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    spares: tuple[Spare, ...] = ()

    def shown(self, node: int) -> int:
        """The node id that clients see."""
        return node + self.offset if node >= 0 else node

    def real(self, node: int) -> int:
        """The target's node id behind one that a client names: ours, or its own, which it learns when it leaves."""
        return node - self.offset if node >= self.offset else node

    def address(self, node: int) -> tuple[str, int] | None:
        """Where the listener of a target broker is."""
        return self.addresses.get(node)
