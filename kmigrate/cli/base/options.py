"""Flags that several commands share, each spelled and explained in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from kmigrate.cli.base import completion

__all__ = [
    "AcceptMisplaced",
    "Conf",
    "Exclude",
    "Group",
    "Groups",
    "LagThreshold",
    "Link",
    "LinkName",
    "LogFormat",
    "LogLevel",
    "Master",
    "NewGroups",
    "NewTopics",
    "NoWait",
    "OffsetsMode",
    "PlanOnly",
    "PrintAcls",
    "Regex",
    "StartAt",
    "Timeout",
    "Topic",
    "Topics",
    "Yes",
]

LagThreshold = Annotated[
    int | None, typer.Option("--lag-threshold", min=0, help="Fence at this lag (else lag_threshold of the link).")
]
Link = Annotated[
    str | None,
    typer.Option("--link", help="Link (optional while only one exists).", autocompletion=completion.links),
]
LinkName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name of the link.", autocompletion=completion.links)
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what would be done, and change nothing.")]
PrintAcls = Annotated[
    bool, typer.Option("--print-acls", help="Print the rights that kmigrate needs, with kafka-acls.sh commands.")
]
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
Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC...", help="Exact topic names.", autocompletion=completion.mirrored_topics),
]
NewTopics = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC...", help="Exact topic names.", autocompletion=completion.source_topics),
]
Topic = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="Topic name.", autocompletion=completion.mirrored_topics),
]
Groups = Annotated[
    list[str] | None,
    typer.Argument(metavar="GROUP...", help="Exact consumer group names.", autocompletion=completion.mirrored_groups),
]
NewGroups = Annotated[
    list[str] | None,
    typer.Argument(metavar="GROUP...", help="Exact consumer group names.", autocompletion=completion.source_groups),
]
Group = Annotated[
    str | None, typer.Argument(metavar="GROUP", help="Group name.", autocompletion=completion.mirrored_groups)
]
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
