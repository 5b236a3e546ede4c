"""A command of which only the name and the first sentence are known until somebody calls or helps the command."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

__all__ = ["LazyCommand"]


class LazyCommand(TyperCommand):
    """A verb or a group of verbs whose module is imported when the command line reaches the verb.

    The module's Typer object makes the real command. A test compares the first sentence here with the real command's.
    """

    def __init__(self, name: str, source: str, sentence: str) -> None:
        """Take the command's name, the place of its Typer object (`module:name`), and its first sentence."""
        super().__init__(name, help=sentence, rich_markup_mode=None)
        self.source = source

    def load(self) -> TyperCommand | TyperGroup:
        """Import the module and return the real command."""
        module, _, name = self.source.partition(":")
        found: typer.Typer = getattr(import_module(module), name)
        tree = typer.Typer(rich_markup_mode=None)
        if isinstance(found.info.name, str):
            tree.add_typer(found)
        else:
            tree.registered_commands += found.registered_commands
        return cast("TyperCommand | TyperGroup", get_group(tree).commands[str(self.name)])

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the real command's context: typer invokes, helps and completes the context's command."""
        return self.load().make_context(info_name, args, parent, **extra)
