"""A router's registration in the state log: made before the first client, removed when nothing is in flight.

Every fence waits for the instance that is registered under a name. An earlier instance that left its registration is
first recorded as a stray, because it may still run (V2). For strays a fence is sealed on the source.
"""

from __future__ import annotations

import logging
import os
import platform

from kmigrate.errors import KmigrateError
from kmigrate.model.records import RouterRecord, StrayRecord
from kmigrate.model.registered import already_runs
from kmigrate.model.state import State
from kmigrate.net.process import this_process
from kmigrate.state.log import StateLog

__all__ = ["Registration"]

_log = logging.getLogger("kmigrate.router")


class Registration:
    """The registration of one instance under a name."""

    def __init__(self, log: StateLog, name: str, host: str, instance: str) -> None:
        self._state_log = log
        self._name = name
        self._host = host
        self._instance = instance

    def stands(self, state: State) -> bool:
        """Return whether fences wait for this instance."""
        return any(each.name == self._name and each.instance == self._instance for each in state.routers())

    async def take(self, bootstrap: str, replaces: str | None = None) -> None:
        """Take the name; raise Refused if an instance other than `replaces` (None: any) has the name."""
        record = RouterRecord(
            self._name,
            self._instance,
            self._host,
            bootstrap,
            self._state_log.now_ms(),
            platform.node(),
            os.getpid(),
            this_process(),
        )

        def decide(state: State) -> RouterRecord | StrayRecord | None:
            before = state.records.get(record.key)
            if isinstance(before, RouterRecord) and before != record:
                if replaces is not None and before.instance not in (replaces, self._instance):
                    raise already_runs(before)
                stray = state.with_stray(before)
                if stray != state.stray(self._name):
                    return stray
            return None if before == record else record

        while not self.stands(self._state_log.state):
            await self._state_log.append(decide)

    async def leave(self) -> None:
        """Remove the registration, or the stray record if the name is taken; nothing may be in flight any more."""

        def decide(state: State) -> StrayRecord | tuple[str, None] | None:
            if self.stands(state):
                return f"router/{self._name}", None
            stray = state.stray(self._name)
            if stray is None or self._instance not in stray.instances:
                return None
            return stray.without(self._instance) or (stray.key, None)

        try:
            await self._state_log.append(decide, timeout=5.0)
        except KmigrateError as error:
            _log.warning("router %s stays registered: %s", self._name, error.what)
