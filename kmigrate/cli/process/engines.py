"""Builds and runs the engines of a process (mirrors, router, controller) until a signal ends the process.

Engines meet only in the state log, so any set of engines may share a process. A mirror or controller is started again
after a failure that may pass (a silent cluster). Fatal are a router that cannot listen, and an unusable state log. But
with a router the process goes on, by the last routing table, and the other engines are tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import secrets
import signal
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from math import inf

from kmigrate.cli.base.call import Call
from kmigrate.cli.process.engine_settings import Engine, mirror_settings, router_settings
from kmigrate.cli.process.health import CALM_SECONDS, EngineHealth, Health
from kmigrate.cli.process.logs import LINK, open_log, report
from kmigrate.cli.process.metrics_endpoint import process_registry, serve_metrics, show_strays
from kmigrate.cli.process.workers import end_with_parent, keep_page, keep_worker
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.config.link_settings import contradictions
from kmigrate.config.settings import HooksSection
from kmigrate.errors import KmigrateError, Refused
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.metrics import MirrorMetrics
from kmigrate.mirror.process.engine import MirrorEngine
from kmigrate.model.presences import MirrorPresence, RouterPresence
from kmigrate.model.records import LinkRecord
from kmigrate.model.reports import HookPoint
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import TaskOwner
from kmigrate.observe.readiness import Hindrance, Readiness
from kmigrate.router.process.server import Router
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.controller.auto_promote import AutoSettings
from kmigrate.workflow.controller.controller import Controller, ControllerSettings
from kmigrate.workflow.controller.hooks import HookSettings
from kmigrate.workflow.controller.metrics import show_controller
from kmigrate.workflow.groups.watch import GroupFigures, WatchSettings
from kmigrate.workflow.status.timeline import Timeline

__all__ = ["serve"]

_log = logging.getLogger("kmigrate.process")
_LOOK_SECONDS = 1.0
_OTHER_ROUTERS_S = 0.2
"""Seconds between two reads of the other routers' presences, which tell a router where clients may go."""
_OTHER_MIRRORS_S = 0.1
"""Seconds between two reads of the other mirrors' presences, which tell a mirror which partitions are free."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_STARTING = Readiness(Hindrance.STARTING, "no client is accepted yet")


async def serve(
    call: Call,
    engines: Engine,
    link: str | None = None,
    *,
    workers: int = 1,
    worker: int = 0,
    take_over: bool = False,
) -> None:
    """Run the engines until SIGTERM or SIGINT, then close cleanly, as process `worker` (from 0) of `workers`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if worker:
        end_with_parent(stop)
    call.out.never_block()
    async with open_log(call.settings.log, call.out):
        # Reference counts free what engines make. Frequent searches for cycles would cost 5% of the processor time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        # A process may be started before the first link exists: the process creates the state log and waits for links.
        async with call.connections(create=True) as connections:
            for _, what in connections.warnings:
                _log.warning("%s", what)
            if engines is Engine.ROUTER:
                connections.log.read_only(RouterPresence, rest_s=_OTHER_ROUTERS_S)
            elif engines is Engine.MIRROR:
                connections.log.read_only(MirrorPresence, rest_s=_OTHER_MIRRORS_S)
            process = _Process(call, connections, stop, worker)
            await process.run(engines, link, workers, take_over=take_over)
        report(call.out, "process", {"event": "stopped"}, "stopped")


class _Process:
    """The engines of this process and the resources that these engines keep open."""

    def __init__(self, call: Call, connections: Connections, stop: asyncio.Event, worker: int) -> None:
        self._call, self._connections, self._stop = call, connections, stop
        self._fatal: BaseException | None = None
        self._tasks = TaskOwner(self._on_failure)
        self._worker = worker
        self._router = False
        self._instance = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._registry = process_registry()
        self._mirrors = MirrorMetrics(self._registry)
        show_strays(self._registry, connections.log)
        self._groups = GroupFigures()
        self._health = Health(lambda: connections.log.lost)

    def _on_failure(self, error: BaseException) -> None:
        self._fatal = self._fatal or error
        self._stop.set()

    async def run(self, engines: Engine, link: str | None, workers: int, *, take_over: bool) -> None:
        async with AsyncExitStack() as stack:
            if Engine.ROUTER in engines:
                self._health.add(EngineHealth("router", own=lambda: _STARTING))  # before the first probe comes
            await serve_metrics(self._call, self._registry, self._health, stack)
            stack.push_async_callback(self._tasks.close)
            self._router = Engine.ROUTER in engines
            self._tasks.start(self._heed_log(), "state log")
            if Engine.CONTROLLER in engines:
                timeline = Timeline()
                show_controller(self._registry, self._connections.log, timeline)
                self._tasks.start(self._follow_log(timeline), "timeline")
            if Engine.ROUTER in engines:
                shared, alone = workers > 1 or self._worker > 0, engines is Engine.ROUTER
                await self._start_router(stack, shared=shared, alone=alone, take_over=take_over)
            if Engine.CONTROLLER in engines:
                self._groups.show_in(self._registry)
                health = self._health.add(EngineHealth("controller", role=self._controller_role))
                self._tasks.start(self._keep(health, self._control), "controller")
            if Engine.MIRROR in engines:
                self._tasks.start(self._follow_links(link), "links")
            if engines & (Engine.CONTROLLER | Engine.MIRROR):
                self._tasks.start(self._compare_settings(), "settings of links")
            kind = Engine.ROUTER if Engine.ROUTER in engines else Engine.MIRROR
            for number in range(1, workers):
                self._tasks.start(keep_worker(self._call, number, kind, link, take_over=take_over), f"worker-{number}")
            if self._call.settings.http.listen and Engine.CONTROLLER in engines:
                self._tasks.start(keep_page(self._call), "web page")
            await self._stop.wait()
            self._health.closing = True
        if self._fatal is not None:
            raise self._fatal

    async def _heed_log(self) -> None:
        """End the process when the state log is broken or belongs to newer processes: neither state ever heals."""
        while True:
            await self._news()

    async def _follow_log(self, timeline: Timeline) -> None:
        """Note what happens, for metrics."""
        while True:
            timeline.follow(self._connections.log.state)
            await self._news()

    async def _compare_settings(self) -> None:
        """Log each key of the configuration that contradicts a link's setting, once for each pair of values."""
        said: set[tuple[str, str]] = set()
        while True:
            links = self._connections.log.state.links()
            now = {(link.name, text) for link in links for text in self._contradictions(link)}
            for name, text in sorted(now - said):
                _log.warning("%s: the link's setting counts", text, extra={"link": name})
            said = now
            await self._news()

    def _contradictions(self, link: LinkRecord) -> Collection[str]:
        return contradictions(self._call.settings, link.settings).values()

    async def _news(self) -> None:
        """Wait for a newer state; a process with a router endures a log that cannot be read (`Router`)."""
        if self._router:
            await self._connections.log.changed_or_broken(_LOOK_SECONDS, state_only=True)
        else:
            await self._connections.log.changed(_LOOK_SECONDS, state_only=True)

    async def _start_router(
        self, stack: AsyncExitStack, *, shared: bool, alone: bool = True, take_over: bool = False
    ) -> None:
        def source_client(link: LinkRecord) -> ClusterClient:
            """Make a client for the router alone, so that its requests queue behind no other engine's.

            The router asks once per link and closes the client; a link created anew may have another source.
            """
            return ClusterClient(self._call.settings.cluster(link.source.name))

        target, clusters = self._connections.target.settings, self._call.settings.clusters
        others = [each for name, each in clusters.items() if name != target.name]
        settings = router_settings(self._call.settings, target, others)
        if shared:
            name = f"{settings.name}-{self._worker + 1}"
            settings = replace(settings, name=name, shares_ports=True)
        replaces = await verbs.router_to_replace(self._connections, settings.name, take_over=take_over)
        settings = replace(settings, replaces=replaces)
        router = Router(settings, self._connections.target, source_client, self._connections.log, self._instance)
        router.show_in(self._registry)
        health = self._health.add(EngineHealth("router", own=lambda: router.readiness))
        _raise_file_limit()
        await router.start()
        until_closed = await stack.enter_async_context(AsyncExitStack())
        until_closed.push_async_callback(router.close)
        self._tasks.start(self._serve_clients(router, settings.name, health, until_closed, alone=alone), "router")
        report(
            self._call.out,
            "router",
            {"event": "router-listening", "name": settings.name, "bootstrap": router.bootstrap},
            f"router {settings.name} listens: bootstrap.servers={router.bootstrap}",
        )

    async def _serve_clients(
        self, router: Router, name: str, health: EngineHealth, until_closed: AsyncExitStack, *, alone: bool
    ) -> None:
        """Run the router; after a replacement go on without the router, unless the process is `alone` a router."""
        try:
            await router.run()
        except Refused as replaced:
            if alone or replaced.ref != "router-replaced":
                raise
            readiness = Readiness(Hindrance.REPLACED, replaced.what)
            health.own = lambda: readiness
            await until_closed.aclose()
            report(
                self._call.out,
                "router",
                {"event": "router-replaced", "name": name, **replaced.as_json()},
                f"router {name} was replaced and ended; mirror and controller go on: {replaced.what}",
                level=logging.ERROR,
            )

    async def _control(self) -> None:
        section = self._call.settings.promote
        settings = ControllerSettings(
            watch=WatchSettings(hold=section.hold_source_groups),
            auto=AutoSettings(settle_s=section.auto_settle_s),
            hooks=_hooks(self._call.settings.hooks),
        )
        await Controller(self._connections, self._instance, settings, self._groups).run()

    async def _follow_links(self, only: str | None) -> None:
        """Run a mirror per link of the state log; a link created anew under its name may have another source."""
        running: dict[tuple[str, str], asyncio.Task[None]] = {}
        while True:
            links = {
                (each.name, each.uuid) for each in self._connections.log.state.links() if only in (None, each.name)
            }
            ended = {link: running.pop(link) for link in running.keys() - links}
            for (name, _), mirror in ended.items():
                mirror.cancel()
                dropped = {"event": "mirror-dropped", "link": name}
                report(self._call.out, "mirror", dropped, f"link {name} is gone: mirror ended")
            if ended:
                await asyncio.wait(ended.values())
            for name, uuid in links - running.keys():
                running[name, uuid] = self._tasks.start(self._keep_mirror(name), name)
            await self._news()

    async def _mirror(self, name: str) -> None:
        link = self._connections.log.state.link(name)
        if link is None:
            return
        # `source` checks which cluster answers; the engine's own clients keep lost connections away from other links.
        await self._connections.source(link)
        settings_of = self._call.settings.cluster
        source, target = settings_of(link.source.name), settings_of(link.target.name)
        with Admin(source) as source_admin, Admin(target) as target_admin:
            async with ClusterClient(source) as source_client, ClusterClient(target) as target_client:
                settings = mirror_settings(self._call.settings)
                clusters = source_client, target_client, source_admin, target_admin
                differs = partial(contradictions, self._call.settings)
                log = self._connections.log
                engine = MirrorEngine(MirroredLink(*clusters, name, log, self._instance, settings, differs))
                with self._mirrors.link(name, engine.meter):
                    await engine.run()

    async def _keep_mirror(self, link: str) -> None:
        """Keep a link's mirror running; each line that its tasks log names the link."""
        LINK.set(link)
        health = self._health.add(EngineHealth("mirror", link, role=lambda: self._mirrors.role(link)))
        try:
            await self._keep(health, partial(self._mirror, link))
        finally:
            self._health.drop(health)

    def _controller_role(self) -> str:
        lease = self._connections.log.state.lease("controller")
        return "leads" if lease is not None and lease.holder == self._instance else "stands by"

    async def _keep(self, health: EngineHealth, run: Callable[[], Awaitable[None]]) -> None:
        """Run an engine, and run the engine again after a failure that may pass; a bug of ours ends the process."""
        what = health.engine
        fields = {"link": health.link} if health.link else {}
        label = " ".join([what, *fields.values()])
        report(self._call.out, what, {"event": f"{what}-started", **fields}, f"{label} started")
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            began = health.began = monotonic()
            try:
                await run()
                return
            except KmigrateError as error:
                failure = error
            health.failure, health.began = failure.summary, inf
            if monotonic() - began > CALM_SECONDS:
                pauses.reset()
            report(
                self._call.out,
                what,
                {"event": f"{what}-failed", **fields, **failure.as_json()},
                f"{label} failed, again in {pauses.next_s:g} s: {failure.summary}",
                level=logging.ERROR,
                cause=failure.summary,
            )
            await pauses.pause()


def _hooks(section: HooksSection) -> HookSettings:
    """Return the commands of the configuration by the point at which they run."""
    return HookSettings({point: section.command(point) for point in HookPoint}, section.timeout_s)


def _raise_file_limit() -> None:
    """Raise the limit of open files to the system's: each router's client takes two, and a shell's 1,024 is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than their hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
