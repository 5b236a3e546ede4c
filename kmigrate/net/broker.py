"""Our own connection to one broker: requests in, futures of response frames out, first in first out."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any

from kmigrate.errors import ProtocolViolation, Unreachable
from kmigrate.net.stream import Buffer, FrameStream
from kmigrate.protocol.api import decode_body, encode_body, response_type
from kmigrate.protocol.frames import (
    SIZE,
    correlation_id,
    encode_request_head,
    response_body_offset,
)

__all__ = ["BrokerConnection"]


class BrokerConnection:
    """One TCP connection; ordered, pipelined. Every pending future fails when the connection is lost.

    A failed future says only that no answer came: whether the request was carried out stays unknown.
    """

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self._client_id = client_id.encode()
        self._ids = itertools.count(1)
        self._pending: deque[tuple[int, asyncio.Future[bytearray]]] = deque()
        self._stream = FrameStream(self._on_frame, self._on_lost)

    @classmethod
    async def open(cls, host: str, port: int, *, client_id: str, timeout: float = 10.0) -> BrokerConnection:
        """Connect, or raise Unreachable."""
        self = cls(f"{host}:{port}", client_id)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: self._stream, host, port)
        except (OSError, TimeoutError) as error:
            raise Unreachable(
                "broker-unreachable", f"no connection to {self.address}: {error or 'timed out'}"
            ) from error
        return self

    @property
    def lost(self) -> bool:
        return self._stream.lost

    @property
    def pending(self) -> int:
        """Requests sent and not yet answered."""
        return len(self._pending)

    def send(self, api_key: int, version: int, body: list[Buffer], *, flexible: bool) -> asyncio.Future[bytearray]:
        """Send one request now; the future gives the whole response frame."""
        future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        if self.lost:
            future.set_exception(Unreachable("connection-lost", f"the connection to {self.address} is lost"))
            return future
        number = next(self._ids) & 0x7FFFFFFF
        head = encode_request_head(api_key, version, number, self._client_id, flexible)
        size = len(head) + sum(len(part) for part in body)
        self._pending.append((number, future))
        self._stream.write_many([SIZE.pack(size) + head, *body])
        return future

    async def call(self, request: Any, timeout: float = 30.0) -> Any:
        """Send a kio request and read its response."""
        kind = type(request)
        answer = await self.call_raw(
            int(kind.__api_key__),
            int(kind.__version__),
            [encode_body(request)],
            flexible=kind.__flexible__,
            timeout=timeout,
        )
        at = response_body_offset(answer, kind.__flexible__ and int(kind.__api_key__) != 18)
        return decode_body(response_type(kind), answer, at)

    async def call_raw(
        self, api_key: int, version: int, body: list[Buffer], *, flexible: bool, timeout: float = 30.0
    ) -> bytearray:
        """Send one request and wait for its frame; a timeout closes the connection, as its order is lost."""
        future = self.send(api_key, version, body, flexible=flexible)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            self.abort()
            raise Unreachable(
                "no-answer", f"{self.address} did not answer api {api_key} within {timeout:g} s"
            ) from None

    async def drain(self) -> None:
        await self._stream.drain()

    def close(self) -> None:
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort()

    def _on_frame(self, frame: bytearray) -> None:
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
        while self._pending:
            _, future = self._pending.popleft()
            if not future.done():
                future.set_exception(
                    Unreachable("connection-lost", f"the connection to {self.address} was lost: {error or 'closed'}")
                )
