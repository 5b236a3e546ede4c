"""Answers in the order of their requests, whichever upstream answers first (D9, B9).

Each request takes a slot; a slot is filled with the answer's bytes, or skipped where Kafka sends none
(acks=0). Whatever stands filled at the head leaves, and nothing overtakes. The answer of the slot at the head may
also leave in pieces (`begin`), while nothing else does; its slot is filled with None when it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Sequencer", "Slot"]

Buffer = bytes | bytearray | memoryview
Change = Callable[[bytearray], Buffer]


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place in the order; `size`, its bytes or its answer's, counts against the pending bytes."""

    size: int
    done: bool = False
    begun: bool = False
    """Whether its answer has left in part."""
    answer: Buffer | None = None
    change: Change | None = None
    """Change of the whole answer before the answer leaves; such an answer never leaves in pieces."""


@dataclass(slots=True)
class Sequencer:
    """The slots of one client connection."""

    next_change: Change | None = None
    """The `change` of the slot that is taken next."""

    slots: deque[Slot] = field(default_factory=deque)
    pending_bytes: int = 0

    def take(self, size: int) -> Slot:
        slot, self.next_change = Slot(size, change=self.next_change), None
        self.slots.append(slot)
        self.pending_bytes += size
        return slot

    def is_next(self, slot: Slot) -> bool:
        """Whether it is this slot's turn, so that its answer may leave in pieces."""
        return bool(self.slots) and self.slots[0] is slot and slot.change is None

    def begin(self, slot: Slot) -> None:
        """A piece of the next answer leaves."""
        slot.begun = True

    @property
    def halfway(self) -> bool:
        """Whether an answer has left in part, and has to be gone on with."""
        return bool(self.slots) and self.slots[0].begun

    def drop(self) -> None:
        """Nobody is answered any more: forget the answers that wait for their turn."""
        self.slots.clear()
        self.pending_bytes = 0

    def fill(self, slot: Slot, answer: Buffer | None) -> list[Buffer]:
        """Fill a slot (None: no answer is due) and return everything that may leave now."""
        slot.done, slot.answer = True, answer
        size = len(answer) if answer is not None else 0
        self.pending_bytes += size - slot.size
        slot.size = size
        out: list[Buffer] = []
        while self.slots and self.slots[0].done:
            first = self.slots.popleft()
            self.pending_bytes -= first.size
            if first.answer is not None:
                out.append(first.answer)
        return out
