"""Defines why a mirrored partition stands still, and what a person may do about the stop.

A stop is in the topic's record, so that no mirror silently continues past the stop. Only `topic resume` removes a stop.
An accepted loss (person, offsets, time, cause) stays in the record as long as the copy to which the loss belongs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kmigrate.model.words import advised, delete_unneeded

__all__ = ["DISK_LOW", "OWNER_UNSURE", "RANGE_LOST", "WITHOUT_BATCH", "AcceptedLoss", "PartitionStop", "Remedy"]

RANGE_LOST = "source-range-lost"
"""Reference of a stop: records were deleted on the source before the copy; if accepted, a hole on the target."""
WITHOUT_BATCH = "source-without-batch"
"""Reference of a wait, not a stop: no batch up to the source's end; only the next write proves that none is missing."""

DISK_LOW = "target-disk-low"
"""Reference of a wait, not of a stop: a target broker has little room; the copy goes on once there is more."""

OWNER_UNSURE = "whether this process still owns the partition is not confirmed"
"""Trouble of a process whose presence was stored late: another may own the partition, so no marker is written."""


class Remedy(StrEnum):
    """The way in which a stopped partition gets on again."""

    AGAIN = "again"
    """`topic resume`: both logs are read anew, and a remaining problem stops the partition again."""
    ACCEPT_LOSS = "accept-loss"
    """`topic resume --accept-loss` with exactly the offsets that the stop names."""
    ANEW = "anew"
    """The target holds what it should not: delete the target topic, then `topic resume` copies it from its start."""


_MENDED_BY = {"large-gap": "raise the limit: kmigrate link alter {link} --set hole_limit=N"}
"""Remedies for stops that a setting of the link causes."""


@dataclass(frozen=True, slots=True)
class PartitionStop:
    """The stop of a partition."""

    ref: str
    what: str
    remedy: Remedy = Remedy.AGAIN
    first: int = -1
    last: int = -1
    """Last lost offset; `first` and `last` are included, and −1 if no offsets are lost."""
    at_ms: int = 0

    @property
    def text(self) -> str:
        return f"{self.ref}: {self.what}"

    @property
    def lost(self) -> str:
        """The lost offsets as `--accept-loss` takes them, or ''."""
        return f"{self.first}..{self.last}" if self.first >= 0 else ""

    def way_on(self, link: str, topic: str, partition: int) -> str:
        """Return the command that helps, as a person types it."""
        match self.remedy:
            case Remedy.AGAIN:
                first = _MENDED_BY.get(self.ref, "mend the cause").format(link=link)
                return f"{first}, then: {advised(f'topic resume --partition {partition}', link, topic)}"
            case Remedy.ACCEPT_LOSS:
                return advised(f"topic resume --partition {partition} --accept-loss {self.lost}", link, topic)
            case Remedy.ANEW:
                return f"{delete_unneeded(topic)}, then: {advised('topic resume', link, topic)}"


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Source offsets that a person gave up: a hole on the target, or former records if the source's log was cut."""

    first: int
    last: int
    cause: str
    at_ms: int
    who: str

    def covers(self, first: int, last: int) -> bool:
        return self.first <= first and last <= self.last
