"""Puts answers into the order of their requests, whichever upstream answers first (D9, B9).

Each request takes a slot. A slot is filled with the answer's bytes, or skipped where Kafka sends no answer (acks=0).
Filled slots at the head leave, and nothing overtakes. The answer of the first slot may also leave in pieces (`begin`),
while nothing else leaves. Such a slot is filled with None at the end of the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Change", "Sequencer", "Slot", "in_turn"]

Buffer = bytes | bytearray | memoryview
Change = Callable[[bytearray], Buffer]
"""Function that changes a whole answer."""


def in_turn(changes: Sequence[Change]) -> Change:
    """Return the change that makes these changes one after the other."""

    def changed(answer: bytearray) -> Buffer:
        out: Buffer = answer
        for change in changes:
            out = change(out if isinstance(out, bytearray) else bytearray(out))
        return out

    return changed


@dataclass(slots=True, eq=False)
class Slot:
    """A request's place in the order; `size`, the bytes of the request or its answer, counts as pending bytes."""

    size: int
    done: bool = False
    begun: bool = False
    """True once a part of the answer has left."""
    answer: Buffer | None = None
    change: Change | None = None
    """Change of the whole answer before the answer leaves; such an answer never leaves in pieces."""
    asked: tuple[int, int, float] | None = None
    """API key and version of the request, and the time of the request's arrival."""


@dataclass(slots=True)
class Sequencer:
    """The slots of one client connection."""

    next_change: Change | None = None
    """The `change` of the slot that is taken next."""
    next_asked: tuple[int, int, float] | None = None
    """The `asked` of the slot that is taken next."""

    slots: deque[Slot] = field(default_factory=deque)
    pending_bytes: int = 0

    def take(self, size: int) -> Slot:
        """Take the slot of the next request, whose bytes are `size`."""
        slot = Slot(size, False, False, None, self.next_change, self.next_asked)
        self.next_change = None
        self.slots.append(slot)
        self.pending_bytes += size
        return slot

    def is_next(self, slot: Slot) -> bool:
        """Return whether this slot is the next, so that the slot's answer may leave in pieces."""
        return bool(self.slots) and self.slots[0] is slot and slot.change is None

    def begin(self, slot: Slot) -> None:
        """Note that a piece of the next answer leaves."""
        slot.begun = True

    @property
    def halfway(self) -> bool:
        """True if a part of an answer has left, so that the rest must follow."""
        return bool(self.slots) and self.slots[0].begun

    def drop(self) -> None:
        """Forget the answers that wait for their turn, because the client is gone."""
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
