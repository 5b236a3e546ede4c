"""Names given as regular expressions, shared by `kmigrate topic` and `kmigrate group`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link, PlanOnly
from kmigrate.cli.base.output import Answer
from kmigrate.cli.views.plans import plan_answer
from kmigrate.cli.views.tables import table
from kmigrate.errors import UsageError
from kmigrate.model.patterns import check_expression
from kmigrate.workflow import verbs
from kmigrate.workflow.verbs.proposal import Noun

__all__ = ["add_patterns", "check_names"]

Forget = Annotated[
    list[str] | None, typer.Option("--forget", metavar="REGEX", help="Pick up no more names by this expression.")
]


def check_names(names: list[str], exclude: list[str] | None, *, regex: bool) -> list[str]:
    """Refuse invalid expressions before any cluster is contacted, and return the expressions of excluded names."""
    if exclude and not regex:
        raise UsageError(
            "exclude-without-regex",
            "--exclude leaves out names that --regex chooses, and there is no --regex",
            next_step="add --regex, or name fewer",
        )
    left_out = exclude or []
    if regex:
        for text in names:
            check_expression(text, "--regex")
        for text in left_out:
            check_expression(text, "--exclude")
    return left_out


def add_patterns(app: typer.Typer, noun: Noun) -> None:
    """Add the command `patterns` to the commands on topics or groups."""

    async def patterns(call: Call, forget: Forget = None, link: Link = None, plan: PlanOnly = False) -> Answer:
        return await _patterns(call, noun, forget, link, plan)

    patterns.__doc__ = (
        f"Show the expressions by which later {noun}s are picked up, or forget some.\n\n"
        f"{noun.capitalize()}s that are mirrored already stay mirrored."
    )
    command(app, "patterns")(patterns)


async def _patterns(call: Call, noun: Noun, forget: list[str] | None, link: str | None, plan: bool) -> Answer:
    async with call.connections() as connections:
        if forget:
            look = partial(verbs.forget_patterns, connections, call.link(link), noun, forget)
            return plan_answer(await call.carry_out(look, plan))
        record = verbs.resolve_link(connections.log.state, call.link(link))
        found = record.topic_patterns if noun == "topic" else record.group_patterns
        made = table("expression", "except", *(["offsets"] if noun == "topic" else []))
        for pattern in found:
            made.add_row(pattern.include, ", ".join(pattern.exclude), *([pattern.offsets] if noun == "topic" else []))
        return Answer({"link": record.name, "patterns": [asdict(pattern) for pattern in found]}, made)
