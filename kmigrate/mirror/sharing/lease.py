"""The choice of the process that maintains a link: a lease in the state log, held as long as its holder is heard.

A lease is no fence: the holder's decisions are compare-and-set on the state that names the holder. The term continues
from the newest assignment's generation, so that terms and generations only grow together (V3).
"""

from __future__ import annotations

from kmigrate.mirror.sharing.membership import Membership
from kmigrate.model.records import LeaseRecord
from kmigrate.model.sharing import lease_of
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic

__all__ = ["Lease"]


class Lease:
    """A process's view of `lease/mirror/<link>`."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.what = lease_of(membership.link)
        self._watched: LeaseRecord | None = None
        self._since = monotonic()

    @property
    def held(self) -> bool:
        record = self._membership.log.state.lease(self.what)
        return record is not None and record.holder == self._membership.instance

    @property
    def term(self) -> int:
        record = self._membership.log.state.lease(self.what)
        return record.term if record is not None else 0

    def confirmed(self) -> bool:
        """Return whether no other process can have taken the lease yet, as far as clocks run evenly."""
        return self.held and self._membership.sure()

    def _vacant(self) -> bool:
        """Return whether the lease was released, or its holder not heard for the lease time by this process's clock."""
        record = self._membership.log.state.lease(self.what)
        if record != self._watched:
            self._watched, self._since = record, monotonic()
        if record is None or not record.holder:
            return True
        return self._membership.silent(record.holder, self._since)

    async def take_if_vacant(self) -> bool:
        """Become the holder if there is none; return whether this process is the holder."""
        if self.held:
            return True
        if not self._vacant():
            return False
        seen = self._membership.log.state.lease(self.what)

        def decide(state: State) -> LeaseRecord | None:
            if state.lease(self.what) != seen:
                return None
            assignment = state.assignment(self._membership.link)
            terms = (seen.term if seen is not None else 0, assignment.generation if assignment is not None else 0)
            return LeaseRecord(self.what, self._membership.instance, max(terms) + 1)

        await self._membership.log.append(decide)
        return self.held

    async def release(self) -> None:
        """Let another process take over at once; the term stays counted."""

        def decide(state: State) -> LeaseRecord | None:
            record = state.lease(self.what)
            if record is None or record.holder != self._membership.instance:
                return None
            return LeaseRecord(self.what, "", record.term)

        if self.held:
            await self._membership.log.append(decide, timeout=2.0)
