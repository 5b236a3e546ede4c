"""All lanes of a copier, by partition and by leader, and the signals by which the copier's tasks wake each other."""

from __future__ import annotations

import asyncio
import logging
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from zlib import crc32

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata
from kmigrate.errors import Failed, Unreachable
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.model.presences import PartitionProgress
from kmigrate.net.clock import monotonic, sleep

__all__ = ["LOOK_S", "Lanes", "Signals", "progress_of", "target_losses"]

LOOK_S = 1.0
"""Interval of the looks that nothing has called for."""

_log = logging.getLogger(__name__)
_WARN_S = 60.0
_READ = 0
"""Number of slots under which the lanes are kept by the broker that they are read from."""
_MOST_NAMED = 10
"""Number of losses that a presence names: the presence of all partitions must fit into one message."""


class Lanes(UserDict[Key, Lane]):
    """Lanes by topic and partition; answers are kept until lanes or metadata change, so 1,000 idle lanes cost little.

    If metadata, read by any task, shows another topic of the name, the lanes have no leader: appends name no topic id.
    """

    def __init__(self, shown: Callable[[ClusterClient, str], bool] = lambda client, topic: True) -> None:
        super().__init__()
        self.shown = shown
        self._led: dict[tuple[int, int], tuple[Metadata, dict[tuple[int, int], list[Lane]]]] = {}
        self._followers: dict[Key, int] = {}
        self._of_topics: dict[str, dict[int, Lane]] = {}
        """The same lanes by topic."""

    def __getitem__(self, key: Key) -> Lane:
        return self.data[key]

    def __setitem__(self, key: Key, lane: Lane) -> None:
        super().__setitem__(key, lane)
        self._of_topics.setdefault(key[0], {})[key[1]] = lane
        self._led.clear()

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        del self._of_topics[key[0]][key[1]]
        if not self._of_topics[key[0]]:
            del self._of_topics[key[0]]
        self._followers.pop(key, None)
        self._led.clear()

    def of_topic(self, topic: str) -> Sequence[Lane]:
        """Return the lanes of a topic's partitions."""
        return tuple(self._of_topics.get(topic, {}).values())

    @property
    def followers(self) -> Mapping[Key, int]:
        """The brokers that partitions are read from in place of their source leaders."""
        return self._followers

    def follow(self, key: Key, node: int) -> None:
        """Read a partition from a follower from now on; −1: from the leader."""
        if self._followers.get(key, -1) == node:
            return
        if node < 0:
            del self._followers[key]
        else:
            self._followers[key] = node
        self._led.clear()

    def producer_of(self, key: Key) -> int:
        """Return the producer id of a partition's copy."""
        return self.data[key].target.producer_id

    def led_by(self, client: ClusterClient, node: int, slot: int = 0, slots: int = 1) -> Sequence[Lane]:
        """Return the lanes whose partitions a broker leads; with `slots`, the lanes of a single connection."""
        return self._grouped(client, slots, {}).get((node, slot), ())

    def read_from(self, source: ClusterClient, node: int) -> Sequence[Lane]:
        """Return the lanes that are read from a broker, as their leader or as their follower."""
        if not self._followers:
            return self.led_by(source, node)
        return self._grouped(source, _READ, self._followers).get((node, 0), ())

    def _grouped(
        self, client: ClusterClient, slots: int, instead: Mapping[Key, int]
    ) -> dict[tuple[int, int], list[Lane]]:
        """Return the lanes by broker and slot; `instead` has other brokers than the leaders."""
        known = self._led.get((id(client), slots))
        if known is None or known[0] is not client.metadata:
            led: dict[tuple[int, int], list[Lane]] = {}
            shown = {topic: self.shown(client, topic) for topic in {topic for topic, _ in self}}
            for (topic, partition), lane in self.items():
                node = instead.get((topic, partition), client.leader(topic, partition)) if shown[topic] else -1
                slot_key = (node, (crc32(topic.encode()) + partition) % (slots or 1))
                led.setdefault(slot_key, []).append(lane)
            known = self._led[(id(client), slots)] = (client.metadata, led)
        return known[1]


def progress_of(lanes: Iterable[Lane]) -> dict[str, dict[int, PartitionProgress]]:
    """Return the progress of partitions, by topic and partition."""
    topics: dict[str, dict[int, PartitionProgress]] = {}
    for lane in lanes:
        topics.setdefault(lane.topic, {})[lane.partition] = lane.progress()
    return topics


def target_losses(lanes: Iterable[Lane]) -> tuple[str, ...]:
    """Return the target's losses; of very many, as after a broker comes back empty, only the first few are named."""
    losses = [lane.report.target_loss for lane in lanes if lane.report.target_loss]
    more = len(losses) - _MOST_NAMED
    return (*losses[:_MOST_NAMED], *([f"target-truncated: and of {more} more partitions"] if more > 0 else ()))


class Signals:
    """The signals between the tasks of a copier."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._readers_waiting: list[asyncio.Future[None]] = []
        self.moved = 0
        """Number of changes of any lane; a task reads the number before it looks at lanes and waits for a change."""
        self.look_now = asyncio.Event()
        """Set, and replaced by a new event, when metadata may have changed: the copier then looks at once."""
        self.assigned = asyncio.Event()
        """Set, and replaced by a new event, when a broker may lead other lanes, or other lanes may be waited for."""
        self._troubles: dict[ClusterClient, str] = {}
        self._warned: dict[ClusterClient, tuple[str, float]] = {}

    @property
    def trouble(self) -> str:
        """The reasons why a whole cluster, or both, cannot be read or written at the moment, or ''."""
        return "; ".join(self._troubles.values())

    def failed(self, client: ClusterClient, error: Failed) -> None:
        """Note that a broker cannot be asked; partitions of other brokers go on.

        Failures other than `Unreachable` (TLS, SASL) are logged at once and every minute: a person must mend the cause.
        """
        if isinstance(error, Unreachable):
            self._troubles[client] = error.what
            return
        trouble = self._troubles[client] = error.summary
        now, (warned, at) = monotonic(), self._warned.get(client, ("", 0.0))
        if trouble != warned or now - at > _WARN_S:
            self._warned[client] = trouble, now
            _log.warning("mirror: %s", trouble)

    def looks(self, client: ClusterClient) -> asyncio.Event:
        """Begin a look at a cluster: clear its trouble, and return the event of the next call for a look."""
        self._troubles.pop(client, None)
        return self.look_now

    def call_for_look(self) -> None:
        """Call for a look at both clusters: the caller seldom knows which of them has changed."""
        called, self.look_now = self.look_now, asyncio.Event()
        called.set()

    def wake(self) -> None:
        """Note that a lane has changed, and wake all waiting tasks."""
        waiting, self._waiting = self._waiting, []
        _end_all(waiting)
        self.wake_readers()

    def wake_readers(self) -> None:
        """Note that a lane has changed, and wake the waiting readers: the writers have nothing new to send."""
        self.moved += 1
        waiting, self._readers_waiting = self._readers_waiting, []
        _end_all(waiting)

    def assign(self) -> None:
        """Note that the state log wants other lanes, or that other brokers lead them."""
        assigned, self.assigned = self.assigned, asyncio.Event()
        assigned.set()
        self.wake()

    async def pulse(self) -> None:
        """Wake all waiting tasks now and then, for ever, so that they need no timer of their own."""
        while True:
            await sleep(LOOK_S)
            self.wake()

    async def wait(self, moved: int, most_s: float = LOOK_S, *, reads: bool = False) -> None:
        """Wait until anything has changed since `moved` was read; `most_s` below a pulse limits the wait.

        `reads`: the task reads from the source, so that `wake_readers` wakes the task, too.
        """
        if self.moved != moved:
            return
        loop = self._loop = self._loop or asyncio.get_running_loop()  # each look-up costs a system call
        change = loop.create_future()
        (self._readers_waiting if reads else self._waiting).append(change)
        if most_s >= LOOK_S:
            await change
            return
        try:
            async with asyncio.timeout(most_s):
                await change
        except TimeoutError:
            return


def _end_all(waiting: Iterable[asyncio.Future[None]]) -> None:
    for change in waiting:
        if not change.done():
            change.set_result(None)
