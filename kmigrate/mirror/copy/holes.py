"""Offsets without records on the target: control markers, or empty transactions if markers are not allowed.

Markers (`markers`) may leave together with the batch before the hole, if the broker has passed `window_probe`.

With transactions the coordinator fences. Each owner initialises the partition's transactional id anew before looking up
the log end, and after an unknown outcome. So an owner replaced while it stood still sees the new owner's appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kmigrate.cluster.append import settled_end
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import empty_transactions
from kmigrate.errors import Failed, Unreachable
from kmigrate.mirror.copy.markers import NOT_SENT, Filling, Made, MarkerWriter, Marking, Piece, marker_purpose
from kmigrate.mirror.copy.min_insync import MinInsync
from kmigrate.mirror.copy.window_probe import closes_behind_refusals
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.partition.window import LONG
from kmigrate.mirror.settings import HoleFiller
from kmigrate.model.records import CopyIdentity
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import Code

__all__ = ["HoleMaker"]

_GIVEN_UP = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING, Code.PRODUCER_FENCED})
"""Error codes for an identity that the coordinator has replaced, or has forgotten while the identity was idle."""


class HoleMaker:
    """Fills holes for a copier."""

    def __init__(
        self,
        target: ClusterClient,
        identity: CopyIdentity,
        *,
        link_uuid: str,
        filler: HoleFiller,
        windows: bool = True,
        long_windows: bool = True,
        producer_of: Callable[[tuple[str, int]], int] | None = None,
    ) -> None:
        """Create a hole maker; `producer_of` returns the producer id of a partition's copy, by default the link's."""
        self._target = target
        self._link_uuid = link_uuid
        self._producers: dict[tuple[str, int], tuple[int, tuple[int, int]]] = {}
        """Term under which each partition's transactional id was initialised, and its producer id and epoch."""
        self._markers = MarkerWriter(target, producer_of or (lambda _: identity.data_id))
        self._closes: dict[int, bool] = {}
        """The result of each broker's probe (`window_probe`)."""
        self._windows = windows
        self._long_windows = long_windows
        self._min_insync = MinInsync(target)
        self._one_probe = asyncio.Lock()
        self._one_transaction = asyncio.Lock()
        self.filler = filler

    @property
    def batch_offsets(self) -> int:
        """Offsets of a long hole that are filled at once: less than a second's work between looks at the lease (M2)."""
        return 5_000 if self.filler is HoleFiller.MARKERS else 500

    def ready(self, topic: str, partition: int, term: int) -> bool:
        """Return whether `make` would send the request for the hole at once."""
        if self.filler is HoleFiller.MARKERS:
            return self._markers.is_ready((topic, partition))
        return self._producers.get((topic, partition), (0, (-1, -1)))[0] == term

    async def prepare(self, topic: str, partition: int, term: int) -> None:
        """Connect for markers or fence the former owner, before the log end is looked up; raise Unreachable."""
        if self.filler is HoleFiller.MARKERS:
            node = self._target.leader(topic, partition)
            if node < 0:
                raise Unreachable("no-leader", f"{topic}-{partition} has no leader now")
            await self._target.connection(node, marker_purpose((topic, partition)))
            await self._probe(node, (topic, partition))
        elif not self.ready(topic, partition, term):
            async with self._one_transaction:
                producer = await self._target.init_producer_id(self._name(topic, partition))
                self._producers[(topic, partition)] = term, producer

    async def _probe(self, node: int, key: tuple[str, int]) -> None:
        """Learn once whether a broker may be sent windows; after a failure the next hole tries again."""
        async with self._one_probe:
            if self._windows and node not in self._closes:
                try:
                    self._closes[node] = await closes_behind_refusals(self._target, node, key)
                except Failed:
                    return

    @property
    def slow_brokers(self) -> frozenset[int]:
        """Brokers that have not passed their probe, so that each hole takes a round trip of its own."""
        return frozenset(node for node, closes in self._closes.items() if not closes)

    def takes_windows(self, key: tuple[str, int]) -> bool:
        """Return whether a window for a partition may be sent at once."""
        closes = self._closes.get(self._target.leader(*key), False)
        return closes and self.filler is HoleFiller.MARKERS and self._markers.is_ready(key)

    def most_holes(self, topic: str) -> int:
        """Return the number of holes that a window of a topic may have now (`partition/lane.py`, O)."""
        return LONG if self._long_windows and self._min_insync.is_one(topic) else 1

    @property
    def in_turn(self) -> frozenset[str]:
        """Topics whose windows have a single hole, because the topics need more than one in-sync replica."""
        return self._min_insync.above_one

    @property
    def window_s(self) -> float:
        """Seconds that the last window with a single hole took; 0 if there was none."""
        return self._markers.window_s

    async def run(self) -> None:
        """Ask the target for the topics that may be sent long windows, for ever."""
        await self._min_insync.run()

    def add(self, window: Filling) -> None:
        """Send a window with the next group of its connection."""
        self._markers.add(window)

    async def make(
        self, topic: str, partition: int, hole: Hole, term: int, *, epoch: int, may_write: Callable[[], bool]
    ) -> Made:
        """Append the hole's control records; raise Failed if the outcome is unknown.

        `may_write` is asked when the markers leave, and `epoch` is their producer epoch.
        """
        key = (topic, partition)
        if self.filler is HoleFiller.MARKERS:
            if not self.ready(topic, partition, term):  # waiting for a connection, an owner may lose the partition
                return NOT_SENT
            made = await self._by_markers(
                key, Marking([Piece(hole.end - hole.start)], hole.end, epoch, term), may_write
            )
            if made.error != Code.CLUSTER_AUTHORIZATION_FAILED:
                return made
            self.filler = HoleFiller.TRANSACTIONS
        return await self._by_transactions(key, hole, term)

    async def _by_markers(self, key: tuple[str, int], marking: Marking, may_write: Callable[[], bool]) -> Made:
        outcome: asyncio.Future[Made] = asyncio.get_running_loop().create_future()

        def begin() -> Marking | None:
            if not outcome.done() and may_write():
                return marking
            ended(NOT_SENT)
            return None

        def ended(made: Made) -> None:
            if not outcome.done():
                outcome.set_result(made)

        def failed(error: Failed) -> None:
            if not outcome.done():
                outcome.set_exception(error)

        self._markers.add(Filling(key, begin, ended, failed))
        return await outcome

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
