"""Producers of transactional ids on both clusters, known from the routing table or made known at the source.

The pair of identities is written down before the first use. An older producer is recognised by the epoch at the target,
and is fenced before the source is touched. Making a producer known at the source ends the transaction that is open
there. So no client is accepted as the newer producer by its own claim: the router first asks the target which producer
has the id.

If a controller has revoked an identity (`Revoked`), no producer has that identity at the source any more. Its producer
gets the code of `next_epoch` when beginning a transaction there. Java clients from 2.5 to 4.3 and librdkafka then abort
that transaction, which has not begun at the source, and ask for the next epoch. They count their sequences from 0
again, as the source expects.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from kmigrate.model.records import TransactionRecord
from kmigrate.protocol.api import ApiKey, Message, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.shared.conversation import Conversation, Conversations, Future
from kmigrate.router.shared.state import TARGET, SharedState
from kmigrate.router.transactions.coordinator import TxnCoordinatorClient
from kmigrate.router.transactions.request import AnswerNow, DecideAnew, TxnRequest
from kmigrate.router.transactions.source_identities import OTHER_PRODUCER, SourceIdentities

__all__ = ["ProducerIdentities"]

_INIT = entity(ApiKey.INIT_PRODUCER_ID, 4, "request")
_USUAL_TIMEOUT = dt.timedelta(seconds=60)
"""Clients' default of transaction.timeout.ms, for an id that was requested before any topic was mirrored."""


@dataclass(slots=True)
class ProducerIdentities:
    """The producers as one client connection sees them."""

    shared: SharedState
    conversations: Conversations
    """Conversations that end with the client."""
    coordinators: TxnCoordinatorClient
    at_source: SourceIdentities
    _introductions: dict[tuple[str, str], Future[int]] = field(default_factory=dict)
    """Codes that are awaited while a producer is made known at a source, by link and transactional id."""

    def records(self, name: str) -> Mapping[str, TransactionRecord]:
        """Return the records of a transactional id, by the links whose source knows the id."""
        return self.shared.table.transactions.get(name, {})

    def topics(self, name: str) -> set[str]:
        """Return the topics that a transactional id is known to write, of all links."""
        return {topic for record in self.records(name).values() for topic in record.topics}

    def at_source_of(self, link: str, name: str) -> TransactionRecord | None:
        """Return the record of a transactional id that a link's source knows."""
        known = self.records(name).get(link)
        return known if known is not None and known.at_source else None

    def is_outdated(self, txn: TxnRequest, topics: Collection[str]) -> bool:
        """Return whether the producer may have written one of these topics before the topic's newest flip (`J`)."""
        claimed, known = (txn.producer_id, txn.epoch), self.records(txn.name)
        routes = [route for topic in topics if (route := self.shared.table.topics.get(topic)) is not None]
        return any(
            (record.producer_id, record.epoch) == claimed and route.outdates(record)
            for route in routes
            if (record := known.get(route.link)) is not None
        )

    def sources(self, name: str) -> list[str]:
        """Return a link of each mirrored source, preferably a link whose source knows the transactional id."""
        table, known = self.shared.table, self.records(name)
        chosen: list[str] = []
        for link in sorted(table.mirroring, key=lambda each: each not in known):
            if not any(link in table.of_one_source(each) for each in chosen):
                chosen.append(link)
        return chosen

    def identify(
        self, txn: TxnRequest, link: str, at_source: tuple[int, int], timeout: dt.timedelta
    ) -> Conversation[int]:
        """Have the source give the id's new producer an identity, and write the pair down; return the client's code.

        The identity begins with the record if the client has asked for the identity: it has written nothing before.

        `at_source`: the identity of a producer that only wants the next epoch; else (−1, −1). The conversation must
        outlive the client, because the source ends the older identity.
        """
        producer_id, epoch = at_source
        message = _INIT(
            transactional_id=txn.name, transaction_timeout=timeout, producer_id=producer_id, producer_epoch=epoch
        )
        answer, code = yield from self.coordinators.ask(link, txn.name, txn.head.client_id, message)
        if answer is None or code:
            return code
        given = int(answer.producer_id), int(answer.producer_epoch)
        # A source gives an id to one producer, whatever number of links begins at that source.
        for each in reversed(self.shared.table.of_one_source(link)):
            record = TransactionRecord(each, txn.name, txn.producer_id, txn.epoch, *given)
            known = self.records(txn.name).get(each)
            if known is None or not known.later_at_source(record):
                self.shared.ended(each, txn.name)
            begins = txn.head.api_key == ApiKey.INIT_PRODUCER_ID
            if not (yield from self.shared.transaction_store.remember(record, begins=begins)):
                return Code.COORDINATOR_LOAD_IN_PROGRESS
        return Code.NONE

    def identity(self, txn: TxnRequest, link: str) -> Conversation[TransactionRecord]:
        """Return the producer's identities; make a producer known at the source that the records do not name."""
        known = self.at_source_of(link, txn.name)
        if known is not None and known.producer_id == txn.producer_id and known.epoch >= txn.epoch:
            if known.epoch > txn.epoch:
                raise AnswerNow(Code.PRODUCER_FENCED)
            if not known.in_force:
                raise AnswerNow(txn.next_epoch_code)
            return known
        if not txn.caught_up:
            yield from self.catch_up(txn)
        if (introduction := self._introductions.get((link, txn.name))) is not None:
            yield from introduction
        else:
            yield from self._introduce(txn, link)
        raise DecideAnew

    def check_owned(self, txn: TxnRequest, link: str, codes: Collection[int]) -> Conversation[None]:
        """If a source refuses a perhaps revoked identity, read all the log, once; amid the revoking, clients retry."""
        if OTHER_PRODUCER.isdisjoint(codes):
            return
        if not txn.disowned:
            txn.disowned = True
            yield from self.catch_up(txn)
        record = self.records(txn.name).get(link)
        if record is not None and record.revoked is not None:
            raise AnswerNow(Code.CONCURRENT_TRANSACTIONS)

    def cut_off(self, txn: TxnRequest) -> bool:
        """Return whether the transaction that the producer may believe open was cut off."""
        claimed = (txn.producer_id, txn.epoch)
        return any(
            each.cut_off and (each.producer_id, each.epoch) == claimed for each in self.records(txn.name).values()
        )

    def catch_up(self, txn: TxnRequest) -> Conversation[NoReturn]:
        """Read what other routers have written, and decide anew."""
        txn.caught_up = True
        reached = yield from self.shared.transaction_store.catch_up()
        raise DecideAnew if reached else AnswerNow(Code.COORDINATOR_LOAD_IN_PROGRESS)

    def _introduce(self, txn: TxnRequest, link: str) -> Conversation[None]:
        """Make the producer that the target names known at the source; answer anybody else as a coordinator would."""
        key = (link, txn.name)
        introduction = self._introductions[key] = self.conversations.start(self._make_known(txn, link))
        try:
            code = yield from introduction
        finally:
            del self._introductions[key]
        if not code:
            return
        judged = (yield from self.at_source.judge(txn)) if code in OTHER_PRODUCER else None
        raise AnswerNow(code if judged is None else judged)

    def _make_known(self, txn: TxnRequest, link: str) -> Conversation[int]:
        if not self.shared.backend.tells_transactions(TARGET):
            # at this code clients ask for the id anew, and the target judges that request
            return Code.INVALID_PRODUCER_ID_MAPPING
        code = _judged((yield from self.coordinators.describe_at_target(txn.name, txn.head)), txn)
        identify = self.identify(txn, link, (-1, -1), _USUAL_TIMEOUT)
        return code or (yield from self.shared.conversations.start(identify))


def _judged(state: Message, txn: TxnRequest) -> int:
    """Return the code of a coordinator in this state for a client that claims to be the producer."""
    code = code_of(state.error_code)
    if code == Code.TRANSACTIONAL_ID_NOT_FOUND or (not code and int(state.producer_id) != txn.producer_id):
        return Code.INVALID_PRODUCER_ID_MAPPING
    if not code and int(state.producer_epoch) != txn.epoch:
        return Code.PRODUCER_FENCED
    return code
