"""Flags that several commands share, each spelled and explained in one place."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "AcceptMisplaced",
    "Conf",
    "Exclude",
    "Groups",
    "Link",
    "LogFormat",
    "LogLevel",
    "Master",
    "NoWait",
    "OffsetsMode",
    "PlanOnly",
    "Regex",
    "StartAt",
    "Timeout",
    "Topics",
    "Yes",
]

Link = Annotated[str | None, typer.Option("--link", help="Link (optional while only one exists).")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return as soon as the intent is written.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=0.0)]
Regex = Annotated[bool, typer.Option("--regex", help="Names are regular expressions; later matches are mirrored, too.")]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="REGEX", help="With --regex: leave out names that match this (may be repeated)."),
]
StartAt = Annotated[
    str,
    typer.Option("--from", metavar="earliest|latest|TIME", help="First record; TIME: ISO-8601 or epoch ms."),
]
OffsetsMode = Annotated[str, typer.Option("--offsets", metavar="auto|identical|mapped", help="Offsets on the target.")]
AcceptMisplaced = Annotated[
    bool,
    typer.Option("--accept-misplaced-members", help="Go on although promoted groups have members on the source."),
]
Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="Exact topic names.")]
Groups = Annotated[list[str] | None, typer.Argument(metavar="GROUP...", help="Exact consumer group names.")]
Master = Annotated[str, typer.Option("--master", help="Spark master.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark (may be repeated).")
]

LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="text|json", help="Form of the log on stderr (else [log] format).")
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="info|warning|error", help="Least level in the log (else [log] level)."),
]
