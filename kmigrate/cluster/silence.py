"""Brokers that take connections and questions and answer nothing: who they are, and how others are asked as well.

A broker that stands still, or that nothing comes back from, refuses nobody. Its cluster has others lead what it has
led within seconds, but who asks it alone never hears of that: so what any broker can tell is asked of the next one
after a moment, and of the silent ones last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner

__all__ = ["Silence", "first_answer"]

_T = TypeVar("_T")
_PATIENCE_S = 5.0
"""For an answer that any broker can give, before another is asked for it as well."""


class Silence:
    """Of one cluster's brokers, by address."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.last_heard = ""
        """Who answered last."""

    def __contains__(self, address: str) -> bool:
        return address in self._since

    def since(self, address: str) -> float:
        """When a question to it was last found to have no answer; 0 where it has answered since."""
        return self._since.get(address, 0.0)

    def note(self, *addresses: str) -> None:
        self._since.update(dict.fromkeys(addresses, monotonic()))

    def failed(self, address: str, error: Unreachable) -> None:
        """A question to it has failed; one that was lost with its connection says nothing of the next."""
        if error.ref == "no-answer":
            self.note(address)

    def heard(self, address: str) -> None:
        self.spoke(address)
        self.last_heard = address

    def spoke(self, address: str) -> None:
        """It has answered something that only it was asked for."""
        self._since.pop(address, None)


async def first_answer(
    any_broker: Callable[[], Coroutine[Any, Any, BrokerConnection]],
    ask: Callable[[BrokerConnection], asyncio.Future[bytearray]],
    hear: Callable[[bytearray], _T],
    silence: Silence,
    timeout: float,
) -> _T:
    """What is heard in the first answer of the brokers that are asked one after the other; raises Failed.

    Whose answer is none of this cluster's, at which `hear` raises Unreachable, is asked last from then on, too.
    """
    deadline = monotonic() + timeout
    asking: dict[asyncio.Future[bytearray], BrokerConnection] = {}
    refused: AuthenticationFailed | None = None
    try:
        while (left := deadline - monotonic()) > 0:
            if refused is None:  # else to ask others would only lock the account
                try:
                    await _ask_another(asking, any_broker, ask, left)
                except AuthenticationFailed as error:
                    if not asking:
                        raise
                    refused = error
            patience = min(max(0.0, deadline - monotonic()), _PATIENCE_S)
            done, _ = await asyncio.wait(asking, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                silence.note(*(each.address for each in asking.values()))
            elif (told := _first(asking, done, hear, silence)) is not None:
                return told
        for each in asking.values():
            each.give_up(f"it did not answer within {timeout:g} s")
        who = ", ".join(each.address for each in asking.values())
        raise refused or Unreachable("no-answer", f"{who} did not answer within {timeout:g} s")
    finally:
        for answer in asking:
            if not answer.cancel():
                answer.exception()  # seen: another answer stands for it


async def _ask_another(
    asking: dict[asyncio.Future[bytearray], BrokerConnection],
    any_broker: Callable[[], Coroutine[Any, Any, BrokerConnection]],
    ask: Callable[[BrokerConnection], asyncio.Future[bytearray]],
    left: float,
) -> None:
    """Ask one that was not asked yet, where there is one; an answer that comes meanwhile waits for no connection."""
    if not asking:
        connection = await any_broker()
        asking[ask(connection)] = connection
        return
    tasks = TaskOwner()
    try:
        opening = tasks.start(any_broker())
        await asyncio.wait({opening, *asking}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return
        connection = opening.result()
    except Unreachable:
        return
    finally:
        await tasks.close()
    if all(connection.address != each.address for each in asking.values()):
        asking[ask(connection)] = connection


def _first(
    asking: dict[asyncio.Future[bytearray], BrokerConnection],
    done: set[asyncio.Future[bytearray]],
    hear: Callable[[bytearray], _T],
    silence: Silence,
) -> _T | None:
    """The answer of one of those that are done, raising the last failure; None while others may answer."""
    for answered in done:
        connection = asking.pop(answered)
        failure = answered.exception()
        if failure is None:
            try:
                told = hear(answered.result())
            except Unreachable as stranger:
                connection.give_up(stranger.what)
                silence.note(connection.address)
                failure = stranger
            else:
                silence.heard(connection.address)
                return told
        if not asking:
            raise failure
        silence.note(connection.address)  # else it would be the next one to be asked, at once and without an end
    return None
