"""Which of a link's mirror processes live: each judges the others by its own clock, and itself more strictly.

Who has not been heard for the lease time counts as gone, and may only have been stopped. So a process relies on its
own last word, counted from before it was sent, for a part of that time: it stops believing itself before the others
do. And who does not hear itself cannot say that others are silent.

Who falls silent for that long may be succeeded before it speaks again, and one word more does not tell it so: what the
others decided is in the state log. So it does what is an owner's alone only after that was read to an end which is so
much later than its word that whoever decides then has heard it.
"""

from __future__ import annotations

from math import inf

from kmigrate.errors import Unreachable, WaitTimedOut
from kmigrate.model.presences import MirrorPresence, mirror_key
from kmigrate.net.clock import boottime, monotonic, sleep
from kmigrate.state.log import StateLog

__all__ = ["Membership"]

_SURE = 0.6
"""Part of the lease time during which a process may rely on its own last word."""
_HEARD = 0.5
"""Part of the lease time after which a word that was stored is known to whoever may still say that others are silent:
these have heard themselves since (`hears_itself`), and the log has one order."""
_LOOK_S = 1.0
_RETRY_S = 0.2


class Membership:
    """One process's view of the mirrors of a link."""

    def __init__(self, log: StateLog, link: str, instance: str, lease_s: float) -> None:
        self._log = log
        self._link = link
        self._instance = instance
        self._lease_s = lease_s
        self.sure_s = lease_s * _SURE
        """How long our own last word can be relied on."""
        self._said = -inf
        self._back = -inf
        """When we spoke again after a silence in which others may have taken our place; −inf once we know whether."""
        self._began = monotonic()

    def said(self, sent: float) -> None:
        """Others have our word, sent at this moment by `boottime`."""
        now = boottime()
        if self._said > -inf and now - self._said >= self.sure_s:
            self._back = now
        self._said = sent

    def sure(self) -> bool:
        """Whether nobody can have taken our place, as far as clocks run evenly: others go on while a machine sleeps.

        Except where the state says so, as it is known here.
        """
        return self._back == -inf and boottime() - self._said < self.sure_s

    async def come_back(self) -> None:
        """After each silence learn what others have decided meanwhile, for ever; raises as the state log does."""
        while True:
            back = self._back
            if back == -inf:
                await self._log.changed(_LOOK_S)
                continue
            await sleep(back + self._lease_s * _HEARD - boottime())
            try:
                await self._log.read_to_end()
            except (Unreachable, WaitTimedOut):
                await sleep(_RETRY_S)
                continue
            if self._back == back:
                self._back = -inf

    def hears_itself(self) -> bool:
        mine = self._log.presence.get(mirror_key(self._link, self._instance))
        return mine is not None and monotonic() - mine[1] <= self._lease_s / 2

    def silent(self, instance: str, since: float | None = None) -> bool:
        """Whether a process was not heard for the lease time; `since`: when we first watched for it."""
        if not self.hears_itself():
            return False
        word = self._log.presence.get(mirror_key(self._link, instance))
        watched = self._began if since is None else since
        heard = max(watched, word[1]) if word is not None else watched
        return monotonic() - heard >= self._lease_s

    def words(self) -> list[MirrorPresence]:
        """What the mirrors of this link have said that are not silent."""
        now = monotonic()
        return [
            word
            for word, heard in self._log.presence.values()
            if isinstance(word, MirrorPresence) and word.link == self._link and now - heard < self._lease_s
        ]
