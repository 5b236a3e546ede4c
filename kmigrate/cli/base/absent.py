"""Known features that this version lacks, by the verb or option with which a user may ask for the feature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ABSENT", "Absent", "asked_for_absent"]


@dataclass(frozen=True, slots=True)
class Absent:
    """A feature that this version lacks, and what this version offers for the same purpose."""

    feature: str
    """The feature's name in the list of missing features (docs/promises.md)."""
    instead: str


_REVERT = Absent("other words for a rollback", "kmigrate rollback TOPIC")

ABSENT: Mapping[str, Absent] = {
    **dict.fromkeys(("revert", "failback", "demote"), _REVERT),
    "--target-lost": Absent("rollback without the target", "a rollback needs both clusters: kmigrate rollback TOPIC"),
}
"""Features by verb (without `kmigrate`) and by option."""

_NO_COMMAND = re.compile(r"No such command '([^']+)'")
_NO_OPTION = re.compile(r"No such option: (--[a-z-]+)")


def asked_for_absent(message: str, path: str) -> tuple[str, Absent] | None:
    """Return the absent verb or option of a usage error, with its feature; typer understood `path` before the error."""
    option = _NO_OPTION.search(message)
    if option is not None:
        found = ABSENT.get(option[1])
        return (f"{path} {option[1]}", found) if found is not None else None
    command = _NO_COMMAND.search(message)
    if command is None:
        return None
    words = f"{path} {command[1]}".removeprefix("kmigrate ")
    found = ABSENT.get(words)
    return (f"kmigrate {words}", found) if found is not None else None
