"""A cluster as our wire client sees it: its leaders, and a connection per broker and purpose.

`ClusterClient` routes a request to its broker and returns plain values. An answer per key is data, never an exception,
because a fan-out may fail in part. Raw Fetch and Produce also get their connections here. Nothing in this module
retries for ever: callers own their deadlines.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kmigrate.cluster.health import BrokerHealth, LeadershipCrossCheck, Logins, first_answer
from kmigrate.cluster.metadata import (
    METADATA_VERSION,
    Metadata,
    MetadataCache,
    TopicInfo,
    Topics,
    ask_about,
    names_in,
)
from kmigrate.cluster.requests import (
    NO_LEADER,
    Key,
    LogOffset,
    RequestBatcher,
    ask_for_largest,
    ask_versions,
    newest_versions,
    offsets_in,
    partitions_of,
    refuse_too_old,
    topics_of,
)
from kmigrate.errors import AuthenticationFailed, BrokerRefused, Unreachable
from kmigrate.model.ids import LARGEST
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import TaskOwner, together
from kmigrate.protocol.api import ApiKey, Message, element_type, entity, millis_of
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.protocol.offsets import LIST_OFFSETS_VERSION, decode_offsets, encode_offsets

__all__ = [
    "MARKERS",
    "PRODUCER_EXPIRATION",
    "ClusterClient",
    "LogOffset",
    "ProducerState",
    "api_versions",
    "until_answered",
]

HIGH_WATERMARK, LOG_END = -1, -2
"""ListOffsets' replica_id: −1 returns the high watermark, −2 the log end (V1)."""
LATEST, EARLIEST = -1, -2
MARKERS = "markers"
"""Prefix of the purposes of connections that write control records: a broker must not work on abandoned requests."""
_MOST_REFRESHES = 256
_PAUSE_S = 0.1
"""Seconds before a request is repeated whose error may pass."""
PRODUCER_EXPIRATION = "producer.id.expiration.ms"
"""Broker default for how long a silent producer's sequences are remembered, by its records' age (W1)."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """An active producer of a partition, as DescribeProducers reports it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    txn_start_offset: int
    coordinator_epoch: int = -1
    """Coordinator epoch of the producer's newest control marker; −1 if the partition holds no marker of its id."""


def _producer_state(reported: Message) -> ProducerState:
    return ProducerState(
        int(reported.producer_id),
        int(reported.producer_epoch),
        int(reported.last_sequence),
        millis_of(reported.last_timestamp),
        int(reported.current_txn_start_offset),
        int(reported.coordinator_epoch),
    )


Producers = tuple[ProducerState, ...]
_T = TypeVar("_T")


class ClusterClient:
    """Connections, metadata and the requests that kmigrate sends to a cluster."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.metadata_cache = MetadataCache()
        self._connections: dict[tuple[int, str], BrokerConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Lock] = {}
        self._refresh_lock = asyncio.Lock()
        self._refreshes: dict[Topics, float] = {}
        """The time at which the newest response to each metadata request was requested."""
        self._log_ends = RequestBatcher(self.log_ends)
        self._log_starts = RequestBatcher(lambda keys: self.list_offsets(dict.fromkeys(keys, EARLIEST)))
        self._producers = RequestBatcher(self._describe_all)
        self._logins = Logins()
        self._closed = False
        self.health = BrokerHealth()
        self._cross_check = LeadershipCrossCheck(self.metadata_cache, self.health, self._ask_for_metadata)

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close for good: later requests are refused, and open no connection that nobody would close."""
        self._closed = True
        await self._cross_check.close()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # metadata

    @property
    def metadata(self) -> Metadata:
        """The known metadata; a new object as soon as there is news."""
        return self.metadata_cache.known

    async def bootstrap(self) -> BrokerConnection:
        """Return a connection to a broker: known brokers, then bootstrap addresses; silent or outdated brokers last."""
        controls = [each for (_, purpose), each in self._connections.items() if purpose == "control"]
        known = {each.address: each for each in controls if not each.lost}
        for address, connection in known.items():
            if address not in self.health and address not in self._cross_check:
                return connection
        failures: list[str] = []
        addresses = [*self.metadata.brokers.items()]
        addresses += [(-1 - n, address) for n, address in enumerate(self.settings.bootstrap)]

        def rank(each: tuple[int, tuple[str, int]]) -> tuple[tuple[float, bool], tuple[float, bool]]:
            return self.rank(each[1]), self._logins.rank("{}:{}".format(*each[1]))

        for node, (host, port) in sorted(addresses, key=rank):
            if (doubted := known.get(f"{host}:{port}")) is not None:
                return doubted
            try:
                # A failed login is raised at once: asking the other brokers would only lock the account.
                return await self._open(node, host, port, "control")
            except Unreachable as error:
                failures.append(error.what)
        raise Unreachable(
            "cluster-unreachable",
            f"no broker of cluster {self.settings.name} ({self.settings.bootstrap_servers}) answers: "
            + "; ".join(dict.fromkeys(failures)),
            still_true="nothing was changed",
            next_step=f"check the bootstrap address of [clusters.{self.settings.name}] and that its brokers run",
        )

    async def refresh(self, topics: Iterable[str] | None = None) -> Metadata:
        """Read metadata anew, of all topics if `topics` is None. Never create a topic (D11).

        Callers share a request sent after their calls: hundreds of partitions notice a change at once.
        """
        called = monotonic()
        asked: Topics = None if topics is None else tuple(topics)
        async with self._refresh_lock:
            if self._refreshes.get(asked, called) > called:
                return self.metadata
            if not self.metadata.cluster_id:
                refuse_too_old(await self._first_answer(ask_versions, memoryview), self.settings)
            began = monotonic()
            metadata = await self._ask_any_broker(asked, lambda answer: self.metadata_cache.hear(asked, answer))
            if len(self._refreshes) >= _MOST_REFRESHES:
                self._refreshes.clear()
            self._refreshes[asked] = began
            self._cross_check.heard(self.health.last_heard)
            return metadata

    async def names_taken(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the names, except topics unknown to a broker; keep nothing: clients may send any number of names."""
        return await self._ask_any_broker(tuple(topics), names_in)

    async def _ask_any_broker(self, asked: Topics, hear: Callable[[bytearray], _T]) -> _T:
        question = ask_about(asked)
        return await self._first_answer(
            lambda connection: connection.send(ApiKey.METADATA, METADATA_VERSION, [question], flexible=True), hear
        )

    async def _first_answer(
        self, ask: Callable[[BrokerConnection], asyncio.Future[bytearray]], hear: Callable[[bytearray], _T]
    ) -> _T:
        return await first_answer(self.bootstrap, ask, hear, self.health, self.settings.request_timeout_s)

    async def _ask_for_metadata(self, node: int, topics: Topics) -> bytearray:
        connection = await self.connection(node)
        return await connection.call_raw(
            ApiKey.METADATA,
            METADATA_VERSION,
            [ask_about(topics)],
            flexible=True,
            timeout=self.settings.request_timeout_s,
        )

    def rank(self, address: tuple[str, int]) -> tuple[float, bool]:
        """Return the sort key of a broker (ask the greatest last): silent since, and whether found behind another."""
        named = "{}:{}".format(*address)
        return self.health.since(named), named in self._cross_check

    async def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, read now; None if the cluster does not have the topic."""
        return (await self.refresh([name])).topics.get(name)

    async def find_topic(self, name: str) -> TopicInfo | None:
        """Return a topic as any broker knows it; all brokers are asked at once.

        A new broker may not know the topic yet; raise Unreachable if a broker that may know the topic is silent.
        """
        found = await self.topic(name)
        if found is not None:
            return found
        silent: Unreachable | None = None
        tasks = TaskOwner()
        try:
            asked = [tasks.start(self.topic_at(node, name)) for node in self.metadata.brokers]
            for answer in asyncio.as_completed(asked):
                reported: TopicInfo | None = None
                try:
                    reported = await answer
                except Unreachable as error:
                    silent = error
                if reported is not None:
                    return reported
        finally:
            await tasks.close()
        if silent is not None:
            raise silent
        return None

    async def topic_at(self, node: int, name: str) -> TopicInfo | None:
        """Return a topic as this broker knows it; later leaders that we know from other brokers stay."""
        return self.metadata_cache.hear((name,), await self._ask_for_metadata(node, (name,))).topics.get(name)

    def leader(self, topic: str, partition: int) -> int:
        """Return the known leader's node id; −1 if there is no leader or the leader is unknown."""
        part = self.metadata.partition(topic, partition)
        return part.leader if part else -1

    async def connection(self, node: int, purpose: str = "control") -> BrokerConnection:
        """Return the connection to a broker for a purpose; different purposes never queue behind each other."""
        known = self.open_connection(node, purpose)
        if known is not None and not self._closed:
            return known
        address = self.metadata.brokers.get(node)
        if address is None:
            await self.refresh([])
            address = self.metadata.brokers.get(node)
        if address is None:
            raise Unreachable("unknown-broker", f"cluster {self.settings.name} has no broker {node} now")
        return await self._open(node, *address, purpose)

    def is_open(self, node: int, purpose: str) -> bool:
        """Return whether a request for this purpose would leave at once."""
        return self.open_connection(node, purpose) is not None

    def open_connection(self, node: int, purpose: str) -> BrokerConnection | None:
        """Return the connection to a broker for a purpose, if a request would leave at once; else None."""
        known, address = self._connections.get((node, purpose)), self.metadata.brokers.get(node)
        if known is None or address is None or known.lost or known.holds:
            return None
        return known if known.address == "{}:{}".format(*address) else None

    def any_broker(self) -> int:
        """Return the node id of a broker for a request that any broker can answer; −1 while no broker is known.

        Prefer the connected one that answered last, then connected ones: dead or hung brokers stay listed for seconds.
        """
        connected = {each.address for each in self._connections.values() if not each.lost}
        brokers = self.metadata.brokers

        def rank(node: int) -> tuple[tuple[float, bool], bool, bool]:
            address = "{}:{}".format(*brokers[node])
            return self.rank(brokers[node]), address not in connected, address != self.health.last_heard

        return min(brokers, key=rank, default=-1)

    async def _open(self, node: int, host: str, port: int, purpose: str) -> BrokerConnection:
        key = (node, purpose)
        self._refuse_closed()
        async with self._opening.setdefault(key, asyncio.Lock()):
            known, address = self._connections.get(key), f"{host}:{port}"
            if known is not None and not known.lost and known.address == address:
                return known
            self._logins.check(address)
            try:
                opened = await BrokerConnection.open(
                    host,
                    port,
                    client_id=self.settings.client_id,
                    security=self.settings.security,
                    cluster=self.settings.name,
                    forgetful=purpose.startswith(MARKERS),
                )
            except AuthenticationFailed as failed:
                self._logins.refused(address, failed)
                raise
            self._logins.accepted(address)
            if self._closed:
                opened.close()
            self._refuse_closed()
            self._connections[key] = opened
            return opened

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Unreachable("client-closed", f"cluster {self.settings.name} is not asked any more")

    async def call(self, request: Message, node: int | None = None, *, purpose: str = "control") -> Message:
        """Send a request to a broker; to any broker if `node` is None."""
        return await self._call_at(node, purpose, lambda connection, patience_s: connection.call(request, patience_s))

    async def _call_at(
        self, node: int | None, purpose: str, call: Callable[[BrokerConnection, float], Awaitable[_T]]
    ) -> _T:
        """Call a broker, any broker if `node` is None, and note whether the broker answers."""
        connection = await self.bootstrap() if node is None else await self.connection(node, purpose)
        try:
            answer = await call(connection, self.settings.request_timeout_s)
        except Unreachable as unreachable:
            self.health.failed(connection.address, unreachable)
            raise
        self.health.heard(connection.address)
        return answer

    # offsets

    async def list_offsets(
        self,
        wanted: Mapping[Key, int],
        *,
        replica_id: int = HIGH_WATERMARK,
        read_committed: bool = False,
        purpose: str = "control",
        partly: bool = False,
    ) -> dict[Key, LogOffset]:
        """Return offsets of LATEST (high watermark; log end if `replica_id=LOG_END`: V1), EARLIEST or ms timestamps.

        `partly`: partitions of a silent leader have the answer of partitions without a leader; else Unreachable.
        """

        async def ask(node: int, keys: Sequence[Key]) -> Mapping[Key, LogOffset]:
            question = {key: wanted[key] for key in keys}
            try:
                return await self.list_offsets_at(
                    node, question, replica_id=replica_id, read_committed=read_committed, purpose=purpose
                )
            except Unreachable:
                if not partly:
                    raise
                return {}

        return {**dict.fromkeys(wanted, NO_LEADER), **await self._ask_leaders(wanted, ask)}

    async def list_offsets_at(
        self,
        node: int,
        wanted: Mapping[Key, int],
        *,
        epochs: Mapping[Key, int] | None = None,
        replica_id: int = HIGH_WATERMARK,
        read_committed: bool = False,
        purpose: str = "control",
    ) -> dict[Key, LogOffset]:
        """Return any broker's answer, also a follower's own log end; a broker with another epoch than asked refuses."""
        if LARGEST in wanted.values():
            question = ask_for_largest(wanted, epochs or {}, replica_id=replica_id, read_committed=read_committed)
            return offsets_in(await self.call(question, node, purpose=purpose))
        body = encode_offsets(wanted, epochs or {}, replica_id=replica_id, read_committed=read_committed)
        answer = await self._call_at(
            node,
            purpose,
            lambda connection, patience_s: connection.call_raw(
                ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, body, flexible=False, timeout=patience_s
            ),
        )
        return decode_offsets(answer)

    async def log_ends(self, keys: Iterable[Key]) -> dict[Key, LogOffset]:
        """Return the log ends (not high watermarks) of partitions."""
        return await self.list_offsets(dict.fromkeys(keys, LATEST), replica_id=LOG_END)

    async def log_end(self, key: Key) -> LogOffset:
        """Return a partition's log end; many concurrent callers share a request."""
        return await self._log_ends.ask(self.leader(*key), key)

    async def log_start(self, key: Key) -> LogOffset:
        """Return a partition's log start; many concurrent callers share a request."""
        return await self._log_starts.ask(self.leader(*key), key)

    async def _ask_leaders(
        self, keys: Iterable[Key], ask: Callable[[int, Sequence[Key]], Coroutine[Any, Any, Mapping[Key, _T]]]
    ) -> dict[Key, _T]:
        """Ask each leader for its partitions, and return all answers; partitions without a leader are missing."""
        asked = list(keys)
        missing = {topic for topic, partition in asked if self.leader(topic, partition) < 0}
        if missing:
            await self.refresh(missing)
        by_leader: dict[int, list[Key]] = {}
        for key in asked:
            by_leader.setdefault(self.leader(*key), []).append(key)
        by_leader.pop(-1, None)

        found = await together(*(ask(node, led) for node, led in by_leader.items()))
        return {key: value for answer in found for key, value in answer.items()}

    # producers and transactions

    async def init_producer_id(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> tuple[int, int]:
        """Return a producer id and epoch of this cluster (M7: a transactional id needs FindCoordinator first)."""
        kind = entity(ApiKey.INIT_PRODUCER_ID, 4, "request")
        request = kind(
            transactional_id=transactional_id,
            transaction_timeout=_ms(timeout_ms),
            producer_id=-1,
            producer_epoch=-1,
        )

        async def ask() -> Message:
            node = None if transactional_id is None else await self.find_coordinator(transactional_id, kind=1)
            return await self.call(request, node)

        answer = await until_answered(self, "InitProducerId", ask)
        return int(answer.producer_id), int(answer.producer_epoch)

    async def find_coordinator(self, key: str, *, kind: int = 0) -> int:
        """Return the node id of the coordinator of a group (kind 0) or a transactional id (kind 1)."""
        request = entity(ApiKey.FIND_COORDINATOR, 3, "request")(key=key, key_type=kind)
        return int((await until_answered(self, "FindCoordinator", lambda: self.call(request))).node_id)

    async def describe_producers(self, keys: Iterable[Key]) -> dict[Key, tuple[int, Producers]]:
        """Return error code and active producers of each partition, from its leader (Kafka ≥ 2.8)."""
        request = entity(ApiKey.DESCRIBE_PRODUCERS, 0, "request")
        topic_type = element_type(request, "topics")

        async def ask(node: int, asked: Sequence[Key]) -> Mapping[Key, tuple[int, Producers]]:
            topics: dict[str, list[int]] = {}
            for topic, partition in asked:
                topics.setdefault(topic, []).append(partition)
            named = tuple(topic_type(name=t, partition_indexes=tuple(p)) for t, p in topics.items())
            answer = await self.call(request(topics=named), node)
            return {
                key: (code_of(part.error_code), tuple(map(_producer_state, part.active_producers)))
                for key, part in partitions_of(answer)
            }

        return await self._ask_leaders(keys, ask)

    async def _describe_all(self, keys: Collection[Key]) -> dict[Key, tuple[int, Producers]]:
        return {**dict.fromkeys(keys, (Code.UNKNOWN_SERVER_ERROR, ())), **await self.describe_producers(keys)}

    async def producers(self, key: Key) -> tuple[int, Producers]:
        """Return error code and active producers of a partition; many concurrent callers share a request."""
        return await self._producers.ask(self.leader(*key), key)

    async def write_markers(
        self,
        node: int,
        topic: str,
        partition: int,
        count: int,
        *,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        commit: bool = True,
        purpose: str = MARKERS,
    ) -> int:
        """Append `count` markers, an offset each; return the error code: only the log end tells how many (M2, W5)."""
        request = entity(ApiKey.WRITE_TXN_MARKERS, 1, "request")
        marker_type = element_type(request, "markers")
        topic_type = element_type(marker_type, "topics")
        marker = marker_type(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=(topic_type(name=topic, partition_indexes=(partition,)),),
            coordinator_epoch=coordinator_epoch,
        )
        answer = await self.call(request(markers=(marker,) * count), node, purpose=purpose)
        parts = (part for result in answer.markers for named in result.topics for part in named.partitions)
        return next(filter(None, (code_of(part.error_code) for part in parts)), 0)

    async def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Move log starts up to the given offsets; return error code and low watermark by partition."""
        request = entity(ApiKey.DELETE_RECORDS, 2, "request")

        async def ask(node: int, asked: Sequence[Key]) -> Mapping[Key, tuple[int, int]]:
            topics = topics_of(request, {key: {"offset": offsets[key[1]]} for key in asked})
            answer = await self.call(request(topics=topics, timeout=_ms(30_000)), node)
            return {key: (code_of(part.error_code), int(part.low_watermark)) for key, part in partitions_of(answer)}

        deleted = await self._ask_leaders(((topic, partition) for partition in offsets), ask)
        return {partition: outcome for (_, partition), outcome in deleted.items()}

    async def set_broker_default(self, key: str, value: str | None, *, only_ask: bool = False) -> int:
        """Set (None: remove) a cluster-wide dynamic broker default, and return the broker's error code (W1).

        `only_ask` only checks the permission. A broker also accepts unknown keys (`cluster.producer_expiration`).
        """
        request = entity(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "request")
        resource_type = element_type(request, "resources")
        config_type = element_type(resource_type, "configs")
        config = config_type(name=key, config_operation=0 if value is not None else 1, value=value)
        answer = await self.call(
            request(
                resources=(resource_type(resource_type=4, resource_name="", configs=(config,)),),
                validate_only=only_ask,
            )
        )
        return code_of(answer.responses[0].error_code)


def _error(answer: Message) -> int:
    return code_of(answer.error_code)


async def until_answered(
    client: ClusterClient,
    what: str,
    ask: Callable[[], Awaitable[Message]],
    code: Callable[[Message], int] = _error,
    *,
    within_s: float | None = None,
) -> Message:
    """Ask until an answer has no error; raise BrokerRefused for a lasting error, and after a request's usual time."""
    tries = Backoff(_PAUSE_S, within_s=client.settings.request_timeout_s if within_s is None else within_s)
    while True:
        answer = await ask()
        if not (error := code(answer)):
            return answer
        refused = BrokerRefused(
            "broker-refused",
            f"cluster {client.settings.name} answered {what} with {row(error).name} ({error})",
            code=error,
            still_true="nothing was changed by this request",
        )
        if not row(error).retriable:
            raise refused
        await tries.pause(refused)


async def api_versions(client: ClusterClient, node: int | None = None, *, purpose: str = "control") -> dict[int, int]:
    """Return the newest version of each request, by API key; an older broker ends a connection at unknown requests."""
    request = entity(ApiKey.API_VERSIONS, 0, "request")
    return newest_versions(await client.call(request(), node, purpose=purpose))


def _ms(value: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=value)
