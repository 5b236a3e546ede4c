"""How a transaction ends: by an EndTxn where it is open, or by a repeated one where it was (`transactions`, E)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kmigrate.model.records import LastEnd, TransactionRecord
from kmigrate.model.routes import Serve
from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.core import TARGET, Core
from kmigrate.router.errand import Errand
from kmigrate.router.holders import Holders
from kmigrate.router.source_identities import NOT_THE_HOLDER
from kmigrate.router.whereabouts import Whereabouts

__all__ = ["Ending"]

_END = entity(26, 3, "request")
_ENDED = {
    LastEnd.COMMITTED: Code.NONE,
    LastEnd.ABORTED: Code.INVALID_TXN_STATE,
    LastEnd.CUT_OFF: Code.UNKNOWN_PRODUCER_ID,
}
"""What a commit is told of a transaction whose end only its record knows; an abort has nothing left to do."""
_OVER = frozenset({Code.NONE, Code.INVALID_TXN_STATE})
"""At which a transaction is open no more. Who is not its holder hears other codes, and ends nothing."""


@dataclass(slots=True)
class Ending:
    """Takes EndTxn on one client connection."""

    _core: Core
    _holders: Holders
    _places: Whereabouts
    _to_target: Callable[[Errand, Callable[[bytearray], None]], None]
    """Has the client's request go to the target as it came."""
    _again: Callable[[Errand], None]
    """Takes an errand once more when its holder is known."""

    def take(self, errand: Errand) -> None:
        """End it where it is open, as far as anybody here knows; else ask where it was."""
        at = self._places.open_at(errand.name)
        if at is None and errand.name in self._places.refused and not errand.request.committed:
            # A coordinator answers the abort of what never began with INVALID_TXN_STATE, the end of some clients.
            self._places.refused.discard(errand.name)
            errand.fail(0)
            return
        self._places.refused.discard(errand.name)
        if at == TARGET:
            self._end_at_target(errand)
        elif at is not None:
            record = self._holders.identity(errand, at, self._again)
            if record is not None:
                self._end_at_source(errand, record, errand.fail)
        else:
            self._end_again(errand)

    def _end_at_target(self, errand: Errand, *, nowhere_else: bool = False) -> None:
        """`nowhere_else`: nothing is open at the source. What a fence has held and its client aborts began nowhere."""

        def told(frame: bytearray) -> None:
            code = errand.code_in(frame)
            if code in NOT_THE_HOLDER:
                self._holders.strangers.refuse(errand, lambda: errand.reply(frame))
                return
            if code in _OVER:
                self._places.over(errand.name)
            never_began = nowhere_else and code == Code.INVALID_TXN_STATE and not errand.request.committed
            if never_began or code != self._code(errand, code):
                errand.fail(0)
            else:
                errand.reply(frame)

        self._to_target(errand, told)

    def _end_at_source(self, errand: Errand, record: TransactionRecord, then: Callable[[int], None]) -> None:
        link = record.link
        entry = self._core.begun.entries.get((link, errand.name))
        if entry is not None:
            entry.ask(self._places)
        message = _END(
            transactional_id=errand.name,
            producer_id=record.source_id,
            producer_epoch=record.source_epoch,
            committed=errand.request.committed,
        )

        def told(answer: Any, code: int) -> None:
            if entry is not None:
                entry.answered(self._places, begun=True)
            if answer is not None:
                code = self._holders.talk.elsewhere(link, errand.name, code_of(answer.error_code))
                if entry is not None and code in _OVER:
                    self._core.ended(link, errand.name, entry)
            if not self._holders.disowned(errand, link, {code}, self.take):
                then(code)

        self._holders.talk.ask(link, errand.name, errand.head.client_id, message, told)

    def _end_again(self, errand: Errand) -> None:
        """The answer to an EndTxn was lost: ask where the transaction was."""
        records = self._holders.records(errand.name).values()
        held = [r for r in records if (r.producer_id, r.epoch) == (errand.producer_id, errand.epoch) and r.topics]
        if not held:
            self._end_unlisted(errand)
            return
        record = held[0]
        routes = self._core.table.topics
        if any(topic in routes and routes[topic].serve is not Serve.LOCAL for topic in record.topics):

            def at_source(code: int) -> None:
                if code == Code.INVALID_TXN_STATE:
                    self._end_at_target(errand, nowhere_else=True)
                else:
                    errand.fail(code)

            self._end_where_it_was(errand, record, at_source)
            return

        def at_target(frame: bytearray) -> None:
            if errand.code_in(frame) == Code.INVALID_TXN_STATE:
                self._end_where_it_was(errand, record, lambda code: errand.fail(self._code(errand, code)))
            else:
                errand.reply(frame)

        self._to_target(errand, at_target)

    def _end_unlisted(self, errand: Errand) -> None:
        """End a transaction of a holder whose writes the state log does not know: the target's, or a source's own."""

        def told(frame: bytearray) -> None:
            if errand.code_in(frame) in NOT_THE_HOLDER:
                self._holders.strangers.refuse(errand, lambda: errand.reply(frame))
            else:
                errand.reply(frame)

        self._to_target(errand, told)

    def _end_where_it_was(self, errand: Errand, record: TransactionRecord, then: Callable[[int], None]) -> None:
        """At the source, or by what the record says in its place where the identity is revoked."""
        if record.revoked is None:
            self._end_at_source(errand, record, then)
        elif record.in_force:
            then(Code.CONCURRENT_TRANSACTIONS)  # for a moment nobody can say
        elif not errand.request.committed:
            then(0)
        else:
            then(_ENDED[record.revoked.last_end])

    def _code(self, errand: Errand, code: int) -> int:
        """What the client is told of the cluster's code (`late`, C)."""
        if code != Code.INVALID_TXN_STATE or errand.request.committed:
            return code
        table = self._core.table
        topics = {topic for record in self._holders.records(errand.name).values() for topic in record.topics}
        return 0 if any(self._core.late.carried_over(table, errand.holder, topic) for topic in topics) else code
