"""A router process for tests that kill the router, composed as the command line does.

    python tests/integration/router_process.py NAME TARGET_BOOTSTRAP PORT SETTINGS

SETTINGS are fields of RouterSettings as JSON.

The process prints "bootstrap host:port" when it takes clients; SIGTERM closes the process.

SIGUSR1 makes the process stop itself (SIGSTOP) at the next write to a source, or at the next request with the API key
in STOP_AT. At that moment the request has been checked and counted, and is about to be sent.

SIGUSR2 makes the process print its holdings as a line of JSON.

STATE_VIA=host:port is the address of the state log, so that a test can cut off the state log alone. DETOUR holds the
addresses of brokers (`detour`). ROUTER_LOG is the lowest log level.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import struct
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.records import LinkRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.frames import SIZE
from kmigrate.router.process import server
from kmigrate.router.process.listeners import ClientConnection
from kmigrate.router.process.server import Router
from kmigrate.router.settings import RouterSettings
from kmigrate.router.shared.state import Buffer, Outcome
from kmigrate.state.log import StateLog
from tests.integration.detour import detoured
from tests.soak.census import census


def cluster_settings(name: str, bootstrap: str) -> ClusterSettings:
    host, port = bootstrap.rsplit(":", 1)
    return ClusterSettings(name, ((host, int(port)),))


def open_source(link: LinkRecord) -> ClusterClient:
    return ClusterClient(cluster_settings(link.source.name, link.source.bootstrap))


STOP_AT = int(os.environ.get("STOP_AT") or ApiKey.PRODUCE)


class StoppingConnection(ClientConnection):
    """A client's connection that can stop the whole process between a write's check and its sending."""

    asked = False

    def to_source(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]
    ) -> None:
        if StoppingConnection.asked and struct.unpack_from(">h", parts[0], len(SIZE.pack(0))) == (STOP_AT,):
            StoppingConnection.asked = False
            os.kill(os.getpid(), signal.SIGSTOP)
        super().to_source(link, node, parts, correlation, done)


def stop_at_the_next_write() -> None:
    StoppingConnection.asked = True


def tell_what_is_held(router: Router) -> None:
    gc.collect()
    print(json.dumps({"tasks": len(asyncio.all_tasks()), "lengths": census(router)}), flush=True)


class Detour(ClusterClient):
    """A client of a cluster with a single broker, which is dialled at another address than metadata names."""

    async def _open(self, node: int, host: str, port: int, purpose: str) -> BrokerConnection:
        host, _, told = os.environ["STATE_VIA"].rpartition(":")
        return await super()._open(node, host, int(told), purpose)


async def main(name: str, target: str, port: int, more: dict[str, Any]) -> None:
    settings = cluster_settings("target", target)
    state_client = Detour if os.environ["STATE_VIA"] else ClusterClient
    async with ClusterClient(settings) as client, state_client(settings) as state, StateLog(state) as log:
        router = Router(RouterSettings(name=name, port=port, **more), client, open_source, log, uuid.uuid4().hex)
        await router.start()
        print("bootstrap", router.bootstrap, flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop_at_the_next_write)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, tell_what_is_held, router)
        running = asyncio.create_task(router.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if running.done():
                running.result()
        finally:
            running.cancel()
            stopping.cancel()
            await router.close()


if __name__ == "__main__":
    server.ClientConnection = StoppingConnection  # type: ignore[attr-defined]
    logging.basicConfig(level=os.environ["ROUTER_LOG"], format="%(asctime)s %(name)s %(message)s")
    with detoured():
        uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])))
