"""The lines above the tables: clock, links, processes, totals, and what concerns no single topic or group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.text import Text as RichText

from kmigrate.cli.base.words import Text, below
from kmigrate.cli.views.tables import NO_LINK
from kmigrate.cli.watch.columns import MARKS
from kmigrate.cli.watch.rows import GroupRow, TopicRow
from kmigrate.model.amounts import bytes_text, count_text, left_text, percent_text
from kmigrate.model.moments import utc_text
from kmigrate.workflow.status.attention import Need
from kmigrate.workflow.status.progress import Progress, TopicProgress
from kmigrate.workflow.status.snapshot import LinkStatus, Snapshot

__all__ = ["alarms", "clock_line", "count_line", "head_lines", "process_line", "total_line"]

_SHOWN_ALARMS = 2
_NARROW = 60
"""Width in columns below which lines are shorter."""
_LATE_S = 3.0
"""Age of a snapshot, beyond the pause between two looks, from which the age is shown."""


def head_lines(
    shot: Snapshot,
    progress: Progress,
    rows: Sequence[TopicRow | GroupRow],
    clock: Text,
    more: Iterable[Text],
    width: int,
) -> RichText:
    """Return all lines, each cut at the width; key `a` shows the alarms for which there is no room.

    `more` are the last lines; an empty text has no line.
    """
    narrow = width < _NARROW
    found = alarms(shot)
    most = 1 if narrow else _SHOWN_ALARMS
    shown = [Text(f"! {each}", style=style) for each, style in found[:most]]
    if len(found) > most:
        shown.append(Text(f"  and {len(found) - most} more: key a", style="yellow"))
    lines = [clock, process_line(shot), total_line(progress.total, narrow=narrow), count_line(rows, narrow=narrow)]
    lines += [*shown, *filter(None, more)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return below(lines)


def clock_line(now_ms: int, links: Iterable[LinkStatus], age_s: float, pause_s: float) -> Text:
    """Return the time, the links, and the age of the figures where they are older than they should be."""
    line = Text.assemble((utc_text(now_ms)[11:], "bold"))
    for link in links:
        line.append("  ").append(link.name, "bold").append(f" {link.source} → {link.target}")
        if link.throttle:
            line.append(f" at most {bytes_text(link.throttle)}/s", "yellow")
        if link.finished_ms:
            line.append(" finished", "green")
    if age_s > pause_s + _LATE_S:
        line.append(f"  no answer for {age_s:.0f} s: older figures", "bold red")
    return line


def process_line(shot: Snapshot) -> Text:
    """Return which kinds of processes run; a mirror or controller that stands by does not count."""
    kinds = (
        ("mirror", sum(each.active for each in shot.mirrors)),
        ("router", len(shot.routers_alive)),
        ("controller", sum(each.active for each in shot.controllers)),
    )
    line = Text()
    for name, count in kinds:
        line.append("● " if count else "○ ", "green" if count else "bold red")
        line.append(f"{name}{f' × {count}' if count > 1 else ''}{'' if count else ' is not running'}  ")
    return line


def total_line(total: TopicProgress, *, narrow: bool = False) -> Text:
    """Return what is copied, how fast, and how long the rest takes."""
    parts = [f"copied {percent_text(total.copied)}"]
    if total.falls_behind:
        parts.append("falls behind")
    elif total.left_s > 0:
        parts.append(f"about {left_text(total.left_s)} left")
    if total.copied_per_s >= 0:
        parts.append(f"{count_text(total.copied_per_s)}/s" if narrow else f"{count_text(total.copied_per_s)} records/s")
    if total.copied_bytes_per_s > 0:
        parts.append(f"{bytes_text(total.copied_bytes_per_s)}/s")
    if total.written_per_s >= 0:
        parts.append(f"written {count_text(total.written_per_s)}/s")
    return Text(", ".join(parts))


def count_line(rows: Iterable[TopicRow | GroupRow], *, narrow: bool = False) -> Text:
    """Return how many topics and groups need which attention."""
    count = Counter(row.attention.need for row in rows)
    line = Text()
    for need, (mark, style) in MARKS.items():
        if count[need]:
            line.append(f"{mark} {count[need]:,}{'' if narrow else f' {_NEEDS[need]}'}  ", style)
    return line


_NEEDS = {
    Need.PERSON: "need you",
    Need.WAITS: "wait",
    Need.PROMOTING: "promoting",
    Need.COPYING: "copying",
    Need.STEADY: "caught up",
    Need.DONE: "promoted",
}


def alarms(shot: Snapshot) -> list[tuple[str, str]]:
    """Return what concerns no single topic or group, each with its style; the worst first."""
    alive = shot.routers_alive
    found = [(link.trouble, "red") for link in shot.links if link.trouble]
    mirrored = {topic.link for topic in shot.topics if not topic.at_target or topic.way_back == "open"}
    found += [
        (f"nothing is copied: no mirror of link {link} runs", "red")
        for link in sorted(mirrored - {each.link for each in shot.mirrors})
    ]
    found += [(low, "red") for link in shot.links for low in link.disk_low]
    found += [(f"router {each.name} is silent", "red") for each in shot.routers if each.instance not in alive]
    found += [(warning, "yellow") for warning in shot.warnings]
    found += [(note, "yellow") for link in shot.links for note in link.notes]
    if not shot.links:
        found.append((NO_LINK, "yellow"))
    return found
