"""Brokers that are silent, behind, or refuse our login; other brokers are asked instead.

A broker that stands still, or whose responses get lost, accepts connections and requests and answers nothing. Its
cluster elects other leaders within seconds, but a client that asks only the silent broker never learns of them. So a
request that any broker can answer goes to the next broker after a moment, and to silent brokers last.

A broker cut off from its controller answers from old metadata, without later leaders, and the response hides that. So
now and then the other brokers are asked who leads, one after the other, in the background. Their answers count only if
they name a later leader epoch. A broker found behind another is asked last until its answers are as new again.

Many loops retry a refused login, and many clusters lock accounts after some refusals. If no broker has accepted the
login since a refusal, the login may be wrong: for a while only brokers that accepted the login before are asked,
each once. Otherwise the fault is the broker's (an old certificate, or a new password that has not arrived), and only
that broker gets a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from kmigrate.cluster.metadata import MetadataCache, Topics
from kmigrate.errors import AuthenticationFailed, Failed, Unreachable
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner

__all__ = ["BrokerHealth", "LeadershipCrossCheck", "Logins", "first_answer"]

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
    health: BrokerHealth,
    timeout: float,
) -> _T:
    """Ask brokers one after the other, and return what `hear` makes of the first answer; raise Failed.

    If a broker of another cluster answers, `hear` raises Unreachable, and that broker is asked last, too. An address
    that accepts connections and closes them unanswered is asked once, before the other addresses.
    """
    deadline = monotonic() + timeout
    asking: dict[asyncio.Future[bytearray], BrokerConnection] = {}
    closing: dict[str, BaseException] = {}
    refused: AuthenticationFailed | None = None
    try:
        while (left := deadline - monotonic()) > 0:
            if refused is None:  # otherwise further logins would only lock the account
                try:
                    await _ask_another(asking, closing, any_broker, ask, left)
                except AuthenticationFailed as error:
                    if not asking:
                        raise
                    refused = error
            patience = min(max(0.0, deadline - monotonic()), _PATIENCE_S)
            done, _ = await asyncio.wait(asking, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                health.note(*(each.address for each in asking.values()))
            elif (result := _first(asking, done, hear, health, closing)) is not None:
                return result
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
    closing: Mapping[str, BaseException],
    any_broker: Callable[[], Coroutine[Any, Any, BrokerConnection]],
    ask: Callable[[BrokerConnection], asyncio.Future[bytearray]],
    left: float,
) -> None:
    """Ask a broker that was not asked yet, if there is one; stop opening a connection when an answer arrives.

    Raise the failure of the first of the addresses in `closing` if no other broker is left.
    """
    if not asking:
        connection = await any_broker()
        if connection.address in closing:
            raise next(iter(closing.values()))
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
    health: BrokerHealth,
    closing: dict[str, BaseException],
) -> _T | None:
    """Return a finished answer; None while other brokers may answer; raise the last failure if no broker is left.

    Note in `closing` a broker that closed the connection unanswered: other brokers may be left.
    """
    for answered in done:
        connection = asking.pop(answered)
        failure = answered.exception()
        if failure is None:
            try:
                result = hear(answered.result())
            except Unreachable as stranger:
                connection.give_up(stranger.what)
                health.note(connection.address)
                failure = stranger
            else:
                health.heard(connection.address)
                return result
        if isinstance(failure, Unreachable) and not connection.answered:
            closing.setdefault(connection.address, failure)
        elif not asking:
            raise failure
        health.note(connection.address)  # otherwise this broker would be asked next, at once and without end
    return None


_EVERY_S = 5.0
"""Seconds between two brokers' answers."""
_CHECK_PATIENCE_S = 2.0
"""Seconds for each answer, connection and login included; a broker without an answer by then counts as silent."""
_REFUSED_S = 60.0
"""Seconds until a broker that has refused our login is asked again."""
_NO_WORD = frozenset({"no-answer", "other-cluster"})

Ask = Callable[[int, Topics], Awaitable[bytearray]]
"""Sends a metadata request about topics to a broker."""


class LeadershipCrossCheck:
    """The cross-check of a cluster's leaders."""

    def __init__(self, cache: MetadataCache, health: BrokerHealth, ask: Ask) -> None:
        self._cache = cache
        self._health = health
        self._ask = ask
        self._asked: dict[str, float] = {}
        """Time of the last request to each broker; after a refused login, the earliest time of the next request."""
        self._behind: set[str] = set()
        self._began = 0.0
        self._tasks = TaskOwner()
        self._turn: asyncio.Task[None] | None = None

    def __contains__(self, address: str) -> bool:
        """Return whether this broker's last answer named earlier leaders than another broker's answer."""
        return address in self._behind

    def heard(self, address: str) -> None:
        """Note that this broker has named leaders, and ask another broker if one is due; never wait."""
        now = monotonic()
        self._began = self._began or now  # a process that asks once and leaves bothers no other broker
        if now - self._began >= _EVERY_S and (self._turn is None or self._turn.done()):
            self._began = now
            self._turn = self._tasks.start(self._ask_another(address))

    async def close(self) -> None:
        await self._tasks.close()

    async def _ask_another(self, heard: str) -> None:
        known = {"{}:{}".format(*address): node for node, address in self._cache.known.brokers.items()}
        self._behind.intersection_update(known)
        self._asked = {address: at for address, at in self._asked.items() if address in known}
        now = monotonic()
        others = {address for address in known.keys() - {heard} if self._asked.get(address, 0.0) <= now}
        if not others:
            return
        address = min(others, key=lambda each: (self._health.since(each), self._asked.get(each, 0.0), known[each]))
        self._asked[address] = now
        behind, later = False, False
        try:
            for topics in self._cache.questions():
                async with asyncio.timeout(_CHECK_PATIENCE_S):
                    answer = await self._ask(known[address], topics)
                before = self._cache.known
                behind |= self._cache.hear_of_later(topics, answer)
                later |= self._cache.known is not before
        except TimeoutError:
            self._health.note(address)
            return
        except Unreachable as error:
            if error.ref in _NO_WORD:
                self._health.note(address)
            return
        except Failed:  # A foreground request reports a refused login; more tries would lock the account.
            self._asked[address] = monotonic() + _REFUSED_S
            return
        self._health.spoke(address)
        self._behind.discard(address)
        self._behind.update({address} if behind else (), {heard} if later else ())


_PAUSE_S = 1.0
_OTHERS_PAUSE_S = 0.75
"""Pause before a broker not asked yet; shorter than `_PAUSE_S`, so that loops for the refusing broker come later."""


class Logins:
    """Login results of a cluster's brokers, by address."""

    def __init__(self) -> None:
        self._refused: dict[str, tuple[float, AuthenticationFailed]] = {}
        self._accepted: set[str] = set()
        self._doubt: tuple[float, AuthenticationFailed] | None = None
        """The newest refusal, if no login was accepted since."""

    def check(self, address: str) -> None:
        """Raise a recent refusal if no further login may be risked now."""
        now = monotonic()
        own = self._refused.get(address)
        if own is not None and now - own[0] < _PAUSE_S:
            raise own[1]
        if self._doubt is not None and address not in self._accepted and now - self._doubt[0] < _OTHERS_PAUSE_S:
            raise self._doubt[1]

    def refused(self, address: str, refusal: AuthenticationFailed) -> None:
        """Note that this broker refused the login."""
        self._doubt = self._refused[address] = monotonic(), refusal
        self._accepted.discard(address)

    def accepted(self, address: str) -> None:
        """Note that this broker accepted the login, which ends the doubt about the login itself."""
        self._refused.pop(address, None)
        self._accepted.add(address)
        self._doubt = None

    def rank(self, address: str) -> tuple[float, bool]:
        """Return a sort key: requests that any broker can answer go last to the broker with the greatest key."""
        return self._refused[address][0] if address in self._refused else 0.0, address not in self._accepted
