"""Writes and reads the records of transactional ids in the state log, through which routers inform each other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from kmigrate.errors import KmigrateError
from kmigrate.model.records import TransactionRecord
from kmigrate.model.state import State
from kmigrate.net.tasks import TaskOwner
from kmigrate.router.process.answers import in_background
from kmigrate.state.log import StateLog

__all__ = ["StateLogTransactionStore"]

_log = logging.getLogger("kmigrate.router")
_PATIENCE_S = 5.0
"""Timeout, shorter than clients wait for an answer: while the state log is not reachable, clients have to retry."""


class StateLogTransactionStore:
    """Implements `TransactionStore`: writes as tasks; `follow` puts what was read into the routing table."""

    def __init__(self, log: StateLog, tasks: TaskOwner, follow: Callable[[], None]) -> None:
        self._state_log = log
        self._tasks = tasks
        self._follow = follow

    @in_background
    async def remember(self, record: TransactionRecord, *, begins: bool = False) -> bool:
        crossed = False

        def decide(state: State) -> TransactionRecord | None:
            nonlocal crossed
            told = replace(record, since=state.epoch + 1) if begins else record
            known = state.transaction(record.link, record.name)
            if known is None:
                return told
            crossed = known.crosses(told)
            wanted = known if crossed else known.merged(told)
            return None if wanted == known else wanted

        try:
            await self._state_log.append(decide, timeout=_PATIENCE_S)
        except KmigrateError as error:
            _log.warning("transactional id %s: %s", record.name, error.what)
            return False
        self._follow()
        return not crossed

    @in_background
    async def catch_up(self) -> bool:
        reached = True
        try:
            await self._state_log.read_to_end(timeout=_PATIENCE_S)
        except KmigrateError as error:
            _log.warning("the state log: %s", error.what)
            reached = False
        self._follow()
        return reached
