"""The diagram of lane states in docs/mirror.md, tested: `python -m kmigrate.cli.reference.lane_states FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from kmigrate.mirror.partition.transitions import TRANSITIONS, LaneState

__all__ = ["with_diagram"]

_MARKER = "<!-- Made by `python -m kmigrate.cli.reference.lane_states docs/mirror.md`; do not edit. -->\n"
_BEGIN, _END = "```mermaid\n", "```\n"


def with_diagram(page: str) -> str:
    """Return the page with today's diagram behind the marker."""
    before, marker, rest = page.partition(_MARKER + _BEGIN)
    arrows = [
        f"    {state.value} --> {following.value}: {event.value}\n"
        for (state, event), following in TRANSITIONS.items()
        if state is not following
    ]
    start = f"stateDiagram-v2\n    [*] --> {LaneState.LOST.value}\n"
    return "".join((before, marker, start, *arrows, _END, rest.partition(_END)[2]))


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_diagram(path.read_text(encoding="utf-8")), encoding="utf-8")
