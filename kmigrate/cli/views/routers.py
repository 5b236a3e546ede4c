"""Routers for a person: how close each router is to its limits, and the clients that are still connected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.model.amounts import bytes_text
from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads

__all__ = ["clients_table", "ending", "limits_line", "served_line"]

_NEAR = 0.8
"""The part of a limit from which on a warning is shown."""
_EVERYDAY = frozenset({"idle"})


def limits_line(router: RouterPresence) -> Text:
    """Return connections and memory with their limits, and the connections that were ended because of a limit."""
    limits = router.limits
    if limits is None:
        return Text(f"router {router.name}: {router.connections:,} connections", style="dim")
    amounts = [
        (router.connections, limits.most_connections, "{:,} of {:,} connections".format),
        (limits.of_one_host, limits.most_of_one_host, "{:,} of {:,} connections of one host".format),
        (limits.buffered, limits.most_buffered, _kept),
    ]
    parts = [(text(now, most), "yellow" if now >= _NEAR * most else "dim") for now, most, text in amounts if most]
    parts += [
        (f"ended for {limit}: {ended.count:,}, last {ended.last}", "dim" if limit in _EVERYDAY else "yellow")
        for limit, ended in sorted(limits.ended.items())
    ]
    line = Text.assemble((f"router {router.name}: ", "dim"))
    return line.append(Text("; ", style="dim").join(Text(text, style=style) for text, style in parts))


def served_line(router: RouterPresence) -> Text | None:
    """Return the errors that the router's clients got lately, and the requests that were held; None without any."""
    parts: list[Text] = []
    for api in router.served:
        named = ", ".join(f"{name} × {count:,}" for name, count in sorted(api.errors.items()))
        if named:
            parts.append(Text(f"{api.api} of {api.answers:,}: {named}", style="yellow"))
        if api.held:
            parts.append(Text(f"{api.held:,} {api.api} held, {api.held_s:,.1f} s together", style="dim"))
    if not parts:
        return None
    line = Text(f"router {router.name}, errors and waits of its clients in the last minute: ", style="dim")
    return line.append(Text("; ", style="dim").join(parts))


def _kept(now: int, most: int) -> str:
    return f"{bytes_text(now)} of {bytes_text(most)} kept for clients"


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
        return Text("✓ No client is left. The routers may be stopped; no client need be restarted.", style="green")
    kept = ", ".join(each.address for each in asked if each.leads is not Leads.TARGET) or "the bootstrap address"
    return Text(
        f"No client is left on the routers' broker listeners. Do not stop the router behind {kept} before that name "
        "leads to brokers of the target: clients that start again need it. No client has to be restarted for it.",
        style="yellow",
    )
