"""Ends a transaction: by an EndTxn where it is open, or by a repeated EndTxn where it was (`transactions.handler`,
E)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kmigrate.model.records import LastEnd, TransactionRecord
from kmigrate.model.routes import Serve
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.shared.state import TARGET, SharedState
from kmigrate.router.transactions.identities import ProducerIdentities
from kmigrate.router.transactions.locate import TransactionLocator
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.transactions.source_identities import NOT_THE_HOLDER

__all__ = ["EndTxnHandler"]

_END = entity(ApiKey.END_TXN, 3, "request")
_ENDED = {
    LastEnd.COMMITTED: Code.NONE,
    LastEnd.ABORTED: Code.INVALID_TXN_STATE,
    LastEnd.CUT_OFF: Code.UNKNOWN_PRODUCER_ID,
}
"""Answer to a commit whose transaction's end is known only from the id's record; an abort has nothing left to do."""
_OVER = frozenset({Code.NONE, Code.INVALID_TXN_STATE})
"""Codes after which a transaction is no longer open.

A client that is not the holder gets other codes, and ends nothing.
"""


@dataclass(slots=True)
class EndTxnHandler:
    """Handles EndTxn on one client connection."""

    _shared: SharedState
    _identities: ProducerIdentities
    _places: TransactionLocator
    _to_target: Callable[[TxnRequest, Callable[[bytearray], None]], None]
    """Sends the client's request to the target unchanged."""
    _again: Callable[[TxnRequest], None]
    """Takes a request again once its holder is known."""

    def take(self, txn: TxnRequest) -> None:
        """End an open transaction at its cluster; if none is open, ask the cluster of the id's last transaction."""
        at = self._places.open_at(txn.name)
        if at is None and txn.name in self._places.refused and not txn.request.committed:
            # A coordinator answers the abort of a transaction that never began with INVALID_TXN_STATE, at which some
            # clients end.
            self._places.refused.discard(txn.name)
            txn.fail(0)
            return
        self._places.refused.discard(txn.name)
        if at == TARGET:
            self._end_at_target(txn)
        elif at is not None:
            record = self._identities.identity(txn, at, self._again)
            if record is not None:
                self._end_at_source(txn, record, txn.fail)
        else:
            self._end_again(txn)

    def _end_at_target(self, txn: TxnRequest, *, nowhere_else: bool = False) -> None:
        """End the transaction at the target.

        `nowhere_else`: nothing is open at the source. If a fence held the transaction and its client aborts, the
        transaction began nowhere.
        """

        def told(frame: bytearray) -> None:
            code = txn.code_in(frame)
            if code in NOT_THE_HOLDER:
                self._identities.strangers.refuse(txn, lambda: txn.reply(frame))
                return
            if code in _OVER:
                self._places.over(txn.name)
            never_began = nowhere_else and code == Code.INVALID_TXN_STATE and not txn.request.committed
            if never_began or code != self._code(txn, code):
                txn.fail(0)
            else:
                txn.reply(frame)

        self._to_target(txn, told)

    def _end_at_source(self, txn: TxnRequest, record: TransactionRecord, then: Callable[[int], None]) -> None:
        link = record.link
        entry = self._shared.open_at_source.entries.get((link, txn.name))
        if entry is not None:
            entry.ask(self._places)
        message = _END(
            transactional_id=txn.name,
            producer_id=record.source_id,
            producer_epoch=record.source_epoch,
            committed=txn.request.committed,
        )

        def told(answer: Any, code: int) -> None:
            if entry is not None:
                entry.answered(self._places, begun=True)
            if answer is not None:
                code = self._identities.talk.elsewhere(link, txn.name, code_of(answer.error_code))
                if entry is not None and code in _OVER:
                    self._shared.ended(link, txn.name, entry)
            if not self._identities.disowned(txn, link, {code}, self.take):
                then(code)

        self._identities.talk.ask(link, txn.name, txn.head.client_id, message, told)

    def _end_again(self, txn: TxnRequest) -> None:
        """Handle an EndTxn whose first answer was lost: ask the cluster of the id's last transaction."""
        records = self._identities.records(txn.name).values()
        held = [r for r in records if (r.producer_id, r.epoch) == (txn.producer_id, txn.epoch) and r.topics]
        if not held:
            self._end_unlisted(txn)
            return
        record = held[0]
        routes = self._shared.table.topics
        if any(topic in routes and routes[topic].serve is not Serve.LOCAL for topic in record.topics):

            def at_source(code: int) -> None:
                if code == Code.INVALID_TXN_STATE:
                    self._end_at_target(txn, nowhere_else=True)
                else:
                    txn.fail(code)

            self._end_where_it_was(txn, record, at_source)
            return

        def at_target(frame: bytearray) -> None:
            if txn.code_in(frame) == Code.INVALID_TXN_STATE:
                self._end_where_it_was(txn, record, lambda code: txn.fail(self._code(txn, code)))
            else:
                txn.reply(frame)

        self._to_target(txn, at_target)

    def _end_unlisted(self, txn: TxnRequest) -> None:
        """End a transaction whose holder's writes the state log does not know: at the target, or at a source."""

        def told(frame: bytearray) -> None:
            if txn.code_in(frame) in NOT_THE_HOLDER:
                self._identities.strangers.refuse(txn, lambda: txn.reply(frame))
            else:
                txn.reply(frame)

        self._to_target(txn, told)

    def _end_where_it_was(self, txn: TxnRequest, record: TransactionRecord, then: Callable[[int], None]) -> None:
        """End the transaction at the source; if the identity is revoked, answer from the id's record."""
        if record.revoked is None:
            self._end_at_source(txn, record, then)
        elif record.in_force:
            then(Code.CONCURRENT_TRANSACTIONS)  # the revocation is not proven yet, so the end may still change
        elif not txn.request.committed:
            then(0)
        else:
            then(_ENDED[record.revoked.last_end])

    def _code(self, txn: TxnRequest, code: int) -> int:
        """Return the code for the client from the cluster's code (`shared.deferred_partitions`, C)."""
        if code != Code.INVALID_TXN_STATE or txn.request.committed:
            return code
        table = self._shared.table
        topics = {topic for record in self._identities.records(txn.name).values() for topic in record.topics}
        return 0 if any(self._shared.deferred.carried_over(table, txn.holder, topic) for topic in topics) else code
