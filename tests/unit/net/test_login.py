"""Logins against a scripted peer: requests that wait, renewals, and the effect of a refusal on waiting requests."""

from __future__ import annotations

import asyncio
import datetime as dt
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.model.security import Bearer, Login, Security
from kmigrate.net import session
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.login import current_token
from kmigrate.protocol.api import encode_body, entity
from kmigrate.protocol.frames import SIZE


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this broker accept a renewal at any time."""
    monkeypatch.setattr(session, "_BETWEEN_LOGINS_S", 0.0)


PLAIN = Security(sasl=Login("PLAIN", "me", "s3cret"))


class Peer:
    """A peer that answers logins as scripted and all other requests with `ok`, and that keeps the order of requests."""

    def __init__(self, lifetime_s: float = 0.0) -> None:
        self.lifetime_s = lifetime_s
        self.refuse = False
        self.mechanisms: tuple[str, ...] = ("PLAIN",)
        self.pause = 0.0
        self.seen: list[int] = []
        self.renewing = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                (key,) = struct.unpack_from(">h", request)
                self.seen.append(key)
                if self.seen.count(17) > 1:
                    self.renewing.set()
                if key == 36:
                    await asyncio.sleep(self.pause)
                answer = request[4:8] + self._answer(key)
                writer.write(SIZE.pack(len(answer)) + answer)
        except asyncio.IncompleteReadError:
            writer.close()

    def _answer(self, key: int) -> bytes:
        if key == 17:
            offered = "PLAIN" in self.mechanisms
            code = ErrorCode.none if offered else ErrorCode.unsupported_sasl_mechanism
            return encode_body(entity(17, 1, "response")(error_code=code, mechanisms=self.mechanisms))
        if key == 36:
            return b"\0" + encode_body(
                entity(36, 2, "response")(
                    error_code=ErrorCode.sasl_authentication_failed if self.refuse else ErrorCode.none,
                    error_message="not you" if self.refuse else None,
                    auth_bytes=b"",
                    session_lifetime=dt.timedelta(seconds=self.lifetime_s),
                )
            )
        return b"ok"


def run(peer: Peer, story: Callable[[str, int], Awaitable[None]]) -> None:
    async def play() -> None:
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        try:
            await asyncio.wait_for(story(host, port), 10)
        finally:
            server.close()

    asyncio.run(play())


def test_requests_wait_while_a_session_is_renewed_and_keep_their_order() -> None:
    peer = Peer(lifetime_s=0.2)

    async def story(host: str, port: int) -> None:
        connection = await BrokerConnection.open(host, port, client_id="t", security=PLAIN)
        assert peer.seen == [17, 36]
        peer.pause = 0.1
        answers = []
        for number in range(60):
            answers.append(connection.send(number % 2 + 100, 0, [b""], flexible=False))
            await asyncio.sleep(0.01)
        for answer in answers:
            assert bytes((await answer)[8:]) == b"ok"
        connection.close()

    run(peer, story)
    logins = [at for at, key in enumerate(peer.seen) if key == 17]
    assert len(logins) >= 3
    # The connection may end during the last renewal.
    assert all(peer.seen[at + 1 :][:1] in ([36], []) for at in logins), "nothing may come between a login's words"
    assert [key for key in peer.seen if key >= 100] == [100, 101] * 30


def test_a_renewal_that_is_refused_tells_everyone_who_waits() -> None:
    peer = Peer(lifetime_s=0.2)

    async def story(host: str, port: int) -> None:
        connection = await BrokerConnection.open(host, port, client_id="t", security=PLAIN, cluster="blue")
        peer.refuse, peer.pause = True, 0.2
        await peer.renewing.wait()
        held = connection.send(100, 0, [b""], flexible=False)
        with pytest.raises(AuthenticationFailed, match=r"cluster blue.*not you") as caught:
            await held
        assert "s3cret" not in str(caught.value)
        assert connection.lost
        with pytest.raises(AuthenticationFailed):
            await connection.send(100, 0, [b""], flexible=False)

    run(peer, story)


def test_who_lost_patience_while_a_session_is_renewed_keeps_nobody_else_waiting() -> None:
    peer = Peer(lifetime_s=0.2)

    async def story(host: str, port: int) -> None:
        connection = await BrokerConnection.open(host, port, client_id="t", security=PLAIN)
        peer.refuse, peer.pause = True, 0.2
        await peer.renewing.wait()
        impatient, patient = (connection.send(100, 0, [b""], flexible=False) for _ in range(2))
        impatient.cancel()
        with pytest.raises(AuthenticationFailed):
            await asyncio.wait_for(patient, 5)

    run(peer, story)
    assert 100 not in peer.seen


def test_what_nobody_waits_for_any_more_is_not_asked_once_a_session_is_renewed() -> None:
    peer = Peer(lifetime_s=0.2)

    async def story(host: str, port: int) -> None:
        connection = await BrokerConnection.open(host, port, client_id="t", security=PLAIN)
        peer.pause = 0.1
        await peer.renewing.wait()
        impatient, patient = (connection.send(api, 0, [b""], flexible=False) for api in (100, 101))
        impatient.cancel()
        await patient
        connection.close()

    run(peer, story)
    assert [key for key in peer.seen if key >= 100] == [101]


def test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are() -> None:
    peer = Peer()
    peer.mechanisms = ("GSSAPI", "OAUTHBEARER")

    async def story(host: str, port: int) -> None:
        with pytest.raises(AuthenticationFailed, match="it offers GSSAPI, OAUTHBEARER"):
            await BrokerConnection.open(host, port, client_id="t", security=PLAIN)

    run(peer, story)
    assert peer.seen == [17], "no password goes to a broker that does not want it"


def test_a_silent_peer_is_unreachable_not_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        with pytest.raises(Unreachable, match="timed out"):
            await BrokerConnection.open(host, port, client_id="t", security=PLAIN, timeout=0.2)
        server.close()

    asyncio.run(story())


def test_a_connection_that_ends_while_the_token_is_fetched_is_lost_at_once() -> None:
    """The peer is a load balancer without a backend: the login times out after ten seconds otherwise."""

    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(leaves, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        security = Security(sasl=Bearer(token_command=("sh", "-c", "sleep 0.3; echo token")))
        async with asyncio.timeout(5):
            with pytest.raises(Unreachable) as lost:
                await BrokerConnection.open(host, port, client_id="t", security=security)
        assert lost.value.ref == "connection-lost"
        server.close()

    asyncio.run(story())


def test_a_token_is_what_the_command_prints_now(tmp_path: Path) -> None:
    counter = tmp_path / "n"
    bearer = Bearer(token_command=("sh", "-c", f"echo x >> {counter}; wc -l < {counter}"))
    assert [current_token(bearer) for _ in range(2)] == ["1", "2"]
    with pytest.raises(AuthenticationFailed, match="cannot be run"):
        current_token(Bearer(token_command=("/nowhere/at-all",)))
    with pytest.raises(AuthenticationFailed, match="exit code 3") as caught:
        current_token(Bearer(token_command=("sh", "-c", "echo s3cret; exit 3")))
    assert "s3cret" not in str(caught.value)
