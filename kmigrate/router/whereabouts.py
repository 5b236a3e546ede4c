"""Where a transactional id has a transaction open: at a link's source, at the target, or nowhere.

What a connection has begun itself it knows. Who comes in the middle of a transaction, because a router died or a
connection was lost, is asked about first: at the source of each link that knows the id, then at the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.described import OPEN_STATES
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.transactions import frame_request, read_answer
from kmigrate.router.begun import Entry
from kmigrate.router.core import Core, Edge
from kmigrate.router.holders import Holders

__all__ = ["TARGET", "Whereabouts"]

TARGET = ""
"""Where a transaction is that is at no link's source."""
_DESCRIBE = entity(65, 0, "request")


@dataclass(slots=True)
class Whereabouts:
    """One client connection's knowledge; open transactions at sources are the whole router's (`begun`)."""

    core: Core
    edge: Edge
    holders: Holders
    at_target: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    """Transactional ids that were asked about, or have begun here."""
    _looking: set[str] = field(default_factory=set)

    def open_at(self, name: str) -> str | None:
        """The link, or TARGET; None for nowhere."""
        link = self.core.begun.where(name)
        return link if link is not None else TARGET if name in self.at_target else None

    def learn(self, name: str, head: RequestHead, then: Callable[[int], None]) -> None:
        """Ask everywhere, for a request on this connection; `then` is told 0, or what to tell the client."""

        def looked(code: int) -> None:
            if not code:
                self.known.add(name)
            then(code)

        self._ask_sources(name, head, self._links(name), looked)

    def look(self, name: str, then: Callable[[], None]) -> None:
        """Ask the sources only, for a batch: this connection need not lead to the target's coordinator."""
        if name in self._looking:
            return
        self._looking.add(name)

        def looked(_: int) -> None:
            self._looking.discard(name)
            then()

        self._ask_sources(name, None, self._links(name), looked)

    def _links(self, name: str) -> list[str]:
        """Where a transaction may be open at a source: not where all is promoted."""
        return [link for link in self.holders.records(name) if link in self.core.table.mirroring]

    def _ask_sources(
        self, name: str, head: RequestHead | None, links: list[str], then: Callable[[int], None]
    ) -> None:
        if not links:
            if head is None or not self.core.outside.tells_transactions(TARGET):
                then(0)
            else:
                self._ask_target(name, head, then)
            return
        link = links.pop(0)
        if self.core.begun.is_open(link, name) or not self.core.outside.tells_transactions(link):
            self._ask_sources(name, head, links, then)
            return

        def told(answer: Any, code: int) -> None:
            if answer is None:
                then(code)
                return
            state = answer.transaction_states[0]
            code = self.holders.talk.elsewhere(link, name, code_of(state.error_code))
            if code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                then(code)
                return
            if not code and state.transaction_state in OPEN_STATES:
                holder = self.holders.records(name).get(link)
                epoch = holder.epoch if holder is not None else -1
                self.enter(link, name, epoch, (topic.topic for topic in state.topics)).known = True
            self._ask_sources(name, head, links, then)

        client_id = head.client_id if head is not None else None
        self.holders.talk.ask(link, name, client_id, _DESCRIBE(transactional_ids=(name,)), told)

    def _ask_target(self, name: str, head: RequestHead, then: Callable[[int], None]) -> None:
        def told(frame: bytearray) -> None:
            state = read_answer(_DESCRIBE, frame).transaction_states[0]
            if not code_of(state.error_code) and state.transaction_state in OPEN_STATES:
                self.at_target.add(name)
            then(0)

        asked = frame_request(_DESCRIBE(transactional_ids=(name,)), head.correlation_id, head.client_id)
        self.edge.to_target([asked], head.correlation_id, told)

    def enter(self, link: str, name: str, epoch: int, topics: Iterable[str]) -> Entry:
        """Count the id's transaction as open: at these topics, and at the others that it may still reach out to.

        Its record says which: they are promoted together, so were one of them fenced without it, fence and transaction
        would wait for each other. One that is fenced already may have been said to be drained, and is not reached; and
        of a topic that the record does not name nobody else knows: nothing of the transaction is written there yet.
        """
        routes = self.core.table.topics
        record = self.holders.records(name).get(link)
        coupled = {topic for topic in (record.topics if record is not None else ()) if topic in routes}
        begun = set(topics)
        written = {topic for topic in coupled if topic in begun or routes[topic].serve is Serve.FORWARD}
        keys = {routes[topic].key for topic in written if routes[topic].link == link}
        return self.core.begun.enter(link, name, epoch, keys)
