"""`kmigrate explain`: what the reference of an error or finding means."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.references import Reference, references
from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.errors import UsageError
from kmigrate.model.nearest import nearest

__all__ = ["app", "explain"]

app = typer.Typer()


@command(app, "explain", target=False)
def explain(
    call: Call,
    ref: Annotated[
        str | None, typer.Argument(metavar="REF", help="Reference at the end of an error: target-behind-group.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all references.")] = False,
) -> Answer:
    """Explain the reference of an error: what happened, what is still true, and what to do.

    The texts belong to this build. docs/errors.md has the same texts on a page.
    """
    known = references()
    if list_all:
        return Answer({"references": [each.as_json() for each in known.values()]}, _all(list(known.values())))
    asked = call.required(ref, "REF", "the reference of an error, as the error's last line names it").rstrip(":")
    found = known.get(asked)
    if found is None:
        raise UsageError(
            "unknown-reference",
            f"there is no reference {asked!r}{nearest(asked, known)}",
            still_true="nothing was contacted or changed",
            next_step="kmigrate explain --list",
        )
    return Answer(found.as_json(), _view(found))


def _view(found: Reference) -> RenderableType:
    head = Text.assemble((found.ref, "bold"), (f"  {found.area}", "dim"))
    rows = (("what happened", found.what), ("still true", found.still_true), ("what to do", found.next_step))
    return Group(head, *(Text.assemble((f"  {name}: ", "dim"), text) for name, text in rows))


def _all(found: list[Reference]) -> RenderableType:
    made = table("reference", "what happened")
    for each in found:
        made.add_row(each.ref, each.what)
    return made
