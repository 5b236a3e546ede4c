"""Defines the report of a promote or rollback: one record of the state log for each request that has ended. Pure.

A report is evidence for people: no decision of kmigrate reads a report. The size is bounded, whatever the number of
partitions is, and only the newest reports of a topic or group are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from kmigrate.model.records import Action, Asked, DirectWriter

__all__ = [
    "MOST_REPORTS",
    "MOST_ROWS",
    "HookPoint",
    "HookRun",
    "Outcome",
    "PartitionEvidence",
    "Pause",
    "ReportRecord",
    "ReportedKind",
    "RouterEvidence",
    "report_key",
    "report_prefix",
]

MOST_ROWS = 500
"""Maximum number of partitions, and of positions, that a report names one by one."""
MOST_REPORTS = 10
"""Number of reports that are kept of a topic or group."""


class ReportedKind(StrEnum):
    """The kind of thing that a report is about."""

    TOPIC = "topic"
    GROUP = "group"


class Outcome(StrEnum):
    """The end of a request."""

    DONE = "done"
    GIVEN_UP = "given-up"
    """The request was given up by a guard or a deadline, or taken back by a person: all is as before."""


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """The figures of a partition; −1 stands for an unknown figure."""

    barrier: int = -1
    """The log end at which the writes moved from one cluster to the other."""
    leader_epoch: int = -1
    """Leader epoch under which the barrier was read."""
    pause_ms: float = -1.0
    """Longest time for which a router held a request at the fence; −1: no router has reported a held request."""
    verified_to: int = -1
    """Offset below which `verify` had found the copy equal by the end of the request; −1: no check."""


@dataclass(frozen=True, slots=True)
class RouterEvidence:
    """The figures of a router at the fence; −1 stands for an unknown figure."""

    name: str
    instance: str
    in_flight: int = -1
    """Number of unanswered forwards and open transactions when the router first reported the fence."""
    pause_ms: float = -1.0
    """Longest time for which this router held a request; −1: no held request, or not reported."""
    silent: bool = False
    """True for a router that did not acknowledge the fence: the source's brokers held the fence in its place."""


class HookPoint(StrEnum):
    """A point of a promote or rollback at which the controller runs a command of its configuration."""

    BEFORE_FENCE = "before-fence"
    AFTER_FLIP = "after-flip"
    GIVEN_UP = "given-up"
    ROLLED_BACK = "rolled-back"


@dataclass(frozen=True, slots=True)
class HookRun:
    """A run of a hook: its exit code (124: ended as too late; 127: not started), duration, and end of its output."""

    point: HookPoint
    exit_code: int
    ms: int
    output: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The distribution of the partitions' longest holds, in ms."""

    partitions: int
    """Number of partitions with a held request."""
    p50: float
    p99: float
    max: float

    @staticmethod
    def of(holds: Collection[float]) -> Pause | None:
        """Return the distribution, by nearest rank; None where nothing was held."""
        if not holds:
            return None
        ranked = sorted(holds)

        def rank(share: float) -> float:
            return ranked[ceil(share * len(ranked)) - 1]

        return Pause(len(ranked), rank(0.5), rank(0.99), ranked[-1])


def report_prefix(link: str, what: ReportedKind, name: str) -> str:
    return f"report/{link}/{what}/{name}/"


def report_key(link: str, what: ReportedKind, name: str, asked_ms: int) -> str:
    return f"{report_prefix(link, what, name)}{asked_ms}"


@dataclass(frozen=True, slots=True)
class ReportRecord:
    """The report of one promote or rollback of a topic or group; times are in ms since the epoch, 0 is unknown."""

    link: str
    what: ReportedKind
    name: str
    """Name of the topic or group."""
    asked: Asked
    outcome: Outcome
    ended_ms: int
    """Time of the flip, of the group's opening, or of the end that changed nothing."""
    fenced_ms: int = 0
    """Time from which routers held the writers; 0: no fence was reached, or a group."""
    barrier_ms: int = 0
    """Time when the barrier was read; 0: no barrier was reached, or a group."""
    fence_epoch: int = -1
    reason: str = ""
    """Reason why the request was given up."""
    way_on: str = ""
    """Advice against the reason."""
    partition_count: int = 0
    """Number of the topic's partitions, or of the group's positions."""
    partitions: Mapping[int, PartitionEvidence] = field(default_factory=dict)
    """The topic's partitions; of very many those with the longest pauses."""
    pause: Pause | None = None
    """Pause over all partitions; None: no router has reported a held request."""
    routers: tuple[RouterEvidence, ...] = ()
    accepted_direct: bool = False
    """True if the request accepted direct writers."""
    direct: tuple[DirectWriter, ...] = ()
    """Direct writers that the mirror had seen by the end of the request; the newest of many."""
    more_direct: int = 0
    """Number of direct writers that `direct` leaves out."""
    unit: tuple[str, ...] = ()
    """Other topics that were flipped by the same record, because transactions write them together."""
    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """The group's committed offsets as written at the other cluster; the first few of very many."""
    unread: int = 0
    """Number of records, never copied, that the group had not read."""
    read_again: int = 0
    """Number of records that the group reads again."""
    hooks: tuple[HookRun, ...] = ()
    """Commands that the controller has run at points of the request."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version of kmigrate, and of each cluster by name where its brokers tell the version."""
    gaps: tuple[str, ...] = ()
    """Facts that the report lacks, each with the cause."""

    @property
    def action(self) -> Action:
        return self.asked.action

    @property
    def key(self) -> str:
        return report_key(self.link, self.what, self.name, self.asked.at_ms)

    @property
    def fence_ms(self) -> int:
        """Milliseconds from the fence to the end of the request; −1 without a fence."""
        return self.ended_ms - self.fenced_ms if self.fenced_ms else -1
