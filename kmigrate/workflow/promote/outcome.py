"""Brings a promote to its end, promoted or mirroring as before: the records, and ACLs and configs around the flip.

A promote without a way back needs the target alone, whatever has become of the source. Such a topic is flipped and not
settled, or another topic's flip has decided its flip (`unit`, rule C).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kmigrate.cluster.acls import read_acls, wait_at_all_brokers
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import TopicEvent, TopicPhase, advance_topic
from kmigrate.model.record_json import Record
from kmigrate.model.records import ProvenTopic, TopicRecord, WayBack
from kmigrate.model.state import State
from kmigrate.net.clock import now_ms, sleep
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.unit import decided

__all__ = [
    "flipped",
    "flipped_as_decided",
    "given_up",
    "go_forward",
    "no_way_back",
    "put_in_force",
    "settle",
    "turned",
    "with_promote_rules",
]


def no_way_back(state: State, record: TopicRecord) -> bool:
    """Return True if the topic's promote can only go forward."""
    return record.unsettled or (record.phase is TopicPhase.FENCED and decided(state, record) is not None)


async def go_forward(record: TopicRecord, log: StateLog, target: Admin) -> None:
    """Take the next step of a promote that has no way back."""
    if record.unsettled:
        await settle(record, log, target)
    else:
        await log.append(partial(flipped_as_decided, record, log.now_ms()))


def flipped_as_decided(record: TopicRecord, at_ms: int, state: State) -> TopicRecord | None:
    """Return the flipped record that another topic's flip demands; None for no such flip, or a changed record."""
    proven = decided(state, record)
    unchanged = state.records.get(record.key) == record
    return turned(flipped(record, at_ms, proven), state) if proven is not None and unchanged else None


def turned(record: TopicRecord, state: State) -> TopicRecord:
    """Return a flipped record with the epoch of its flip; transactional identities outlive a topic's first promote."""
    return replace(record, turned_epoch=state.epoch + 1) if record.generation else record


def flipped(record: TopicRecord, at_ms: int, proven: ProvenTopic) -> TopicRecord:
    """Return the flipped record; producers may repeat their writes for a time that counts from `at_ms` (log clock)."""
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.FLIP),
        since_ms=now_ms(),
        promoted_ms=at_ms,
        reason="",
        target_ends=proven.target_ends,
        closing=False,
        unsettled=True,
        schedule=None,
        way_back=_way_back(record, at_ms),
    )


def _way_back(record: TopicRecord, at_ms: int) -> WayBack | None:
    """Return the way back that the promote's terms open: the copy to the source begins at the barrier.

    A source that is sealed in place of a router would refuse the copy: the way back has ended before it begins.
    """
    if record.terms is None or not record.terms.way_back:
        return None
    starts = {partition: barrier.offset for partition, barrier in record.barrier.items()}
    if record.seal is None:
        return WayBack(starts)
    names = ", ".join(sorted(set(record.seal.routers.values())))
    return WayBack(starts, ended=f"the source was sealed in place of router {names}", ended_ms=at_ms)


def given_up(record: TopicRecord, reason: str, way_on: str = "") -> TopicRecord:
    """Return the record of a topic whose promote is given up: mirroring as before, with the reason."""
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.UNFENCE),
        since_ms=now_ms(),
        reason=reason,
        way_on=way_on,
        terms=None,
        barrier={},
        closing=False,
    )


async def with_promote_rules(record: TopicRecord, target: ClusterClient) -> tuple[Acl, ...]:
    """Return the ACLs that kmigrate answers for from the flip on: the target's present ACLs are somebody else's."""
    if not record.promote_acls:
        return record.granted_acls
    at_target = await read_acls(target) or frozenset()
    return tuple(sorted({*record.granted_acls, *(rule for rule in record.promote_acls if rule not in at_target)}))


async def put_in_force(record: TopicRecord, target: ClusterClient, admin: Admin, deadline: float) -> None:
    """Put the topic's own ACLs in force on every broker: a producer that a single broker refuses is lost."""
    wanted = set(record.promote_acls)
    if not wanted:
        return
    await admin.create_acls(record.promote_acls)

    def unknown(node: int) -> Refused:
        return Refused("acls-not-in-force", f"broker {node} of the target does not know the topic's ACLs yet")

    await wait_at_all_brokers(target, wanted.issubset, unknown, deadline)


async def settle(record: TopicRecord, log: StateLog, admin: Admin) -> None:
    """Give the flipped topic its own configs, and delete the ACLs that were only for the time of mirroring.

    A new controller repeats this until the record says settled; the record also names a refusal. The state log is read
    to its end first: another process may have settled meanwhile, and a person set other configs.
    """
    if (await log.read_to_end()).records.get(record.key) != record:
        return
    spare = [rule for rule in record.granted_acls if rule not in record.promote_acls]
    try:
        await admin.alter_topic_configs(record.topic, record.restore_configs, record.drop_configs)
        await admin.delete_acls(spare)
        settled = replace(record, unsettled=False, reason="")
    except KmigrateError as error:
        settled = replace(record, reason=f"not-settled: {error.what}")

    def decide(state: State) -> Record | None:
        return settled if state.records.get(record.key) == record else None

    if settled != record:
        await log.append(decide)
    if settled.unsettled:
        await sleep(1.0)
