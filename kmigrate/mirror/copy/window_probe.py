"""The probe of a target broker: does the broker close a connection behind a refused Produce request with acks=0?

Apache Kafka does. Another make of broker, or a proxy that ends the connection, may go on to the next request. Then
markers behind a refused batch would be written, so windows (`partition/lane.py`, L) must not be sent.

The batch of the probe has a wrong checksum, so that no broker ever stores the batch.
"""

from __future__ import annotations

from kmigrate.cluster.client import MARKERS, ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import now_ms
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, encode_produce
from kmigrate.protocol.markers import encode_log_ends
from kmigrate.protocol.offsets import LIST_OFFSETS_VERSION
from kmigrate.records.build import one_record_batch

__all__ = ["closes_behind_refusals"]

_PURPOSE = f"{MARKERS}-probe"
_ROUNDS = 2
"""Number of connections that the broker must close: one may be lost by chance."""
_PATIENCE_S = 5.0
_LAST_BYTE = -1


async def closes_behind_refusals(target: ClusterClient, node: int, key: tuple[str, int]) -> bool:
    """Ask the leader of a partition; raise Unreachable if the broker does not answer."""
    for _ in range(_ROUNDS):
        if not await _closes(target, node, key):
            return False
    return True


async def _closes(target: ClusterClient, node: int, key: tuple[str, int]) -> bool:
    connection = await target.connection(node, _PURPOSE)
    await _ask_log_end(connection, key)
    batch = one_record_batch(b"probe", None, timestamp=now_ms(), producer_id=-1, epoch=-1, sequence=-1)
    batch[_LAST_BYTE] ^= 0xFF  # after the checksum was computed
    connection.send_unanswered(ApiKey.PRODUCE, PRODUCE_VERSION, encode_produce([(*key, batch)], acks=0), flexible=True)
    try:
        await _ask_log_end(connection, key)
    except Unreachable as error:
        if error.ref == "connection-lost":
            return True
        raise
    connection.close()
    return False


async def _ask_log_end(connection: BrokerConnection, key: tuple[str, int]) -> None:
    await connection.call_raw(
        ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, encode_log_ends([key]), flexible=False, timeout=_PATIENCE_S
    )
