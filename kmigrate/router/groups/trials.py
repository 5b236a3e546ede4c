"""Asks the target before a promote whether members would be let in, and remembers who is refused afterwards.

A  A trial join changes nothing at the target (`wire.trials`). The trial goes through the member's own connection, so
   the target judges the member's own name and rights.
B  A trial is made when a member joins, and again when the promote of its group begins. After a refusal, or an answer
   that says nothing, the member's first request after two seconds makes the next trial, so a granted right counts.
C  While a trial has no answer, the router's report says so (`GroupReport.trials`), and the promote waits.
   No trial is made in a rollback, nor for a minute afterwards: the target's group may still have members. To a group
   of the new protocol that has members, a trial join would add a member.
D  After the promote the joins' own answers count. A refusal is told until the client is let in, ten minutes at most.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kmigrate.model.presences import RefusedMember
from kmigrate.protocol.api import ApiKey, Message, decode_request, frame_request, read_answer
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import ClientContext, ClientLink, SharedState
from kmigrate.router.wire.groups import groups_of
from kmigrate.router.wire.trials import JOINING, lets_in, refusal_in, says_subscription, trial_of

__all__ = ["TrialJoins"]

_PAUSE_S = 1.0
"""Least time between two trials of a member that joins again and again, as members of a held group do."""
_AGAIN_S = 2.0
"""Time until the next trial after a refusal, or after an answer that says nothing."""
_MOST_MEMBERS = 16
"""Maximum members that a connection remembers: a member has connections of its own."""
_LONG_AGO = float("-inf")
_Key = tuple[str, str]
"""Group and client id."""


@dataclass(slots=True, eq=False)
class _Trial:
    """The newest joining request of one member."""

    head: RequestHead
    request: Message
    fresh: bool = True
    """No trial has been made of this request."""
    pending: bool = False
    refused: bool = False
    settled: bool = False
    """The last trial has told that the target would let the member in."""
    at: float = _LONG_AGO


class TrialJoins:
    """Makes the trial joins of one client connection."""

    def __init__(self, shared: SharedState, client: ClientLink, context: ClientContext) -> None:
        self._shared = shared
        self._client = client
        self._context = context
        self._known: dict[_Key, _Trial] = {}

    def take(self, head: RequestHead, request: Message, group: str) -> None:
        """Note a joining member; make due trials, at requests alone: amid a login the target takes nothing else."""
        if head.api_key in JOINING and says_subscription(request) and int(getattr(request, "member_epoch", 0)) >= 0:
            self._note(head, request, (group, head.client_id or ""))
        for key, trial in list(self._known.items()):
            if key[0] not in self._shared.table.held_groups and key[0] not in self._shared.table.followed:
                self._forget(key)
            elif self._due(key[0], trial):
                self._context.conversations.start(self._try(key, trial))

    def _note(self, head: RequestHead, request: Message, key: _Key) -> None:
        trial = self._known.setdefault(key, _Trial(head, request))
        trial.fresh = trial.fresh or request != trial.request
        trial.head, trial.request = head, request
        if len(self._known) > _MOST_MEMBERS:
            self._forget(next(iter(self._known)))

    def closed(self) -> None:
        for key in list(self._known):
            self._forget(key)

    def joined(self, head: RequestHead, frame: bytearray, answer: bytearray, groups: Collection[str]) -> None:
        """Note the target's answer to a join of one of these groups, which have opened."""
        request = decode_request(frame, head)
        joins = head.api_key == ApiKey.JOIN_GROUP or int(request.member_epoch) == 0
        if joins and groups_of(request)[0] in groups:
            self.outcome(head, request, code_of(read_answer(head, answer).error_code))

    def outcome(self, head: RequestHead, request: Message, code: int) -> None:
        """Note how the target has answered a join after the promote."""
        error, group = refusal_in(code, trial=False), groups_of(request)[0]
        if error or not code:
            self._shared.trials.after(group, self._client.now(), self._refused(head, request, error))
        if error:
            member = f"{head.client_id or request.member_id} at {self._context.host}"
            self._shared.backend.warn(f"group {group}: the target refuses member {member}: {error}")

    def _due(self, group: str, trial: _Trial) -> bool:
        if trial.pending:
            return False
        now, route = self._client.now(), self._shared.table.followed.get(group)
        if (route is not None and route.at_target) or self._shared.followers.returned(group, now):
            return False
        if route is not None and route.gathering and trial.at < self._shared.followers.gathering(group, now):
            return True
        return now - trial.at >= (_PAUSE_S if trial.fresh else float("inf") if trial.settled else _AGAIN_S)

    def _try(self, key: _Key, trial: _Trial) -> Conversation[None]:
        message = trial_of(trial.request)
        trial.pending, trial.fresh, trial.at = True, False, self._client.now()
        self._shared.trials.asked(key[0])
        frame = frame_request(message, trial.head.correlation_id, trial.head.client_id)
        answer = yield from self._client.ask_target([frame], trial.head.correlation_id)
        if not trial.pending:
            return
        code = code_of(read_answer(type(message), answer).error_code)
        error, was_refused = refusal_in(code, trial=True), trial.refused
        trial.pending, trial.refused, trial.settled = False, bool(error), lets_in(code)
        last = self._shared.trials.answered(key[0], id(self), self._refused(trial.head, trial.request, error))
        if trial.refused != was_refused or (last and key[0] in self._shared.table.followed):
            self._shared.backend.drained()

    def _refused(self, head: RequestHead, request: Message, error: str) -> RefusedMember:
        return RefusedMember(head.client_id or "", self._context.host, str(request.member_id), error)

    def _forget(self, key: _Key) -> None:
        trial = self._known.pop(key)
        if trial.pending:
            trial.pending = False
            self._shared.trials.given_up(key[0])
        self._shared.trials.parted(key[0], id(self))
