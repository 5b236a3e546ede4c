"""Groups with waiting members at this router: the group is held, and members that have moved retry again and again.

A router reports such groups, so that no group is forgotten: at the target the members would find no committed offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["WaitingGroups"]

_SILENT_S = 60.0
"""Far longer than any client waits between two retries, and usually longer than a client takes to restart."""


@dataclass(slots=True)
class WaitingGroups:
    """Time when a member of each group was last told to wait."""

    _asked: dict[str, float] = field(default_factory=dict)

    def asked(self, groups: Iterable[str], now: float) -> None:
        """Note that a member of each of these groups waits."""
        self._asked.update(dict.fromkeys(groups, now))

    def waiting(self, held: Collection[str], now: float) -> tuple[str, ...]:
        """Return the groups among the held groups that have waiting members; drop all others."""
        self._asked = {g: at for g, at in self._asked.items() if g in held and now - at <= _SILENT_S}
        return tuple(sorted(self._asked))
