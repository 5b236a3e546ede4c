"""Appends by compare-and-set: the position of a producer id's last batch on a log, and single appends behind it.

The log's tail is the writer's position: a batch header holds offset, count and sequence, so no two reads disagree (W2).
A control marker of the id at a higher epoch ends the sequences: the next batch has that epoch and sequence 0 (M2).

A probe with a wrong checksum, which no broker ever stores, shows whether leaders refuse every append because of a size
limit. A broker checks the size before the checksum: a partition that accepts writes answers CORRUPT_MESSAGE (2), a
partition with `max.message.bytes=1` MESSAGE_TOO_LARGE (10). The limit counts only if the leader itself shows the limit:
each broker applies a new limit some 50 ms after the change (V4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kmigrate.cluster.client import LATEST, ClusterClient, LogOffset
from kmigrate.cluster.fetch import fetch_one
from kmigrate.cluster.leaders import known_leader
from kmigrate.cluster.requests import Key
from kmigrate.errors import BrokerRefused, Diverged, Unreachable
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import PRODUCE_VERSION, Buffer, FetchPartition, ProduceAnswer, decode_produce, encode_produce
from kmigrate.records.batch import Batch, next_sequence, walk
from kmigrate.records.build import one_record_batch

__all__ = ["LogTail", "Takes", "append_alone", "ask_to_append", "read_tail", "settled_end"]

_PURPOSE = "tail"
_LOOK_S = 0.25
"""Seconds between two reads of a log end that must stay unchanged for longer."""
_FIRST_WINDOW = 1
_WIDER = 32
"""Factor by which the window grows backwards until a data batch is inside: markers take one offset each."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The next offset of a log, and the only first sequence that the broker accepts there."""

    end: int
    sequence: int
    data_end: int
    """Offset behind the id's last batch, or the log start: from here to `end` there are only control records."""
    epoch: int = -1
    """The id's newest epoch on the log, which a control marker may have raised; −1: the log shows none."""


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
    """Return where `producer_id` must append next; raise Unreachable, or Diverged if somebody else wrote behind it.

    `since`: the offset before which other writers were allowed. After an unknown outcome the log end must stay
    unchanged for `settle_s`; with `replicated`, the log end must also equal the high watermark for all that time.
    """
    deadline = monotonic() + patience_s
    end = await settled_end(client, topic, partition, settle_s, deadline, replicated=replicated)
    first = await client.log_start((topic, partition))
    if first.error:
        await client.refresh([topic])
        raise Unreachable("no-log-start", f"{topic}-{partition}: {row(first.error).name}")
    begin = max(first.offset, since)
    window, marked_epoch = _FIRST_WINDOW, -1
    while end > begin:
        start = max(begin, end - window)
        found = await _scan(client, topic, partition, producer_id, start, end, deadline)
        last, end, marked_epoch = found.last, found.end, found.marked_epoch
        if found.foreign is not None and (last is not None or start == begin):
            raise _foreign(client.settings.name, (topic, partition), found.foreign)
        if last is not None:
            sequence = 0 if marked_epoch > last.producer_epoch else next_sequence(last.last_sequence, 1)
            return LogTail(end, sequence, last.next_offset, max(marked_epoch, last.producer_epoch))
        if start == begin:
            break
        window *= _WIDER
    return await _without_batch(client, (topic, partition), producer_id, begin, end, marked_epoch)


async def settled_end(
    client: ClusterClient,
    topic: str,
    partition: int,
    settle_s: float = 0.0,
    deadline: float | None = None,
    *,
    replicated: bool = False,
) -> int:
    """Return the log end (not the high watermark: V1) once the log end has stayed unchanged for `settle_s`.

    `replicated`: the high watermark must equal the log end for as long; if lower, requests of ours are still to come.
    """
    last, since = await _end(client, topic, partition, replicated=replicated), monotonic()
    while settle_s:
        if deadline is not None and monotonic() > deadline:
            raise Unreachable("unsettled-log", f"the end of {topic}-{partition} does not come to rest")
        await sleep(min(settle_s, _LOOK_S))
        reported = await _end(client, topic, partition, replicated=replicated)
        if reported is None or reported != last:
            last, since = reported, monotonic()
        elif monotonic() - since >= settle_s:
            break
    if last is None:
        raise Unreachable("unsettled-log", f"the end of {topic}-{partition} is not replicated")
    return last.offset


async def _end(client: ClusterClient, topic: str, partition: int, *, replicated: bool) -> LogOffset | None:
    """Return a log end; None for a log end that must be `replicated` and is not."""
    key = (topic, partition)
    if replicated:
        mark = (await client.list_offsets({key: LATEST}))[key]
    reported = await client.log_end(key)
    if reported.error:
        await client.refresh([topic])
        raise Unreachable("no-log-end", f"{topic}-{partition}: {row(reported.error).name}")
    return None if replicated and (mark.error or mark.offset != reported.offset) else reported


@dataclass(frozen=True, slots=True)
class _Scanned:
    """The newest part of a log, as far as one producer id is concerned."""

    last: Batch | None
    """The id's last data batch."""
    foreign: Batch | None
    """Data of another producer behind the id's last data batch."""
    marked_epoch: int
    """Newest epoch of the id's control markers; −1 if there are none. After a raised epoch the next sequence is 0."""
    end: int


async def _scan(
    client: ClusterClient, topic: str, partition: int, producer_id: int, start: int, end: int, deadline: float
) -> _Scanned:
    """Read from `start` to at least `end`."""
    at = start
    last: Batch | None = None
    foreign: Batch | None = None
    marked_epoch = -1
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
            ours = batch.producer_id == producer_id
            if batch.is_control:
                marked_epoch = max(marked_epoch, batch.producer_epoch) if ours else marked_epoch
            elif ours:
                last, foreign = batch, None
            else:
                foreign = batch
    return _Scanned(last, foreign, marked_epoch, at)


def _foreign(cluster: str, key: Key, batch: Batch) -> Diverged:
    topic, partition = key
    return Diverged(
        "foreign-writer",
        f"{topic}-{partition} at cluster {cluster} holds a batch of producer {batch.producer_id} at offset "
        f"{batch.base_offset}, behind the mirror's own",
        still_true="the mirror wrote nothing after it; the source is untouched",
        next_step="stop the writer that does not go through a router; see docs/mirror.md",
    )


async def _without_batch(
    client: ClusterClient, key: Key, producer_id: int, log_start: int, end: int, marked_epoch: int
) -> LogTail:
    """Return the tail of a log without a batch of the id up to `end`: by the broker's producer state, or by the end.

    Raise Unreachable if records were appended meanwhile: only another read of the log can tell whose records they are.
    """
    topic, partition = key
    error, producers = await client.producers(key)
    after = await settled_end(client, topic, partition)
    if after != end:
        raise Unreachable("unsettled-log", f"{topic}-{partition} grew from {end} to {after} while it was looked at")
    if error:
        await client.refresh([topic])
        raise Unreachable("no-producer-state", f"{topic}-{partition}: {row(error).name}")
    for state in producers:
        if state.producer_id == producer_id:
            epoch = max(marked_epoch, state.producer_epoch)
            return LogTail(after, next_sequence(state.last_sequence, 1), log_start, epoch)
    return LogTail(after, next_sequence(after, 0), log_start, marked_epoch)


async def append_alone(
    client: ClusterClient,
    topic: str,
    partition: int,
    batch: Buffer,
    *,
    purpose: str,
    timeout_s: float = 30.0,
    grace_s: float = 5.0,
) -> ProduceAnswer:
    """Append a batch with nothing else in flight; raise Unreachable `grace_s` after the broker's own `timeout_s`."""
    connection = await client.connection(await known_leader(client, topic, partition), purpose)
    frame = await connection.call_raw(
        ApiKey.PRODUCE,
        PRODUCE_VERSION,
        encode_produce([(topic, partition, batch)], timeout_ms=int(timeout_s * 1000)),
        flexible=True,
        timeout=timeout_s + grace_s,
    )
    return decode_produce(frame)[(topic, partition)]


_LAST_BYTE = -1
_LARGER_THAN_A_MARKER = bytes(32)
"""A key that makes the batch larger than `CLOSED_SIZE`."""


class Takes(Enum):
    """A leader's treatment of a batch."""

    WRITES = "writes"
    NOTHING = "nothing"


_BY_CODE = {Code.CORRUPT_MESSAGE: Takes.WRITES, Code.MESSAGE_TOO_LARGE: Takes.NOTHING}


async def ask_to_append(client: ClusterClient, topic: str, partitions: Sequence[int]) -> dict[int, Takes]:
    """Return each partition's state by its leader's answer; raise Unreachable if a leader is away or has changed."""
    leaders: dict[int, list[int]] = {}
    for partition in partitions:
        leaders.setdefault(client.leader(topic, partition), []).append(partition)
    out: dict[int, Takes] = {}
    for reported in await together(*(_ask(client, node, topic, parts) for node, parts in leaders.items())):
        out.update(reported)
    return out


async def _ask(client: ClusterClient, node: int, topic: str, partitions: Sequence[int]) -> dict[int, Takes]:
    if node < 0:
        raise Unreachable("no-leader", f"{topic}-{partitions[0]} has no leader now")
    batch = one_record_batch(_LARGER_THAN_A_MARKER, None, timestamp=now_ms(), producer_id=-1, epoch=-1, sequence=-1)
    batch[_LAST_BYTE] ^= 0xFF  # after the checksum was computed
    connection = await client.connection(node, "probe")
    # acks=1: with acks=-1, a partition that misses replicas reports that first, and the size check stays unknown.
    body = encode_produce([(topic, partition, batch) for partition in partitions], acks=1)
    frame = await connection.call_raw(
        ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True, timeout=client.settings.request_timeout_s
    )
    out: dict[int, Takes] = {}
    for (_, partition), answer in decode_produce(frame).items():
        reported = _BY_CODE.get(Code(answer.error)) if answer.error in _BY_CODE else None
        if reported is not None:
            out[partition] = reported
        elif answer.error and row(answer.error).retriable:
            raise Unreachable("no-leader", f"{topic}-{partition}: {row(answer.error).name}")
        else:
            raise BrokerRefused(
                "seal-unproven",
                f"the leader of {topic}-{partition} does not say whether it takes writes: {row(answer.error).name}",
                code=answer.error,
                next_step=f"allow {client.settings.security.principal} WRITE on topic {topic} at cluster "
                f"{client.settings.name}",
            )
    return out
