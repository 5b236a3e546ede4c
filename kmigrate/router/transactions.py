"""Transactions of one client connection: each meets one cluster, and the router knows which.

The same transactional.id lives on both clusters: at the target the id alone, while its topics are mirrored; at the
source the transactions themselves. A client knows the producer id and epoch of the target (T, te); what goes to the
source carries the source's (S, se). Lettered rules, `docs/decisions/0007` says why:

A  InitProducerId goes to the target, then to the source of every link that still mirrors, and is answered once the
   pair is in the state log. Both clusters raise their epochs, so of two holders the older is known by its te.
B  A transaction is where its first topics are, or its first group: one that follows is at its link's source, any other
   at the target. What is elsewhere is refused: an error that ends the transaction and not the producer.
C  Under a fence a transaction may not begin where any topic of its transactional id is fenced, or any group frozen, and
   may not reach out to a fenced topic that its id had not written before the fence. One that is open may go on and
   end: it counts as in flight until then at all topics that its id writes (`begun`).
D  Who comes to a connection in the middle of a transaction is asked about first, at both clusters.
E  EndTxn of a transaction that is open nowhere is a repeated one whose answer was lost. The cluster where the last
   one was knows what became of it: the source while the topics are mirrored; after the promote the target, and where
   that has never seen one, the source (`ending`). What the source has forgotten because the identity was revoked there
   is in the id's record. What it then refuses is judged anew before a client hears of it (`holders`).
F  At the target a partition whose sequences go on from the source's enters with its first batch (`late`).
G  What a transactional id couples is what the source has let it have: a topic or group that its record does not name is
   asked for first, then counted, so that a fence from now on waits for it, then written down, and only then told to
   the client and written.
H  The first transaction of an id after a group that it commits for has opened commits no positions there
   (ILLEGAL_GENERATION), and is done again: what it carries may have been read before, and another member reads it
   again. Its epoch would not tell: a member of the new protocol (KIP-848) joins the target's group by itself, under the
   name that it has, in the middle of its application's work, and the application asks for both when it commits.
I  A source may have given out an identity that neither the state log nor the target knows. The sources are asked
   before a client is refused (`source_identities`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kmigrate.model.records import TransactionRecord
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.transactions import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    holder_of,
    partition_codes,
    partitions_answer,
    partitions_of,
    partitions_request,
)
from kmigrate.router.core import TARGET, Buffer, Core, Edge
from kmigrate.router.ending import Ending
from kmigrate.router.entrance import Entrance
from kmigrate.router.errand import Errand
from kmigrate.router.follow import FollowDesk
from kmigrate.router.holders import Holders
from kmigrate.router.late import Holder
from kmigrate.router.source_identities import NOT_THE_HOLDER, SourceIdentities
from kmigrate.router.source_talk import SourceTalk
from kmigrate.router.whereabouts import Whereabouts

__all__ = ["TransactionDesk"]

_ADD = entity(24, 3, "request")
_OFFSETS = entity(25, 3, "request")


def _sorted(known: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*known, *more}))


class TransactionDesk:
    """Takes the transaction requests of one connection; answers may come later, in any order."""

    def __init__(self, core: Core, edge: Edge, follow: FollowDesk) -> None:
        self._core = core
        self._edge = edge
        self._follow = follow
        self._talk = SourceTalk(core, edge)
        self._holders = Holders(core, self._talk, SourceIdentities(core, self._talk))
        self._places = Whereabouts(core, self._holders)
        self._entrance = Entrance(core, edge)
        self._ending = Ending(core, self._holders, self._places, self._to_target, self._go)
        self._held: list[Errand] = []
        self._gone = False

    def take(self, head: RequestHead, frame: bytearray, request: Any, reply: Callable[[Buffer], None]) -> None:
        """A client's request with a transactional id; `reply` is called with its answer."""
        self._go(Errand(head, frame, request, reply, *holder_of(head, request)))

    def advance(self) -> None:
        """Look again at what is held."""
        self._core.waiting.pop(self, None)
        if not self._held:
            return
        held, self._held = self._held, []
        for errand in held:
            self._go(errand)

    def closed(self) -> None:
        self._gone = self._talk.gone = True
        self._held.clear()
        self._places.closed()
        self._entrance.closed()
        self._core.waiting.pop(self, None)

    @property
    def owes(self) -> bool:
        """Whether its client was told of a partition at the target what is not so yet (rule F)."""
        return self._entrance.owes

    def look(self, name: str, then: Callable[[], None]) -> None:
        """Find out whether a transactional id has a transaction open at a source (rule D)."""
        self._places.look(name, then)

    def join(self, holder: Holder, topic: str, partition: int, then: Callable[[int], None]) -> None:
        """Have a partition in a transaction at the target before its first batch (rule F)."""
        self._entrance.join(holder, topic, partition, then)

    # one request

    def _go(self, errand: Errand) -> None:
        if self._gone:
            return
        key = errand.head.api_key
        if key == INIT_PRODUCER_ID:
            self._init(errand)
        elif key != END_TXN and self._holders.cut_off(errand):
            errand.fail(Code.ILLEGAL_GENERATION if key == TXN_OFFSET_COMMIT else Code.UNKNOWN_PRODUCER_ID)
        elif key == TXN_OFFSET_COMMIT:
            self._commit_offsets(errand)
        elif not self._core.table.mirroring:
            self._at_target_alone(errand)
        elif not self._places.knows(errand.name):
            self._look_first(errand)
        elif key == ADD_PARTITIONS:
            self._add_partitions(errand)
        elif key == ADD_OFFSETS:
            self._add_offsets(errand)
        else:
            self._ending.take(errand)

    def _at_target_alone(self, errand: Errand) -> None:
        """Nothing is mirrored any more, or yet."""
        if errand.head.api_key == END_TXN:
            self._ending.take(errand)
        elif errand.head.api_key == ADD_PARTITIONS:
            self._add_at_target(errand)
        else:
            self._begin_at_target(errand)
            self._pass(errand)

    def _pass(self, errand: Errand) -> None:
        self._to_target(errand, errand.reply)

    def _to_target(self, errand: Errand, told: Callable[[bytearray], None]) -> None:
        """To the target as it came."""
        if not self._gone:
            self._edge.to_target([errand.frame], errand.head.correlation_id, told)

    def _hold(self, errand: Errand) -> None:
        """Wait for a newer table, a moment; then the client is told to come again, which it does in silence."""
        now = self._edge.now()
        if errand.deadline is None:
            errand.deadline = now + self._core.settings.group_hold_s
            self._edge.wake_at(errand.deadline)
        if now >= errand.deadline:
            errand.fail(Code.CONCURRENT_TRANSACTIONS)
            return
        self._held.append(errand)
        self._core.waiting.setdefault(self)

    # InitProducerId (rule A)

    def _init(self, errand: Errand) -> None:
        links = self._holders.sources(errand.name)

        def answered(frame: bytearray) -> None:
            told = errand.read(frame)
            if code_of(told.error_code):
                errand.reply(frame)
            else:
                errand.producer_id, errand.epoch = int(told.producer_id), int(told.producer_epoch)
                self._init_sources(errand, frame, links)

        self._to_target(errand, answered)

    def _init_sources(self, errand: Errand, frame: bytearray, links: list[str]) -> None:
        if not links:
            self._places.given(errand.name)
            errand.reply(frame)
            return
        link = links.pop(0)
        known = self._holders.records(errand.name).get(link)
        resumed = int(getattr(errand.request, "producer_id", -1))
        same = known is not None and known.producer_id == resumed and known.revoked is None
        holder = (known.source_id, known.source_epoch) if known and same else (-1, -1)

        def identified(code: int) -> None:
            if known is None and (code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED or link in self._talk.silent):
                # It has no rights there, or nobody answers; neither matters for what is not mirrored, and the first
                # write to what is asks again, which ends whatever an earlier holder had begun there.
                code = 0
            if code and self._holders.disowned(errand, link, {code}, again):
                return
            if code:
                errand.fail(code)
            else:
                self._init_sources(errand, frame, links)

        def again(_: Errand) -> None:
            self._init_sources(errand, frame, [link, *links])

        self._holders.identify(errand, link, holder, errand.request.transaction_timeout, identified)

    def _look_first(self, errand: Errand) -> None:
        """Rule D."""

        def looked(code: int) -> None:
            if code:
                errand.fail(code)
            else:
                self._go(errand)

        self._places.learn(errand.name, errand.head, looked)

    # AddPartitionsToTxn (rules B, C)

    def _add_partitions(self, errand: Errand) -> None:
        routes = self._core.table.topics
        homes: dict[str, str] = {}
        for topic in partitions_of(errand.request):
            route = routes.get(topic)
            homes[topic] = TARGET if route is None or route.serve is Serve.LOCAL else route.link
        at = self._places.open_at(errand.name)
        if self._waits(errand, at, homes):
            self._hold(errand)
            return
        if at is None:
            at = next(iter(homes.values())) if len(set(homes.values())) == 1 else TARGET
        strangers = sorted(topic for topic, home in homes.items() if home != at)
        if strangers:
            self._refuse(errand, strangers, at)
        elif at == TARGET:
            self._add_at_target(errand)
        else:
            self._add_at_source(errand, at)

    def _add_at_target(self, errand: Errand) -> None:
        self._begin_at_target(errand)
        self._entrance.add(errand)

    def _begin_at_target(self, errand: Errand) -> None:
        """It counts as open there: on this connection from now on, on others once the target has granted it."""
        entry, reply = self._places.begins_at_target(errand.name), errand.reply
        entry.ask(self._places)

        def answered(answer: Buffer) -> None:
            codes = errand.codes_in(answer)
            if entry.answered(self._places, begun=0 in codes):
                self._places.never_began_at_target(errand.name, entry)
            errand.reply = reply
            if codes and codes <= NOT_THE_HOLDER:
                self._holders.strangers.refuse(errand, lambda: reply(answer))
            else:
                reply(answer)

        errand.reply = answered

    def _waits(self, errand: Errand, at: str | None, topics: Iterable[str]) -> bool:
        """Rule C; what still aligns is waited for, too."""
        named = set(topics)
        if at is None:
            records = self._holders.records(errand.name).values()
            named.update(topic for record in records for topic in record.topics)
            followed = self._core.table.followed
            if any(group in followed and followed[group].frozen for record in records for group in record.groups):
                return True
        routes = [route for topic in named if (route := self._core.table.topics.get(topic)) is not None]
        return any(
            route.serve is Serve.HIDDEN
            or (route.serve is Serve.HOLD and not self._core.begun.covers(route.link, errand.name, route.key))
            for route in routes
        )

    def _refuse(self, errand: Errand, strangers: list[str], at: str) -> None:
        if self._places.open_at(errand.name) is None:
            self._places.refused.add(errand.name)
        there, here = ("on the target", "mirrored") if at != TARGET else ("mirrored", "on the target")
        self._core.outside.say(
            f"{errand.head.client_id or 'a client'}: kmigrate: a transaction of {errand.name} cannot write to "
            f"{', '.join(strangers)}, which is {there}, together with what is {here}: promote its topics together"
        )
        codes = {
            (topic, index): int(Code.TOPIC_AUTHORIZATION_FAILED)
            for topic in strangers
            for index in partitions_of(errand.request)[topic]
        }
        errand.reply(partitions_answer(errand.head, errand.request, codes))

    def _add_at_source(self, errand: Errand, link: str) -> None:
        record = self._holders.identity(errand, link, self._go)
        if record is None:
            return
        wanted = partitions_of(errand.request)
        known = wanted.keys() & set(record.topics)
        entry = self._places.enter(link, errand.name, errand.epoch, known)
        entry.ask(self._places)
        message = partitions_request(_ADD, (errand.name, record.source_id, record.source_epoch), wanted)

        def told(answer: Any, code: int) -> None:
            if answer is None:
                entry.answered(self._places, begun=True)  # nobody knows
                errand.fail(code)
                return
            codes = {
                key: self._talk.elsewhere(link, errand.name, each) for key, each in partition_codes(answer).items()
            }
            if entry.answered(self._places, begun=not all(codes.values())):
                self._core.ended(link, errand.name, entry)
            if self._holders.disowned(errand, link, codes.values(), self._go):
                return
            if known == wanted.keys() or any(codes.values()):
                errand.reply(partitions_answer(errand.head, errand.request, codes))
            elif self._waits(errand, link, wanted):
                self._hold(errand)  # fenced meanwhile, and drained of all that was counted there
            else:
                routes = [route for topic in wanted if (route := self._core.table.topics.get(topic)) is not None]
                self._core.begun.enter(link, errand.name, errand.epoch, {route.key for route in routes})
                self._couple(errand, replace(record, topics=_sorted(record.topics, wanted)))

        self._talk.ask(link, errand.name, errand.head.client_id, message, told)

    def _couple(self, errand: Errand, record: TransactionRecord) -> None:
        """Rule G: the source has agreed; ask it again, and tell the client, once everybody knows."""

        def kept(known: bool) -> None:
            if known:
                self._go(errand)
            else:
                errand.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self._core.memory.remember(record, kept)

    # AddOffsetsToTxn, TxnOffsetCommit (rule B)

    def _add_offsets(self, errand: Errand) -> None:
        group, at = str(errand.request.group_id), self._places.open_at(errand.name)
        route = self._core.table.followed.get(group)
        held = route is None and group in self._core.table.held_groups
        frozen = route is not None and self._frozen(errand, group, route)
        if frozen:
            self._core.at_target.overtake(errand.name, self._edge.now())
        if frozen or (not held and self._waits(errand, at, ())):
            self._hold(errand)
            return
        home = TARGET if route is None else route.link
        if held or at not in (None, home):
            if at is None:
                self._places.refused.add(errand.name)
            self._refuse_group(errand, group)
        elif route is not None:
            self._add_offsets_at_source(errand, route.link, group)
        else:
            self._begin_at_target(errand)
            self._pass(errand)

    def _add_offsets_at_source(self, errand: Errand, link: str, group: str) -> None:
        record = self._holders.identity(errand, link, self._go)
        if record is None:
            return
        entry = self._places.enter(link, errand.name, errand.epoch, ())
        entry.ask(self._places)
        message = _OFFSETS(
            transactional_id=errand.name,
            producer_id=record.source_id,
            producer_epoch=record.source_epoch,
            group_id=errand.request.group_id,
        )

        def told(answer: Any, code: int) -> None:
            if answer is not None:
                code = self._talk.elsewhere(link, errand.name, code_of(answer.error_code))
            if entry.answered(self._places, begun=answer is None or not code):
                self._core.ended(link, errand.name, entry)
            if self._holders.disowned(errand, link, {code}, self._go):
                return
            route = self._core.table.followed.get(group)
            if code or group in record.groups:
                errand.fail(code)
            elif route is not None and self._frozen(errand, group, route):
                self._core.at_target.overtake(errand.name, self._edge.now())
                self._hold(errand)
            else:
                self._core.begun.enter(link, errand.name, errand.epoch, (), (group,))
                self._couple(errand, replace(record, groups=_sorted(record.groups, (group,))))

        self._talk.ask(link, errand.name, errand.head.client_id, message, told)

    def _commit_offsets(self, errand: Errand) -> None:
        """To where the group is: its coordinator is not the transaction's, and knows nothing of its identities."""
        group = str(errand.request.group_id)
        route = self._core.table.followed.get(group)
        late = route is None and (
            self._core.begun.where(errand.name, self._places) is not None
            or self._core.at_target.overtakes(errand.name, self._edge.now())
        )
        if late or (route is not None and self._frozen(errand, group, route)):
            # It was read before the group's members joined anew: to be aborted, and done again from where the group is.
            errand.fail(Code.ILLEGAL_GENERATION)
        elif route is not None:
            self._commit_at_source(errand, route.link, group)
        elif group in self._core.table.held_groups:
            self._refuse_group(errand, group)
        else:
            self._pass(errand)

    def _frozen(self, errand: Errand, group: str, route: GroupRoute) -> bool:
        return route.frozen and not self._core.begun.may_commit(route.link, errand.name, group)

    def _commit_at_source(self, errand: Errand, link: str, group: str) -> None:
        record = self._holders.records(errand.name).get(link)
        if record is None or record.epoch < errand.epoch:
            self._commit_unlisted(errand)
        elif (record.producer_id, record.epoch) != (errand.producer_id, errand.epoch):
            errand.fail(Code.PRODUCER_FENCED)
        elif not record.in_force:
            errand.fail(Code.ILLEGAL_GENERATION)  # at which every client aborts
        else:
            request = errand.request
            named = replace(
                request,
                producer_id=type(request.producer_id)(record.source_id),
                producer_epoch=type(request.producer_epoch)(record.source_epoch),
            )
            self._follow.commit(errand.head, named, group, link, errand.reply)

    def _commit_unlisted(self, errand: Errand) -> None:
        """Read what other routers have written; then have the client abort, which AddOffsetsToTxn never let in (G)."""
        if errand.caught_up:
            errand.fail(Code.ILLEGAL_GENERATION)
            return

        def read(reached: bool) -> None:
            if reached:
                errand.caught_up = True
                self._go(errand)
            else:
                errand.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self._core.memory.catch_up(read)

    def _refuse_group(self, errand: Errand, group: str) -> None:
        why = "is mirrored" if group in self._core.table.held_groups else "is not where the transaction is"
        self._core.outside.say(
            f"{errand.head.client_id or 'a client'}: kmigrate: a transaction of {errand.name} cannot commit offsets of "
            f"group {group}, which {why}: promote group and topics together"
        )
        errand.fail(Code.GROUP_AUTHORIZATION_FAILED)
