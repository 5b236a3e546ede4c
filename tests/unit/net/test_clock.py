"""The times at which scheduled calls are made."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
import uvloop

from kmigrate.net.clock import call_when, monotonic


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_no_call_is_made_before_its_time(run: object) -> None:
    """uvloop's own timers fire up to 0.8 ms early: about a quarter of these calls."""
    late: list[float] = []

    async def scenario() -> None:
        dice = random.Random(1)
        for _ in range(200):
            await asyncio.sleep(dice.random() / 500)
            when = monotonic() + 0.2
            call_when(when, partial(lambda due: late.append(monotonic() - due), when))
        call_when(monotonic() - 1, lambda: late.append(0.0))
        await asyncio.sleep(0.5)

    run(scenario())  # type: ignore[operator]
    assert len(late) == 201
    assert min(late) >= 0
