"""Many questions about partitions go out in few requests, and no caller gets an answer from before the call."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from kmigrate.cluster import requests
from kmigrate.cluster.requests import Key, RequestBatcher
from kmigrate.errors import Unreachable


class _Broker:
    """A broker that answers each partition with the number of the request; `opened` releases the answers."""

    def __init__(self) -> None:
        self.requests: list[list[Key]] = []
        self.opened = asyncio.Event()
        self.fails = False

    async def ask(self, keys: Collection[Key]) -> Mapping[Key, int]:
        self.requests.append(list(keys))
        number = len(self.requests)
        await asyncio.sleep(0)
        await self.opened.wait()
        if self.fails:
            raise Unreachable("connection-lost", "gone")
        return dict.fromkeys(keys, number)


def _keys(count: int) -> list[Key]:
    return [("t", partition) for partition in range(count)]


def test_what_is_asked_while_a_request_is_under_way_goes_with_the_next_one() -> None:
    async def scene() -> None:
        broker = _Broker()
        asked = RequestBatcher(broker.ask)
        first = asyncio.create_task(asked.ask(1, ("t", 0)))
        await asyncio.sleep(0)
        later = [asyncio.create_task(asked.ask(1, key)) for key in [*_keys(20), ("t", 0)]]
        await asyncio.sleep(0)
        broker.opened.set()
        assert await first == 1
        assert [await task for task in later] == [2] * 21
        assert broker.requests == [_keys(1), _keys(20)]

    asyncio.run(scene())


def test_a_broker_that_does_not_answer_holds_up_nobody_elses_partitions() -> None:
    async def scene() -> None:
        silent, other = _Broker(), _Broker()
        other.opened.set()
        brokers = {0: silent, 1: other}

        async def ask(keys: Collection[Key]) -> Mapping[Key, int]:
            return await brokers[min(partition for _, partition in keys)].ask(keys)

        asked = RequestBatcher(ask)
        stuck = asyncio.create_task(asked.ask(0, ("t", 0)))
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asked.ask(1, ("t", 1)), 1) == 1
        stuck.cancel()

    asyncio.run(scene())


def test_a_failure_is_told_to_all_who_asked_together_and_the_next_asks_anew() -> None:
    async def scene() -> None:
        broker = _Broker()
        broker.fails = True
        broker.opened.set()
        asked = RequestBatcher(broker.ask)
        told = await asyncio.gather(*(asked.ask(1, key) for key in _keys(3)), return_exceptions=True)
        assert [type(each) for each in told] == [Unreachable] * 3
        assert broker.requests == [_keys(3)[:1], _keys(3)[1:]]
        broker.fails = False
        assert await asked.ask(1, ("t", 0)) == 3

    asyncio.run(scene())


def test_who_is_cancelled_while_asking_for_all_leaves_the_others_their_answers() -> None:
    async def scene() -> None:
        broker = _Broker()
        asked = RequestBatcher(broker.ask)
        tasks = [asyncio.create_task(asked.ask(1, key)) for key in _keys(4)]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        broker.opened.set()
        assert [await task for task in tasks[1:]] == [2] * 3
        assert tasks[0].cancelled()

    asyncio.run(scene())


def test_very_many_partitions_are_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_MOST", 4)

    async def scene() -> None:
        broker = _Broker()
        broker.opened.set()
        asked = RequestBatcher(broker.ask)
        await asyncio.gather(*(asked.ask(1, key) for key in _keys(11)))
        assert sorted(key for request in broker.requests for key in request) == _keys(11)
        assert max(map(len, broker.requests)) <= 4

    asyncio.run(scene())
