"""The clients that pass the routers by, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.model.amounts import time_text
from kmigrate.workflow.status.stragglers import Passing

__all__ = ["stragglers_view"]


def stragglers_view(found: Sequence[Passing], troubles: Mapping[str, str], now_ms: int) -> RenderableType:
    """Return the table of stragglers, each followed by the next step, and the links that could not be asked."""
    parts: list[RenderableType] = [Text(f"! link {link}: {why}", style="red") for link, why in troubles.items()]
    if not found:
        parts.append(Text("no straggler has been seen"))
        return Group(*parts)
    made = table("kind", "where", "who", "last seen", "records", "what becomes of it")
    for each in found:
        style = "red" if each.missing else "yellow" if each.present else ""
        records = f"{each.records:,}" if each.records >= 0 else ""
        made.add_row(Text(each.kind, style=style), each.place, each.who, _seen(each, now_ms), records, each.fate)
    parts.append(made)
    steps = dict.fromkeys(each.way_on for each in found if each.way_on)
    parts += [Text(f"next: {step}") for step in steps]
    return Group(*parts)


def _seen(each: Passing, now_ms: int) -> str:
    if each.present:
        return "now"
    return f"{time_text(max(0, now_ms - each.last_ms) / 1000)} ago" if each.last_ms else "?"
