"""The registry of error references: what each reference means, what is still true, and what to do.

`references.toml` holds the explanations, in areas. The reference of an error or finding never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import tomli

__all__ = ["Reference", "references"]

_FILE = "references.toml"


@dataclass(frozen=True, slots=True)
class Reference:
    """The explanation of a reference."""

    ref: str
    area: str
    what: str
    """What happened."""
    still_true: str
    """What is still true and safe."""
    next_step: str
    """What to do."""

    def as_json(self) -> dict[str, str]:
        return {
            "reference": self.ref,
            "area": self.area,
            "what": self.what,
            "still_true": self.still_true,
            "next": self.next_step,
        }


@cache
def references() -> Mapping[str, Reference]:
    """Return the explanations by reference, area by area."""
    areas = tomli.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    return {
        ref: Reference(ref, area, fields["what"], fields["still_true"], fields["next"])
        for area, found in areas.items()
        for ref, fields in found.items()
    }
