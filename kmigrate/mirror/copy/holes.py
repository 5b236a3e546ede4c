"""Offsets without records on the target: control markers, or empty transactions if markers are not allowed.

Markers are *not* compare-and-set (W5). So only a partition's owner writes markers, with a marker producer id of its own
and the owner's term as coordinator epoch. Once a newer term has written a marker, a late owner gets error 52 (V3). The
epoch's low bits count the owner's requests with unknown outcome. The count makes the broker refuse such a request if it
still waits behind another partition's request when the owner asks again on a new connection.

With transactions the coordinator fences. Each owner initialises the partition's transactional id anew before looking up
the log end, and after an unknown outcome. So an owner replaced while it stood still sees the new owner's appends.

A broker's answer does not say how many markers were written, nor whether other writes came between. So the log end is
asked for next on the same connection; brokers keep the order, so no extra round trip is needed. A broker takes a
connection's next request only once the replicas have the markers. So partitions are spread over several connections.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from zlib import crc32

from kmigrate.cluster.append import settled_end
from kmigrate.cluster.client import LATEST, LOG_END, ClusterClient
from kmigrate.cluster.transactions import empty_transactions
from kmigrate.errors import Unreachable
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.settings import HoleFiller
from kmigrate.model.records import CopyIdentity
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code

__all__ = ["HoleMaker", "Made"]

_CONNECTIONS = 8
"""Number of connections to each broker that leads partitions with holes."""
_RETRY_BITS = 10
"""Number of the coordinator epoch's 31 bits that count the requests without a known outcome under a term."""
_GIVEN_UP = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING, Code.PRODUCER_FENCED})
"""Error codes for an identity that the coordinator has replaced, or has forgotten while the identity was idle."""


class Made(NamedTuple):
    """The result of a hole: the broker's error code, or the log end right after the hole."""

    error: int
    end: int = -1
    """Log end after the hole; −1 if the broker did not report one."""


class HoleMaker:
    """Fills holes for a link."""

    def __init__(self, target: ClusterClient, identity: CopyIdentity, *, link_uuid: str, filler: HoleFiller) -> None:
        self._target = target
        self._identity = identity
        self._link_uuid = link_uuid
        self._producers: dict[tuple[str, int], tuple[int, tuple[int, int]]] = {}
        """Term under which each partition's transactional id was initialised, and its producer id and epoch."""
        self._unknown: dict[tuple[str, int], tuple[int, int]] = {}
        """A term, and the number of requests for markers without a known outcome under that term, by partition."""
        self._one_transaction = asyncio.Lock()
        self.filler = filler

    @property
    def batch_offsets(self) -> int:
        """Offsets of a long hole that are filled at once: less than a second's work between looks at the lease (M2)."""
        return 5_000 if self.filler is HoleFiller.MARKERS else 500

    def ready(self, topic: str, partition: int, term: int) -> bool:
        """Return whether `make` would send the request for the hole at once."""
        if self.filler is HoleFiller.MARKERS:
            return self._target.is_open(self._target.leader(topic, partition), _purpose(topic, partition))
        return self._producers.get((topic, partition), (0, (-1, -1)))[0] == term

    async def prepare(self, topic: str, partition: int, term: int) -> None:
        """Connect for markers or fence the former owner, before the log end is looked up; raise Unreachable."""
        if self.filler is HoleFiller.MARKERS:
            node = self._target.leader(topic, partition)
            if node < 0:
                raise Unreachable("no-leader", f"{topic}-{partition} has no leader now")
            await self._target.connection(node, _purpose(topic, partition))
        elif not self.ready(topic, partition, term):
            async with self._one_transaction:
                producer = await self._target.init_producer_id(self._name(topic, partition))
                self._producers[(topic, partition)] = term, producer

    async def make(self, topic: str, partition: int, hole: Hole, term: int) -> Made:
        """Append the hole's control records; raise Unreachable if the outcome is unknown."""
        if self.filler is HoleFiller.MARKERS:
            if not self.ready(topic, partition, term):  # waiting for a connection, an owner may lose the partition
                return Made(Code.CONCURRENT_TRANSACTIONS)
            made = await self._by_markers((topic, partition), hole, term)
            if made.error != Code.CLUSTER_AUTHORIZATION_FAILED:
                return made
            self.filler = HoleFiller.TRANSACTIONS
        return await self._by_transactions((topic, partition), hole, term)

    async def _by_markers(self, key: tuple[str, int], hole: Hole, term: int) -> Made:
        under, unknown = self._unknown.get(key, (term, 0))
        unknown = unknown if under == term else 0
        epoch = (term << _RETRY_BITS) + min(unknown, (1 << _RETRY_BITS) - 1)
        self._unknown[key] = term, unknown + 1
        code, ends = await together(
            self._target.write_markers(
                self._target.leader(*key),
                *key,
                hole.end - hole.start,
                producer_id=self._identity.marker_id,
                epoch=self._identity.marker_epoch,
                coordinator_epoch=epoch,
                purpose=_purpose(*key),
            ),
            self._target.list_offsets({key: LATEST}, replica_id=LOG_END, purpose=_purpose(*key)),
        )
        made = Made(code, ends[key].offset)
        # This process may have raised the epoch before this object was created.
        answered = made.error not in (0, Code.TRANSACTION_COORDINATOR_FENCED)
        if answered or (not made.error and made.end == hole.end):
            self._unknown[key] = term, unknown
        return made

    async def _by_transactions(self, key: tuple[str, int], hole: Hole, term: int) -> Made:
        async with self._one_transaction:
            known, producer = self._producers.get(key, (0, (-1, -1)))
            if known != term:
                return Made(Code.CONCURRENT_TRANSACTIONS)  # not prepared: try again from the start
            del self._producers[key]  # until the outcome is known
            identity = (self._name(*key), *producer)
            code = await empty_transactions(self._target, identity, *key, hole.end - hole.start)
            if code not in _GIVEN_UP:
                self._producers[key] = known, producer
        return Made(code) if code else Made(0, await self._written(key, hole))

    async def _written(self, key: tuple[str, int], hole: Hole) -> int:
        """Return the log end once the log has reached the hole's end: EndTxn answers before its marker is written."""
        deadline = monotonic() + self._target.settings.request_timeout_s
        while True:
            end = await settled_end(self._target, *key)
            if end >= hole.end or monotonic() > deadline:
                return end
            await sleep(0.002)

    def _name(self, topic: str, partition: int) -> str:
        return f"kmigrate-holes-{self._link_uuid}-{topic}-{partition}"


def _purpose(topic: str, partition: int) -> str:
    """Return the name of the connection for a partition's markers; always the same, so that markers stay in order."""
    return f"markers-{(crc32(topic.encode()) + partition) % _CONNECTIONS}"
