"""Offsets without records on the target: control markers, or empty transactions where those are not allowed.

Markers are *not* compare-and-set (W5), so only a partition's owner makes them, with a marker id of its own. The
coordinator epoch holds the term under which the owner has the partition: once a newer term has written a marker, a
late owner is answered 52 (V3). Below the term it counts the owner's requests whose outcome was unknown. Such a request
may still wait in a broker's memory, behind another partition's, when the owner asks again on a new connection; what
comes late is refused then, too. With transactions the coordinator fences: each owner initialises the partition's
transactional id anew, also after an unknown outcome, and before it looks where the log ends. Who stood still in
between, and was replaced, then sees what the new owner has appended.

What a broker answers does not say how many of a partition's markers were written, nor whether others' came between. So
the log's end is asked for behind them on the same connection, which a broker works on in order: it takes no time of its
own. And since a broker answers only once replicas have them, and then takes the next request, partitions are spread
over several connections.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from zlib import crc32

from kmigrate.cluster.client import LATEST, LOG_END, ClusterClient
from kmigrate.cluster.producer import settled_end
from kmigrate.errors import Unreachable
from kmigrate.mirror.settings import HoleFiller
from kmigrate.mirror.steps import Hole
from kmigrate.model.records import CopyIdentity
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code

__all__ = ["HoleMaker", "Made"]

_CONNECTIONS = 8
"""To each broker that leads partitions with holes."""
_RETRY_BITS = 10
"""Bits of a coordinator epoch, which has 31, that count the requests without a known outcome under a term."""
_GIVEN_UP = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING, Code.PRODUCER_FENCED})
"""What a coordinator says of an identity that it has replaced, or forgotten while it was idle."""


class Made(NamedTuple):
    """What came of a hole: the broker's error code, or where the log ended right behind it."""

    error: int
    end: int = -1
    """−1 where the broker did not tell."""


class HoleMaker:
    """Makes holes for one link."""

    def __init__(self, target: ClusterClient, identity: CopyIdentity, *, link_uuid: str, filler: HoleFiller) -> None:
        self._target = target
        self._identity = identity
        self._link_uuid = link_uuid
        self._producers: dict[tuple[str, int], tuple[int, tuple[int, int]]] = {}
        """By partition: the term under which its transactional id was initialised, and what came of it."""
        self._unknown: dict[tuple[str, int], tuple[int, int]] = {}
        """A term, and the number of requests for markers without a known outcome under that term, by partition."""
        self._one_transaction = asyncio.Lock()
        self.filler = filler

    @property
    def portion(self) -> int:
        """How much of a long hole is made at once: below a second's worth, for the lease is looked at between (M2)."""
        return 5_000 if self.filler is HoleFiller.MARKERS else 500

    def ready(self, topic: str, partition: int, term: int) -> bool:
        """Whether `make` would ask for the hole at once."""
        if self.filler is HoleFiller.MARKERS:
            return self._target.is_open(self._target.leader(topic, partition), _purpose(topic, partition))
        return self._producers.get((topic, partition), (0, (-1, -1)))[0] == term

    async def prepare(self, topic: str, partition: int, term: int) -> None:
        """Open the way for markers, or fence whoever made holes by transactions here before; to be called before the
        log's end is looked at. Raises Unreachable."""
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
        """Append the hole's control records. Raises Unreachable where the outcome is unknown."""
        if self.filler is HoleFiller.MARKERS:
            if not self.ready(topic, partition, term):  # who waits for a connection may own the partition no more
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
        made = await self._written_by_markers(key, hole, epoch)
        # This process may have raised the epoch, before this object was made.
        answered = made.error not in (0, Code.TRANSACTION_COORDINATOR_FENCED)
        if answered or (not made.error and made.end == hole.end):
            self._unknown[key] = term, unknown
        return made

    async def _written_by_markers(self, key: tuple[str, int], hole: Hole, epoch: int) -> Made:
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
        return Made(code, ends[key].offset)

    async def _by_transactions(self, key: tuple[str, int], hole: Hole, term: int) -> Made:
        async with self._one_transaction:
            known, producer = self._producers.get(key, (0, (-1, -1)))
            if known != term:
                return Made(Code.CONCURRENT_TRANSACTIONS)  # not prepared: to be tried again from the start
            del self._producers[key]  # until the outcome is known
            code = await self._target.empty_transactions(self._name(*key), producer, *key, hole.end - hole.start)
            if code not in _GIVEN_UP:
                self._producers[key] = known, producer
        return Made(code) if code else Made(0, await self._written(key, hole))

    async def _written(self, key: tuple[str, int], hole: Hole) -> int:
        """The log's end once it has reached the hole's: EndTxn answers before its marker is written."""
        deadline = monotonic() + self._target.settings.request_timeout_s
        while True:
            end = await settled_end(self._target, *key)
            if end >= hole.end or monotonic() > deadline:
                return end
            await sleep(0.002)

    def _name(self, topic: str, partition: int) -> str:
        return f"kmigrate-holes-{self._link_uuid}-{topic}-{partition}"


def _purpose(topic: str, partition: int) -> str:
    """Which of the connections a partition's markers go over; always the same, so that they stay in order."""
    return f"markers-{(crc32(topic.encode()) + partition) % _CONNECTIONS}"
