"""Members of share groups that may stay at the target, by what was mirrored when they were looked at. Pure.

A member names its topics when it joins and when they change, and in no later heartbeat. So one that had subscribed
before its topic was mirrored, or to another router, is asked about at its coordinator, once for each time that more
topics are mirrored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.members import member_mark

__all__ = ["ShareMembers"]

_MOST_MEMBERS = 20_000
"""Beyond that, those that were looked at longest ago are asked about again."""


@dataclass(slots=True)
class ShareMembers:
    """One router's, of all its connections: their topics are not kept, for a client may name any number."""

    _mirrored: frozenset[str] = frozenset()
    _version: int = 0
    """One more each time that there is a topic which was not mirrored before."""
    _cleared: dict[str, int] = field(default_factory=dict)
    """For which version each member's topics were found not to be mirrored."""

    def is_cleared(self, group: str, member: str, mirrored: Mapping[str, object]) -> bool:
        return self._cleared.get(_mark(group, member)) == self._now(mirrored)

    def version(self, mirrored: Mapping[str, object]) -> int:
        """Return what a member that is looked at now is cleared for."""
        return self._now(mirrored)

    def clear(self, group: str, member: str, version: int) -> None:
        """Remember a member that the target took, and that had no mirrored topic at a version."""
        mark = _mark(group, member)
        self._cleared.pop(mark, None)  # so that the newest stand last
        self._cleared[mark] = version
        if len(self._cleared) > _MOST_MEMBERS:
            del self._cleared[next(iter(self._cleared))]

    def forget(self, group: str, member: str) -> None:
        """It has left, or asks for other topics."""
        self._cleared.pop(_mark(group, member), None)

    def _now(self, mirrored: Mapping[str, object]) -> int:
        if mirrored.keys() != self._mirrored:
            self._version += not mirrored.keys() <= self._mirrored
            self._mirrored = frozenset(mirrored)
        return self._version


def _mark(group: str, member: str) -> str:
    return member_mark(f"{group}\0{member}")
