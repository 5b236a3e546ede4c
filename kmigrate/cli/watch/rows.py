"""Topics and groups as rows, the order of rows, and the filter. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kmigrate.cli.views.group_detail import reader_names
from kmigrate.workflow.status.attention import Attention, group_attention, topic_attention
from kmigrate.workflow.status.group_detail import GroupDetail, PartitionDetail
from kmigrate.workflow.status.progress import GroupProgress, Progress, TopicProgress
from kmigrate.workflow.status.snapshot import GroupStatus, Snapshot, TopicStatus

__all__ = ["GroupRow", "Order", "ReadRow", "TopicRow", "chosen", "group_rows", "read_rows", "topic_rows"]


class Order(StrEnum):
    """The order of the rows."""

    ATTENTION = "attention"
    """What needs attention first, then the largest lag."""
    NAME = "name"
    LAG = "lag"
    RATE = "rate"
    """The most records per second first."""

    @property
    def next(self) -> Order:
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic with its progress and the attention that the topic needs."""

    status: TopicStatus
    progress: TopicProgress
    attention: Attention

    @property
    def key(self) -> tuple[str, str]:
        return self.status.link, self.status.topic

    @property
    def name(self) -> str:
        return self.status.topic

    @property
    def lag(self) -> int:
        return self.status.lag

    @property
    def rate(self) -> float:
        return max(self.progress.copied_per_s, self.progress.written_per_s)

    @property
    def words(self) -> str:
        """The text that a filter searches."""
        return f"{self.status.link} {self.status.topic} {self.status.phase} {'paused' if self.status.paused else ''}"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group with its progress and the attention that the group needs."""

    status: GroupStatus
    progress: GroupProgress
    attention: Attention

    @property
    def key(self) -> tuple[str, str]:
        return self.status.link, self.status.group

    @property
    def name(self) -> str:
        return self.status.group

    @property
    def lag(self) -> int:
        return self.status.lag

    @property
    def rate(self) -> float:
        return abs(self.progress.gained_per_s or 0.0)

    @property
    def words(self) -> str:
        """The text that a filter searches."""
        return f"{self.status.link} {self.status.group} {self.status.phase} {self.status.mode}"


def topic_rows(shot: Snapshot, progress: Progress) -> list[TopicRow]:
    made = []
    for topic in shot.topics:
        moved = progress.topic(topic)
        made.append(TopicRow(topic, moved, topic_attention(topic, shot.at_ms, moved)))
    return made


def group_rows(shot: Snapshot, progress: Progress) -> list[GroupRow]:
    made = []
    for group in shot.groups:
        moved = progress.group(group)
        made.append(GroupRow(group, moved, group_attention(group, shot.at_ms, moved)))
    return made


def chosen(rows: Sequence[TopicRow | GroupRow], order: Order, wanted: str) -> list[TopicRow | GroupRow]:
    """Return the rows that hold every word of a filter, in the order."""
    words = wanted.lower().split()
    found = [row for row in rows if all(word in row.words.lower() for word in words)]
    match order:
        case Order.ATTENTION:
            found.sort(key=lambda row: (row.attention.need, -row.lag, row.key))
        case Order.NAME:
            found.sort(key=lambda row: (row.name, row.key))
        case Order.LAG:
            found.sort(key=lambda row: (-row.lag, row.key))
        case Order.RATE:
            found.sort(key=lambda row: (-row.rate, row.key))
    return found


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A partition that the group reads, with the name of its reader."""

    partition: PartitionDetail
    reader: str


def read_rows(detail: GroupDetail) -> list[ReadRow]:
    """Return the partitions of a group, the largest lag first."""
    names = reader_names(detail)
    rows = [ReadRow(each, names.get(each.reader, each.reader)) for each in detail.partitions]
    return sorted(rows, key=lambda row: (-row.partition.lag, row.partition.topic, row.partition.partition))
