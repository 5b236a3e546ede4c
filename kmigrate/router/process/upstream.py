"""A client's connection to a single broker: opened and logged in as that client (`net.session`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kmigrate.errors import AuthenticationFailed, KmigrateError, Unreachable
from kmigrate.model.security import Bearer, Login, Security
from kmigrate.net.dial import dial
from kmigrate.net.session import LOGIN_S, BrokerRequest, BrokerSession
from kmigrate.net.stream import FrameStream
from kmigrate.net.tasks import TaskOwner
from kmigrate.net.tls import named_failure
from kmigrate.protocol.frames import TakePiece
from kmigrate.router.shared.state import BeginsAnswer, Buffer, Outcome

__all__ = ["Addresses", "Upstream"]

Addresses = Callable[[], Awaitable[Sequence[tuple[str, int]]]]
"""Addresses to which an upstream may connect, best first; asked when the upstream is opened."""

_CONNECT_S = 5.0
_MAX_UPSTREAM_FRAME = 1 << 30
_MOST_WAITING = 4 << 20
"""Bytes that wait for the connection, or for a login, before reading from the client pauses."""
_REFUSALS = frozenset({"authentication-failed", "sasl-mechanism-refused"})
"""References of errors with which a broker refuses the client itself; any other login failure may be temporary."""


class Upstream(BrokerSession[Callable[[Outcome], None]]):
    """A connection to a single broker, opened by its first request; answers come in the order of the requests.

    `security` is called at each login, so that a session is renewed with the client's latest credential.
    """

    def __init__(
        self, tasks: TaskOwner, addresses: Addresses, security: Callable[[], Security], on_end: Callable[[str], None]
    ) -> None:
        stream = FrameStream(self._on_frame, self._on_lost, max_frame=_MAX_UPSTREAM_FRAME)
        stream.on_begin = self._on_begin
        super().__init__("kmigrate-router", stream, tasks, ready=False)
        self._addresses = addresses
        self._security = security
        self._on_end = on_end
        self._waiting_bytes = 0
        self._closing = False
        self._parting: asyncio.TimerHandle | None = None
        self._shown: Login | Bearer | None = None
        self.refused = ""
        """Reason why the broker refuses this client's login; '' after any other end."""
        self.distrust = ""
        """Fault of a certificate of either side, '' after any other end; the certificate may be renewed at any time."""
        self._met = False
        """True once the broker has answered anything."""
        self.ended = False
        self.owed = False
        """True if answers were due at the end of the connection."""
        self.on_flow: Callable[[bool], None] | None = None
        self.on_ready: Callable[[str], None] | None = None
        """Called once after the login, with '' or with the fault."""
        tasks.start(self._open())

    async def _open(self) -> None:
        problem = "no address"
        for host, port in await self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await dial(self._stream, host, port, self._security().tls, f"{host}:{port}")
            except TimeoutError:
                problem = f"{host}:{port}: timed out"
            except KmigrateError as error:
                problem = error.what
                self.distrust = problem if isinstance(error, AuthenticationFailed) else ""
            else:
                if self._stream.lost:  # the connection was aborted during its opening
                    self._fail("it was aborted")
                else:
                    await self._log_in()
                return
        self._end(f"no connection to a broker ({problem})")

    # the login, if the router logs in

    async def _log_in(self) -> None:
        """Log in if the router logs in; a refusal ends the connection."""
        sasl = self._security().sasl
        if sasl is not None:
            try:
                await self._authenticate(sasl, self._stream.peer)
            except TimeoutError:
                self._fail(f"{self._stream.peer} did not end a login within {LOGIN_S:g} s")
                return
            except KmigrateError as error:
                self.refused = error.what if error.ref in _REFUSALS else ""
                self._fail(error.what)
                return
        if self.ended:
            return
        self._shown = sasl
        self._on_ready()

    def _fail(self, why: str) -> None:
        self._end(why)
        self._stream.abort()

    def identified(self) -> None:
        """Note that the client has shown a credential again; a different credential is used from now on."""
        if self._ready and not self.ended and self._security().sasl != self._shown:
            self._renew_in(0)

    def _receiver(self, answered: asyncio.Future[bytearray]) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            if answered.done():
                return
            if outcome.frame is None:
                answered.set_exception(Unreachable("connection-lost", f"{self._stream.peer} closed within the login"))
            else:
                answered.set_result(outcome.frame)

        return done

    def _on_ready(self) -> None:
        self._ready = True
        self._tell("")
        self._stream.on_writable = self._flow
        while self._waiting:
            self._write(self._waiting.popleft())
        self._waiting_bytes = 0
        self._flow(self.takes)
        if self._closing and not self.busy:
            self._stream.close()

    def send(
        self,
        parts: Sequence[Buffer],
        correlation: int,
        done: Callable[[Outcome], None] | None,
        begins: BeginsAnswer | None = None,
    ) -> None:
        """Send a request now, or after the login; `done` gets the answer unless `begins` takes the answer in pieces."""
        asked = BrokerRequest(parts, correlation, done, begins)
        if self.ended:
            if done is not None:
                done(Outcome(None, sent=False))
        elif self._ready:
            self._write(asked)
        else:
            self._waiting.append(asked)
            self._waiting_bytes += sum(map(len, parts))

    def _flow(self, writable: bool) -> None:
        if self.on_flow is not None:
            self.on_flow(writable)

    @property
    def takes(self) -> bool:
        """True if the connection takes more bytes or has ended: nobody else counts requests that want no answer."""
        return (self._stream.writable and self._waiting_bytes <= _MOST_WAITING) or self.ended

    @property
    def busy(self) -> bool:
        """True if answers are still due."""
        return bool(self._pending or self._waiting)

    @property
    def held(self) -> int:
        """Bytes that are kept here, in both directions."""
        return self._stream.held + self._waiting_bytes

    @property
    def on_large(self) -> Callable[[], None] | None:
        """Called when a large answer begins to arrive."""
        return self._stream.on_large

    @on_large.setter
    def on_large(self, call: Callable[[], None]) -> None:
        self._stream.on_large = call

    def read(self, on: bool) -> None:
        if on:
            self._stream.resume_reading()
        else:
            self._stream.pause_reading()

    @property
    def silent(self) -> bool:
        """True if writes without an answer were sent, or wait to be sent."""
        return self._silent or any(asked.done is None for asked in self._waiting)

    def close_now(self) -> None:
        """Close at once, without answers; with answers in flight the broker drops what it has not read (reset)."""
        self._closing = True
        self._drop_waiting()
        self._stream.close()  # without a connection this does nothing, and `_on_ready` closes later

    def close_when_answered(self, most_s: float | None = None) -> None:
        """Close once no answer is due any more, so that every forward is accounted for to the end.

        `most_s` limits the wait for answers that nobody accounts for: a broker may take days to answer some requests.
        """
        self._closing = True
        if self._ready and not self.busy:
            self._stream.close()
        elif most_s is not None and not self.ended and self._parting is None:
            self._parting = asyncio.get_running_loop().call_later(most_s, self.close_now)

    def replaced(self) -> None:
        """Note that another connection takes this connection's place; the end of this connection no longer matters."""
        self._on_end = lambda _: None
        self.close_when_answered()

    def abort(self) -> None:
        self._stream.abort()

    def _on_frame(self, frame: bytearray) -> None:
        if not self._answers(frame):
            return
        self._met = True
        done = self._pending.popleft().done
        if done is not None:
            done(Outcome(frame))
        self._answered()

    def _answered(self) -> None:
        if self._closing and not self.busy:
            self._stream.close()

    def _on_begin(self) -> TakePiece | None:
        """Handle the begin of a large answer."""
        begins = self._pending[0].begins if self._pending else None
        passes = begins() if begins is not None else None
        if passes is None:
            return None
        begun = False

        def take(piece: memoryview, left: int) -> int:
            nonlocal begun
            if not begun and not self._answers(piece):
                return len(piece)
            begun = True
            taken = passes(piece, left)
            if taken == left:
                self._met = True
                self._pending.popleft()
                self._answered()
            return taken

        return take

    def _on_lost(self, error: Exception | None) -> None:
        named = named_failure(error, self._stream.peer)
        if named is not None and not self._met:
            # In TLS 1.3 a broker refuses a certificate when the first requests are in flight, and reads none of them.
            self.distrust = named.what
            self._end(f"no connection to a broker ({named.what})", sent=False)
            return
        self._end(f"a broker closed the connection{f' ({error})' if error else ''}")

    def _end(self, why: str, *, sent: bool = True) -> None:
        if self.ended:
            return
        self.ended, self.owed = True, self.busy
        self._renew_never()
        if self._parting is not None:
            self._parting.cancel()
        lost = list(self._pending)
        self._pending.clear()
        for asked in lost:
            if asked.done is not None:
                asked.done(Outcome(None, sent=sent))
        self._drop_waiting()
        self._tell(why)
        self._on_end(why)

    def _drop_waiting(self) -> None:
        """Drop the waiting requests, and report them as never sent."""
        unsent = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        for asked in unsent:
            if asked.done is not None:
                asked.done(Outcome(None, sent=False, refused=self.refused))

    def _tell(self, problem: str) -> None:
        then, self.on_ready = self.on_ready, None
        if then is not None:
            then(problem)
