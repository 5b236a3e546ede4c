"""Our own connection to a broker: requests in, futures of response frames out, first in first out.

    open: TCP → TLS → SASL → ready ── 85 % of the session's lifetime ──→ SASL again (KIP-368) → ready …

While a login is under way, requests wait: a broker accepts no other request during a login.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any

from kmigrate.errors import AuthenticationFailed, Failed, ProtocolViolation, Unreachable
from kmigrate.model.security import PLAINTEXT, Bearer, Login, Security
from kmigrate.net.clock import sleep
from kmigrate.net.dial import dial
from kmigrate.net.login import log_in
from kmigrate.net.stream import Buffer, FrameStream, TlsAlertError
from kmigrate.net.tasks import TaskOwner
from kmigrate.net.tls import named_failure
from kmigrate.protocol.api import answer_type, decode_body, encode_body
from kmigrate.protocol.frames import (
    SIZE,
    correlation_id,
    encode_request_head,
    response_body_offset,
)

__all__ = ["BrokerConnection"]

_RENEW_AT = 0.85
"""Share of a session's lifetime after which we log in again (Java clients choose 0.85 to 0.95)."""
_LOGIN_SECONDS = 10.0

_Request = tuple[int, int, list[Buffer], bool]
_Answer = asyncio.Future[bytearray]


class BrokerConnection:
    """A TCP connection, ordered and pipelined; every pending future fails when the connection is lost.

    A failed future only says that no response came. Nobody knows whether the broker carried out the request.
    """

    def __init__(self, address: str, client_id: str, cluster: str = "") -> None:
        self.address = address
        self._called = f"{address} (cluster {cluster})" if cluster else address
        self._client_id = client_id.encode()
        self._loop = asyncio.get_running_loop()  # asking for the loop costs a system call each time
        self._ids = itertools.count(1)
        self._pending: deque[tuple[int, _Answer]] = deque()
        self._held: list[tuple[_Request, _Answer]] | None = None
        self._answered = False
        self._given_up = ""
        """The reason if we ended the connection ourselves."""
        self._login_failure: AuthenticationFailed | None = None
        # A failed renewal ends the connection, and all waiting callers get the failure.
        self._renewal = TaskOwner()
        self._renewing: asyncio.Task[None] | None = None
        self._stream = FrameStream(self._on_frame, self._on_lost)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout: float = 10.0,
        security: Security = PLAINTEXT,
        cluster: str = "",
        forgetful: bool = False,
    ) -> BrokerConnection:
        """Connect and log in, or raise Unreachable or AuthenticationFailed; both name the cluster.

        With `forgetful`, the broker reads nothing more from the connection once this side has left.
        """
        self = cls(f"{host}:{port}", client_id, cluster)
        try:
            async with asyncio.timeout(timeout):
                await dial(self._stream, host, port, security.tls, self._called)
                if forgetful:
                    self._stream.leave_by_reset()
                if security.sasl is not None:
                    lifetime = await self._log_in(security.sasl)
                    if lifetime:
                        self._renewing = self._renewal.start(self._keep_session(security.sasl, lifetime))
        except TimeoutError as error:
            self.abort()
            raise Unreachable("broker-unreachable", f"no connection to {self.address}: timed out") from error
        return self

    async def _log_in(self, sasl: Login | Bearer) -> float:
        """Hold requests, log in, then send the requests; a failed login ends the connection."""
        self._held = []
        try:
            async with asyncio.timeout(_LOGIN_SECONDS):
                return await log_in(self._ask, sasl, self._called)
        except BaseException as error:
            self._login_failure = error if isinstance(error, AuthenticationFailed) else None
            self.abort()
            raise
        finally:
            held, self._held = self._held, None
            for request, future in held:
                if not future.done():  # the caller may have given up
                    self._write(request, future)

    async def _keep_session(self, sasl: Login | Bearer, lifetime: float) -> None:
        while lifetime:
            await sleep(lifetime * _RENEW_AT)
            lifetime = await self._log_in(sasl)

    @property
    def lost(self) -> bool:
        return self._stream.lost

    @property
    def holds(self) -> bool:
        """True if a login is under way, for which requests wait."""
        return self._held is not None

    @property
    def pending(self) -> int:
        """Number of requests without a response."""
        return len(self._pending) + len(self._held or ())

    def send(self, api_key: int, version: int, body: list[Buffer], *, flexible: bool) -> asyncio.Future[bytearray]:
        """Send a request now; the future gives the whole response frame."""
        future: _Answer = self._loop.create_future()
        request = (api_key, version, body, flexible)
        if self._held is not None and not self.lost:
            self._held.append((request, future))
        else:
            self._write(request, future)
        return future

    def _write(self, request: _Request, future: _Answer) -> None:
        if self.lost:
            gone = Unreachable("connection-lost", f"the connection to {self.address} is lost")
            future.set_exception(self._login_failure or gone)
            return
        api_key, version, body, flexible = request
        number = next(self._ids) & 0x7FFFFFFF
        head = encode_request_head(api_key, version, number, self._client_id, flexible)
        size = len(head) + sum(map(len, body))
        self._pending.append((number, future))
        self._stream.write_many([SIZE.pack(size) + head, *body])

    async def _ask(self, request: Any) -> Any:
        """Send a request of the login, ahead of the requests that are held."""
        kind = type(request)
        future: _Answer = self._loop.create_future()
        self._write((int(kind.__api_key__), int(kind.__version__), [encode_body(request)], kind.__flexible__), future)
        answer = await future
        return decode_body(answer_type(kind), answer, response_body_offset(answer, kind.__flexible__))

    async def call(self, request: Any, timeout: float = 30.0) -> Any:
        """Send a kio request and read the response."""
        kind = type(request)
        answer = await self.call_raw(
            int(kind.__api_key__),
            int(kind.__version__),
            [encode_body(request)],
            flexible=kind.__flexible__,
            timeout=timeout,
        )
        at = response_body_offset(answer, kind.__flexible__ and int(kind.__api_key__) != 18)
        return decode_body(answer_type(kind), answer, at)

    async def call_raw(
        self, api_key: int, version: int, body: list[Buffer], *, flexible: bool, timeout: float = 30.0
    ) -> bytearray:
        """Send a request and wait for the response; a timeout closes the connection, because its order is lost."""
        future = self.send(api_key, version, body, flexible=flexible)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            self.give_up(f"api {api_key} had no answer in {timeout:g} s")
            raise Unreachable(
                "no-answer", f"{self.address} did not answer api {api_key} within {timeout:g} s"
            ) from None

    async def drain(self) -> None:
        """Wait until the broker reads again, or the connection is lost."""
        await self._stream.drain()

    def close(self) -> None:
        """Close after all sent requests have left."""
        self._stream.close()

    def abort(self) -> None:
        """Close at once; requests that have not left are dropped."""
        self._stream.abort()

    def give_up(self, why: str) -> None:
        """End the connection at once, and tell all waiting callers why.

        A caller repeats its request on a new connection. So the broker must not carry out the old requests, too.
        """
        self._given_up = why
        self._stream.leave_by_reset()
        self.abort()

    def _on_frame(self, frame: bytearray) -> None:
        self._answered = True
        if not self._pending:
            self._stream.abort(ProtocolViolation("unasked-answer", f"{self.address} answered unasked"))
            return
        number, future = self._pending.popleft()
        if len(frame) < 8 or correlation_id(frame) != number:
            wrong = ProtocolViolation("wrong-answer", f"{self.address} answered out of order")
            if not future.done():
                future.set_exception(wrong)
            self._stream.abort(wrong)
            return
        if not future.done():
            future.set_result(frame)

    def _on_lost(self, error: Exception | None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        reason = self._reason(error)
        while self._pending:
            _, future = self._pending.popleft()
            if not future.done():
                future.set_exception(reason)

    def _reason(self, error: Exception | None) -> Failed:
        """Return why the connection is lost, for the waiting callers."""
        if self._login_failure is not None:
            return self._login_failure
        if isinstance(error, TlsAlertError):
            return AuthenticationFailed(
                "tls-wanted",
                f"{self._called} answers with a TLS alert: this listener speaks TLS only",
                still_true="nothing was read or changed",
                next_step="set security.protocol to SSL or SASL_SSL, or use a plaintext listener's port",
            )
        named = named_failure(error, self._called)
        if named is not None:
            return named
        if self._given_up:
            return Unreachable("connection-lost", f"the connection to {self.address} was given up: {self._given_up}")
        what = f"the connection to {self.address} was lost: {error or 'closed'}"
        if not self._answered:
            what += "; closed before any answer: the listener may want TLS or SASL (security.protocol)"
        return Unreachable("connection-lost", what)
