"""The outcome of a rehearsal, as a table."""

from __future__ import annotations

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.workflow.rehearsal.outcome import Rehearsed, Switch

__all__ = ["rehearsal_view"]


def rehearsal_view(rehearsed: Rehearsed) -> RenderableType:
    """Return a row per topic: its traffic, the pauses of both switches, and the comparison."""
    made = table("topic", "partitions", "copied", "synthetic", "promote p50/p99/max", "rollback p50/p99/max", "content")
    for each in rehearsed.topics:
        equal = f"equal: {each.records:,} records"
        differs = f"differs in partition {', '.join(map(str, each.differing))}"
        made.add_row(
            each.topic,
            f"{each.partitions:,}",
            f"{each.copied:,}",
            f"{each.synthetic:,}",
            _pause(each.promote),
            _pause(each.rollback) if each.rollback is not None else "none",
            Text(differs, style="bold red") if each.differing else Text(equal, style="green"),
        )
    group = rehearsed.group
    read = f"group {group.group}: {group.records:,} read, {group.read_again:,} read again, {group.skipped:,} skipped"
    rows: list[RenderableType] = [made, Text(read)]
    rows += [Text(f"no rollback: {each.no_rollback}", style="yellow") for each in rehearsed.topics if each.no_rollback]
    return Group(*rows)


def _pause(switch: Switch) -> str:
    pause = switch.pause
    return f"{pause.p50:.1f}/{pause.p99:.1f}/{pause.max:.1f} ms" if pause is not None else "nothing was held"
