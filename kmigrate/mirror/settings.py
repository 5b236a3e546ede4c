"""How one mirror process behaves: one frozen value, built once by whoever starts the engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["OLD_MS", "DefaultsFrom", "HoleFiller", "MirrorSettings"]

OLD_MS = 20 * 86_400_000
"""Records older than this may outlive the broker's producer state even where its expiration is raised to the
24.8 days that an int allows (W1): they go one at a time, and only while we are sure to own the partition."""


class HoleFiller(StrEnum):
    """How offsets without records are made on the target (A12, M2)."""

    MARKERS = "markers"
    """Control markers by WriteTxnMarkers; needs CLUSTER_ACTION. A refusal falls back to transactions."""
    TRANSACTIONS = "transactions"
    """Empty transactions, one offset each, 1 to 6 ms."""


class DefaultsFrom(StrEnum):
    """Whose defaults a mirrored topic has from its promote on, where nothing is set on the topic itself."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Sizes in bytes, times in seconds unless the name says ms."""

    fetch_max_bytes: int = 32 << 20
    partition_max_bytes: int = 4 << 20
    fetch_wait_ms: int = 500
    request_max_bytes: int = 16 << 20
    """Upper bound of one Produce request; brokers take 100 MiB (A6)."""
    backlog_bytes: int = 4 << 20
    """A partition with more than this read and not yet acknowledged is not fetched further."""
    backlog_total_bytes: int = 256 << 20
    """Where all partitions together have more than this, each may have its part of it only, though no less than
    64 KiB: thousands that lag would take gigabytes. Where they have twice as much, nothing more is read."""
    write_connections: int = 1
    """Connections to each target leader, which works on one request of each at a time: several make up for replicas
    that acknowledge slowly, and cost some CPU, since each request then holds fewer batches."""
    in_flight: int = 5
    """Produce requests in flight per partition once the broker's state for our id is confirmed (W3)."""
    lease_s: float = 3.0
    presence_ms: int = 500
    hole_filler: HoleFiller = HoleFiller.MARKERS
    hole_limit: int = 100_000
    """Largest hole that is filled; a larger one (compaction) stops the partition by name."""
    align_limit: int = 2_000_000_000
    """Most filler offsets per partition (M4: 8.5 M a second)."""
    follow_log_start: bool = True
    """The copy loses what the source deletes."""
    follow_s: float = 10.0
    """When the source's log starts are looked at again."""
    recheck_s: float = 65.0
    """When log starts are looked at again: a broker killed within a minute may forget one (W6)."""
    disk_min_free_percent: float = 5.0
    """Free part of a log directory's volume on the target, below which nothing is copied to its broker; 0: no limit."""
    disk_min_free_bytes: int = 0
    """The same in bytes; the higher of both limits counts."""
    disk_look_s: float = 5.0
    """How often the room on the target's brokers is asked for."""
    disk_size_s: float = 60.0
    """How often the holder of the lease asks what the topics take on the target."""
    upkeep_s: float = 5.0
    """How often partitions, configs, rules and new names of the source are looked at; with very many topics less often
    (`upkeep.round_s`)."""
    raise_expiration: bool = True
    """True where the target's `producer.id.expiration.ms` is raised while the link mirrors (W1)."""
    sync_acls: bool = True
    acl_exclude: tuple[str, ...] = ()
    """Expressions of principals whose rules are not carried (MM-74)."""
    config_exclude: tuple[str, ...] = ()
    """Expressions of topic configs that are not replicated (MM-70)."""
    use_defaults_from: DefaultsFrom = DefaultsFrom.SOURCE
