"""The flags of a call that say where its clusters are, for the commands that the guide prints."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

__all__ = ["NOWHERE", "Place"]

_PROGRAM = "kmigrate "
_WITHOUT_TARGET = ("doctor", "init", "link create")
"""Commands that take no `--target` for the cluster of the state log."""


@dataclass(frozen=True, slots=True)
class Place:
    """The configuration file and the target that flags of the guide's call name; '' for a flag that is not given."""

    config: str = ""
    target: str = ""

    def at(self, command: str) -> str:
        """Return a command of kmigrate with these flags before its verb, where every command takes the flags."""
        verb = command.removeprefix(_PROGRAM)
        flags = ["--config", self.config] if self.config else []
        if self.target and not verb.startswith(_WITHOUT_TARGET):
            flags += ["--target", self.target]
        return f"{_PROGRAM}{shlex.join(flags)} {verb}" if flags else command


NOWHERE = Place()
"""The place of a call without such flags."""
