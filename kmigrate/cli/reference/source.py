"""Python source as syntax trees."""

from __future__ import annotations

import ast
import gc

__all__ = ["parse_source"]


def parse_source(text: str) -> ast.Module:
    """Return the syntax tree of a module.

    The garbage collector pauses: before CPython 3.11.8 and 3.12.2 a parse fails if a finalizer parses, too (gh-106905).
    A finalizer parses where it prints a traceback.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if paused:
            gc.enable()
