"""How long brokers remember producers, on which copying old records depends (W1), and the cost of a longer memory."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient
from kmigrate.errors import Failed
from kmigrate.protocol.codes import row

__all__ = [
    "ENTRY_BYTES",
    "ONE_AT_A_TIME",
    "RAISED_EXPIRATION",
    "ProducerLoad",
    "lengthen_memory",
    "producer_load",
    "producer_memory",
    "restore_memory",
    "short_memory",
]

RAISED_EXPIRATION = str((1 << 31) - 1)
"""24.8 days, the largest value of the config."""
ONE_AT_A_TIME = "each partition has one batch on its way at a time, from one owner (slower)"
"""The price of a short memory."""


async def producer_memory(client: ClusterClient, admin: Admin) -> ConfigValue | None:
    """Return `producer.id.expiration.ms` as a broker applies it; None if the broker does not know the key (before 3.4).

    Such a broker accepts the key without an error, and then shows the key without a value.
    """
    reported = await admin.broker_config(next(iter(client.metadata.brokers)), PRODUCER_EXPIRATION)
    return reported if reported is not None and reported.value.isdigit() else None


async def lengthen_memory(client: ClusterClient, now: ConfigValue | None, *, only_ask: bool = False) -> str:
    """Make brokers remember producers as long as possible, or only check whether we may; return '' or the obstacle."""
    if now is None:
        return f"its brokers do not know {PRODUCER_EXPIRATION} (Kafka before 3.4)"
    if now.value == RAISED_EXPIRATION:
        return ""
    try:
        code = await client.set_broker_default(PRODUCER_EXPIRATION, RAISED_EXPIRATION, only_ask=only_ask)
    except Failed as error:
        return f"{PRODUCER_EXPIRATION} could not be raised: {error.what}"
    return f"it does not let {PRODUCER_EXPIRATION} be raised: {row(code).name} ({code})" if code else ""


async def restore_memory(client: ClusterClient, admin: Admin, former: str) -> str:
    """Restore the broker default `former` ('': unset), unless somebody changed it since; return '' or the obstacle."""
    now = await producer_memory(client, admin)
    if now is None or (now.own and now.value != RAISED_EXPIRATION) or former == RAISED_EXPIRATION:
        return ""
    code = await client.set_broker_default(PRODUCER_EXPIRATION, former or None)
    return f"{row(code).name} ({code})" if code and now.value == RAISED_EXPIRATION else ""


async def short_memory(client: ClusterClient, admin: Admin) -> str:
    """Return why brokers forget producers early and cannot be changed, or ''; change nothing."""
    try:
        now = await producer_memory(client, admin)
    except Failed as error:
        return f"{PRODUCER_EXPIRATION} cannot be read: {error.what}"
    return await lengthen_memory(client, now, only_ask=True)


ENTRY_BYTES = 430
"""Heap bytes of a producer id in a replica: 226, and 40 per newest batch, up to 5 (4.3.1, `make bench-producers`)."""
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
    reported = await client.describe_producers(asked)
    counts = [len(producers) for error, producers in reported.values() if not error]
    scale = len(keys) / len(counts) if counts else 0.0
    return ProducerLoad(round(sum(counts) * scale), len(keys))
