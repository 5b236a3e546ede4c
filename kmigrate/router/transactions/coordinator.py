"""Sends a client's requests to transaction coordinators of a source, on the client's connections and with its rights.

The router asks in one version of each API (`protocol.api`), and finds the coordinator first, and again after an answer
that says so. The router never repeats a request: the client gets a retriable code, and every client retries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.protocol.api import ApiKey, Message, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import ClientLink, SharedState

__all__ = ["TxnCoordinatorClient"]

_FIND_COORDINATOR = entity(ApiKey.FIND_COORDINATOR, 3, "request")
_DESCRIBE = entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")
_OF_TRANSACTIONS = 1
_MOST_COORDINATORS = 64
"""Maximum coordinators that a connection remembers, as the client chooses the ids; a forgotten one is found again."""
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
    """True once the client is gone: nothing more is asked, as an older request might arrive after the client's next."""

    def ask(
        self, link: str, name: str, client_id: str | None, message: Message
    ) -> Conversation[tuple[Message | None, int]]:
        """Ask the coordinator of a transactional id at a link's source; return the answer and the client's code.

        Without an answer, return None and the code for the client; an answer with several codes has the code 0.
        """
        node = self._coordinators.get((link, name))
        if node is None:
            search, at = _FIND_COORDINATOR(key=name, key_type=_OF_TRANSACTIONS), self.shared.backend.source_node(link)
            found, code = yield from self._send(link, at, client_id, search)
            if found is None or code:
                return None, _retried(code)
            node = self._coordinators[(link, name)] = int(found.node_id)
            if len(self._coordinators) > _MOST_COORDINATORS:
                del self._coordinators[next(iter(self._coordinators))]
        answer, code = yield from self._send(link, node, client_id, message)
        if answer is None:
            self._coordinators.pop((link, name), None)
        return answer, self.client_code(link, name, code)

    def describe(self, link: str, name: str, client_id: str | None) -> Conversation[tuple[Message | None, int]]:
        """Ask a source about a transactional id's transaction; return its state, and the code as `ask` does."""
        answer, code = yield from self.ask(link, name, client_id, _DESCRIBE(transactional_ids=(name,)))
        if answer is None:
            return None, code
        state: Message = answer.transaction_states[0]
        return state, self.client_code(link, name, code_of(state.error_code))

    def describe_at_target(self, name: str, head: RequestHead) -> Conversation[Message]:
        """Ask the target about a transactional id, on the client's own connection to the id's coordinator."""
        asked = frame_request(_DESCRIBE(transactional_ids=(name,)), head.correlation_id, head.client_id)
        frame = yield from self.client.ask_target([asked], head.correlation_id)
        state: Message = read_answer(_DESCRIBE, frame).transaction_states[0]
        return state

    def client_code(self, link: str, name: str, code: int) -> int:
        """Return the client's code for a coordinator's; forget one that has moved, as the router finds the next."""
        if code in _ELSEWHERE:
            self._coordinators.pop((link, name), None)
        return _retried(code)

    def _send(
        self, link: str, node: int, client_id: str | None, message: Message
    ) -> Conversation[tuple[Message | None, int]]:
        if self.gone:
            return None, Code.COORDINATOR_LOAD_IN_PROGRESS
        if node >= 0:
            outcome = yield from self.client.ask_source(link, node, [frame_request(message, 0, client_id)], 0)
            if outcome.frame is not None:
                self.silent.discard(link)
                answer = read_answer(type(message), outcome.frame)
                return answer, code_of(getattr(answer, "error_code", Code.NONE))
            if outcome.refused:
                return None, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        self.silent.add(link)
        return None, Code.COORDINATOR_LOAD_IN_PROGRESS


def _retried(code: int) -> int:
    return Code.COORDINATOR_LOAD_IN_PROGRESS if code in _ELSEWHERE else code
