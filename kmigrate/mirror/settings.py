"""The settings of a mirror process: a frozen value, built by the caller that starts the engine.

Settings that shape the target are not here: they belong to the link (`model.link_settings`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["OLD_MS", "HoleFiller", "MirrorSettings"]

OLD_MS = 20 * 86_400_000
"""Age from which records may outlive a broker's producer state, even with the 24.8 days of an int as expiration (W1).

Such records are sent one batch at a time, and only while this process surely owns the partition.
"""


class HoleFiller(StrEnum):
    """The way in which offsets without records are filled on the target (A12, M2)."""

    MARKERS = "markers"
    """Control markers by WriteTxnMarkers; needs CLUSTER_ACTION. A refusal falls back to transactions."""
    TRANSACTIONS = "transactions"
    """Empty transactions, each with a single offset, 1 to 6 ms."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Settings of a mirror process; sizes are in bytes, and times in seconds unless the name says ms."""

    fetch_max_bytes: int = 32 << 20
    partition_max_bytes: int = 4 << 20
    fetch_wait_ms: int = 500
    rack: str = ""
    """The rack of this process, as source brokers name their own (`broker.rack`); '': read from leaders alone."""
    request_max_bytes: int = 16 << 20
    """Upper bound of a Produce request; brokers accept 100 MiB (A6)."""
    backlog_bytes: int = 4 << 20
    """Bytes read and not yet acknowledged above which a partition is not fetched further."""
    backlog_total_bytes: int = 256 << 20
    """Bytes read and not yet acknowledged of all partitions, above which each has only its part, but at least 64 KiB.

    Otherwise thousands of lagging partitions take gigabytes. At twice the limit only topics in a promote are read.
    """
    write_connections: int = 1
    """Connections to each target leader; several make up for slow replicas, but requests hold fewer batches (CPU)."""
    in_flight: int = 5
    """Produce requests in flight per partition once the broker's state for our producer id is confirmed (W3)."""
    lease_s: float = 3.0
    presence_ms: int = 500
    hole_filler: HoleFiller = HoleFiller.MARKERS
    windows: bool = True
    """True if batches and the markers behind them leave together, where the target's brokers allow that."""
    long_windows: bool = True
    """True if windows may have several holes, where `min.insync.replicas` is 1 on the target."""
    follow_s: float = 10.0
    """Interval of the looks at the source's log starts."""
    recheck_s: float = 65.0
    """Interval of the checks of the copy's log starts: a broker killed within a minute may forget a log start (W6)."""
    disk_min_free_percent: float = 5.0
    """Free part of a log directory's volume on the target, below which nothing is copied to its broker; 0: no limit."""
    disk_min_free_bytes: int = 0
    """The same in bytes; the higher of both limits counts."""
    disk_look_s: float = 5.0
    """Interval at which the free room on the target's brokers is asked for."""
    disk_size_s: float = 60.0
    """Interval at which the holder of the lease asks for the size of the topics on the target."""
    upkeep_s: float = 5.0
    """Interval of the looks at partitions, configs, ACLs and new names; longer for very many topics (`round_s`)."""
    raise_expiration: bool = True
    """True if the target's `producer.id.expiration.ms` is raised while the link mirrors (W1)."""
