"""Transactions on a topic that is rolled back: what they couple, and which of them are open at the target."""

from __future__ import annotations

from collections.abc import Iterable

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import open_writers
from kmigrate.errors import Refused
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import GroupMode
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.workflow.base.plan import Finding, warn

__all__ = ["forced_aborts", "is_transactional", "left_behind", "open_on", "unrecorded_writers", "wait_until_none_open"]

_PAUSE_S = 0.005
_MOST_NAMED = 3


def _transactional_ids(state: State, record: TopicRecord) -> list[str]:
    return sorted(each.name for each in state.transactions(record.link) if record.topic in each.topics)


def is_transactional(state: State, record: TopicRecord) -> bool:
    """Return whether a transactional id is known to write a topic."""
    return bool(_transactional_ids(state, record))


def forced_aborts(state: State, record: TopicRecord) -> list[Finding]:
    """Say that the flip of a topic, from its first rollback on, costs each transactional producer a transaction."""
    names = _transactional_ids(state, record)
    if not names:
        return []
    what = f"each producer of topic {record.topic} with transactions ({_few(names)}) aborts one transaction at the flip"
    next_step = (
        "clients of Java, librdkafka and franz-go go on after the abort; an application with aiokafka or kafka-python, "
        "or one with Java's client from 4.0 on that closes its producer at OutOfOrderSequenceException, starts a new "
        "producer"
    )
    return [warn("forced-abort", what, next_step)]


def left_behind(state: State, record: TopicRecord) -> str:
    """Name a topic or group that transactions couple with a topic, and that cannot go back with the topic; '' for none.

    After a rollback the producer would write at both clusters in one transaction, which no router accepts.
    """
    topics, groups = unit_of(state.couplings(record.link), [record.topic])
    for name, by in sorted(topics.items()):
        other = state.topic(record.link, name)
        if other is None:
            return _together(record, f"topic {name}, which link {record.link} does not mirror", by)
        if other.at_target and not other.copied_back:
            return _together(record, f"topic {name}, which has no way back", by)
    for name, by in sorted(groups.items()):
        group = state.group(record.link, name)
        if group is None:
            return _together(record, f"the offsets of group {name}, which link {record.link} does not mirror", by)
        if group.mode is not GroupMode.FOLLOW:
            return _together(record, f"the offsets of group {name}, which holds its members while it is mirrored", by)
    return ""


def _together(record: TopicRecord, what: str, by: str) -> str:
    return f"topic {record.topic} is written in transactions together with {what} (transactional id {by})"


async def unrecorded_writers(state: State, target: ClusterClient, record: TopicRecord) -> str:
    """Name producers that write a topic in transactions past the routers, where no routed producer does; '' for none.

    A producer with data and with a control marker in a partition writes the partition in transactions.
    """
    if is_transactional(state, record):
        return ""
    link = state.link(record.link)
    copies = {copy.data_id for copy in (record.copy, link.copy if link is not None else None) if copy is not None}
    copies.update(record.former_copies_at_target)
    found = {
        producer.producer_id
        for _, producers in (await target.describe_producers(record.topic_partitions)).values()
        for producer in producers
        if producer.coordinator_epoch >= 0 and producer.last_sequence >= 0 and producer.producer_id not in copies
    }
    ids = _few(map(str, sorted(found)))
    return f"topic {record.topic} is written in transactions at the target (producer id {ids})" if found else ""


async def open_on(target: ClusterClient, record: TopicRecord) -> str:
    """Name the transactions that are open on a topic at the target, or lack a marker; '' for none.

    A coordinator knows a transaction before its first batch. A partition knows a transaction that hangs.
    """
    writers, described = await together(
        open_writers(target, record.topic, record.partitions), target.describe_producers(record.topic_partitions)
    )
    hanging = {p.producer_id for _, found in described.values() for p in found if p.txn_start_offset >= 0}
    names = sorted(writers) or [f"producer {producer_id}" for producer_id in sorted(hanging)]
    return f"{_few(names)} has a transaction open on {record.topic} at the target" if names else ""


async def wait_until_none_open(target: ClusterClient, record: TopicRecord, deadline: float) -> None:
    """Wait until no transaction is open on a topic at the target; at the deadline Refused names the ids."""
    tries = Backoff(_PAUSE_S, within_s=deadline - monotonic())
    while what := await open_on(target, record):
        next_step = "end that transaction, or wait until the target ends it (transaction.timeout.ms); then repeat"
        await tries.pause(Refused("open-transaction", what, next_step=next_step))


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"{', '.join(listed[:_MOST_NAMED])}{more}"
