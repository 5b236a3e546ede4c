"""Runs requests of the router process in the background; its sessions wait for the results as futures."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kmigrate.net.tasks import TaskOwner
from kmigrate.router.shared.conversation import Future

__all__ = ["answer_later", "in_background"]

T = TypeVar("T")
P = ParamSpec("P")


class _HasTasks(Protocol):
    _tasks: TaskOwner


S = TypeVar("S", bound=_HasTasks)


def answer_later(tasks: TaskOwner, work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine as a task, and return the future of its result."""
    answer = Future[T]()

    async def run() -> None:
        answer.set(await work)

    tasks.start(run())
    return answer


def in_background(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Future[T]]:
    """Turn a coroutine method into a method that starts a task of `_tasks` and returns the future of its result."""

    @wraps(method)
    def start(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return answer_later(self._tasks, method(self, *args, **kwargs))

    return start
