"""One router's account of trial joins, and of members that the target refuses (`trials`). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kmigrate.model.presences import RefusedMember

__all__ = ["TrialBook"]

_MOST_TOLD = 20
"""Maximum refused members reported per group; a presence record must fit into one message."""
_MOST_KEPT = 1_000
"""Maximum refused members kept per group."""
_KEPT_S = 600.0
"""Time for which a refusal after the promote is reported."""


@dataclass(slots=True)
class TrialBook:
    """Refusals by group; those of trials also by the connection that made the trial."""

    _pending: Counter[str] = field(default_factory=Counter)
    _before: dict[str, dict[tuple[int, str], RefusedMember]] = field(default_factory=dict)
    _after: dict[str, dict[tuple[str, str], tuple[float, RefusedMember]]] = field(default_factory=dict)

    def asked(self, group: str) -> None:
        """Count a trial that has been sent."""
        self._pending[group] += 1

    def given_up(self, group: str) -> bool:
        """Count a trial that nobody waits for any more; return whether it was the group's last."""
        self._pending[group] -= 1
        self._pending = +self._pending
        return group not in self._pending

    def answered(self, group: str, connection: int, told: RefusedMember) -> bool:
        """Note the answer to a trial; return whether it was the group's last. An empty error is no refusal."""
        known = self._before.setdefault(group, {})
        known.pop((connection, told.client_id), None)
        if told.error and len(known) < _MOST_KEPT:
            known[connection, told.client_id] = told
        if not known:
            del self._before[group]
        return self.given_up(group)

    def parted(self, group: str, connection: int) -> None:
        """Drop what the trials of one connection said of a group."""
        known = self._before.get(group, {})
        for key in [key for key in known if key[0] == connection]:
            del known[key]
        if not known:
            self._before.pop(group, None)

    def after(self, group: str, now: float, told: RefusedMember) -> None:
        """Note the answer to a join after the promote; an empty error lets the client in."""
        known = self._after.setdefault(group, {})
        known.pop((told.client_id, told.host), None)
        if told.error and len(known) < _MOST_KEPT:
            known[told.client_id, told.host] = (now, told)
        if not known:
            del self._after[group]

    def watched(self, opened: Collection[str]) -> Collection[str]:
        """Return the groups whose joins are looked at: those that have just opened, and those with refusals."""
        return opened if not self._after else {*opened, *self._after}

    @property
    def unanswered(self) -> Mapping[str, int]:
        """The number of trials without an answer, by group."""
        return self._pending

    def words(self, waiting: Collection[str], now: float) -> Mapping[str, tuple[RefusedMember, ...]]:
        """Return the refused members; `waiting`: the groups that hold or follow, of which trials count."""
        for group in self._after.keys() & set(waiting):
            del self._after[group]
        for group, known in list(self._after.items()):
            kept = {key: each for key, each in known.items() if now - each[0] <= _KEPT_S}
            if kept:
                self._after[group] = kept
            else:
                del self._after[group]
        found = {group: list(known.values()) for group, known in self._before.items() if group in waiting}
        found |= {group: [told for _, told in known.values()] for group, known in self._after.items()}
        return {
            group: tuple(sorted(told, key=lambda each: (each.client_id, each.host, each.member_id))[:_MOST_TOLD])
            for group, told in sorted(found.items())
        }
