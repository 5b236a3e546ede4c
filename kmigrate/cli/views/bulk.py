"""A bulk copy for a person: what is left, how far the copy is, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.mirror.bulk.ranges import CopyRange, cautions

if TYPE_CHECKING:
    from kmigrate.spark.rounds import BulkProgress, Round

__all__ = ["progress_text", "ranges_view", "rounds_view"]

_GB = 1e9


def ranges_view(ranges: Sequence[CopyRange]) -> RenderableType:
    """Return a row for each topic, and a line for each caution."""
    if not ranges:
        return Text("nothing is left to copy")
    made = table("topic", "partitions", "offsets", "about GB", right=("partitions", "offsets", "about GB"))
    for topic in sorted({each.topic for each in ranges}):
        of_topic = [each for each in ranges if each.topic == topic]
        size = sum(each.size for each in of_topic) / _GB
        made.add_row(topic, f"{len(of_topic)}", f"{sum(each.offsets for each in of_topic):,}", f"{size:,.2f}")
    lines = [
        Text(
            f"! {count} partition{'' if count == 1 else 's'} {caution.text}: one owner each, one batch at a time, "
            "speculation off",
            style="yellow",
        )
        for caution, count in cautions(ranges)
    ]
    return Group(made, *lines)


def progress_text(progress: BulkProgress) -> str:
    """Return the progress as a line for a spinner."""
    part = progress.offsets / max(1, progress.of_offsets)
    rate = progress.size / max(0.1, progress.seconds)
    parts = [
        f"{part:.0%}",
        f"{progress.size / _GB:,.2f} of some {progress.of_size / _GB:,.2f} GB",
        f"{rate / 1e6:,.0f} MB/s",
        f"{progress.tasks} task{'' if progress.tasks == 1 else 's'}",
    ]
    if rate > 0 and part > 0:
        parts.append(f"{(progress.of_size - progress.size) / rate:,.0f} s left")
    return " · ".join(parts) + (f" · {progress.trouble}" if progress.trouble else "")


def rounds_view(rounds: Sequence[Round], left: Sequence[CopyRange]) -> RenderableType:
    """Return a row for each round, the stopped partitions, and the offsets left to the mirror processes."""
    columns = ("round", "tasks", "partitions", "offsets", "seconds", "MB/s")
    made = table(*columns, right=columns[1:])
    for number, each in enumerate(rounds, 1):
        rate = sum(copied.size for copied in each.copied) / max(0.001, each.seconds) / 1e6
        whole = (f"{figure:,}" for figure in (number, each.tasks, each.partitions, each.offsets))
        made.add_row(*whole, f"{each.seconds:.1f}", f"{rate:.0f}")
    stopped = [
        Text(f"✗ {each.topic}-{each.partition} has stopped: {each.problem}", style="bold red")
        for round_ in rounds
        for each in round_.problems
    ]
    rest = sum(each.offsets for each in left)
    return Group(*([made] if rounds else []), *stopped, Text(f"handed over to the daemon with {rest:,} offsets left"))
