"""Tests of TLS contexts, of names of TLS failures, and of connections that arrive at a TLS listener."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from kmigrate.errors import AuthenticationFailed, KmigrateError, Unreachable, UsageError
from kmigrate.model.listener_access import ListenerTls
from kmigrate.model.security import Login, Security, Tls
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.dial import dial as connect
from kmigrate.net.stream import FrameStream
from kmigrate.net.tls import Arrivals, ServerTls, client_context, subject_of
from kmigrate.router.shared.limits import Limits
from kmigrate.sandbox.security import SandboxSecurity

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    """Return the event loop: commands run on asyncio's own loop, engines on uvloop, which has its own TLS."""
    made: Loop = request.param
    return made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> SandboxSecurity:
    return SandboxSecurity.create(tmp_path_factory.mktemp("tls") / "s")


def dial(
    loop: Loop, certificate: tuple[Path, Path] | None, tls: Tls | None, host: str = "127.0.0.1"
) -> tuple[KmigrateError, bytes]:
    """Open a connection with a login; return the result, and the bytes that the server received inside TLS."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard.append(await reader.read(1000))
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
        except OSError:
            pass
        writer.close()

    async def run() -> None:
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        try:
            security = Security(tls, Login("PLAIN", "me", "s3cret"))
            await BrokerConnection.open(host, port, client_id="t", security=security, timeout=5, cluster="blue")
        finally:
            server.close()

    with pytest.raises(KmigrateError) as caught, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    assert "s3cret" not in str(caught.value)
    return caught.value, b"".join(heard)


def test_a_certificate_that_should_not_be_trusted_is_told_before_anything_is_said(
    loop: Loop, authority: SandboxSecurity, tmp_path: Path
) -> None:
    tls = Tls(str(authority.ca_file))
    good, expired = authority.issue("good"), authority.issue("old", days=-1)
    other = SandboxSecurity.create(tmp_path / "other")
    cases = [
        ("certificate-expired", expired, tls, "127.0.0.1"),
        ("unknown-authority", good, Tls(str(other.ca_file)), "127.0.0.1"),
        ("unknown-authority", good, Tls(), "127.0.0.1"),
        ("wrong-host-name", good, tls, "127.1"),
    ]
    for ref, certificate, ours, host in cases:
        error, heard = dial(loop, certificate, ours, host)
        assert (type(error), error.ref, heard) == (AuthenticationFailed, ref, b"")
        assert "cluster blue" in error.what


def test_another_host_name_is_accepted_only_where_it_was_said(loop: Loop, authority: SandboxSecurity) -> None:
    error, heard = dial(loop, authority.issue("good"), Tls(str(authority.ca_file), check_host=False), "127.1")
    assert isinstance(error, Unreachable), "the handshake passed; the answer was no Kafka"
    assert heard


def test_a_plaintext_server_is_not_mistaken_for_a_broker(loop: Loop, authority: SandboxSecurity) -> None:
    error, _ = dial(loop, None, Tls(str(authority.ca_file)))
    assert (type(error), error.ref) == (AuthenticationFailed, "tls-not-spoken")


def test_files_that_cannot_be_used_are_named(authority: SandboxSecurity, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no PEM", encoding="utf-8")
    certificate, key = authority.issue("good")
    _, other_key = authority.issue("another")
    for tls, named in (
        (Tls(str(tmp_path / "gone.pem")), "gone.pem"),
        (Tls(str(nonsense)), "nonsense.pem"),
        (Tls(str(authority.ca_file), str(certificate), str(other_key)), "another.key"),
        (Tls(str(authority.ca_file), str(nonsense), str(key)), "nonsense.pem"),
    ):
        with pytest.raises(UsageError, match="tls-file-unusable") as caught:
            client_context(tls)
        assert named in caught.value.what


def test_a_listener_shows_a_renewed_certificate_without_a_restart_and_keeps_the_old_one_if_it_is_broken(
    loop: Loop, authority: SandboxSecurity, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "shown.pem", tmp_path / "shown.key"

    def show(name: str, stamp: int) -> None:
        made = authority.issue(name)
        for file, source in zip((certificate, key), made, strict=True):
            file.write_bytes(source.read_bytes())
            os.utime(file, (stamp, stamp))

    show("first", 1)
    issued, issued_key = authority.issue("o, r+d")
    listener = ServerTls(ListenerTls(str(certificate), str(key), client_ca=str(authority.ca_file)))
    clients: list[str] = []

    async def seen() -> str:
        stream = FrameStream(lambda _: None, lambda _: None)
        made, met = (asyncio.get_running_loop().create_future() for _ in range(2))
        stream.on_made = lambda: made.set_result(stream.subject)
        theirs = FrameStream(lambda _: None, lambda _: None)
        theirs.on_made = lambda: met.set_result(theirs.subject)
        server = await served(listener, lambda: theirs)
        tls = Tls(str(authority.ca_file), str(issued), str(issued_key))
        try:
            await connect(stream, "127.0.0.1", server.sockets[0].getsockname()[1], tls, "the listener")
            clients.append(await met)
            return str(await made)
        finally:
            stream.close()
            server.close()
            await asyncio.sleep(0)

    async def run() -> None:
        assert await seen() == "CN=first"
        assert not listener.renew()
        show("second", 2)
        assert listener.renew()
        assert await seen() == "CN=second"
        for broken in ("no PEM", authority.issue("third")[0].read_text("utf-8")):  # the second has another key
            certificate.write_text(broken, encoding="utf-8")
            with pytest.raises(UsageError, match="tls-file-unusable"):
                listener.renew()
        assert await seen() == "CN=second"

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    assert clients == ["CN=o\\, r\\+d"] * 3


def test_authorities_that_a_listener_does_not_trust_any_more_are_not_believed(
    loop: Loop, authority: SandboxSecurity, tmp_path: Path
) -> None:
    """An authority that withdraws clients' certificates is removed from the file."""
    other = SandboxSecurity.create(tmp_path / "other")
    shown, key = authority.issue("shown")
    trusted = tmp_path / "clients-ca.pem"
    trusted.write_bytes(authority.ca_file.read_bytes())
    listener = ServerTls(ListenerTls(str(shown), str(key), client_ca=str(trusted)))

    async def let_in(issuer: SandboxSecurity) -> bool:
        """Return whether a word comes back: in TLS 1.3 a client learns of its refusal last."""
        certificate, own = issuer.issue("client")
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        context.load_cert_chain(certificate, own)
        server = await served(listener, _echo)
        try:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"word")
            heard = await reader.read(4)
            writer.close()
            return heard == b"word"
        except OSError:
            return False
        finally:
            server.close()

    async def run() -> list[tuple[bool, bool]]:
        found = [(await let_in(authority), await let_in(other))]
        for issuers in ((authority, other), (other,)):
            trusted.write_bytes(b"".join(each.ca_file.read_bytes() for each in issuers))
            assert listener.renew()
            found.append((await let_in(authority), await let_in(other)))
        return found

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()) == [(True, False), (True, True), (False, True)]


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tickets", [True, False], ids=["tickets", "session-ids"])
def test_a_client_shows_its_certificate_at_each_connection(
    loop: Loop, authority: SandboxSecurity, tmp_path: Path, version: ssl.TLSVersion, tickets: bool
) -> None:
    """A resumed session shows no certificate, and Java's clients resume sessions for hours."""
    shown, key = authority.issue("shown")
    trusted = tmp_path / "clients-ca.pem"
    trusted.write_bytes(authority.ca_file.read_bytes())
    listener = ServerTls(ListenerTls(str(shown), str(key), client_ca=str(trusted)))
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.load_cert_chain(*authority.issue("client"))
    context.minimum_version = context.maximum_version = version
    if not tickets:
        context.options |= ssl.OP_NO_TICKET

    def connect(port: int, before: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession | None]:
        plain = socket.create_connection(("127.0.0.1", port), timeout=15)
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=before) as made:
            made.sendall(b"word")
            if made.recv(4) != b"word":
                raise ssl.SSLError("it is closed")
            return made.session_reused, made.session

    async def run() -> bool | None:
        server = await served(listener, _echo)
        port = server.sockets[0].getsockname()[1]
        _, session = await asyncio.to_thread(connect, port, None)
        reused, session = await asyncio.to_thread(connect, port, session)
        trusted.write_bytes(SandboxSecurity.create(tmp_path / "other").ca_file.read_bytes())
        assert listener.renew()
        with pytest.raises(OSError):
            await asyncio.to_thread(connect, port, session)
        server.close()
        return reused

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()) is False


Serves = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def served(listener: ServerTls, by: Serves | Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    """Start a server whose connections arrive as a router's connections do."""

    def make() -> asyncio.BaseProtocol:
        if not asyncio.iscoroutinefunction(by):
            return cast("Callable[[], asyncio.BaseProtocol]", by)()
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), by)

    arrivals = Arrivals(listener, 20, lambda _, __: True, lambda _: None, lambda _: None)
    return await asyncio.get_running_loop().create_server(lambda: arrivals.protocol(make), "127.0.0.1", 0)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        writer.write(await reader.read(4))
        await writer.drain()
    except OSError:
        pass
    writer.close()


def test_our_certificate_is_read_again_when_it_was_renewed_and_kept_while_its_files_cannot_be_used(
    authority: SandboxSecurity, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificate and key are renewed as two files, in turn: a connection opened in between is not a failure."""
    caplog.set_level(logging.INFO, "kmigrate.net")
    certificate, key = tmp_path / "ours.pem", tmp_path / "ours.key"
    tls = Tls(str(authority.ca_file), str(certificate), str(key))
    with pytest.raises(UsageError, match="tls-file-unusable"):
        client_context(tls)
    first, second = (tuple(file.read_bytes() for file in authority.issue(name)) for name in ("one", "two"))
    for file, content in zip((certificate, key), first, strict=True):
        file.write_bytes(content)
    used = client_context(tls)
    assert client_context(tls) is used
    assert caplog.messages == []
    certificate.write_bytes(second[0])
    assert client_context(tls) is used
    assert client_context(tls) is used
    (told,) = caplog.messages
    assert "ours.pem" in told
    key.write_bytes(second[1])
    assert client_context(tls) is not used
    assert f"read again: {authority.ca_file}, {certificate}, {key}" in caplog.messages


def test_a_subject_is_written_as_kafka_names_principals() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "orders"), ("userId", "7")))
    assert subject_of({"subject": subject}) == "CN=orders+UID=7,O=A\\, B,C=DE"
    assert subject_of({}) == ""


HELLO = b"\0\0\0\x05hello"


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
