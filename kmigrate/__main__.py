"""`python -m kmigrate`, and what the `kmigrate` script calls."""

from __future__ import annotations

import sys

from kmigrate.cli.app import main as run

__all__ = ["main"]


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
