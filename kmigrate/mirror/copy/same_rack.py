"""The choice of partitions that are read from a follower in this process's rack (KIP-392), to save traffic.

A. Only a leader names a follower. A Fetch of its own names the rack; all other fetches name no rack, so that brokers
   answer with records. A follower that its leader does not name again is left.
B. From the intent of a promote on a partition is read from its leader.
C. A follower's error, diverging epoch or silence says nothing about the log. The partition goes back to its leader,
   and the leader's answer decides: a lagging follower answers OFFSET_OUT_OF_RANGE for offsets that the leader has (W8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kmigrate.cluster.fetch import fetch_full
from kmigrate.errors import Failed
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.hot import FetchPartition

__all__ = ["SameRack"]

_ASK_S = 5.0
_SHUN_S = 30.0
"""Seconds for which a partition stays with its leader after a follower's failure."""


class SameRack:
    """Asks the source's leaders which followers serve this process's rack, and keeps the lanes' brokers (`Lanes`)."""

    def __init__(self, context: CopyContext) -> None:
        self._rack = context.settings.rack
        self._source = context.source
        self._lanes = context.lanes
        self._signals = context.signals
        self._shunned: dict[Key, float] = {}
        """Time until which a partition is read from its leader, whatever the leader says (C)."""

    async def run(self) -> None:
        """Ask for ever; without a rack there is nothing to ask."""
        while self._rack:
            await sleep(_ASK_S)
            await self.ask()

    async def ask(self) -> None:
        """Ask each leader once, and read every partition from the broker that its leader names now."""
        now = monotonic()
        self._shunned = {key: until for key, until in self._shunned.items() if until > now}
        by_leader: dict[int, list[Lane]] = {}
        for lane in self._lanes.values():
            if self._may_follow(lane):
                by_leader.setdefault(self._source.leader(*lane.key), []).append(lane)
        named: dict[Key, int] = {}
        for leader, lanes in by_leader.items():
            named |= await self._named_by(leader, lanes)
        for key, lane in self._lanes.items():
            self._lanes.follow(key, named.get(key, -1) if self._may_follow(lane) else -1)
        self._signals.call_for_look()  # a follower that leads nothing has no reading task yet
        self._signals.wake()

    def _may_follow(self, lane: Lane) -> bool:
        return lane.reads and not lane.promoting and not lane.urgent and lane.key not in self._shunned

    async def _named_by(self, leader: int, lanes: Sequence[Lane]) -> dict[Key, int]:
        """Return the followers that a leader names; none if the leader cannot be asked."""
        parts = [FetchPartition(*lane.key, lane.source.read_at, 1) for lane in lanes]
        try:
            answer = await fetch_full(
                self._source, leader, parts, purpose="same-rack", max_wait_ms=0, max_bytes=1, rack=self._rack
            )
        except Failed:
            return {}  # the reading task reports the failure
        brokers = self._source.metadata.brokers
        return {
            (part.topic, part.partition): part.preferred_replica
            for part in answer.partitions
            if not part.error and part.preferred_replica in brokers and part.preferred_replica != leader
        }

    def at(self, node: int, lanes: Iterable[Lane]) -> Collection[Key]:
        """Return the partitions among the lanes that a broker serves as a follower."""
        followers = self._lanes.followers
        return {lane.key for lane in lanes if followers.get(lane.key) == node} if followers else ()

    def leave(self, keys: Collection[Key]) -> None:
        """Read partitions from their leaders again, because a follower failed (C)."""
        for key in keys:
            self._shunned[key] = monotonic() + _SHUN_S
            self._lanes.follow(key, -1)
