"""Finds where a transactional id has a transaction open: at a link's source, at the target, or nowhere.

The router knows the transactions that began on its connections. After a router's death or a lost connection a request
may come in the middle of a transaction. Then the router asks the source of each link that knows the id, and then the
target.

The end of a transaction may stay unknown here, because its client is gone, or ends it at another router. As long as it
counts as open, a fence at those topics is not complete. So under a fence the router asks the source's coordinators, and
believes only one that calls the transaction ended. If they cannot be asked, it counts on until its client sends a
request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code, code_of, row
from kmigrate.protocol.described import OPEN_STATES
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.open_transactions import OpenTransaction
from kmigrate.router.shared.state import TARGET, SharedState
from kmigrate.router.transactions.identities import ProducerIdentities

__all__ = ["TransactionLocator", "close_stale_transactions"]

_MOST_KNOWN = 16
"""Maximum ids without an open transaction that a connection remembers: a producer has one id and its own connections.

A client may name many ids, of up to 32 KB each. The clusters are asked again about a forgotten id.
"""


@dataclass(slots=True, eq=False)
class TransactionLocator:
    """Knowledge of one connection; the router knows which transactions are open (`shared.open_transactions`)."""

    shared: SharedState
    identities: ProducerIdentities
    refused: set[str] = field(default_factory=set)
    """Transactional ids whose transaction has seen nothing but refusals."""
    _heard: dict[str, bool] = field(default_factory=dict)
    """Transactional ids, with True if the clusters were asked about the id or gave the id here; the newest last."""
    _looking: set[str] = field(default_factory=set)
    """Transactional ids about which the sources are asked for a batch."""

    def knows(self, name: str) -> bool:
        """Return whether the clusters were asked about the id, or gave the id on this connection."""
        return self._heard.get(name, False)

    def given(self, name: str) -> None:
        """Note that the clusters gave the id to a new producer, which ended an open transaction."""
        self._hear(name, known=True)
        self.over(name)
        self.refused.discard(name)

    def over(self, name: str) -> None:
        """Note that the id's transaction has ended anywhere; the next reads its input after the group's opening."""
        self._ended_at_target(name)
        self.shared.open_at_target.reads_anew(name)

    def begins_at_target(self, name: str) -> OpenTransaction:
        """Note that the target's coordinator gets the first request of a transaction, or reports it as open."""
        self._hear(name, known=self.knows(name))
        return self.shared.open_at_target.open.setdefault(name, OpenTransaction())

    def never_began_at_target(self, name: str, entry: OpenTransaction) -> None:
        """Forget a transaction whose every request was refused."""
        if self.shared.open_at_target.open.get(name) is entry:
            self._ended_at_target(name)

    def _ended_at_target(self, name: str) -> None:
        self.shared.open_at_target.open.pop(name, None)
        self.shared.deferred.over(name)

    def closed(self) -> None:
        for name in list(self._heard):
            self._forget(name)

    def _hear(self, name: str, *, known: bool) -> None:
        if self._heard.pop(name, None) is None:
            self.shared.open_at_target.hear(name)
        self._heard[name] = known
        idle = [each for each in self._heard if each != name and self.open_at(each) is None]
        for each in idle[: max(0, len(idle) - _MOST_KNOWN)]:
            self._forget(each)

    def _forget(self, name: str) -> None:
        del self._heard[name]
        self.refused.discard(name)
        self.shared.open_at_target.forget(name, self)

    def open_at(self, name: str) -> str | None:
        """Return the link, or TARGET, where a transaction is open; None for nowhere."""
        link = self.shared.open_at_source.where(name, self)
        if link is not None:
            return link
        entry = self.shared.open_at_target.open.get(name)
        return TARGET if entry is not None and entry.is_open(self) else None

    def learn(self, name: str, head: RequestHead) -> Conversation[int]:
        """Ask all clusters, for a request on this connection; return 0, or the code for the client."""
        code = yield from self.shared.conversations.start(self._ask_sources(name, head.client_id))
        if not code and self.shared.backend.tells_transactions(TARGET):
            code = yield from self._ask_target(name, head)
        if not code:
            self._hear(name, known=True)
        return code

    def look(self, name: str) -> Conversation[None]:
        """Ask only the sources, once at a time: a batch's connection may not lead to the target's coordinator."""
        if name not in self._looking:
            self._looking.add(name)
            yield from self._ask_sources(name, None)
            self._looking.discard(name)

    def _ask_sources(self, name: str, client_id: str | None) -> Conversation[int]:
        """Ask a link of each source where a transaction may be open; a source with all topics promoted has none.

        A transaction that a source reports counts as open also when the client is gone.
        """
        for link in [link for link in self.identities.sources(name) if self.identities.at_source_of(link, name)]:
            same_source = self.shared.table.of_one_source(link)
            is_open = any(self.shared.open_at_source.is_open(each, name, self) for each in same_source)
            if is_open or not self.shared.backend.tells_transactions(link):
                continue
            state, code = yield from self.identities.coordinators.describe(link, name, client_id)
            if state is None or code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                return code
            if not code and state.transaction_state in OPEN_STATES:
                topics = [str(topic.topic) for topic in state.topics]
                home = self._home(link, name, topics)
                producer = self.identities.records(name).get(home)
                self.enter(home, name, -1 if producer is None else producer.epoch, topics).known = True
        return Code.NONE

    def _home(self, link: str, name: str, topics: Collection[str]) -> str:
        """Return the link of a source to which an open transaction belongs, by its topics or the topics of its id."""
        routes, records = self.shared.table.topics, self.identities.records(name)
        for each in self.shared.table.of_one_source(link):
            known = topics or (records[each].topics if each in records else ())
            if any(topic in routes and routes[topic].link == each for topic in known):
                return each
        return link

    def _ask_target(self, name: str, head: RequestHead) -> Conversation[int]:
        open_ = self.shared.open_at_target.open
        entry = open_.get(name)
        asked = entry.asked if entry is not None else 0
        state = yield from self.identities.coordinators.describe_at_target(name, head)
        code = code_of(state.error_code)
        # The answer is the newest if no request is in flight, and none was sent since the question.
        is_newest = entry is not None and entry is open_.get(name) and not entry.asking and entry.asked == asked
        if not code and state.transaction_state in OPEN_STATES:
            self.begins_at_target(name).known = True
        elif not code and is_newest and name not in self.shared.deferred.promised:
            # the transaction has ended over another router; no coordinator knows of deferred partitions
            del open_[name]
        # A coordinator that moves or loads has said nothing yet. Any other code comes again as the answer to the
        # request.
        return code if row(code).retriable else Code.NONE

    def enter(self, link: str, name: str, epoch: int, topics: Iterable[str]) -> OpenTransaction:
        """Count the id's transaction as open: at these topics, and at all that the id's record lets it still reach.

        The topics and groups of a record are promoted together: if one were fenced without the transaction, fence and
        transaction would wait for each other. A fenced topic or a frozen group may have been reported as drained, and
        is not reached; to a topic outside the record, nothing is written yet.
        """
        routes, followed = self.shared.table.topics, self.shared.table.followed
        record, reached = self.identities.records(name).get(link), set(topics)
        keys = {
            routes[topic].key
            for topic in (record.topics if record is not None else ())
            if topic in routes and routes[topic].link == link
            if topic in reached or routes[topic].serve is Serve.FORWARD
        }
        groups = {
            group
            for group in (record.groups if record is not None else ())
            if group in followed and not followed[group].frozen
        }
        return self.shared.open_at_source.enter(link, name, epoch, keys, groups)


async def close_stale_transactions(
    shared: SharedState, open_at_source: Callable[[str, Collection[str]], Awaitable[Collection[str]]]
) -> None:
    """Ask the sources once about all open transactions at fenced topics, and note which of them have ended.

    `open_at_source` returns the ids that a link's source calls open, or all ids if the source cannot tell.
    """
    fenced = {route.key for route in shared.table.routes.fenced.values() if route.serve is Serve.HOLD}
    entries = shared.open_at_source.entries
    seen = {
        key: (entry, entry.asked)
        for key, entry in entries.items()
        if not entry.asking and not entry.keys.isdisjoint(fenced)
    }
    for link in sorted({link for link, _ in seen}):
        names = {name for each, name in seen if each == link}
        for name in names.difference(await open_at_source(link, names)):
            entry, asked = seen[link, name]
            # A request sent meanwhile may have begun a transaction after the coordinator's answer.
            if entries.get((link, name)) is entry and entry.asked == asked:
                shared.ended(link, name)
