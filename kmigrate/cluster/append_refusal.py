"""Checks without risk whether a topic's leaders refuse every append because of its size limit.

The probe is a batch with a wrong checksum, which no broker ever stores. A broker checks the size of a batch before the
checksum. So a partition that accepts writes answers CORRUPT_MESSAGE (2), and a partition with `max.message.bytes=1`
answers MESSAGE_TOO_LARGE (10). The limit counts only if the leader itself shows the limit: each broker applies a new
limit some 50 ms after the change (V4).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.net.clock import now_ms
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import PRODUCE_VERSION, decode_produce, encode_produce
from kmigrate.records.build import one_record_batch

__all__ = ["Takes", "asked_to_append"]

_LAST_BYTE = -1
_LARGER_THAN_A_MARKER = bytes(32)
"""A key that makes the batch larger than `CLOSED_SIZE`."""


class Takes(Enum):
    """A leader's treatment of a batch."""

    WRITES = "writes"
    NOTHING = "nothing"


_TOLD = {Code.CORRUPT_MESSAGE: Takes.WRITES, Code.MESSAGE_TOO_LARGE: Takes.NOTHING}


async def asked_to_append(client: ClusterClient, topic: str, partitions: Sequence[int]) -> dict[int, Takes]:
    """Return each partition's state by its leader's answer; raise Unreachable if a leader is away or has changed."""
    leaders: dict[int, list[int]] = {}
    for partition in partitions:
        leaders.setdefault(client.leader(topic, partition), []).append(partition)
    out: dict[int, Takes] = {}
    for told in await together(*(_ask(client, node, topic, parts) for node, parts in leaders.items())):
        out.update(told)
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
        told = _TOLD.get(Code(answer.error)) if answer.error in _TOLD else None
        if told is not None:
            out[partition] = told
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
