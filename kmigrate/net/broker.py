"""Our own connection to a broker: requests in, futures of response frames out, first in first out."""

from __future__ import annotations

import asyncio
import itertools
from typing import NamedTuple

from kmigrate.errors import AuthenticationFailed, Failed, ProtocolViolation, Unreachable
from kmigrate.model.security import PLAINTEXT, Security
from kmigrate.net.dial import dial
from kmigrate.net.session import WRONG_ANSWER, BrokerRequest, BrokerSession
from kmigrate.net.stream import Buffer, FrameStream, TlsAlertError
from kmigrate.net.tasks import TaskOwner
from kmigrate.net.tls import named_failure
from kmigrate.protocol.api import ApiKey, Message, answer_type, decode_body, encode_body
from kmigrate.protocol.frames import SIZE, encode_request_head, response_body_offset

__all__ = ["BrokerConnection", "OutgoingRequest"]


_Request = BrokerRequest[asyncio.Future[bytearray]]


class OutgoingRequest(NamedTuple):
    """A request that leaves together with others."""

    api_key: int
    version: int
    body: list[Buffer]
    flexible: bool
    is_answered: bool = True
    """False for a Produce request with acks=0."""


class BrokerConnection(BrokerSession[asyncio.Future[bytearray]]):
    """A TCP connection, ordered and pipelined; its loss fails all futures, whose requests may have been carried out."""

    def __init__(self, address: str, client_id: str, cluster: str = "", security: Security = PLAINTEXT) -> None:
        # A failed renewal ends the connection, and all waiting callers get the failure.
        super().__init__(client_id, FrameStream(self._on_frame, self._on_lost), TaskOwner(), ready=True)
        self.address = address
        self._called = f"{address} (cluster {cluster})" if cluster else address
        self._security = security
        self._encoded_client_id = client_id.encode()
        self._loop = asyncio.get_running_loop()  # asking for the loop costs a system call each time
        self._ids = itertools.count(1)
        self._answered = False
        self._given_up = ""
        """The reason if we ended the connection ourselves."""
        self._login_failure: AuthenticationFailed | None = None

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
        """Connect and log in; raise Unreachable or AuthenticationFailed with `cluster`; `forgetful`: leave by reset."""
        self = cls(f"{host}:{port}", client_id, cluster, security)
        try:
            async with asyncio.timeout(timeout):
                await dial(self._stream, host, port, security.tls, self._called)
                if forgetful:
                    self._stream.leave_by_reset()
                await self._log_in()
        except TimeoutError as error:
            self.abort()
            raise Unreachable("broker-unreachable", f"no connection to {self.address}: timed out") from error
        return self

    async def _log_in(self) -> None:
        try:
            if self._security.sasl is not None:
                await self._authenticate(self._security.sasl, self._called)
        except BaseException as error:
            self._login_failure = error if isinstance(error, AuthenticationFailed) else None
            self.abort()
            raise
        finally:
            self._ready = True
            while self._waiting:
                self._send(self._waiting.popleft())

    async def _ask(self, message: Message) -> Message:
        if self.lost:  # the end was reported before this request, so nobody would fail the request
            raise self._gone()
        return await super()._ask(message)

    def _receiver(self, answered: asyncio.Future[bytearray]) -> asyncio.Future[bytearray]:
        return answered

    @property
    def lost(self) -> bool:
        return self._stream.lost

    @property
    def answered(self) -> bool:
        """True if the broker has answered anything on this connection."""
        return self._answered

    @property
    def holds(self) -> bool:
        """True if a login is under way, for which requests wait."""
        return not self._ready

    def send(self, api_key: int, version: int, body: list[Buffer], *, flexible: bool) -> asyncio.Future[bytearray]:
        """Send a request now; the future gives the whole response frame."""
        answered: asyncio.Future[bytearray] = self._loop.create_future()
        self._send_or_wait(self._request(api_key, version, body, answered, flexible))
        return answered

    def send_unanswered(self, api_key: int, version: int, body: list[Buffer], *, flexible: bool) -> None:
        """Send a request now to which the broker gives no answer: a Produce request with acks=0."""
        self._send_or_wait(self._request(api_key, version, body, None, flexible))

    def send_together(self, *requests: OutgoingRequest) -> list[asyncio.Future[bytearray]]:
        """Send requests now, in one piece and in this order; the futures give the response frames that are due."""
        futures: list[asyncio.Future[bytearray]] = []
        made: list[_Request] = []
        for each in requests:
            answered = self._loop.create_future() if each.is_answered else None
            if answered is not None:
                futures.append(answered)
            made.append(self._request(each.api_key, each.version, each.body, answered, each.flexible))
        if self._ready and not self.lost:
            self._write_together(made)
        else:
            for request in made:
                self._send_or_wait(request)
        return futures

    def _request(
        self,
        api_key: int,
        version: int,
        body: list[Buffer],
        answered: asyncio.Future[bytearray] | None,
        flexible: bool,
    ) -> _Request:
        number = next(self._ids) & 0x7FFFFFFF
        head = encode_request_head(api_key, version, number, self._encoded_client_id, flexible)
        size = len(head) + sum(map(len, body))
        return BrokerRequest([SIZE.pack(size) + head, *body], number, answered)

    def _send_or_wait(self, request: _Request) -> None:
        if self._ready or self.lost:
            self._send(request)
        else:
            self._waiting.append(request)

    def _send(self, request: BrokerRequest[asyncio.Future[bytearray]]) -> None:
        done = request.done
        if done is not None and done.done():  # the caller may have given up
            return
        if not self.lost:
            self._write(request)
        elif done is not None:
            done.set_exception(self._login_failure or self._gone())

    def _gone(self) -> Unreachable:
        return Unreachable("connection-lost", f"the connection to {self.address} is lost")

    async def call(self, request: Message, timeout: float = 30.0) -> Message:
        """Send a kio request and read the response."""
        kind = type(request)
        answer = await self.call_raw(
            kind.__api_key__, kind.__version__, [encode_body(request)], flexible=kind.__flexible__, timeout=timeout
        )
        at = response_body_offset(answer, kind.__flexible__ and kind.__api_key__ != ApiKey.API_VERSIONS)
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
        """End the connection at once, and tell callers why: as they ask again, no old request may be carried out."""
        self._given_up = why
        self._stream.leave_by_reset()
        self.abort()

    def _on_frame(self, frame: bytearray) -> None:
        self._answered = True
        if self._answers(frame):
            done = self._pending.popleft().done
            if done is not None and not done.done():
                done.set_result(frame)

    def _on_lost(self, error: Exception | None) -> None:
        self._renew_never()
        reason = self._reason(error)
        next_reason = error if isinstance(error, ProtocolViolation) and error.ref == WRONG_ANSWER else reason
        while self._pending:
            done = self._pending.popleft().done
            if done is not None and not done.done():
                done.set_exception(next_reason)
            next_reason = reason

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
