"""Whose turn it is to be fenced: a few at a time, in the order in which they came, a unit as one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from kmigrate.workflow.turns import Turns


class Line:
    """Topics of one link that ask for their turns, and the order in which they were given them."""

    def __init__(self, most: int) -> None:
        self.turns = Turns(most)
        self.gone: list[str] = []
        self.waited: dict[str, bool] = {}
        self._asked: list[asyncio.Task[None]] = []

    async def ask(self, topic: str, partitions: int, mates: Collection[str] = ()) -> None:
        self._asked.append(asyncio.create_task(self._take(topic, partitions, mates)))
        await self.settled()

    async def _take(self, topic: str, partitions: int, mates: Collection[str]) -> None:
        self.waited[topic] = await self.turns.take(("l", topic), partitions, {("l", mate) for mate in mates})
        self.gone.append(topic)

    async def over(self, topic: str) -> None:
        self.turns.over(("l", topic))
        await self.settled()

    def give_up(self, place: int) -> None:
        self._asked[place].cancel()

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def test_topics_go_together_while_there_is_room_and_the_others_in_the_order_in_which_they_came() -> None:
    async def scene() -> None:
        line = Line(200)
        for topic in ("a", "b", "c", "d"):
            await line.ask(topic, 100)
        assert line.gone == ["a", "b"]
        assert line.waited == {"a": False, "b": False}
        await line.over("b")
        assert line.gone == ["a", "b", "c"]
        await line.over("a")
        assert line.gone == ["a", "b", "c", "d"]
        assert line.waited["d"]

    asyncio.run(scene())


def test_a_topic_that_has_more_than_there_is_room_goes_alone_and_none_overtakes_it() -> None:
    async def scene() -> None:
        line = Line(200)
        await line.ask("a", 10)
        await line.ask("large", 1000)
        await line.ask("b", 10)
        assert line.gone == ["a"]
        await line.over("a")
        assert line.gone == ["a", "large"]
        await line.over("large")
        assert line.gone == ["a", "large", "b"]

    asyncio.run(scene())


def test_a_unit_has_one_turn_and_who_comes_last_of_it_goes_at_once() -> None:
    async def scene() -> None:
        line = Line(200)
        await line.ask("a", 100)
        await line.ask("t", 180, ["u"])
        await line.ask("b", 50)
        assert line.gone == ["a"], "t and u together have no room beside a"
        await line.over("a")
        assert line.gone == ["a", "t"]
        await line.ask("u", 180, ["t"])
        assert line.gone == ["a", "t", "u"], "and b, which came first, waits"
        await line.over("u")
        await line.over("t")
        assert line.gone == ["a", "t", "u", "b"]

    asyncio.run(scene())


def test_who_is_given_up_in_the_line_holds_nobody_up() -> None:
    async def scene() -> None:
        line = Line(100)
        for topic in ("a", "b", "c"):
            await line.ask(topic, 100)
        line.give_up(1)
        await line.over("a")
        assert line.gone == ["a", "c"]

    asyncio.run(scene())


def test_what_was_fenced_by_another_controller_counts_and_its_end_may_be_told_twice() -> None:
    async def scene() -> None:
        line = Line(100)
        line.turns.go(("l", "before"), 100)
        await line.ask("a", 100)
        assert line.gone == []
        await line.over("before")
        await line.over("before")
        assert line.gone == ["a"]

    asyncio.run(scene())
