"""Sends a client's group requests to group coordinators of a source, on the client's connections and with its rights.

The coordinator is found first, and found again after an answer that says so, or after no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmigrate.protocol.api import ApiKey, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.state import ClientLink, Outcome, SharedState
from kmigrate.router.wire.followed import codes_in, source_request
from kmigrate.router.wire.groups import group_error

__all__ = ["ELSEWHERE", "GroupCoordinatorClient", "GroupRequest", "Told"]

ELSEWHERE = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
_FIND_COORDINATOR = entity(ApiKey.FIND_COORDINATOR, 3, "request")
_TO_MEMBERS = frozenset({Code.NONE, Code.REBALANCE_IN_PROGRESS})
"""Codes that a coordinator gives to members alone; any other client gets another error."""
_WAITING = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose answer waits at the coordinator for other members' joins, or for the leader's assignment."""
Told = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class GroupRequest:
    """A request about a single group, with the callback for its answer (a message in the client's version)."""

    head: RequestHead
    request: Any
    group: str
    link: str
    told: Told
    answer: Any = None
    """The source's answer to a join that was sent before the promote of its group."""
    sent: bool = False
    until: float = 0.0
    """Time until which a commit or an OffsetFetch is tried."""
    named: str = ""
    """Member id that the source has given to a join without an id."""

    @property
    def member_id(self) -> str:
        return self.named or str(getattr(self.request, "member_id", ""))

    def fail(self, code: int) -> None:
        self.told(group_error(self.head, self.request, code))


@dataclass(slots=True)
class GroupCoordinatorClient:
    """Sends the group requests of one client connection to the coordinators of the sources."""

    shared: SharedState
    client: ClientLink
    unreached: Callable[[GroupRequest, Told, int], None]
    """Decides on a request that reached no coordinator, given the answer's callback and the code for the client."""
    heard: Callable[[str, str, int | None], None]
    """Gets each group whose coordinator has accepted a member, with the member and the generation of the request."""
    gone: bool = False
    """True once the client is gone: requests in flight are answered without a receiver."""
    _coordinators: dict[tuple[str, str], int] = field(default_factory=dict)

    def ask(self, word: GroupRequest, told: Told) -> None:
        """Ask the coordinator of the request's group; `told` gets the answer in the client's version."""
        newest = self.shared.backend.source_version(word.link, word.head.api_key)
        if newest < 0:
            self.shared.backend.refresh_source(word.link)
            self._unreached(word, told, Code.COORDINATOR_NOT_AVAILABLE)
            return
        key = (word.link, word.group)
        asked = source_request(word.head, word.request, newest)

        def done(outcome: Outcome) -> None:
            if self.gone:
                told(group_error(word.head, word.request, Code.NOT_COORDINATOR))
            elif outcome.frame is not None:
                answer = read_answer(type(asked.message), outcome.frame)
                codes = codes_in(answer)
                if not codes.isdisjoint(ELSEWHERE):
                    self._coordinators.pop(key, None)
                if not codes.isdisjoint(_TO_MEMBERS):
                    self.heard(word.group, word.member_id, getattr(word.request, "generation_id", None))
                told(asked.told(answer))
            elif outcome.refused:
                self._unreached(word, told, Code.GROUP_AUTHORIZATION_FAILED)
            else:
                self.shared.backend.refresh_source(word.link)
                self._unreached(word, told, Code.NOT_COORDINATOR)

        def to(node: int) -> None:
            frame = frame_request(asked.message, word.head.correlation_id, word.head.client_id)
            waits = word.head.api_key in _WAITING
            self.client.ask_coordinator(word.link, node, [frame], word.head.correlation_id, waits=waits).then(done)

        known = self._coordinators.get(key)
        if known is not None:
            to(known)
        else:
            self._find(word, told, to)

    def knows(self, word: GroupRequest) -> bool:
        """Return whether the coordinator is known.

        If so, requests reach the coordinator, or are lost, in the order in which they are sent.
        """
        return (word.link, word.group) in self._coordinators

    def tell(self, word: GroupRequest, message: Any) -> None:
        """Send a message to the coordinator without waiting for the answer."""
        node = self._coordinators.get((word.link, word.group), -1)
        if node >= 0:
            frame = frame_request(message, 0, word.head.client_id)
            self.client.ask_coordinator(word.link, node, [frame], 0).then(lambda _: None)

    def _find(self, word: GroupRequest, told: Told, then: Callable[[int], None]) -> None:
        node = self.shared.backend.source_node(word.link)
        if node < 0:
            self._unreached(word, told, Code.COORDINATOR_NOT_AVAILABLE)
            return

        def done(outcome: Outcome) -> None:
            if outcome.frame is None:
                self.shared.backend.refresh_source(word.link)
                refused = Code.GROUP_AUTHORIZATION_FAILED if outcome.refused else Code.COORDINATOR_NOT_AVAILABLE
                self._unreached(word, told, refused)
                return
            answer = read_answer(_FIND_COORDINATOR, outcome.frame)
            code = code_of(answer.error_code)
            if code:
                self._unreached(word, told, code)
                return
            followed = self.shared.table.followed
            for gone in [key for key in self._coordinators if key[1] not in followed]:
                del self._coordinators[gone]  # groups come and go during the life of a connection
            self._coordinators[(word.link, word.group)] = int(answer.node_id)
            then(int(answer.node_id))

        frame = frame_request(_FIND_COORDINATOR(key=word.group, key_type=0), 0, word.head.client_id)
        self.client.ask_coordinator(word.link, node, [frame], 0).then(done)

    def _unreached(self, word: GroupRequest, told: Told, code: int) -> None:
        self._coordinators.pop((word.link, word.group), None)
        self.unreached(word, told, code)
