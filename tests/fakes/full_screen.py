"""Runs the full screen of `status --watch` on the terminal at stdin, with snapshots that need no cluster.

    python -m tests.fakes.full_screen [--topics 1000] [--deaf]

The terminal becomes the controlling terminal of this process. `--deaf` ignores SIGHUP, as under nohup.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import signal
import sys
import termios
from contextlib import suppress
from itertools import count

from kmigrate.cli.base.signals import heeded
from kmigrate.cli.watch.app import watch
from kmigrate.workflow.status.group_detail import GroupDetail
from kmigrate.workflow.status.snapshot import Snapshot
from tests.fakes.snapshots import billing, estate, many


def main(topics: int) -> int:
    """Watch until the end; return the exit code."""
    seconds = count()

    async def look() -> Snapshot:
        return many(topics, 0) if topics else estate(next(seconds))

    async def detail(link: str, group: str) -> GroupDetail:
        return billing()

    with heeded():
        try:
            return int(asyncio.run(watch(look, detail, 1.0)))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return 130


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=0)
    parser.add_argument("--deaf", action="store_true")
    given = parser.parse_args()
    with suppress(OSError):  # it is the controlling terminal already
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if given.deaf:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main(given.topics))
