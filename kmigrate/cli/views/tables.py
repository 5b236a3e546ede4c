"""Tables of links, topics, groups and parity in a common look: no frame, a rule under the head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement

from kmigrate.cli.base.words import SafeTable, Text, below
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.parity.report import ParityReport
from kmigrate.report.check import differs, place_text
from kmigrate.workflow.groups.audit import GroupAudit
from kmigrate.workflow.promote.late_findings import LateFound

__all__ = [
    "NO_LINK",
    "audits_view",
    "facts",
    "figure",
    "full_width",
    "groups_table",
    "late_view",
    "links_table",
    "lookup_lines",
    "parity_view",
    "phase_text",
    "table",
    "topics_table",
]

_PHASE_STYLES: dict[str, str] = {
    TopicPhase.MIRRORING: "cyan",
    TopicPhase.PROMOTE_PENDING: "yellow",
    TopicPhase.FENCING: "bold yellow",
    TopicPhase.FENCED: "bold yellow",
    TopicPhase.PROMOTED: "green",
    TopicPhase.ROLLBACK_PENDING: "yellow",
    TopicPhase.ROLLBACK_FENCING: "bold yellow",
    TopicPhase.ROLLBACK_FENCED: "bold yellow",
    GroupPhase.MIRRORED: "cyan",
    GroupPhase.PROMOTING: "yellow",
    GroupPhase.ROLLING_BACK: "yellow",
}
_SHOWN_EXAMPLES = 20

NO_LINK = "no link yet: kmigrate link create NAME --source CLUSTER --target CLUSTER"


def phase_text(phase: str) -> Text:
    return Text(phase, style=_PHASE_STYLES.get(phase, ""))


def table(*columns: str, title: str = "", right: Sequence[str] = ()) -> SafeTable:
    head = Text(title) if title else None
    made = SafeTable(box=box.SIMPLE_HEAD, title=head, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def figure(value: int) -> str:
    """Return a figure with thousands separators; `?` stands for an unknown figure, which is negative."""
    return f"{value:,}" if value >= 0 else "?"


def full_width(view: RenderableType, console: Console, options: ConsoleOptions) -> int:
    """Return the width in columns at which no part of a view is cut."""
    return Measurement.get(console, options.update(max_width=10_000), view).maximum


def facts(pairs: Iterable[tuple[str, str | Text]]) -> SafeTable:
    """Return names and values side by side, as `show` prints them."""
    made = SafeTable(box=None, padding=(0, 2), show_header=False, pad_edge=False, collapse_padding=True)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value)
    return made


def links_table(links: Sequence[LinkRecord]) -> RenderableType:
    if not links:
        return Text(NO_LINK)
    made = table("link", "source", "target", "bootstrap of the source")
    for link in links:
        made.add_row(link.name, link.source.name, link.target.name, link.source.bootstrap)
    return made


def topics_table(topics: Sequence[TopicRecord]) -> RenderableType:
    if not topics:
        return Text("no topic is mirrored: kmigrate topic mirror TOPIC...")
    made = table("topic", "link", "phase", "partitions", "from", "reason", right=("partitions",))
    for topic in topics:
        phase, partitions = phase_text(topic.phase), str(topic.partitions)
        made.add_row(topic.topic, topic.link, phase, partitions, topic.start, topic.hindrance)
    return made


def groups_table(groups: Sequence[GroupRecord]) -> RenderableType:
    if not groups:
        return Text("no group is mirrored: kmigrate group mirror GROUP...")
    made = table("group", "link", "mode", "phase", "reason")
    for group in groups:
        mode = f"{group.mode}, auto" if group.auto else group.mode
        made.add_row(group.group, group.link, mode, phase_text(group.phase), group.hindrance)
    return made


def audits_view(audits: Sequence[GroupAudit]) -> RenderableType:
    """Return the committed offsets of promoted groups: how many are correct, and which are wrong."""
    made = table("group", "positions", "what is wrong", right=("positions",))
    for audit in audits:
        wrong = [
            f"{each.topic}-{each.partition} {each.fault}: {each.handed_over:,} handed over, "
            f"{f'{each.now:,}' if each.now >= 0 else 'none'} now"
            for each in audit.findings
        ]
        style = "green" if not wrong else "yellow" if audit.sound else "bold red"
        made.add_row(audit.group, str(audit.positions), below(Text(each, style=style) for each in wrong or ["nothing"]))
    return made


def late_view(late: Sequence[LateFound]) -> RenderableType:
    """Return a line for each finding of late writes, which the source took after a flip."""
    return Group(*(Text(f"✗ {each.text}", style="bold red" if each.missing else "dim") for each in late))


def lookup_lines(report: ParityReport) -> list[str]:
    """Return lines on partitions whose look-ups by time differ, at most 20 lines."""
    shown = [*report.late_lookups, *report.early_lookups][:_SHOWN_EXAMPLES]
    return [
        f"look-up by time {each.topic}-{each.partition}: for {each.time} the source names "
        f"{_named_offset(each.source)}, the target {_named_offset(each.target)} "
        + (
            f"({each.late} of {each.compared} too late: a reader would skip records)"
            if each.late
            else f"({each.early} of {each.compared} too early: its control markers bear the time of the copy; a reader "
            "at a router is answered as at the source)"
        )
        for each in shown
    ]


def _named_offset(offset: int) -> str:
    return f"offset {offset:,}" if offset >= 0 else "no record"


def parity_view(report: ParityReport) -> RenderableType:
    """Return both counts and the verdict per topic, then the named anomalies."""
    made = table("topic", "partitions", "source", "target", "digest", "mismatches", right=("partitions", "source"))
    for column in made.columns[3:4] + made.columns[5:]:
        column.justify = "right"
    for row in report.topics:
        same = Text("equal", style="green") if row.digest_equal else Text("differs", style="bold red")
        made.add_row(
            row.topic,
            str(row.partitions),
            f"{row.source_records:,}",
            f"{row.target_records:,}",
            same,
            str(row.mismatches),
        )
    parts: list[RenderableType] = [made]
    if report.examples:
        named = table("anomaly", "topic", "on the source", "on the target", "what differs")
        for each in report.examples[:_SHOWN_EXAMPLES]:
            named.add_row(each.kind.value, each.topic, place_text(each.source), place_text(each.target), differs(each))
        parts.append(named)
        counts = ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items() if count)
        parts.append(Text(f"{counts} (the first {min(len(report.examples), _SHOWN_EXAMPLES)} shown)"))
    for buckets, why in (
        (report.unexamined_buckets, "were not read again: too many records"),
        (report.unnamed_buckets, "differ, and no record could be named"),
    ):
        if buckets:
            parts.append(Text(f"{buckets:,} {'bucket' if buckets == 1 else 'buckets'} {why}", style="yellow"))
    parts += [Text(line, style="yellow") for line in lookup_lines(report)]
    verdict = f"{report.records:,} records of {len(report.topics)} topics"
    if report.verified_before:
        verdict += f"; {report.verified_before:,} offsets before them were found equal by earlier checks"
    parts.append(
        Text(f"✓ equal: {verdict}", style="green")
        if report.equal
        else Text(f"✗ {report.mismatches} mismatches in {verdict}", style="bold red")
    )
    return Group(*parts)
