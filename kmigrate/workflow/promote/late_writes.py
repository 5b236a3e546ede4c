"""Watches the source of promoted topics until `link finish`: a record that is written there after the flip is late.

Routers send nothing there any more: late records come from direct writers, or from a router that the promote has given
up. The source has acknowledged these records, and the target does not have them.

A  `LateRecord` has the source's log end, the number of late records that readers see, and their producers.
B  By `on_late`, late records stay (alarm), or are appended to the target's topic (copy) or beside it (quarantine).
C  A late record is appended once, by whichever controller. All late records of a partition go under the same producer
   id, which no broker allocates, with consecutive sequences (M1, M5). The state log gets the progress after at most
   four batches, and a broker recognises a repetition of the last five. A broker that has forgotten the producer (V6)
   may store a repeated batch twice after a crash.
D  Aborted transactions leave no late record. The watch waits for an open transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, KmigrateError, Refused
from kmigrate.model.records import LateRecord, LateWrites, LinkRecord, OnLate, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import PRODUCE_VERSION, decode_produce, encode_produce
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.promote.late_findings import copied_by, promoted, read_late, reads_of_late

__all__ = ["LateWatch", "late_producer_id", "quarantine_topic", "watched"]

_log = logging.getLogger("kmigrate.controller")
_LOOK_S = 1.0
_OF_A_PARTITION_S = 0.001
"""Seconds of pause for each partition: with ten thousand partitions a look comes every ten seconds."""
_PATIENCE_S = 60.0
_MOST_READS = 16
"""Responses that are read for a partition before a write to the state log; a look that takes too long is given up."""
_AT_ONCE = 4
"""Batches that are appended before the next write to the state log (C)."""
_LONGEST_NAME = 249


def quarantine_topic(topic: str) -> str:
    """Return the name of the topic beside a promoted one that takes its late records."""
    name = f"kmigrate-late-{topic}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"


def late_producer_id(link_uuid: str, topic: str) -> int:
    """Return the producer id under which late records of a topic are appended: 2^61 and a hash."""
    digest = hashlib.sha256(f"late/{link_uuid}/{topic}".encode()).digest()
    return (1 << 61) + int.from_bytes(digest[:7])


@dataclass(slots=True)
class LateWatch:
    """Looks at the sources of all promoted topics until `link finish`."""

    connections: Connections
    troubles: dict[str, str] = field(default_factory=dict)
    """Reasons by record why a source cannot be watched, or late records cannot be handled."""

    async def run(self) -> None:
        while True:
            of_links = [(link, watched(self.log.state, link)) for link in self.log.state.links()]
            self._forget_troubles(of_links)
            await together(*(self._try(link, topics) for link, topics in of_links if topics))
            partitions = sum(record.partitions for _, topics in of_links for record in topics)
            await sleep(max(_LOOK_S, partitions * _OF_A_PARTITION_S))

    @property
    def log(self) -> StateLog:
        return self.connections.log

    def _forget_troubles(self, of_links: Sequence[tuple[LinkRecord, Sequence[TopicRecord]]]) -> None:
        """Drop the troubles of links that are not watched, and of topics whose late records stay as they are."""
        still = {link.key for link, topics in of_links if topics}
        still |= {each.key for _, topics in of_links for each in topics if each.on_late is not OnLate.ALARM}
        for key in self.troubles.keys() - still:
            del self.troubles[key]

    async def _try(self, link: LinkRecord, topics: Sequence[TopicRecord]) -> None:
        """Look at a link; an error is noted, and the other links are watched all the same."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.look(link, topics)
            self.troubles.pop(link.key, None)
        except KmigrateError as error:
            self.troubles[link.key] = error.summary
        except TimeoutError:
            self.troubles[link.key] = f"no-answer: a look at the source took longer than {_PATIENCE_S:g} s"
        except Exception as error:
            _log.error("late writes of link %s", link.name, exc_info=error, extra={"link": link.name})

    async def look(self, link: LinkRecord, topics: Sequence[TopicRecord]) -> None:
        """Read the source's log ends, and the new records beyond the barriers."""
        source, _ = await self.connections.source(link)
        keys = [(record.topic, partition) for record in topics for partition in record.barrier]
        if any(key[0] not in source.metadata.topics for key in keys):
            await source.refresh([record.topic for record in topics])
        ends = await source.log_ends(keys)
        if any(end.error for end in ends.values()):
            await source.refresh([record.topic for record in topics])
        for record in topics:
            for partition in record.barrier:
                end, known = ends[record.topic, partition], self._known(record, partition)
                work = known.unread > 0 or (record.on_late is not OnLate.ALARM and known.handled_to < known.read_to)
                if not end.error and (end.offset > known.end or work):
                    await self._follow(link, source, record, partition, known, end.offset)

    def _known(self, record: TopicRecord, partition: int) -> LateWrites:
        late = self.log.state.late(record.link, record.topic)
        found = late.partitions.get(partition) if late is not None else None
        start, now = record.late_starts[partition], self.log.now_ms()
        return found or LateWrites(start, start, 0, start, now, now, handled_to=start)

    async def _follow(
        self, link: LinkRecord, source: ClusterClient, record: TopicRecord, partition: int, known: LateWrites, end: int
    ) -> None:
        """Bring the state log up to the source's log end of a partition, and handle late records (B)."""
        if end > known.end:
            known = replace(known, end=end, last_ms=self.log.now_ms())
        try:
            key, copy = (record.topic, partition), copied_by(record)
            async for read in reads_of_late(source, *key, known, _MOST_READS, copied_by=copy):
                known = read
        except KmigrateError:
            await self._write(record, partition, known)  # the offsets are known though they cannot be read
            raise
        await self._write(record, partition, known)
        if record.on_late is not OnLate.ALARM:
            try:
                await self._handle(link, source, record, partition, known)
                self.troubles.pop(record.key, None)
            except KmigrateError as error:
                self.troubles[record.key] = error.summary

    async def _handle(
        self, link: LinkRecord, source: ClusterClient, record: TopicRecord, partition: int, known: LateWrites
    ) -> None:
        """Append the records that are read and not appended yet (C)."""
        topic = record.topic
        if record.on_late is OnLate.QUARANTINE:
            topic = quarantine_topic(record.topic)
            await self._make(topic, record)
        while known.handled_to < known.read_to:
            batches, read_to = await read_late(
                source, record.topic, partition, known.handled_to, copied_by=copied_by(record)
            )
            batches = [batch for batch in batches if batch.end <= known.read_to]
            appended = batches[:_AT_ONCE]
            for batch in appended:
                batch.stamp(late_producer_id(link.uuid, record.topic), known.handled)
                await self._append(topic, partition, batch.view)
                known = known.with_handled(batch.end, batch.records)
            done = len(appended) == len(batches)
            handled_to = max(known.handled_to, min(read_to, known.read_to)) if done else known.handled_to
            if not appended and handled_to == known.handled_to:
                return  # the source does not return now what it returned before: the next look asks again
            known = replace(known, handled_to=handled_to)
            await self._write(record, partition, known)

    async def _append(self, topic: str, partition: int, batch: memoryview) -> None:
        target = self.connections.target
        node = target.leader(topic, partition)
        if node < 0:
            await target.refresh([topic])
            node = target.leader(topic, partition)
        connection = await target.connection(node, "late")
        body = encode_produce([(topic, partition, batch)], acks=-1)
        timeout = target.settings.request_timeout_s
        frame = await connection.call_raw(ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True, timeout=timeout)
        answer = decode_produce(frame)[topic, partition]
        if answer.error:
            await target.refresh([topic])
            what = f"the target refuses {topic}-{partition}: {row(answer.error).name}"
            raise BrokerRefused("late-refused", what, code=answer.error)

    async def _make(self, topic: str, record: TopicRecord) -> None:
        target = self.connections.target
        if await target.find_topic(topic) is None:
            replicas = min(3, len(target.metadata.brokers) or 1)
            configs = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
            await self.connections.target_admin.create_topic(topic, record.partitions, replicas, configs)
            await target.refresh([topic])

    async def _write(self, record: TopicRecord, partition: int, known: LateWrites) -> None:
        def decide(state: State) -> LateRecord | None:
            now = state.topic(record.link, record.topic)
            if now is None or not now.at_target:
                return None
            late = state.late(record.link, record.topic) or LateRecord(record.link, record.topic)
            before = late.partitions.get(partition)
            if before == known or (before is not None and before.is_beyond(known)):
                return None
            return replace(late, partitions={**late.partitions, partition: known})

        state = await self.log.append(decide)
        late = state.late(record.link, record.topic)
        if late is None or late.partitions.get(partition) != known:
            raise Refused("changed-meanwhile", f"another controller follows {record.topic}-{partition}, too")


def watched(state: State, link: LinkRecord) -> list[TopicRecord]:
    """Return the topics of a link that are watched at the source."""
    if link.finished_ms or link.deleting_ms:
        return []
    return promoted(state.topics(link.name))
