"""The session of a connection to a broker: answers in the order of the requests, and logins in between.

    open: TCP → TLS → login, if any → ready ── 85 % of the session's lifetime ──→ login again (KIP-368) → ready …

Requests wait for a login, because a broker then accepts no other request. None is lost; a failed login ends the
connection. Subclasses: kmigrate's own connections (`broker`), and connections that a router opens for clients.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kmigrate.errors import ProtocolViolation
from kmigrate.model.security import Bearer, Login
from kmigrate.net.clock import monotonic
from kmigrate.net.login import log_in
from kmigrate.net.stream import Buffer, FrameStream
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.api import Message, frame_request, read_answer
from kmigrate.protocol.frames import TakePiece, correlation_id

__all__ = ["BrokerRequest", "BrokerSession"]

LOGIN_S = 10.0
WRONG_ANSWER = "wrong-answer"
"""Reference of the error for an answer that no request is due to get."""
_BETWEEN_LOGINS_S = 1.2
"""Shortest time between two logins: Kafka takes no renewal within a second of the last login (`KafkaChannel`)."""
_RENEW_AT = 0.85
"""Share of a session's lifetime after which the login is renewed (Java clients choose 0.85 to 0.95)."""


_Done = TypeVar("_Done")


@dataclass(slots=True)
class BrokerRequest(Generic[_Done]):
    """A request to a broker, in flight or waiting."""

    parts: Sequence[Buffer]
    correlation: int
    done: _Done | None
    """The receiver of the answer; None if no answer is due."""
    begins: Callable[[], TakePiece | None] | None = None
    """Called at the start of a large answer; returns the taker of the answer's pieces."""


class BrokerSession(ABC, Generic[_Done]):
    """The requests and logins of one connection; the subclass opens the connection, and handles answers and the end."""

    def __init__(self, client_id: str, stream: FrameStream, tasks: TaskOwner, *, ready: bool) -> None:
        self._client_id = client_id
        self._stream = stream
        self._tasks = tasks
        self._ready = ready
        """False before the connection is open, and while a login is under way."""
        self._waiting: deque[BrokerRequest[_Done]] = deque()
        self._pending: deque[BrokerRequest[_Done]] = deque()
        self._silent = False
        """True if a request without an answer was sent."""
        self._login_ids = itertools.count(-2, -1)
        self._logged_in = 0.0
        self._renewal: asyncio.TimerHandle | None = None

    @abstractmethod
    async def _log_in(self) -> None:
        """Log in by `_authenticate`, then send the waiting requests, or end the connection."""

    @abstractmethod
    def _receiver(self, answered: asyncio.Future[bytearray]) -> _Done:
        """Return the receiver of an answer that goes to the future."""

    async def _authenticate(self, sasl: Login | Bearer, called: str) -> None:
        """Log in, and arrange the next login; raise AuthenticationFailed, Unreachable or TimeoutError."""
        self._ready = False
        async with asyncio.timeout(LOGIN_S):
            lifetime = await log_in(self._ask, sasl, called)
        self._logged_in = monotonic()
        if lifetime and not self._stream.lost:
            self._renew_in(lifetime * _RENEW_AT)

    async def _ask(self, message: Message) -> Message:
        """Send a request of the login ahead of the requests that wait."""
        answered: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        correlation = next(self._login_ids)
        frame = frame_request(message, correlation, self._client_id)
        self._write(BrokerRequest([frame], correlation, self._receiver(answered)))
        return read_answer(type(message), await answered)

    def _renew_in(self, seconds: float) -> None:
        """Log in again after some time, but no earlier than the broker allows: the broker would end the connection."""
        self._renew_never()
        earliest = self._logged_in + _BETWEEN_LOGINS_S - monotonic()
        self._renewal = asyncio.get_running_loop().call_later(max(seconds, earliest), self._renew)

    def _renew_never(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    def _renew(self) -> None:
        if self._ready and not self._stream.lost:
            self._ready = False
            self._tasks.start(self._log_in())

    def _write(self, request: BrokerRequest[_Done]) -> None:
        if request.done is not None:
            self._pending.append(request)
        else:
            self._silent = True
        if len(request.parts) == 1:
            self._stream.write(request.parts[0])
        else:
            self._stream.write_many(list(request.parts))
        request.parts = ()

    def _write_together(self, requests: Sequence[BrokerRequest[_Done]]) -> None:
        """Write several requests in one piece."""
        parts: list[Buffer] = []
        for request in requests:
            if request.done is not None:
                self._pending.append(request)
            else:
                self._silent = True
            parts += request.parts
            request.parts = ()
        self._stream.write_many(parts)

    def _answers(self, begin: bytearray | memoryview) -> bool:
        """Return whether these bytes begin the answer that is due next; if not, end the connection."""
        if self._pending and len(begin) >= 8 and correlation_id(begin) == self._pending[0].correlation:
            return True
        self._stream.abort(ProtocolViolation(WRONG_ANSWER, f"{self._stream.peer} answered out of order"))
        return False
