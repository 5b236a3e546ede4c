"""`python -m kmigrate`, and what the `kmigrate` script calls."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    _fill_standard_streams()
    try:
        from kmigrate.cli.app import main as run  # it takes half a second, in which somebody may press Ctrl-C
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run())


def _fill_standard_streams() -> None:
    """A stream that was closed by who started us is nobody's; else the first connection to a broker would get its
    number, and with it what libraries write to stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


if __name__ == "__main__":
    main()
