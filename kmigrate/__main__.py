"""The entry point of `python -m kmigrate` and of the `kmigrate` script."""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    _fill_standard_streams()
    # Reference counts free nearly all objects. Frequent searches for cycles would take a third of a look's time among
    # thousands of topics.
    gc.set_threshold(50_000, 20, 20)
    try:
        from kmigrate.cli.app import main as run  # somebody may press Ctrl-C meanwhile
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run())


def _fill_standard_streams() -> None:
    """Open the null device for each standard stream that the parent process closed.

    Otherwise a broker's connection would get the stream's number, and libraries would write stderr into the connection.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number


if __name__ == "__main__":
    main()
