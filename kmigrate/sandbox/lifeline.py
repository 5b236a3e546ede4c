"""A broker's keeper: a tiny process that ends the broker when the process that asked for the broker is gone.

The keeper is the broker's parent, a child of the process that started the sandbox, and watches its own parent's id.
However the parent dies, kill -9 included, another process adopts the keeper. Within a fraction of a second the keeper
then kills the broker's process group and removes the broker's folder. Two other ways are weaker. A pipe works only
while no fork of the parent keeps the pipe's other end open. Linux' "parent death signal" follows the thread that
forked, and macOS has no such signal.

The keeper is a script that imports nothing of the package: lifeline.py PARENT FOLDER COMMAND… The output begins with
the broker's process id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

_LOOK_SECONDS = 0.2


def main(arguments: list[str]) -> int:
    parent, folder, command = int(arguments[0]), Path(arguments[1]), arguments[2:]
    if os.getppid() != parent:  # the parent died before this process ran
        return 1
    # The parent handles Ctrl-C on a terminal, and ends the keeper by going away.
    broker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    sys.stdout.write(f"{broker.pid}\n")
    sys.stdout.flush()
    while broker.poll() is None:
        if os.getppid() != parent:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(broker.pid, signal.SIGKILL)
            broker.wait()
            _remove(folder)
            return 1
        time.sleep(_LOOK_SECONDS)
    return broker.returncode


def _remove(folder: Path) -> None:
    """Remove the broker's folder, and the folder around it after the last broker."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
