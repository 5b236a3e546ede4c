"""Asks the two clusters on behalf of the router's sessions: leaders, ids, producers, log ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient, ProducerState
from kmigrate.cluster.log_probes import find_batch
from kmigrate.cluster.requests import FIRST_WITH_LARGEST, newest_versions
from kmigrate.cluster.transactions import add_partition, open_topics
from kmigrate.errors import BrokerRefused, KmigrateError
from kmigrate.model.records import LinkRecord, ProducerMark
from kmigrate.model.routes import RoutingTable, Serve, TopicRoute
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.process.answers import in_background
from kmigrate.router.process.copy_progress import wait_copied
from kmigrate.router.shared.conversation import Future
from kmigrate.router.shared.deferred_partitions import ProducerIdentity
from kmigrate.router.shared.gate import ring_distance
from kmigrate.router.shared.state import TARGET, LogProducer, StoredBatch
from kmigrate.router.shared.time_lookups import Found
from kmigrate.router.wire.api_versions import common_api_versions
from kmigrate.router.wire.apis import OFFERED

__all__ = ["Clusters"]

_log = logging.getLogger("kmigrate.router")

_REFRESH_PAUSE_S = 0.05
"""Pause between two metadata reads of one source: after a moved leader, every client asks at once."""
_SPARE_TOPICS = 100
"""Number of a source's topics that may stay known without need: each drop changes the metadata."""
_UNTIL_GRANTED_S = 1.0
"""Pause between two attempts for which kmigrate itself has no right."""
_REFUSED = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
_LONGEST_SOUGHT_S = 1.0
"""Longest search for a duplicate's offset in a log: the answer for a stored batch does not wait longer for it."""
_LONGEST_ASKED_S = 5.0
"""Longest time for asking whether a cluster knows a producer.

No write that wants an answer is held longer, and a write that still waits asks again.
"""


class _Source:
    """A link's source cluster, with the newest API versions that its brokers speak."""

    def __init__(self, link: LinkRecord, client: ClusterClient) -> None:
        self.link = link
        self.client = client
        self.produce_version = -1
        self.spans: dict[int, int] = {}
        self.tells_transactions = False
        self.wanted: set[str] = set()
        self.refreshing = False
        self.gone = False
        """True if the link is gone: the source is asked nothing more."""
        self._trouble = ""

    async def learn(self) -> None:
        """Read the leaders of the wanted topics, and once the API versions."""
        topics, self.wanted = self.wanted, set()
        await self.client.refresh(topics)
        if self.produce_version < 0:
            self.spans = spans = await _spans(self.client)
            self.tells_transactions = ApiKey.DESCRIBE_TRANSACTIONS in spans
            self.produce_version = spans[ApiKey.PRODUCE]
        self.answered()

    def answered(self) -> None:
        if self._trouble:
            self._trouble = ""
            _log.warning("source of link %s: it answers again", self.link.name, extra={"link": self.link.name})

    def failed(self, error: KmigrateError) -> None:
        """Log once that the source could not be asked, however often the request is tried again."""
        if error.what != self._trouble and not self.gone:
            self._trouble = error.what
            _log.warning("source of link %s: %s", self.link.name, error.what, extra={"link": self.link.name})


def _reaches(state: ProducerState, stored: StoredBatch) -> bool:
    """Return whether a log's producer state includes a batch, or the producer has begun anew behind the batch."""
    if state.producer_id != stored.producer_id or state.last_sequence < 0:
        return False
    if state.producer_epoch != stored.epoch:
        return state.producer_epoch > stored.epoch
    return ring_distance(state.last_sequence, stored.sequence) >= 0


def _mark_of(producer_id: int, states: Iterable[ProducerState]) -> ProducerMark:
    """Return a producer's newest batch in a log; −1 without a record."""
    of_it = [state for state in states if state.producer_id == producer_id]
    epoch, last = (of_it[0].producer_epoch, of_it[0].last_sequence) if of_it else (-1, -1)
    return ProducerMark(producer_id, epoch, last)


async def _spans(client: ClusterClient) -> dict[int, int]:
    """Return the highest version of each API of a cluster's brokers."""
    answer = await client.call(entity(ApiKey.API_VERSIONS, 0, "request")())
    return newest_versions(answer)


async def _read_ends(
    cluster: ClusterClient, keys: Collection[tuple[str, int]], ends: dict[tuple[str, int], int]
) -> None:
    """Read the log ends that readers see; if a partition's leader has changed, ask the new leader once."""
    for last in (False, True):
        told = await cluster.list_offsets(dict.fromkeys(keys, LATEST))
        ends |= {key: end.offset for key, end in told.items() if not end.error}
        keys = [key for key in keys if key not in ends]
        if last or not keys:
            return
        await cluster.refresh({topic for topic, _ in keys})


class Clusters:
    """Implements `Backend`: runs requests as tasks, and gives answers to callbacks."""

    def __init__(
        self,
        target: ClusterClient,
        source_client: Callable[[LinkRecord], ClusterClient],
        tasks: TaskOwner,
        on_brokers: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        self.target = target
        self._source_client = source_client
        self._tasks = tasks
        self._on_brokers = on_brokers
        self._on_drained = on_drained
        self._sources: dict[str, _Source] = {}
        self._unfinished: tuple[str, ...] = ()
        """Links that may still mirror topics of their sources."""
        self._source_ids: dict[str, str] = {}
        self._routes: Mapping[str, TopicRoute] = {}
        """Routes of the newest table."""
        self._leaderless: set[str] = set()
        """Topics whose leaders the source has not told yet."""
        """Source ids of topics that are mirrored, or were until their promote."""
        self._refreshing_target = False
        self._target_tells = False
        self._target_versions: Any | None = None
        self._asking: dict[LogProducer, Future[ProducerMark | None]] = {}
        """Callbacks that wait for a log's state of a producer: a single task asks for all."""

    async def learn_target(self) -> None:
        """Read the API versions of all brokers of the target that answer."""
        spans = await _spans(self.target)
        self._target_tells = ApiKey.DESCRIBE_TRANSACTIONS in spans
        newest = min(spans[ApiKey.API_VERSIONS], OFFERED[ApiKey.API_VERSIONS].versions[1])
        question = entity(ApiKey.API_VERSIONS, newest, "request")
        request = question(client_software_name="kmigrate", client_software_version="router")
        answers = []
        for node in sorted(self.target.metadata.brokers):
            try:
                answers.append(await self.target.call(request, node))
            except KmigrateError as error:
                _log.warning("broker %s of the target does not tell what it speaks: %s", node, error.what)
        told = [answer for answer in answers if not code_of(answer.error_code)]
        self._target_versions = common_api_versions(told) if told else None

    def target_versions(self) -> Any | None:
        return self._target_versions

    def follow(self, state: State, table: RoutingTable) -> None:
        """Open the sources of all links, close those of gone links, and read the leaders of topics (to be) forwarded.

        A new link's requests must not go to an earlier link's source. A source switched off would be tried forever.
        """
        self._unfinished = tuple(link.name for link in state.links() if not link.finished_ms)
        uuids = {link.name: link.uuid for link in state.links()}
        for name in [name for name, source in self._sources.items() if source.link.uuid != uuids.get(name)]:
            source = self._sources.pop(name)
            source.gone = True
            self._tasks.start(source.client.close())
        for link in state.links():
            if link.name not in self._sources:
                try:
                    self._sources[link.name] = _Source(link, self._source_client(link))
                except KmigrateError as error:
                    # Writes to this link's topics get "not leader" until the configuration knows the cluster.
                    _log.error("source of link %s: %s", link.name, error.what, extra={"link": link.name})
        names = table.changes_since(self._routes)
        self._routes = table.topics
        for name in names:
            self._source_ids.pop(name, None)
            route = table.topics.get(name)
            if route is not None and (route.source_id or not route.at_target):  # an old source tells no ids
                self._source_ids[name] = route.source_id
        self._forget_topics(table)
        self._read_leaders(table, names)

    def _read_leaders(self, table: RoutingTable, changed: Iterable[str]) -> None:
        """Read the leaders of topics whose routes have changed, and of topics whose source has told none yet."""
        for name in self._leaderless.union(changed):
            route = table.topics.get(name)
            self._leaderless.discard(name)
            if route is None or route.serve is Serve.LOCAL:
                continue
            source = self._sources.get(route.link)
            if source is None or route.topic not in source.client.metadata.topics or source.produce_version < 0:
                self._leaderless.add(name)
                if source is not None:
                    self.refresh_source(route.link, route.topic)

    def _forget_topics(self, table: RoutingTable) -> None:
        """Drop the leaders of topics that are promoted or gone, if a source has many of them."""
        for name, source in self._sources.items():
            known = len(source.client.metadata.topics)
            if known <= _SPARE_TOPICS:
                continue
            if known > _SPARE_TOPICS + table.routes.link_topics[name]:
                asked = {r.topic for r in table.topics.values() if r.link == name and r.serve is not Serve.LOCAL}
                source.client.metadata_cache.keep(asked)

    # addresses

    async def target_addresses(self, node: int | None) -> Sequence[tuple[str, int]]:
        """Return the address of a target broker (None: any broker)."""
        brokers = self.target.metadata.brokers
        if node is not None:
            return [brokers[node]] if node in brokers else []
        return sorted([*brokers.values(), *self.target.settings.bootstrap], key=self.target.rank)

    async def source_addresses(self, link: str, node: int) -> Sequence[tuple[str, int]]:
        source = self._sources.get(link)
        brokers = source.client.metadata.brokers if source is not None else {}
        return [brokers[node]] if node in brokers else []

    @property
    def target_settings(self) -> ClusterSettings:
        return self.target.settings

    def source_settings(self, link: str) -> ClusterSettings | None:
        """Return the settings of a link's source; None while the source is unknown."""
        source = self._sources.get(link)
        return source.client.settings if source is not None else None

    def source_uuid(self, link: str) -> str:
        """Return the uuid of the link that now has this name; '' while its source is unknown."""
        source = self._sources.get(link)
        return source.link.uuid if source is not None else ""

    # Backend

    def source_leader(self, link: str, topic: str, partition: int) -> tuple[int, int]:
        source = self._sources.get(link)
        if source is None or source.produce_version < 0:
            return -1, -1
        node = source.client.leader(topic, partition)
        return (node if node in source.client.metadata.brokers else -1), source.produce_version

    def source_layout(self, link: str) -> object:
        source = self._sources.get(link)
        return source.client.metadata if source is not None else None

    def source_node(self, link: str) -> int:
        source = self._sources.get(link)
        if source is None:
            return -1
        if source.produce_version < 0:  # no topic of the source is mirrored any more, so nobody has asked yet
            self._refresh(source)
        return source.client.any_broker()

    def tells_transactions(self, link: str) -> bool:
        if link == TARGET:
            return self._target_tells
        source = self._sources.get(link)
        return source is not None and source.tells_transactions

    async def open_at_source(self, link: str, names: Collection[str]) -> Collection[str]:
        """Return the transactional ids that the source calls open; all of them if the source cannot tell."""
        source = self._sources.get(link)
        if source is None or not source.tells_transactions:
            return names
        try:
            found = await open_topics(source.client, names)
            return names if found is None else found
        except KmigrateError as error:
            _log.warning("open transactions of link %s: %s", link, error.what, extra={"link": link})
            return names

    def source_version(self, link: str, api_key: int) -> int:
        source = self._sources.get(link)
        return -1 if source is None else source.spans.get(api_key, -1)

    def refresh_source(self, link: str, topic: str = "") -> None:
        source = self._sources.get(link)
        if source is None:
            return
        if topic:
            source.wanted.add(topic)
        self._refresh(source)

    def refresh_sources(self) -> None:
        """Read which brokers the sources have, and learn from their answers which broker to ask."""
        for link in self._unfinished:
            source = self._sources.get(link)
            if source is not None:
                self._refresh(source)

    @in_background
    async def log_ends(
        self, link: str, keys: Collection[tuple[str, int]], seconds: float
    ) -> Mapping[tuple[str, int], int]:
        source = self._sources.get(link)
        asked = self.target if link == TARGET else source.client if source is not None else None
        ends: dict[tuple[str, int], int] = {}
        try:
            if asked is not None:
                async with asyncio.timeout(seconds):
                    await _read_ends(asked, keys, ends)
        except (TimeoutError, KmigrateError):
            pass  # the brokers are asked every few seconds anyway, and that request logs the fault
        return ends

    @in_background
    async def when_copied(self, link: str, positions: Mapping[tuple[str, int], int], seconds: float) -> bool:
        source = self._sources.get(link)
        try:
            return source is not None and await wait_copied(self.target, source.client, positions, seconds)
        except KmigrateError as error:
            _log.warning("positions at the source of link %s: %s", link, error.what, extra={"link": link})
            return False

    @in_background
    async def look_up(
        self, link: str, times: Mapping[tuple[str, int], int], seconds: float, *, read_committed: bool
    ) -> Mapping[tuple[str, int], Found]:
        source = self._sources.get(link)
        if source is None:
            return {}
        try:
            async with asyncio.timeout(seconds):
                return await self._looked_up(source, times, read_committed=read_committed)
        except (TimeoutError, KmigrateError):
            return {}  # the target's own answer is never too late

    async def _looked_up(
        self, source: _Source, times: Mapping[tuple[str, int], int], *, read_committed: bool
    ) -> dict[tuple[str, int], Found]:
        """Ask a source for log starts and for the offsets of these times, for topics that are the same as mirrored."""
        metadata = await source.client.refresh({topic for topic, _ in times})
        same = {
            name
            for name, info in metadata.topics.items()
            if (known := self._source_ids.get(name)) is not None and not info.is_other_than(known)
        }
        tells_largest = source.spans.get(ApiKey.LIST_OFFSETS, 0) >= FIRST_WITH_LARGEST
        asked = {key: time for key, time in times.items() if key[0] in same and (time >= 0 or tells_largest)}
        starts = await source.client.list_offsets(dict.fromkeys(asked, EARLIEST))
        told = await source.client.list_offsets(asked, read_committed=read_committed)
        return {
            key: Found(starts[key].offset, told[key].offset, told[key].timestamp)
            for key in asked
            if not starts[key].error and not told[key].error
        }

    def _refresh(self, source: _Source) -> None:
        if not source.refreshing:
            source.refreshing = True
            self._tasks.start(self._refresh_source(source))

    async def _refresh_source(self, source: _Source) -> None:
        try:
            while not source.gone:
                wanted = set(source.wanted)
                try:
                    await source.learn()
                except KmigrateError as error:
                    source.wanted |= wanted
                    source.failed(error)
                    await sleep(_REFRESH_PAUSE_S * 4)
                await sleep(_REFRESH_PAUSE_S)
                if not source.wanted:
                    return
        finally:
            source.refreshing = False

    def refresh_target(self) -> None:
        if not self._refreshing_target:
            self._refreshing_target = True
            self._tasks.start(self._refresh_target())

    async def _refresh_target(self) -> None:
        try:
            await self.target.refresh([])
            self._on_brokers()
        except KmigrateError as error:
            _log.warning("target: %s", error.what)
        finally:
            await sleep(_REFRESH_PAUSE_S)
            self._refreshing_target = False

    def at_sources(self, topics: frozenset[str]) -> Future[frozenset[str]]:
        return self._at_sources(topics) if topics and self._unfinished else Future(frozenset())

    @in_background
    async def _at_sources(self, topics: frozenset[str]) -> frozenset[str]:
        there: frozenset[str] = frozenset()
        for link in self._unfinished:
            source, taken = self._sources.get(link), topics
            if source is not None:
                try:
                    taken = await source.client.names_taken(topics)
                    source.answered()
                except KmigrateError as error:
                    source.failed(error)
            there |= taken
        return there

    @in_background
    async def new_producer_id(self) -> int:
        try:
            producer_id, _ = await self.target.init_producer_id()
        except KmigrateError as error:
            _log.warning("no producer id from the target: %s", error.what)
            await sleep(_REFRESH_PAUSE_S)
            return -1
        return producer_id

    def _cluster(self, at: str) -> ClusterClient | None:
        """Return the client of the target, or of a link's source; None while that source is unknown."""
        if at == TARGET:
            return self.target
        source = self._sources.get(at)
        return source.client if source is not None else None

    def producer_mark(self, at: str, topic: str, partition: int, producer_id: int) -> Future[ProducerMark | None]:
        key = at, topic, partition, producer_id
        answer = self._asking.get(key)
        if answer is None:
            answer = self._asking[key] = self._producer_mark(*key)
        return answer

    @in_background
    async def _producer_mark(self, at: str, topic: str, partition: int, producer_id: int) -> ProducerMark | None:
        """Ask until the log's cluster answers; return None after the time limit.

        An abort's marker leaves a producer without a sequence in the log (W4): listed, but without a record.
        """
        key, deadline = (topic, partition), monotonic() + _LONGEST_ASKED_S
        trouble = f"{topic}-{partition}: the source of link {at} is unknown"
        try:
            while True:
                try:
                    if (cluster := self._cluster(at)) is not None:
                        code, states = (await cluster.describe_producers([key])).get(key, (-1, ()))
                        if not code:
                            return _mark_of(producer_id, states)
                        await cluster.refresh([topic])
                        trouble = f"{topic}-{partition}: DescribeProducers answered {code}"
                except KmigrateError as error:
                    trouble = error.what
                if monotonic() >= deadline:
                    _log.warning("gate: %s", trouble)
                    return None
                await sleep(_REFRESH_PAUSE_S)
        finally:
            del self._asking[at, topic, partition, producer_id]

    @in_background
    async def source_has(self, link: str, topic: str, partition: int, stored: StoredBatch) -> bool | None:
        source = self._sources.get(link)
        try:
            if source is not None:
                code, states = await source.client.producers((topic, partition))
                if not code:
                    return any(_reaches(state, stored) for state in states)
                self.refresh_source(link, topic)
        except KmigrateError as error:
            _log.warning("a producer of %s-%d: %s", topic, partition, error.what)
        return None

    @in_background
    async def join_at_target(self, producer: ProducerIdentity, topic: str, partition: int) -> int:
        try:
            code = await add_partition(self.target, producer, topic, partition)
        except BrokerRefused as refused:
            code = refused.code
        except KmigrateError as error:
            _log.warning("transactional id %s: %s", producer[0], error.what)
            code = Code.COORDINATOR_NOT_AVAILABLE
        # kmigrate lacks the right and the client has it, so the client waits until the right is granted
        if code in _REFUSED:
            _log.warning("transactional id %s: kmigrate may not write it, or %s, at the target", producer[0], topic)
            await sleep(_UNTIL_GRANTED_S)
            code = Code.COORDINATOR_NOT_AVAILABLE
        return code

    @in_background
    async def find_stored(self, at: str, topic: str, partition: int, stored: StoredBatch) -> int:
        cluster = self._cluster(at)
        if cluster is None:
            return -1
        producer = stored.producer_id, stored.epoch, stored.sequence
        try:
            async with asyncio.timeout(_LONGEST_SOUGHT_S):
                return await find_batch(cluster, topic, partition, *producer)
        except (KmigrateError, TimeoutError) as error:
            why = error.what if isinstance(error, KmigrateError) else "the cluster does not answer"
            _log.warning("a duplicate is answered without its offset: %s", why)
            return -1

    def drained(self) -> None:
        self._on_drained()

    def say(self, line: str) -> None:
        _log.info("%s", line)

    def warn(self, line: str) -> None:
        _log.warning("%s", line)

    async def close(self) -> None:
        """Close the sources' clients, which were made for this router alone."""
        sources = list(self._sources.values())
        self._sources.clear()
        for source in sources:
            await source.client.close()
