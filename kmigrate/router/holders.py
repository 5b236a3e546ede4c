"""Who holds a transactional id, on both clusters: known from the routing table, or made known at the source.

The pair of identities is written down before it is used. An older holder is known by its epoch at the target, and
is fenced before the source is touched. Nobody is taken for a newer one at its word: to make a holder known at the
source ends the transaction that is open there, so the target is asked first whom it has given the id.

An identity that a controller has revoked (`Revoked`) is nobody's at the source any more. Its holder is told
UNKNOWN_PRODUCER_ID where he would begin there: clients abort what they have not begun, ask for the next epoch and count
their sequences from 0 again, as the source then wants it. Java does so from 2.5 to 4.3, and librdkafka; at
INVALID_PRODUCER_ID_MAPPING Java 4.x ends.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kmigrate.model.records import TransactionRecord
from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.transactions import frame_request, read_answer
from kmigrate.router.core import TARGET, Core
from kmigrate.router.errand import Errand
from kmigrate.router.source_identities import NOT_THE_HOLDER, SourceIdentities
from kmigrate.router.source_talk import SourceTalk

__all__ = ["Holders"]

_INIT = entity(22, 4, "request")
_DESCRIBE = entity(65, 0, "request")
_DISOWNED = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING})
_USUAL_TIMEOUT = dt.timedelta(seconds=60)
"""Clients' default of transaction.timeout.ms, for an id that was asked for before there was a mirrored topic."""


@dataclass(slots=True)
class Holders:
    """One client connection's view of them."""

    core: Core
    talk: SourceTalk
    strangers: SourceIdentities
    _behind: dict[tuple[str, str], list[Callable[[], None]]] = field(default_factory=dict)
    """By link and transactional id whose holder is being made known: what came meanwhile, and goes on after it."""

    def records(self, name: str) -> Mapping[str, TransactionRecord]:
        """The holder of a transactional id at each link's source that knows it."""
        return self.core.table.transactions.get(name, {})

    def identify(
        self, errand: Errand, link: str, holder: tuple[int, int], timeout: Any, then: Callable[[int], None]
    ) -> None:
        """Have the source give the id's new holder an identity, and write the pair down; `then` is told the code.

        `holder` is who he is at the source so far, where he only wants the next epoch; else (−1, −1).
        """
        message = _INIT(
            transactional_id=errand.name,
            transaction_timeout=timeout,
            producer_id=holder[0],
            producer_epoch=holder[1],
        )

        def told(answer: Any, code: int) -> None:
            code = code_of(answer.error_code) if answer is not None else code
            if code:
                then(self.talk.elsewhere(link, errand.name, code))
                return
            given = int(answer.producer_id), int(answer.producer_epoch)
            # A source gives an id one holder, whatever number of links begins there.
            links = self.core.table.of_one_source(link)
            self._write_down(
                [TransactionRecord(each, errand.name, errand.producer_id, errand.epoch, *given) for each in links], then
            )

        self.talk.ask(link, errand.name, errand.head.client_id, message, told)

    def _write_down(self, records: list[TransactionRecord], then: Callable[[int], None]) -> None:
        if not records:
            then(0)
            return
        record = records.pop()
        standing = self.records(record.name).get(record.link)
        if standing is None or not standing.later_at_source(record):
            self.core.ended(record.link, record.name)

        def kept(known: bool) -> None:
            if known:
                self._write_down(records, then)
            else:
                then(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self.core.memory.remember(record, kept)

    def sources(self, name: str) -> list[str]:
        """One link from each source that is mirrored; one that knows the transactional id, where there is one."""
        table, known = self.core.table, self.records(name)
        chosen: list[str] = []
        served: set[str] = set()
        for link in sorted(table.mirroring, key=lambda each: each not in known):
            if link not in served:
                chosen.append(link)
                served.update(table.of_one_source(link))
        return chosen

    def described(self, name: str, head: RequestHead, told: Callable[[Any], None]) -> None:
        """What the target says of a transactional id, asked in the client's own name; this leads to its coordinator."""
        asked = frame_request(_DESCRIBE(transactional_ids=(name,)), head.correlation_id, head.client_id)
        self.talk.edge.to_target(
            [asked], head.correlation_id, lambda frame: told(read_answer(_DESCRIBE, frame).transaction_states[0])
        )

    def identity(self, errand: Errand, link: str, again: Callable[[Errand], None]) -> TransactionRecord | None:
        """The holder's identities; None where the errand was answered, or goes on (`again`) when they are known."""
        known = self.records(errand.name).get(link)
        if known is not None and known.producer_id == errand.producer_id:
            if known.epoch == errand.epoch:
                if known.in_force:
                    return known
                errand.fail(Code.UNKNOWN_PRODUCER_ID)
                return None
            if known.epoch > errand.epoch:
                errand.fail(Code.PRODUCER_FENCED)
                return None
        if not errand.caught_up:
            self._catch_up(errand, again)
        elif (behind := self._behind.get((link, errand.name))) is not None:
            behind.append(partial(again, errand))
        else:
            self._make_known(errand, link, again)
        return None

    def disowned(self, errand: Errand, link: str, codes: Collection[int], again: Callable[[Errand], None]) -> bool:
        """Whether the source takes no word of the holder's identity and it is not told so yet: it may be revoked.

        The errand goes on (`again`) once all is read that was written; where the identity is being revoked right then,
        its client comes again.
        """
        if _DISOWNED.isdisjoint(codes):
            return False
        if not errand.disowned:
            errand.disowned = errand.caught_up = True
            self._catch_up(errand, again)
            return True
        record = self.records(errand.name).get(link)
        if record is None or record.revoked is None:
            return False
        errand.fail(Code.CONCURRENT_TRANSACTIONS)
        return True

    def cut_off(self, errand: Errand) -> bool:
        """Whether what the holder may take for his open transaction is gone."""
        held = (errand.producer_id, errand.epoch)
        return any(r.cut_off and (r.producer_id, r.epoch) == held for r in self.records(errand.name).values())

    def _catch_up(self, errand: Errand, again: Callable[[Errand], None]) -> None:
        def read(reached: bool) -> None:
            if reached:
                errand.caught_up = True
                again(errand)
            else:
                errand.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self.core.memory.catch_up(read)

    def _make_known(self, errand: Errand, link: str, again: Callable[[Errand], None]) -> None:
        """Have the source know the holder that the target names; anybody else is told what a coordinator tells him."""
        self._behind[(link, errand.name)] = []

        def over(code: int) -> None:
            behind = self._behind.pop((link, errand.name))
            if code in NOT_THE_HOLDER:
                self.strangers.refuse(errand, partial(errand.fail, code))
            elif code:
                errand.fail(code)
            else:
                again(errand)
            for go_on in behind:
                go_on()

        def told(state: Any) -> None:
            code = _judged(state, errand)
            if code:
                over(code)
            else:
                self.identify(errand, link, (-1, -1), _USUAL_TIMEOUT, over)

        if self.core.outside.tells_transactions(TARGET):
            self.described(errand.name, errand.head, told)
        else:
            over(Code.INVALID_PRODUCER_ID_MAPPING)  # at which clients ask for the id anew, and the target judges that


def _judged(state: Any, errand: Errand) -> int:
    """What a coordinator in this state tells who calls himself the holder."""
    code = code_of(state.error_code)
    if code == Code.TRANSACTIONAL_ID_NOT_FOUND or (not code and int(state.producer_id) != errand.producer_id):
        return Code.INVALID_PRODUCER_ID_MAPPING
    if not code and int(state.producer_epoch) != errand.epoch:
        return Code.PRODUCER_FENCED
    return code
