"""A broker's keeper: a tiny process that ends its broker when the process that asked for it is gone.

It is the broker's parent and the child of whoever started the sandbox, and watches its own parent's
id. However that parent dies, kill -9 included, the keeper is adopted by another process, sees it
within a fraction of a second, kills the broker's process group and removes the broker's folder.
A pipe would do the same only while no fork of the parent keeps its other end open; Linux' "parent
death signal" follows the thread that forked, and macOS has none.

Run as a script by path, so that nothing of the package is imported: lifeline.py PARENT FOLDER COMMAND…
The first line of its output is the broker's process id.
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
    if os.getppid() != parent:  # it died before we ran
        return 1
    # Ctrl-C on a terminal is the parent's to handle; it ends us by going away.
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
    """The broker's folder, and the one around it once the last broker's keeper has been here."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
