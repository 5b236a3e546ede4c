"""Who leads by the word of other brokers than the one that is asked: now and then, each in turn.

A broker that is cut off from its controller answers whatever it is asked, from the past, and nothing in its answers
shows it: who asks it alone never hears of a later leader. So the others are asked as well, by the way: nobody waits
for them. Their word counts where it names a later leader epoch, and nowhere else. Who is found to be behind another
is asked last from then on, until its word is as new again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kmigrate.cluster.layout import Layout, Topics
from kmigrate.cluster.silence import Silence
from kmigrate.errors import Failed, Unreachable
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import TaskOwner

__all__ = ["Others"]

_EVERY_S = 5.0
"""From one broker's word to the next one's."""
_PATIENCE_S = 2.0
"""For an answer, connection and login included, before the next broker's turn is waited for."""
_REFUSED_S = 60.0
"""Until a broker that has refused our login is asked again."""
_NO_WORD = frozenset({"no-answer", "other-cluster"})

Ask = Callable[[int, Topics], Awaitable[bytearray]]
"""A question about topics to one broker."""


class Others:
    """Of one cluster."""

    def __init__(self, layout: Layout, silence: Silence, ask: Ask) -> None:
        self._layout = layout
        self._silence = silence
        self._ask = ask
        self._asked: dict[str, float] = {}
        """When each was asked last; one that has refused us, when it may be asked again."""
        self._behind: set[str] = set()
        self._began = 0.0
        self._tasks = TaskOwner()
        self._turn: asyncio.Task[None] | None = None

    def __contains__(self, address: str) -> bool:
        """Whether this broker told of earlier leaders than another one when it was heard last."""
        return address in self._behind

    def heard(self, address: str) -> None:
        """This broker has told who leads: have another one tell, too, where that is due; never waits."""
        now = monotonic()
        self._began = self._began or now  # who asks once and leaves bothers nobody else
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
        except Failed:  # a login that is refused is told where somebody waits for it; to try it on would lock accounts
            self._asked[address] = monotonic() + _REFUSED_S
            return
        self._silence.spoke(address)
        self._behind.discard(address)
        self._behind.update({address} if behind else (), {heard} if later else ())
