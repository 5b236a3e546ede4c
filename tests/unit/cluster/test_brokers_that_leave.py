"""Admin requests whose broker leaves the metadata meanwhile: the request is sent again, and never counts as refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from kmigrate.cluster.admin import Admin
from kmigrate.errors import Unreachable
from kmigrate.model.settings import ClusterSettings


class _Leaving:
    """A cluster that loses the given number of requests, and answers the next with the given code (0: no error)."""

    def __init__(self, times: int, code: int = 0) -> None:
        self.times = times
        self.code = code
        self.asked = 0

    def poll(self, _: float) -> None:
        return

    def _answer(self) -> Future[Any]:
        self.asked += 1
        code = KafkaError._DESTROY_BROKER if self.asked <= self.times else self.code
        future: Future[Any] = Future()
        if code:
            future.set_exception(KafkaException(KafkaError(code)))
        else:
            future.set_result({})
        return future

    def create_topics(self, topics: Sequence[NewTopic], **_: Any) -> dict[str, Future[Any]]:
        return {topics[0].topic: self._answer()}

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[Any, Future[Any]]:
        return {resource: self._answer() for resource in resources}


def _admin(client: _Leaving, timeout: float = 30.0) -> Admin:
    admin = Admin(ClusterSettings("target", (("127.0.0.1", 1),), request_timeout_s=timeout))
    admin._client = client  # type: ignore[assignment]
    return admin


@pytest.mark.parametrize(("code", "made"), [(0, True), (KafkaError.TOPIC_ALREADY_EXISTS, False)])
def test_a_topic_is_asked_for_again(code: int, made: bool) -> None:
    client = _Leaving(2, code)
    assert asyncio.run(_admin(client).create_topic("orders", 1, 1)) is made
    assert client.asked == 3


def test_configs_of_all_topics_are_asked_for_again() -> None:
    client = _Leaving(1)
    assert asyncio.run(_admin(client).topic_configs(["a", "b"])) == {"a": {}, "b": {}}
    assert client.asked == 4


def test_a_cluster_whose_brokers_only_leave_is_unreachable_and_nothing_is_claimed() -> None:
    with pytest.raises(Unreachable) as caught:
        asyncio.run(_admin(_Leaving(1_000), timeout=0.3).create_topic("orders", 1, 1))
    assert caught.value.still_true == "nothing is known to have changed"


@pytest.mark.parametrize("steps", range(4))
def test_who_is_ended_just_as_the_answer_comes_is_ended(steps: int) -> None:
    """Otherwise a loop around an admin request would never end, and its canceller would wait for ever."""
    answer: Future[Any] = Future()

    class _Slow(_Leaving):
        def _answer(self) -> Future[Any]:
            return answer

    async def scene() -> None:
        task = asyncio.create_task(_admin(_Slow(0)).create_topic("orders", 1, 1))
        await asyncio.sleep(0.01)
        answer.set_result({})  # the answer is scheduled on the loop, and the loop has not run yet
        for _ in range(steps):
            await asyncio.sleep(0)
        ended = task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled() == ended

    asyncio.run(scene())
