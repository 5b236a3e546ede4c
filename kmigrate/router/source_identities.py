"""Asks the sources about a producer identity that neither the state log nor the target knows.

A transaction may have been begun at a source before its client was given the router's address, and be ended by another
process, which has only the producer id and the epoch. Flink's exactly-once sink commits so after a restart, also what
was committed before. The source has handed that identity out, so the source alone can judge: the EndTxn goes there
unchanged.

Nothing else is done in such an identity. The target does not know it, so its holder could not go on after the promote.
A holder that begins or goes on with a transaction is told UNKNOWN_PRODUCER_ID: clients abort, and that EndTxn goes to
the source, too; then they ask for an id anew, which both clusters know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.router.apis.transactions import END_TXN
from kmigrate.router.core import Core
from kmigrate.router.errand import Errand
from kmigrate.router.source_talk import SourceTalk

__all__ = ["NOT_THE_HOLDER", "SourceIdentities"]

_END = entity(26, 3, "request")
_DESCRIBE = entity(65, 0, "request")
_OTHER_EPOCH = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
NOT_THE_HOLDER = _OTHER_EPOCH | {Code.INVALID_PRODUCER_ID_MAPPING}
"""At which a coordinator knows another holder of a transactional id, or none."""
_NOT_KNOWN = frozenset(
    {
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_NOT_FOUND,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""At which a source says nothing of the identity that the client has."""


@dataclass(slots=True)
class SourceIdentities:
    """Asks for one client connection, with the client's rights."""

    core: Core
    talk: SourceTalk

    def is_strange(self, errand: Errand) -> bool:
        """Tell whether the state log names another holder of the transactional id, or none, and a source may know."""
        if not self.core.table.sources or errand.producer_id < 0:
            return False
        known = self.core.table.transactions.get(errand.name, {})
        return all(record.producer_id != errand.producer_id for record in known.values())

    def refuse(self, errand: Errand, refused: Callable[[], None]) -> None:
        """Refuse an identity that the target does not know (`refused`), unless a source has handed the identity out."""
        if not self.is_strange(errand):
            refused()
        elif errand.head.api_key == END_TXN:
            self._end(errand, list(self.core.table.sources), refused)
        else:
            self._look(errand, list(self.core.table.sources), refused)

    def _end(self, errand: Errand, links: list[str], refused: Callable[[], None]) -> None:
        """Have the first source that knows the identity end its transaction."""
        if not links:
            refused()
            return
        link = links.pop(0)
        message = _END(
            transactional_id=errand.name,
            producer_id=errand.producer_id,
            producer_epoch=errand.epoch,
            committed=errand.request.committed,
        )

        def told(answer: Any, code: int) -> None:
            if answer is not None:
                code = self.talk.elsewhere(link, errand.name, code_of(answer.error_code))
            if code in _OTHER_EPOCH:
                # Another source may have given out the same number, and may call this client the holder.
                self._end(errand, links, lambda: errand.fail(Code.PRODUCER_FENCED))
            elif code in _NOT_KNOWN:
                self._end(errand, links, refused)
            else:
                if not row(code).retriable:
                    self._say(errand, link, code)
                errand.fail(code)

        self.talk.ask(link, errand.name, errand.head.client_id, message, told)

    def _say(self, errand: Errand, link: str, code: int) -> None:
        how = "committed" if errand.request.committed else "aborted"
        self.core.outside.say(
            f"{errand.head.client_id or 'a client'}: transaction of {errand.name}, begun at the source of link {link} "
            f"itself: {row(code).name if code else how}"
        )

    def _look(self, errand: Errand, links: list[str], refused: Callable[[], None]) -> None:
        """Have the client abort where a source knows the identity."""
        links = [link for link in links if self.core.outside.tells_transactions(link)]
        if not links:
            refused()
            return
        link = links.pop(0)

        def told(answer: Any, code: int) -> None:
            if answer is None:
                if code in _NOT_KNOWN:
                    self._look(errand, links, refused)
                else:
                    errand.fail(code)
                return
            state = answer.transaction_states[0]
            code = self.talk.elsewhere(link, errand.name, code_of(state.error_code))
            if row(code).retriable:
                errand.fail(code)
            elif not code and int(state.producer_id) == errand.producer_id:
                errand.fail(Code.UNKNOWN_PRODUCER_ID)
            else:
                self._look(errand, links, refused)

        self.talk.ask(link, errand.name, errand.head.client_id, _DESCRIBE(transactional_ids=(errand.name,)), told)
