"""The removal of all that a rehearsal has made: topics, groups, ACLs and records; the link's record goes last.

1. Mark the link, its topics and its group: mirrors and controllers let go of them, and no report is written any more.
2. Wait until the mirrors have let go.
3. Delete the group and the shadow topics on both clusters, by the names that the link's name implies.
4. Delete the ACLs that the mirror has put on the target, and put the brokers' memory of producers back.
5. Drop the records. A removal that dies on the way is repeated from the start.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed, KmigrateError
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.rehearsals import group_of, shadow_prefix
from kmigrate.model.sharing import lease_of
from kmigrate.model.state import State
from kmigrate.net.clock import now_ms, sleep
from kmigrate.net.retry import Backoff
from kmigrate.state.offset_maps import OffsetMaps
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.producer_expiration import raised_alone
from kmigrate.workflow.rehearsal.running import dead_rehearsals
from kmigrate.workflow.verbs.links import link_keys, put_back_memory
from kmigrate.workflow.verbs.waiting import wait_let_go

__all__ = ["RehearsalCleaner", "clean"]

_GROUP_S = 30.0
"""Seconds in which the members of a dead rehearsal's group time out, and holds on the group end."""
_LOOK_S, _AGAIN_S = 5.0, 30.0
_log = logging.getLogger("kmigrate.controller")


async def clean(connections: Connections, link: LinkRecord) -> None:
    """Remove all that a rehearsal has made; a call that stood still may have made topics after a first removal."""
    log = connections.log
    await log.append(partial(_mark_link, link))
    for topic in log.state.topics(link.name):
        await log.append(partial(_mark_topic, topic))
    for group in log.state.groups(link.name):
        await log.append(partial(_mark_group, group))
    await wait_let_go(connections, link.name)
    source, source_admin = await connections.source(link)
    for client, admin in ((source, source_admin), (connections.target, connections.target_admin)):
        await _delete_group(admin, group_of(link.name))
        await _delete_topics(client, admin, shadow_prefix(link.name))
    await _leave_target(connections, link)
    await _drop_records(connections, link)


def _mark_link(link: LinkRecord, state: State) -> LinkRecord | None:
    now = state.link(link.name)
    if now is None or now.uuid != link.uuid or now.deleting_ms:
        return None
    return replace(now, deleting_ms=now_ms())


def _mark_topic(record: TopicRecord, state: State) -> TopicRecord | None:
    now = state.topic(record.link, record.topic)
    return replace(now, forgotten_ms=now_ms()) if now is not None else None


def _mark_group(record: GroupRecord, state: State) -> GroupRecord | None:
    now = state.group(record.link, record.group)
    return replace(now, forgotten_ms=now_ms()) if now is not None else None


async def _delete_group(admin: Admin, group: str) -> None:
    tries = Backoff(0.5, 2.0, within_s=_GROUP_S)
    while await admin.delete_groups([group]):
        await tries.pause(Failed("rehearsal-group-stays", f"group {group} still has members after {_GROUP_S:g} s"))


async def _delete_topics(client: ClusterClient, admin: Admin, prefix: str) -> None:
    for name in (await client.refresh()).topics:
        if name.startswith(prefix):
            await admin.delete_topic(name)


async def _leave_target(connections: Connections, link: LinkRecord) -> None:
    state = connections.log.state
    for topic in state.topics(link.name, forgotten=True):
        await connections.target_admin.delete_acls(topic.granted_acls)
        if topic.mapped:
            await OffsetMaps(connections.target).drop(link.uuid, topic.topic)
    for group in state.groups(link.name, forgotten=True):
        await connections.target_admin.delete_acls(group.granted_acls)
    now = state.link(link.name)
    if now is not None and raised_alone(state, now):
        await put_back_memory(connections, now)


async def _drop_records(connections: Connections, link: LinkRecord) -> None:
    """Drop all records of the link, and then the lease of its mirrors."""

    def drop(state: State) -> tuple[str, None] | None:
        now = state.link(link.name)
        return (link_keys(state, link.name)[0], None) if now is not None and now.uuid == link.uuid else None

    log = connections.log
    while (now := log.state.link(link.name)) is not None and now.uuid == link.uuid:
        await log.append(drop)
    await log.append(partial(_drop_lease, link.name))


def _drop_lease(link: str, state: State) -> tuple[str, None] | None:
    lease = state.lease(lease_of(link))
    return (lease.key, None) if lease is not None else None


class RehearsalCleaner:
    """Removes rehearsals that nobody runs any more; endless work of the controller that leads."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def run(self) -> None:
        """Look again and again, until cancelled; a removal that fails is tried again."""
        while True:
            pause = _LOOK_S
            for link in dead_rehearsals(self._connections.log):
                try:
                    await clean(self._connections, link)
                    _log.info("rehearsal %s was not ended by its call: all that it had made is removed", link.name)
                except KmigrateError as error:
                    _log.warning("rehearsal %s is not removed yet: %s", link.name, error.summary)
                    pause = _AGAIN_S
            await sleep(pause)
