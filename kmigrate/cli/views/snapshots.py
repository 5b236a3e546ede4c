"""A snapshot for a person: running processes, then topics and groups with the figures that decide the next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult

from kmigrate.cli.base.words import Text, below
from kmigrate.cli.views.lags import disk_text, lag_text
from kmigrate.cli.views.routers import limits_line, served_line
from kmigrate.cli.views.tables import NO_LINK, figure, full_width, phase_text, table
from kmigrate.model.amounts import time_text
from kmigrate.model.lag import Lag
from kmigrate.model.lifecycle import AT_TARGET, GROUP_AT_TARGET
from kmigrate.model.presences import RouterPresence
from kmigrate.workflow.groups.admission import refused_sentence, refused_way_on
from kmigrate.workflow.groups.misplaced import COMMITS_WAY_ON, commits_sentence, member_sentence, way_on
from kmigrate.workflow.status.attention import (
    Need,
    group_attention,
    group_reason,
    partition_problem,
    producer_text,
    topic_attention,
    written_ago,
)
from kmigrate.workflow.status.missing_credentials import MissingCredential
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, PartitionStatus, Snapshot, TopicStatus

__all__ = ["direct_rows", "group_alerts", "group_rows", "overview", "snapshot_view", "topic_detail"]


_MOST_ROWS = 500
"""Most rows of a table; laying out 10,000 rows takes a terminal ten seconds, and nobody reads so many."""


def snapshot_view(shot: Snapshot) -> RenderableType:
    """Return the processes, links, and the topics and groups that need the most attention."""
    parts, urgent = overview(shot), _urgent_first(shot)
    if shot.topics:
        parts.append(_Topics(replace(urgent, topics=urgent.topics[:_MOST_ROWS])))
        parts += _further("topics", [topic.phase for topic in urgent.topics[_MOST_ROWS:]])
    if shot.groups:
        parts.append(group_rows(urgent.groups[:_MOST_ROWS], shot.at_ms))
        parts += _further("groups", [group.phase for group in urgent.groups[_MOST_ROWS:]])
    return Group(*parts)


def _further(what: str, phases: Sequence[str]) -> list[Text]:
    """Return a line that counts topics or groups without a row."""
    if not phases:
        return []
    counted = ", ".join(f"{count:,} {phase}" for phase, count in Counter(phases).items())
    return [Text(f"and {len(phases):,} {what} that need no more attention: {counted}; --json has all", style="dim")]


def overview(shot: Snapshot) -> list[RenderableType]:
    """Return what stands above the tables: processes, links, and what concerns no single topic or group."""
    parts: list[RenderableType] = [_processes(shot)]
    routers = sorted(shot.connected.values(), key=lambda router: router.name)
    parts += [line for router in routers for line in (limits_line(router), served_line(router)) if line is not None]
    parts += [Text(f"! {warning}", style="yellow") for warning in shot.warnings]
    parts += [_without_credential(each) for each in shot.without_credential if not each.groups]
    for link in shot.links:
        parts.append(_link_line(link, shot))
        parts += [Text(f"! {low}", style="red") for low in link.disk_low]
        parts += [Text(f"! {note}", style="yellow") for note in link.notes]
    if any(link.finished_ms for link in shot.links):
        parts += [_staying(router) for router in shot.connected.values() if router.on_brokers]
    if not shot.links:
        parts.append(Text(NO_LINK))
    return parts


def _urgent_first(shot: Snapshot) -> Snapshot:
    """Return the snapshot with topics and groups in the order of the attention that they need."""
    topics = sorted(shot.topics, key=lambda topic: topic_attention(topic, shot.at_ms).need)
    groups = sorted(shot.groups, key=lambda group: group_attention(group, shot.at_ms).need)
    return replace(shot, topics=tuple(topics), groups=tuple(groups))


def _link_line(link: LinkStatus, shot: Snapshot) -> Text:
    """Return a link's name, clusters, disk use on the target, and obstacles to its copies."""
    line = Text.assemble((f"{link.name}", "bold"), f"  {link.source} → {link.target}")
    if link.throttle:
        line.append(f"  at most {link.throttle:,} bytes/s", style="yellow")
    phases = [t.phase for t in shot.topics if t.link == link.name]
    if phases:
        line.append(f"  disk on {link.target}: {disk_text(link.disk_bytes, link.disk_growth)}", style="dim")
    if link.finished_ms:
        line.append("  finished", style="green")
    if link.trouble:
        line.append(f"  {link.trouble}", style="red")
    copied = any(t.phase not in AT_TARGET or t.way_back == "open" for t in shot.topics if t.link == link.name)
    if copied and not any(m.link == link.name for m in shot.mirrors):
        line.append("  nothing is copied: no mirror of it runs", style="red")
    return line


def _processes(shot: Snapshot) -> Text:
    alive = [r for r in shot.routers if r.instance in shot.routers_alive]
    active = [m.link for m in shot.mirrors if m.active]
    count = Counter(m.link for m in shot.mirrors)
    links = ", ".join(f"{link} × {count[link]}" if count[link] > 1 else link for link in sorted(active))
    line = Text()
    for name, running in (
        (f"mirror ({links})" if active else "mirror", bool(active)),
        (f"router ({', '.join(r.bootstrap for r in alive)})" if alive else "router", bool(alive)),
        ("controller", any(c.active for c in shot.controllers)),
    ):
        line.append("● " if running else "○ ", style="green" if running else "red")
        line.append(f"{name}   ")
    for router in shot.routers:
        if router not in alive:
            line.append(f"router {router.name} is silent   ", style="red")
    return line


def _staying(router: RouterPresence) -> Text:
    """Return the clients that are still at a router although the router's links are finished."""
    clients = [client.text for client in router.clients if client.brokers]
    more = f" and {router.more_clients} clients more" if router.more_clients else ""
    return Text(f"! still at router {router.name}: {'; '.join(clients)}{more}", style="yellow")


class _Topics:
    """A table of topics that fits the terminal: with too many columns cells would be cut in the middle of numbers."""

    def __init__(self, shot: Snapshot) -> None:
        self._shot = shot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _topics(self._shot)
        if full_width(whole, console, options) <= options.max_width:
            yield whole
            return
        without_notes = _topics(self._shot, frozenset({"note"}))
        fits = full_width(without_notes, console, options) <= options.max_width
        yield without_notes if fits else _topics(self._shot, frozenset({"note", "partitions"}))
        for topic in self._shot.topics:
            if note := _note(topic, self._shot.at_ms):
                yield Text.assemble((f"{topic.topic}: ", "bold"), note)


def _topics(shot: Snapshot, without: frozenset[str] = frozenset()) -> RenderableType:
    heads = ("topic", "phase", "partitions", "source end", "target end", "lag", "offsets", "verified", "note")
    right = heads[2:6]
    made = table(*(head for head in heads if head not in without), right=right)
    for topic in shot.topics:
        cells: tuple[RenderableType, ...] = (
            topic.topic,
            Text.assemble(phase_text(topic.phase), (", paused", "yellow") if topic.paused else ""),
            str(len(topic.partitions)),
            _total([p.source_end for p in topic.partitions]),
            _total([p.target_end for p in topic.partitions]),
            lag_text(Lag(topic.lag) if "partitions" in without else Lag(topic.lag, topic.lag_bytes, topic.lag_seconds)),
            topic.offsets,
            _verified(topic),
            _note(topic, shot.at_ms),
        )
        made.add_row(*(cell for head, cell in zip(heads, cells, strict=True) if head not in without))
    return made


def _verified(topic: TopicStatus) -> Text:
    """Return how many source offsets no check has found equal yet; empty before the first check."""
    if topic.unverified < 0:
        return Text("")
    return Text(f"{topic.unverified:,} to go", style="yellow") if topic.unverified else Text("all", style="green")


_STYLES = {Need.PERSON: "red", Need.WAITS: "yellow"}


def _note(topic: TopicStatus, now_ms: int) -> Text:
    """Return the reason for attention; without a reason, losses or the longest hold, and the lag of the copy back."""
    attention = topic_attention(topic, now_ms)
    if attention.reason:
        return Text(attention.reason, style=_STYLES.get(attention.need, ""))
    losses = [f"partition {p.partition}: {_losses(p)}" for p in topic.partitions if p.losses]
    held = max((p.hold_ms for p in topic.partitions), default=-1.0)
    past = "; ".join(losses) or (f"held {held:.1f} ms" if held >= 0 else "")
    back = f"way back {lag_text(_back_lag(topic))} behind" if topic.way_back == "open" else ""
    return Text("; ".join(filter(None, (past, back))), style="dim")


def _back_lag(topic: TopicStatus) -> Lag:
    return Lag(topic.way_back_lag, -1, topic.way_back_lag_seconds)


def direct_rows(topic: TopicStatus, now_ms: int) -> RenderableType:
    """List the producers that wrote to the source without a router during the link."""
    columns = ("direct writer", "epoch", "partition", "records", "newest offset", "last wrote", "longest pause")
    made = table(*columns, right=columns[1:])
    for each in topic.direct_writers:
        made.add_row(
            producer_text(each),
            str(each.epoch),
            str(each.partition),
            f"{each.records:,}",
            figure(each.offset),
            f"{written_ago(each, now_ms)} ago",
            time_text(each.slowest_ms / 1000) if each.slowest_ms >= 0 else "",
        )
    more = topic.more_direct_writers
    return Group(made, Text(f"and {more} more, which wrote before these", style="dim")) if more else made


def _losses(part: PartitionStatus) -> str:
    named = ", ".join(f"{each.first}..{each.last} ({each.cause}, by {each.who})" for each in part.losses)
    return f"accepted as lost: {named}" if named else ""


def _state(topic: TopicStatus, part: PartitionStatus, now_ms: int) -> Text:
    """Return all problems, waits and losses of a partition."""
    if part.problem:
        return Text(partition_problem(topic, part), style="red")
    waits = part.waits_for.text(now_ms) if part.waits_for is not None else ""
    return Text.assemble(("; ".join(said for said in (part.trouble, waits) if said), "yellow"), (_losses(part), "dim"))


def topic_detail(topic: TopicStatus, now_ms: int) -> RenderableType:
    """Return a topic, partition by partition."""
    columns = ("partition", "source", "target", "lag", "verified up to", "held", "problem")
    made = table(*columns, right=("partition", "lag", "verified up to", "held"))
    for p in topic.partitions:
        made.add_row(
            str(p.partition),
            f"{figure(p.source_start)} … {figure(p.source_end)}",
            f"{figure(p.target_start)} … {figure(p.target_end)}",
            lag_text(Lag(p.lag, p.lag_bytes, p.lag_seconds)),
            f"{p.verified_to:,}" if p.verified_to >= 0 else "",
            f"{p.hold_ms:.1f} ms" if p.hold_ms >= 0 else "",
            _state(topic, p, now_ms),
        )
    late = [Text(f"✗ {each.text}", style="red" if each.missing else "dim") for each in topic.late]
    closed = f"the source topic: {topic.source_closed}; late records: {topic.on_late}{_way_back(topic)}"
    source = [Text(closed)] if topic.at_target else []
    return Group(made, *source, *late, *([direct_rows(topic, now_ms)] if topic.direct_writers else []))


def _way_back(topic: TopicStatus) -> str:
    """Return the state of a topic's way back, and how far the copy to the source is behind."""
    if not topic.way_back:
        return ""
    lag = f", {lag_text(_back_lag(topic))} records behind" if topic.way_back == "open" else ""
    return f"; way back: {topic.way_back}{lag}"


def group_rows(groups: tuple[GroupStatus, ...], now_ms: int) -> RenderableType:
    made = table("group", "mode", "phase", "on the source", "on the target", "lag", "note")
    for column in made.columns[3:6]:
        column.justify = "right"
    for group in groups:
        made.add_row(
            group.group,
            f"{group.mode}, auto" if group.auto else group.mode,
            phase_text(group.phase),
            f"{figure(-1 if group.source_members is None else len(group.source_members))} members",
            f"{figure(group.target_members)} members",
            _group_lag(group),
            _group_note(group),
        )
    return Group(made, *(line for group in groups for line in group_alerts(group, now_ms)))


def group_alerts(group: GroupStatus, now_ms: int) -> list[RenderableType]:
    """Return a line for each fact about a group that a person should act on, each with its next step."""
    without = [_without_credential(each) for each in group.without_credential]
    return [*_withheld(group), *_misplaced(group, now_ms), *without, *_refused(group)]


def _alert(what: str, style: str, next_step: str) -> RenderableType:
    """Return a warning, and its next step on a line of its own, so that a person can copy the line."""
    return below([Text(f"! {what}", style=style), Text.assemble(("  next: ", "dim"), next_step)])


def _without_credential(found: MissingCredential) -> RenderableType:
    """Return a warning about a principal without a credential, and the lines for the table, to be copied."""
    warning = [Text(f"! {found.text}", style="red"), Text.assemble(("  next: ", "dim"), found.advice)]
    return below([*warning, *(Text(f"    {line}") for line in found.lines if not found.refusal)])


def _refused(group: GroupStatus) -> list[RenderableType]:
    """Return a line for each member that the target refuses, or would refuse."""
    opened = group.phase in GROUP_AT_TARGET
    style = "red" if opened else "yellow"
    return [
        _alert(refused_sentence(group.group, each, opened=opened), style, refused_way_on(group.group, each))
        for each in group.refused
    ]


def _misplaced(group: GroupStatus, now_ms: int) -> list[RenderableType]:
    """Return a line for each member at the wrong cluster, and for commits on the source after the promote."""
    lines = [
        _alert(member_sentence(group.group, each, now_ms, there=there), "red" if there else "yellow", way_on(each))
        for members, there in ((group.misplaced, True), (group.misplaced_before, False))
        for each in members
    ]
    if commits := commits_sentence(group.group, group.late_commits):
        lines.append(_alert(commits, "yellow", COMMITS_WAY_ON))
    return lines


def _withheld(group: GroupStatus) -> list[RenderableType]:
    """Return the topics that routers withhold from members of a following group, with the next step."""
    lines = [_alert(each.said_of(group.group), "yellow", each.next) for each in group.withheld]
    if group.more_withheld:
        lines.append(Text(f"! group {group.group}: at least {group.more_withheld} topics more", style="yellow"))
    return lines


def _group_note(group: GroupStatus) -> str:
    unread = f"{group.unread:,} records before the copy were left unread" if group.unread else ""
    again = f"{group.read_again:,} records that it had read on the target were read again" if group.read_again else ""
    unplaced = _partitions("no committed position, so no lag, in", group.lag_unplaced)
    beyond = _partitions("a position beyond the log's end, so no lag, in", group.lag_beyond)
    return "; ".join(said for said in (group_reason(group), unplaced, beyond, unread, again) if said)


def _partitions(what: str, keys: tuple[tuple[str, int], ...]) -> str:
    """Return a text that names the first three of some partitions."""
    if not keys:
        return ""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{what} {', '.join(f'{topic}-{partition}' for topic, partition in keys[:3])}{more}"


def _group_lag(group: GroupStatus) -> str:
    """Return the lag; where some partitions' lag is unknown, return the known part as a lower bound."""
    partly = group.lag >= 0 and (group.lag_unplaced or group.lag_beyond)
    return f"≥ {figure(group.lag)}" if partly else figure(group.lag)


def _total(values: list[int]) -> str:
    return "?" if not values or any(v < 0 for v in values) else f"{sum(values):,}"
