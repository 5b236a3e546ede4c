"""The process of the web page: `kmigrate status --http`, also started by `kmigrate run --http`.

The page has a process of its own, because a look at thousands of partitions takes a while in which a router's clients
would wait. The process reads the state log and both clusters, and writes nothing.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import nullcontext
from functools import partial

from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.process.health import EngineHealth, Health, health_pages
from kmigrate.cli.process.logs import open_log, report
from kmigrate.cli.process.metrics_endpoint import process_registry
from kmigrate.cli.process.workers import end_with_parent
from kmigrate.config.listen import listen_address
from kmigrate.errors import UsageError
from kmigrate.net.http import Page, PageServer
from kmigrate.net.tasks import TaskOwner
from kmigrate.observe.registry import CONTENT_TYPE, exposition
from kmigrate.state.log import StateLog
from kmigrate.web.feed import Feed
from kmigrate.web.metrics import show_status
from kmigrate.web.pages import status_pages
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.status.snapshot import snapshot
from kmigrate.workflow.status.timeline import Timeline

__all__ = ["serve_status"]

_LOOK_SECONDS = 1.0


async def serve_status(call: Call, *, worker: bool = False) -> Exit:
    """Serve the web page at `[http] listen` until SIGTERM or SIGINT; a worker ends with its parent process, too."""
    host, port = _address(call)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if worker:
        end_with_parent(stop)
    call.out.as_lines()
    call.out.never_block()
    async with open_log(call.settings.log, call.out), call.connections() as connections:
        connections.asking = nullcontext  # no spinner: nobody waits at a terminal
        await _serve(call, connections, stop, host, port)
        report(call.out, "page", {"event": "stopped"}, "stopped")
    return Exit.OK


async def _serve(call: Call, connections: Connections, stop: asyncio.Event, host: str, port: int) -> None:
    fatal: list[BaseException] = []

    def fail(error: BaseException) -> None:
        fatal.append(error)
        stop.set()

    timeline = Timeline()
    timeline.follow(connections.log.state)
    feed = Feed(partial(snapshot, connections), timeline)
    server = PageServer(host, port, _pages(connections.log, feed))
    await server.start()
    tasks = TaskOwner(fail)
    try:
        tasks.start(feed.run(), "feed")
        tasks.start(_follow(connections.log, timeline), "timeline")
        url = f"http://{server.address}/"
        report(call.out, "page", {"event": "page-listening", "url": url}, f"web page: {url}")
        await stop.wait()
    finally:
        await tasks.close()
        await server.close()
    if fatal:
        raise fatal[0]


def _address(call: Call) -> tuple[str, int]:
    address = listen_address(call.settings.http.listen)
    if address is None:  # the configuration has checked each address, and '' means no page
        raise UsageError(
            "bad-listen-address",
            "--http has no address",
            still_true="nothing was contacted or changed",
            next_step="expected: HOST:PORT, or a port of 127.0.0.1",
        )
    return address


def _pages(log: StateLog, feed: Feed) -> dict[str, Page]:
    registry = process_registry()
    show_status(registry, feed)
    health = Health(lambda: log.lost)
    health.add(EngineHealth("page"))
    return {
        **status_pages(feed),
        **health_pages(health),
        "/metrics": Page(CONTENT_TYPE, lambda: exposition(registry)),
    }


async def _follow(log: StateLog, timeline: Timeline) -> None:
    """Note what happens; a log that is lost is read again, and the page says so meanwhile."""
    while True:
        timeline.follow(log.state)
        await log.changed_or_broken(_LOOK_SECONDS)
