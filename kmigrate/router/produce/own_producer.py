"""Stamps batches of clients without a producer id with the router's own producer id."""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.records.batch import next_sequence

__all__ = ["OwnProducer"]

_LAST_EPOCH = 32_000


@dataclass(slots=True)
class OwnProducer:
    """The router's producer id for a client without a producer id, with an epoch and a sequence per partition.

    By this id the source tells routed from direct writes, and deduplicates nothing that it should not. An error puts a
    partition's sequence in doubt, so it goes on with the next epoch at sequence 0, accepted from any state.
    """

    producer_id: int
    _next: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    exhausted: bool = False
    """True if the epochs come to an end."""

    def stamp_for(self, topic: str, partition: int, count: int) -> tuple[int, int]:
        """Return epoch and first sequence of the next batch to a partition."""
        epoch, sequence = self._next.get((topic, partition), (0, 0))
        self._next[(topic, partition)] = (epoch, next_sequence(sequence, count))
        return epoch, sequence

    def failed(self, topic: str, partition: int, epoch: int) -> None:
        """Begin the next epoch after a batch was refused; later refusals of the old epoch change nothing."""
        current, _ = self._next.get((topic, partition), (0, 0))
        if current == epoch:
            self._next[(topic, partition)] = (epoch + 1, 0)
            self.exhausted |= epoch + 1 >= _LAST_EPOCH
