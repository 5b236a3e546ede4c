"""Requests that leave together, and requests without an answer, on our own connection to a broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kmigrate.errors import Unreachable
from kmigrate.net.broker import BrokerConnection, OutgoingRequest

SILENT = 0
"""API key of requests that this server does not answer."""


class Server:
    """A server that answers each request with the request's API key, except requests with the key `SILENT`."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(4):
            frame = await reader.readexactly(struct.unpack(">i", head)[0])
            key, _, correlation = struct.unpack_from(">hhi", frame)
            self.seen.append(key)
            if key != SILENT:
                writer.write(struct.pack(">iih", 6, correlation, key))
        writer.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[BrokerConnection, Server]]:
    it = Server()
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    connection = await BrokerConnection.open("127.0.0.1", server.sockets[0].getsockname()[1], client_id="c")
    try:
        yield connection, it
    finally:
        connection.abort()
        server.close()


THREE = (
    OutgoingRequest(SILENT, 9, [b"data"], flexible=True, is_answered=False),
    OutgoingRequest(27, 1, [b"markers"], flexible=True),
    OutgoingRequest(2, 5, [b"ends"], flexible=False),
)


def test_requests_that_leave_together_are_answered_in_their_order() -> None:
    async def scene() -> None:
        async with connected() as (connection, server):
            before = connection.send(3, 1, [b""], flexible=False)
            answers = connection.send_together(*THREE)
            after = connection.send(18, 1, [b""], flexible=False)
            frames = await asyncio.gather(before, *answers, after)
            assert [struct.unpack_from(">h", frame, 8)[0] for frame in frames] == [3, 27, 2, 18]
            assert server.seen == [3, SILENT, 27, 2, 18]

    asyncio.run(scene())


def test_a_lost_connection_fails_every_request_that_is_due_an_answer() -> None:
    async def scene() -> None:
        async with connected() as (connection, _):
            connection.abort()
            connection.send_unanswered(SILENT, 9, [b"data"], flexible=True)
            for answer in connection.send_together(*THREE):
                with pytest.raises(Unreachable):
                    await answer

    asyncio.run(scene())
