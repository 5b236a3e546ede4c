"""All lanes of a copier: by partition, and by the broker that leads it; and how its tasks wake each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from zlib import crc32

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.layout import Metadata
from kmigrate.errors import Failed, Unreachable
from kmigrate.mirror.lane import Key, Lane
from kmigrate.net.clock import monotonic, sleep

__all__ = ["LOOK_S", "Lanes", "Signals", "Warrant", "target_losses"]

LOOK_S = 1.0
"""How often what nothing has told of is looked for all the same."""

_log = logging.getLogger(__name__)
_WARN_S = 60.0
_MOST_TOLD = 10
"""A process's word on all of its partitions must fit into one message."""

Warrant = Callable[[Key], int]
"""The term under which this process may do on a partition what is not compare-and-set there; 0 where it may not."""


class Lanes(MutableMapping[Key, Lane]):
    """Lanes by topic and partition.

    Readers and writers ask many times a second which lanes are theirs; the answer is kept until a lane comes or
    goes, or the cluster's layout is read anew, so that a thousand idle lanes cost next to nothing. Lanes of a topic are
    nobody's while a layout shows another one of its name, which anybody who reads a layout may be the first to see:
    appends name no id.
    """

    def __init__(self, shown: Callable[[ClusterClient, str], bool] = lambda client, topic: True) -> None:
        self._shown = shown
        self._lanes: dict[Key, Lane] = {}
        self._led: dict[tuple[int, int], tuple[Metadata, dict[tuple[int, int], list[Lane]]]] = {}

    def __getitem__(self, key: Key) -> Lane:
        return self._lanes[key]

    def __setitem__(self, key: Key, lane: Lane) -> None:
        self._lanes[key] = lane
        self._led.clear()

    def __delitem__(self, key: Key) -> None:
        del self._lanes[key]
        self._led.clear()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def led_by(self, client: ClusterClient, node: int, slot: int = 0, slots: int = 1) -> Sequence[Lane]:
        """The lanes of the partitions that a broker leads; with `slots`, those of one of its connections."""
        known = self._led.get((id(client), slots))
        if known is None or known[0] is not client.metadata:
            led: dict[tuple[int, int], list[Lane]] = {}
            shown = {topic: self._shown(client, topic) for topic in {topic for topic, _ in self._lanes}}
            for (topic, partition), lane in self._lanes.items():
                leader = client.leader(topic, partition) if shown[topic] else -1
                place = (leader, (crc32(topic.encode()) + partition) % slots)
                led.setdefault(place, []).append(lane)
            known = self._led[(id(client), slots)] = (client.metadata, led)
        return known[1].get((node, slot), ())


def target_losses(lanes: Iterable[Lane]) -> tuple[str, ...]:
    """What the target has lost of these partitions; of many, as when a broker comes back empty, the first few."""
    told = [lane.target_loss for lane in lanes if lane.target_loss]
    more = len(told) - _MOST_TOLD
    return (*told[:_MOST_TOLD], *([f"target-truncated: and of {more} more partitions"] if more > 0 else ()))


class Signals:
    """What the tasks of a copier tell each other."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.moved = 0
        """How often any lane has changed: who will wait for the next change takes it before looking at lanes."""
        self.look_now = asyncio.Event()
        """Set, and replaced by a new one, when the layout of a cluster may have changed: the copier looks at once."""
        self.assigned = asyncio.Event()
        """Set, and replaced by a new one, when other lanes may be a broker's, or be waited for."""
        self._troubles: dict[ClusterClient, str] = {}
        self._warned: dict[ClusterClient, tuple[str, float]] = {}

    @property
    def trouble(self) -> str:
        """What keeps a whole cluster, or both, from being read or written at the moment, or ''."""
        return "; ".join(self._troubles.values())

    def failed(self, client: ClusterClient, error: Failed) -> None:
        """A broker cannot be asked, and what others lead goes on. That one is not trusted, or does not trust us, is
        said at once and every minute: it is mended by a person."""
        if isinstance(error, Unreachable):
            self._troubles[client] = error.what
            return
        trouble = self._troubles[client] = f"{error.ref}: {error.what}"
        now, (warned, at) = monotonic(), self._warned.get(client, ("", 0.0))
        if trouble != warned or now - at > _WARN_S:
            self._warned[client] = trouble, now
            _log.warning("mirror: %s", trouble)

    def looks(self, client: ClusterClient) -> asyncio.Event:
        """A look at a cluster begins, and what was said of it no longer counts; the event of the next call for one."""
        self._troubles.pop(client, None)
        return self.look_now

    def call_for_look(self) -> None:
        """At both clusters: who asks seldom knows which of them has changed."""
        called, self.look_now = self.look_now, asyncio.Event()
        called.set()

    def wake(self) -> None:
        """A lane has changed: everybody looks whether there is something to do."""
        self.moved += 1
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)

    def assign(self) -> None:
        """The state log wants something else of the lanes, or other brokers lead them."""
        assigned, self.assigned = self.assigned, asyncio.Event()
        assigned.set()
        self.wake()

    async def pulse(self) -> None:
        """Wake everybody now and then, for ever: whoever waits for a change needs no timer of its own."""
        while True:
            await sleep(LOOK_S)
            self.wake()

    async def wait(self, moved: int, most_s: float = LOOK_S) -> None:
        """Until anything has changed since `moved` was taken; `most_s` below a pulse for who waits for a moment."""
        if self.moved != moved:
            return
        loop = self._loop = self._loop or asyncio.get_running_loop()  # asking for it costs a system call each time
        change = loop.create_future()
        self._waiting.append(change)
        if most_s >= LOOK_S:
            await change
            return
        try:
            async with asyncio.timeout(most_s):
                await change
        except TimeoutError:
            return
