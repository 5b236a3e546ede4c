"""Asks the sources about a producer identity that neither the state log nor the target knows.

A client may have begun a transaction at a source before the client got the router's address. Another process may end it
with only the producer id and the epoch: Flink's exactly-once sink commits this way after a restart, also what was
committed before. The source alone can judge the identity that it has handed out, so the EndTxn goes there unchanged.

Nothing else is done in such an identity: the target does not know it, so the producer could not go on after the
promote. A producer that begins a transaction, or goes on with one, gets the code of `next_epoch`. At this code clients
abort, and that EndTxn goes to the source, too. Then they ask for a new id, which both clusters know.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code, row
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import Buffer, SharedState
from kmigrate.router.transactions.coordinator import TxnCoordinatorClient
from kmigrate.router.transactions.request import TxnRequest

__all__ = ["OTHER_PRODUCER", "SourceIdentities"]

_OTHER_EPOCH = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
OTHER_PRODUCER = _OTHER_EPOCH | {Code.INVALID_PRODUCER_ID_MAPPING}
"""Error codes of a coordinator that knows another producer of a transactional id, or none."""
_NOT_KNOWN = frozenset(
    {
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_NOT_FOUND,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Error codes that say nothing about the client's identity."""
_SILENT = Code.COORDINATOR_LOAD_IN_PROGRESS
"""Code for a source that cannot be asked now, or that does not answer (`transactions.coordinator`)."""


@dataclass(slots=True)
class SourceIdentities:
    """Asks the sources for a client connection, with the client's rights, in turn until a source knows the identity.

    If none does, the client gets the code of a source that did not answer, as it might have known; or else any code.
    """

    shared: SharedState
    coordinators: TxnCoordinatorClient

    def refused(self, txn: TxnRequest, answer: Buffer) -> Conversation[Buffer]:
        """Return the target's refusal of an identity, unless a source has handed the identity out."""
        code = yield from self.judge(txn)
        return answer if code is None else txn.answer(code)

    def judge(self, txn: TxnRequest) -> Conversation[int | None]:
        """Return the client's code for an identity unknown to the target; None if the sources do not know it either."""
        table = self.shared.table
        known = table.transactions.get(txn.name, {}).values()
        if not table.sources or txn.producer_id < 0 or any(each.producer_id == txn.producer_id for each in known):
            return None
        if txn.head.api_key == ApiKey.END_TXN:
            return (yield from self.shared.conversations.start(self._end(txn)))
        return (yield from self._abort(txn))

    def _end(self, txn: TxnRequest) -> Conversation[int | None]:
        """Have the source that knows the identity end the transaction."""
        message, worst = txn.for_source(txn.producer_id, txn.epoch), int(Code.NONE)
        for link in self.shared.table.sources:
            answer, code = yield from self.coordinators.ask(link, txn.name, txn.head.client_id, message)
            if code in _NOT_KNOWN:
                continue
            if answer is not None and code != _SILENT and code not in _OTHER_EPOCH:
                if not row(code).retriable:
                    outcome = row(code).name if code else "committed" if txn.request.committed else "aborted"
                    self.shared.backend.say(
                        f"{txn.head.client_id or 'a client'}: transaction of {txn.name}, begun at the source of link "
                        f"{link} itself: {outcome}"
                    )
                return code
            # Another source may have given out the same number, and may call this client the producer.
            worst = _worse(worst, Code.PRODUCER_FENCED if code in _OTHER_EPOCH else code)
        return worst or None

    def _abort(self, txn: TxnRequest) -> Conversation[int | None]:
        """Have the client abort if a source knows the identity."""
        backend, sources = self.shared.backend, self.shared.table.sources
        unknown = [link for link in sources if backend.source_version(link, ApiKey.END_TXN) < 0]
        for link in unknown:
            backend.refresh_source(link)
        worst = int(_SILENT if unknown else Code.NONE)
        for link in [link for link in sources if backend.tells_transactions(link)]:
            state, code = yield from self.coordinators.describe(link, txn.name, txn.head.client_id)
            if state is None:
                worst = _worse(worst, Code.NONE if code in _NOT_KNOWN else code)
            elif not code and int(state.producer_id) == txn.producer_id:
                return txn.next_epoch_code
            elif row(code).retriable:
                worst = _worse(worst, code)
        return worst or None


def _worse(worst: int, code: int) -> int:
    return worst if worst == _SILENT or not code else code
