"""Who still writes to the source without a router: found in three places, named in one sentence each.

1. DescribeProducers on the source: an active id below 2^40 was handed out by the source itself (design of ids), and
   came directly unless it is a transactional id's that a router has asked for. Its time is that of its newest record,
   which may tell of the past; it is compared with the state log's clock, wherever this is asked.
2. The mirrors see every batch header, and when: a batch without a translated id came directly, also one without any
   id. The word of a process that has handed the partition over counts, too.
3. The source's log end moves while all routers are drained (seen by the promote itself).
"""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import TopicRecord
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.state.log import StateLog

__all__ = ["direct_writers"]


async def direct_writers(log: StateLog, source: ClusterClient, record: TopicRecord, window_s: float) -> list[str]:
    """Sentences about direct writes within the window; empty where there are none."""
    now = log.now_ms()
    since = now - int(window_s * 1000)
    keys = [(record.topic, p) for p in range(record.partitions)]
    routed = {transaction.source_id for transaction in log.state.transactions(record.link)}
    out: dict[tuple[int, int], str] = {}
    for (topic, partition), (error, producers) in sorted((await source.describe_producers(keys)).items()):
        if error:
            continue
        for producer in producers:
            if producer.producer_id in routed:
                continue
            if producer.producer_id < DIRECT_LIMIT and producer.last_timestamp >= since:
                ago = max(0, now - producer.last_timestamp) / 1000
                open_txn = " in an open transaction" if producer.txn_start_offset >= 0 else ""
                out[partition, producer.producer_id] = (
                    f"producer id {producer.producer_id} wrote to {topic}-{partition} on the source "
                    f"{ago:.1f} s ago, past every router{open_txn}"
                )
    for presence in log.alive(MirrorPresence):
        if presence.link != record.link:
            continue
        for partition, progress in presence.topics.get(record.topic, {}).items():
            ago = max(0, (presence.said_ms or now) - progress.direct_ms) / 1000
            if progress.direct_ms and ago <= window_s and progress.direct_id not in routed:
                who = f"producer id {progress.direct_id}" if progress.direct_id >= 0 else "a producer without id"
                out.setdefault(
                    (partition, progress.direct_id),
                    f"{who} wrote to {record.topic}-{partition} at offset "
                    f"{progress.direct_offset} on the source {ago:.1f} s ago, past every router",
                )
    return list(out.values())
