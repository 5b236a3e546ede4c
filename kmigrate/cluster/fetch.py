"""Raw fetches: incremental fetch sessions (KIP-227), full fetches, and a reader that follows one partition.

A session answers only for changed partitions, so an idle estate costs next to nothing. A full fetch (`full=True`)
belongs to no session and answers for every partition that it names. Batches are left as views.

A session names topics by id (KIP-516) if the broker supports ids. Brokers keep a session's partitions in a hash table
without chains, by 31 · partition + the hash of the name, where names that differ in a number collide. A 3.9 broker with
40 topics of 100 partitions, `t-000` to `t-039`, took 5 to 25 s per fetch to find the partitions, and 20 ms with ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from kmigrate.cluster.acls import DENIED, denied
from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.leaders import known_leader, while_it_leads
from kmigrate.cluster.requests import newest_versions
from kmigrate.errors import Failed, KmigrateError, StateLogBroken, Unreachable
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import (
    FETCH_BY_ID_VERSION,
    FETCH_VERSION,
    FetchAnswer,
    FetchedPartition,
    FetchPartition,
    decode_fetch,
    encode_fetch,
)
from kmigrate.records.batch import Batch, walk

__all__ = ["SESSION_ERRORS", "FetchSession", "PlaceLostError", "Tail", "fetch_full", "fetch_one"]

SESSION_ERRORS = frozenset(
    {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH, Code.FETCH_SESSION_TOPIC_ID_ERROR}
)
"""Error codes for a session that the broker has dropped: the next fetch begins another session."""
_MAX_EPOCH = (1 << 31) - 1

_LEAST_REST_S = 0.05

Key = tuple[str, int]


class FetchSession:
    """A reader's fetches to a broker, one at a time, over a separate connection.

    `meant` returns the topic id behind a name, None for any topic; this id counts, whatever the metadata shows.
    """

    def __init__(
        self,
        client: ClusterClient,
        node: int,
        purpose: str,
        *,
        max_bytes: int,
        meant: Callable[[str], UUID | None] | None = None,
    ) -> None:
        self._client = client
        self._node = node
        self._purpose = purpose
        self.max_bytes = max_bytes
        self._meant = meant or (lambda topic: None)
        self._connection: BrokerConnection | None = None
        self._takes_ids = False
        self._forget()

    def _forget(self) -> None:
        self._session = 0
        self._epoch = 0
        self._known: dict[Key, FetchPartition] = {}
        self._ids: dict[str, bytes] | None = None
        """Ids of the topics in the session; None for a session that names topics by name."""

    async def fetch(self, wanted: Mapping[Key, FetchPartition], *, max_wait_ms: int, full: bool) -> FetchAnswer:
        """Send a Fetch; raise Unreachable. The next call opens a new session if the broker dropped this session."""
        connection = await self.open()
        ids = self._ids_of(wanted) if self._takes_ids else None
        if full or not _goes_on(self._ids, ids):
            self._forget()
        # Includes the ids of topics that the session drops.
        named = ids if ids is None or self._ids is None else self._ids | ids
        if full:
            send, dropped, session, epoch = list(wanted.values()), [], 0, -1
        else:
            known = self._known
            # Most partitions have the very same object as before; identity is checked first, because comparing is slow.
            send = [p for key, p in wanted.items() if (k := known.get(key)) is not p and k != p]
            dropped = [key for key in self._known if key not in wanted]
            session, epoch = self._session, self._epoch
        try:
            frame = await connection.call_raw(
                ApiKey.FETCH,
                FETCH_VERSION if named is None else FETCH_BY_ID_VERSION,
                encode_fetch(
                    send,
                    max_wait_ms=max_wait_ms,
                    max_bytes=self.max_bytes,
                    read_committed=True,
                    session_id=session,
                    session_epoch=epoch,
                    forgotten=dropped,
                    ids=named,
                ),
                flexible=True,
                timeout=max_wait_ms / 1000 + self._client.settings.request_timeout_s,
            )
        except BaseException:
            self._forget()
            raise
        answer = decode_fetch(frame, None if named is None else {of: topic for topic, of in named.items()})
        if answer.error or not answer.session_id:
            self._forget()
        elif not full:
            self._session = answer.session_id
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
            self._known = dict(wanted)
            self._ids = ids
        return answer

    async def open(self) -> BrokerConnection:
        """Return the open connection; raise Unreachable."""
        connection = await self._client.connection(self._node, self._purpose)
        if connection is not self._connection:
            self._forget()
            self._takes_ids = await _takes_ids(connection)
            self._connection = connection
        return connection

    def _ids_of(self, wanted: Mapping[Key, FetchPartition]) -> dict[str, bytes] | None:
        """Return the ids of these topics; None if an id is unknown, or if the cluster has no ids."""
        known = self._client.metadata.topics
        ids: dict[str, bytes] = {}
        for topic in {topic for topic, _ in wanted}:
            topic_id = self._meant(topic)
            if topic_id is None and (info := known.get(topic)) is not None:
                topic_id = info.topic_id
            if not topic_id:
                return None
            ids[topic] = topic_id.bytes
        return ids


async def _takes_ids(connection: BrokerConnection) -> bool:
    answer = await connection.call(entity(ApiKey.API_VERSIONS, 0, "request")())
    return newest_versions(answer).get(ApiKey.FETCH, -1) >= FETCH_BY_ID_VERSION


def _goes_on(before: dict[str, bytes] | None, now: dict[str, bytes] | None) -> bool:
    """Return whether a session can continue: by name or by id as before, and each topic with the same id."""
    if before is None or now is None:
        return before is now
    return all(before.get(topic, of) == of for topic, of in now.items())


async def fetch_full(
    client: ClusterClient,
    node: int,
    parts: Sequence[FetchPartition],
    *,
    purpose: str,
    read_committed: bool = False,
    max_wait_ms: int = 100,
    max_bytes: int = 64 << 20,
    rack: str = "",
) -> FetchAnswer:
    """Send a fetch that belongs to no session."""
    connection = await client.connection(node, purpose)
    frame = await connection.call_raw(
        ApiKey.FETCH,
        FETCH_VERSION,
        encode_fetch(parts, max_wait_ms=max_wait_ms, max_bytes=max_bytes, read_committed=read_committed, rack=rack),
        flexible=True,
    )
    return decode_fetch(frame)


async def fetch_one(
    client: ClusterClient,
    node: int,
    part: FetchPartition,
    *,
    purpose: str,
    read_committed: bool = False,
    max_wait_ms: int = 100,
) -> FetchedPartition:
    """Return a full fetch's partition; if a used-up quota omits it, repeat after the throttle; raise Unreachable."""
    deadline = monotonic() + client.settings.request_timeout_s
    while True:
        answer = await fetch_full(
            client, node, [part], purpose=purpose, read_committed=read_committed, max_wait_ms=max_wait_ms
        )
        if answer.partitions:
            return answer.partitions[0]
        if monotonic() > deadline:
            what = f"the quota at broker {node} of cluster {client.settings.name} is used up"
            raise Unreachable("throttled", f"{part.topic}-{part.partition} cannot be read: {what}")
        await sleep(max(answer.throttle_ms / 1000, _LEAST_REST_S))


_EMPTY_ANSWERS = 3
"""Consecutive empty answers that are believed: Kafka sends a single such answer, other brokers some too early."""


class PlaceLostError(StateLogBroken):
    """The leader lacks the next offset, or its log diverges from the log that was read.

    The log was cut, or the broker lost its disk and got only what compaction had left. For a missing record's epoch,
    such a broker reports the next epoch's start, as after a cut (W7). Only a read from the start tells these apart.
    """


class Tail:
    """Reads a partition from its start to its end and on, batch by batch, across changes of the leader.

    `on_batch` gets each batch once; `position` is the next offset to read. A tail never jumps: an offset out of range,
    a diverging epoch (W7) or an end below the offsets already read is an error. `leaders` are the brokers that
    answered: each has its own log cleaner, with its own progress.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        partition: int,
        on_batch: Callable[[Batch], None],
        *,
        purpose: str,
    ) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._on_batch = on_batch
        self._purpose = purpose
        self._epoch = -1
        self.position = -1
        self.high_watermark = -1
        self.leaders: set[int] = set()
        self._empty = 0
        """Consecutive answers without records that end below the high watermark."""

    @property
    def reached(self) -> int:
        """The offset below which there is nothing more to read.

        If compaction left no batch up to the end, `position` stays: a wrong empty answer must not skip a batch.
        """
        return max(self.position, self.high_watermark) if self._empty >= _EMPTY_ANSWERS else self.position

    async def run(
        self,
        on_progress: Callable[[], None],
        on_trouble: Callable[[KmigrateError], None],
        *,
        until: Callable[[], bool] = lambda: False,
        max_wait_ms: int = 500,
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Read on; call `on_progress` after each answer, and `on_trouble` for errors that are retried.

        `rest_s` returns how long to wait until the next read, so that more records come with one answer.
        """
        while not until():
            try:
                await self.poll(max_wait_ms)
                on_progress()
                if (rest := rest_s()) > 0:
                    await sleep(rest)
            except StateLogBroken:
                raise
            except Failed as error:
                on_trouble(error)
                await sleep(0.1)

    async def poll(self, max_wait_ms: int) -> None:
        """Send a Fetch; raise Unreachable if the leader cannot be asked now, BrokerRefused if READ is missing."""
        node = await known_leader(self._client, self._topic, self._partition)
        try:
            frame = await while_it_leads(self._client, self._topic, self._partition, self._fetch(node, max_wait_ms))
        except Unreachable:
            await self._refresh_quietly()
            raise
        topic, partition = self._topic, self._partition
        response = decode_fetch(frame)
        if not response.partitions:  # a broker answers so beyond our quota, and delays its next answer
            return
        answer = response.partitions[0]
        if answer.diverging is not None:
            raise PlaceLostError(
                "log-cut", f"{topic}-{partition} was read to {self.position}, and ends at {answer.diverging[1]} by now"
            )
        if answer.error == Code.OFFSET_OUT_OF_RANGE:
            raise PlaceLostError(
                "log-cut", f"{topic}-{partition} no longer has offset {self.position}, which was to be read next"
            )
        if answer.error:
            await self._refresh_quietly()
            if answer.error in DENIED:
                raise denied(self._client.settings, answer.error, ("READ", f"topic {topic}"))
            raise Unreachable("tail-refused", f"{topic}-{partition}: {row(answer.error).name}")
        self.leaders.add(node)
        self.high_watermark = answer.high_watermark
        nothing = not answer.records and answer.high_watermark > self.position and answer.preferred_replica < 0
        self._empty = self._empty + 1 if nothing else 0
        for batch in walk(answer.records):
            if batch.next_offset <= self.position:
                continue
            self._on_batch(batch)
            self.position = batch.next_offset
            self._epoch = batch.leader_epoch

    async def _start(self) -> int:
        key = (self._topic, self._partition)
        first = (await self._client.list_offsets({key: EARLIEST}))[key]
        if first.error:
            await self._client.refresh([self._topic])
            if first.error in DENIED:
                raise denied(self._client.settings, first.error, ("DESCRIBE", f"topic {self._topic}"))
            raise Unreachable("no-leader", f"{self._topic}-{self._partition}: {row(first.error).name}")
        return first.offset

    async def _fetch(self, node: int, max_wait_ms: int) -> bytearray:
        if self.position < 0:
            self.position = await self._start()
        connection = await self._client.connection(node, self._purpose)
        wanted = FetchPartition(self._topic, self._partition, self.position, 8 << 20, -1, self._epoch)
        return await connection.call_raw(
            ApiKey.FETCH, FETCH_VERSION, encode_fetch([wanted], max_wait_ms=max_wait_ms), flexible=True
        )

    async def _refresh_quietly(self) -> None:
        try:
            await self._client.refresh([self._topic])
        except Failed:
            return
