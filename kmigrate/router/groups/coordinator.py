"""Sends a client's group requests to group coordinators of a source, on the client's connections and with its rights.

The coordinator is found first, and found again after an answer that says so, or after no answer. While a group is
rolled back, its requests go to the target, where the client has found the coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.protocol.api import ApiKey, Message, entity, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Conversation, Future
from kmigrate.router.shared.state import ClientLink, Outcome, SharedState
from kmigrate.router.wire.followed import codes_in, source_request
from kmigrate.router.wire.groups import group_error

__all__ = ["ELSEWHERE", "GroupCoordinatorClient", "GroupRequest", "Unreached"]

ELSEWHERE = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
_FIND_COORDINATOR = entity(ApiKey.FIND_COORDINATOR, 3, "request")
_TO_MEMBERS = frozenset({Code.NONE, Code.REBALANCE_IN_PROGRESS})
"""Codes that a coordinator gives to members alone; any other client gets another error."""
_WAITING = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose answer waits at the coordinator for other members' joins, or for the leader's assignment."""
_MOST_MEMBERS = 16
"""Maximum members whose generation a connection remembers: a member has connections of its own."""


@dataclass(slots=True, eq=False)
class GroupRequest:
    """A client's request about a single group that follows."""

    head: RequestHead
    request: Message
    group: str
    link: str
    until: float = 0.0
    """Time until which a commit is tried."""
    named: str = ""
    """Member id that the source has given to a join without an id."""

    @property
    def member_id(self) -> str:
        return self.named or str(getattr(self.request, "member_id", ""))

    @property
    def member(self) -> tuple[str, str]:
        """Group and member id."""
        return self.group, self.member_id

    @property
    def group_at_link(self) -> tuple[str, str]:
        return self.link, self.group

    def error(self, code: int) -> Message:
        """Return the answer that gives the code for everything in the request."""
        return group_error(self.head, self.request, code)


class Unreached(Exception):
    """No coordinator has taken a request; `code` is the error for the client."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class GroupCoordinatorClient:
    """Sends the group requests of one client connection to the coordinators of the sources."""

    shared: SharedState
    client: ClientLink
    gone: bool = False
    """True once the client is gone: the outcome of a request in flight is then NOT_COORDINATOR."""
    generations: dict[tuple[str, str], int] = field(default_factory=dict)
    """Newest generation in which the coordinator has accepted each member of a group."""
    _coordinators: dict[tuple[str, str], int] = field(default_factory=dict)

    def ask(self, request: GroupRequest) -> Conversation[Message]:
        """Ask the coordinator of the request's group; return the answer in the client's version."""
        try:
            return (yield from self.reach(request))
        except Unreached as unreached:
            return request.error(unreached.code)

    def reach(self, request: GroupRequest) -> Conversation[Message]:
        """Ask the coordinator as `ask` does; raise Unreached if no coordinator takes the request."""
        if self.at_target(request):
            return (yield from self._reach_target(request))
        head = request.head
        newest = self.shared.backend.source_version(request.link, head.api_key)
        if newest < 0:
            self.shared.backend.refresh_source(request.link)
            raise self._unreached(request, Code.COORDINATOR_NOT_AVAILABLE)
        asked = source_request(head, request.request, newest)
        node = self._coordinators.get(request.group_at_link)
        if node is None:
            node = yield from self._find(request)
        frame, waits = frame_request(asked.message, head.correlation_id, head.client_id), head.api_key in _WAITING
        outcome = yield from self.client.ask_coordinator(request.link, node, [frame], head.correlation_id, waits=waits)
        if self.gone:
            return request.error(Code.NOT_COORDINATOR)
        if outcome.refused:
            raise self._refused(request)
        if outcome.frame is None:
            self.shared.backend.refresh_source(request.link)
            raise self._unreached(request, Code.NOT_COORDINATOR)
        answer = read_answer(type(asked.message), outcome.frame)
        codes = codes_in(answer)
        if not codes.isdisjoint(ELSEWHERE):
            self._coordinators.pop(request.group_at_link, None)
        self._note_accepted(request, codes)
        return asked.in_client_version(answer)

    def _reach_target(self, request: GroupRequest) -> Conversation[Message]:
        """Ask the target; the outcome arrives also after the client is gone, so that no commit stays in flight."""
        head, outcome = request.head, Future[Outcome]()
        frame = frame_request(request.request, head.correlation_id, head.client_id)
        self.client.write_to_target([frame], head.correlation_id, outcome.set)
        answered = yield from outcome
        if answered.frame is None:
            raise Unreached(Code.NOT_COORDINATOR)
        answer = read_answer(type(request.request), answered.frame)
        self._note_accepted(request, codes_in(answer))
        return answer

    def _note_accepted(self, request: GroupRequest, codes: set[int]) -> None:
        if not codes.isdisjoint(_TO_MEMBERS):
            self.accepted(*request.member, getattr(request.request, "generation_id", None))

    def at_target(self, request: GroupRequest) -> bool:
        """Return whether the request's group is being rolled back, and the target is its coordinator."""
        route = self.shared.table.followed.get(request.group)
        return route is not None and route.at_target

    def knows(self, request: GroupRequest) -> bool:
        """Return whether the coordinator is known; if so, requests reach it in the order of sending, or are lost."""
        return self.at_target(request) or request.group_at_link in self._coordinators

    def send(self, request: GroupRequest, message: Message) -> None:
        """Send a message to the coordinator of the request's group without waiting for the answer."""
        if self.at_target(request):
            self.send_to_target(request, message)
            return
        node = self._coordinators.get(request.group_at_link, -1)
        if node >= 0:
            self.client.ask_coordinator(request.link, node, [frame_request(message, 0, request.head.client_id)], 0)

    def send_to_target(self, request: GroupRequest, message: Message) -> None:
        """Send a message to the target's coordinator of the group without waiting for the answer."""
        self.client.ask_target([frame_request(message, 0, request.head.client_id)], 0)

    def accepted(self, group: str, member_id: str, generation: int | None) -> None:
        """Note that the group's coordinator has accepted a member, in a generation if the request names one."""
        self.shared.followers.heard(group, member_id, self.client.now())
        if member_id and generation is not None:
            self.generations.pop((group, member_id), None)  # so that the newest stay last
            self.generations[(group, member_id)] = int(generation)
            if len(self.generations) > _MOST_MEMBERS:
                del self.generations[next(iter(self.generations))]

    def _find(self, request: GroupRequest) -> Conversation[int]:
        """Return the coordinator's node id."""
        node = self.shared.backend.source_node(request.link)
        if node < 0:
            raise self._unreached(request, Code.COORDINATOR_NOT_AVAILABLE)
        frame = frame_request(_FIND_COORDINATOR(key=request.group, key_type=0), 0, request.head.client_id)
        outcome = yield from self.client.ask_coordinator(request.link, node, [frame], 0)
        if outcome.frame is None:
            if outcome.refused:
                raise self._refused(request)
            self.shared.backend.refresh_source(request.link)
            raise self._unreached(request, Code.COORDINATOR_NOT_AVAILABLE)
        answer = read_answer(_FIND_COORDINATOR, outcome.frame)
        if code := code_of(answer.error_code):
            raise self._unreached(request, code)
        for key in [key for key in self._coordinators if key[1] not in self.shared.table.followed]:
            del self._coordinators[key]  # groups come and go during the life of a connection
        self._coordinators[request.group_at_link] = int(answer.node_id)
        return int(answer.node_id)

    def _refused(self, request: GroupRequest) -> Unreached:
        """Return the error of a request whose client the router cannot log in to the source."""
        self.shared.missing_credentials.of_group(request.link, request.head.client_id or "", request.group)
        return self._unreached(request, Code.GROUP_AUTHORIZATION_FAILED)

    def _unreached(self, request: GroupRequest, code: int) -> Unreached:
        self._coordinators.pop(request.group_at_link, None)
        return Unreached(code)
