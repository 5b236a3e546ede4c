"""A state log in memory: the same contract as `kmigrate.state.log.StateLog`, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from kmigrate.errors import WaitTimedOut
from kmigrate.model.presences import ControllerPresence, MirrorPresence, RehearsalPresence, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.state import State
from kmigrate.net.clock import now_ms
from kmigrate.state.codec import Strays

T = TypeVar("T")
Presence = MirrorPresence | RouterPresence | ControllerPresence | RehearsalPresence


class MemoryLog:
    """A state log with atomic appends. `on_append` gets every appended record and may raise, as a crash would."""

    def strays(self) -> dict[str, Strays]:
        return {}

    def __init__(self, *records: Record) -> None:
        self.state = State()
        self.history: list[Record | None] = []
        self.lost = ""
        self.ahead_ms = 0
        """How far the log's clock is ahead of the test's clock."""
        self.presence: dict[str, tuple[Presence, float]] = {}
        self._changed = asyncio.Event()
        self.on_append: Callable[[Record | None], None] = lambda _: None
        for record in records:
            self._put(record.key, record)

    def _put(self, key: str, record: Record | None) -> None:
        self.state = self.state.with_record(key, record, self.state.epoch + 1)
        self.history.append(record)
        self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def now_ms(self) -> int:
        return now_ms() + self.ahead_ms

    def say(self, record: Presence) -> None:
        self.presence[record.key] = (record, 0.0)
        self._wake()

    async def announce(self, record: Presence) -> None:
        self.say(record)

    def silence(self, key: str) -> None:
        self.presence.pop(key, None)
        self._wake()

    def alive(self, kind: type[Any], within_s: float = 0.0) -> list[Any]:
        return [record for record, _ in self.presence.values() if isinstance(record, kind)]

    async def append(self, decide: Callable[[State], Any], timeout: float = 30.0) -> State:
        await asyncio.sleep(0)
        wanted = decide(self.state)
        if wanted is not None:
            key, record = wanted if isinstance(wanted, tuple) else (wanted.key, wanted)
            self._put(key, record)
            self.on_append(record)
        return self.state

    def meanwhile(self, write: Callable[[State], Any]) -> None:
        """Let another writer append before the next append."""
        append = self.append

        async def late(decide: Callable[[State], Any], timeout: float = 30.0) -> State:
            self.append = append  # type: ignore[method-assign]
            await append(write)
            return await append(decide, timeout)

        self.append = late  # type: ignore[method-assign]

    async def read_to_end(self, timeout: float = 30.0) -> State:
        return self.state

    async def wait(self, found: Callable[[State], T | None], timeout: float, what: str) -> T:
        async def look() -> T:
            while True:
                changed = self._changed
                value = found(self.state)
                if value is not None:
                    return value
                await changed.wait()

        try:
            return await asyncio.wait_for(look(), timeout)
        except TimeoutError:
            raise WaitTimedOut("wait-timed-out", f"waited for {what}") from None

    async def changed(self, timeout: float, *, state_only: bool = False) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return
