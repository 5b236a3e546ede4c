"""Connections to a TLS listener count from before the handshake, however long that takes, until the connections end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from kmigrate.model.listener_access import ListenerTls
from kmigrate.net.arrivals import Arrivals
from kmigrate.net.stream import FrameStream
from kmigrate.net.tls import ServerTls
from kmigrate.router.shared.limits import Limits
from kmigrate.sandbox.security import SandboxSecurity

Loop = Callable[[], asyncio.AbstractEventLoop]
HELLO = b"\0\0\0\x05hello"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    made: Loop = request.param
    return made


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ServerTls:
    folder = tmp_path_factory.mktemp("arrivals")
    certificate, key = SandboxSecurity.create(folder / "s").issue("listener")
    return ServerTls(ListenerTls(str(certificate), str(key)))


@dataclass
class Listener:
    """An echo server that accepts three connections, in a handshake or behind the handshake."""

    tls: ServerTls
    limits: Limits = field(default_factory=lambda: Limits(3, 0, 1 << 20, 60.0, 100))
    before_login: dict[Callable[[], None], None] = field(default_factory=dict)
    handshake_s: float = 20.0
    port: int = 0
    made: list[FrameStream] = field(default_factory=list)

    def _arrives(self, host: str, end: Callable[[], None]) -> bool:
        refused = self.limits.admit(host)
        if refused:
            self.limits.left(host)
        else:
            self.before_login[end] = None
        return not refused

    def _make(self) -> FrameStream:
        def ended(_: Exception | None) -> None:
            self.limits.left("127.0.0.1")

        stream = FrameStream(lambda frame: stream.write(frame), ended)  # noqa: PLW0108
        stream.on_made = lambda: self.made.append(stream)
        return stream

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        arrivals = Arrivals(self.tls, self.handshake_s, self._arrives, self.before_login.pop, self.limits.left)
        server = await asyncio.get_running_loop().create_server(lambda: arrivals.protocol(self._make), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for stream in self.made:
                stream.abort()
            await arrivals.close()
            await asyncio.sleep(0.01)

    def come(self) -> socket.socket:
        """Return a connection that sends nothing."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def speak(self, come: socket.socket) -> bytes:
        """Return the echo for a client whose first frame comes with the end of the handshake; '' without an echo."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with context.wrap_socket(come) as secured:
                secured.sendall(HELLO)
                return secured.recv(100)
        except OSError:
            return b""

    async def counts(self, most: int) -> None:
        """Wait until at most this many connections are open."""
        while self.limits.told().of_one_host > most:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def run(loop: Loop, scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(scenario, 30))


def test_handshakes_that_nobody_goes_on_with_count_as_connections_until_they_end(loop: Loop, tls: ServerTls) -> None:
    async def scenario() -> None:
        listener = Listener(tls)
        async with listener.listening():
            slow = [await asyncio.to_thread(listener.come) for _ in range(3)]
            refused = await asyncio.to_thread(listener.come)
            assert await asyncio.to_thread(refused.recv, 1) == b""
            assert listener.limits.told().of_one_host == 3
            slow.pop().close()
            await listener.counts(2)
            assert await asyncio.to_thread(listener.speak, await asyncio.to_thread(listener.come)) == HELLO
            assert await asyncio.to_thread(listener.speak, slow.pop()) == HELLO
            for each in (*slow, refused):
                each.close()
            await listener.counts(0)
            assert len(listener.made) == 2

    run(loop, scenario())


def test_a_handshake_may_be_ended_from_outside_even_before_it_has_begun(loop: Loop, tls: ServerTls) -> None:
    async def scenario() -> None:
        listener = Listener(tls)
        arrives = listener._arrives

        def ended(host: str, end: Callable[[], None]) -> bool:
            asyncio.get_running_loop().call_soon(end)
            return arrives(host, end)

        async with listener.listening():
            come = [listener.come()]
            while not listener.before_login:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            next(iter(listener.before_login))()
            await listener.counts(0)
            assert listener.before_login == {}
            listener.__dict__["_arrives"] = ended
        async with listener.listening():
            come.append(listener.come())
            for each in come:
                each.settimeout(10)
                assert await asyncio.to_thread(each.recv, 1) == b""
                each.close()
            await listener.counts(0)
            assert listener.before_login == {}

    run(loop, scenario())


def test_a_handshake_that_takes_too_long_is_ended_and_gives_its_place_back(loop: Loop, tls: ServerTls) -> None:
    async def scenario() -> None:
        listener = Listener(tls, handshake_s=0.1)
        async with listener.listening():
            slow = [await asyncio.to_thread(listener.come) for _ in range(3)]
            assert [await asyncio.to_thread(each.recv, 1) for each in slow] == [b""] * 3
            await listener.counts(0)
            for each in slow:
                each.close()

    run(loop, scenario())


def test_what_is_no_handshake_ends_alone_and_is_never_heard_of(loop: Loop, tls: ServerTls) -> None:
    async def scenario() -> None:
        listener, problems = Listener(tls), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with listener.listening():
            for junk in (b"GET / HTTP/1.1\r\n\r\n", HELLO, b"\x16\x03\x01\xff\xff"):
                come = await asyncio.to_thread(listener.come)
                come.sendall(junk)
                come.shutdown(socket.SHUT_WR)
                while await asyncio.to_thread(come.recv, 1000):
                    pass
                come.close()
            await listener.counts(0)
            assert listener.made == []
        assert problems == []

    run(loop, scenario())
