"""Windows: batches and the holes behind them leave together, in one round trip (`partition/lane.py`, L and O)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kmigrate.errors import Failed
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.markers import NOT_SENT, Filling, Made, Marking, Piece
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.window import Window
from kmigrate.net.clock import monotonic, now_ms

__all__ = ["WindowSender"]


class WindowSender:
    """Sends the windows of lanes; `answered` is called for each lane whose window has ended."""

    def __init__(self, context: CopyContext, *, answered: Callable[[Lane], None]) -> None:
        self._context = context
        self._answered = answered
        self._sent: dict[Lane, tuple[Window, int]] = {}
        """The window of each lane that is in flight, and the term under which the window was sent."""
        self._closed = False

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def send(self, lane: Lane) -> None:
        """Have a lane's window leave with the next group; if there must be no window, the batch goes alone."""
        head, holes = lane.target.head, self._context.holes
        if head is None or self._context.must_go_alone(head) or not holes.takes_windows(lane.key):
            self._go_alone(lane)
            return
        holes.add(
            Filling(lane.key, partial(self._begin, lane), partial(self._ended, lane), partial(self._failed, lane))
        )

    def _go_alone(self, lane: Lane) -> None:
        lane.forbid_windows()
        self._context.signals.wake()

    def _begin(self, lane: Lane) -> Marking | None:
        """Return a lane's writes; nothing is awaited between this look at the owner term and the requests."""
        if self._closed or not lane.window_due:
            return None
        if lane.look_again(monotonic()):
            self._move_on(lane)
            return None
        term = self._context.owner_term(lane.key)
        window = self._window(lane, term) if term else None
        if window is None:
            self._go_alone(lane)
            return None
        self._sent[lane] = window, term
        pieces = [Piece(hole.end - hole.start, [append.view for append in appends]) for appends, hole in window.parts]
        return Marking(pieces, window.end, window.epoch, term)

    def _window(self, lane: Lane, term: int) -> Window | None:
        holes = self._context.holes.most_holes(lane.topic)
        return lane.begin_window(term, holes=holes, goes_alone=self._context.must_go_alone)

    def _ended(self, lane: Lane, made: Made) -> None:
        if lane not in self._sent:
            if made == NOT_SENT:
                self._go_alone(lane)
            return
        window, term = self._sent.pop(lane)
        if made.error:
            self._context.signals.call_for_look()
            lane.window_refused(window, made.error)
        elif made.end != window.end:
            lane.window_failed(window, "the target's log moved")
        elif lane.window_stored(window, term):
            now = now_ms()
            for append in window.appends:
                lane.tally.copied(append, now)
        self._move_on(lane)

    def _failed(self, lane: Lane, error: Failed) -> None:
        window, _ = self._sent.pop(lane)
        self._context.signals.call_for_look()
        lane.window_failed(window, error.what)
        self._move_on(lane)

    def _move_on(self, lane: Lane) -> None:
        self._answered(lane)
        if lane.target.head is None or lane.holds_back:
            self._context.signals.wake_readers()
        else:
            self._context.signals.wake()
