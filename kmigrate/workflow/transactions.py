"""What a promote must know of transactions that routers carry: whether they have ended, and can go on at the target."""

from __future__ import annotations

from collections.abc import Collection

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import last_begun, listed_ids, open_topics
from kmigrate.errors import Refused
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep

__all__ = ["refuse_lost_ids", "wait_for_ends"]

_PAUSE_S = 0.005


async def wait_for_ends(state: State, source: ClusterClient, record: TopicRecord, deadline: float) -> None:
    """Until no routed transaction is open at a topic's source, also none that its router has forgotten.

    A coordinator answers an EndTxn before it has written the markers, and a barrier must lie behind them.
    """
    routed = {t.source_id: t.name for t in state.transactions(record.link) if record.topic in t.topics}
    while routed:
        names = await _open(source, record, routed.values())
        keys = [(record.topic, partition) for partition in range(record.partitions)]
        for _, producers in (await source.describe_producers(keys)).values():
            ids = {p.producer_id for p in producers if p.txn_start_offset >= 0}
            names |= {name for source_id, name in routed.items() if source_id in ids}
        if not names:
            return
        if monotonic() > deadline:
            raise Refused(
                "open-transaction", f"{', '.join(sorted(names))} has a transaction open on {record.topic} at the source"
            )
        await sleep(_PAUSE_S)


async def refuse_lost_ids(state: State, source: ClusterClient, target: ClusterClient, record: TopicRecord) -> None:
    """A holder whose id the target has forgotten would die at the flip; one that both have forgotten is gone itself."""
    names = {t.name for t in state.transactions(record.link) if record.topic in t.topics}
    if names:  # there may be 100,000 of them, and nearly all are known
        names -= await listed_ids(target)
    for name in sorted(names):
        if await last_begun(target, name) is not None or await last_begun(source, name) is None:
            continue
        raise Refused(
            "transactional-id-lost",
            f"the target has forgotten transactional id {name}: no controller ran for too long to keep it",
            next_step="restart its producer with the router's address: it is given a new identity",
        )


async def _open(source: ClusterClient, record: TopicRecord, names: Collection[str]) -> set[str]:
    open_ = await open_topics(source, names) or {}
    return {name for name, topics in open_.items() if record.topic in topics}
