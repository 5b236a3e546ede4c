"""The transactions of one client connection: each transaction meets one cluster, and the router knows which.

The same transactional id lives on both clusters. While its topics are mirrored, the target has only the id, and the
source has the transactions. A client knows the producer id and epoch of the target (T, te). Requests to the source
carry the producer id and epoch of the source (S, se). `docs/decisions/0007` gives the reasons for these rules:

A  InitProducerId goes to the target, then to the source of every link that still mirrors. The router answers once the
   pair of identities is in the state log. Both clusters raise their epochs, so the older of two holders is known by its
   te.
B  A transaction is on the cluster of its first topics, or of its first group. A group that follows is at its link's
   source, every other group at the target. Topics and groups of the other cluster are refused with an error that ends
   the transaction and not the producer.
C  Under a fence, a transaction may not begin if any topic of its transactional id is fenced or any group is frozen. A
   transaction may not reach a fenced topic that its id had not written before the fence. An open transaction may go on
   and end. Until its end the transaction counts as in flight at all topics that its id writes
   (`shared.open_transactions`).
D  If a request comes to a connection in the middle of a transaction, the router first asks both clusters about the
   transaction.
E  An EndTxn without an open transaction is repeated: the first answer was lost. The cluster of the last transaction
   knows how that transaction ended. While the topics are mirrored, the source knows. After the promote the target
   knows, or the source if the target has never seen a transaction of the id (`transactions.end_txn`). If the identity
   was revoked, the source has forgotten the end, and the id's record holds the end. If the source refuses the identity
   in answer to the EndTxn, the router reads the log and judges anew before the client gets an answer
   (`transactions.identities`).
F  If a partition's sequences at the target go on from the source's, the partition enters the transaction with its first
   batch (`shared.deferred_partitions`).
G  A transactional id couples the topics and groups that the source has let it write. For a topic or group that the id's
   record does not name, the router first asks the source. Then the router counts the transaction there, so that a fence
   from now on waits for the transaction. Then the router writes the coupling down. Only then the client is answered,
   and batches are written.
H  After a group has opened at the target, the first transaction of an id that commits for the group is refused its
   commit (ILLEGAL_GENERATION). The client does that transaction again. Its input may have been read before the group
   opened, and another member reads that input again. Member id and epoch in the commit would not reveal this. A member
   of the new protocol (KIP-848) joins the target's group by itself, under its old member id, in the middle of the
   application's work. The application asks for member id and epoch only when committing, so both are valid.
I  A source may have given out an identity that neither the state log nor the target knows. The sources are asked before
   a client is refused (`source_identities`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kmigrate.model.records import TransactionRecord
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.groups.handler import GroupHandler
from kmigrate.router.shared.deferred_partitions import Holder
from kmigrate.router.shared.state import TARGET, Buffer, ClientLink, SharedState
from kmigrate.router.transactions.add_partitions import AddPartitionsHandler
from kmigrate.router.transactions.coordinator import TxnCoordinatorClient
from kmigrate.router.transactions.end_txn import EndTxnHandler
from kmigrate.router.transactions.identities import ProducerIdentities
from kmigrate.router.transactions.locate import TransactionLocator
from kmigrate.router.transactions.request import TxnRequest
from kmigrate.router.transactions.source_identities import NOT_THE_HOLDER, SourceIdentities
from kmigrate.router.wire.transactions import (
    holder_of,
    partition_codes,
    partitions_answer,
    partitions_of,
    partitions_request,
)

__all__ = ["TransactionHandler"]

_ADD = entity(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "request")
_OFFSETS = entity(ApiKey.ADD_OFFSETS_TO_TXN, 3, "request")


def _sorted(known: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*known, *more}))


class TransactionHandler:
    """Handles the transaction requests of one connection; answers may come later, in any order."""

    def __init__(self, shared: SharedState, client: ClientLink, follow: GroupHandler) -> None:
        self._shared = shared
        self._client = client
        self._follow = follow
        self._talk = TxnCoordinatorClient(shared, client)
        self._identities = ProducerIdentities(shared, self._talk, SourceIdentities(shared, self._talk))
        self._places = TransactionLocator(shared, self._identities)
        self._entrance = AddPartitionsHandler(shared, client)
        self._ending = EndTxnHandler(shared, self._identities, self._places, self._to_target, self._go)
        self._held: list[TxnRequest] = []
        self._gone = False

    def take(self, head: RequestHead, frame: bytearray, request: Any, reply: Callable[[Buffer], None]) -> None:
        """Take a client's request with a transactional id; `reply` is called with the answer."""
        self._go(TxnRequest(head, frame, request, reply, *holder_of(head, request)))

    def advance(self) -> None:
        """Try the held requests again."""
        self._shared.waiting.pop(self, None)
        if not self._held:
            return
        held, self._held = self._held, []
        for txn in held:
            self._go(txn)

    def closed(self) -> None:
        self._gone = self._talk.gone = True
        self._held.clear()
        self._places.closed()
        self._entrance.closed()
        self._shared.waiting.pop(self, None)

    @property
    def owes(self) -> bool:
        """True if the client was told that a partition is in a transaction at the target before it is (rule F)."""
        return self._entrance.owes

    def look(self, name: str, then: Callable[[], None]) -> None:
        """Find out whether a transactional id has a transaction open at a source (rule D)."""
        self._places.look(name, then)

    def join(self, holder: Holder, topic: str, partition: int, then: Callable[[int], None]) -> None:
        """Add a partition to a transaction at the target before the partition's first batch (rule F)."""
        self._entrance.join(holder, topic, partition, then)

    # one request

    def _go(self, txn: TxnRequest) -> None:
        if self._gone:
            return
        key = txn.head.api_key
        if key == ApiKey.INIT_PRODUCER_ID:
            self._init(txn)
        elif key != ApiKey.END_TXN and self._identities.cut_off(txn):
            txn.fail(Code.ILLEGAL_GENERATION if key == ApiKey.TXN_OFFSET_COMMIT else Code.UNKNOWN_PRODUCER_ID)
        elif key == ApiKey.TXN_OFFSET_COMMIT:
            self._commit_offsets(txn)
        elif not self._shared.table.mirroring:
            self._at_target_alone(txn)
        elif not self._places.knows(txn.name):
            self._look_first(txn)
        elif key == ApiKey.ADD_PARTITIONS_TO_TXN:
            self._add_partitions(txn)
        elif key == ApiKey.ADD_OFFSETS_TO_TXN:
            self._add_offsets(txn)
        else:
            self._ending.take(txn)

    def _at_target_alone(self, txn: TxnRequest) -> None:
        """Handle a request while nothing is mirrored any more, or yet."""
        if txn.head.api_key == ApiKey.END_TXN:
            self._ending.take(txn)
        elif txn.head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
            self._add_at_target(txn)
        else:
            self._begin_at_target(txn)
            self._pass(txn)

    def _pass(self, txn: TxnRequest) -> None:
        self._to_target(txn, txn.reply)

    def _to_target(self, txn: TxnRequest, told: Callable[[bytearray], None]) -> None:
        """Send the request to the target unchanged."""
        if not self._gone:
            self._client.to_target([txn.frame], txn.head.correlation_id, told)

    def _hold(self, txn: TxnRequest) -> None:
        """Wait a moment for a newer table; then tell the client to retry.

        Clients retry without an error to the application.
        """
        now = self._client.now()
        if txn.deadline is None:
            txn.deadline = now + self._shared.settings.group_hold_s
            self._client.wake_at(txn.deadline)
        if now >= txn.deadline:
            txn.fail(Code.CONCURRENT_TRANSACTIONS)
            return
        self._held.append(txn)
        self._shared.waiting.setdefault(self)

    # InitProducerId (rule A)

    def _init(self, txn: TxnRequest) -> None:
        links = self._identities.sources(txn.name)

        def answered(frame: bytearray) -> None:
            told = txn.read(frame)
            if code_of(told.error_code):
                txn.reply(frame)
            else:
                txn.producer_id, txn.epoch = int(told.producer_id), int(told.producer_epoch)
                self._init_sources(txn, frame, links)

        self._to_target(txn, answered)

    def _init_sources(self, txn: TxnRequest, frame: bytearray, links: list[str]) -> None:
        if not links:
            self._places.given(txn.name)
            txn.reply(frame)
            return
        link = links.pop(0)
        known = self._identities.records(txn.name).get(link)
        resumed = int(getattr(txn.request, "producer_id", -1))
        same = known is not None and known.producer_id == resumed and known.revoked is None
        holder = (known.source_id, known.source_epoch) if known and same else (-1, -1)

        def identified(code: int) -> None:
            if known is None and (code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or link in self._talk.silent):
                # The client has no rights there, or nobody answers. Neither matters for topics that are not mirrored.
                # The first write to a mirrored topic asks again, which ends whatever an earlier holder had begun there.
                code = 0
            if code and self._identities.disowned(txn, link, {code}, again):
                return
            if code:
                txn.fail(code)
            else:
                self._init_sources(txn, frame, links)

        def again(_: TxnRequest) -> None:
            self._init_sources(txn, frame, [link, *links])

        self._identities.identify(txn, link, holder, txn.request.transaction_timeout, identified)

    def _look_first(self, txn: TxnRequest) -> None:
        """Ask the clusters about open transactions before the request is handled (rule D)."""

        def looked(code: int) -> None:
            if code:
                txn.fail(code)
            else:
                self._go(txn)

        self._places.learn(txn.name, txn.head, looked)

    # AddPartitionsToTxn (rules B, C)

    def _add_partitions(self, txn: TxnRequest) -> None:
        routes = self._shared.table.topics
        homes: dict[str, str] = {}
        for topic in partitions_of(txn.request):
            route = routes.get(topic)
            homes[topic] = TARGET if route is None or route.serve is Serve.LOCAL else route.link
        at = self._places.open_at(txn.name)
        if self._waits(txn, at, homes):
            self._hold(txn)
            return
        if at is None:
            at = next(iter(homes.values())) if len(set(homes.values())) == 1 else TARGET
        strangers = sorted(topic for topic, home in homes.items() if home != at)
        if strangers:
            self._refuse(txn, strangers, at)
        elif at == TARGET:
            self._add_at_target(txn)
        else:
            self._add_at_source(txn, at)

    def _add_at_target(self, txn: TxnRequest) -> None:
        self._begin_at_target(txn)
        self._entrance.add(txn)

    def _begin_at_target(self, txn: TxnRequest) -> None:
        """Count the transaction as open at the target.

        The transaction counts on this connection from now on, and on other connections once the target has granted the
        request.
        """
        entry, reply = self._places.begins_at_target(txn.name), txn.reply
        entry.ask(self._places)

        def answered(answer: Buffer) -> None:
            codes = txn.codes_in(answer)
            if entry.answered(self._places, begun=0 in codes):
                self._places.never_began_at_target(txn.name, entry)
            txn.reply = reply
            if codes and codes <= NOT_THE_HOLDER:
                self._identities.strangers.refuse(txn, lambda: reply(answer))
            else:
                reply(answer)

        txn.reply = answered

    def _waits(self, txn: TxnRequest, at: str | None, topics: Iterable[str]) -> bool:
        """Return whether the request must wait for a fence (rule C), or for a topic that still aligns."""
        named = set(topics)
        if at is None:
            records = self._identities.records(txn.name).values()
            named.update(topic for record in records for topic in record.topics)
            followed = self._shared.table.followed
            if any(group in followed and followed[group].frozen for record in records for group in record.groups):
                return True
        routes = [route for topic in named if (route := self._shared.table.topics.get(topic)) is not None]
        return any(
            route.serve is Serve.HIDDEN
            or (route.serve is Serve.HOLD and not self._shared.open_at_source.covers(route.link, txn.name, route.key))
            for route in routes
        )

    def _refuse(self, txn: TxnRequest, strangers: list[str], at: str) -> None:
        if self._places.open_at(txn.name) is None:
            self._places.refused.add(txn.name)
        there, here = ("on the target", "mirrored") if at != TARGET else ("mirrored", "on the target")
        self._shared.backend.say(
            f"{txn.head.client_id or 'a client'}: kmigrate: a transaction of {txn.name} cannot write to "
            f"{', '.join(strangers)}, which is {there}, together with what is {here}: promote its topics together"
        )
        codes = {
            (topic, index): int(Code.TOPIC_AUTHORIZATION_FAILED)
            for topic in strangers
            for index in partitions_of(txn.request)[topic]
        }
        txn.reply(partitions_answer(txn.head, txn.request, codes))

    def _add_at_source(self, txn: TxnRequest, link: str) -> None:
        record = self._identities.identity(txn, link, self._go)
        if record is None:
            return
        wanted = partitions_of(txn.request)
        known = wanted.keys() & set(record.topics)
        entry = self._places.enter(link, txn.name, txn.epoch, known)
        entry.ask(self._places)
        message = partitions_request(_ADD, (txn.name, record.source_id, record.source_epoch), wanted)

        def told(answer: Any, code: int) -> None:
            if answer is None:
                entry.answered(self._places, begun=True)  # fate unknown
                txn.fail(code)
                return
            codes = {key: self._talk.elsewhere(link, txn.name, each) for key, each in partition_codes(answer).items()}
            if entry.answered(self._places, begun=not all(codes.values())):
                self._shared.ended(link, txn.name, entry)
            if self._identities.disowned(txn, link, codes.values(), self._go):
                return
            if known == wanted.keys() or any(codes.values()):
                txn.reply(partitions_answer(txn.head, txn.request, codes))
            elif self._waits(txn, link, wanted):
                self._hold(txn)  # the topic was fenced meanwhile, and drained of all that was counted there
            else:
                routes = [route for topic in wanted if (route := self._shared.table.topics.get(topic)) is not None]
                self._shared.open_at_source.enter(link, txn.name, txn.epoch, {route.key for route in routes})
                self._couple(txn, replace(record, topics=_sorted(record.topics, wanted)))

        self._talk.ask(link, txn.name, txn.head.client_id, message, told)

    def _couple(self, txn: TxnRequest, record: TransactionRecord) -> None:
        """Write down a coupling to which the source has agreed, then ask the source again and answer the client (G)."""

        def kept(known: bool) -> None:
            if known:
                self._go(txn)
            else:
                txn.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self._shared.transaction_store.remember(record).then(kept)

    # AddOffsetsToTxn, TxnOffsetCommit (rule B)

    def _add_offsets(self, txn: TxnRequest) -> None:
        group, at = str(txn.request.group_id), self._places.open_at(txn.name)
        route = self._shared.table.followed.get(group)
        held = route is None and group in self._shared.table.held_groups
        frozen = route is not None and self._frozen(txn, group, route)
        if frozen:
            self._shared.open_at_target.overtake(txn.name, self._client.now())
        if frozen or (not held and self._waits(txn, at, ())):
            self._hold(txn)
            return
        home = TARGET if route is None else route.link
        if held or at not in (None, home):
            if at is None:
                self._places.refused.add(txn.name)
            self._refuse_group(txn, group)
        elif route is not None:
            self._add_offsets_at_source(txn, route.link, group)
        else:
            self._begin_at_target(txn)
            self._pass(txn)

    def _add_offsets_at_source(self, txn: TxnRequest, link: str, group: str) -> None:
        record = self._identities.identity(txn, link, self._go)
        if record is None:
            return
        entry = self._places.enter(link, txn.name, txn.epoch, ())
        entry.ask(self._places)
        message = _OFFSETS(
            transactional_id=txn.name,
            producer_id=record.source_id,
            producer_epoch=record.source_epoch,
            group_id=txn.request.group_id,
        )

        def told(answer: Any, code: int) -> None:
            if answer is not None:
                code = self._talk.elsewhere(link, txn.name, code_of(answer.error_code))
            if entry.answered(self._places, begun=answer is None or not code):
                self._shared.ended(link, txn.name, entry)
            if self._identities.disowned(txn, link, {code}, self._go):
                return
            route = self._shared.table.followed.get(group)
            if code or group in record.groups:
                txn.fail(code)
            elif route is not None and self._frozen(txn, group, route):
                self._shared.open_at_target.overtake(txn.name, self._client.now())
                self._hold(txn)
            else:
                self._shared.open_at_source.enter(link, txn.name, txn.epoch, (), (group,))
                self._couple(txn, replace(record, groups=_sorted(record.groups, (group,))))

        self._talk.ask(link, txn.name, txn.head.client_id, message, told)

    def _commit_offsets(self, txn: TxnRequest) -> None:
        """Commit at the group's cluster.

        The group coordinator is not the transaction coordinator, and knows nothing of the transaction's identities.
        """
        group = str(txn.request.group_id)
        route = self._shared.table.followed.get(group)
        late = route is None and (
            self._shared.open_at_source.where(txn.name, self._places) is not None
            or self._shared.open_at_target.overtakes(txn.name, self._client.now())
        )
        if late or (route is not None and self._frozen(txn, group, route)):
            # The input was read before the group's members joined anew. The client must abort, and do the work again
            # from the group's committed offsets.
            txn.fail(Code.ILLEGAL_GENERATION)
        elif route is not None:
            self._commit_at_source(txn, route.link, group)
        elif group in self._shared.table.held_groups:
            self._refuse_group(txn, group)
        else:
            self._pass(txn)

    def _frozen(self, txn: TxnRequest, group: str, route: GroupRoute) -> bool:
        return route.frozen and not self._shared.open_at_source.may_commit(route.link, txn.name, group)

    def _commit_at_source(self, txn: TxnRequest, link: str, group: str) -> None:
        record = self._identities.records(txn.name).get(link)
        if record is None or record.epoch < txn.epoch:
            self._commit_unlisted(txn)
        elif (record.producer_id, record.epoch) != (txn.producer_id, txn.epoch):
            txn.fail(Code.PRODUCER_FENCED)
        elif not record.in_force:
            txn.fail(Code.ILLEGAL_GENERATION)  # at this code every client aborts
        else:
            request = txn.request
            named = replace(
                request,
                producer_id=type(request.producer_id)(record.source_id),
                producer_epoch=type(request.producer_epoch)(record.source_epoch),
            )
            self._follow.commit(txn.head, named, group, link, txn.reply)

    def _commit_unlisted(self, txn: TxnRequest) -> None:
        """Read what other routers have written; if that changes nothing, have the client abort.

        AddOffsetsToTxn never added the group to this transaction (rule G).
        """
        if txn.caught_up:
            txn.fail(Code.ILLEGAL_GENERATION)
            return

        def read(reached: bool) -> None:
            if reached:
                txn.caught_up = True
                self._go(txn)
            else:
                txn.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self._shared.transaction_store.catch_up().then(read)

    def _refuse_group(self, txn: TxnRequest, group: str) -> None:
        why = "is mirrored" if group in self._shared.table.held_groups else "is not where the transaction is"
        self._shared.backend.say(
            f"{txn.head.client_id or 'a client'}: kmigrate: a transaction of {txn.name} cannot commit offsets of "
            f"group {group}, which {why}: promote group and topics together"
        )
        txn.fail(Code.GROUP_AUTHORIZATION_FAILED)
