"""Checks the advertised addresses of brokers: clients connect there after the bootstrap address."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.net.tasks import together

__all__ = ["AdvertisedFault", "advertised_faults", "refuse_unreachable_brokers"]

_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class AdvertisedFault:
    """A broker that is unreachable at its advertised address."""

    cluster: str
    node: int
    address: str
    why: str

    @property
    def text(self) -> str:
        return (
            f"broker {self.node} of cluster {self.cluster} advertises {self.address} (advertised.listeners), and this "
            f"machine does not reach that address: {self.why}"
        )

    @property
    def next_step(self) -> str:
        return (
            f"have {self.address} resolved and reachable from this machine and from all clients, or correct "
            f"advertised.listeners of broker {self.node}"
        )


async def advertised_faults(client: ClusterClient) -> list[AdvertisedFault]:
    """Return the brokers that are unreachable at their advertised addresses; the client has read metadata."""
    brokers = dict(client.metadata.brokers)
    told = await together(*(_why_unreached(client, node) for node in brokers))
    return [
        AdvertisedFault(client.settings.name, node, "{}:{}".format(*brokers[node]), why)
        for node, why in zip(brokers, told, strict=True)
        if why
    ]


async def refuse_unreachable_brokers(client: ClusterClient) -> None:
    """Raise Unreachable for the first broker that is unreachable at its advertised address."""
    for fault in await advertised_faults(client):
        raise Unreachable(
            "advertised-unreachable", fault.text, still_true="nothing was changed", next_step=fault.next_step
        )


async def _why_unreached(client: ClusterClient, node: int) -> str:
    try:
        async with asyncio.timeout(_CONNECT_S):
            await client.connection(node)
    except TimeoutError:
        return f"no connection within {_CONNECT_S:g} s"
    except (Unreachable, AuthenticationFailed) as error:
        return error.what
    return ""
