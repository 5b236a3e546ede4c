"""The further processes of a running process: workers of `--workers N`, and the web page of `--http`.

A worker runs the same command. Mirror workers share partitions through the state log, as other machines do; router
workers share this process's ports. When this process dies, even by kill -9, each worker's standard input closes, and
the worker ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Mapping
from itertools import chain, repeat

from kmigrate.cli.base.call import Call
from kmigrate.cli.process.engine_settings import Engine
from kmigrate.cli.process.logs import report
from kmigrate.config.listen import listen_address
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff

__all__ = ["end_with_parent", "keep_page", "keep_worker", "page_command", "worker_command"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_CALM_SECONDS = 30.0
"""Seconds of running after which an ended worker is started again with the shortest pause."""
_PATIENCE_SECONDS = 10.0
"""Seconds that a worker has to hand over its share, or to end its clients' connections, when this process ends."""


def worker_command(
    call: Call, number: int, engine: Engine, link: str | None = None, *, take_over: bool = False
) -> list[str]:
    """Return the command line of worker `number`; the worker inherits environment and folder."""
    command = [sys.executable, "-m", "kmigrate"]
    if engine is Engine.ROUTER:
        command += ["router", "run", "--worker", str(number)]
        command += ["--take-over"] if take_over else []
        shared = {"--name": call.overrides.get("router.name"), "--port": call.overrides.get("router.port")}
    else:
        command += ["mirror", "run", "--worker"]
        shared = {"--link": link, "--rack": call.overrides.get("mirror.rack")}
    metrics = _metrics(call, number)
    given = {**shared, "--target": call.target, "--config": call.config, "--metrics": metrics, **_log_flags(call)}
    for flag, value in given.items():
        command += [flag, str(value)] if value else []
    return [*command, *(["--json"] if call.json else []), *(["--debug"] if call.debug else [])]


def page_command(call: Call) -> list[str]:
    """Return the command line of the web page's process."""
    command = [sys.executable, "-m", "kmigrate", "status", "--http", call.settings.http.listen, "--worker"]
    given = {"--target": call.target, "--config": call.config, **_log_flags(call)}
    for flag, value in given.items():
        command += [flag, str(value)] if value else []
    return [*command, *(["--json"] if call.json else []), *(["--debug"] if call.debug else [])]


def _log_flags(call: Call) -> dict[str, str | None]:
    return {"--log-format": call.overrides.get("log.format"), "--log-level": call.overrides.get("log.level")}


def _metrics(call: Call, number: int) -> str:
    """Return this process's metrics address with the port raised by the worker's number; port 0 stays 0."""
    address = listen_address(call.settings.metrics.listen)
    if address is None:
        return ""
    host, port = address
    return f"{f'[{host}]' if ':' in host else host}:{port and port + number}"


async def keep_worker(call: Call, number: int, engine: Engine, link: str | None, *, take_over: bool = False) -> None:
    """Keep a worker running until cancelled, then end it; only the first may take over: a replaced worker stays so."""
    again = worker_command(call, number, engine, link)
    first = worker_command(call, number, engine, link, take_over=take_over)
    await _keep(call, "worker", f"worker {number}", {"worker": number}, chain([first], repeat(again)))


async def keep_page(call: Call) -> None:
    """Keep the process of the web page running until cancelled, then end it: clients of a router never wait for it."""
    await _keep(call, "page", "the web page", {}, repeat(page_command(call)))


async def _keep(call: Call, kind: str, what: str, fields: Mapping[str, int], commands: Iterator[list[str]]) -> None:
    """Run commands one after another, each when the process of the former has ended."""
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    for command in commands:
        began = monotonic()
        # A session of its own: this process handles Ctrl-C, and ends a worker by closing the worker's standard input.
        worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, start_new_session=True)
        report(
            call.out,
            "process",
            {"event": f"{kind}-started", **fields, "pid": worker.pid},
            f"{what} started: process {worker.pid}",
        )
        try:
            code = await worker.wait()
        finally:
            await _end(worker)
        if monotonic() - began > _CALM_SECONDS:
            pauses.reset()
        report(
            call.out,
            "process",
            {"event": f"{kind}-ended", **fields, "pid": worker.pid, "code": code},
            f"{what} ended with code {code}, again in {pauses.next_s:g} s",
            level=logging.ERROR,
        )
        await pauses.pause()


async def _end(worker: Process) -> None:
    """Let a worker that still runs hand over its share and end."""
    if worker.stdin is not None:
        worker.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await worker.wait()
    if worker.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


def end_with_parent(stop: asyncio.Event) -> None:
    """Stop a worker when its standard input closes, because its parent process is gone then."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), readable)
