"""Owned tasks: referenced until done, with every failure reported, and ended with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar, overload

__all__ = ["TaskOwner", "accompanied", "in_turns", "together", "watched"]

_ITEMS_PER_TURN = 250
"""Number of items after which other tasks have their turn; an item takes some microseconds."""

_A = TypeVar("_A")
_B = TypeVar("_B")


@overload
async def together(one: Coroutine[Any, Any, _A], other: Coroutine[Any, Any, _B], /) -> tuple[_A, _B]: ...


@overload
async def together(*works: Coroutine[Any, Any, _A]) -> tuple[_A, ...]: ...


async def together(*works: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    """Return the results of all coroutines; the first failure ends the other coroutines and is raised.

    A cancellation of the caller outranks any failure: asyncio's task group would raise the failure (until Python 3.13).
    Then a loop that retries failures, and the code that cancelled the loop, would go on for ever.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    if not tasks:
        return ()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _end(tasks)
    _raise_failure(tasks, done)
    return tuple(task.result() for task in tasks)


async def accompanied(work: Coroutine[Any, Any, _A], *others: Coroutine[Any, Any, Any]) -> _A:
    """Return the result of `work`, then end `others`; failures and cancellation are as in `together`."""
    loop = asyncio.get_running_loop()
    main = loop.create_task(work)
    tasks: list[asyncio.Task[Any]] = [main, *(loop.create_task(other) for other in others)]
    done: set[asyncio.Task[Any]] = set()
    try:
        while not main.done() and not any(_failed(task) for task in done):
            newly, _ = await asyncio.wait(set(tasks) - done, return_when=asyncio.FIRST_COMPLETED)
            done |= newly
    finally:
        await _end(tasks)
    _raise_failure(tasks, done)
    return main.result()


async def watched(work: Coroutine[Any, Any, _A], after_s: float, watch: Callable[[], Coroutine[Any, Any, Any]]) -> _A:
    """Return the result of `work`; if the work takes longer than `after_s`, accompany the rest of it by `watch`.

    Most work is over sooner: then the second task, and the waits for it, would cost more than the work.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=after_s)
    except asyncio.CancelledError:
        await _end([task])
        raise
    return task.result() if done else await accompanied(_result(task), watch())


async def _result(task: asyncio.Task[_A]) -> _A:
    return await task


async def in_turns(items: Iterable[_A]) -> AsyncIterator[_A]:
    """Yield items, and let other tasks have their turn now and then; `items` must not change meanwhile."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is not None


def _raise_failure(tasks: list[asyncio.Task[Any]], done: set[asyncio.Task[Any]]) -> None:
    """Raise the failure that ended the other tasks, not a failure that their end caused."""
    for task in tasks:
        if task in done and not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks the failure as seen: only the first failure is raised


class TaskOwner:
    """Holds the tasks of an object; `on_failure` gets the exception of any task that fails."""

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Start a task; the owner keeps a reference until the task is done."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._on_failure is not None:
            self._on_failure(error)

    async def close(self) -> None:
        """Cancel the running tasks and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
