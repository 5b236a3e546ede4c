"""`kmigrate run`, `mirror run`, `router run`, `controller run`: the processes that do the work."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import typer
import uvloop

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link, LogFormat, LogLevel, PlanOnly, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.process.engine_settings import Engine
from kmigrate.cli.views.plans import plan_answer
from kmigrate.errors import UsageError
from kmigrate.workflow import verbs

__all__ = [
    "app",
    "controller_app",
    "forget_router",
    "mirror_app",
    "router_app",
    "run",
    "run_controller",
    "run_mirror",
    "run_router",
]

app = typer.Typer()
mirror_app = typer.Typer(name="mirror", help="The mirror process.", no_args_is_help=True)
router_app = typer.Typer(name="router", help="The router process.", no_args_is_help=True)
controller_app = typer.Typer(name="controller", help="The controller process.", no_args_is_help=True)

Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Bootstrap port (else [router] port).")]
Name = Annotated[str | None, typer.Option("--name", help="Name of this router (else [router] name).")]


Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="HOST:PORT", help="Serve /metrics, /healthz, /readyz there (else [metrics] listen; off)."
    ),
]


Http = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="HOST:PORT", help="Serve a web page there, in a process of its own (else [http] listen; off)."
    ),
]


TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Replace a running router of this name, and disconnect the clients there."),
]


Rack = Annotated[
    str | None,
    typer.Option("--rack", help="Rack of this process: read from source followers there (else [mirror] rack; none)."),
]


Workers = Annotated[
    int,
    typer.Option("--workers", min=1, max=64, help="Processes that share the work; one uses one core at most."),
]


def _serve(
    call: Call,
    engines: Engine,
    link: str | None = None,
    *,
    workers: int = 1,
    worker: int = 0,
    take_over: bool = False,
) -> None:
    # The engines' code takes longest to import, so only `run` commands import it.
    from kmigrate.cli.process.engines import serve

    call.out.as_lines()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(call, engines, link, workers=workers, worker=worker, take_over=take_over))


def _log_flags(form: str | None, level: str | None) -> dict[str, object]:
    return {"log.format": form, "log.level": level}


@command(app, "run")
def run(
    call: Call,
    port: Port = None,
    name: Name = None,
    metrics: Metrics = None,
    http: Http = None,
    rack: Rack = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    take_over: TakeOver = False,
) -> None:
    """Run mirror, router and controller together.

    One process, until Ctrl-C or SIGTERM. Links that are created later are picked up. The call is refused while a router
    of the same name answers. A process whose router was replaced goes on with mirror and controller.
    """
    given = {"router.port": port, "router.name": name, "metrics.listen": metrics, "http.listen": http}
    call.override({**given, "mirror.rack": rack, **_log_flags(log_format, log_level)})
    _serve(call, Engine.MIRROR | Engine.ROUTER | Engine.CONTROLLER, take_over=take_over)


@command(mirror_app, "run")
def run_mirror(
    call: Call,
    link: Link = None,
    metrics: Metrics = None,
    rack: Rack = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    workers: Workers = 1,
    worker: Annotated[bool, typer.Option("--worker", hidden=True, help="End when standard input closes.")] = False,
) -> None:
    """Run the mirrors of all links, or of one link.

    Processes on any machines share the partitions of a link, and take over the partitions of a process that dies. With
    --metrics each further worker serves at the next port.
    """
    call.override({"metrics.listen": metrics, "mirror.rack": rack, **_log_flags(log_format, log_level)})
    _serve(call, Engine.MIRROR, link, workers=workers, worker=int(worker))


@command(router_app, "run")
def run_router(
    call: Call,
    port: Port = None,
    name: Name = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    workers: Workers = 1,
    take_over: TakeOver = False,
    worker: Annotated[int, typer.Option("--worker", hidden=True, help="End when standard input closes.")] = 0,
) -> None:
    """Run one router.

    The call is refused while a router of the same name answers. With --workers n the router consists of n processes at
    the same ports, registered as NAME-1 to NAME-n; a process that dies is started again. With --metrics each further
    worker serves at the next port.
    """
    given = {"router.port": port, "router.name": name, "metrics.listen": metrics}
    call.override({**given, **_log_flags(log_format, log_level)})
    if (workers > 1 or worker) and not call.settings.router.port:
        raise UsageError(
            "workers-need-a-port",
            f"{workers} workers cannot share a port that is any free one",
            still_true="nothing was started",
            next_step="expected with --workers: --port, or [router] port",
        )
    _serve(call, Engine.ROUTER, workers=workers, worker=worker, take_over=take_over)


@command(router_app, "forget")
async def forget_router(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the router that does not answer.")],
    dead: Annotated[
        bool,
        typer.Option("--dead", help="The router's process has ended: no topic is sealed for it."),
    ] = False,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer:
    """Take a silent router out of the fences' count.

    Without --dead the router may still live: topics that are promoted are sealed on the source because of that router.
    With --dead the call is refused while a router answers at that router's address.
    """
    async with call.connections() as connections:
        asked = f"Have all processes of router {name} ended? Seals" if dead else f"Forget router {name}? Fences"
        look = partial(verbs.forget_router, connections, name, dead=dead)
        return plan_answer(await call.carry_out(look, plan, yes, f"{asked} will not wait for it any more"))


@command(controller_app, "run")
def run_controller(
    call: Call,
    metrics: Metrics = None,
    http: Http = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Run the controller.

    The controller carries out what `promote` and `group promote` ask for.
    """
    call.override({"metrics.listen": metrics, "http.listen": http, **_log_flags(log_format, log_level)})
    _serve(call, Engine.CONTROLLER)
