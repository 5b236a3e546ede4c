"""Which engines a process runs: known to the commands before the engines' own code is imported."""

from __future__ import annotations

from enum import Flag, auto

__all__ = ["Engine"]


class Engine(Flag):
    """A set of engines."""

    MIRROR = auto()
    ROUTER = auto()
    CONTROLLER = auto()
