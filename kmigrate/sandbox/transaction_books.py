"""The outcome of each transaction of a history: all records are visible, or none.

Three kinds of lines tell of a transaction: `begin`, `txn` `invoke` (the writer is about to ask for the end) and `txn`
with the outcome. The process flushes a `txn` `invoke` line before the client library is asked. So a process that was
killed cannot have asked for more than the history says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kmigrate.sandbox.history import Event

__all__ = ["Transaction", "TransactionBooks", "TransactionName"]


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
    """All transactions of a run, by the records that they hold."""

    def __init__(self) -> None:
        self._transactions: dict[TransactionName, Transaction] = {}
        self._of: dict[int, TransactionName] = {}

    def _named(self, event: Event) -> Transaction:
        return self._transactions.setdefault(TransactionName(event.process, event.txn), Transaction())

    def hear(self, event: Event) -> Transaction:
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
