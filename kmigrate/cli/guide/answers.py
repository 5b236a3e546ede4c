"""A person's answers to the guide, from flags and from questions, and the command that repeats the answers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from kmigrate.cli.guide.itinerary import Choices
from kmigrate.cli.guide.place import Place

__all__ = ["Answers"]


@dataclass
class Answers:
    """The answers so far, from flags and from questions."""

    topics: list[str]
    groups: list[str]
    link: str
    source: str
    target: str
    write: Path | None
    """The playbook to write; None once the playbook is written."""
    run: bool
    roll_producers: str
    roll_consumers: str
    verify: bool | None
    """None: not asked yet."""
    overwrite: bool = False
    moved: bool = False
    yes: bool = False
    config: Path | None = None
    place: Place = field(init=False)
    """The flags of this call that say where its clusters are."""

    def __post_init__(self) -> None:
        self.place = Place(str(self.config or ""), self.target)

    def command(self) -> str:
        """Return the command that goes on with these answers."""
        words = ["kmigrate", "guide"]
        named = (
            ("--config", [str(self.config)] if self.config else []),
            ("--link", [self.link] if self.link else []),
            ("--source", [self.source] if self.source else []),
            ("--target", [self.target] if self.target else []),
            ("--topic", self.topics),
            ("--group", self.groups),
            ("--roll-producers", [self.roll_producers] if self.roll_producers else []),
            ("--roll-consumers", [self.roll_consumers] if self.roll_consumers else []),
        )
        words += [word for flag, values in named for value in values for word in (flag, value)]
        if self.verify is not None:
            words.append("--verify" if self.verify else "--no-verify")
        words += ["--write", str(self.write)] if self.write else []
        switches = {
            "--overwrite": self.write and self.overwrite,
            "--clients-moved": self.moved,
            "--run": self.run,
            "--yes": self.yes,
        }
        return shlex.join([*words, *(flag for flag, given in switches.items() if given)])

    def choices(self) -> Choices:
        return Choices(
            self.link,
            self.source,
            self.target,
            tuple(self.topics),
            tuple(self.groups),
            self.roll_producers,
            self.roll_consumers,
            bool(self.verify),
            self.place,
        )
