"""Cross-check of leaders: now and then, one broker after the other is asked who leads.

A broker that is cut off from its controller answers every request from old metadata, and the response does not show
that. A client that asks only that broker never hears of a later leader. So the other brokers are asked as well, in the
background, and nobody waits for them. Their answers count only if they name a later leader epoch. A broker that was
found to be behind another broker is asked last from then on, until its answers are as new again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kmigrate.cluster.broker_health import BrokerHealth
from kmigrate.cluster.metadata import Layout, Topics
from kmigrate.errors import Failed, Unreachable
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner

__all__ = ["LeadershipCrossCheck"]

_EVERY_S = 5.0
"""Seconds between two brokers' answers."""
_PATIENCE_S = 2.0
"""Seconds for each answer, connection and login included; a broker without an answer by then counts as silent."""
_REFUSED_S = 60.0
"""Seconds until a broker that has refused our login is asked again."""
_NO_WORD = frozenset({"no-answer", "other-cluster"})

Ask = Callable[[int, Topics], Awaitable[bytearray]]
"""Sends a metadata request about topics to a broker."""


class LeadershipCrossCheck:
    """The cross-check of a cluster's leaders."""

    def __init__(self, layout: Layout, silence: BrokerHealth, ask: Ask) -> None:
        self._layout = layout
        self._silence = silence
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
        known = {"{}:{}".format(*address): node for node, address in self._layout.known.brokers.items()}
        self._behind.intersection_update(known)
        self._asked = {address: at for address, at in self._asked.items() if address in known}
        now = monotonic()
        others = {address for address in known.keys() - {heard} if self._asked.get(address, 0.0) <= now}
        if not others:
            return
        address = min(others, key=lambda each: (self._silence.since(each), self._asked.get(each, 0.0), known[each]))
        self._asked[address] = now
        behind, later = False, False
        try:
            for topics in self._layout.questions():
                async with asyncio.timeout(_PATIENCE_S):
                    answer = await self._ask(known[address], topics)
                before = self._layout.known
                behind |= self._layout.hear_of_later(topics, answer)
                later |= self._layout.known is not before
        except TimeoutError:
            self._silence.note(address)
            return
        except Unreachable as error:
            if error.ref in _NO_WORD:
                self._silence.note(address)
            return
        except Failed:  # A foreground request reports a refused login; more tries would lock the account.
            self._asked[address] = monotonic() + _REFUSED_S
            return
        self._silence.spoke(address)
        self._behind.discard(address)
        self._behind.update({address} if behind else (), {heard} if later else ())
