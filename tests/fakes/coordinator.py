"""A fake coordinator of a transactional id on the source, with the measured answers of 2.8.2, 3.9.1 and 4.3.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.cluster.transactions import Identity, IdState
from kmigrate.errors import BrokerRefused
from kmigrate.protocol.codes import Code
from kmigrate.workflow.promote import revoking, sealing
from kmigrate.workflow.promote import topic as promote


@dataclass
class Coordinator:
    """A transaction coordinator with a single transactional id.

    `before` is called with the name of each request before the answer, so that a test can slip something in.
    """

    producer_id: int = 9
    epoch: int = 8
    state: str = "CompleteCommit"
    tells: bool = True
    """True from Kafka 3.0 on: the coordinator describes transactions."""
    forgives: bool = False
    """True from 4.x on.

    If a raised epoch aborted a client's transaction, the client gets the next epoch when it asks again.
    """
    denies: bool = False
    topics: tuple[str, ...] = ()
    """The topics of the open transaction."""
    began: int = 1
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None
    _last_epoch: int = -1
    _aborted_at: int = -1

    def put_in_place(self, patch: pytest.MonkeyPatch) -> None:
        for module, names in (
            (revoking, ("id_state", "end_transaction", "raise_epoch", "refuse_unwritable_id", "tells_transactions")),
            (sealing, ("open_writers",)),
            (promote, ("open_writers",)),
        ):
            for name in names:
                patch.setattr(module, name, getattr(self, name))

    def _hears(self, what: str) -> None:
        self.asked.append(what)
        self.before(what)
        if self.denies and what != "open_writers":
            raise BrokerRefused("transactional-id-denied", "no right to speak for till")

    @property
    def refuses(self) -> bool:
        """True if the coordinator refuses every request with the first identity."""
        return (self.producer_id, self.epoch) != (9, 8)

    def begins(self, *topics: str) -> None:
        """Take a late AddPartitionsToTxn of the first identity."""
        if not self.refuses:
            self.state, self.topics = "Ongoing", topics

    def ends(self, state: str = "CompleteCommit") -> None:
        self.state, self.topics = state, ()

    async def tells_transactions(self, _: Any) -> bool:
        return self.tells

    async def refuse_unwritable_id(self, _: Any, name: str) -> None:
        self._hears("refuse_unwritable_id")

    async def open_writers(self, _: Any, topic: str, __: int) -> dict[str, frozenset[int]]:
        self._hears("open_writers")
        return {"till": frozenset({self.began})} if topic in self.topics else {}

    async def id_state(self, _: Any, name: str) -> IdState | None:
        self._hears("id_state")
        assert self.tells
        return IdState(self.producer_id, self.epoch, self.state) if self.state != "Dead" else None

    async def end_transaction(self, _: Any, identity: Identity, *, committed: bool) -> int:
        self._hears("end_transaction")
        if self.state == "Dead" or identity[1] != self.producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if identity[2] != self.epoch:
            return Code.PRODUCER_FENCED
        wanted = "CompleteCommit" if committed else "CompleteAbort"
        if self.state == "Ongoing":
            self.ends(wanted)
        return 0 if self.state == wanted else Code.INVALID_TXN_STATE

    async def raise_epoch(self, _: Any, identity: Identity) -> int:
        self._hears("raise_epoch")
        if self.state == "Dead" or identity[1] != self.producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if self.state == "Ongoing":
            self._aborted_at = identity[2]
            self.epoch, self._last_epoch = self.epoch + 1, -1
            self.ends("CompleteAbort")
            return Code.CONCURRENT_TRANSACTIONS
        if identity[2] == self.epoch:
            self.epoch, self._last_epoch, self.state = self.epoch + 1, self.epoch, "Empty"
        elif self.forgives and identity[2] == self._aborted_at:
            self.state = "Empty"
        elif identity[2] != self._last_epoch:
            return Code.PRODUCER_FENCED
        return 0

    async def describe_producers(self, keys: Any) -> Any:
        """Return what the partitions' leaders say of the producer: no transaction is open in any of their logs."""
        return dict.fromkeys(keys, (0, (ProducerState(self.producer_id, self.epoch, 1, 1, -1),)))
