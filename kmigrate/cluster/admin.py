"""Admin work through confluent-kafka's AdminClient: topics, configs, groups, offsets; an outcome per key.

A well-kept client beats our own code wherever the pipeline does not run; our wire client goes only where this one
cannot (design of the layers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.errors import BrokerRefused, Failed, KmigrateError, Unreachable
from kmigrate.model.acls import Acl
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import monotonic, sleep

__all__ = ["Admin", "CommittedOffset", "ConfigValue", "GroupMember", "GroupState"]

_TRANSPORT = frozenset({-195, -187, -185, -180, -191})  # all brokers down, transport, timed out, …
_OFFSET_INVALID = -1001
_NO_COORDINATOR = frozenset({14, 15, 16})
"""A cluster's first group makes the offsets topic, and its coordinator is not there at once."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One topic config: its value and whether it was set on the topic itself."""

    value: str
    own: bool


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A live member of a group, named so that a person can find it."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group as its coordinator tells it; state in lower case (empty, stable, dead …)."""

    group: str
    state: str
    kind: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position; the metadata string is carried verbatim (C8), the leader epoch never (C1)."""

    offset: int
    metadata: str


class Admin:
    """Asyncio face of one cluster's AdminClient."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._timeout = settings.request_timeout_s
        self._client: AdminClient | None = None

    @property
    def client(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(
                {
                    "bootstrap.servers": self._settings.bootstrap_servers,
                    "client.id": f"{self._settings.client_id}-admin",
                    "log_level": 0,
                    "socket.timeout.ms": 10_000,
                    "topic.metadata.refresh.interval.ms": 5_000,
                    **self._settings.admin,
                },
                logger=None,
            )
        return self._client

    async def _wait(self, future: Future[Any], what: str) -> Any:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout + 5)
        except KafkaException as error:
            raise self._translate(error, what) from error
        except TimeoutError:
            raise self._unreachable(what, "timed out") from None

    def _translate(self, error: KafkaException, what: str) -> Failed:
        inner = error.args[0]
        if inner.code() in _TRANSPORT:
            return self._unreachable(what, inner.str())
        return BrokerRefused(
            "broker-refused",
            f"cluster {self._settings.name} refused to {what}: {inner.name()}: {inner.str()}",
            code=inner.code(),
            still_true="nothing was changed by this request",
        )

    def _unreachable(self, what: str, why: str) -> Unreachable:
        return Unreachable(
            "cluster-unreachable",
            f"cluster {self._settings.name} ({self._settings.bootstrap_servers}) did not answer to {what}: {why}",
            still_true="nothing is known to have changed",
            next_step=f"check the bootstrap address of [clusters.{self._settings.name}] and that its brokers run",
        )

    # topics

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Create a topic; False where it exists already (EO-74: only that error is accepted)."""
        new = NewTopic(
            name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs or {})
        )
        future = self.client.create_topics([new], operation_timeout=self._timeout)[name]
        try:
            await self._wait(future, f"create topic {name}")
        except BrokerRefused as refused:
            if refused.code == 36:
                return False
            raise
        return True

    async def create_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, `total` in all."""
        future = self.client.create_partitions([NewPartitions(name, total)], operation_timeout=self._timeout)[name]
        await self._wait(future, f"give topic {name} {total} partitions")

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        """All configs of topics, by topic and key."""
        out: dict[str, dict[str, ConfigValue]] = {}
        for name, told in (await self.topic_configs_told(names)).items():
            if isinstance(told, KmigrateError):
                raise told
            out[name] = told
        return out

    async def topic_configs_told(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue] | KmigrateError]:
        """The same with an outcome per topic: its configs, or why they cannot be had."""
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self.client.describe_configs(resources, request_timeout=self._timeout)
        out: dict[str, dict[str, ConfigValue] | KmigrateError] = {}
        for resource, future in futures.items():
            try:
                entries = await self._wait(future, f"describe the configs of topic {resource.name}")
            except Failed as error:
                out[str(resource.name)] = error
                continue
            out[str(resource.name)] = {
                key: ConfigValue(entry.value or "", ConfigSource(entry.source) == ConfigSource.DYNAMIC_TOPIC_CONFIG)
                for key, entry in entries.items()
            }
        return out

    async def alter_topic_configs(self, name: str, put: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        """Set and remove single configs of a topic; others stay as they are."""
        entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in put.items()]
        entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in remove]
        if not entries:
            return
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self.client.incremental_alter_configs([resource], request_timeout=self._timeout)
        for future in futures.values():
            await self._wait(future, f"alter the configs of topic {name}")

    async def broker_config(self, node: int, key: str) -> ConfigValue | None:
        """One config of a broker; `own` says that it is a dynamic cluster-wide default."""
        resource = ConfigResource(ResourceType.BROKER, str(node))
        future = next(iter(self.client.describe_configs([resource], request_timeout=self._timeout).values()))
        entries = await self._wait(future, f"describe the configs of broker {node}")
        entry = entries.get(key)
        if entry is None:
            return None
        dynamic = ConfigSource(entry.source) == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return ConfigValue(entry.value or "", dynamic)

    # access rules (they are read by `kmigrate.cluster.acls`)

    async def create_acls(self, acls: Collection[Acl]) -> None:
        """Put rules in force; one that is there already stays as it is."""
        if not acls:
            return
        bindings = {AclBinding(*_acl_fields(acl)): acl for acl in acls}
        for binding, future in self.client.create_acls(list(bindings)).items():
            await self._wait(future, f"create the ACL: {bindings[binding]}")

    async def delete_acls(self, acls: Collection[Acl]) -> None:
        """Take exactly these rules back; one that is not there is no error."""
        if not acls:
            return
        filters = {AclBindingFilter(*_acl_fields(acl)): acl for acl in acls}
        for each, future in self.client.delete_acls(list(filters)).items():
            await self._wait(future, f"delete the ACL: {filters[each]}")

    # groups

    async def groups(self) -> dict[str, str]:
        """All consumer groups of the cluster and their states."""
        result = await self._wait(
            self.client.list_consumer_groups(request_timeout=self._timeout), "list consumer groups"
        )
        return {str(g.group_id): g.state.name.lower() for g in result.valid}

    async def describe_groups(self, names: Sequence[str]) -> dict[str, GroupState]:
        """State and members of groups; a group that the cluster does not know is `dead` and empty."""
        if not names:
            return {}
        futures = self.client.describe_consumer_groups(list(names), request_timeout=self._timeout)
        out: dict[str, GroupState] = {}
        for name, future in futures.items():
            try:
                told = await self._wait(future, f"describe group {name}")
            except BrokerRefused as refused:
                if refused.code != 69:  # GROUP_ID_NOT_FOUND, since Kafka 4
                    raise
                out[name] = GroupState(name, "dead", "unknown", ())
                continue
            out[name] = GroupState(
                name,
                told.state.name.lower(),
                getattr(getattr(told, "type", None), "name", "classic").lower(),
                tuple(GroupMember(m.member_id, m.client_id, m.host) for m in told.members),
            )
        return out

    async def group_offsets(self, group: str, *, stable: bool = True) -> dict[tuple[str, int], CommittedOffset]:
        """A group's committed offsets; with `stable` pending transactional commits are an error first (C12)."""
        future = self.client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], require_stable=stable, request_timeout=self._timeout
        )[group]
        told = await self._wait(future, f"read the offsets of group {group}")
        return {
            (p.topic, p.partition): CommittedOffset(p.offset, p.metadata or "")
            for p in told.topic_partitions
            if p.offset >= 0 and p.error is None
        }

    async def write_group_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> dict[tuple[str, int], str]:
        """Commit offsets for a group without members, leader epoch −1 (C1, V5); the error text by partition."""
        if not offsets:
            return {}
        parts = [
            TopicPartition(topic, partition, offset=o.offset, metadata=o.metadata)
            for (topic, partition), o in offsets.items()
        ]
        deadline = monotonic() + self._timeout
        while True:
            future = self.client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, parts)], request_timeout=self._timeout
            )[group]
            told = await self._wait(future, f"write the offsets of group {group}")
            failed = [p for p in told.topic_partitions if p.error is not None]
            if not any(p.error.code() in _NO_COORDINATOR for p in failed) or monotonic() > deadline:
                return {(p.topic, p.partition): str(p.error) for p in failed}
            await sleep(0.1)


def _acl_fields(acl: Acl) -> tuple[Any, ...]:
    return (
        ResourceType[acl.resource.upper()],
        acl.name,
        ResourcePatternType[acl.pattern.upper()],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType.ALLOW if acl.allow else AclPermissionType.DENY,
    )
