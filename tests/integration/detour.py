"""A router reaches brokers at other addresses than metadata names, through relays that a test controls.

    python tests/integration/detour.py WORD…

This is kmigrate itself. DETOUR holds, as JSON, the address to dial for each broker's address: `clients` for connections
that carry clients' requests, `control` for kmigrate's own connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from kmigrate.model.security import Tls
from kmigrate.net.dial import dial
from kmigrate.sandbox.kafka import KafkaCluster
from tests.fakes.relay import Relay

__all__ = ["Lines", "detour", "detoured", "lines"]

_DIALS = {"clients": "kmigrate.router.process.upstream.dial", "control": "kmigrate.net.broker.dial"}


@dataclass
class Lines:
    """The relays between a router and the brokers of a cluster: for clients' requests, and for the router's own."""

    clients: dict[str, Relay] = field(default_factory=dict)
    control: dict[str, Relay] = field(default_factory=dict)

    @property
    def all(self) -> list[Relay]:
        return [*self.clients.values(), *self.control.values()]


@contextmanager
def lines(cluster: KafkaCluster) -> Iterator[Lines]:
    with ExitStack() as relays:
        found = Lines()
        for broker in cluster.brokers.values():
            address = f"127.0.0.1:{broker.port}"
            for kind in (found.clients, found.control):
                kind[address] = relays.enter_context(Relay(address))
        yield found


def detour(*of_clusters: Lines) -> str:
    """Return the value of DETOUR for these relays."""
    told: dict[str, dict[str, str]] = {"clients": {}, "control": {}}
    for each in of_clusters:
        told["clients"] |= {address: relay.address for address, relay in each.clients.items()}
        told["control"] |= {address: relay.address for address, relay in each.control.items()}
    return json.dumps(told)


@contextmanager
def detoured() -> Iterator[None]:
    """Dial the addresses in DETOUR; dial all other brokers at the addresses in metadata."""
    said: Mapping[str, Mapping[str, str]] = json.loads(os.environ.get("DETOUR") or "{}")
    with ExitStack() as until:
        for kind, name in _DIALS.items():
            until.enter_context(mock.patch(name, _through(said.get(kind, {}))))
        yield


def _through(instead: Mapping[str, str]) -> Callable[..., Awaitable[None]]:
    async def other(protocol: asyncio.BaseProtocol, host: str, port: int, tls: Tls | None, called: str) -> None:
        host, _, told = instead.get(f"{host}:{port}", f"{host}:{port}").rpartition(":")
        await dial(protocol, host, int(told), tls, called)

    return other


if __name__ == "__main__":
    from kmigrate.cli.app import main  # The import takes a second, and a router starts without this module.

    with detoured():
        sys.exit(main(sys.argv[1:]))
