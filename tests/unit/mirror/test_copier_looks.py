"""How often a copier looks at both clusters, whatever its partitions meet."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.copier import Copier
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity


class _Calling(Copier):
    """Each of its looks finds something for which another one is called at once, as refused partitions do."""

    def __init__(self) -> None:
        nowhere = cast("ClusterClient", None)
        super().__init__(nowhere, nowhere, CopyIdentity(1, 0, 2, 0), cast("HoleMaker", None), MirrorSettings())
        self.looks: list[float] = []
        self.calls = True

    async def _look(self) -> None:
        self.looks.append(time.monotonic())
        if self.calls:
            self._signals.look_now.set()


async def _running(copier: Copier, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        work = group.create_task(copier.run())
        await asyncio.sleep(seconds)
        work.cancel()


def test_partitions_that_call_all_the_time_do_not_make_looks_follow_each_other_at_once() -> None:
    copier = _Calling()
    asyncio.run(_running(copier, 0.55))
    assert 2 <= len(copier.looks) <= 6


def test_after_a_rest_a_call_is_answered_at_once() -> None:
    async def scene() -> None:
        copier = _Calling()
        copier.calls = False
        async with asyncio.TaskGroup() as group:
            work = group.create_task(copier.run())
            await asyncio.sleep(0.3)
            called = time.monotonic()
            copier._signals.look_now.set()
            await asyncio.sleep(0.05)
            work.cancel()
        assert len(copier.looks) == 2
        assert copier.looks[1] - called < 0.05

    asyncio.run(scene())


def test_a_task_that_failed_ends_the_copier_although_looks_are_called_for() -> None:
    class Failing(_Calling):
        async def _look(self) -> None:
            await super()._look()
            if len(self.looks) == 2:
                self._on_failure(ValueError("broken"))

    async def scene() -> str:
        try:
            await asyncio.wait_for(Failing().run(), 2)
        except ValueError as error:
            return str(error)
        return ""

    assert asyncio.run(scene()) == "broken"
