"""The kinds of engines that a process runs, importable by commands without the code of the engines."""

from __future__ import annotations

from enum import Flag, auto

__all__ = ["Engine"]


class Engine(Flag):
    """A set of engines."""

    MIRROR = auto()
    ROUTER = auto()
    CONTROLLER = auto()
