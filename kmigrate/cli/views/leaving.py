"""Clients that are still connected to routers, and the next step once all clients have left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.model.presences import ConnectedClient
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads

__all__ = ["clients_table", "ending"]


def clients_table(clients: Iterable[ConnectedClient]) -> RenderableType:
    columns = ("client", "host", "principal", "software", "to brokers", "to the bootstrap address")
    made = table(*columns, right=columns[4:])
    for each in clients:
        made.add_row(each.client_id, each.host, each.principal, each.software, str(each.brokers), str(each.bootstrap))
    return made


def ending(asked: Sequence[Bootstrap], *, gone: bool, may_stop: bool) -> Text:
    """Return a sentence on what a person may do now."""
    if not gone:
        return Text("Routers keep the clients until the other links are finished, too.", style="yellow")
    if may_stop:
        return Text("✓ Nobody is left. The routers may be stopped; no client need be restarted.", style="green")
    kept = ", ".join(each.address for each in asked if each.leads is not Leads.TARGET) or "the bootstrap address"
    return Text(
        f"Nobody is left on the routers' broker listeners. Do not stop the router behind {kept} before that name leads "
        "to brokers of the target: clients that start again need it. Nobody need be restarted for it.",
        style="yellow",
    )
