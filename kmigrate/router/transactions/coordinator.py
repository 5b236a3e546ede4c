"""Sends a client's requests to transaction coordinators of a source, on the client's connections and with its rights.

The router asks in one version of each API (`protocol.api`). The router finds the coordinator first, and finds the
coordinator again after an answer that says so. The router never repeats a request: the client is told to retry, and
every client does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmigrate.protocol.api import ApiKey, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.shared.state import ClientLink, Outcome, SharedState

__all__ = ["TxnCoordinatorClient"]

Told = Callable[[Any, int], None]
"""Callback with the answer and 0, or with None and the code for the client."""

_FIND_COORDINATOR = entity(ApiKey.FIND_COORDINATOR, 3, "request")
_OF_TRANSACTIONS = 1
_MOST_COORDINATORS = 64
"""Maximum coordinators that a connection remembers.

The client chooses the ids that it names, and a forgotten coordinator is found again.
"""
_ELSEWHERE = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})


@dataclass(slots=True)
class TxnCoordinatorClient:
    """Sends the transaction requests of one client connection to the coordinators of the sources."""

    shared: SharedState
    client: ClientLink
    _coordinators: dict[tuple[str, str], int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Links whose source did not answer the last request."""
    gone: bool = False
    """True once the client is gone: nothing more is asked.

    The client asks again elsewhere, and the older request might arrive last.
    """

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

        self._send(link, self.shared.backend.source_node(link), client_id, asked, found)

    def elsewhere(self, link: str, name: str, code: int) -> int:
        """Return the client's code for a coordinator's code, and forget a coordinator that has moved.

        The router finds the coordinator, not the client.
        """
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

        self.client.to_source(link, node, [frame_request(message, 0, client_id)], 0, done)


def _retried(code: int) -> int:
    return Code.COORDINATOR_LOAD_IN_PROGRESS if code in _ELSEWHERE else code
