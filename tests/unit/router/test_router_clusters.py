"""What the router asks of a source that does not answer: again and again, and it says so once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.net.tasks import TaskOwner
from kmigrate.router.clusters import Clusters
from tests.unit.router.router_fakes import table


class _Source:
    """A cluster of which the test says what is wrong."""

    def __init__(self) -> None:
        self.trouble, self.asked = "", 0
        self.metadata = SimpleNamespace(brokers={}, topics={})

    async def refresh(self, topics: Iterable[str]) -> Any:
        self.asked += 1
        if self.trouble:
            raise Unreachable("broker-unreachable", self.trouble)
        return self.metadata

    async def call(self, _: Any) -> Any:
        return SimpleNamespace(api_keys=[SimpleNamespace(api_key=0, max_version=9)])


def test_a_source_that_does_not_answer_is_named_once_and_once_more_when_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "kmigrate.router")
    link = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
    state, routes = SimpleNamespace(links=lambda: [link]), table()
    source = _Source()

    async def scenario() -> None:
        failures: list[BaseException] = []
        tasks = TaskOwner(failures.append)
        made = Clusters(
            cast("ClusterClient", _Source()), lambda _: cast("ClusterClient", source), tasks, lambda: None, lambda: None
        )
        made.follow(cast("Any", state), routes)
        async with asyncio.timeout(20):
            for source.trouble in ("nobody at a:1", "a:1 timed out", ""):
                made.refresh_source("l", "t")
                made.at_sources(frozenset({"t"}), lambda _: None)
                asked = source.asked
                while source.asked < asked + 4:
                    made.refresh_source("l", "t")
                    await asyncio.sleep(0.01)
        await tasks.close()
        assert failures == []

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if record.name == "kmigrate.router"]
    assert told == [
        "source of link l: nobody at a:1",
        "source of link l: a:1 timed out",
        "source of link l: it answers again",
    ]
