"""The transactions of one client connection: each transaction meets one cluster, and the router knows which.

The same transactional id lives on both clusters. While its topics are mirrored, the target has only the id, and the
source has the transactions. A client knows the target's producer id and epoch (T, te). Requests to the source carry the
source's (S, se). `docs/decisions/0007` gives the reasons for these rules:

A  InitProducerId goes to the target, then to the source of every link that still mirrors. The router answers once the
   pair of identities is in the state log. Both clusters raise their epochs, so the older of two producers is known by
   its te.
B  A transaction is on the cluster of its first topics, or of its first group: a group that follows is at its link's
   source, every other group at the target. Topics and groups of the other cluster are refused with an error that ends
   the transaction and not the producer.
C  Under a fence, a transaction may not begin if any topic of its transactional id is fenced or any group is frozen. A
   transaction may not reach a fenced topic that its id had not written before the fence. An open transaction may go on
   and end. Until then it counts as in flight at all topics that its id writes (`shared.open_transactions`). Before a
   rollback's fence no transaction begins at the target whose id writes the topic, and open transactions go on and end.
   Under the fence no partition of the topic enters a transaction.
D  If a request comes to a connection amid a transaction, the router first asks both clusters about the transaction.
E  An EndTxn without an open transaction is repeated: the first answer was lost. The cluster of the last transaction
   knows how that ended: the source while the topics are mirrored, afterwards the target, or the source if the target
   has never seen a transaction of the id (`transactions.end_txn`). If the identity was revoked, the id's record holds
   the end. If the source refuses the identity in answer to the EndTxn, the router reads the log and judges anew before
   it answers (`transactions.identities`).
F  If a partition's sequences at the target go on from the source's, the partition enters the transaction with its first
   batch (`shared.deferred_partitions`).
G  A transactional id couples the topics and groups that the source has let it write. For a topic or group outside the
   id's record, the router first asks the source. Then it counts the transaction there, so that fences wait for it, and
   writes the coupling down. Only then the client is answered, and batches are written.
H  After a group has opened at the other cluster, the router refuses the first commit of each id that commits for the
   group (ILLEGAL_GENERATION). The client repeats that transaction. The transaction's input may have been read before
   the group opened, and another member reads that input again. The commit's member id and epoch do not reveal this: a
   member of the new protocol (KIP-848) keeps the old member id, and joins the group before the application asks for
   both.
I  A source may have given out an identity that neither the state log nor the target knows. The sources are asked before
   a client is refused (`source_identities`).
J  From a topic's first rollback on, an identity ends at each flip of a topic that it may have written: the cluster that
   is written from then on knows other sequences of the identity. The client gets the code of `next_epoch`, aborts, and
   asks for the next epoch, whose sequences begin at 0 on both clusters (`docs/decisions/0019`).
K  What the target lets an id write together with a topic that can be rolled back is written down, too, before the
   client is answered. So is a group that is being rolled back. So a rollback knows what transactions couple.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple, NoReturn

from kmigrate.model.records import TransactionRecord
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import ApiKey, Message
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.groups.handler import GroupHandler
from kmigrate.router.shared.conversation import Conversation, Conversations, Future
from kmigrate.router.shared.deferred_partitions import ProducerIdentity
from kmigrate.router.shared.open_transactions import OpenTransaction
from kmigrate.router.shared.state import TARGET, Buffer, ClientLink, SharedState
from kmigrate.router.transactions.add_partitions import AddPartitionsHandler
from kmigrate.router.transactions.coordinator import TxnCoordinatorClient
from kmigrate.router.transactions.end_txn import EndTxnHandler
from kmigrate.router.transactions.identities import ProducerIdentities
from kmigrate.router.transactions.locate import TransactionLocator
from kmigrate.router.transactions.request import AnswerNow, DecideAnew, TxnRequest
from kmigrate.router.transactions.source_identities import OTHER_PRODUCER, SourceIdentities
from kmigrate.router.wire.transactions import (
    partition_codes,
    partitions_answer,
    partitions_of,
    producer_of,
)

__all__ = ["TransactionHandler"]


class _AtSource(NamedTuple):
    """Outcome of a request to let something into a transaction at a source."""

    answer: bytes
    codes: Collection[int]
    fenced: bool = False
    """True if the source has agreed, but the topic or group was fenced meanwhile, and drained of all counted there."""


class TransactionHandler:
    """Handles the transaction requests of one connection, each as a conversation; answers may come in any order."""

    def __init__(
        self, shared: SharedState, client: ClientLink, conversations: Conversations, groups: GroupHandler
    ) -> None:
        self._shared = shared
        self._client = client
        self._conversations = conversations
        self._groups = groups
        self._coordinators = TxnCoordinatorClient(shared, client)
        source_identities = SourceIdentities(shared, self._coordinators)
        self._identities = ProducerIdentities(shared, conversations, self._coordinators, source_identities)
        self._locator = TransactionLocator(shared, self._identities)
        self._at_target = AddPartitionsHandler(shared, client)
        self._ends = EndTxnHandler(shared, client, self._identities, self._locator)
        self._newer_table: Future[None] | None = None
        """Set at the next routing table, for the requests that are held until then."""

    def handle(self, head: RequestHead, frame: bytearray, request: Message, software: str) -> Conversation[Buffer]:
        """Answer a client's request with a transactional id; `software`: the client's library."""
        txn = TxnRequest(head, frame, request, *producer_of(head, request), software)
        while True:
            try:
                return (yield from self._decide(txn))
            except AnswerNow as now:
                return txn.answer(now.code)
            except DecideAnew:
                continue

    def advance(self) -> None:
        """Try the held requests again."""
        self._shared.waiting.pop(self, None)
        newer, self._newer_table = self._newer_table, None
        if newer is not None:
            newer.set(None)

    def closed(self) -> None:
        """Forget the client, whose conversations have ended."""
        self._coordinators.gone = True
        self._newer_table = None
        self._locator.closed()
        self._shared.deferred.forget(self._at_target)
        self._shared.waiting.pop(self, None)

    @property
    def has_promised(self) -> bool:
        """True if the client believes that a partition is in a transaction at the target before it is (rule F)."""
        return self._shared.deferred.has_promised(self._at_target)

    def look(self, name: str) -> Future[None]:
        """Find out whether a transactional id has a transaction open at a source (rule D)."""
        return self._shared.conversations.start(self._locator.look(name))

    def join(self, producer: ProducerIdentity, topic: str, partition: int) -> Future[int]:
        """Add a partition to a transaction at the target before the partition's first batch (rule F)."""
        return self._conversations.start(self._at_target.join(producer, topic, partition))

    # one request

    def _decide(self, txn: TxnRequest) -> Conversation[Buffer]:
        key = txn.head.api_key
        if key == ApiKey.INIT_PRODUCER_ID:
            return (yield from self._init(txn))
        if key != ApiKey.END_TXN and self._identities.cut_off(txn):
            return txn.answer(Code.ILLEGAL_GENERATION if key == ApiKey.TXN_OFFSET_COMMIT else txn.next_epoch_code)
        if key == ApiKey.TXN_OFFSET_COMMIT:
            return (yield from self._commit_offsets(txn))
        in_view = self._in_view(txn)
        if in_view and not self._locator.knows(txn.name):
            code = yield from self._locator.learn(txn.name, txn.head)
            raise AnswerNow(code) if code else DecideAnew
        if key == ApiKey.END_TXN:
            return (yield from self._ends.end(txn))
        if not in_view:
            return (yield from self._begin_at_target(txn))
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return (yield from self._add_partitions(txn))
        return (yield from self._add_offsets(txn))

    def _in_view(self, txn: TxnRequest) -> bool:
        """Return whether an open transaction of the id decides here: while a source is mirrored, or in a rollback."""
        table = self._shared.table
        begins = txn.head.api_key != ApiKey.END_TXN
        return bool(table.mirroring) or (begins and bool(table.routes.fenced or table.followed))

    def _next_table(self, txn: TxnRequest) -> Conversation[NoReturn]:
        """Wait a moment for a newer table, and decide anew; then have the client retry, unseen by applications."""
        now = self._client.now()
        if txn.deadline is None:
            txn.deadline = now + self._shared.settings.group_hold_s
            self._client.wake_at(txn.deadline)
        if now >= txn.deadline:
            raise AnswerNow(Code.CONCURRENT_TRANSACTIONS)
        if self._newer_table is None:
            self._newer_table = Future()
        self._shared.waiting.setdefault(self)
        yield from self._newer_table
        raise DecideAnew

    # InitProducerId (rule A)

    def _init(self, txn: TxnRequest) -> Conversation[Buffer]:
        links = self._identities.sources(txn.name)
        frame = yield from txn.to_target(self._client)
        answer = txn.read(frame)
        if code_of(answer.error_code):
            return frame
        txn.producer_id, txn.epoch = int(answer.producer_id), int(answer.producer_epoch)
        for link in links:
            if code := (yield from self._init_at_source(txn, link)):
                return txn.answer(code)
        self._locator.given(txn.name)
        return frame

    def _init_at_source(self, txn: TxnRequest, link: str) -> Conversation[int]:
        """Have the source of a link give out the id, and return the code for the client."""
        resumed = int(getattr(txn.request, "producer_id", -1))
        while True:
            known = self._identities.at_source_of(link, txn.name)
            resumes = known is not None and known.producer_id == resumed and known.revoked is None
            at_source = (known.source_id, known.source_epoch) if known and resumes else (-1, -1)
            identify = self._identities.identify(txn, link, at_source, txn.request.transaction_timeout)
            code = yield from self._shared.conversations.start(identify)
            if known is None and (
                code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or link in self._coordinators.silent
            ):
                # The client has no rights there, or nobody answers. Neither matters for topics that are not mirrored.
                # The first write to a mirrored topic asks again, which ends whatever an earlier producer had begun
                # there.
                return Code.NONE
            try:
                yield from self._identities.check_owned(txn, link, {code})
            except DecideAnew:
                continue
            return code

    # AddPartitionsToTxn (rules B, C)

    def _add_partitions(self, txn: TxnRequest) -> Conversation[Buffer]:
        routes = self._shared.table.topics
        homes: dict[str, str] = {}
        for topic in partitions_of(txn.request):
            route = routes.get(topic)
            homes[topic] = TARGET if route is None or route.at_target else route.link
        at = self._locator.open_at(txn.name)
        if self._waits(txn, at, homes):
            yield from self._next_table(txn)
        if at is None:
            at = next(iter(homes.values())) if len(set(homes.values())) == 1 else TARGET
        elsewhere = sorted(topic for topic, home in homes.items() if home != at)
        if elsewhere:
            return self._refuse_topics(txn, elsewhere, at)
        if at == TARGET:
            return (yield from self._begin_at_target(txn))
        return (yield from self._enter_at_source(txn, at, homes.keys(), ()))

    def _begin_at_target(self, txn: TxnRequest) -> Conversation[Buffer]:
        """Pass on a request that may begin a transaction: open on this connection at once, on others once granted."""
        is_add = txn.head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN
        topics = frozenset(partitions_of(txn.request)) if is_add else frozenset[str]()
        if self._identities.is_outdated(txn, topics):
            return self._refuse_outdated(txn)
        entry = self._locator.begins_at_target(txn.name)
        entry.ask(self._locator)
        if is_add:
            answer = yield from self._at_target.add(txn)
        else:
            answer = yield from self._at_target.add_group(txn, self._identities.topics(txn.name))
        codes = txn.codes_in(answer)
        if entry.answered(self._locator, known=0 in codes):
            self._locator.never_began_at_target(txn.name, entry)
        if codes and codes <= OTHER_PRODUCER:
            return (yield from self._identities.at_source.refused(txn, answer))
        if 0 in codes and not (yield from self._couple_at_target(txn, entry, answer)):
            return txn.answer(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return answer

    def _refuse_outdated(self, txn: TxnRequest) -> bytes:
        """Have the client abort and ask for the next epoch (rule J)."""
        if self._locator.open_at(txn.name) is None:
            self._locator.refused.add(txn.name)
        return txn.answer(txn.next_epoch_code)

    def _couple_at_target(self, txn: TxnRequest, entry: OpenTransaction, answer: Buffer) -> Conversation[bool]:
        """Write down what the target lets into a transaction with a topic that can be rolled back (rule K).

        False: the state log is not reachable. The client is answered afterwards, so nothing is written before.
        """
        routes, known = self._shared.table.topics, self._identities.records(txn.name)
        topics, granted = txn.granted_in(answer)
        entry.groups.update(granted)  # a topic that can be rolled back may enter the transaction after the group
        groups = frozenset(entry.groups)

        def copied_back(names: Iterable[str]) -> set[str]:
            return {routes[name].link for name in names if name in routes and routes[name].copied_back}

        written = (record.link for record in known.values() if record.link in copied_back(record.topics))
        followed = self._shared.table.followed
        taken_back = (followed[group].link for group in granted if group in followed and followed[group].at_target)
        for link in sorted(copied_back(topics).union(written, taken_back)):
            record = known.get(link) or TransactionRecord(link, txn.name, txn.producer_id, txn.epoch, -1, -1)
            if topics.issubset(record.topics) and groups.issubset(record.groups):
                continue
            wider = replace(record, topics=tuple(sorted(topics)), groups=tuple(sorted(groups)))
            if not (yield from self._shared.transaction_store.remember(wider)):
                return False
        return True

    def _waits(self, txn: TxnRequest, at: str | None, topics: Iterable[str]) -> bool:
        """Return whether the request must wait for a fence or a rollback (rule C), or for a topic that still aligns."""
        named = set(topics)
        if at is None:
            named |= self._identities.topics(txn.name)
            followed = self._shared.table.followed
            records = self._identities.records(txn.name).values()
            if any(group in followed and followed[group].frozen for record in records for group in record.groups):
                return True
        routes = [route for topic in named if (route := self._shared.table.topics.get(topic)) is not None]
        return any(
            route.serve is Serve.HIDDEN
            or (route.closing and at is None)
            or (route.serve is Serve.HOLD and not self._shared.open_at_source.covers(route.link, txn.name, route.key))
            for route in routes
        )

    def _refuse_topics(self, txn: TxnRequest, topics: list[str], at: str) -> bytes:
        if self._locator.open_at(txn.name) is None:
            self._locator.refused.add(txn.name)
        there, here = ("on the target", "mirrored") if at != TARGET else ("mirrored", "on the target")
        named = ", ".join(topics)
        self._say_refused(
            txn, f"write to {named}, which is {there}, together with what is {here}: promote its topics together"
        )
        wanted = partitions_of(txn.request)
        codes = {(topic, index): int(Code.TOPIC_AUTHORIZATION_FAILED) for topic in topics for index in wanted[topic]}
        return partitions_answer(txn.head, txn.request, codes)

    # AddPartitionsToTxn, AddOffsetsToTxn at a source (rule G)

    def _enter_at_source(
        self, txn: TxnRequest, link: str, topics: Collection[str], groups: Collection[str]
    ) -> Conversation[Buffer]:
        """Let topics or groups into a transaction at a source."""
        record = yield from self._identities.identity(txn, link)
        if self._identities.is_outdated(txn, topics):
            return self._refuse_outdated(txn)
        entry = self._locator.enter(link, txn.name, txn.epoch, set(topics).intersection(record.topics))
        outcome = yield from self._shared.conversations.start(self._ask_source(txn, record, entry, topics, groups))
        if outcome is None:
            raise DecideAnew
        yield from self._identities.check_owned(txn, link, outcome.codes)
        if outcome.fenced:
            yield from self._next_table(txn)
        return outcome.answer

    def _ask_source(
        self,
        txn: TxnRequest,
        record: TransactionRecord,
        entry: OpenTransaction,
        topics: Collection[str],
        groups: Collection[str],
    ) -> Conversation[_AtSource | None]:
        """Ask the source, and write down a new coupling to which the source agrees; None: written down, ask again.

        The outcome is noted also when the client is gone.
        """
        link, name = record.link, txn.name
        entry.ask(self._locator)
        message = txn.for_source(record.source_id, record.source_epoch)
        answer, code = yield from self._coordinators.ask(link, name, txn.head.client_id, message)
        if answer is not None and txn.head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            each = {
                key: self._coordinators.client_code(link, name, code) for key, code in partition_codes(answer).items()
            }
            outcome = _AtSource(partitions_answer(txn.head, txn.request, each), each.values())
        else:
            outcome = _AtSource(txn.answer(code), {code})
        # without an answer the fate of the request is unknown
        if entry.answered(self._locator, known=answer is None or 0 in outcome.codes):
            self._shared.ended(link, name, entry)
        coupled = set(topics) <= set(record.topics) and set(groups) <= set(record.groups)
        if coupled or any(outcome.codes):
            return outcome
        frozen = [group for group in groups if self._frozen(txn, group)]
        for group in frozen:
            self._note_overtaken(txn, group)
        if frozen or self._waits(txn, link, topics):
            return outcome._replace(fenced=True)
        routes = self._shared.table.topics
        self._shared.open_at_source.enter(
            link, name, txn.epoch, {routes[topic].key for topic in topics if topic in routes}, groups
        )
        wider = record.merged(replace(record, topics=tuple(topics), groups=tuple(groups)))
        if (yield from self._shared.transaction_store.remember(wider)):
            return None
        return _AtSource(txn.answer(Code.COORDINATOR_LOAD_IN_PROGRESS), {Code.COORDINATOR_LOAD_IN_PROGRESS})

    # AddOffsetsToTxn, TxnOffsetCommit (rule B)

    def _add_offsets(self, txn: TxnRequest) -> Conversation[Buffer]:
        group, at = str(txn.request.group_id), self._locator.open_at(txn.name)
        route = self._shared.table.followed.get(group)
        held = route is None and group in self._shared.table.held_groups
        frozen = self._frozen(txn, group)
        if frozen:
            self._note_overtaken(txn, group)
        if frozen or (not held and self._waits(txn, at, ())):
            yield from self._next_table(txn)
        home = TARGET if route is None or route.at_target else route.link
        if held or at not in (None, home):
            if at is None:
                self._locator.refused.add(txn.name)
            return self._refuse_group(txn, group)
        if route is not None and not route.at_target:
            return (yield from self._enter_at_source(txn, route.link, (), (group,)))
        return (yield from self._begin_at_target(txn))

    def _commit_offsets(self, txn: TxnRequest) -> Conversation[Buffer]:
        """Commit at the group's cluster, whose coordinator knows nothing of the transaction's identities."""
        group = str(txn.request.group_id)
        route = self._shared.table.followed.get(group)
        if self._has_opened(txn, route) or self._frozen(txn, group):
            # The input was read before the group's members joined anew. The client must abort, and do the work again
            # from the group's committed offsets.
            return txn.answer(Code.ILLEGAL_GENERATION)
        if route is None and group in self._shared.table.held_groups:
            return self._refuse_group(txn, group)
        if route is None:
            return (yield from txn.to_target(self._client))
        if route.at_target:  # the group is being rolled back, which waits for the commits in flight
            return (yield from self._groups.commit(txn.head, txn.request, group, route.link))
        return (yield from self._commit_at_source(txn, route.link, group))

    def _has_opened(self, txn: TxnRequest, route: GroupRoute | None) -> bool:
        """Return whether the transaction may have begun before the group opened at this cluster (rule H)."""
        at_target, now = self._shared.open_at_target, self._client.now()
        if route is not None:
            return not route.at_target and at_target.overtakes(txn.name, now, back=True)
        open_at_source = self._shared.open_at_source.where(txn.name, self._locator) is not None
        return open_at_source or at_target.overtakes(txn.name, now)

    def _note_overtaken(self, txn: TxnRequest, group: str) -> None:
        """Note that a transaction waits for a frozen group, wherever the group opens (rule H)."""
        at_target, now = self._shared.open_at_target, self._client.now()
        at_target.overtaken[txn.name] = now
        if self._shared.table.followed[group].at_target:
            at_target.taken_back[txn.name] = now

    def _frozen(self, txn: TxnRequest, group: str) -> bool:
        """Return whether a group is frozen, and the transaction was not reported as the group's before the freeze."""
        route = self._shared.table.followed.get(group)
        may_commit = self._shared.open_at_source.may_commit
        return route is not None and route.frozen and not may_commit(route.link, txn.name, group)

    def _commit_at_source(self, txn: TxnRequest, link: str, group: str) -> Conversation[Buffer]:
        record = self._identities.records(txn.name).get(link)
        if record is None or record.epoch < txn.epoch or group not in record.groups:
            # AddOffsetsToTxn never added the group to this transaction (rule G), unless another router did.
            if not txn.caught_up:
                yield from self._identities.catch_up(txn)
            return txn.answer(Code.ILLEGAL_GENERATION)
        if (record.producer_id, record.epoch) != (txn.producer_id, txn.epoch):
            return txn.answer(Code.PRODUCER_FENCED)
        if not record.in_force:
            return txn.answer(Code.ILLEGAL_GENERATION)  # at this code every client aborts
        request = txn.for_source(record.source_id, record.source_epoch)
        return (yield from self._groups.commit(txn.head, request, group, link))

    def _refuse_group(self, txn: TxnRequest, group: str) -> bytes:
        why = "is mirrored" if group in self._shared.table.held_groups else "is not where the transaction is"
        self._say_refused(txn, f"commit offsets of group {group}, which {why}: promote group and topics together")
        return txn.answer(Code.GROUP_AUTHORIZATION_FAILED)

    def _say_refused(self, txn: TxnRequest, refused: str) -> None:
        client = txn.head.client_id or "a client"
        self._shared.backend.say(f"{client}: kmigrate: a transaction of {txn.name} cannot {refused}")
