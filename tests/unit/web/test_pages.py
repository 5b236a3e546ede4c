"""The page's paths and headers, and the ways by which a script could make markup from a name."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from importlib.resources import files

from kmigrate.net.http import PageServer
from kmigrate.web.feed import Feed
from kmigrate.web.pages import status_pages
from kmigrate.workflow.status.timeline import Timeline
from tests.fakes.status import migration

PAGE = files("kmigrate.web") / "page"


async def _look() -> None:
    raise AssertionError("nobody runs the feed")


def fed(*, first_look: bool = True) -> Feed:
    feed = Feed(_look, Timeline())  # type: ignore[arg-type]
    if first_look:
        feed.take(migration(0, 0), 0.0)
    return feed


async def asked(feed: Feed, *requests: bytes) -> list[bytes]:
    server = PageServer("127.0.0.1", 0, status_pages(feed))
    await server.start()
    host, port = server.address.rsplit(":", 1)
    answers = []
    for request in requests:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answers.append(await reader.read())
        writer.close()
    await server.close()
    return answers


def test_every_path_has_the_headers_that_forbid_what_the_page_does_not_need() -> None:
    paths = list(status_pages(fed()))
    assert paths == ["/", "/page.css", "/page.js", "/api/status", "/api/history"]
    answers = asyncio.run(asked(fed(), *(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths)))
    for answer in answers:
        head = answer.partition(b"\r\n\r\n")[0].decode()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "Content-Security-Policy: default-src 'none';" in head
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in head
        assert "unsafe" not in head
        for header in ("X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer", "Cache-Control: no-store"):
            assert f"\r\n{header}\r\n" in head + "\r\n"


def test_nothing_is_written_and_nothing_but_get_and_head_is_taken() -> None:
    requests = [f"{method} /api/status HTTP/1.1\r\n\r\n".encode() for method in ("POST", "PUT", "DELETE", "OPTIONS")]
    answers = asyncio.run(asked(fed(), *requests))
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 405 Method Not Allowed"] * 4


def test_a_status_that_is_not_known_yet_is_no_status() -> None:
    feed = fed(first_look=False)
    assert status_pages(feed)["/api/status"].status() == HTTPStatus.SERVICE_UNAVAILABLE
    assert status_pages(feed)["/api/history"].status() == HTTPStatus.OK
    assert status_pages(fed())["/api/status"].status() == HTTPStatus.OK


def test_the_page_loads_its_own_files_alone_and_has_no_style_or_script_inside() -> None:
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {
        "data:,", "page.css", "page.js", "#topics", "api/status", "api/history", "metrics",
    }  # fmt: skip
    assert not re.search(r"<style|style=|<script>|\son\w+=", page)
    assert "url(" not in (PAGE / "page.css").read_text(encoding="utf-8")


def test_no_text_becomes_markup_and_no_text_becomes_code() -> None:
    """A topic may be named `<img src=x onerror=…>`; `make soak-page` shows such names in a browser."""
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|setTimeout\(\"|javascript:"
    assert not re.search(made, script)
    assert re.findall(r"\.textContent = (.*);", script)
    for text in re.findall(r"\.textContent = (.*);", script):
        plain = text.startswith(
            ("shown(", "all.length", "status.groups.length", "found.length", "`Show all", "newest ?")
        )
        assert plain, f"a text that `shown` has not looked at: {text}"


def test_the_page_waits_for_no_answer_without_end() -> None:
    """A network that is cut answers nothing at all; the page has to say so."""
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    assert re.findall(r"fetch\((.*)\);", script) == ["path, { signal: AbortSignal.timeout(PATIENCE_MS) }"]


def test_every_id_that_the_script_asks_for_is_on_the_page() -> None:
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    wanted = set(re.findall(r'at\("([\w-]+)"\)', script)) | set(re.findall(r'fill\("([\w-]+)"', script))
    assert wanted
    assert wanted <= set(re.findall(r'id="([\w-]+)"', page))
