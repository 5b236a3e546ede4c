"""The columns of topics, groups, partitions and members. Pure."""

from __future__ import annotations

from kmigrate.cli.views.group_detail import partitions_text, place_text
from kmigrate.cli.views.tables import figure, phase_text
from kmigrate.cli.watch.fitting import Cell, Column
from kmigrate.cli.watch.rows import GroupRow, ReadRow, TopicRow
from kmigrate.model.amounts import bytes_text, count_text, left_text, percent_text, time_text
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.workflow.status.attention import Need, partition_problem
from kmigrate.workflow.status.group_detail import MemberDetail, PartitionDetail
from kmigrate.workflow.status.snapshot import PartitionStatus, TopicStatus

__all__ = ["MARKS", "MEMBER_COLUMNS", "READ_COLUMNS", "group_columns", "partition_columns", "topic_columns"]

MARKS: dict[Need, Cell] = {
    Need.PERSON: ("✗", "bold red"),
    Need.WAITS: ("!", "bold yellow"),
    Need.PROMOTING: ("»", "bold yellow"),
    Need.COPYING: ("↓", "cyan"),
    Need.STEADY: ("●", "green"),
    Need.DONE: ("✓", "green"),
}


_LONG_S = 99 * 86_400
_WIDE = 110
"""Width of a terminal in which the mode of a group is shown whole."""


def _mark(row: TopicRow | GroupRow) -> Cell:
    return MARKS[row.attention.need]


def _name(row: TopicRow | GroupRow) -> Cell:
    return row.name, "bold" if row.attention.need is Need.PERSON else ""


def _why(row: TopicRow | GroupRow) -> Cell:
    urgent = row.attention.need <= Need.WAITS
    return row.attention.reason, MARKS[row.attention.need][1].removeprefix("bold ") if urgent else "dim"


def _lag(lag: int) -> Cell:
    return count_text(lag), "" if lag else "dim"


def _phase(phase: str) -> Cell:
    return phase, str(phase_text(phase).style)


def _topic_state(row: TopicRow) -> Cell:
    stopped = sum(bool(part.problem) for part in row.status.partitions)
    if stopped:
        return f"{stopped} of {len(row.status.partitions)} stopped", "bold red"
    paused = row.status.paused and row.status.phase is TopicPhase.MIRRORING
    return ("paused", "yellow") if paused else _phase(row.status.phase)


def _rate(rate: float) -> Cell:
    return ("", "") if rate < 0 else (count_text(rate), "" if rate else "dim")


def _topic_left(row: TopicRow) -> Cell:
    return _left(row.progress.left_s, falls_behind=row.progress.falls_behind)


def _group_left(row: GroupRow) -> Cell:
    return _left(row.progress.left_s, falls_behind=row.progress.falls_behind)


def _left(seconds: float, *, falls_behind: bool) -> Cell:
    if falls_behind:
        return "grows", "yellow"
    if seconds <= 0:
        return ("-" if seconds == 0 else "", "dim")
    return (left_text(seconds) if seconds < _LONG_S else ">99 d"), ""


def _bytes(rate: float) -> Cell:
    return ("", "") if rate < 0 else (bytes_text(rate), "" if rate else "dim")


def _verified(row: TopicRow) -> Cell:
    left = row.status.unverified
    return ("", "") if left < 0 else ("all", "green") if left == 0 else (f"{count_text(left)} left", "yellow")


def topic_columns(room: int) -> tuple[Column[TopicRow], ...]:
    """Return the columns of topics."""
    return (
        Column("", 1, _mark, 0),
        Column("topic", _name_width(room), _name, 1, stretch=1, middle=True),
        Column("state", 15, _topic_state, 5),
        Column("copied", 6, lambda row: (percent_text(row.progress.copied), ""), 2, right=True),
        Column("lag", 5, lambda row: _lag(row.lag), 3, right=True),
        Column("left", 7, _topic_left, 4, right=True),
        Column("age", 7, lambda row: (_age(row.status.lag_seconds), ""), 8, right=True),
        Column("in/s", 5, lambda row: _rate(row.progress.written_per_s), 6, right=True),
        Column("copy/s", 6, lambda row: _rate(row.progress.copied_per_s), 7, right=True),
        Column("bytes/s", 7, lambda row: _bytes(row.progress.copied_bytes_per_s), 10, right=True),
        Column("parts", 5, lambda row: (str(len(row.status.partitions)), "dim"), 11, right=True),
        Column("verified", 10, _verified, 12),
        Column("why", 24, _why, 9, stretch=2),
    )


def _name_width(room: int) -> int:
    return 9 if room < 60 else 18 if room < 100 else 28


def _age(seconds: float) -> str:
    return "" if seconds < 0 else "-" if seconds == 0 else time_text(seconds)


def _members(count: int) -> Cell:
    return ("?", "dim") if count < 0 else (str(count), "" if count else "dim")


def _at_routers(row: GroupRow) -> Cell:
    return (
        ("", "")
        if row.status.router_members < 0 and row.attention.need is Need.DONE
        else _members(row.status.router_members)
    )


def _group_lag(row: GroupRow) -> Cell:
    partly = row.lag >= 0 and (row.status.lag_unplaced or row.status.lag_beyond)
    return (f"≥{count_text(row.lag)}", "") if partly else _lag(row.lag)


def _mode(row: GroupRow) -> Cell:
    return f"{row.status.mode}, auto" if row.status.auto else row.status.mode, ""


def group_columns(room: int) -> tuple[Column[GroupRow], ...]:
    """Return the columns of groups; in a narrow terminal heads are short, and `auto` stands in the details alone."""
    router, target = ("at router", "on target") if room >= 70 else ("router", "target")
    mode: Column[GroupRow] = Column("mode", 6, lambda row: (row.status.mode, ""), 8)
    if room >= _WIDE:
        mode = Column("mode", 12, _mode, 8)
    return (
        Column("", 1, _mark, 0),
        Column("group", _name_width(room), _name, 1, stretch=1, middle=True),
        Column("state", 9, lambda row: _phase(row.status.phase), 6),
        mode,
        Column("direct", 6, lambda row: _members(row.status.at_source), 2, right=True),
        Column(router, len(router), _at_routers, 3, right=True),
        Column(target, len(target), lambda row: _members(row.status.target_members), 4, right=True),
        Column("lag", 5, _group_lag, 5, right=True),
        Column("left", 7, _group_left, 7, right=True),
        Column("why", 24, _why, 9, stretch=2),
    )


# one topic


def partition_columns(topic: TopicStatus) -> tuple[Column[PartitionStatus], ...]:
    """Return the columns of a topic's partitions."""
    return (
        Column("#", 5, lambda part: (str(part.partition), ""), 0, right=True),
        Column("source end", 13, lambda part: (figure(part.source_end), ""), 2, right=True),
        Column("target end", 13, lambda part: (figure(part.target_end), ""), 3, right=True),
        Column("lag", 5, lambda part: _lag(part.lag), 1, right=True),
        Column("age", 6, lambda part: (_age(part.lag_seconds), ""), 4, right=True),
        Column("leaders", 9, lambda part: (f"{_broker(part.source_leader)} → {_broker(part.target_leader)}", ""), 5),
        Column("verified to", 13, lambda part: (f"{part.verified_to:,}" if part.verified_to >= 0 else "", ""), 8,
               right=True),
        Column("held", 8, lambda part: (f"{part.hold_ms:.1f} ms" if part.hold_ms >= 0 else "", ""), 7, right=True),
        Column("problem", 12, lambda part: _problem(topic, part), 6, stretch=1),
    )  # fmt: skip


def _broker(node: int) -> str:
    return str(node) if node >= 0 else "?"


def _problem(topic: TopicStatus, part: PartitionStatus) -> Cell:
    return (partition_problem(topic, part), "red") if part.problem else (part.trouble, "yellow")


# one group


def _assigned(member: MemberDetail) -> Cell:
    return (partitions_text(member.assigned), "") if member.member_id else ("waits for the promote", "yellow")


MEMBER_COLUMNS: tuple[Column[MemberDetail], ...] = (
    Column("at", 6, lambda each: (each.place, str(place_text(each.place).style)), 0),
    Column("client id", 12, lambda each: (each.client_id, ""), 1, stretch=1, middle=True),
    Column("host", 15, lambda each: (each.host, ""), 2),
    Column("partitions", 16, _assigned, 3, stretch=2),
    Column("member id", 12, lambda each: (each.member_id, "dim"), 4, stretch=3),
)


def _committed(each: PartitionDetail) -> str:
    return f"{each.committed:,}" if each.committed >= 0 else "none"


READ_COLUMNS: tuple[Column[ReadRow], ...] = (
    Column("topic", 12, lambda row: (row.partition.topic, ""), 0, stretch=1, middle=True),
    Column("#", 5, lambda row: (str(row.partition.partition), ""), 1, right=True),
    Column("lag", 5, lambda row: _lag(row.partition.lag), 2, right=True),
    Column("committed", 13, lambda row: (_committed(row.partition), ""), 3, right=True),
    Column("log end", 13, lambda row: (figure(row.partition.end), ""), 4, right=True),
    Column("read by", 12, lambda row: (row.reader or "nobody", "" if row.reader else "yellow"), 5, stretch=2),
)
