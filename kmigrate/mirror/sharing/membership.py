"""The live mirror processes of a link: each process judges the others by its own clock, and itself more strictly.

A process that has not been heard for the lease time counts as gone, but may only have been stopped. So a process relies
on its own last presence only for a part of the lease time, from before the presence was sent. A process thus stops
before the others declare it gone. A process that does not read its own presences cannot call others silent.

A process that was silent for that long may be replaced, and only the state log tells so. So the process works as an
owner only after reading the state log to the end, once every process that decides has heard its presence.
"""

from __future__ import annotations

from math import inf

from kmigrate.errors import Unreachable, WaitTimedOut
from kmigrate.model.presences import MirrorPresence, mirror_key
from kmigrate.net.clock import boottime, monotonic, sleep
from kmigrate.state.log import StateLog

__all__ = ["Membership"]

_SURE = 0.6
"""Part of the lease time during which a process may rely on its own last presence."""
_HEARD = 0.5
"""Part of the lease time after which a stored presence is known to all that may still declare others silent.

Such processes have heard themselves since then (`hears_itself`), and the log has one order.
"""
_LOOK_S = 1.0
_RETRY_S = 0.2


class Membership:
    """A process's view of the mirror processes of a link."""

    def __init__(self, log: StateLog, link: str, instance: str, lease_s: float) -> None:
        self.log = log
        self.link = link
        self.instance = instance
        self._lease_s = lease_s
        self.sure_s = lease_s * _SURE
        """Seconds for which the own last presence can be relied on."""
        self._announced = -inf
        self._back = -inf
        """Time of the first presence after a silence in which others may have replaced us; −inf once that is clear."""
        self._was_silent = False
        """True if that silence was so long that others may have called this process silent."""
        self._began = monotonic()

    def announced(self, sent: float) -> None:
        """Note that the others have this process's presence, which was sent at this time of `boottime`."""
        now = boottime()
        if self._announced > -inf and now - self._announced >= self.sure_s:
            self._back = now
            self._was_silent = self._was_silent or now - self._announced >= self._lease_s
        self._announced = sent

    def sure(self) -> bool:
        """Return whether no process can have replaced this process, as far as clocks run evenly; sleep counts.

        The caller compares the owner in the known state; this method tells whether that state may lack a replacement.
        """
        return self._back == -inf and boottime() - self._announced < self.sure_s

    def may_write(self) -> bool:
        """Return whether no process can have called this process silent, so that all its writes are still in turn.

        Compare-and-set protects a partition from a former owner in the same direction. After a change of direction the
        records that a former owner reads are copies of the records on the log to which the former owner writes.
        """
        return not self._was_silent and boottime() - self._announced < self._lease_s

    async def come_back(self) -> None:
        """Learn after each silence the others' decisions, for ever; raise the errors of the state log."""
        while True:
            back = self._back
            if back == -inf:
                await self.log.changed(_LOOK_S)
                continue
            await sleep(back + self._lease_s * _HEARD - boottime())
            try:
                await self.log.read_to_end()
            except (Unreachable, WaitTimedOut):
                await sleep(_RETRY_S)
                continue
            if self._back == back:
                self._back = -inf
                self._was_silent = False

    def hears_itself(self) -> bool:
        mine = self.log.presence.get(mirror_key(self.link, self.instance))
        return mine is not None and monotonic() - mine[1] <= self._lease_s / 2

    def silent(self, instance: str, since: float | None = None) -> bool:
        """Return whether a process was not heard for the lease time; `since`: the time when we first watched for it."""
        if not self.hears_itself():
            return False
        presence = self.log.presence.get(mirror_key(self.link, instance))
        watched = self._began if since is None else since
        heard = max(watched, presence[1]) if presence is not None else watched
        return monotonic() - heard >= self._lease_s

    def presences(self) -> list[MirrorPresence]:
        """Return the presences of this link's mirror processes that are not silent."""
        now = monotonic()
        return [
            presence
            for presence, heard in self.log.presence.values()
            if isinstance(presence, MirrorPresence) and presence.link == self.link and now - heard < self._lease_s
        ]
