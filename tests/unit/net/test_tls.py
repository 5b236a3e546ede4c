"""TLS against servers that are not what they should be: each is told apart, none is spoken to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from kmigrate.errors import AuthenticationFailed, KmigrateError, Unreachable, UsageError
from kmigrate.model.security import Login, Security, Tls
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.tls import client_context
from kmigrate.sandbox.security import SandboxSecurity

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    """Commands run on asyncio's own loop, engines on uvloop's, which has a TLS of its own."""
    made: Loop = request.param
    return made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> SandboxSecurity:
    return SandboxSecurity.create(tmp_path_factory.mktemp("tls") / "s")


def dial(
    loop: Loop, certificate: tuple[Path, Path] | None, tls: Tls | None, host: str = "127.0.0.1"
) -> tuple[KmigrateError, bytes]:
    """What opening a connection with a login ends in, and what the server was told inside its TLS."""
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
