"""Reads the listeners' certificate and the table of clients again after a change of their files, unnoticed by clients.

    every second ─── changed ──→ the same at the next look? ──→ read ──→ valid: used and logged
                                 (a write may be in progress)     └────→ invalid: logged once, the old data stay

An invalid file is also tried again every ten seconds: the table may name a file that does not exist yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kmigrate.errors import KmigrateError
from kmigrate.model.listener_access import ListenerAccess
from kmigrate.net.clock import sleep
from kmigrate.net.stamps import Stamps, stamps_of
from kmigrate.net.tls import ServerTls
from kmigrate.router.settings import RouterSettings

__all__ = ["Credentials"]

_log = logging.getLogger("kmigrate.router")
_LOOK_S = 1.0
_LOOKS_UNTIL_AGAIN = 10
_MOST_NAMES = 10


class Credentials:
    """The certificate and the table of clients of one router; `take` gets each newer table."""

    def __init__(self, settings: RouterSettings, tls: ServerTls | None, take: Callable[[ListenerAccess], None]) -> None:
        self._access = settings.access
        self._read = settings.read_access
        self._tls = tls
        self._take = take
        self._seen: Stamps = ()
        self._done: Stamps = ()
        """Stamps of the files at their last reading, successful or not."""
        self._broken = ""
        """Reason why the last reading failed, or ''."""
        self._looks = 0

    async def watch(self) -> None:
        while self._tls is not None or self._read is not None:
            await sleep(_LOOK_S)
            await asyncio.to_thread(self._renew_certificate)
            await self.look()

    def _renew_certificate(self) -> None:
        try:
            if self._tls is not None and self._tls.renew():
                _log.warning("the listeners' certificate was read again")
        except KmigrateError as error:
            _log.warning("the listeners keep their certificate: %s", error.what)

    async def look(self) -> None:
        """Look at the table's files once; reading thousands takes a while, and other clients are served meanwhile."""
        if self._read is None:
            return
        before, self._seen = self._seen, await asyncio.to_thread(stamps_of, self._access.files)
        self._looks += 1
        again = self._broken and not self._looks % _LOOKS_UNTIL_AGAIN
        if self._seen != before or (self._seen == self._done and not again):
            return
        self._done = self._seen
        try:
            access = await asyncio.to_thread(self._read)
        except KmigrateError as error:
            self._stays(error.what)
            return
        if access.identifies != self._access.identifies:
            self._stays("no client of the new one has a certificate")
            return
        self._broken = ""
        before_it, self._access = self._access, access
        if access != before_it:
            _log.warning("the table of clients was read again: %s", _told(before_it, access))
            self._take(access)

    def _stays(self, why: str) -> None:
        if why != self._broken:
            self._broken = why
            _log.warning("the table of clients stays as it was: %s", why)


def _told(before: ListenerAccess, after: ListenerAccess) -> str:
    """Return the names of new, changed and removed clients."""
    old, new = before.clients, after.clients
    news = {
        "new": new.keys() - old.keys(),
        "changed": {name for name in old.keys() & new.keys() if old[name] != new[name]},
        "gone": old.keys() - new.keys(),
    }
    return "; ".join(f"{what}: {_names(names)}" for what, names in news.items() if names)


def _names(names: set[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:_MOST_NAMES]) + (f" and {more} more" if (more := len(listed) - _MOST_NAMES) > 0 else "")
