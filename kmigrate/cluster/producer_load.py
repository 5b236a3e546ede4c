"""Estimates the cost for a cluster's brokers to remember producers for longer."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient

__all__ = ["ENTRY_BYTES", "ProducerLoad", "producer_load"]

ENTRY_BYTES = 430
"""Heap bytes of a producer id with five batches in a partition replica, measured on Kafka 4.3.1.

A broker takes 226 bytes for the id, and 40 for each of its newest five batches (`make bench-producers`).
"""
_MOST_PARTITIONS = 1_000
"""Most partitions that are described; the entries of a larger cluster are scaled up from these."""


@dataclass(frozen=True, slots=True)
class ProducerLoad:
    """Producer ids that the leaders of a cluster's partitions remember now, each counted once per partition."""

    entries: int
    partitions: int

    def after(self, now_ms: int, later_ms: int) -> int:
        """Return the number of entries if each is kept for `later_ms`, not `now_ms`, at today's rate of new ids."""
        return round(self.entries * max(1.0, later_ms / max(1, now_ms)))


async def producer_load(client: ClusterClient) -> ProducerLoad:
    """Count the remembered producer ids of all visible topics; raise BrokerRefused or Unreachable."""
    topics = (await client.refresh()).topics
    keys = sorted((name, partition) for name, info in topics.items() for partition in info.partitions)
    step = max(1, -(-len(keys) // _MOST_PARTITIONS))
    asked = keys[::step]
    told = await client.describe_producers(asked)
    counts = [len(producers) for error, producers in told.values() if not error]
    scale = len(keys) / len(counts) if counts else 0.0
    return ProducerLoad(round(sum(counts) * scale), len(keys))
