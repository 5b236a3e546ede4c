"""A client's words with the coordinators of groups at a source: on its own connections, with its own name and rights.

The coordinator is found first, and found again after an answer that says so, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.followed import codes_in, source_request
from kmigrate.router.apis.groups import JOIN_GROUP, SYNC_GROUP, group_error
from kmigrate.router.apis.transactions import frame_request, read_answer
from kmigrate.router.core import Core, Edge, Outcome

__all__ = ["ELSEWHERE", "GroupTalk", "Told", "Word"]

ELSEWHERE = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
_FIND_COORDINATOR = entity(10, 3, "request")
_TO_MEMBERS = frozenset({Code.NONE, Code.REBALANCE_IN_PROGRESS})
"""What a coordinator says to members alone: others are told that they are none, or may do nothing there."""
_WAITING = frozenset({JOIN_GROUP, SYNC_GROUP})
"""APIs whose answer waits at the coordinator for other members' joins, or for the leader's assignment."""
Told = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class Word:
    """One request about one group, and who is told its answer (a message in the client's version)."""

    head: RequestHead
    request: Any
    group: str
    link: str
    told: Told
    answer: Any = None
    """Of a join that was sent before its group was promoted: what the source has answered since."""
    sent: bool = False
    until: float = 0.0
    """Of a commit, and of a question for positions: when it is tried no more."""
    named: str = ""
    """Of a join whose member had no id yet: the one that the source has given it."""

    @property
    def member_id(self) -> str:
        return self.named or str(getattr(self.request, "member_id", ""))

    def fail(self, code: int) -> None:
        self.told(group_error(self.head, self.request, code))


@dataclass(slots=True)
class GroupTalk:
    """One client connection's."""

    core: Core
    edge: Edge
    unreached: Callable[[Word, Told, int], None]
    """Decides on a word that no coordinator was there for, given who is told its answer, and what a client is told."""
    heard: Callable[[str, str, int | None], None]
    """Told of each group whose coordinator has taken somebody for its member, and of the generation that it named."""
    gone: bool = False
    """The client is: what is still under way is answered as to nobody."""
    _coordinators: dict[tuple[str, str], int] = field(default_factory=dict)

    def ask(self, word: Word, told: Told) -> None:
        """Ask the coordinator of the word's group; `told` is given the answer in the client's version."""
        newest = self.core.outside.source_version(word.link, word.head.api_key)
        if newest < 0:
            self.core.outside.refresh_source(word.link)
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
                self.core.outside.refresh_source(word.link)
                self._unreached(word, told, Code.NOT_COORDINATOR)

        def to(node: int) -> None:
            frame = frame_request(asked.message, word.head.correlation_id, word.head.client_id)
            waits = word.head.api_key in _WAITING
            self.edge.to_coordinator(word.link, node, [frame], word.head.correlation_id, done, waits=waits)

        known = self._coordinators.get(key)
        if known is not None:
            to(known)
        else:
            self._find(word, told, to)

    def knows(self, word: Word) -> bool:
        """Whether the coordinator is known, so that words reach it, or are lost, in the order they are asked in."""
        return (word.link, word.group) in self._coordinators

    def tell(self, word: Word, message: Any) -> None:
        """A word to the coordinator that nobody waits for the answer of."""
        node = self._coordinators.get((word.link, word.group), -1)
        if node >= 0:
            frame = frame_request(message, 0, word.head.client_id)
            self.edge.to_coordinator(word.link, node, [frame], 0, lambda _: None)

    def _find(self, word: Word, told: Told, then: Callable[[int], None]) -> None:
        node = self.core.outside.source_node(word.link)
        if node < 0:
            self._unreached(word, told, Code.COORDINATOR_NOT_AVAILABLE)
            return

        def done(outcome: Outcome) -> None:
            if outcome.frame is None:
                self.core.outside.refresh_source(word.link)
                refused = Code.GROUP_AUTHORIZATION_FAILED if outcome.refused else Code.COORDINATOR_NOT_AVAILABLE
                self._unreached(word, told, refused)
                return
            answer = read_answer(_FIND_COORDINATOR, outcome.frame)
            code = code_of(answer.error_code)
            if code:
                self._unreached(word, told, code)
                return
            followed = self.core.table.followed
            for gone in [key for key in self._coordinators if key[1] not in followed]:
                del self._coordinators[gone]  # groups come and go for as long as a connection lasts
            self._coordinators[(word.link, word.group)] = int(answer.node_id)
            then(int(answer.node_id))

        frame = frame_request(_FIND_COORDINATOR(key=word.group, key_type=0), 0, word.head.client_id)
        self.edge.to_coordinator(word.link, node, [frame], 0, done)

    def _unreached(self, word: Word, told: Told, code: int) -> None:
        self._coordinators.pop((word.link, word.group), None)
        self.unreached(word, told, code)
