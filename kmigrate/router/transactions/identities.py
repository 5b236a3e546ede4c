"""Holders of transactional ids on both clusters, known from the routing table or made known at the source.

The pair of identities is written down before the first use. An older holder is recognised by the epoch at the target,
and is fenced before the source is touched. Nobody is accepted as a newer holder by its own word. Making a holder known
at the source ends the transaction that is open there. So the router first asks the target which holder has the id.

If a controller has revoked an identity (`Revoked`), nobody holds that identity at the source any more. Its holder gets
UNKNOWN_PRODUCER_ID when beginning a transaction there. Java clients from 2.5 to 4.3 and librdkafka then abort that
transaction, which has not begun at the source, and ask for the next epoch. They count their sequences from 0 again, as
the source expects. At INVALID_PRODUCER_ID_MAPPING, Java 4.x ends.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kmigrate.model.records import TransactionRecord
from kmigrate.protocol.api import ApiKey, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.state import TARGET, SharedState
from kmigrate.router.transactions.coordinator import TxnCoordinatorClient
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.transactions.source_identities import NOT_THE_HOLDER, SourceIdentities

__all__ = ["ProducerIdentities"]

_INIT = entity(ApiKey.INIT_PRODUCER_ID, 4, "request")
_DESCRIBE = entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")
_DISOWNED = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING})
_USUAL_TIMEOUT = dt.timedelta(seconds=60)
"""Clients' default of transaction.timeout.ms, for an id that was requested before any topic was mirrored."""


@dataclass(slots=True)
class ProducerIdentities:
    """The holders as one client connection sees them."""

    shared: SharedState
    talk: TxnCoordinatorClient
    strangers: SourceIdentities
    _behind: dict[tuple[str, str], list[Callable[[], None]]] = field(default_factory=dict)
    """Requests that wait until the holder of their transactional id is made known, by link and transactional id."""

    def records(self, name: str) -> Mapping[str, TransactionRecord]:
        """Return the records of a transactional id, by the links whose source knows the id."""
        return self.shared.table.transactions.get(name, {})

    def identify(
        self, txn: TxnRequest, link: str, holder: tuple[int, int], timeout: Any, then: Callable[[int], None]
    ) -> None:
        """Have the source give the id's new holder an identity, and write the pair down; `then` receives the code.

        `holder` is the holder's present identity at the source, if the holder only wants the next epoch; else (−1, −1).
        """
        message = _INIT(
            transactional_id=txn.name,
            transaction_timeout=timeout,
            producer_id=holder[0],
            producer_epoch=holder[1],
        )

        def told(answer: Any, code: int) -> None:
            code = code_of(answer.error_code) if answer is not None else code
            if code:
                then(self.talk.elsewhere(link, txn.name, code))
                return
            given = int(answer.producer_id), int(answer.producer_epoch)
            # A source gives an id to one holder, whatever number of links begins at that source.
            links = self.shared.table.of_one_source(link)
            self._write_down(
                [TransactionRecord(each, txn.name, txn.producer_id, txn.epoch, *given) for each in links], then
            )

        self.talk.ask(link, txn.name, txn.head.client_id, message, told)

    def _write_down(self, records: list[TransactionRecord], then: Callable[[int], None]) -> None:
        if not records:
            then(0)
            return
        record = records.pop()
        standing = self.records(record.name).get(record.link)
        if standing is None or not standing.later_at_source(record):
            self.shared.ended(record.link, record.name)

        def kept(known: bool) -> None:
            if known:
                self._write_down(records, then)
            else:
                then(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self.shared.transaction_store.remember(record).then(kept)

    def sources(self, name: str) -> list[str]:
        """Return a link of each mirrored source, preferably a link whose source knows the transactional id."""
        table, known = self.shared.table, self.records(name)
        chosen: list[str] = []
        served: set[str] = set()
        for link in sorted(table.mirroring, key=lambda each: each not in known):
            if link not in served:
                chosen.append(link)
                served.update(table.of_one_source(link))
        return chosen

    def described(self, name: str, head: RequestHead, told: Callable[[Any], None]) -> None:
        """Ask the target about a transactional id, on the client's own connection: it leads to the id's coordinator."""
        asked = frame_request(_DESCRIBE(transactional_ids=(name,)), head.correlation_id, head.client_id)
        self.talk.client.to_target(
            [asked], head.correlation_id, lambda frame: told(read_answer(_DESCRIBE, frame).transaction_states[0])
        )

    def identity(self, txn: TxnRequest, link: str, again: Callable[[TxnRequest], None]) -> TransactionRecord | None:
        """Return the holder's identities, or None.

        None: the request was answered, or `again` takes the request once the identities are known.
        """
        known = self.records(txn.name).get(link)
        if known is not None and known.producer_id == txn.producer_id:
            if known.epoch == txn.epoch:
                if known.in_force:
                    return known
                txn.fail(Code.UNKNOWN_PRODUCER_ID)
                return None
            if known.epoch > txn.epoch:
                txn.fail(Code.PRODUCER_FENCED)
                return None
        if not txn.caught_up:
            self._catch_up(txn, again)
        elif (behind := self._behind.get((link, txn.name))) is not None:
            behind.append(partial(again, txn))
        else:
            self._make_known(txn, link, again)
        return None

    def disowned(self, txn: TxnRequest, link: str, codes: Collection[int], again: Callable[[TxnRequest], None]) -> bool:
        """Return whether the request is handled here, because the source refuses an identity that may be revoked.

        The request goes on (`again`) once everything written to the log is read. If the identity is just being revoked,
        the client is told to retry.
        """
        if _DISOWNED.isdisjoint(codes):
            return False
        if not txn.disowned:
            txn.disowned = txn.caught_up = True
            self._catch_up(txn, again)
            return True
        record = self.records(txn.name).get(link)
        if record is None or record.revoked is None:
            return False
        txn.fail(Code.CONCURRENT_TRANSACTIONS)
        return True

    def cut_off(self, txn: TxnRequest) -> bool:
        """Return whether the transaction that the holder may believe open was cut off."""
        held = (txn.producer_id, txn.epoch)
        return any(r.cut_off and (r.producer_id, r.epoch) == held for r in self.records(txn.name).values())

    def _catch_up(self, txn: TxnRequest, again: Callable[[TxnRequest], None]) -> None:
        def read(reached: bool) -> None:
            if reached:
                txn.caught_up = True
                again(txn)
            else:
                txn.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self.shared.transaction_store.catch_up().then(read)

    def _make_known(self, txn: TxnRequest, link: str, again: Callable[[TxnRequest], None]) -> None:
        """Make the holder that the target names known at the source; answer anybody else as a coordinator would."""
        self._behind[(link, txn.name)] = []

        def over(code: int) -> None:
            behind = self._behind.pop((link, txn.name))
            if code in NOT_THE_HOLDER:
                self.strangers.refuse(txn, partial(txn.fail, code))
            elif code:
                txn.fail(code)
            else:
                again(txn)
            for go_on in behind:
                go_on()

        def told(state: Any) -> None:
            code = _judged(state, txn)
            if code:
                over(code)
            else:
                self.identify(txn, link, (-1, -1), _USUAL_TIMEOUT, over)

        if self.shared.backend.tells_transactions(TARGET):
            self.described(txn.name, txn.head, told)
        else:
            # at this code clients ask for the id anew, and the target judges that request
            over(Code.INVALID_PRODUCER_ID_MAPPING)


def _judged(state: Any, txn: TxnRequest) -> int:
    """Return the code of a coordinator in this state for a client that claims to be the holder."""
    code = code_of(state.error_code)
    if code == Code.TRANSACTIONAL_ID_NOT_FOUND or (not code and int(state.producer_id) != txn.producer_id):
        return Code.INVALID_PRODUCER_ID_MAPPING
    if not code and int(state.producer_epoch) != txn.epoch:
        return Code.PRODUCER_FENCED
    return code
