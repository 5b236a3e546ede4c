"""A router that starts knows the other routers before its first client comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.router.process.clusters import Clusters
from kmigrate.router.process.server import Router
from kmigrate.router.settings import RouterSettings
from kmigrate.sandbox.ports import free_ports
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)


async def nothing(*_: Any) -> Any:
    return SimpleNamespace(topics={}, brokers={})


def test_a_router_that_starts_again_names_its_fallback_routers_from_the_first_answer_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clusters, "learn_target", nothing)
    target = SimpleNamespace(metadata=SimpleNamespace(topics={}, brokers={}), refresh=nothing, close=nothing)
    (port,) = free_ports(1)
    other = replace(RouterPresence("i2", "other", 1, 500), bootstrap="h:9", fallbacks={f"127.0.0.1:{port}": "h:10"})

    async def scene() -> None:
        log = MemoryLog(LINK)
        log.say(other)
        settings = RouterSettings(name="edge", host="127.0.0.1", port=port)
        router = Router(settings, cast("Any", target), lambda _: cast("Any", target), cast("Any", log), "i1")
        await router.start()
        try:
            assert [(each.host, each.port) for each in router._shared.book.fallbacks] == [("h", 10)]
        finally:
            await router.close()

    asyncio.run(scene())
