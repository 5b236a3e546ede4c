"""Reports a migration by independent witnesses (histories, librdkafka, Spark); only `router_hold_ms` is our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FAILING", "MigrationReport", "Millis", "ParitySummary"]

FAILING = (
    "lost",
    "duplicated",
    "reordered",
    "altered",
    "misplaced",
    "extra",
    "torn",
    "premature",
    "nonmonotonic",
    "rewinds",
    "commits_back",
    "unseen",
    "group_gaps",
    "client_errors",
)
"""Anomalies that a clean migration does not have; `group_rereads` is reported and does not fail a migration."""


@dataclass(frozen=True, slots=True)
class Millis:
    """A distribution of waits, in ms."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ParitySummary:
    """Spark's verdict on the copy."""

    topics: int
    records: int
    mismatches: int


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """The judgement of one run; `clean` and `missed` decide the exit code."""

    acked: int
    preloaded: int
    anomalies: Mapping[str, int]
    examples: Mapping[str, tuple[str, ...]]
    offsets_identical: bool
    producer_pause_ms: Millis
    router_hold_ms: Millis
    baseline_ack_ms: Millis
    consumer_gap_ms: Millis
    """Longest time between two reads of a partition around its group's promote, even with nothing to read."""
    consumer_gap_live_ms: Millis
    """The same over the topics that were written to all the time."""
    group_gap_ms: Mapping[str, float]
    transaction_pause_ms: Millis | None
    """Longest transaction of each writer across its topic's flip, first send to end; None: no transaction under way."""
    baseline_transaction_ms: Millis
    parity: ParitySummary
    moved: Mapping[str, Mapping[str, Any]]
    """Partitions, records and barrier sum by topic, for the reader of the report."""
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the run: seed, rate, versions."""
    goal: Millis | None = None
    """Limits of the producers' wait across a flip, if limits are asked for; p50 is not among the limits."""

    @property
    def clean(self) -> bool:
        none = all(self.anomalies.get(name, 0) == 0 for name in FAILING)
        return none and self.offsets_identical and self.parity.mismatches == 0 and self.parity.topics > 0

    @property
    def missed(self) -> tuple[str, ...]:
        """The limits that the producers' wait reached, in words."""
        if self.goal is None:
            return ()
        waited, goal = self.producer_pause_ms, self.goal
        return tuple(
            f"producer_pause_ms.{name} is {value:g}, and less than {most:g} is asked"
            for name, value, most in (("p99", waited.p99, goal.p99), ("max", waited.max, goal.max))
            if value >= most
        )

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        found, facts, _ = (fields.pop(name) for name in ("anomalies", "facts", "goal"))
        counts = {name: found.get(name, 0) for name in (*FAILING, "group_rereads")}
        head = {"clean": self.clean, "missed": list(self.missed), **counts}
        return {**head, **fields, "seconds": round(self.seconds, 1), **facts}
