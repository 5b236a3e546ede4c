"""Snapshots of a made-up migration that gets on with time, for pages and screens that show a migration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kmigrate.cluster.admin import GroupMember
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import ControllerPresence, MirrorPresence, RouterPresence
from kmigrate.model.records import RouterRecord
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, PartitionStatus, Snapshot, TopicStatus

__all__ = ["group_status", "migration", "partition_status", "topic_status"]


def partition_status(partition: int, end: int, lag: int = 0, **more: Any) -> PartitionStatus:
    """Return a partition whose source ends at `end` and whose copy lacks `lag` records."""
    fields = {"problem": "", "hold_ms": -1.0, "lag_bytes": lag * 700, "lag_seconds": lag / 900, **more}
    return PartitionStatus(partition, 0, end, 0, end - lag, lag, **fields)


def topic_status(topic: str, phase: TopicPhase, *partitions: PartitionStatus, **more: Any) -> TopicStatus:
    fields = {"link": "blue", "since_ms": 0, "reason": "", "offsets": "identical", **more}
    return TopicStatus(topic=topic, phase=phase, partitions=partitions, **fields)


def group_status(group: str, phase: GroupPhase, source: int, target: int, lag: int, **more: Any) -> GroupStatus:
    members = tuple(GroupMember(f"{group}-{n}", f"{group}-app", "/10.0.0.7") for n in range(source))
    return GroupStatus("blue", group, phase, "", members, target, lag, **more)


def migration(second: int, began_ms: int, topics: int = 0) -> Snapshot:
    """Return the snapshot after some seconds: a long copy, a stop, a promote under way, promoted topics and groups."""
    now_ms = began_ms + second * 1000

    def copy(partition: int, written_per_s: int, copied_per_s: int, backlog: int) -> PartitionStatus:
        end = 9_000_000 + written_per_s * second
        return partition_status(partition, end, max(0, backlog - (copied_per_s - written_per_s) * second))

    def promoted(topic: str, ago_s: int, held_ms: float, **more: Any) -> TopicStatus:
        parts = [partition_status(p, 80_000 + 90 * second, hold_ms=held_ms - p) for p in range(3)]
        return topic_status(topic, TopicPhase.PROMOTED, *parts, since_ms=now_ms - ago_s * 1000, **more)

    verified = [replace(each, verified_to=each.source_end, unverified=0) for each in
                (partition_status(p, 900_000 + 30 * second) for p in range(2))]  # fmt: skip
    stopped = partition_status(1, 70_000 + second, 12_000, problem="source-cut: offsets 58000 to 58419 are gone")
    return Snapshot(
        now_ms,
        4_711,
        (LinkStatus("blue", "old-dc", "new-dc", "", notes=("1 name that matches is no topic that can be mirrored",)),),
        (
            topic_status("clickstream.raw", TopicPhase.MIRRORING, *(copy(p, 900, 21_000, 4_800_000) for p in range(6))),
            topic_status("inventory.changes", TopicPhase.MIRRORING, partition_status(0, 70_000 + second), stopped),
            topic_status("orders", TopicPhase.PROMOTE_PENDING, *(copy(p, 300, 340, 5_000) for p in range(3))),
            topic_status("ledger", TopicPhase.MIRRORING, *verified),
            promoted("payments", 95, 41.2),
            promoted("audit", 190, 63.9),
            promoted("sessions", 260, 38.4),
            *(
                topic_status(f"tenant-{n:04}.events", TopicPhase.MIRRORING, copy(0, 20, 25, n % 700))
                for n in range(topics)
            ),
        ),
        (
            group_status("billing", GroupPhase.PROMOTED, 0, 3, 12),
            group_status(
                "analytics", GroupPhase.MIRRORED, 4, 0, 8_200, mode=GroupMode.FOLLOW, direct_members=1, router_members=3
            ),
            group_status(
                "fraud-check",
                GroupPhase.PROMOTING,
                0,
                2,
                90,
                router_members=1,
                promote_waits_for="a member at 10.0.0.9",
            ),
        ),
        (
            RouterRecord("r1", "i1", "10.0.4.11", "10.0.4.11:9092", 1),
            RouterRecord("r2", "i2", "10.0.4.12", "10.0.4.12:9092", 1),
        ),
        frozenset({"i1"}),
        (MirrorPresence("m1", "blue", 1, True, 500),),
        (ControllerPresence("c1", 1, True, 500),),
        {"i1": RouterPresence(instance="i1", name="r1", applied=1, interval_ms=500, fences={}, connections=214)},
    )
