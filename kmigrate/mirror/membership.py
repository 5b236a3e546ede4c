"""Which of a link's mirror processes live: each judges the others by its own clock, and itself more strictly.

Who has not been heard for the lease time counts as gone, and may only have been stopped. So a process relies on its
own last word, counted from before it was sent, for a part of that time: it stops believing itself before the others
do. And who does not hear itself cannot say that others are silent.
"""

from __future__ import annotations

from kmigrate.model.presences import MirrorPresence, mirror_key
from kmigrate.net.clock import boottime, monotonic
from kmigrate.state.log import StateLog

__all__ = ["Membership"]

_SURE = 0.6
"""Part of the lease time during which a process may rely on its own last word."""


class Membership:
    """One process's view of the mirrors of a link."""

    def __init__(self, log: StateLog, link: str, instance: str, lease_s: float) -> None:
        self._log = log
        self._link = link
        self._instance = instance
        self._lease_s = lease_s
        self.sure_s = lease_s * _SURE
        """How long our own last word can be relied on."""
        self._said = -1e9
        self._began = monotonic()

    def said(self, sent: float) -> None:
        """Others have our word, sent at this moment by `boottime`."""
        self._said = sent

    def sure(self) -> bool:
        """Whether nobody can count us as gone yet, as far as clocks run evenly: others go on while a machine sleeps."""
        return boottime() - self._said < self.sure_s

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
