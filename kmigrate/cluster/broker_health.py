"""Silent brokers, which accept connections and requests and answer nothing; other brokers are asked instead.

A broker that stands still, or whose responses get lost, refuses nobody. Its cluster elects other leaders within
seconds, but a client that asks only the silent broker never hears of them. So a request that any broker can answer goes
to the next broker after a moment, and to silent brokers last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner

__all__ = ["BrokerHealth", "first_answer"]

_T = TypeVar("_T")
_PATIENCE_S = 5.0
"""Seconds for an answer that any broker can give, before another broker is asked as well."""


class BrokerHealth:
    """The silent brokers of a cluster, by address."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.last_heard = ""
        """The broker that answered last."""

    def __contains__(self, address: str) -> bool:
        return address in self._since

    def since(self, address: str) -> float:
        """Return when a request to this broker was last found unanswered; 0 if the broker has answered since."""
        return self._since.get(address, 0.0)

    def note(self, *addresses: str) -> None:
        """Note that these brokers are silent now."""
        self._since.update(dict.fromkeys(addresses, monotonic()))

    def failed(self, address: str, error: Unreachable) -> None:
        """Note a failed request; a request lost with its connection says nothing about the next request."""
        if error.ref == "no-answer":
            self.note(address)

    def heard(self, address: str) -> None:
        """Note that this broker has answered, and answered last."""
        self.spoke(address)
        self.last_heard = address

    def spoke(self, address: str) -> None:
        """Note an answer to a request that only this broker got."""
        self._since.pop(address, None)


async def first_answer(
    any_broker: Callable[[], Coroutine[Any, Any, BrokerConnection]],
    ask: Callable[[BrokerConnection], asyncio.Future[bytearray]],
    hear: Callable[[bytearray], _T],
    silence: BrokerHealth,
    timeout: float,
) -> _T:
    """Ask brokers one after the other, and return what `hear` makes of the first answer; raise Failed.

    If a broker of another cluster answers, `hear` raises Unreachable. That broker is asked last from then on, too.
    """
    deadline = monotonic() + timeout
    asking: dict[asyncio.Future[bytearray], BrokerConnection] = {}
    refused: AuthenticationFailed | None = None
    try:
        while (left := deadline - monotonic()) > 0:
            if refused is None:  # otherwise further logins would only lock the account
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
                answer.exception()  # marks the exception as seen: another answer counts


async def _ask_another(
    asking: dict[asyncio.Future[bytearray], BrokerConnection],
    any_broker: Callable[[], Coroutine[Any, Any, BrokerConnection]],
    ask: Callable[[BrokerConnection], asyncio.Future[bytearray]],
    left: float,
) -> None:
    """Ask a broker that was not asked yet, if there is one; stop opening a connection when an answer arrives."""
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
    silence: BrokerHealth,
) -> _T | None:
    """Return a finished answer; None while other brokers may answer; raise the last failure if no broker is left."""
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
        silence.note(connection.address)  # otherwise this broker would be asked next, at once and without end
    return None
