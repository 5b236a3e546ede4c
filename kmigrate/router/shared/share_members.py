"""Members of share groups that may stay at the target, by the topics that were mirrored at their check. Pure.

A member names topics only when joining and when they change. A member may have subscribed before a topic was mirrored,
or at another router. So the router asks the member's coordinator, once whenever more topics are mirrored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmigrate.model.members import member_mark

__all__ = ["ShareMembers"]

_MOST_MEMBERS = 20_000
"""Maximum members; beyond that, the router asks again about the members that were checked longest ago."""


@dataclass(slots=True)
class ShareMembers:
    """Checked members of all connections of one router, without their topics, of which a client may name any number."""

    _mirrored: frozenset[str] = frozenset()
    _version: int = 0
    """Counter of the times that a topic was mirrored which was not mirrored before."""
    _cleared: dict[str, int] = field(default_factory=dict)
    """Version for which each member's topics were found not to be mirrored."""

    def is_cleared(self, group: str, member: str, mirrored: Mapping[str, object]) -> bool:
        return self._cleared.get(_mark(group, member)) == self._now(mirrored)

    def version(self, mirrored: Mapping[str, object]) -> int:
        """Return the version for which a member that is checked now is cleared."""
        return self._now(mirrored)

    def clear(self, group: str, member: str, version: int) -> None:
        """Remember a member that the target accepted, and that had no mirrored topic at a version."""
        mark = _mark(group, member)
        self._cleared.pop(mark, None)  # so that the newest stay last
        self._cleared[mark] = version
        if len(self._cleared) > _MOST_MEMBERS:
            del self._cleared[next(iter(self._cleared))]

    def forget(self, group: str, member: str) -> None:
        """Forget a member that has left, or asks for other topics."""
        self._cleared.pop(_mark(group, member), None)

    def _now(self, mirrored: Mapping[str, object]) -> int:
        if mirrored.keys() != self._mirrored:
            self._version += not mirrored.keys() <= self._mirrored
            self._mirrored = frozenset(mirrored)
        return self._version


def _mark(group: str, member: str) -> str:
    return member_mark(f"{group}\0{member}")
