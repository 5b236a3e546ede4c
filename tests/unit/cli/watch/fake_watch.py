"""Runs the full screen on the terminal of this process, with snapshots that need no cluster."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from kmigrate.cli.watch.app import watch
from kmigrate.workflow.status.group_detail import GroupDetail
from kmigrate.workflow.status.snapshot import Snapshot
from tests.fakes.snapshots import billing, estate, many


def main(topics: int) -> int:
    seconds = count()

    async def look() -> Snapshot:
        return many(topics, 0) if topics else estate(next(seconds))

    async def detail(link: str, group: str) -> GroupDetail:
        return billing()

    try:
        return int(asyncio.run(watch(look, detail, 1.0)))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
