"""A client's own words with the coordinators of a source: on its own connections, with its own rights.

The router asks in one version of each API (`protocol.api`), finds the coordinator first, and finds it again after an
answer that says so. It never repeats a request: the client is told to come again, and every client does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.apis.transactions import frame_request, read_answer
from kmigrate.router.core import Core, Edge, Outcome

__all__ = ["SourceTalk"]

Told = Callable[[Any, int], None]
"""The answer and 0; or None and what the client is to be told."""

_FIND_COORDINATOR = entity(10, 3, "request")
_OF_TRANSACTIONS = 1
_MOST_COORDINATORS = 64
"""That a connection remembers: which ids are named is for the client to say, and who is forgotten is found again."""
_ELSEWHERE = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})


@dataclass(slots=True)
class SourceTalk:
    """One client connection's."""

    core: Core
    edge: Edge
    _coordinators: dict[tuple[str, str], int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Links whose source did not answer when it was asked last."""
    gone: bool = False
    """The client is: nothing more is asked, for it asks again elsewhere and the older word might be heard last."""

    def ask(self, link: str, name: str, client_id: str | None, message: Any, told: Told) -> None:
        """Ask the coordinator of a transactional id at a link's source."""

        def send(node: int) -> None:
            self._send(link, node, client_id, message, lambda answer, code: told(answer, self._heard(link, name, code)))

        known = self._coordinators.get((link, name))
        if known is not None:
            send(known)
            return
        asked = _FIND_COORDINATOR(key=name, key_type=_OF_TRANSACTIONS)

        def found(answer: Any, code: int) -> None:
            code = code_of(answer.error_code) if answer is not None else code
            if code:
                told(None, _retried(code))
                return
            self._coordinators[(link, name)] = int(answer.node_id)
            if len(self._coordinators) > _MOST_COORDINATORS:
                del self._coordinators[next(iter(self._coordinators))]
            send(int(answer.node_id))

        self._send(link, self.core.outside.source_node(link), client_id, asked, found)

    def elsewhere(self, link: str, name: str, code: int) -> int:
        """What a client is told of a coordinator's code: where the coordinator is, is the router's affair."""
        if code in _ELSEWHERE:
            self._coordinators.pop((link, name), None)
        return _retried(code)

    def _heard(self, link: str, name: str, code: int) -> int:
        if code:
            self._coordinators.pop((link, name), None)
        return code

    def _send(self, link: str, node: int, client_id: str | None, message: Any, told: Told) -> None:
        if self.gone:
            told(None, Code.COORDINATOR_LOAD_IN_PROGRESS)
            return
        if node < 0:
            self.silent.add(link)
            told(None, Code.COORDINATOR_LOAD_IN_PROGRESS)
            return
        kind = type(message)

        def done(outcome: Outcome) -> None:
            if outcome.frame is not None:
                self.silent.discard(link)
                told(read_answer(kind, outcome.frame), 0)
            elif outcome.refused:
                told(None, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            else:
                self.silent.add(link)
                told(None, Code.COORDINATOR_LOAD_IN_PROGRESS)

        self.edge.to_source(link, node, [frame_request(message, 0, client_id)], 0, done)


def _retried(code: int) -> int:
    return Code.COORDINATOR_LOAD_IN_PROGRESS if code in _ELSEWHERE else code
