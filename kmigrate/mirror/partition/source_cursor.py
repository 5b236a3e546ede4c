"""A lane's place in the source's log: the offset to read next, and the causes that hold its reading back. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kmigrate.mirror.partition.reactions import pause_s
from kmigrate.mirror.partition.steps import Reading

__all__ = ["SourceCursor"]


@dataclass(slots=True, eq=False)
class SourceCursor:
    """The reading side of a lane; only the lane changes its cursor."""

    live_from: int = -1
    """The source's log end when the link began to mirror this partition; −1: set by the first fetch response."""
    read_at: int = -1
    leader_epoch: int = -1
    log_end: int = -1
    stable_end: int = -1
    first_end: int = -1
    """The source's log end in the first fetch response: the write times of the batches below are unknown."""
    cut_to: int | None = None
    """End of the log after the source was cut (W7), until the target's tail shows what the target holds."""
    looking: bool = False
    """True while a task checks what became of the topic or of the offset to read: nothing is read meanwhile."""
    rest: Callable[[], Reading] | None = None
    """The rest of a fetch response, from `read_at` on, that a thread reads: nothing else is read meanwhile."""
    retry_at: float = 0.0
    """Time from which the source may be asked again after an error, on the monotonic clock."""
    failures: int = 0
    trouble: str = ""
    """The present trouble of reading; cleared by the next success."""
    unfilled_at: int = -1
    """Offset at which a fetch response was empty although the stable end is beyond.

    Other partitions may have filled that response.
    """
    empty_at: int = -1
    """Offset at which a fetch of this partition alone had such an empty response."""

    def failed(self, trouble: str, now: float, *, named: bool) -> None:
        """Note an error of reading, and pause before the next try."""
        self.failures += 1
        self.trouble = trouble
        self.retry_at = now + pause_s(self.failures, named=named)
