"""Pictures of `status --watch` in terminals of several sizes -> docs/images/status-*.svg.

    python -m tests.captures.status

The snapshots are the fixed ones of `tests.fakes.snapshots`, so that only a change of the screen changes a picture.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from kmigrate.cli.watch.app import Watch
from kmigrate.cli.watch.details import Look
from kmigrate.workflow.status.group_detail import GroupDetail
from kmigrate.workflow.status.progress import ProgressTracker
from kmigrate.workflow.status.snapshot import Snapshot
from tests.fakes.snapshots import AT_MS, billing, estate, many

__all__ = ["capture", "main"]

_FOLDER = Path(__file__).parents[2] / "docs" / "images"
_SECONDS = 12
_REMOTE_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_PICTURES: dict[str, tuple[tuple[int, int], Callable[[int], Snapshot], tuple[str, ...]]] = {
    "status-80x24": ((80, 24), estate, ()),
    "status-40x20": ((40, 20), estate, ()),
    "status-120x40": ((120, 40), estate, ()),
    "status-1000-topics": ((80, 24), lambda second: many(1_000, second), ()),
    "status-topic": ((80, 24), estate, ("down", "down", "down", "enter")),
    "status-group": ((80, 24), estate, ("tab", "enter")),
}


async def capture(
    size: tuple[int, int], shot_at: Callable[[int], Snapshot], keys: tuple[str, ...] = ()
) -> tuple[list[str], str]:
    """Return the screen after some seconds and keys, as lines of text and as SVG."""

    async def never() -> Snapshot:
        await asyncio.Event().wait()
        raise AssertionError

    async def detail(link: str, group: str) -> GroupDetail:
        return billing()

    tracker = ProgressTracker()
    for second in range(_SECONDS):
        look = Look(shot_at(second), tracker.add(shot_at(second), float(second)))
    app = Watch(never, detail, 1.0)
    with patch("kmigrate.cli.watch.app.now_ms", lambda: AT_MS + 1000 * _SECONDS):
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            app.show(look)
            await pilot.pause()
            await pilot.press(*keys)
            await pilot.pause()
            return screen_lines(app), _REMOTE_FONT.sub("", app.export_screenshot(title="kmigrate status --watch"))


def screen_lines(app: Watch) -> list[str]:
    """Return the lines that the terminal shows now."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def main() -> None:
    for name, (size, shot_at, keys) in _PICTURES.items():
        _, svg = asyncio.run(capture(size, shot_at, keys))
        (_FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"docs/images/{name}.svg")


if __name__ == "__main__":
    main()
