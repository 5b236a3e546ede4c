"""`kmigrate status`: a single snapshot, or a series of snapshots."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Annotated

import typer
from rich.live import Live

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer
from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.net.retry import every
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.status.snapshot import snapshot

__all__ = ["app", "status"]

app = typer.Typer()


@command(app, "status")
async def status(
    call: Call,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C; JSON lines with --json.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between looks.")] = 1.0,
) -> Answer | None:
    """Show links, topics, groups and running processes.

    Figures come from the logs of both clusters, read now.
    """
    async with call.connections() as connections:
        if not watch:
            with call.out.waiting("asking both clusters"):
                shot = await snapshot(connections)
            return Answer(shot.as_json(), snapshot_view(shot))
        call.out.as_lines()
        connections.asking = nullcontext  # the watched view stands where a spinner would stand
        try:
            await _watch(call, connections, interval)
        except asyncio.CancelledError:
            raise typer.Exit(Exit.INTERRUPTED) from None  # a watch always ends like this, so nothing is printed
        return None


async def _watch(call: Call, connections: Connections, interval: float) -> None:
    """Show snapshots until Ctrl-C, or until nobody reads the output."""
    live = None if call.json or not call.out.out.is_terminal else Live(console=call.out.out, auto_refresh=False)
    with live or nullcontext():
        async for _ in every(interval, at_once=True):
            shot = await snapshot(connections)
            if live is not None:
                live.update(snapshot_view(shot), refresh=True)
            elif call.json:
                call.out.line(shot.as_json(), "")
            else:
                call.out.show(snapshot_view(shot))
            if live is None and call.out.reader_left:
                return
