"""Ends a transaction: by an EndTxn where it is open, or by a repeated EndTxn where it was (`handler`, E)."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.model.records import LastEnd, TransactionRecord
from kmigrate.protocol.codes import Code
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.open_transactions import OpenTransaction
from kmigrate.router.shared.state import TARGET, Buffer, ClientLink, SharedState
from kmigrate.router.transactions.identities import ProducerIdentities
from kmigrate.router.transactions.locate import TransactionLocator
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.transactions.source_identities import OTHER_PRODUCER

__all__ = ["EndTxnHandler"]

_OVER = frozenset({Code.NONE, Code.INVALID_TXN_STATE})
"""Codes after which a transaction is not open any more; clients other than the producer get others, and end nothing."""


@dataclass(slots=True)
class EndTxnHandler:
    """Handles EndTxn on one client connection."""

    _shared: SharedState
    _client: ClientLink
    _identities: ProducerIdentities
    _locator: TransactionLocator

    def end(self, txn: TxnRequest) -> Conversation[Buffer]:
        """End an open transaction at its cluster; if none is open, ask the cluster of the id's last transaction."""
        at = self._locator.open_at(txn.name)
        refused = txn.name in self._locator.refused
        self._locator.refused.discard(txn.name)
        if at is None and refused and not txn.request.committed:
            # A coordinator answers the abort of a transaction that never began with INVALID_TXN_STATE, at which some
            # clients end.
            return txn.answer(Code.NONE)
        if at == TARGET:
            return (yield from self._end_at_target(txn))
        if at is None:
            return (yield from self._end_again(txn))
        record = yield from self._identities.identity(txn, at)
        return txn.answer((yield from self._end_at_source(txn, record)))

    def _end_at_target(self, txn: TxnRequest, *, nowhere_else: bool = False) -> Conversation[Buffer]:
        """End the transaction at the target; `nowhere_else`: nothing is open at the source.

        If a fence held the transaction and its client aborts, the transaction began nowhere.
        """
        answer = yield from txn.to_target(self._client)
        code = txn.code_in(answer)
        if code in OTHER_PRODUCER:
            return (yield from self._identities.at_source.refused(txn, answer))
        if code in _OVER:
            self._locator.over(txn.name)
        never_began = nowhere_else and code == Code.INVALID_TXN_STATE and not txn.request.committed
        return txn.answer(Code.NONE) if never_began or code != self._code(txn, code) else answer

    def _end_at_source(self, txn: TxnRequest, record: TransactionRecord) -> Conversation[int]:
        """End the transaction at the source; return the client's code."""
        entry = self._shared.open_at_source.entries.get((record.link, txn.name))
        code = yield from self._shared.conversations.start(self._ask_source(txn, record, entry))
        yield from self._identities.check_owned(txn, record.link, {code})
        return code

    def _ask_source(
        self, txn: TxnRequest, record: TransactionRecord, entry: OpenTransaction | None
    ) -> Conversation[int]:
        """Ask the source to end the transaction; note the end also when the client is gone."""
        link, name = record.link, txn.name
        if entry is not None:
            entry.ask(self._locator)
        message = txn.for_source(record.source_id, record.source_epoch)
        answer, code = yield from self._identities.coordinators.ask(link, name, txn.head.client_id, message)
        if entry is not None:
            entry.answered(self._locator, known=True)
            if answer is not None and code in _OVER:
                self._shared.ended(link, name, entry)
        return code

    def _end_again(self, txn: TxnRequest) -> Conversation[Buffer]:
        """Handle an EndTxn whose first answer was lost: ask the cluster of the id's last transaction.

        If the state log does not know writes of the producer, the target is asked, and then the sources.
        """
        claimed = (txn.producer_id, txn.epoch)
        records = [each for each in self._identities.records(txn.name).values() if each.at_source]
        record = next((each for each in records if (each.producer_id, each.epoch) == claimed and each.topics), None)
        if record is not None and self._writes_at_source(record):
            code = yield from self._end_where_it_was(txn, record)
            if code == Code.INVALID_TXN_STATE:
                return (yield from self._end_at_target(txn, nowhere_else=True))
            return txn.answer(code)
        answer = yield from txn.to_target(self._client)
        if record is None and txn.code_in(answer) in OTHER_PRODUCER:
            return (yield from self._identities.at_source.refused(txn, answer))
        if record is None or txn.code_in(answer) != Code.INVALID_TXN_STATE:
            return answer
        return txn.answer(self._code(txn, (yield from self._end_where_it_was(txn, record))))

    def _writes_at_source(self, record: TransactionRecord) -> bool:
        """Return whether the identity's last transaction was at the source if it has had a transaction.

        After a rollback an older identity's last transaction was at the target (rule J).
        """
        routes = (self._shared.table.topics.get(topic) for topic in record.topics)
        return any(route is not None and not route.at_target and not route.outdates(record) for route in routes)

    def _end_where_it_was(self, txn: TxnRequest, record: TransactionRecord) -> Conversation[int]:
        """End the transaction at the source; if the identity is revoked, answer from the id's record."""
        if record.revoked is None:
            return (yield from self._end_at_source(txn, record))
        if record.in_force:
            return Code.CONCURRENT_TRANSACTIONS  # the revocation is not proven yet, so the end may still change
        if not txn.request.committed or record.revoked.last_end == LastEnd.COMMITTED:
            return Code.NONE
        return Code.INVALID_TXN_STATE if record.revoked.last_end == LastEnd.ABORTED else txn.next_epoch_code

    def _code(self, txn: TxnRequest, code: int) -> int:
        """Return the code for the client from the cluster's code (`shared.deferred_partitions`, C)."""
        if code != Code.INVALID_TXN_STATE or txn.request.committed:
            return code
        table = self._shared.table
        topics = self._identities.topics(txn.name)
        never_began = self._identities.is_outdated(txn, topics) or any(
            self._shared.deferred.carried_over(table, txn.producer, topic) for topic in topics
        )
        return 0 if never_began else code
