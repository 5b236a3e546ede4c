"""Tests of loops that wait, on a clock that no test has to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kmigrate.net import retry
from kmigrate.net.retry import Backoff, every, until
from tests.fakes.own_time import OwnTime


def play(monkeypatch: pytest.MonkeyPatch, scene: Coroutine[Any, Any, None]) -> None:
    loop = OwnTime()
    monkeypatch.setattr(retry, "monotonic", loop.time)
    loop.run(scene)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(("at_once", "rounds"), [(False, [2.0, 4.0, 6.0]), (True, [0.0, 2.0, 4.0])])
def test_rounds_have_a_pause_between_them(monkeypatch: pytest.MonkeyPatch, at_once: bool, rounds: list[float]) -> None:
    async def scene() -> None:
        began, seen = now(), list[float]()
        async for _ in every(2.0, at_once=at_once):
            seen.append(now() - began)
            if len(seen) == 3:
                break
        assert seen == rounds

    play(monkeypatch, scene())


def test_pauses_grow_up_to_the_longest_and_begin_again_after_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        backoff, began, tries = Backoff(1.0, 3.0), now(), list[float]()
        for _ in range(4):
            await backoff.pause(ValueError("no limit"))
            tries.append(now() - began)
        assert tries == [1.0, 3.0, 6.0, 9.0]
        backoff.reset()
        await backoff.pause()
        assert now() - began == 10.0

    play(monkeypatch, scene())


def test_tries_end_with_the_last_failure_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        tries, began = Backoff(1.0, within_s=2.5), now()
        for _ in range(3):
            await tries.pause(ValueError("not the last"))
        with pytest.raises(ValueError, match="the last"):
            await tries.pause(ValueError("the last"))
        assert (tries.over, now() - began) == (True, 3.0)

    play(monkeypatch, scene())


@pytest.mark.parametrize(("holds_after_s", "held"), [(0.0, True), (2.0, True), (9.0, False)])
def test_a_condition_is_waited_for_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, holds_after_s: float, held: bool
) -> None:
    async def scene() -> None:
        began = now()
        assert await until(lambda: now() - began >= holds_after_s, every_s=0.5, within_s=4.0) is held
        assert now() - began == (holds_after_s if held else 4.5)

    play(monkeypatch, scene())
