"""Keeps the order of idempotent batches after a failure, on a client connection.

A batch fails if the batch is surely not appended, because its leader has moved or a fence has lasted too long. A broker
would call the batches behind it a gap (45), which is fatal to some clients (B5), or take them for the first batches of
their producer (B3). So they get the failed batch's error until the client sends the failed batch again, or starts a new
epoch.

The client may send the failed batch again to another broker, as leaders move, and go on here when leaders have moved
back. A client sends refused batches again in order. So where a refused batch comes again first, the failed batch went
another way, and the router asks whether the cluster holds the failed batch.

If a client insists on a later batch for seconds, the broker shall judge: some clients give a batch up and send the next
batch. If the client has insisted, or the cluster holds the failed batch, the stop moves to the batch with which the
client has begun again. Batches behind that batch wait: the broker would take them for a gap or first batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kmigrate.records.batch import Batch
from kmigrate.router.shared.gate import GateKey, Keyed, ring_distance
from kmigrate.router.shared.state import LogProducer

__all__ = ["Gaps", "ProducerOrderGuard", "Stop"]

_MOST_STOPPED = 20_000
"""Limit of stops (partition and producer id) per connection: more than a broker's partitions that a producer writes."""
_INSISTED_S = 5.0


@dataclass(slots=True, eq=False)
class Stop:
    """The batch that must come first, by epoch and first sequence."""

    epoch: int
    sequence: int
    refused: int | None = None
    """First sequence of the newest batch that was refused behind the failed batch."""
    again: int = -1
    """First sequence of the batch with which the client has begun again, without the failed batch."""
    since: float = float("inf")
    """Time at which the client first began again so."""
    asked: bool = False
    """True while a cluster is being asked for the failed batch."""

    def insisted(self, now: float) -> bool:
        """Return whether the client has gone on for so long that the broker shall judge."""
        return now - self.since >= _INSISTED_S


@dataclass(slots=True)
class Gaps:
    """The gaps that the gate has found, by producer.

    The missing batch is acknowledged and forgotten by its cluster (V6), or given up by the client.
    """

    _found: dict[LogProducer, tuple[int, float, int]] = field(default_factory=dict)
    """Producer epoch, arrival of the first request with a gap, and first sequence of the newest batch with a gap."""

    def insisted(self, key: LogProducer, batch: Batch, now: float) -> bool:
        """Return whether the broker shall judge: seconds of gaps at `now` (arrival), and the client begins again."""
        epoch, since, newest = self._found.get(key, (-1, now, 0))
        if epoch != batch.producer_epoch:
            since = now
        self._found[key] = (batch.producer_epoch, since, batch.base_sequence)
        return now - since >= _INSISTED_S and ring_distance(batch.base_sequence, newest) <= 0


@dataclass(slots=True)
class ProducerOrderGuard:
    """Keeps batches from overtaking a failed batch; too many stops end the connection, and its client begins again."""

    _stopped: dict[GateKey, Stop] = field(default_factory=dict)

    @property
    def too_many(self) -> bool:
        """True if the connection has more stops than are remembered."""
        return len(self._stopped) > _MOST_STOPPED

    def hold_any(self, batches: Iterable[Keyed]) -> bool:
        """Return whether the producer of any batch is stopped at the batch's partition."""
        return bool(self._stopped) and any(batch.key in self._stopped for batch in batches)

    def blocks(self, topic: str, partition: int, batch: Batch) -> bool:
        """Return whether a batch stands behind a failed batch."""
        stop = self._stopped.get((topic, partition, batch.producer_id))
        if stop is None or batch.producer_epoch != stop.epoch:
            return False
        return ring_distance(batch.base_sequence, stop.sequence) > 0

    def passed(self, topic: str, partition: int, batch: Batch) -> None:
        """Note that a batch leaves; end the stop at the failed batch, a later epoch, or a batch known to be next."""
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if stop is not None and (
            batch.producer_epoch > stop.epoch
            or (batch.producer_epoch == stop.epoch and ring_distance(batch.base_sequence, stop.sequence) >= 0)
        ):
            del self._stopped[key]

    def failed(self, topic: str, partition: int, batch: Batch) -> None:
        """Note that a batch was surely not appended: the batch must come first again."""
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
        """Note a refusal behind a failed batch; return the stop if the refused batch comes again before the failed."""
        stop = self._stopped.get((topic, partition, batch.producer_id))
        if stop is None:  # the earlier batch is in the same request
            return None
        before, stop.refused = stop.refused, batch.base_sequence
        if before is None or ring_distance(batch.base_sequence, before) > 0:
            return None
        stop.again = batch.base_sequence
        stop.since = min(stop.since, now)
        return stop

    def lift(self, key: GateKey, stop: Stop) -> None:
        """Stop at the batch with which the client has begun again, unless another batch has failed meanwhile."""
        if self._stopped.get(key) is stop:
            self._stopped[key] = Stop(stop.epoch, stop.again)

    def given_up(self, topic: str, partition: int, batch: Batch) -> None:
        """Note that the client will not send a batch again: the client's next batches need not wait."""
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if stop is not None and (stop.epoch, stop.sequence) == (batch.producer_epoch, batch.base_sequence):
            del self._stopped[key]
