"""The screens of one topic, of one group, and of what concerns no single topic or group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group, RenderableType
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.snapshots import direct_rows, group_alerts, overview
from kmigrate.cli.views.tables import phase_text
from kmigrate.cli.watch.columns import MEMBER_COLUMNS, READ_COLUMNS, partition_columns
from kmigrate.cli.watch.grid import Grid
from kmigrate.cli.watch.head import total_line
from kmigrate.cli.watch.rows import ReadRow, read_rows
from kmigrate.errors import KmigrateError
from kmigrate.net.retry import every
from kmigrate.workflow.status.attention import group_attention, topic_attention
from kmigrate.workflow.status.group_detail import GroupDetail, MemberDetail
from kmigrate.workflow.status.progress import Progress
from kmigrate.workflow.status.snapshot import PartitionStatus, Snapshot

__all__ = ["DetailScreen", "EverythingScreen", "GroupScreen", "Look", "TopicScreen"]

Name = tuple[str, str]
"""A link, and a topic or group of the link."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the clusters has shown."""

    shot: Snapshot
    progress: Progress


class DetailScreen(Screen[None]):
    """A screen above the main screen; each look is shown there, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("q", "app.pop_screen", "Back", show=False),
    ]

    def show(self, look: Look) -> None:
        raise NotImplementedError


class TopicScreen(DetailScreen):
    """One topic, partition by partition."""

    def __init__(self, name: Name, look: Look) -> None:
        super().__init__()
        self._shown, self._look = name, look
        self._about = Static(id="about")
        self._grid: Grid[PartitionStatus] = Grid(lambda _: (), lambda part: part.partition, "partitions")

    def compose(self) -> ComposeResult:
        yield self._about
        yield self._grid
        yield Footer()

    def on_mount(self) -> None:
        self.show(self._look)

    def show(self, look: Look) -> None:
        self._look = look
        topic = next((each for each in look.shot.topics if (each.link, each.topic) == self._shown), None)
        if topic is None:
            self._about.update(Text(f"topic {self._shown[1]} is not mirrored any more"))
            return
        moved = look.progress.topic(topic)
        parts: list[RenderableType] = [
            Text.assemble((topic.topic, "bold"), f"  link {topic.link}  ", phase_text(topic.phase)),
            total_line(moved),
        ]
        if reason := topic_attention(topic, look.shot.at_ms, moved).reason:
            parts.append(Text(reason, style="yellow"))
        if topic.direct_writers:
            parts.append(direct_rows(topic, look.shot.at_ms))
        self._about.update(Group(*parts))
        columns = partition_columns(topic)
        self._grid.show_columns(lambda _: columns, topic.partitions)


class GroupScreen(DetailScreen):
    """One group: its members, and the lag of each partition, asked for while the screen is open."""

    def __init__(self, name: Name, look: Look, ask: Callable[[str, str], Awaitable[GroupDetail | None]]) -> None:
        super().__init__()
        self._shown, self._look, self._ask = name, look, ask
        self._members: Grid[MemberDetail] = Grid(
            lambda _: MEMBER_COLUMNS, lambda each: (each.place, each.member_id, each.client_id), "members"
        )
        self._read: Grid[ReadRow] = Grid(
            lambda _: READ_COLUMNS, lambda row: (row.partition.topic, row.partition.partition), "read"
        )
        self._trouble = "asking both clusters"
        self._about = Static(id="about")

    def compose(self) -> ComposeResult:
        yield self._about
        yield self._members
        yield self._read
        yield Footer()

    def on_mount(self) -> None:
        self.show(self._look)
        self.run_worker(self._follow(), exclusive=True)

    def show(self, look: Look) -> None:
        self._look = look
        group = next((each for each in look.shot.groups if (each.link, each.group) == self._shown), None)
        if group is None:
            self._about.update(Text(f"group {self._shown[1]} is not mirrored any more"))
            return
        mode = f"{group.mode}, auto" if group.auto else group.mode
        title = Text.assemble((group.group, "bold"), f"  link {group.link}, {mode}  ", phase_text(group.phase))
        reason = group_attention(group, look.shot.at_ms, look.progress.group(group)).reason
        lines = [Text(each, style="yellow") for each in (reason, self._trouble) if each]
        self._about.update(Group(title, *lines, *group_alerts(group, look.shot.at_ms)))

    async def _follow(self) -> None:
        """Ask for the members and positions again and again; Textual cancels this with the screen."""
        async for _ in every(_DETAIL_S, at_once=True):
            try:
                detail = await self._ask(*self._shown)
            except KmigrateError as error:
                self._trouble = error.what
            else:
                self._trouble = detail.trouble if detail is not None else ""
                self._members.show(detail.members if detail is not None else ())
                self._read.show(read_rows(detail) if detail is not None else ())
            self.show(self._look)


_DETAIL_S = 2.0
"""Seconds between two looks at one group."""


class EverythingScreen(DetailScreen):
    """All that concerns no single topic or group, in full: processes, routers' limits, notes, warnings."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._about = Static(id="about")

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._about
        yield Footer()

    def on_mount(self) -> None:
        self.show(self._look)

    def show(self, look: Look) -> None:
        self._about.update(Group(*overview(look.shot)))
