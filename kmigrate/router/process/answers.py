"""Runs coroutines of the router process for its sessions, which wait for the results as futures of conversations."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from kmigrate.net.tasks import TaskOwner
from kmigrate.router.shared.conversation import Future

__all__ = ["answer_later"]

T = TypeVar("T")


def answer_later(tasks: TaskOwner, work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine as a task, and return the future of its result."""
    answer = Future[T]()

    async def run() -> None:
        answer.set(await work)

    tasks.start(run())
    return answer
