"""One router process for tests that kill it: composed as the command line does it.

    python tests/integration/router_process.py NAME TARGET_BOOTSTRAP [PORT]

Prints "bootstrap host:port" when it takes clients; SIGTERM closes it. STATE_VIA=host:port is where it reaches the state
log, so that a test can cut it off from that alone; STOOD_STILL_S is how long it may stand still unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import uuid

import uvloop

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.records import LinkRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.router.server import Router
from kmigrate.router.settings import RouterSettings
from kmigrate.state.log import StateLog


def cluster_settings(name: str, bootstrap: str) -> ClusterSettings:
    host, port = bootstrap.rsplit(":", 1)
    return ClusterSettings(name, ((host, int(port)),))


def open_source(link: LinkRecord) -> ClusterClient:
    return ClusterClient(cluster_settings(link.source.name, link.source.bootstrap))


class Detour(ClusterClient):
    """A cluster of one broker, reached elsewhere than it tells."""

    async def _open(self, node: int, host: str, port: int, purpose: str) -> BrokerConnection:
        host, _, told = os.environ["STATE_VIA"].rpartition(":")
        return await super()._open(node, host, int(told), purpose)


async def main(name: str, target: str, port: int) -> None:
    settings = cluster_settings("target", target)
    state_client = Detour if "STATE_VIA" in os.environ else ClusterClient
    own = RouterSettings(name=name, port=port, stood_still_s=float(os.environ.get("STOOD_STILL_S", "10")))
    async with ClusterClient(settings) as client, state_client(settings) as state, StateLog(state) as log:
        router = Router(own, client, open_source, log, uuid.uuid4().hex)
        await router.start()
        print("bootstrap", router.bootstrap, flush=True)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
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
    logging.basicConfig(level=os.environ.get("ROUTER_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0))
