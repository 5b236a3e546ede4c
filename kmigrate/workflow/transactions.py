"""What a promote must know of transactions that routers carry: whether they have ended, and what they couple."""

from __future__ import annotations

from collections.abc import Collection

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import last_begun, listed_ids, open_topics
from kmigrate.errors import Refused
from kmigrate.model.coupling import coupled_topics, unit_of
from kmigrate.model.lifecycle import PROMOTING, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.state.log import StateLog

__all__ = ["coupled_records", "not_asked_for", "not_staged", "refuse_lost_ids", "wait_for_ends", "wait_for_unit"]

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


def coupled_records(state: State, record: TopicRecord) -> list[TopicRecord]:
    """The other topics of a topic's unit that this link mirrors."""
    names = coupled_topics(state.transactions(record.link), [record.topic])
    return [found for name in sorted(names) if (found := state.topic(record.link, name)) is not None]


def _following_groups(state: State, record: TopicRecord) -> list[GroupRecord]:
    """Groups that follow and have positions committed in a topic's transactions; promoted ones are left out."""
    _, names = unit_of(state.transactions(record.link), [record.topic])
    found = [group for name in sorted(names) if (group := state.group(record.link, name)) is not None]
    return [g for g in found if g.mode is GroupMode.FOLLOW and g.phase is not GroupPhase.PROMOTED]


def not_staged(state: State, record: TopicRecord) -> str | None:
    """A coupled group whose positions do not stand on the target yet; Refused where its promote was given up."""
    for group in _following_groups(state, record):
        if group.phase is GroupPhase.MIRRORED and group.reason:
            raise Refused("coupled-group", f"the promote of group {group.group} was given up: {group.reason}")
        if not group.staged:
            return f"the positions of group {group.group}, which its transactions commit, are not on the target yet"
    return None


def not_asked_for(state: State, record: TopicRecord) -> str | None:
    """A coupled topic that is not being promoted, too."""
    for other in coupled_records(state, record):
        if other.phase not in PROMOTING and other.phase is not TopicPhase.PROMOTED:
            why = f": {other.reason}" if other.reason else ""
            return f"{other.topic}, which is written together with {record.topic}, is not being promoted{why}"
    return None


async def wait_for_unit(
    log: StateLog, record: TopicRecord, ready: Collection[tuple[str, str]], deadline: float
) -> None:
    """Until every coupled topic is ready for its flip (`ready`), too: one that is given up takes the others back."""
    while True:
        against = not_asked_for(log.state, record)
        if against is not None:
            raise Refused("coupled-topics", against)
        others = coupled_records(log.state, record)
        waits = [o.topic for o in others if o.phase is not TopicPhase.PROMOTED and (o.link, o.topic) not in ready]
        if not waits:
            return
        if monotonic() > deadline:
            raise Refused("coupled-topics", f"{', '.join(waits)} did not reach its barrier in time")
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
