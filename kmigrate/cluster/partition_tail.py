"""Follows a partition from its start to its end and on, batch by batch, across changes of the leader.

A tail never jumps. An offset out of range, a diverging epoch (W7) or an end below the offsets already read is an error.
"""

from __future__ import annotations

from collections.abc import Callable

from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.leader_request import while_it_leads
from kmigrate.cluster.missing_rights import DENIED, denied
from kmigrate.errors import Failed, KmigrateError, StateLogBroken, Unreachable
from kmigrate.net.clock import sleep
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FETCH_VERSION, FetchPartition, decode_fetch, encode_fetch
from kmigrate.records.batch import Batch, walk

__all__ = ["PlaceLostError", "Tail"]

_EMPTY_ANSWERS = 3
"""Consecutive empty answers that are believed.

A Kafka broker sends a single such answer; other brokers may send an empty answer too early.
"""


class PlaceLostError(StateLogBroken):
    """The leader lacks the next offset, or its log diverges from the log that was read.

    Either the log was cut, or the broker lost its disk and got only the records that compaction had left. Such a broker
    knows only the leader epochs of these records (W7). For any other epoch the broker reports the start of the next
    epoch as if the log had been cut there. Only a read from the log's start tells the two cases apart.
    """


class Tail:
    """A reader of a partition; `on_batch` gets each batch once, `position` is the next offset to read.

    `leaders` are the brokers that answered. Each broker has its own log cleaner, and the log cleaners differ in their
    progress.
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

        Compaction may leave no batch up to the log's end. `position` then stays unchanged, because a wrong empty answer
        must not skip a batch.
        """
        return max(self.position, self.high_watermark) if self._empty >= _EMPTY_ANSWERS else self.position

    async def run(
        self,
        on_progress: Callable[[], None],
        on_trouble: Callable[[KmigrateError], None],
        *,
        until: Callable[[], bool] = lambda: False,
        max_wait_ms: int = 500,
    ) -> None:
        """Read on; call `on_progress` after each answer, and `on_trouble` for errors that are retried."""
        while not until():
            try:
                await self.poll(max_wait_ms)
                on_progress()
            except StateLogBroken:
                raise
            except Failed as error:
                on_trouble(error)
                await sleep(0.1)

    async def poll(self, max_wait_ms: int) -> None:
        """Send a Fetch; raise Unreachable if the leader cannot be asked now, BrokerRefused if READ is missing."""
        node = await self._leader()
        try:
            frame = await while_it_leads(self._client, self._topic, self._partition, self._asked(node, max_wait_ms))
        except Unreachable:
            await self._refresh_quietly()
            raise
        topic, partition = self._topic, self._partition
        told = decode_fetch(frame)
        if not told.partitions:  # a broker answers so beyond our quota, and delays its next answer
            return
        answer = told.partitions[0]
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

    async def _leader(self) -> int:
        node = self._client.leader(self._topic, self._partition)
        if node < 0:
            await self._client.refresh([self._topic])
            node = self._client.leader(self._topic, self._partition)
        if node < 0:
            raise Unreachable("no-leader", f"{self._topic}-{self._partition} has no leader now")
        return node

    async def _start(self) -> int:
        key = (self._topic, self._partition)
        first = (await self._client.list_offsets({key: EARLIEST}))[key]
        if first.error:
            await self._client.refresh([self._topic])
            if first.error in DENIED:
                raise denied(self._client.settings, first.error, ("DESCRIBE", f"topic {self._topic}"))
            raise Unreachable("no-leader", f"{self._topic}-{self._partition}: {row(first.error).name}")
        return first.offset

    async def _asked(self, node: int, max_wait_ms: int) -> bytearray:
        if self.position < 0:
            self.position = await self._start()
        return await self._fetch(node, max_wait_ms)

    async def _fetch(self, node: int, max_wait_ms: int) -> bytearray:
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
