"""The application behind `kmigrate status --watch` on a terminal: keys, looks at the clusters, and the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.words import Text
from kmigrate.cli.watch.columns import MARKS, group_columns, topic_columns
from kmigrate.cli.watch.details import DetailScreen, EverythingScreen, GroupScreen, Look, TopicScreen
from kmigrate.cli.watch.grid import Grid
from kmigrate.cli.watch.head import clock_line, head_lines
from kmigrate.cli.watch.rows import GroupRow, Order, TopicRow, chosen, group_rows, topic_rows
from kmigrate.errors import KmigrateError
from kmigrate.net.clock import cpu_s, monotonic, now_ms, sleep
from kmigrate.net.retry import every
from kmigrate.net.tasks import accompanied
from kmigrate.workflow.status.group_detail import GroupDetail
from kmigrate.workflow.status.progress import ProgressTracker
from kmigrate.workflow.status.snapshot import Snapshot

__all__ = ["Watch", "watch"]

_SHARE = 0.08
"""The greatest part of a processor that looks and their display take: with thousands of topics looks become rarer."""
_LONGEST_S = 30.0
"""The longest pause between two looks."""
_OF_MAIN = frozenset({"filter", "no_filter", "order", "everything"})
_FILTER_HINT = "words of a row; Enter keeps them, Escape shows all"


async def watch(
    look: Callable[[], Awaitable[Snapshot]],
    detail: Callable[[str, str], Awaitable[GroupDetail | None]],
    interval_s: float,
) -> Exit:
    """Show snapshots on the whole screen until a key or a signal ends the application; raise a look's error."""
    app = Watch(look, detail, interval_s)
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Ctrl-C in place of SIGHUP would wait for the closed terminal
    try:
        ended = await accompanied(app.run_async(), _leave_closed_terminal())
    finally:
        signal.signal(signal.SIGHUP, before)
    if app.failure is not None:
        raise app.failure
    if ended is None:
        return Exit.FAILED if app.return_code else Exit.INTERRUPTED
    return ended


async def _leave_closed_terminal() -> None:
    """End the process as SIGHUP does once its terminal is closed, also where the process was told to ignore SIGHUP.

    Textual would wait for ever to write to the closed terminal.
    """
    async for _ in every(1.0):
        if not sys.stdin.isatty():
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGHUP)


class Watch(App[Exit]):
    """Tables of topics and groups below a head, with a filter, an order, and screens of details."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: transparent; }
    #head, #about { height: auto; max-height: 40%; }
    #topics, #partitions, #read { height: 1fr; }
    #members { height: 40%; }
    #reason { height: auto; max-height: 4; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "Quit"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "order", "Sort"),
        Binding("a", "everything", "All"),
        Binding("escape", "no_filter", "No filter", show=False),
        Binding("ctrl+c", "interrupt", "Stop", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, priority=True),
    ]

    def __init__(
        self,
        look: Callable[[], Awaitable[Snapshot]],
        detail: Callable[[str, str], Awaitable[GroupDetail | None]],
        interval_s: float,
    ) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._take, self._detail, self._interval_s = look, detail, interval_s
        self.failure: Exception | None = None
        """The error that has ended the application."""
        self._tracker = ProgressTracker()
        self._look: Look | None = None
        self._looked_s = monotonic()
        self._trouble = ""
        """The reason why the last look failed, or ''."""
        self._pause_s = interval_s
        self._order = Order.ATTENTION
        self._rows: list[TopicRow | GroupRow] = []
        self._found = 0
        """Number of rows that the filter leaves."""
        self._head = Static(Text("asking both clusters"), id="head")
        self._reason = Static(id="reason")
        self._filter = Input(id="filter", placeholder=_FILTER_HINT)
        self._topics: Grid[TopicRow] = Grid(topic_columns, lambda row: row.key, "topics", opens=True)
        self._groups: Grid[GroupRow] = Grid(group_columns, lambda row: row.key, "groups", opens=True)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._topics
        yield self._groups
        yield self._reason
        yield self._filter
        yield Footer()

    def on_mount(self) -> None:
        self._topics.focus()
        self._groups.display = False
        self.set_interval(1.0, self._tick)
        self.run_worker(self._look_on())

    async def _look_on(self) -> None:
        """Look at the clusters again and again; an error before the first snapshot, or a bug, ends the application."""
        try:
            used_s = cpu_s()
            while True:
                await self._look_once()
                await sleep(self._interval_s)
                used_s, before_s = cpu_s(), used_s
                self._pause_s = max(self._interval_s, min(_LONGEST_S, (used_s - before_s) / _SHARE))
                await sleep(self._pause_s - self._interval_s)
        except Exception as error:
            self._fail(error)

    async def _look_once(self) -> None:
        """Show a new snapshot; a cluster that does not answer is named, and the last snapshot stays."""
        try:
            shot = await self._take()
        except KmigrateError as error:
            if self._look is None:
                raise
            self._trouble = error.summary
            self._tick()
            return
        self._trouble, self._looked_s = "", monotonic()
        self.show(Look(shot, self._tracker.add(shot)))

    async def _ask(self, link: str, group: str) -> GroupDetail | None:
        """Ask for one group; an error that is no answer of a cluster ends the application."""
        try:
            return await self._detail(link, group)
        except KmigrateError:
            raise
        except Exception as error:  # Textual would print the variables of all frames
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.exit(Exit.FAILED)

    def show(self, look: Look) -> None:
        """Show a look on all open screens."""
        self._look = look
        topics, groups = topic_rows(look.shot, look.progress), group_rows(look.shot, look.progress)
        self._rows = [*topics, *groups]
        self._arrange()
        for screen in self.screen_stack:
            if isinstance(screen, DetailScreen) and screen.is_mounted:
                screen.show(look)

    def _arrange(self) -> None:
        """Show the rows that the filter leaves, in the chosen order."""
        rows = chosen(self._rows, self._order, self._filter.value)
        self._found = len(rows)
        self._topics.show([row for row in rows if isinstance(row, TopicRow)])
        groups = [row for row in rows if isinstance(row, GroupRow)]
        self._groups.display = bool(groups)
        self._groups.styles.height = min(len(groups) + 1, max(3, self.size.height // 3))
        self._groups.show(groups)
        self._tick()
        self._explain()

    def _tick(self) -> None:
        """Show the time, and how old the figures are."""
        if self._look is None:
            return
        shot, progress = self._look.shot, self._look.progress
        clock = clock_line(now_ms(), shot.links, monotonic() - self._looked_s, self._pause_s)
        if self._pause_s > 2 * self._interval_s:
            clock.append(f"  every {self._pause_s:.0f} s", "dim")
        trouble = Text(f"✗ not asked: {self._trouble}" if self._trouble else "", style="bold red")
        head = head_lines(shot, progress, self._rows, clock, [trouble, self._choice()], self.size.width)
        self._head.update(head)

    def _choice(self) -> Text:
        """Return by which order and filter the rows were chosen; an empty text for all rows in the usual order."""
        order = [] if self._order is Order.ATTENTION else [f"sorted by {self._order}"]
        words = [f"{self._found} of {len(self._rows)} hold: {self._filter.value}"] if self._filter.value else []
        return Text(", ".join([*order, *words]), style="cyan")

    @on(DataTable.RowHighlighted)
    def _explain(self) -> None:
        """Show in full why the chosen row needs attention."""
        row = self._chosen
        text = Text()
        if row is not None and row.attention.reason:
            mark, style = MARKS[row.attention.need]
            text = Text.assemble((f"{mark} ", style), (row.name, "bold"), f": {row.attention.reason}")
        self._reason.update(text)

    @property
    def _chosen(self) -> TopicRow | GroupRow | None:
        return self._groups.chosen if self._groups.has_focus else self._topics.chosen

    @on(DataTable.RowSelected)
    def _open(self, event: DataTable.RowSelected) -> None:
        """Open the details of the chosen topic or group."""
        if self._look is None or isinstance(self.screen, DetailScreen):
            return
        if event.data_table is self._topics and (topic := self._topics.chosen) is not None:
            self.push_screen(TopicScreen(topic.key, self._look))
        elif event.data_table is self._groups and (group := self._groups.chosen) is not None:
            self.push_screen(GroupScreen(group.key, self._look, self._ask))

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys of the main screen on other screens."""
        return not (action in _OF_MAIN and isinstance(self.screen, DetailScreen))

    def action_leave(self) -> None:
        self.exit(Exit.OK)

    def action_interrupt(self) -> None:
        self.exit(Exit.INTERRUPTED)

    def action_order(self) -> None:
        self._order = self._order.next
        self._arrange()

    def action_everything(self) -> None:
        if self._look is not None:
            self.push_screen(EverythingScreen(self._look))

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_no_filter(self) -> None:
        self._filter.value = ""
        self._filter.display = False
        self._topics.focus()

    @on(Input.Changed, "#filter")
    def _filtered(self) -> None:
        self._arrange()

    @on(Input.Submitted, "#filter")
    def _kept(self) -> None:
        self._topics.focus()
