"""`kmigrate status`: a single snapshot, or a series of snapshots."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from functools import partial
from typing import Annotated

import typer

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import LogFormat, LogLevel
from kmigrate.cli.base.output import Answer
from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.net.retry import every
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.status.document import status_document
from kmigrate.workflow.status.group_detail import GroupDetail, group_detail
from kmigrate.workflow.status.progress import ProgressTracker
from kmigrate.workflow.status.snapshot import snapshot

__all__ = ["app", "status"]

app = typer.Typer()


@command(app, "status")
async def status(
    call: Call,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: the whole screen of a terminal, else a snapshot after the other.")
    ] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between looks.")] = 1.0,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve a read-only web page there until Ctrl-C."),
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    worker: Annotated[bool, typer.Option("--worker", hidden=True, help="End when standard input closes.")] = False,
) -> Answer | None:
    """Show links, topics, groups and running processes.

    Figures come from the logs of both clusters, read now. With --watch on a terminal: q ends it, / filters, s sorts,
    Enter shows a topic's partitions or a group's members. In a pipe and with --json, --watch prints until Ctrl-C.
    """
    if http is not None:
        from kmigrate.cli.process.status_page import serve_status  # the page's libraries are for the page alone

        call.override({"http.listen": http, "log.format": log_format, "log.level": log_level})
        raise typer.Exit(await serve_status(call, worker=worker))
    async with call.connections() as connections:
        if not watch:
            with call.out.waiting("asking both clusters"):
                shot = await snapshot(connections)
            if call.json:  # among 10,000 topics the document and the view take most of a second each
                return Answer(status_document(shot, ProgressTracker().add(shot)), "")
            return Answer({}, snapshot_view(shot))
        call.out.as_lines()
        connections.asking = nullcontext  # the watched view stands where a spinner would stand
        try:
            if _whole_screen(call):
                from kmigrate.cli.watch.app import watch as watch_screen

                look, detail = partial(snapshot, connections), partial(_group, connections)
                raise typer.Exit(await watch_screen(look, detail, interval))
            await _print_snapshots(call, connections, interval)
        except asyncio.CancelledError:
            raise typer.Exit(Exit.INTERRUPTED) from None  # a watch always ends like this, so nothing is printed
        return None


def _whole_screen(call: Call) -> bool:
    """Return whether a person looks at a terminal that can show a whole screen."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return not call.json and all(each.isatty() for each in streams) and not call.out.out.is_dumb_terminal


async def _group(connections: Connections, link: str, group: str) -> GroupDetail | None:
    """Ask for one group in detail; None for a group that is not mirrored any more."""
    state = connections.log.state
    owner, record = state.link(link), state.group(link, group)
    return None if owner is None or record is None else await group_detail(connections, owner, record)


async def _print_snapshots(call: Call, connections: Connections, interval: float) -> None:
    """Print snapshots until Ctrl-C, or until nobody reads the output."""
    tracker = ProgressTracker()
    async for _ in every(interval, at_once=True):
        shot = await snapshot(connections)
        progress = tracker.add(shot)
        if call.json:
            call.out.line(status_document(shot, progress), "")
        else:
            call.out.show(snapshot_view(shot))
        if call.out.reader_left:
            return
