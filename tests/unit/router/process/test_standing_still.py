"""A router that stood still may have been called dead.

Such a router takes no clients before reading the decisions made meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.errors import Refused, Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import ClusterRef, LinkRecord, RouterRecord, TopicRecord
from kmigrate.model.routes import Serve
from kmigrate.router.process import server
from kmigrate.router.process.server import Router
from kmigrate.router.settings import RouterSettings
from tests.fakes.own_time import OwnTime
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
ROUTER = RouterRecord("edge", "i1", "host", "host:1", 1)
MIRRORED = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
PROMOTED = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, partitions=1)


class Log(MemoryLog):
    """A state log that others have written meanwhile; `away` is the number of failing reads."""

    away = 0
    meanwhile_written: tuple[Any, ...] = ()

    async def read_to_end(self, timeout: float = 30.0) -> Any:
        await asyncio.sleep(1.0)
        if self.away:
            self.away -= 1
            raise Unreachable("state-log-unreachable", "nobody leads it")
        for key, record in self.meanwhile_written:
            self._put(key, record)
        self.meanwhile_written = ()
        return self.state


class Client:
    """A client connection as the router sees it."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(host="h")
        self.resets: list[str] = []
        self.closed: list[str] = []
        self.draining = False

    def reset(self, reason: str = "") -> None:
        self.resets.append(reason)

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def abort(self) -> None:
        self.resets.append("abort")


class Scene:
    """A router that watches itself, with the events after a standstill of a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
        self.asleep = 0.0
        monkeypatch.setattr(server, "boottime", lambda: asyncio.get_running_loop().time() + self.asleep)
        source = SimpleNamespace(metadata=SimpleNamespace(topics={}, brokers={}), close=lambda: asyncio.sleep(0))

        async def refresh(_: Any) -> None:
            raise Unreachable("broker-unreachable", "nobody")

        source.refresh = refresh
        self.router = Router(
            RouterSettings(name="edge"), cast("Any", source), lambda _: cast("Any", source), cast("Any", log), "i1"
        )
        self.router._failed = asyncio.get_running_loop().create_future()
        self.router._tasks.start(self.router._watch_itself())

    @property
    def serves(self) -> Serve:
        return self.router._shared.table.topics["t"].serve

    async def comes(self) -> Client:
        client = Client()
        self.router._client_made(cast("Any", client))
        await asyncio.sleep(0)
        return client

    async def over(self) -> None:
        await self.router._tasks.close()


def played(monkeypatch: pytest.MonkeyPatch, log: Log, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def play() -> None:
        made = Scene(monkeypatch, log)
        await asyncio.sleep(1.0)
        try:
            await scene(made)
        finally:
            await made.over()

    OwnTime().run(play())


@pytest.mark.parametrize("away", [0, 3])
def test_who_stood_still_takes_nobody_before_it_has_read_what_was_decided_meanwhile(
    away: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have been promoted without the router.

    A write that the router then forwards would be acknowledged, and no mirror would copy the write.
    """
    log = Log(LINK, ROUTER, MIRRORED)
    log.away, log.meanwhile_written = away, ((PROMOTED.key, PROMOTED),)

    async def scene(at: Scene) -> None:
        before = await at.comes()
        at.asleep = 60.0
        await asyncio.sleep(0.3)
        assert (before.resets, before.closed) == ([""], [])
        while at.serves is Serve.FORWARD:
            assert at.router._shared.stood_still(), "an answer of the source is told to nobody"
            assert len((await at.comes()).closed) == 1
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        assert not at.router._shared.stood_still()
        assert (await at.comes()).closed == []
        assert at.serves is Serve.LOCAL

    played(monkeypatch, log, scene)


def test_who_was_called_dead_while_it_stood_still_ends_before_it_takes_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(LINK, ROUTER, MIRRORED)
    log.meanwhile_written = ((ROUTER.key, None),)

    async def scene(at: Scene) -> None:
        at.asleep = 60.0
        await asyncio.sleep(0.3)
        assert len((await at.comes()).closed) == 1
        with pytest.raises(Refused, match="registered"):
            await at.router.run()
        assert len((await at.comes()).closed) == 1

    played(monkeypatch, log, scene)
