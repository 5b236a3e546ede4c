"""Decides how long a request of a held group waits at the router before the client is told to come again.

A  A request waits for a second, a commit for four (`settings.group_hold_s`): most clients wait without a word.
B  A JoinGroup waits as long as a rebalance may last at a broker, `settings.join_hold_s` at most. Sarama and kafkajs
   report an error to the application after some answers, so few answers are better than many.
C  A JoinGroup waits for half of the member's rebalance timeout at most. The target's own rebalance follows once the
   group opens, and has the other half.
D  A JoinGroup waits no longer than other requests while a further request waits behind it, while the router stops, or
   when the client's login is about to end. A client that leaves, or shares the connection, is not kept waiting.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from kmigrate.protocol.api import ApiKey, Message
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.state import ClientContext, ClientLink, SharedState

__all__ = ["GroupWait"]

_COMMIT_ROUNDS = 4
"""Factor by which a commit is held longer than other requests of held groups.

librdkafka repeats a commit twice at 14, and reports the third 14 to its application. A group whose controller has died
stays frozen for some four seconds.
"""
_NEVER = float("-inf")


class GroupWait:
    """The wait of a client connection's first request while the request's group is held."""

    def __init__(self, shared: SharedState, client: ClientLink, context: ClientContext) -> None:
        self._shared = shared
        self._client = client
        self._context = context
        self._since: float | None = None
        self._wakes_at = _NEVER
        """Time of the newest call of the client's timer, so that no look starts a second timer."""
        self.joining = False
        """True while a JoinGroup waits; a further request of the client then shortens the wait (D)."""

    def goes_on(self, head: RequestHead, request: Message, groups: Collection[str], *, behind: bool) -> bool:
        """Return whether a request of held groups goes on waiting; `behind`: a further request waits behind it."""
        now, step = self._client.now(), self._shared.settings.group_hold_s
        self._shared.waiting_groups.asked(groups, now)
        if self._since is None:
            self._since = now
        self.joining = head.api_key == ApiKey.JOIN_GROUP
        until = self._since + self._longest(head, request, behind=behind)
        if now >= until:
            self.ends()
            return False
        if now >= self._wakes_at:
            self._wakes_at = min(until, now + step) if self.joining else until
            self._client.wake_at(self._wakes_at)
        return True

    def ends(self) -> None:
        """Note that the request is answered, or goes on."""
        self._since, self._wakes_at, self.joining = None, _NEVER, False

    def _longest(self, head: RequestHead, request: Message, *, behind: bool) -> float:
        """Return the longest wait of a request, in seconds (A to D)."""
        seconds = self._shared.settings.group_hold_s
        if head.api_key == ApiKey.OFFSET_COMMIT:
            return _COMMIT_ROUNDS * seconds
        if not self.joining or behind or self._shared.closing or not self._context.login_lasts:
            return seconds
        given: timedelta = getattr(request, "rebalance_timeout", request.session_timeout)
        return max(seconds, min(self._shared.settings.join_hold_s, given.total_seconds() / 2))
