"""Windows: batches and the holes behind them that leave together, in one round trip (`lane`, L and O). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from kmigrate.mirror.partition.steps import Append, Hole, Step

__all__ = ["LONG", "Part", "Window", "parts_of"]

LONG = 64
"""Most holes of a long window (`lane`, O)."""
_MOST_STEPS = 256
_MOST_MARKERS = 256
"""Most markers of a window; a longer hole is filled alone."""
_MOST_BYTES = 1 << 20
"""Most bytes of a window's batches: the time that larger batches take is much longer than a round trip."""


class Part(NamedTuple):
    """Batches without a hole between them, and the hole right behind the batches."""

    appends: tuple[Append, ...]
    hole: Hole


class Window(NamedTuple):
    """Parts that are sent together."""

    parts: tuple[Part, ...]
    epoch: int
    """Producer epoch of the markers."""

    @property
    def appends(self) -> list[Append]:
        return [append for part in self.parts for append in part.appends]

    @property
    def end(self) -> int:
        """The log end once everything is stored."""
        return self.parts[-1].hole.end


def parts_of(
    queue: Iterable[Step],
    start: int,
    *,
    holes: int = 1,
    barrier: int | None = None,
    goes_alone: Callable[[Append], bool] = lambda _: False,
) -> tuple[Part, ...]:
    """Return the parts of a window at the head of a queue, from offset `start` on; empty if there must be no window.

    A window has at most so many `holes`. The last hole ends at the `barrier` at the latest.
    """
    found: list[Part] = []
    appends: list[Append] = []
    at, size, markers = start, 0, 0
    for step in islice(queue, _MOST_STEPS):
        beyond = barrier is not None and step.start >= barrier
        if beyond or step.start != at or len(found) == holes:
            break
        at = step.end
        if isinstance(step, Append):
            size += len(step.view)
            if size > _MOST_BYTES or goes_alone(step):
                break
            appends.append(step)
            continue
        end = at if barrier is None else min(at, barrier)
        markers += end - step.start
        if not appends or markers > _MOST_MARKERS:
            break
        found.append(Part(tuple(appends), step if end == at else Hole(step.start, end)))
        appends = []
    return tuple(found)
