"""Appending by compare-and-set: where an id's last batch stands on a log, and single appends after it.

The position of an append-only writer is the log's own tail: one batch header holds base offset, count and
sequence together. Offset and sequence are never taken from two reads that may disagree (W2).
"""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.cluster.client import LATEST, ClusterClient, LogOffset
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.errors import Diverged, Unreachable
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import (
    PRODUCE,
    PRODUCE_VERSION,
    Buffer,
    FetchPartition,
    ProduceAnswer,
    decode_produce,
    encode_produce,
)
from kmigrate.records.batch import Batch, next_sequence, walk

__all__ = ["LogTail", "append_alone", "read_tail", "settled_end"]

_PURPOSE = "tail"
_LOOK_S = 0.25
"""Between two looks at a log end that must stay the same for longer."""
_FIRST_WINDOW = 1
_WIDER = 32
"""Markers are one offset each, so the window backwards from the end grows until a data batch is inside."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The next offset of a log, and the only first sequence that the broker accepts there."""

    end: int
    sequence: int
    data_end: int
    """Offset after the id's last batch, or the log start: from here to `end` there are only control records."""


async def read_tail(
    client: ClusterClient,
    topic: str,
    partition: int,
    producer_id: int,
    *,
    since: int = 0,
    settle_s: float = 0.0,
    replicated: bool = False,
    patience_s: float = 30.0,
) -> LogTail:
    """Where `producer_id` must append next; raises Unreachable, or Diverged where somebody else wrote behind it.

    `since`: the offset before which the log was somebody else's by right.
    `settle_s`: after an unknown outcome, how long the log end must stay the same before it is believed.
    `replicated`: all that time the log end must be the high watermark, too.
    """
    deadline = monotonic() + patience_s
    end = await settled_end(client, topic, partition, settle_s, deadline, replicated=replicated)
    first = await client.log_start((topic, partition))
    if first.error:
        await client.refresh([topic])
        raise Unreachable("no-log-start", f"{topic}-{partition}: {row(first.error).name}")
    begin = max(first.offset, since)
    window = _FIRST_WINDOW
    while end > begin:
        start = max(begin, end - window)
        last, foreign, end = await _scan(client, topic, partition, producer_id, start, end, deadline)
        if foreign is not None and (last is not None or start == begin):
            raise _foreign(topic, partition, foreign)
        if last is not None:
            return LogTail(end, next_sequence(last.last_sequence, 1), last.next_offset)
        if start == begin:
            break
        window *= _WIDER
    return await _without_batch(client, topic, partition, producer_id, begin, end)


async def settled_end(
    client: ClusterClient,
    topic: str,
    partition: int,
    settle_s: float = 0.0,
    deadline: float | None = None,
    *,
    replicated: bool = False,
) -> int:
    """Return the log end (not the high watermark: V1) once it has stayed the same for `settle_s`.

    `replicated`: the high watermark must be the same for as long. While a broker works on a request of ours the high
    watermark is below the log end, and what stands behind that request on its connection is still to come.
    """
    last, since = await _end(client, topic, partition, replicated=replicated), monotonic()
    while settle_s:
        if deadline is not None and monotonic() > deadline:
            raise Unreachable("unsettled-log", f"the end of {topic}-{partition} does not come to rest")
        await sleep(min(settle_s, _LOOK_S))
        told = await _end(client, topic, partition, replicated=replicated)
        if told is None or told != last:
            last, since = told, monotonic()
        elif monotonic() - since >= settle_s:
            break
    if last is None:
        raise Unreachable("unsettled-log", f"the end of {topic}-{partition} is not replicated")
    return last.offset


async def _end(client: ClusterClient, topic: str, partition: int, *, replicated: bool) -> LogOffset | None:
    """Return a log end; None where it must be `replicated` and is not."""
    key = (topic, partition)
    if replicated:
        mark = (await client.list_offsets({key: LATEST}))[key]
    told = await client.log_end(key)
    if told.error:
        await client.refresh([topic])
        raise Unreachable("no-log-end", f"{topic}-{partition}: {row(told.error).name}")
    return None if replicated and (mark.error or mark.offset != told.offset) else told


async def _scan(
    client: ClusterClient, topic: str, partition: int, producer_id: int, start: int, end: int, deadline: float
) -> tuple[Batch | None, Batch | None, int]:
    """Read from `start` to at least `end`: the id's last batch, any data behind it, the offset after it all."""
    at = start
    last: Batch | None = None
    foreign: Batch | None = None
    while at < end:
        answer = await fetch_one(
            client,
            client.leader(topic, partition),
            FetchPartition(topic, partition, at, 1 << 20),
            purpose=_PURPOSE,
            max_wait_ms=50,
        )
        if answer.error or monotonic() > deadline:
            await client.refresh([topic])
            why = row(answer.error).name if answer.error else "its end is not replicated"
            raise Unreachable("tail-unreadable", f"{topic}-{partition} at {at}: {why}")
        for batch in walk(answer.records):
            at = max(at, batch.next_offset)
            if batch.is_control:
                continue
            if batch.producer_id == producer_id:
                last, foreign = batch, None
            else:
                foreign = batch
    return last, foreign, at


def _foreign(topic: str, partition: int, batch: Batch) -> Diverged:
    return Diverged(
        "foreign-writer",
        f"{topic}-{partition} on the target holds a batch of producer {batch.producer_id} at offset "
        f"{batch.base_offset}, behind the mirror's own",
        still_true="the mirror wrote nothing after it; the source is untouched",
        next_step="stop the writer that does not go through a router; see docs/mirror.md",
    )


async def _without_batch(
    client: ClusterClient, topic: str, partition: int, producer_id: int, log_start: int, end: int
) -> LogTail:
    """Tail of a log that holds no batch of the id up to `end`: the broker's producer state, or the end.

    Raises Unreachable where something was appended meanwhile: whose that is, only another look at the log can tell.
    """
    key = (topic, partition)
    error, producers = await client.producers(key)
    after = await settled_end(client, topic, partition)
    if after != end:
        raise Unreachable("unsettled-log", f"{topic}-{partition} grew from {end} to {after} while it was looked at")
    if error:
        await client.refresh([topic])
        raise Unreachable("no-producer-state", f"{topic}-{partition}: {row(error).name}")
    for state in producers:
        if state.producer_id == producer_id:
            return LogTail(after, next_sequence(state.last_sequence, 1), log_start)
    return LogTail(after, next_sequence(after, 0), log_start)


async def append_alone(
    client: ClusterClient, topic: str, partition: int, batch: Buffer, *, purpose: str, timeout_s: float = 30.0
) -> ProduceAnswer:
    """Append one batch with nothing else in flight; raises Unreachable where no answer came."""
    node = client.leader(topic, partition)
    if node < 0:
        await client.refresh([topic])
        node = client.leader(topic, partition)
    if node < 0:
        raise Unreachable("no-leader", f"{topic}-{partition} has no leader now")
    connection = await client.connection(node, purpose)
    frame = await connection.call_raw(
        PRODUCE,
        PRODUCE_VERSION,
        encode_produce([(topic, partition, batch)], timeout_ms=int(timeout_s * 1000)),
        flexible=True,
        timeout=timeout_s + 5,
    )
    return decode_produce(frame)[(topic, partition)]
