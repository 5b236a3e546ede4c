"""Warns where a topic's copy has fewer replicas than the source's topic, so that nobody misses the difference."""

from __future__ import annotations

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.workflow.base.plan import Finding, warn

__all__ = ["durability_findings"]


def durability_findings(
    seen: TopicInfo, existing: TopicInfo | None, brokers: int, in_sync: ConfigValue | None
) -> list[Finding]:
    """Compare a topic's replicas and its `min.insync.replicas` (`in_sync`) with the target.

    `existing` is the topic on the target; without that topic the target's number of brokers counts.
    """
    ours = _replicas(seen)
    theirs = min(ours, brokers) if existing is None else _replicas(existing)
    found: list[Finding] = []
    if theirs < ours:
        found.append(
            warn(
                "fewer-replicas",
                f"topic {seen.name} has replication factor {ours} on the source and {theirs} on the target",
                f"add brokers to the target first, or give {seen.name} more replicas there before its promote "
                "(kafka-reassign-partitions.sh)",
            )
        )
    if in_sync is not None and int(in_sync.value) > theirs:
        found.append(
            warn(
                "min-insync-lowered",
                f"min.insync.replicas of topic {seen.name} is {in_sync.value} on the source and can be {theirs} at "
                "most on the target: acks=all promises less there",
                f"it follows the source once {seen.name} has more replicas on the target, until its promote",
            )
        )
    return found


def _replicas(info: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in info.partitions.values()), default=1)
