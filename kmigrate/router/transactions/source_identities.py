"""Asks the sources about a producer identity that neither the state log nor the target knows.

A client may have begun a transaction at a source before the client got the router's address. Another process may end
that transaction, and has only the producer id and the epoch. Flink's exactly-once sink commits this way after a
restart, also what was committed before. The source has handed that identity out, so the source alone can judge: the
EndTxn goes there unchanged.

Nothing else is done in such an identity. The target does not know the identity, so the holder could not go on after the
promote. A holder that begins a transaction, or goes on with a transaction, gets UNKNOWN_PRODUCER_ID. At this code
clients abort, and that EndTxn goes to the source, too. Then they ask for a new id, which both clusters know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.router.shared.state import SharedState
from kmigrate.router.transactions.coordinator import TxnCoordinatorClient
from kmigrate.router.transactions.request import TxnRequest

__all__ = ["NOT_THE_HOLDER", "SourceIdentities"]

_END = entity(ApiKey.END_TXN, 3, "request")
_DESCRIBE = entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")
_OTHER_EPOCH = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
NOT_THE_HOLDER = _OTHER_EPOCH | {Code.INVALID_PRODUCER_ID_MAPPING}
"""Error codes of a coordinator that knows another holder of a transactional id, or none."""
_NOT_KNOWN = frozenset(
    {
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_NOT_FOUND,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Error codes that say nothing about the client's identity."""
_SILENT = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS})
"""Code for a source that cannot be asked now, or that does not answer (`transactions.coordinator`)."""


@dataclass(slots=True)
class SourceIdentities:
    """Asks the sources for a client connection, with the client's rights."""

    shared: SharedState
    talk: TxnCoordinatorClient

    def is_strange(self, txn: TxnRequest) -> bool:
        """Return whether a source may know a holder that the state log does not name for the transactional id."""
        if not self.shared.table.sources or txn.producer_id < 0:
            return False
        known = self.shared.table.transactions.get(txn.name, {})
        return all(record.producer_id != txn.producer_id for record in known.values())

    def refuse(self, txn: TxnRequest, refused: Callable[[], None]) -> None:
        """Refuse an identity that the target does not know (`refused`), unless a source has handed the identity out."""
        if not self.is_strange(txn):
            refused()
        elif txn.head.api_key == ApiKey.END_TXN:
            self._end(txn, refused)
        else:
            self._look(txn, refused)

    def _end(self, txn: TxnRequest, refused: Callable[[], None]) -> None:
        """Have the source that knows the identity end the transaction."""
        message = _END(
            transactional_id=txn.name,
            producer_id=txn.producer_id,
            producer_epoch=txn.epoch,
            committed=txn.request.committed,
        )

        def judged(link: str, answer: Any) -> int | None:
            code = self.talk.elsewhere(link, txn.name, code_of(answer.error_code))
            if code in _SILENT:
                return code
            if code in _OTHER_EPOCH:
                # Another source may have given out the same number, and may call this client the holder.
                return Code.PRODUCER_FENCED
            if code in _NOT_KNOWN:
                return Code.NONE
            if not row(code).retriable:
                self._say(txn, link, code)
            txn.fail(code)
            return None

        self._walk(txn, message, list(self.shared.table.sources), judged, refused)

    def _look(self, txn: TxnRequest, refused: Callable[[], None]) -> None:
        """Have the client abort if a source knows the identity."""
        backend, sources = self.shared.backend, self.shared.table.sources
        unknown = [link for link in sources if backend.source_version(link, ApiKey.END_TXN) < 0]
        for link in unknown:
            backend.refresh_source(link)
        links = [link for link in sources if backend.tells_transactions(link)]

        def judged(link: str, answer: Any) -> int | None:
            state = answer.transaction_states[0]
            code = self.talk.elsewhere(link, txn.name, code_of(state.error_code))
            if code or int(state.producer_id) != txn.producer_id:
                return code if row(code).retriable else Code.NONE
            txn.fail(Code.UNKNOWN_PRODUCER_ID)
            return None

        silent = Code.COORDINATOR_LOAD_IN_PROGRESS if unknown else Code.NONE
        self._walk(txn, _DESCRIBE(transactional_ids=(txn.name,)), links, judged, refused, silent)

    def _walk(
        self,
        txn: TxnRequest,
        message: Any,
        links: list[str],
        judged: Callable[[str, Any], int | None],
        refused: Callable[[], None],
        worst: int = Code.NONE,
    ) -> None:
        """Ask the sources in turn until a source knows the identity.

        `judged` reads an answer. None means that this source knows the identity, and the client has its answer. 0 means
        that this source does not know the identity. Any other code goes to the client if no other source knows the
        identity. A source that did not answer counts most, because that source might have known.
        """
        if not links:
            if worst:
                txn.fail(worst)
            else:
                refused()
            return
        link = links.pop(0)

        def told(answer: Any, code: int) -> None:
            found = judged(link, answer) if answer is not None else Code.NONE if code in _NOT_KNOWN else code
            if found is not None:
                kept = worst if worst in _SILENT or not found else found
                self._walk(txn, message, links, judged, refused, kept)

        self.talk.ask(link, txn.name, txn.head.client_id, message, told)

    def _say(self, txn: TxnRequest, link: str, code: int) -> None:
        how = "committed" if txn.request.committed else "aborted"
        self.shared.backend.say(
            f"{txn.head.client_id or 'a client'}: transaction of {txn.name}, begun at the source of link {link} "
            f"itself: {row(code).name if code else how}"
        )
