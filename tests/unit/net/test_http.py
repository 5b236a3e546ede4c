"""The page server against raw bytes: only a plain GET is accepted, and the server waits for no client."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from kmigrate.errors import Refused
from kmigrate.net import http, retry
from kmigrate.net.http import Page, PageServer

PAGES = {
    "/metrics": Page("text/plain; version=0.0.4", lambda: ["a 1\n", "ü 2\n"]),
    "/healthz": Page("text/plain", lambda: ["ok\n"]),
}


async def answer(request: bytes, pages: dict[str, Page] = PAGES) -> bytes:
    server = PageServer("127.0.0.1", 0, pages)
    await server.start()
    host, port = server.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        await server.close()


def status(request: bytes) -> tuple[bytes, bytes]:
    """Return the answer's status line, and the rest of the answer."""
    line, _, rest = asyncio.run(answer(request)).partition(b"\r\n")
    return line, rest


def test_a_page_is_answered_with_its_type_its_length_in_bytes_and_a_close() -> None:
    line, rest = status(b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = rest.partition(b"\r\n\r\n")
    assert line == b"HTTP/1.1 200 OK"
    assert body == "a 1\nü 2\n".encode()
    assert b"Content-Type: text/plain; version=0.0.4\r\n" in head + b"\r\n"
    assert b"Content-Length: 9" in head
    assert head.endswith(b"Connection: close")


def test_head_has_the_length_and_no_body() -> None:
    line, rest = status(b"HEAD /healthz HTTP/1.1\r\n\r\n")
    assert line == b"HTTP/1.1 200 OK"
    assert b"Content-Length: 3" in rest
    assert rest.endswith(b"\r\n\r\n")


def test_other_paths_methods_and_things_that_are_no_http_are_told_apart() -> None:
    assert status(b"GET / HTTP/1.1\r\n\r\n")[0] == b"HTTP/1.1 404 Not Found"
    line, rest = status(b"POST /metrics HTTP/1.1\r\n\r\n")
    assert line == b"HTTP/1.1 405 Method Not Allowed"
    assert b"Allow: GET, HEAD" in rest
    assert status(b"\x00\x00\x00\x10hello kafka\r\n\r\n")[0] == b"HTTP/1.1 400 Bad Request"


def test_a_head_without_end_is_cut_off_at_its_limit() -> None:
    line, _ = status(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 3_000)
    assert line in (b"HTTP/1.1 431 Request Header Fields Too Large", b"")


def test_who_sends_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_HEAD_S", 0.1)
    assert asyncio.run(asyncio.wait_for(answer(b"GET /metr"), 5)) == b""


def test_a_page_that_cannot_be_made_ends_its_connection_and_not_the_server() -> None:
    async def ask(path: str) -> bytes:
        broken = {**PAGES, "/metrics": Page("text/plain", lambda: [str(1 // 0)])}
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
        return await answer(f"GET {path} HTTP/1.1\r\n\r\n".encode(), broken)

    heard: list[object] = []
    assert asyncio.run(ask("/metrics")).startswith(b"HTTP/1.1 500")
    assert isinstance(heard[0], ZeroDivisionError)
    assert asyncio.run(ask("/healthz")).startswith(b"HTTP/1.1 200")


def test_other_work_goes_on_while_a_long_page_is_made() -> None:
    async def ask() -> int:
        done = 0

        async def work() -> None:
            nonlocal done
            while True:
                done += 1
                await asyncio.sleep(0)

        busy = asyncio.get_running_loop().create_task(work())
        long = Page("text/plain", lambda: (str(sum(range(20_000))) for _ in range(100)))
        assert (await answer(b"GET /long HTTP/1.1\r\n\r\n", {"/long": long})).startswith(b"HTTP/1.1 200")
        busy.cancel()
        return done

    assert asyncio.run(ask()) > 10


def test_a_probe_is_answered_however_many_scrapers_hang() -> None:
    """A supervisor that relies on the probe would kill a working process."""

    async def scene() -> tuple[bytes, bytes]:
        server = PageServer("127.0.0.1", 0, PAGES)
        await server.start()
        host, port = server.address.rsplit(":", 1)
        hanging = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        for _, scraper in hanging:
            scraper.write(b"GET /metr")
        reader, probe = await asyncio.open_connection(host, int(port))
        probe.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        answered = await reader.read()
        try:
            oldest = await hanging[0][0].read()
        except ConnectionResetError:
            oldest = b""
        hanging[-1][1].write(b"ics HTTP/1.1\r\n\r\n")
        newest = await hanging[-1][0].read()
        for _, writer in [*hanging, (reader, probe)]:
            writer.transport.abort()
        await server.close()
        assert oldest == b""
        return answered, newest

    for answered in asyncio.run(scene()):
        assert answered.startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_says_nothing_does_not_outlast_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser opens connections ahead of its requests; from Python 3.12 on a server waits for all of them."""
    monkeypatch.setattr(http, "_HEAD_S", 3600.0)

    async def scene() -> bytes:
        server = PageServer("127.0.0.1", 0, PAGES)
        await server.start()
        host, port = server.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metr")
        assert await retry.until(lambda: bool(server._serving), every_s=0.01, within_s=20)
        try:
            async with asyncio.timeout(20):
                await server.close()
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.transport.abort()

    assert asyncio.run(scene()) == b""


def test_a_port_that_is_taken_is_one_named_refusal() -> None:
    async def twice() -> Refused:
        first = PageServer("127.0.0.1", 0, PAGES)
        await first.start()
        second = PageServer("127.0.0.1", int(first.address.rsplit(":", 1)[1]), PAGES)
        with pytest.raises(Refused) as caught:
            await second.start()
        await first.close()
        return caught.value

    refused = asyncio.run(twice())
    assert (refused.ref, refused.still_true) == ("http-port-taken", "nothing was started")


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        (b"localhost:9000", True),
        (b"LOCALHOST", True),
        (b"127.0.0.1:9000", True),
        (b"127.9.9.9", True),
        (b"[::1]:9000", True),
        (b"kmigrate.localhost:1", True),
        (b"evil.example:9000", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"10.0.0.7", False),
        (b"", False),
    ],
)
def test_a_server_of_this_machine_alone_answers_to_this_machines_names_alone(host: bytes, ours: bool) -> None:
    """A site whose name a DNS server turns to 127.0.0.1 must not read the pages through somebody's browser."""
    line, _ = status(b"GET /healthz HTTP/1.1\r\nAccept: */*\r\nhOST: " + host + b"\r\n\r\n")
    assert line == (b"HTTP/1.1 200 OK" if ours else b"HTTP/1.1 421 Misdirected Request")


def test_two_host_headers_are_none() -> None:
    line, _ = status(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    assert line == b"HTTP/1.1 421 Misdirected Request"


def test_a_page_may_have_a_status_and_headers_of_its_own() -> None:
    pages = {"/readyz": Page("text/plain", lambda: ["no\n"], lambda: HTTPStatus.SERVICE_UNAVAILABLE, ("X-Why: it",))}
    answered = asyncio.run(answer(b"GET /readyz HTTP/1.1\r\n\r\n", pages))
    assert answered.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nX-Why: it\r\n" in answered
    assert answered.endswith(b"\r\n\r\nno\n")
