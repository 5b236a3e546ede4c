"""Per client connection: producer ids of the router's own, and the order of idempotent batches after a failure."""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.records.batch import Batch, next_sequence
from kmigrate.router.gate import ring_distance

__all__ = ["OwnProducer", "StopRule"]

_LAST_EPOCH = 32_000
_MOST_STOPPED = 20_000
"""More than the partitions of one broker that one producer writes; each is remembered for each of its ids."""


@dataclass(slots=True)
class OwnProducer:
    """The id that stands in for a client without one (AL-35), with an epoch and a sequence per partition.

    With it the source tells routed writes from direct ones and deduplicates nothing it should not. After any
    error of a partition its sequence is in doubt, so the partition goes on with the next epoch at sequence 0,
    which a broker accepts from any state.
    """

    producer_id: int
    _next: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    exhausted: bool = False
    """Whether its epochs come to an end."""

    def stamp_for(self, topic: str, partition: int, count: int) -> tuple[int, int]:
        """Epoch and first sequence of the next batch to a partition."""
        epoch, sequence = self._next.get((topic, partition), (0, 0))
        self._next[(topic, partition)] = (epoch, next_sequence(sequence, count))
        return epoch, sequence

    def failed(self, topic: str, partition: int, epoch: int) -> None:
        """A batch of this epoch was refused; those behind it in flight will be, too, and count only once."""
        current, _ = self._next.get((topic, partition), (0, 0))
        if current == epoch:
            self._next[(topic, partition)] = (epoch + 1, 0)
            self.exhausted |= epoch + 1 >= _LAST_EPOCH


@dataclass(slots=True)
class StopRule:
    """Keeps batches behind a failed one from reaching the source before it does.

    When a batch was surely not appended (a moved leader, a fence that lasted too long), the ones that the
    client has sent behind it would meet a gap and draw error 45, which is fatal to some clients (B5). So they
    are told what the first was told, until the client sends the first again, or starts a new epoch. A connection on
    which that never happens is ended: its client begins anew by itself.
    """

    _stopped: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether anything is stopped."""
        return bool(self._stopped)

    @property
    def too_many(self) -> bool:
        """Whether more is stopped than is remembered of one connection."""
        return len(self._stopped) > _MOST_STOPPED

    def blocks(self, topic: str, partition: int, batch: Batch) -> bool:
        """Whether a batch stands behind a failed one."""
        stop = self._stopped.get((topic, partition, batch.producer_id))
        if stop is None or batch.producer_epoch != stop[0]:
            return False
        return ring_distance(batch.base_sequence, stop[1]) > 0

    def passed(self, topic: str, partition: int, batch: Batch) -> None:
        """A batch leaves: if it is the failed one again, or of a later epoch, the way is free."""
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if stop is not None and (batch.producer_epoch > stop[0] or (batch.producer_epoch, batch.base_sequence) == stop):
            del self._stopped[key]

    def failed(self, topic: str, partition: int, batch: Batch) -> None:
        """A batch was surely not appended: it must come first again."""
        if batch.producer_id < 0:
            return
        key = (topic, partition, batch.producer_id)
        stop = self._stopped.get(key)
        if (
            stop is None
            or stop[0] < batch.producer_epoch
            or (stop[0] == batch.producer_epoch and ring_distance(batch.base_sequence, stop[1]) < 0)
        ):
            self._stopped[key] = (batch.producer_epoch, batch.base_sequence)

    def given_up(self, topic: str, partition: int, batch: Batch) -> None:
        """The client will not send that batch again: what it sends next is not behind it."""
        key = (topic, partition, batch.producer_id)
        if self._stopped.get(key) == (batch.producer_epoch, batch.base_sequence):
            del self._stopped[key]
