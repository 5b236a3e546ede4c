"""The order of idempotent batches after a failure, on one client connection.

When a batch was surely not appended (a moved leader, a fence that lasted too long), the ones that the client has sent
behind it would meet a gap and draw error 45, which is fatal to some clients (B5), or be taken for the first of their
producer (B3). So they are told what the first was told, until the client sends the first again, or starts a new epoch.

It may send the first again to another broker, as leaders move, and go on here when they have moved back. What was not
taken a client sends again in order: where one that was refused comes once more and the first has not, the first went
another way. So the cluster is asked whether it holds that. What a client insists on for seconds is for the broker to
judge, for there are clients that give a batch up and send the next one. In both cases the client begins with another
one, and what it has sent behind that waits for that: the broker would call it a gap, or the first of its producer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kmigrate.records.batch import Batch
from kmigrate.router.gate import GateKey, Keyed, ring_distance

__all__ = ["Gaps", "Stop", "StopRule"]

_MOST_STOPPED = 20_000
"""More than the partitions of one broker that one producer writes; each is remembered for each of its ids."""
_INSISTED_S = 5.0


@dataclass(slots=True, eq=False)
class Stop:
    """The batch that must come first, by epoch and first sequence."""

    epoch: int
    sequence: int
    refused: int | None = None
    """First sequence of the newest one that was refused behind it."""
    again: int = -1
    """First sequence of the one with which the client has begun again, though this has not come."""
    since: float = float("inf")
    """When it first did so."""
    asked: bool = False
    """Whether a cluster is being asked for it."""

    def insisted(self, now: float) -> bool:
        """Whether the client has gone on for so long that the broker shall judge."""
        return now - self.since >= _INSISTED_S


@dataclass(slots=True)
class Gaps:
    """In which epoch and since when the gate has told a client of nothing but gaps, and of which batch last.

    What it should have come with is acknowledged, and the target has forgotten it (V6), or the client has given it up.
    """

    _told: dict[GateKey, tuple[int, float, int]] = field(default_factory=dict)

    def insisted(self, key: GateKey, batch: Batch, now: float) -> bool:
        """Whether it has gone on for so long, and begins anew with this batch, that the target shall judge."""
        epoch, since, newest = self._told.get(key, (-1, now, 0))
        if epoch != batch.producer_epoch:
            since = now
        self._told[key] = (batch.producer_epoch, since, batch.base_sequence)
        return now - since >= _INSISTED_S and ring_distance(batch.base_sequence, newest) <= 0


@dataclass(slots=True)
class StopRule:
    """Keeps batches behind a failed one from reaching their broker before it does.

    A connection with too many that never come again is ended: its client begins anew by itself.
    """

    _stopped: dict[GateKey, Stop] = field(default_factory=dict)

    @property
    def too_many(self) -> bool:
        """Whether more is stopped than is remembered of one connection."""
        return len(self._stopped) > _MOST_STOPPED

    def hold_any(self, batches: Iterable[Keyed]) -> bool:
        """Whether anything of their producers is stopped at their partitions."""
        return bool(self._stopped) and any(batch.key in self._stopped for batch in batches)

    def blocks(self, topic: str, partition: int, batch: Batch) -> bool:
        """Whether a batch stands behind a failed one."""
        stop = self._stopped.get((topic, partition, batch.producer_id))
        if stop is None or batch.producer_epoch != stop.epoch:
            return False
        return ring_distance(batch.base_sequence, stop.sequence) > 0

    def passed(self, topic: str, partition: int, batch: Batch) -> None:
        """A batch leaves: if it is the failed one again, of a later epoch, or known to come next, the way is free."""
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if stop is not None and (
            batch.producer_epoch > stop.epoch
            or (batch.producer_epoch == stop.epoch and ring_distance(batch.base_sequence, stop.sequence) >= 0)
        ):
            del self._stopped[key]

    def failed(self, topic: str, partition: int, batch: Batch) -> None:
        """A batch was surely not appended: it must come first again."""
        if batch.producer_id < 0:
            return
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if (
            stop is None
            or stop.epoch < batch.producer_epoch
            or (stop.epoch == batch.producer_epoch and ring_distance(batch.base_sequence, stop.sequence) <= 0)
        ):
            self._stopped[key] = Stop(batch.producer_epoch, batch.base_sequence)

    def refused(self, topic: str, partition: int, batch: Batch, now: float) -> Stop | None:
        """A batch is refused for one before it; what stops it, where it comes again and that one has not."""
        stop = self._stopped.get((topic, partition, batch.producer_id))
        if stop is None:  # the one before it is in the same request
            return None
        before, stop.refused = stop.refused, batch.base_sequence
        if before is None or ring_distance(batch.base_sequence, before) > 0:
            return None
        stop.again = batch.base_sequence
        stop.since = min(stop.since, now)
        return stop

    def lift(self, key: GateKey, stop: Stop) -> None:
        """The one with which the client has begun again comes first, unless another has failed meanwhile."""
        if self._stopped.get(key) is stop:
            self._stopped[key] = Stop(stop.epoch, stop.again)

    def given_up(self, topic: str, partition: int, batch: Batch) -> None:
        """The client will not send that batch again: what it sends next is not behind it."""
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if stop is not None and (stop.epoch, stop.sequence) == (batch.producer_epoch, batch.base_sequence):
            del self._stopped[key]
