"""Known features that this version lacks, by the verb with which a user may ask for the feature."""

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
}
"""Features by verb, without `kmigrate`."""

_NO_COMMAND = re.compile(r"No such command '([^']+)'")


def asked_for_absent(message: str, path: str) -> tuple[str, Absent] | None:
    """Return the absent verb of a usage error, with its feature; typer understood `path` before the error."""
    command = _NO_COMMAND.search(message)
    if command is None:
        return None
    words = f"{path} {command[1]}".removeprefix("kmigrate ")
    found = ABSENT.get(words)
    return (f"kmigrate {words}", found) if found is not None else None
