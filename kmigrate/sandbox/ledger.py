"""The judge's books: every send and every read of a run, in columns that hold half a million records, and transactions.

A `txn` `invoke` line is flushed before the client library is asked for a transaction's end. So a killed process cannot
have asked for more than the history says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kmigrate.sandbox.history import ABORTED, Event, Slot

__all__ = [
    "ACKED",
    "INDEFINITE",
    "REFUSED",
    "WAS_ABORTED",
    "Reads",
    "Sends",
    "Transaction",
    "TransactionBooks",
    "TransactionName",
    "place_of",
]

INDEFINITE, ACKED, REFUSED, WAS_ABORTED = range(4)


def place_of(slot: Slot, offset: int) -> str:
    return f"{slot[0]}-{slot[1]} at {offset}" if offset >= 0 else f"{slot[0]}-{slot[1]}"


class Sends:
    """Every value id that a client ever named, in columns. Half a million records need little memory."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.ids: list[str] = []
        self.slots: dict[Slot, int] = {}
        self.slot_names: list[Slot] = []
        self.status = bytearray()
        self.live = bytearray()
        self.slot = array("i")  # the partition that the record was sent to
        self.offset = array("q")  # the acknowledged offset; -1: unknown
        self.found = array("q")  # the offset on the target; -1: not on the target
        self.found_slot = array("i")
        self.timestamps: dict[int, int] = {}

    def slot_of(self, topic: str, partition: int) -> int:
        slot = self.slots.setdefault((topic, partition), len(self.slot_names))
        if slot == len(self.slot_names):
            self.slot_names.append((topic, partition))
        return slot

    def intern(self, text: str) -> int:
        number = self.number.setdefault(text, len(self.ids))
        if number == len(self.ids):
            self.ids.append(text)
            self.status.append(REFUSED)  # until an invoke line says that the record was sent
            self.live.append(0)
            self.slot.append(-1)
            self.offset.append(-1)
            self.found.append(-1)
            self.found_slot.append(-1)
        return number

    def take(self, event: Event, *, live: bool) -> list[int]:
        """Take a line of a send, and return its records; a line for many `records` is a run of consecutive numbers."""
        slot = self.slot_of(event.topic, event.partition)
        head, _, first = event.value.rpartition(":")
        numbers = [self.intern(f"{head}:{int(first) + step}" if step else event.value) for step in range(event.records)]
        for step, number in enumerate(numbers):
            if self.slot[number] < 0 or event.type == "ok":
                self.slot[number] = slot
                self.live[number] = live
            if event.ts >= 0:
                self.timestamps[number] = event.ts
            if event.type == "ok":
                self.status[number] = ACKED
                self.offset[number] = event.offset + step if event.offset >= 0 else -1
            elif event.type == "fail":
                self.status[number] = WAS_ABORTED if event.error == ABORTED else REFUSED
            else:
                self.status[number] = INDEFINITE
        return numbers

    def place(self, number: int) -> str:
        return f"{self.ids[number]} ({self.place_at(self.slot[number], self.offset[number])})"

    def place_at(self, slot: int, offset: int) -> str:
        return place_of(self.slot_names[slot], offset)

    def place_found(self, number: int) -> str:
        return self.place_at(self.found_slot[number], self.found[number])

    def acked_at(self, slot: int, offset: int) -> int | None:
        """Return the acknowledged record that belongs at an offset; a slow search, for foreign records only."""
        for number, expected in enumerate(self.offset):
            if expected == offset and self.slot[number] == slot and self.status[number] == ACKED:
                return number
        return None


class Reads:
    """The reads of a partition by the members of a group."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.numbers = array("i")
        self.start = 0
        self.committed = 0
        self.touched = False
        self._skipped: list[tuple[int, int]] = []

    def poll(self, offset: int, number: int) -> None:
        self.touched = True
        self.offsets.append(offset)
        self.numbers.append(number)

    def commit(self, position: int) -> None:
        if not self.touched:
            self.touched = True
            self.start = position
        self.committed = max(self.committed, position)

    def reset(self, position: int) -> None:
        """Take a position that somebody set for the group. The group need not read the offsets in between."""
        reached = max([self.committed, *(offset + 1 for offset in self.offsets[-1:])])
        if not self.touched:
            self.touched = True
            self.start = position
        elif position > reached:
            self._skipped.append((reached, position))
        self.committed = max(self.committed, position)

    def skipped(self, offset: int) -> bool:
        """Return whether a reset led the group past an offset."""
        return any(first <= offset < after for first, after in self._skipped)


class TransactionName(NamedTuple):
    """A writer's process and the number that the process gave the transaction."""

    process: str
    number: int

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.process}"


@dataclass
class Transaction:
    """A transaction, as the writer's history has it."""

    begun: bool = False
    """True if the history has a `begin` line. Then the history would also hold the line that asks for the commit."""
    commit_asked: bool = False
    outcome: str = ""
    """The outcome: ok, fail or info. Empty if the process was killed before the outcome."""
    records: array[int] = field(default_factory=lambda: array("i"))
    early: tuple[int, str] | None = None
    """Time and place of the first read of a record before the commit was asked for."""

    @property
    def impossible(self) -> bool:
        """True if nobody ever asked for the commit, so that no reader may be given a record."""
        return self.begun and not self.commit_asked and self.outcome != "ok"

    @property
    def unknown(self) -> bool:
        """True if the commit may or may not have happened."""
        return self.outcome not in {"ok", "fail"} and not self.impossible


class TransactionBooks:
    """All transactions of a run, by the records that they hold: all of these records are visible, or none."""

    def __init__(self) -> None:
        self._transactions: dict[TransactionName, Transaction] = {}
        self._of: dict[int, TransactionName] = {}

    def _named(self, event: Event) -> Transaction:
        return self._transactions.setdefault(TransactionName(event.process, event.txn), Transaction())

    def take(self, event: Event) -> Transaction:
        """Take a `begin` or `txn` line."""
        transaction = self._named(event)
        if event.f == "begin":
            transaction.begun = True
        elif event.type != "invoke":
            transaction.outcome = event.type
        elif event.detail.get("ask") == "commit":
            transaction.commit_asked = True
        return transaction

    def send(self, event: Event, number: int) -> None:
        """Take a `send` `invoke` line of a transaction."""
        self._named(event).records.append(number)
        self._of[number] = TransactionName(event.process, event.txn)

    def uncommitted(self, number: int) -> Transaction | None:
        """Return the transaction of a record if nobody has asked for its commit yet."""
        name = self._of.get(number)
        if name is None:
            return None
        transaction = self._transactions[name]
        return transaction if transaction.begun and not transaction.commit_asked else None

    def __iter__(self) -> Iterator[tuple[TransactionName, Transaction]]:
        return iter(self._transactions.items())
