"""A very small HTTP/1.1 server for pages about the running process: GET and HEAD, nothing else.

The server is made for scrapers and probes: a single request per connection, no body, a head of at most 8 KiB within a
few seconds. Above a few dozen connections the oldest is ended: hanging scrapers must not block the probe that decides
whether this process lives. A page is made in pieces, and the process's real work goes on between the pieces.

A server on a loopback address answers only to names of this machine. Else a web site whose name a DNS server turns to
127.0.0.1 could read the pages through the browser of somebody on this machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from kmigrate.errors import Refused
from kmigrate.net.clock import monotonic, sleep

__all__ = ["Page", "PageServer"]

_HEAD_LIMIT = 8 << 10
_HEAD_S, _ANSWER_S = 5.0, 30.0
_MOST_CONNECTIONS = 32
_SLICE_S = 0.002
"""Longest uninterrupted work on a page, in seconds: copying must not wait for a page."""
_PLAIN = "text/plain; charset=utf-8"
_HOST = re.compile(rb"\r\nhost:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_PORT = re.compile(r":\d*$")


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a path."""

    content_type: str
    make: Callable[[], Iterable[str]]
    """Makes the page's text, in pieces that each take much less than `_SLICE_S`."""
    status: Callable[[], HTTPStatus] = lambda: HTTPStatus.OK
    """Returns the status of the answer, just before the page is made."""
    headers: tuple[str, ...] = ()


class PageServer:
    """Serves pages by path from `start` to `close`."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self._host, self._port = host, port
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._loopback = False
        """True if only this machine reaches the server."""
        self._serving: dict[asyncio.Task[None] | None, None] = {}
        """Connections, oldest first."""

    async def start(self) -> None:
        """Listen; raise Refused if the address is not available."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD_LIMIT)
        except OSError as error:
            raise Refused(
                "http-port-taken",
                f"no page can be served on {self._host}:{self._port}: {error.strerror or error}",
                still_true="nothing was started",
                next_step="choose another HOST:PORT for --metrics or --http, or leave it out",
            ) from error
        self._loopback = _is_loopback(self._server.sockets[0].getsockname()[0])

    def _is_ours(self, head: bytes) -> bool:
        """Return whether the request's Host header, if there is one, names this machine."""
        hosts = [each.decode("latin-1") for each in _HOST.findall(head)]
        return len(hosts) < 2 and all(_names_this_machine(host, self._host) for host in hosts)

    @property
    def address(self) -> str:
        """host:port of the listener."""
        assert self._server is not None, "start() comes first"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening, and end the open connections: no client keeps this process from its end."""
        if self._server is not None:
            self._server.close()
            for task in filter(None, self._serving):
                task.cancel()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving[task] = None
        if len(self._serving) > _MOST_CONNECTIONS:
            oldest = next(iter(self._serving))
            del self._serving[oldest]
            if oldest is not None:
                oldest.cancel()
        try:
            async with asyncio.timeout(_ANSWER_S):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()  # a client that sends a bad request or reads slowly gets no time
        except Exception:
            writer.write(_refusal(HTTPStatus.INTERNAL_SERVER_ERROR))
            writer.close()
            raise  # the page failed: the loop's exception handler says why
        finally:
            self._serving.pop(task, None)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _refusal(HTTPStatus.BAD_REQUEST)
        method, path = words[0], words[1].partition("?")[0]
        if self._loopback and not self._is_ours(head):
            return _refusal(HTTPStatus.MISDIRECTED_REQUEST, also="ask for localhost, or for this machine's address")
        page = self._pages.get(path)
        if page is None:
            return _refusal(HTTPStatus.NOT_FOUND, also=f"known: {', '.join(sorted(self._pages))}")
        if method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD")
        status = page.status()
        return _response(status, page.content_type, await _made(page), *page.headers, with_body=method == "GET")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_this_machine(host: str, listening: str) -> bool:
    name = _PORT.sub("", host).strip("[]").lower()
    return name in ("localhost", listening.lower()) or name.endswith(".localhost") or _is_loopback(name)


async def _made(page: Page) -> str:
    pieces: list[str] = []
    due = monotonic() + _SLICE_S
    for piece in page.make():
        pieces.append(piece)
        if monotonic() > due:
            await sleep(0)
            due = monotonic() + _SLICE_S
    return "".join(pieces)


def _refusal(status: HTTPStatus, *headers: str, also: str = "") -> bytes:
    return _response(status, _PLAIN, "\n".join(line for line in (status.phrase, also) if line) + "\n", *headers)


def _response(status: HTTPStatus, content_type: str, text: str, *headers: str, with_body: bool = True) -> bytes:
    body = text.encode()
    head = "\r\n".join(
        (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            *headers,
            "Connection: close",
            "\r\n",
        )
    )
    return head.encode("latin-1") + (body if with_body else b"")
