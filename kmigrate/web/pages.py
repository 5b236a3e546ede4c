"""The paths of the web page, with headers that forbid the browser everything that the page does not need.

The page may load its own style and script, ask this server, and nothing else. Its script cannot make markup from text.
Nothing is kept: no cookie, no storage, no cache. No path changes anything, and the server takes GET and HEAD alone.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from pathlib import Path

from kmigrate.net.http import Page
from kmigrate.web.feed import Feed

__all__ = ["HEADERS", "status_pages"]

_FOLDER = Path(__file__).parent / "page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_JSON = "application/json; charset=utf-8"
_POLICY = (
    "default-src 'none'",
    "style-src 'self'",
    "script-src 'self'",
    "connect-src 'self'",
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS = (
    f"Content-Security-Policy: {'; '.join(_POLICY)}",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cross-Origin-Opener-Policy: same-origin",
    "Cache-Control: no-store",
)


def status_pages(feed: Feed) -> dict[str, Page]:
    """Return the pages by path."""
    pages = {path: _file(name, kind) for path, (name, kind) in _FILES.items()}

    def known() -> HTTPStatus:
        return HTTPStatus.OK if feed.newest is not None else HTTPStatus.SERVICE_UNAVAILABLE

    pages["/api/status"] = Page(_JSON, feed.status, known, HEADERS)
    pages["/api/history"] = Page(_JSON, feed.history, headers=HEADERS)
    return pages


def _file(name: str, kind: str) -> Page:
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return Page(kind, partial(iter, (text,)), headers=HEADERS)
