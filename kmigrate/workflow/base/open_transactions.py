"""Checks routed transactions: they must have ended, and their ids must live on at the target of a promote."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from kmigrate.cluster.client import ClusterClient, ProducerState
from kmigrate.cluster.transactions import group_transactions, last_begun, listed_ids, open_topics, open_transactions
from kmigrate.errors import BrokerRefused, KmigrateError, Refused
from kmigrate.model.records import GroupRecord, TopicRecord
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code
from kmigrate.state.log import StateLog

__all__ = ["begun_elsewhere", "named_if_open", "open_at_group", "refuse_lost_ids", "wait_for_ends"]

_PAUSE_S = 0.005
Result = TypeVar("Result")


async def wait_for_ends(state: State, source: ClusterClient, record: TopicRecord, deadline: float) -> bool:
    """Wait until no routed transaction is open on a topic at the source; return True if any was open.

    The source knows a transaction that its router has forgotten. A coordinator answers an EndTxn before the markers are
    written, and a barrier must lie behind the markers. No transaction begins behind the fence, so both questions may be
    asked at once: a "none" of either stays true.
    """
    routed = {t.source_id: t.name for t in state.transactions(record.link) if record.topic in t.topics}
    tries = Backoff(_PAUSE_S, within_s=deadline - monotonic())
    waited = False
    while routed:
        topics, described = await together(
            open_topics(source, routed.values()), source.describe_producers(record.topic_partitions)
        )
        names = {name for name, of_name in (topics or {}).items() if record.topic in of_name}
        for _, producers in described.values():
            names |= {routed[p.producer_id] for p in producers if p.txn_start_offset >= 0 and p.producer_id in routed}
        if not names:
            return waited
        waited = True
        what = f"{', '.join(sorted(names))} has a transaction open on {record.topic} at the source"
        await tries.pause(Refused("open-transaction", what))
    return waited


async def begun_elsewhere(state: State, source: ClusterClient, record: TopicRecord, now_ms: int) -> list[str]:
    """Return a sentence for each open transaction that began past the routers: a restarted sink may commit it later."""
    routed = {transaction.source_id for transaction in state.transactions(record.link)}
    first: dict[tuple[str, int], ProducerState] = {}
    for key, (_, producers) in (await source.describe_producers(record.topic_partitions)).items():
        direct = [p for p in producers if p.producer_id < DIRECT_LIMIT and p.producer_id not in routed]
        if begun := [p for p in direct if p.txn_start_offset >= 0]:
            first[key] = min(begun, key=lambda each: each.txn_start_offset)
    named = await open_transactions(source, first)
    return [
        f"{topic}-{partition} {named[topic, partition].text(now_ms)}"
        if (topic, partition) in named
        else f"{topic}-{partition} waits for a transaction of producer {each.producer_id}"
        for (topic, partition), each in sorted(first.items())
    ]


async def open_at_group(state: State, client: ClusterClient, record: GroupRecord, at_ms: int) -> Refused | None:
    """Return the refusal that names the open transactions which keep a group's positions back; None for none known.

    `client`: the cluster that the group leaves.
    """
    link, group = record.link, record.group
    here, stays = ("target", "promoted") if record.at_target else ("source", "mirrored")
    routed = {each.name for each in state.transactions(link) if group in each.groups}
    try:
        found = await group_transactions(client, group, routed)
    except KmigrateError:
        return None
    if not found:
        return None
    certain = [each for each in found if each.transactional_id in routed]
    verb = "commits" if certain else "may commit"
    return Refused(
        "open-transaction",
        f"an open transaction at the {here} {verb} positions of group {group}: "
        + "; ".join(each.text(at_ms) for each in (certain or found)),
        still_true=f"the group is {stays} as before; its members read on",
        next_step=f"end that transaction, or wait until the {here} ends it (transaction.timeout.ms); then repeat",
    )


async def named_if_open(
    work: Coroutine[Any, Any, Result], log: StateLog, client: ClusterClient, record: GroupRecord
) -> Result:
    """Await work that reads a group's positions; where a transaction keeps these back, name the transaction."""
    try:
        return await work
    except BrokerRefused as refused:
        if refused.code != Code.UNSTABLE_OFFSET_COMMIT:
            raise
        named = await open_at_group(log.state, client, record, now_ms())
        raise named or refused from refused


async def refuse_lost_ids(state: State, source: ClusterClient, target: ClusterClient, record: TopicRecord) -> None:
    """Refuse a promote where only the target has forgotten a transactional id: its holder would fail at the flip."""
    names = {t.name for t in state.transactions(record.link) if record.topic in t.topics}
    if names:  # there may be 100,000 ids, and the target knows nearly all of them
        names -= await listed_ids(target)
    for name in sorted(names):
        if await last_begun(target, name) is not None or await last_begun(source, name) is None:
            continue
        raise Refused(
            "transactional-id-lost",
            f"the target has forgotten transactional id {name}: no controller ran for too long to keep it",
            next_step="restart its producer with the router's address: it is given a new identity",
        )
