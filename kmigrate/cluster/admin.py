"""Admin work through confluent-kafka's AdminClient: topics, configs, groups, ACLs; an outcome per key.

A well-kept client beats our own code outside the pipeline. Our wire client only does what AdminClient cannot do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
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
    MemberDescription,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.cluster.acls import DENIED, Right, denied
from kmigrate.cluster.librdkafka import client_config
from kmigrate.errors import AuthenticationFailed, BrokerRefused, Failed, KmigrateError, Unreachable, UsageError
from kmigrate.model.acls import Acl
from kmigrate.model.security import Login
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.login import current_password
from kmigrate.net.retry import Backoff
from kmigrate.net.stamps import Stamps, stamps_of
from kmigrate.protocol.codes import Code

__all__ = ["HOLD_TYPE", "Admin", "ConfigValue", "GroupMember", "GroupState", "TopicShape"]

HOLD_TYPE = "kmigrate"
"""Protocol type of a group that the placeholder holds (`cluster.groups`), until a consumer joins after the hold."""

_TRANSPORT = frozenset({-195, -187, -185, -180, -191, -137})  # all brokers down, transport, timed out, …
_CLUSTER = "cluster kafka-cluster"
_BROKER_LEFT = -137
"""librdkafka's code for a broker that left the metadata during our request; librdkafka asks no other broker."""
_RESEND_SECONDS = 0.1
_MOST_TOPICS = 500
"""Most topics of a CreateTopics request."""
_Key = TypeVar("_Key")
_LOGIN = frozenset({-169, -181})  # authentication, TLS
_CONNECT = frozenset({-193, -195})  # an unresolved name, a failed connection
_ALERT = "SSL alert number"
"""Text of a TLS alert, a transport failure to librdkafka: in TLS 1.3 certificates are refused after the handshake."""
_GROUP_ENDS = frozenset({Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND})
"""Errors of a deletion of a group that the caller handles: the group has members, or is gone already."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config of a topic or broker: its value, and whether the config was set on the topic itself."""

    value: str
    own: bool


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic to be created."""

    name: str
    partitions: int
    replicas: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A live member of a group, with names by which a person can find the member."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group as its coordinator describes the group; state in lower case (empty, stable, dead …)."""

    group: str
    state: str
    kind: str
    members: tuple[GroupMember, ...]
    assigned: frozenset[str] = frozenset()
    """Topics with partitions assigned to the members; empty during a rebalance."""
    assignments: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Partitions that each member has now, by member id."""


class Admin:
    """The asyncio interface of a cluster's AdminClient."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._timeout = settings.request_timeout_s
        self._client: AdminClient | None = None
        self._files: Stamps = ()
        """Stamps of the certificate files that the client has read: librdkafka reads them once."""
        self._replaced: list[AdminClient] = []
        self._asked = 0
        self._password = ""
        self._login_failures: list[str] = []
        self._connect_failures: list[str] = []

    @property
    def client(self) -> AdminClient:
        """The AdminClient with the current password; made anew when certificate files have changed."""
        security = self._settings.security
        client = self._client
        if client is None or self._files != self._files_now():
            client = self._make()
        elif isinstance(security.sasl, Login) and (password := current_password(security.sasl)) != self._password:
            client.set_sasl_credentials(str(security.sasl.username), password)
            self._password = password
        client.poll(0)
        self._login_failures.clear()  # forget failures of earlier calls
        self._connect_failures.clear()
        return client

    def _files_now(self) -> Stamps:
        tls = self._settings.security.tls
        return stamps_of((tls.ca_file, tls.cert_file, tls.key_file)) if tls is not None else ()

    def _make(self) -> AdminClient:
        """Return a client with the present credentials, or the earlier client if the credentials are unusable."""
        self._files = self._files_now()
        config = {
            **client_config(self._settings),
            "error_cb": _hearing(self._login_failures, self._connect_failures),
            "client.id": f"{self._settings.client_id}-admin",
            "socket.timeout.ms": 10_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            **self._settings.admin,
        }
        try:
            made = AdminClient(config, logger=None)
        except KafkaException as error:
            if self._client is None:
                raise self._unusable(error) from error
            return self._client  # the wire client reads the same files and reports the error
        if self._client is not None:
            self._replaced.append(self._client)
        self._client, self._password = made, config.get("sasl.password", "")
        return made

    def _unusable(self, error: KafkaException) -> UsageError:
        return UsageError(
            "tls-file-unusable" if self._files else "bad-config-value",
            f"the admin client of cluster {self._settings.name} cannot be made: {error.args[0].str()}",
            still_true="nothing was contacted or changed",
            next_step=f"check the keys of [clusters.{self._settings.name}] and its .admin section",
        )

    def close(self) -> None:
        """Close the client, and end its threads."""
        client, self._client = self._client, None
        for each in (*self._replaced, client):
            if each is not None:
                each.__exit__(None, None, None)
        self._replaced.clear()

    def _end_replaced(self) -> None:
        """End replaced clients (renewed certificates) once no caller waits for an answer."""
        while self._replaced and not self._asked:
            self._replaced.pop().__exit__(None, None, None)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _one(self, send: Callable[[], Mapping[Any, Future[Any]] | Future[Any]], what: str, right: Right) -> Any:
        """Return the only outcome of the request that `send` sends; raise a Failed outcome."""

        def sent() -> Mapping[Any, Future[Any]]:
            reported = send()
            return {0: reported} if isinstance(reported, Future) else reported

        ((_, outcome),) = (await self._outcomes(sent, lambda _: what, lambda _: right)).items()
        if isinstance(outcome, Failed):
            raise outcome
        return outcome

    async def _outcomes(
        self,
        send: Callable[[], Mapping[_Key, Future[Any]]],
        what: Callable[[_Key], str],
        right: Callable[[_Key], Right],
    ) -> dict[_Key, Any]:
        """Return the answer or the Failed by key; `right` is the right that an authorizer demands for the request.

        A request that a leaving broker drops is repeated, perhaps carried out twice: callers accept an existing topic.
        """
        tries = Backoff(_RESEND_SECONDS, within_s=self._timeout)
        self._asked += 1
        try:
            while True:
                outcomes: dict[_Key, Any] = {}
                left = False
                for key, future in send().items():
                    try:
                        # Not wait_for: in Python 3.11 wait_for loses a cancellation that meets the answer.
                        async with asyncio.timeout(self._timeout + 5):
                            outcomes[key] = await asyncio.wrap_future(future)
                    except KafkaException as error:
                        left = left or error.args[0].code() == _BROKER_LEFT
                        outcomes[key] = self._translate(error, what(key), right(key))
                    except TimeoutError:
                        outcomes[key] = self._unreachable(what(key), "timed out")
                if not left or tries.over:
                    return outcomes
                await tries.pause()
        finally:
            self._asked -= 1
            self._end_replaced()

    def _translate(self, error: KafkaException, what: str, right: Right) -> Failed:
        inner = error.args[0]
        if inner.code() in _TRANSPORT:
            return self._unreachable(what, inner.str())
        if inner.code() in DENIED:
            lacks = denied(self._settings, inner.code(), right)
            return BrokerRefused(
                "broker-refused",
                f"cluster {self._settings.name} refused to {what}: {inner.name()}: {lacks.what}",
                code=inner.code(),
                still_true=lacks.still_true,
                next_step=lacks.next_step,
            )
        return BrokerRefused(
            "broker-refused",
            f"cluster {self._settings.name} refused to {what}: {inner.name()}: {inner.str()}",
            code=inner.code(),
            still_true="nothing was changed by this request",
        )

    def _unreachable(self, what: str, why: str) -> Failed:
        """Return the error for a missing answer: a failed login if librdkafka reported a failure, else Unreachable."""
        if self._client is not None:
            self._client.poll(0)
        if self._login_failures:
            reported = self._login_failures[-1]
            return AuthenticationFailed(
                "authentication-failed",
                f"cluster {self._settings.name} was not logged in to, to {what}: {reported}",
                still_true="nothing was changed by this request",
                next_step=f"check the security settings of [clusters.{self._settings.name}] (docs/security.md)",
            )
        last = f"; the newest failure: {self._connect_failures[-1]}" if self._connect_failures else ""
        return Unreachable(
            "cluster-unreachable",
            f"cluster {self._settings.name} (bootstrap.servers {self._settings.bootstrap_servers}) did not answer to "
            f"{what}: {why}{last}",
            still_true="nothing is known to have changed",
            next_step=f"kmigrate doctor tells which address of {self._settings.name} is not reached: the bootstrap "
            "address, or an address that a broker advertises",
        )

    # topics

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str] | None = None
    ) -> bool:
        """Create a topic; return False if the topic exists already. Every other error is raised."""
        new = NewTopic(
            name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs or {})
        )
        try:
            await self._one(
                lambda: self.client.create_topics([new], operation_timeout=self._timeout),
                f"create topic {name}",
                ("CREATE", f"topic {name}"),
            )
        except BrokerRefused as refused:
            if refused.code == 36:
                return False
            raise
        return True

    async def try_topics(self, wanted: Sequence[TopicShape]) -> dict[str, Failed]:
        """Check whether topics could be created (validate_only); return the refusals by topic. Create nothing."""
        refused: dict[str, Failed] = {}
        for at in range(0, len(wanted), _MOST_TOPICS):
            new = [
                NewTopic(each.name, each.partitions, each.replicas, config=dict(each.configs))
                for each in wanted[at : at + _MOST_TOPICS]
            ]
            outcomes = await self._outcomes(
                partial(self.client.create_topics, new, operation_timeout=self._timeout, validate_only=True),
                lambda name: f"create topic {name}",
                lambda name: ("CREATE", f"topic {name}"),
            )
            refused |= {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failed)}
        return refused

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; a missing topic is no error."""
        try:
            await self._one(
                lambda: self.client.delete_topics([name], operation_timeout=self._timeout),
                f"delete topic {name}",
                ("DELETE", f"topic {name}"),
            )
        except BrokerRefused as refused:
            if refused.code != 3:
                raise

    async def create_partitions(self, name: str, total: int) -> None:
        """Raise a topic's number of partitions to `total`."""
        wanted = [NewPartitions(name, total)]
        await self._one(
            lambda: self.client.create_partitions(wanted, operation_timeout=self._timeout),
            f"give topic {name} {total} partitions",
            ("ALTER", f"topic {name}"),
        )

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        """Return all configs of topics, by topic and key."""
        outcomes = await self.topic_config_outcomes(names)
        _raise_first(outcomes)
        return {name: configs for name, configs in outcomes.items() if isinstance(configs, dict)}

    async def topic_config_outcomes(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue] | KmigrateError]:
        """Return an outcome per topic: its configs, or why the configs cannot be read."""
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        reported = await self._outcomes(
            lambda: self.client.describe_configs(resources, request_timeout=self._timeout),
            lambda resource: f"describe the configs of topic {resource.name}",
            lambda resource: ("DESCRIBE_CONFIGS", f"topic {resource.name}"),
        )
        out: dict[str, dict[str, ConfigValue] | KmigrateError] = {}
        for resource, entries in reported.items():
            if isinstance(entries, Failed):
                out[str(resource.name)] = entries
                continue
            out[str(resource.name)] = {
                key: ConfigValue(entry.value or "", ConfigSource(entry.source) == ConfigSource.DYNAMIC_TOPIC_CONFIG)
                for key, entry in entries.items()
            }
        return out

    async def alter_topic_configs(
        self, name: str, put: Mapping[str, str], remove: Sequence[str] = (), *, try_only: bool = False
    ) -> None:
        """Set and remove single configs of a topic; other configs stay. With `try_only`, only validate the change."""
        entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in put.items()]
        entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in remove]
        if not entries:
            return
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        await self._one(
            lambda: self.client.incremental_alter_configs(
                [resource], request_timeout=self._timeout, validate_only=try_only
            ),
            f"alter the configs of topic {name}",
            ("ALTER_CONFIGS", f"topic {name}"),
        )

    async def broker_config(self, node: int, key: str) -> ConfigValue | None:
        return (await self.broker_configs(node)).get(key)

    async def broker_configs(self, node: int) -> dict[str, ConfigValue]:
        """Return all configs of a broker; `own` marks a dynamic cluster-wide default."""
        resource = ConfigResource(ResourceType.BROKER, str(node))
        entries = await self._one(
            lambda: self.client.describe_configs([resource], request_timeout=self._timeout),
            f"describe the configs of broker {node}",
            ("DESCRIBE_CONFIGS", _CLUSTER),
        )
        dynamic = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return {key: ConfigValue(e.value or "", ConfigSource(e.source) == dynamic) for key, e in entries.items()}

    # ACLs (`kmigrate.cluster.acls` reads them)

    async def create_acls(self, acls: Collection[Acl]) -> None:
        """Create ACLs; an existing ACL stays unchanged."""
        if not acls:
            return
        bindings = {AclBinding(*_acl_fields(acl)): acl for acl in acls}
        _raise_first(
            await self._outcomes(
                lambda: self.client.create_acls(list(bindings)),
                lambda binding: f"create the ACL: {bindings[binding]}",
                lambda _: ("ALTER", _CLUSTER),
            )
        )

    async def delete_acls(self, acls: Collection[Acl]) -> None:
        """Delete exactly these ACLs; a missing ACL is no error."""
        if not acls:
            return
        filters = {AclBindingFilter(*_acl_fields(acl)): acl for acl in acls}
        _raise_first(
            await self._outcomes(
                lambda: self.client.delete_acls(list(filters)),
                lambda each: f"delete the ACL: {filters[each]}",
                lambda _: ("ALTER", _CLUSTER),
            )
        )

    # groups

    async def groups(self) -> dict[str, str]:
        """Return all consumer groups of the cluster and their states."""
        what = "list consumer groups"
        result = await self._one(
            lambda: self.client.list_consumer_groups(request_timeout=self._timeout), what, ("DESCRIBE", _CLUSTER)
        )
        for error in result.errors:  # errors of single brokers: without their groups the list would be incomplete
            raise self._translate(KafkaException(error), what, ("DESCRIBE", _CLUSTER))
        return {str(g.group_id): g.state.name.lower() for g in result.valid}

    async def delete_groups(self, names: Sequence[str]) -> list[str]:
        """Delete groups and their positions; return the groups that still have members. An unknown group is gone."""
        if not names:
            return []
        outcomes = await self._outcomes(
            lambda: self.client.delete_consumer_groups(list(names), request_timeout=self._timeout),
            lambda name: f"delete group {name}",
            lambda name: ("DELETE", f"group {name}"),
        )
        _raise_first({name: each for name, each in outcomes.items() if getattr(each, "code", 0) not in _GROUP_ENDS})
        return [name for name, each in outcomes.items() if getattr(each, "code", 0) == Code.NON_EMPTY_GROUP]

    async def describe_groups(self, names: Sequence[str]) -> dict[str, GroupState]:
        """Return state and members of groups; a group that the cluster does not know is `dead` and empty.

        A group keeps the placeholder's protocol type until a consumer joins: such a group has no consumer.
        """
        if not names:
            return {}
        outcomes = await self._outcomes(
            lambda: self.client.describe_consumer_groups(list(names), request_timeout=self._timeout),
            lambda name: f"describe group {name}",
            lambda name: ("DESCRIBE", f"group {name}"),
        )
        out: dict[str, GroupState] = {}
        for name, reported in outcomes.items():
            if isinstance(reported, BrokerRefused) and reported.code == 69:  # GROUP_ID_NOT_FOUND, since Kafka 4
                out[name] = GroupState(name, "dead", "unknown", ())
                continue
            if isinstance(reported, BrokerRefused) and _is_left_by_hold(reported):
                out[name] = GroupState(name, "empty", "classic", ())
                continue
            if isinstance(reported, Failed):
                raise reported
            out[name] = GroupState(
                name,
                reported.state.name.lower(),
                getattr(getattr(reported, "type", None), "name", "classic").lower(),
                tuple(GroupMember(m.member_id, m.client_id, m.host) for m in reported.members),
                frozenset(part.topic for m in reported.members for part in _assigned(m)),
                {m.member_id: tuple(_keys(m.assignment.topic_partitions)) for m in reported.members},
            )
        return out


# librdkafka gets functions that do not reference the owner of its client. In a reference cycle, the garbage collector
# would end the client, maybe inside one of its own callbacks. A client that ends there hangs or aborts.


def _hearing(login_failures: list[str], connect_failures: list[str]) -> Callable[[KafkaError], None]:
    """Return librdkafka's error callback, which keeps failed logins and the newest failed connection."""

    def hear(error: KafkaError) -> None:
        if error.code() in _CONNECT:
            connect_failures[:] = [error.str()]
        if error.code() in _LOGIN or _ALERT in error.str():
            login_failures.append(error.str())

    return hear


def _is_left_by_hold(refused: BrokerRefused) -> bool:
    """Return whether librdkafka refuses to describe a group for the placeholder's protocol type."""
    return refused.code == KafkaError._INVALID_ARG and f"is not a consumer group ({HOLD_TYPE})" in refused.what


def _assigned(member: MemberDescription) -> list[TopicPartition]:
    """Return the partitions that a group's member has, and those that its coordinator is about to assign (KIP-848)."""
    wanted = member.target_assignment
    return [*member.assignment.topic_partitions, *(wanted.topic_partitions if wanted is not None else ())]


def _keys(parts: Sequence[TopicPartition]) -> list[tuple[str, int]]:
    return sorted((part.topic, part.partition) for part in parts)


def _raise_first(outcomes: Mapping[Any, Any]) -> None:
    for outcome in outcomes.values():
        if isinstance(outcome, Failed):
            raise outcome


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
