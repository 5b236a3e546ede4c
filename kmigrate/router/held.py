"""Which groups somebody waits for at this router: they hold, and the members that have moved come again and again.

A router tells it, so that no such group is forgotten: at the target its members would find no positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["HeldGroups"]

_SILENT_S = 60.0
"""Far longer than any client takes until it comes again, and than one takes to start again as a rule."""


@dataclass(slots=True)
class HeldGroups:
    """When somebody of a group was last told to wait."""

    _asked: dict[str, float] = field(default_factory=dict)

    def asked(self, groups: Iterable[str], now: float) -> None:
        """Somebody of these groups waits."""
        self._asked.update(dict.fromkeys(groups, now))

    def waiting(self, held: Collection[str], now: float) -> tuple[str, ...]:
        """Of the groups that are held now, those that somebody waits for; all others are dropped."""
        self._asked = {g: at for g, at in self._asked.items() if g in held and now - at <= _SILENT_S}
        return tuple(sorted(self._asked))
