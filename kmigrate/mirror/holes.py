"""Offsets without records on the target: control markers, or empty transactions where those are not allowed.

Markers are *not* compare-and-set (W5), so only a partition's owner makes them, with a marker id of its own and as
coordinator epoch the term under which it owns: once a newer term has written one, a late owner is answered 52 (V3).
With transactions the coordinator fences: each owner initialises the partition's transactional id anew, and before it
looks where the log ends. Who stood still in between, and was replaced, then sees what the new owner has appended.
"""

from __future__ import annotations

import asyncio

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.settings import HoleFiller
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.codes import Code

__all__ = ["HoleMaker"]

_CHUNK = 5_000
"""Markers in one request: 0.17 s measured (M2)."""
_GIVEN_UP = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING, Code.PRODUCER_FENCED})
"""What a coordinator says of an identity that it has replaced, or forgotten while it was idle."""


class HoleMaker:
    """Makes holes for one link."""

    def __init__(self, target: ClusterClient, identity: CopyIdentity, *, link_uuid: str, filler: HoleFiller) -> None:
        self._target = target
        self._identity = identity
        self._link_uuid = link_uuid
        self._producers: dict[tuple[str, int], tuple[int, tuple[int, int]]] = {}
        """By partition: the term under which its transactional id was initialised, and what came of it."""
        self._one_transaction = asyncio.Lock()
        self.filler = filler

    @property
    def portion(self) -> int:
        """How much of a long hole is made at once: about a second's worth, so that the lease is looked at between."""
        return 25_000 if self.filler is HoleFiller.MARKERS else 500

    async def prepare(self, topic: str, partition: int, term: int) -> None:
        """Fence whoever made holes here before, where that is the coordinator's to do; to be called before the log's
        end is looked at. Raises Unreachable."""
        known, _ = self._producers.get((topic, partition), (0, (-1, -1)))
        if self.filler is HoleFiller.TRANSACTIONS and known != term:
            async with self._one_transaction:
                producer = await self._target.init_producer_id(self._name(topic, partition))
                self._producers[(topic, partition)] = term, producer

    async def make(self, topic: str, partition: int, count: int, term: int) -> int:
        """Append `count` control records; the broker's error code. Raises Unreachable where the outcome is unknown."""
        while count and self.filler is HoleFiller.MARKERS:
            chunk = min(count, _CHUNK)
            code = await self._target.write_markers(
                self._target.leader(topic, partition),
                topic,
                partition,
                chunk,
                producer_id=self._identity.marker_id,
                epoch=self._identity.marker_epoch,
                coordinator_epoch=term,
            )
            if code == Code.CLUSTER_AUTHORIZATION_FAILED:
                self.filler = HoleFiller.TRANSACTIONS
                break
            if code:
                return code
            count -= chunk
        return await self._by_transactions(topic, partition, count, term) if count else 0

    async def _by_transactions(self, topic: str, partition: int, count: int, term: int) -> int:
        key = (topic, partition)
        async with self._one_transaction:
            known, producer = self._producers.get(key, (0, (-1, -1)))
            if known != term:
                return Code.CONCURRENT_TRANSACTIONS  # not prepared: to be tried again from the start
            code = await self._target.empty_transactions(self._name(*key), producer, *key, count)
            if code in _GIVEN_UP:
                del self._producers[key]
            return code

    def _name(self, topic: str, partition: int) -> str:
        return f"kmigrate-holes-{self._link_uuid}-{topic}-{partition}"
