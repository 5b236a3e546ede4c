"""`kmigrate stragglers`: the clients that pass the routers by, and what becomes of their records."""

from __future__ import annotations

from dataclasses import asdict

import typer

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link
from kmigrate.cli.base.output import Answer
from kmigrate.cli.views.stragglers import stragglers_view
from kmigrate.workflow.status.snapshot import snapshot
from kmigrate.workflow.status.stragglers import stragglers as found_in
from kmigrate.workflow.verbs.links import resolve_link

__all__ = ["app", "stragglers"]

app = typer.Typer()


@command(app, "stragglers")
async def stragglers(call: Call, link: Link = None) -> Answer:
    """List the clients that pass the routers by, and what becomes of their records.

    These are producers that write to the source of a mirrored or promoted topic, members of groups at the cluster that
    does not serve the group, and commits on the source after a group's promote. Producers and members that have gone
    are listed, too: they may come back. Nothing is changed.
    """
    async with call.connections() as connections:
        if link is not None:
            resolve_link(connections.log.state, link)
        with call.out.waiting("asking both clusters"):
            shot = await snapshot(connections)
    troubles = {each.name: each.trouble for each in shot.links if each.trouble and link in (None, each.name)}
    found = [each for each in found_in(shot) if link in (None, each.link)]
    document = {"at_ms": shot.at_ms, "stragglers": [asdict(each) for each in found], "troubles": troubles}
    return Answer(document, stragglers_view(found, troubles, shot.at_ms))
