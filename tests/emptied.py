"""Clusters that are emptied after a test and kept for the next test, because starting a broker takes much longer."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient, api_versions
from kmigrate.cluster.groups import group_members
from kmigrate.errors import KmigrateError
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import ApiKey, element_type, entity
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster

__all__ = ["BUSY_CLEANER", "HASTY", "KEPT", "KeptClusters", "NotEmpty", "empty"]

_OF_BROKERS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_SECONDS = 10.0
_PREFIX = "kmigrate-kept-"
_SIDES = {("source", SOURCE_VERSION), ("target", TARGET_VERSION)}

BUSY_CLEANER = {"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "100"}
"""A broker with a log cleaner that hardly rests."""
HASTY = {f"group.consumer.{name}heartbeat.interval.ms": "1000" for name in ("", "min.")} | {
    "group.initial.rebalance.delay.ms": "3000"
}
"""A broker that hurries groups of the new protocol, and begins other groups as slowly as by default."""
_OTHER_CONFIGS = (BUSY_CLEANER, HASTY)

_Kind = tuple[str, str, frozenset[tuple[str, str]]]


class NotEmpty(Exception):
    """A cluster still holds something, or does not answer."""


class KeptClusters:
    """Idle clusters without topics and groups: a plain cluster and another cluster for each side of a migration.

    Of a side's clusters with one of the configs above, the cluster that was used last is kept.
    """

    def __init__(self) -> None:
        self._idle: dict[_Kind, KafkaCluster] = {}
        self._keeps = False

    @property
    def idle(self) -> list[KafkaCluster]:
        return list(self._idle.values())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep clusters while the block lasts; in other processes than pytest's, each cluster ends with its user."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self.stop_idle()

    def stop_idle(self) -> None:
        """Stop the clusters that wait for a next user; later users start clusters of their own."""
        while self._idle:
            _end(self._idle.popitem()[1])

    def take(self, spec: ClusterSpec, root: Path) -> KafkaCluster:
        """Return an idle cluster that runs, or a new cluster that is not started yet."""
        if not self._is_for_keeping(spec):
            return KafkaCluster.create(spec, root)
        return self._idle.pop(_kind(spec), None) or KafkaCluster.create(spec, Path(tempfile.mkdtemp(prefix=_PREFIX)))

    def give_back(self, cluster: KafkaCluster) -> None:
        """Empty a cluster for the next user; stop a cluster that is not kept, or that does not become empty."""
        kind = _kind(cluster.spec)
        if not self._is_for_keeping(cluster.spec) or kind in self._idle:
            _end(cluster)
            return
        try:
            empty(cluster)
        except (NotEmpty, KafkaException, KmigrateError, TimeoutError):
            _end(cluster)
        else:
            for other in [each for each in list(self._idle) if each[0] == kind[0] and not {each, kind} & _PLAIN]:
                _end(self._idle.pop(other))
            self._idle[kind] = cluster

    def _is_for_keeping(self, spec: ClusterSpec) -> bool:
        is_known = _kind(spec) in _PLAIN or spec.config in _OTHER_CONFIGS
        return self._keeps and is_known and spec.brokers == 1 and not spec.secure


KEPT = KeptClusters()
_PLAIN = {(*side, frozenset[tuple[str, str]]()) for side in _SIDES}


def _kind(spec: ClusterSpec) -> _Kind:
    return spec.name, spec.version, frozenset(spec.config.items())


def _end(cluster: KafkaCluster) -> None:
    cluster.stop()
    root = next(iter(cluster.brokers.values())).folder.parent
    if root.name.startswith(_PREFIX):
        shutil.rmtree(root, ignore_errors=True)


def empty(cluster: KafkaCluster) -> None:
    """Delete all topics and groups and the changed default; raise an error where something stays."""
    for broker in cluster.brokers.values():
        if not broker.started().signal(signal.SIGCONT):
            raise NotEmpty(f"broker {broker.node} is dead")
    cluster.wait_ready(_SECONDS)
    asyncio.run(asyncio.wait_for(_without_clients(cluster), _SECONDS))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    if names := _topics(admin):
        for done in admin.delete_topics(names, operation_timeout=_SECONDS).values():
            done.result(_SECONDS)
    if left := _topics(admin):
        raise NotEmpty(f"topics stay: {left}")


def _topics(admin: AdminClient) -> list[str]:
    return [name for name in admin.list_topics(timeout=_SECONDS).topics if name not in _OF_BROKERS]


async def _without_clients(cluster: KafkaCluster) -> None:
    """Delete the groups, and leave transactional ids, which nobody can delete, without transaction and long timeout."""
    ((host, _, port),) = (each.rpartition(":") for each in cluster.bootstrap.split(","))
    async with ClusterClient(ClusterSettings(cluster.spec.name, ((host, int(port)),))) as client:
        while groups := await _groups(client):
            for group in groups:
                await _delete(client, group)
        listed = await client.call(
            entity(ApiKey.LIST_TRANSACTIONS, 0, "request")(state_filters=(), producer_id_filters=())
        )
        for transaction in listed.transaction_states:
            await client.init_producer_id(str(transaction.transactional_id))
        if code := await client.set_broker_default(PRODUCER_EXPIRATION, None):
            raise NotEmpty(f"{PRODUCER_EXPIRATION} stays as it is: {code}")


async def _groups(client: ClusterClient) -> list[str]:
    answer = await client.call(entity(ApiKey.LIST_GROUPS, 0, "request")())
    return [str(group.group_id) for group in answer.groups]


async def _delete(client: ClusterClient, group: str) -> None:
    """Remove the members of clients that were killed, and then the group."""
    node = await client.find_coordinator(group)
    for member in await group_members(client, group):
        await _leave(client, node, group, member.member_id)
    delete = entity(ApiKey.DELETE_GROUPS, 0, "request")
    answer = await client.call(delete(groups_names=(group,)), node)
    code = code_of(answer.results[0].error_code)
    if code == KafkaError.NON_EMPTY_GROUP:
        await asyncio.sleep(0.2)
    elif code not in (0, Code.GROUP_ID_NOT_FOUND):
        raise NotEmpty(f"group {group} stays: {row(code).name}")


async def _leave(client: ClusterClient, node: int, group: str, member: str) -> None:
    """Leave a group in the place of a member of either protocol; the coordinator refuses the wrong request."""
    leave = entity(ApiKey.LEAVE_GROUP, 3, "request")
    left = element_type(leave, "members")(member_id=member, group_instance_id=None)
    await client.call(leave(group_id=group, members=(left,)), node)
    if ApiKey.CONSUMER_GROUP_HEARTBEAT in await api_versions(client, node):
        beat = entity(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, "request")
        await client.call(beat(group_id=group, member_id=member, member_epoch=-1, topic_partitions=None), node)
