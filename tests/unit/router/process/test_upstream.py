"""A client's connection to a broker: no request goes before the login, and a renewal loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kmigrate.model.security import Login, Security, Tls
from kmigrate.net import session
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.api import blank, decode_body, entity, frame_answer
from kmigrate.protocol.frames import peek_request
from kmigrate.router.process.upstream import Upstream
from kmigrate.router.shared.state import Outcome
from kmigrate.sandbox.security import SandboxSecurity

_LIFETIME_S = 0.2
LATER = 1 << 30
"""Correlation id of a request that stays unanswered for days, as a fetch may."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this broker accept a renewal at any time."""
    monkeypatch.setattr(session, "_BETWEEN_LOGINS_S", 0.0)


class SaslBroker:
    """Accepts PLAIN logins with any password except "wrong".

    The broker echoes the correlation id of every other request except LATER.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.asked_later = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = await reader.readexactly(4)
                frame = bytearray(size + await reader.readexactly(struct.unpack(">i", size)[0]))
                writer.write(self._answer(frame))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    def _answer(self, frame: bytearray) -> bytes:
        head = peek_request(frame)
        if head.api_key not in (17, 36):
            self.heard.append(f"request {head.correlation_id}")
            if head.correlation_id == LATER:
                self.asked_later.set()
                return b""
            return struct.pack(">ii", 4, head.correlation_id)
        head = peek_request(frame, head.api_key == 36)
        kind = entity(head.api_key, head.version, "response")
        told: dict[str, Any] = {"mechanisms": ("PLAIN",)}
        if head.api_key == 36:
            word = bytes(decode_body(entity(36, head.version, "request"), frame, head.body).auth_bytes)
            password = word.split(b"\0")[2].decode()
            self.heard.append(f"login {password}")
            told = {"session_lifetime": dt.timedelta(seconds=_LIFETIME_S)}
            if password == "wrong":
                told = {"error_code": 58, "error_message": "no"}
        return frame_answer(blank(kind, **told), head.correlation_id)


class Scene:
    """An upstream connection to a broker of its own; `password` is the client's newest password."""

    def __init__(self, tasks: TaskOwner, broker: SaslBroker, password: str) -> None:
        self.password = password
        self.broker = broker
        self.found = asyncio.Event()
        """Set once the broker's address is known."""
        self.found.set()
        self.outcomes: list[Outcome] = []
        self.ended: list[str] = []
        self._changed = asyncio.Event()
        self.upstream = Upstream(tasks, self._addresses, self._security, partial(self._note, self.ended))

    async def _addresses(self) -> Sequence[tuple[str, int]]:
        await self.found.wait()
        return [("127.0.0.1", self.broker.port)]

    def _security(self) -> Security:
        return Security(sasl=Login("PLAIN", "me", self.password))

    def send(self, correlation: int) -> None:
        head = struct.pack(">hhih", 3, 4, correlation, -1)
        self.upstream.send([struct.pack(">i", len(head)) + head], correlation, partial(self._note, self.outcomes))

    async def asks(self) -> None:
        """Send a request, and wait for the answer."""
        wanted = len(self.outcomes) + 1
        self.send(wanted)
        await self.until(lambda: len(self.outcomes) == wanted)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def _note(self, notes: list[Any], what: Any) -> None:
        notes.append(what)
        self._changed.set()


def play(act: Callable[[Scene], Awaitable[None]], password: str = "first") -> Scene:
    async def run() -> Scene:
        broker, failures = SaslBroker(), list[BaseException]()
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        broker.port = server.sockets[0].getsockname()[1]
        tasks = TaskOwner(failures.append)
        scene = Scene(tasks, broker, password)
        await act(scene)
        scene.upstream.abort()
        await tasks.close()
        server.close()
        assert failures == []
        return scene

    return asyncio.run(run())


def refuse_once(listener: socket.socket, demands: ssl.SSLContext) -> None:
    """Refuse a TLS handshake with an alert, and read all later bytes, as Kafka does."""
    met = demands.wrap_socket(listener.accept()[0], server_side=True, do_handshake_on_connect=False)
    with contextlib.suppress(ssl.SSLError):
        met.do_handshake()
    with socket.socket(fileno=met.detach()) as plain, contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(1000):
            pass


def test_what_was_sent_to_a_broker_that_refuses_our_certificate_was_not_read(tmp_path: Path) -> None:
    """With TLS 1.3 the broker refuses after our first requests: such a write has certainly not been done."""
    authority = SandboxSecurity.create(tmp_path / "s")
    demands = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca_file))
    demands.verify_mode = ssl.CERT_REQUIRED
    demands.load_cert_chain(*authority.issue("broker"))

    async def run(listener: socket.socket) -> tuple[list[Outcome], str, str]:
        tasks, outcomes, ended = TaskOwner(), list[Outcome](), asyncio.Queue[str]()

        async def addresses() -> Sequence[tuple[str, int]]:
            return [("127.0.0.1", listener.getsockname()[1])]

        broker = asyncio.create_task(asyncio.to_thread(refuse_once, listener, demands))
        upstream = Upstream(tasks, addresses, lambda: Security(Tls(str(authority.ca_file))), ended.put_nowait)
        head = struct.pack(">hhih", 3, 4, 1, -1)
        upstream.send([struct.pack(">i", len(head)) + head], 1, outcomes.append)
        async with asyncio.timeout(15):
            why = await ended.get()
            await broker
        await tasks.close()
        return outcomes, why, upstream.distrust

    with socket.create_server(("127.0.0.1", 0)) as listener:
        outcomes, why, distrust = asyncio.run(run(listener))
    assert (outcomes, distrust in why) == ([Outcome(None, sent=False)], True), why
    assert "refused our side of TLS" in distrust


def test_requests_wait_for_the_login_and_for_its_renewal_by_the_newest_credential() -> None:
    async def act(scene: Scene) -> None:
        await scene.asks()
        scene.password = "second"
        while "login second" not in scene.broker.heard:
            await scene.asks()
        await scene.asks()
        assert scene.ended == []

    scene = play(act)
    assert scene.broker.heard[:2] == ["login first", "request 1"]
    assert all(outcome.frame is not None for outcome in scene.outcomes)


def test_a_credential_is_used_once_it_is_shown_if_it_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # A lifetime of zero means that nothing renews by itself.
    monkeypatch.setattr(sys.modules[__name__], "_LIFETIME_S", 0.0)

    async def act(scene: Scene) -> None:
        await scene.asks()
        scene.upstream.identified()
        await scene.asks()
        scene.password = "second"
        scene.upstream.identified()
        while "login second" not in scene.broker.heard:
            await scene.asks()

    heard = play(act).broker.heard
    assert [word for word in heard if word.startswith("login")] == ["login first", "login second"]


def test_a_refused_login_says_why_and_that_nothing_was_sent() -> None:
    async def act(scene: Scene) -> None:
        scene.send(1)
        scene.send(2)
        await scene.until(lambda: len(scene.ended) == 1)

    scene = play(act, "wrong")
    assert scene.broker.heard == ["login wrong"]
    assert [outcome.sent for outcome in scene.outcomes] == [False, False]
    assert all("refused the PLAIN login: no" in outcome.refused for outcome in scene.outcomes)
    assert "wrong" not in f"{scene.ended} {scene.outcomes}"


def test_who_asked_through_a_connection_that_is_closed_before_it_is_open_is_told_that_nothing_was_sent() -> None:
    """Requests that are counted until their answer would otherwise be counted for ever."""

    async def act(scene: Scene) -> None:
        scene.found.clear()
        scene.send(1)
        scene.send(2)
        scene.upstream.close_now()
        assert scene.outcomes == [Outcome(None, sent=False)] * 2
        scene.found.set()
        await scene.until(lambda: bool(scene.ended))

    scene = play(act)
    assert scene.broker.heard == []
    assert len(scene.outcomes) == 2


def test_a_connection_that_is_closed_when_answered_sends_what_waits_for_it_first() -> None:
    async def act(scene: Scene) -> None:
        scene.found.clear()
        scene.send(1)
        scene.upstream.close_when_answered()
        assert scene.outcomes == []
        scene.found.set()
        await scene.until(lambda: bool(scene.ended))

    scene = play(act)
    assert [outcome.frame is not None for outcome in scene.outcomes] == [True]


def test_what_is_answered_in_days_holds_no_connection_of_a_client_that_is_gone() -> None:
    """The connection closes after a moment although a request has no answer.

    Otherwise any client could leave a connection behind each time: by a write without acknowledgement, or by such a
    fetch.
    """

    async def act(scene: Scene) -> None:
        scene.send(LATER)
        await scene.broker.asked_later.wait()
        scene.upstream.close_when_answered(0.05)
        assert not scene.ended
        await scene.until(lambda: bool(scene.ended))

    scene = play(act)
    assert [outcome.frame for outcome in scene.outcomes] == [None]
