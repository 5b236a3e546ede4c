"""Long windows need an answer of the last seconds that the topic needs a single in-sync replica."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy import min_insync
from kmigrate.mirror.copy.min_insync import MinInsync, read_min_insync


class Target:
    """A target whose topics have these values."""

    def __init__(self, **values: str) -> None:
        self.values = values
        self.asked: list[list[str]] = []
        self.silent = False
        self.changed = asyncio.Condition()

    @property
    def client(self) -> ClusterClient:
        return cast("ClusterClient", self)

    async def call(self, request: Any) -> Any:
        if self.silent:
            raise Unreachable("broker-unreachable", "no answer")
        assert all(each.configuration_keys == ("min.insync.replicas",) for each in request.resources)
        names = [str(each.resource_name) for each in request.resources]
        async with self.changed:
            self.asked.append(names)
            self.changed.notify_all()
        return SimpleNamespace(results=tuple(map(self._result, names)))

    def _result(self, name: str) -> Any:
        if name not in self.values:
            return SimpleNamespace(resource_name=name, error_code=ErrorCode.unknown_topic_or_partition, configs=())
        config = SimpleNamespace(name="min.insync.replicas", value=self.values[name])
        return SimpleNamespace(resource_name=name, error_code=ErrorCode.none, configs=(config,))


async def until_asked(target: Target, times: int) -> None:
    async with asyncio.timeout(5), target.changed:
        await target.changed.wait_for(lambda: len(target.asked) >= times)
    await asyncio.sleep(0)


def test_values_are_read_of_many_topics_and_unknown_topics_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(min_insync, "_MOST_TOPICS", 2)
    target = Target(a="1", b="2")
    assert asyncio.run(read_min_insync(target.client, ["a", "b", "c"])) == {"a": 1, "b": 2}
    assert target.asked == [["a", "b"], ["c"]]
    assert asyncio.run(read_min_insync(target.client, [])) == {}


def test_a_topic_counts_once_the_target_was_asked_and_only_while_the_answer_is_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(min_insync, "monotonic", lambda: now[0])
    monkeypatch.setattr(min_insync, "_LOOK_S", 0.01)

    async def scene() -> None:
        target = Target(a="1", b="2")
        it = MinInsync(target.client)
        task = asyncio.get_running_loop().create_task(it.run())
        assert [it.is_one("a"), it.is_one("b"), it.is_one("gone")] == [False] * 3
        await until_asked(target, 1)
        assert [it.is_one("a"), it.is_one("b"), it.is_one("gone")] == [True, False, False]
        assert it.above_one == {"b"}
        target.values["a"] = "2"
        await until_asked(target, len(target.asked) + 2)
        assert not it.is_one("a"), "somebody has raised the value"
        target.values["a"] = "1"
        await until_asked(target, len(target.asked) + 2)
        assert it.is_one("a")
        target.silent = True
        await asyncio.sleep(0.03)
        now[0] += 5
        assert it.is_one("a")
        now[0] += 2
        assert not it.is_one("a"), "the target has not answered lately"
        task.cancel()

    asyncio.run(scene())


def test_topics_that_nobody_asks_for_are_not_looked_at_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(min_insync, "monotonic", lambda: now[0])
    monkeypatch.setattr(min_insync, "_LOOK_S", 0.01)

    async def scene() -> None:
        target = Target(a="1", b="1")
        it = MinInsync(target.client)
        it.is_one("a")
        it.is_one("b")
        task = asyncio.get_running_loop().create_task(it.run())
        await until_asked(target, 1)
        now[0] += 59
        it.is_one("a")
        now[0] += 2
        await until_asked(target, len(target.asked) + 2)
        assert (target.asked[0], target.asked[-1]) == (["a", "b"], ["a"])
        task.cancel()

    asyncio.run(scene())
