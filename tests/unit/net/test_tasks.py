"""Tasks that end together, and the cancellation of a task that waits for other tasks."""

from __future__ import annotations

import asyncio

import pytest

from kmigrate.errors import Unreachable
from kmigrate.net.tasks import accompanied, in_turns, together, watched


async def _fails_when_ended() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise Unreachable("broker-unreachable", "went away")


async def _fails() -> None:
    await asyncio.sleep(0)
    raise Unreachable("broker-unreachable", "went away")


async def _gives(what: str) -> str:
    await asyncio.sleep(0)
    return what


def test_what_all_return_comes_in_their_order() -> None:
    assert asyncio.run(together(_gives("a"), _gives("b"))) == ("a", "b")
    assert asyncio.run(together()) == ()


def test_the_first_failure_is_raised_itself_once_the_others_have_ended() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with pytest.raises(Unreachable):
        asyncio.run(together(waits(), _fails()))
    assert ended == [True]


def test_the_failure_that_came_first_stands_for_those_that_it_caused() -> None:
    async def breaks() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(together(_fails_when_ended(), breaks()))


def test_who_is_cancelled_while_a_task_fails_is_cancelled() -> None:
    """Otherwise a loop that retries after failures would never end."""
    tries = []

    async def retries() -> None:
        while True:
            tries.append(1)
            try:
                await together(_fails_when_ended(), _fails_when_ended())
            except Unreachable:
                continue

    async def scene() -> None:
        task = asyncio.create_task(retries())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=2)
        assert task.cancelled()

    asyncio.run(scene())
    assert len(tries) == 1


def test_what_accompanies_a_work_is_ended_with_it() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    assert asyncio.run(accompanied(_gives("a"), waits(), _gives("b"))) == "a"
    assert ended == [True]


def test_a_failure_beside_a_work_ends_it() -> None:
    with pytest.raises(Unreachable):
        asyncio.run(accompanied(asyncio.sleep(60), _gives("b"), _fails()))


def test_who_is_cancelled_while_an_accompanied_work_fails_is_cancelled() -> None:
    async def scene() -> None:
        task = asyncio.create_task(accompanied(_fails_when_ended(), _fails_when_ended()))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=2)
        assert task.cancelled()

    asyncio.run(scene())


def test_a_work_that_is_over_soon_has_no_watch() -> None:
    assert asyncio.run(watched(_gives("a"), 60, lambda: pytest.fail("a watch was begun"))) == "a"
    with pytest.raises(Unreachable):
        asyncio.run(watched(_fails(), 60, lambda: pytest.fail("a watch was begun")))


def test_a_work_that_goes_on_for_long_is_ended_by_its_watch_or_ends_it() -> None:
    ended: list[str] = []

    async def waits(what: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(what)

    with pytest.raises(Unreachable):
        asyncio.run(watched(waits("work"), 0.001, _fails))
    assert ended == ["work"]

    async def scene() -> str:
        begun = asyncio.Event()

        async def work() -> str:
            await begun.wait()
            return "a"

        async def watch() -> None:
            begun.set()
            await waits("watch")

        return await watched(work(), 0.001, watch)

    assert asyncio.run(scene()) == "a"
    assert ended == ["work", "watch"]


@pytest.mark.parametrize("after_s", [0.0, 60.0])
def test_who_is_cancelled_while_a_watched_work_goes_on_is_cancelled_and_the_work_is_over(after_s: float) -> None:
    async def scene() -> None:
        over = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                over.set()

        task = asyncio.create_task(watched(work(), after_s, lambda: asyncio.sleep(60)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()
        assert over.is_set()

    asyncio.run(scene())


def test_a_deadline_around_tasks_that_fail_as_they_end_is_a_deadline() -> None:
    async def scene() -> None:
        async with asyncio.timeout(0.01):
            await together(_fails_when_ended(), _gives("a"))

    with pytest.raises(TimeoutError):
        asyncio.run(scene())


def test_a_long_loop_lets_other_tasks_have_their_turn() -> None:
    async def scene() -> tuple[list[int], list[int]]:
        seen: list[int] = []
        turns: list[int] = []

        async def other() -> None:
            while len(seen) < 1000:
                turns.append(len(seen))
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        async for item in in_turns(range(1000)):
            seen += [item]
        await beside
        return seen, turns

    seen, turns = asyncio.run(scene())
    assert seen == list(range(1000))
    assert turns == [250, 500, 750]
