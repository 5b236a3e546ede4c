"""Why a mirrored partition stands still, and what a person may do about it.

A stop is written into the topic's record, so that neither a restarted mirror nor another process goes on over it
in silence; only `topic resume` takes it out again. An accepted loss stays in the record as long as the copy it
belongs to: who gave which offsets up, when, and why they were gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kmigrate.model.words import advised, delete_unneeded

__all__ = ["DISK_LOW", "RANGE_LOST", "WITHOUT_BATCH", "AcceptedLoss", "PartitionStop", "Remedy"]

RANGE_LOST = "source-range-lost"
"""Deleted on the source before it was copied; once that is accepted, a hole on the target."""
WITHOUT_BATCH = "source-without-batch"
"""No stop: the source's log has no batch up to its end, and only what is written next shows that there is none."""

DISK_LOW = "target-disk-low"
"""No stop: a broker of the target has little room left, and the copy goes on once there is more."""


class Remedy(StrEnum):
    """How a stopped partition gets on again."""

    AGAIN = "again"
    """`topic resume`: both logs are read anew, and what is still wrong stops it again."""
    ACCEPT_LOSS = "accept-loss"
    """`topic resume --accept-loss` with exactly the offsets that the stop names."""
    ANEW = "anew"
    """The target holds what it should not: delete the target topic, then `topic resume` copies it from its start."""


_MENDED_BY = {"large-gap": "raise hole_limit of [mirror], start the mirror anew"}
"""What helps where the cause is a setting of kmigrate's own."""


@dataclass(frozen=True, slots=True)
class PartitionStop:
    """One stopped partition."""

    ref: str
    what: str
    remedy: Remedy = Remedy.AGAIN
    first: int = -1
    last: int = -1
    """The offsets that are lost, both included; −1 where nothing is."""
    at_ms: int = 0

    @property
    def text(self) -> str:
        return f"{self.ref}: {self.what}"

    @property
    def lost(self) -> str:
        """The lost offsets as `--accept-loss` takes them, or ''."""
        return f"{self.first}..{self.last}" if self.first >= 0 else ""

    def way_on(self, link: str, topic: str, partition: int) -> str:
        """The command that helps, as a person types it."""
        match self.remedy:
            case Remedy.AGAIN:
                first = _MENDED_BY.get(self.ref, "mend the cause")
                return f"{first}, then: {advised(f'topic resume --partition {partition}', link, topic)}"
            case Remedy.ACCEPT_LOSS:
                return advised(f"topic resume --partition {partition} --accept-loss {self.lost}", link, topic)
            case Remedy.ANEW:
                return f"{delete_unneeded(topic)}, then: {advised('topic resume', link, topic)}"


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Source offsets that a person gave up: they are a hole on the target, or what it held before the source's cut."""

    first: int
    last: int
    cause: str
    at_ms: int
    who: str

    def covers(self, first: int, last: int) -> bool:
        return self.first <= first and last <= self.last
