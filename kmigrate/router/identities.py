"""The producer id of the router's own that stands in for a client connection without one."""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.records.batch import next_sequence

__all__ = ["OwnProducer"]

_LAST_EPOCH = 32_000


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
