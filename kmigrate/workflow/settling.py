"""What a promote gives the target topic beside its records: access rules before the flip, configs after it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError, Refused, Unreachable
from kmigrate.model.acls import Acl
from kmigrate.model.record_json import Record
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.state.log import StateLog

__all__ = ["put_in_force", "settle", "with_promote_rules"]


async def with_promote_rules(record: TopicRecord, target: ClusterClient) -> tuple[Acl, ...]:
    """The rules that kmigrate answers for once the topic's own are put on the target: those that stand there already
    were set by somebody else and are left alone."""
    if not record.promote_acls:
        return record.granted_acls
    standing = await read_acls(target) or frozenset()
    return tuple(sorted({*record.granted_acls, *(rule for rule in record.promote_acls if rule not in standing)}))


async def put_in_force(record: TopicRecord, target: ClusterClient, admin: Admin, deadline: float) -> None:
    """The topic's own rules on every broker of the target: a producer that is told no by one of them is lost."""
    wanted = set(record.promote_acls)
    if not wanted:
        return
    await admin.create_acls(record.promote_acls)
    for node in list(target.metadata.brokers):
        while not await _knows(target, node, wanted):
            if monotonic() > deadline:
                raise Refused("acls-not-in-force", f"broker {node} of the target does not know the topic's ACLs yet")
            await sleep(0.005)


async def _knows(target: ClusterClient, node: int, wanted: Set[Acl]) -> bool:
    """Whether a broker has all the rules; one that has left the cluster reads them before it serves again."""
    try:
        return wanted <= (await read_acls(target, node) or frozenset())
    except Unreachable:
        return node not in (await target.refresh([])).brokers


async def settle(record: TopicRecord, log: StateLog, admin: Admin) -> None:
    """After the flip: the topic's own configs, and none of the rules that were only for the time of mirroring.

    Done again by the next controller until it is written that it is done; a refusal is told in the record. By the log
    as it is now: where this process has stood still, another one may have settled it long ago, and a person have given
    the topic other configs since.
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
