"""How close each router is to its limits, in a line per router."""

from __future__ import annotations

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.lags import bytes_text
from kmigrate.model.presences import RouterPresence

__all__ = ["limits_line"]

_NEAR = 0.8
"""The part of a limit from which on a warning is shown."""
_EVERYDAY = frozenset({"idle"})


def limits_line(router: RouterPresence) -> Text:
    """Return connections and memory with their limits, and the connections that were ended because of a limit."""
    told = router.limits
    if told is None:
        return Text(f"router {router.name}: {router.connections:,} connections", style="dim")
    amounts = [
        (router.connections, told.most_connections, "{:,} of {:,} connections".format),
        (told.of_one_host, told.most_of_one_host, "{:,} of {:,} connections of one host".format),
        (told.buffered, told.most_buffered, _kept),
    ]
    said = [(text(now, most), "yellow" if now >= _NEAR * most else "dim") for now, most, text in amounts if most]
    said += [
        (f"ended for {limit}: {ended.count:,}, last {ended.last}", "dim" if limit in _EVERYDAY else "yellow")
        for limit, ended in sorted(told.ended.items())
    ]
    line = Text.assemble((f"router {router.name}: ", "dim"))
    return line.append(Text("; ", style="dim").join(Text(words, style=style) for words, style in said))


def _kept(now: int, most: int) -> str:
    return f"{bytes_text(now)} of {bytes_text(most)} kept for clients"
