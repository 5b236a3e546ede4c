"""Conditions under which a request for a given purpose goes out at once.

Holes rely on this, because markers are not compare-and-set (W5).
"""

from __future__ import annotations

import asyncio

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection


def test_nothing_goes_at_once_while_a_login_is_renewed_or_to_a_broker_that_moved_to_another_address() -> None:
    async def scene() -> None:
        client = ClusterClient(ClusterSettings("c", (("127.0.0.1", 9091),)))
        client.metadata_cache.known = Metadata("c", {1: ("127.0.0.1", 9091)})
        connection = BrokerConnection("127.0.0.1:9091", "k")
        client._connections[1, "p"] = connection
        assert client.is_open(1, "p")
        connection._ready = False
        assert not client.is_open(1, "p"), "requests wait for a login of up to ten seconds"
        connection._ready = True
        client.metadata_cache.known = Metadata("c", {1: ("127.0.0.1", 9092)})
        assert not client.is_open(1, "p"), "another connection is opened first"

    asyncio.run(scene())
