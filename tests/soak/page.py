"""The web page in a real browser: what it shows, how it looks, and what it costs -> build/soak/page.json.

A made-up migration is served by the real server. Headless Chromium opens the page at two sizes in light and dark, with
names that are meant to do harm, and with 1,000 topics. The pictures of the calm migration go to docs/images.

    python -m tests.soak.page [--images docs/images]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kmigrate.net.clock import boottime
from kmigrate.net.http import PageServer
from kmigrate.net.tasks import TaskOwner
from kmigrate.web.feed import Feed
from kmigrate.web.pages import status_pages
from kmigrate.workflow.status.snapshot import Snapshot
from kmigrate.workflow.status.timeline import Happened, Timeline, TimelineEvent
from tests.fakes.status import migration
from tests.soak.browser import Browser, Tab, browser

HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\u2028&amp;'\"</td>"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
IDLE_S = 30.0
_FOLDER = Path("build/soak")
PAST_S = 180
"""Seconds of the migration before the page is opened."""
BEGAN_MS = round(time.time() - PAST_S) * 1000


def events() -> list[TimelineEvent]:
    """Return the past of the made-up migration."""
    now = BEGAN_MS + PAST_S * 1000
    return [
        TimelineEvent(now - 900_000, Happened.LINK_CREATED, "blue", "link", "blue"),
        TimelineEvent(now - 890_000, Happened.MIRRORED, "blue", "topic", "orders"),
        TimelineEvent(now - 262_000, Happened.PROMOTE_ASKED, "blue", "topic", "sessions"),
        TimelineEvent(now - 260_000, Happened.FLIPPED, "blue", "topic", "sessions", "", 52, 9),
        TimelineEvent(now - 192_000, Happened.PROMOTE_ASKED, "blue", "topic", "audit"),
        TimelineEvent(now - 190_000, Happened.FLIPPED, "blue", "topic", "audit", "", 78, 14),
        TimelineEvent(now - 150_000, Happened.FLIPPED, "blue", "group", "billing"),
        TimelineEvent(now - 130_000, Happened.PROMOTE_ASKED, "blue", "topic", "payments"),
        TimelineEvent(now - 120_000, Happened.GIVEN_UP, "blue", "topic", "payments", "router r2 is silent", 10_004),
        TimelineEvent(now - 97_000, Happened.PROMOTE_ASKED, "blue", "topic", "payments"),
        TimelineEvent(now - 95_000, Happened.FLIPPED, "blue", "topic", "payments", "", 55, 11),
        TimelineEvent(now - 4_000, Happened.PROMOTE_ASKED, "blue", "topic", "orders"),
        TimelineEvent(now - 3_000, Happened.PROMOTE_ASKED, "blue", "group", "fraud-check"),
    ]


class Served:
    """A made-up migration behind the real server, in a thread of its own."""

    def __init__(self, shot: Callable[[int], Snapshot], past_every_s: int = 2) -> None:
        self._shot, self._past_every_s = shot, past_every_s
        self.url = ""
        self.busy_s = 0.0
        """Processor time of the server's thread."""
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        timeline = Timeline()
        timeline.events.extend(events())
        began = time.monotonic()

        async def look() -> Snapshot:
            return self._shot(PAST_S + round(time.monotonic() - began))

        feed = Feed(look, timeline)
        for second in range(0, PAST_S, self._past_every_s):
            feed.take(self._shot(second), at_s=boottime() - PAST_S + second)
        server = PageServer("127.0.0.1", 0, status_pages(feed))
        await server.start()
        tasks = TaskOwner()
        tasks.start(feed.run())
        self.url = f"http://{server.address}/"
        self._ready.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.1)
            self.busy_s = time.thread_time()
        await tasks.close()
        await server.close()

    @contextmanager
    def serving(self) -> Iterator[str]:
        self._thread.start()
        try:
            assert self._ready.wait(30)
            yield self.url
        finally:
            self._stop.set()
            self._thread.join(30)


def hostile(second: int) -> Snapshot:
    """Return a migration in which every text from outside is meant to do harm."""
    shot = migration(second, BEGAN_MS)
    return replace(
        shot,
        topics=tuple(replace(t, topic=f"{HOSTILE}{n}", reason=HOSTILE) for n, t in enumerate(shot.topics)),
        groups=tuple(replace(g, group=f"{HOSTILE}{n}", reason=HOSTILE) for n, g in enumerate(shot.groups)),
        links=tuple(replace(link, source=HOSTILE, notes=(HOSTILE,)) for link in shot.links),
        routers=tuple(replace(each, name=HOSTILE) for each in shot.routers),
        warnings=(HOSTILE,),
    )


def open_page(chromium: Browser, url: str, size: str, *, dark: bool = False) -> Tab:
    tab = chromium.open(url, *SIZES[size], dark=dark)
    tab.wait("document.querySelectorAll('#topic-rows tr').length > 0")
    tab.wait("document.querySelectorAll('#lag-plot path').length > 0")
    return tab


def look_at(chromium: Browser, images: Path) -> dict[str, Any]:
    """Open the calm migration at both sizes, use the page by keyboard, and take the pictures."""
    found: dict[str, Any] = {}
    with Served(lambda second: migration(second, BEGAN_MS)).serving() as url:
        for size in SIZES:
            for scheme in ("light", "dark"):
                tab = open_page(chromium, url, size, dark=scheme == "dark")
                wide = tab.value("document.documentElement.scrollWidth"), tab.value("innerWidth")
                assert wide[0] <= wide[1], f"{size} scrolls sideways: {wide}"
                tab.screenshot(images / f"page-{size}{'-dark' if scheme == 'dark' else ''}.png")
                found[f"contrast-{size}-{scheme}"] = contrast(tab)
                assert tab.complaints() == []
        tab = open_page(chromium, url, "desktop")
        figures = "[bytes(999_700), bytes(999.7), pause(999.7), clock(new Date(2026, 0, 1).getTime()).slice(-8)]"
        assert tab.value(figures) == ["1.00 MB", "1.00 kB", "1.0 s", "00:00:00"]
        tab.press("Tab", 9)
        assert tab.value("document.activeElement.className") == "skip", "the first stop is the way past the head"
        tab.press("Tab", 9)
        assert tab.value("document.activeElement.id") == "filter"
        tab.type("orders")
        assert tab.wait("document.querySelectorAll('#topic-rows tr').length === 1")
        assert tab.value("document.querySelector('#topic-rows .name').textContent") == "orders"
        first = tab.value("document.getElementById('age').textContent")
        assert tab.wait(f"document.getElementById('age').textContent !== {json.dumps(first)}"), "figures move on"
        assert tab.complaints() == []
    assert tab.wait("!document.getElementById('banner').hidden"), "a server that is gone is named"
    found["gone"] = tab.value("document.getElementById('banner').textContent")
    return found


_CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb(color).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (rgb(color)[3] === 255) return color;
    }
    return "white";
  };
  let worst = [99, ""];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!text || !node.checkVisibility() || node.closest(".skip")) continue;
    const ink = node.namespaceURI.endsWith("svg") ? getComputedStyle(node).fill : getComputedStyle(node).color;
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.outerHTML.slice(0, 80)];
  }
  return worst;
})()"""


def contrast(tab: Tab) -> float:
    """Return the worst contrast of a text with the colour behind; fail below 4.5, the limit of WCAG AA."""
    ratio, where = tab.value(_CONTRAST)
    assert ratio >= 4.5, f"contrast {ratio:.2f}: {where}"
    return round(float(ratio), 2)


def attack(chromium: Browser) -> None:
    """Show names that are meant to do harm: the page shows their text, and nothing else happens."""
    with Served(hostile).serving() as url:
        tab = open_page(chromium, url, "desktop")
        assert tab.value("document.querySelectorAll('img').length") == 0
        shown = tab.value("document.querySelector('#topic-rows .name').textContent")
        assert shown.startswith("<img src=x onerror=alert(1)>\\u202egnp.exe\\u2028&amp;'\"</td>"), shown
        text = tab.value("document.body.textContent + document.title")
        assert not set(text) & set("\u202e\u2028"), "the direction of text is ours"
        assert tab.complaints() == []


def load(chromium: Browser) -> dict[str, float]:
    """Let a page of 1,000 topics stand open, and return the share of a core that the server takes."""
    found = {}
    for topics in (0, 1_000):
        served = Served(lambda second, topics=topics: migration(second, BEGAN_MS, topics), 60)  # type: ignore[misc]
        with served.serving() as url:
            tab = open_page(chromium, url, "desktop")
            if topics:
                assert tab.value("document.querySelectorAll('#topic-rows tr').length") == 100
                assert tab.value("document.getElementById('more').textContent") == "Show all 1007"
                tab.screenshot(_FOLDER / "page-1000-topics.png")
            busy, began = served.busy_s, time.monotonic()
            time.sleep(IDLE_S)
            share = (served.busy_s - busy) / (time.monotonic() - began)
            found[f"core_share_{topics + 7}_topics"] = round(share, 4)
            tab.send("Page.close")
            assert share < 0.1, f"{topics} topics take {share:.0%} of a core"
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    images = parser.parse_args().images
    for folder in (images, _FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        found = look_at(chromium, images)
        attack(chromium)
        found |= load(chromium)
    (_FOLDER / "page.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
