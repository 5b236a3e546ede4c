"""A client's connection to a source: a missing credential, a refused credential, and an accepted login."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kmigrate.model.listener_access import ClientEntry, Identity, ListenerAccess
from kmigrate.model.presences import ClientWithoutCredential
from kmigrate.model.routes import Serve
from kmigrate.model.security import Login, Security
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.api import blank, entity, frame_answer
from kmigrate.protocol.frames import peek_request
from kmigrate.router.process import listeners
from kmigrate.router.process.listeners import ClientConnection
from kmigrate.router.shared.conversation import Future
from kmigrate.router.shared.state import Outcome
from tests.unit.router.router_fakes import Stage, route

ASKS = Security(sasl=Login("PLAIN", "kmigrate", "secret"))
SOURCE = ClusterSettings("old", (("127.0.0.1", 1),), security=ASKS)
ENTRY = ClientEntry("readers", upstream={"old": Security(sasl=Login("PLAIN", "readers", "pencil"))})
HANDSHAKE, AUTHENTICATE = 17, 36
PATIENCE_S = 20


class _Clusters:
    target_settings = ClusterSettings("target", (("127.0.0.1", 1),))

    def source_settings(self, link: str) -> ClusterSettings:
        return SOURCE

    def source_uuid(self, link: str) -> str:
        return link


class _Broker:
    """A source that refuses or takes each login, and answers every other request with its correlation id."""

    def __init__(self) -> None:
        self.code = 58

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                head = peek_request(bytearray(struct.pack(">i", size) + await reader.readexactly(size)))
                values: dict[int, dict[str, Any]] = {
                    HANDSHAKE: {"mechanisms": ("PLAIN",)},
                    AUTHENTICATE: {"error_code": self.code, "error_message": "no" if self.code else None},
                }
                kind = entity(head.api_key, head.version, "response")
                writer.write(frame_answer(blank(kind, **values.get(head.api_key, {})), head.correlation_id))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


Act = Callable[[Stage, ClientConnection, _Broker], Awaitable[None]]


def meet(identity: Identity, act: Act) -> None:
    """Call `act` with a connection of a client that has proved an identity."""

    async def scenario() -> None:
        broker, failures = _Broker(), list[BaseException]()
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        stage, tasks = Stage(route("t", Serve.FORWARD)), TaskOwner(failures.append)
        stage.shared.access = ListenerAccess(mechanisms=("SCRAM-SHA-512",))

        async def addresses() -> Sequence[tuple[str, int]]:
            return [("127.0.0.1", port)]

        connection = ClientConnection(
            stage.shared, tasks, addresses, lambda *_: addresses, _Clusters(), lambda _: None, lambda _: None, broker=1
        )
        connection.identified(identity)
        connection.session.client_id, connection.session.host = "billing-1", "10.0.0.5"
        try:
            async with asyncio.timeout(PATIENCE_S):
                await act(stage, connection, broker)
        finally:
            connection.abort()
            await tasks.close()
            server.close()
        assert failures == []

    asyncio.run(scenario())


async def written(connection: ClientConnection) -> Outcome:
    """Send a write to the source; return its outcome."""
    return await _awaited(connection.ask_source("l", 1, [_request()], 7))


async def asked(connection: ClientConnection) -> Outcome:
    """Send a request to a group coordinator of the source; return its outcome."""
    return await _awaited(connection.ask_coordinator("l", 1, [_request()], 7))


def _request() -> bytes:
    body = struct.pack(">hhih", 18, 0, 7, -1)
    return struct.pack(">i", len(body)) + body


async def _awaited(future: Future[Outcome]) -> Outcome:
    arrived: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    future.then(arrived.set_result)
    return await arrived


def told(stage: Stage) -> tuple[ClientWithoutCredential, ...]:
    stage.shared.missing_credentials.of_group("l", "billing-1", "billing")
    return stage.shared.missing_credentials.words({"l"}, {"billing"}, monotonic())


def test_a_client_without_a_credential_is_noted_and_logged_once() -> None:
    async def act(stage: Stage, connection: ClientConnection, _: _Broker) -> None:
        for _number in range(3):
            outcome = await asked(connection)
            assert (outcome.sent, "no credential" in outcome.refused) == (False, True)
        (client,) = told(stage)
        assert client == ClientWithoutCredential(
            "readers", "billing-1", "10.0.0.5", "l", "old", "", True, False, ("billing",)
        )
        assert (await written(connection)).refused
        assert told(stage)[0].writes
        (said,) = stage.backend.said
        assert said.startswith("requests of billing-1 at 10.0.0.5 as readers to the source of l are refused: ")
        assert said.endswith("cannot log in to the source as readers: the table of clients has no credential")

    meet(Identity("readers"), act)


def test_a_credential_that_the_source_refuses_is_noted_until_the_source_takes_a_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(stage: Stage, connection: ClientConnection, broker: _Broker) -> None:
        assert "refused the PLAIN login" in (await written(connection)).refused
        (client,) = told(stage)
        assert ("refused the PLAIN login" in client.refusal, client.writes) == (True, True)
        assert len(stage.backend.said) == 1
        broker.code = 0
        monkeypatch.setattr(listeners, "_LOGIN_PAUSE_S", 0.0)
        assert (await written(connection)).frame is not None
        assert told(stage) == ()

    meet(Identity("readers", None, ENTRY), act)
