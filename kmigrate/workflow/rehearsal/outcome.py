"""The report of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.model.reports import Pause, ReportRecord

__all__ = ["MovedGroup", "Rehearsed", "RehearsedTopic", "Switch"]


@dataclass(frozen=True, slots=True)
class Switch:
    """The figures of a promote or rollback of a shadow topic, in ms; −1 where nothing is known."""

    pause: Pause | None
    """Longest hold of each partition's requests at the routers; None: no request was held."""
    fence_ms: int

    @staticmethod
    def of(report: ReportRecord) -> Switch:
        """Return the figures of a report of the state log."""
        return Switch(report.pause, report.fence_ms)


@dataclass(frozen=True, slots=True)
class RehearsedTopic:
    """What became of one topic's shadow."""

    topic: str
    shadow: str
    partitions: int
    copied: int
    """Number of records of the real topic that the shadow got."""
    synthetic: int
    """Number of synthetic records, written while the real topic was idle."""
    promote: Switch
    rollback: Switch | None
    """None: the shadow was not rolled back, and `no_rollback` says why."""
    no_rollback: str
    records: int
    """Number of records in the shadow at the end, or of keys with a value if the topic is compacted."""
    acknowledged: int
    """Number of records, or keys, that the producer got acknowledged."""
    differing: tuple[int, ...]
    """Partitions in which the clusters differ from each other, or from the acknowledged records."""


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """What became of the group that read the shadow topics."""

    group: str
    records: int
    read_again: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The outcome of a rehearsal."""

    link: str
    topics: tuple[RehearsedTopic, ...]
    group: MovedGroup

    @property
    def equal(self) -> bool:
        """True if no record was lost, doubled, reordered or altered, and the group read each record once."""
        return not any(each.differing for each in self.topics) and not self.group.read_again and not self.group.skipped
