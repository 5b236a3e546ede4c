"""The leader according to several brokers, of which a broker may answer with old metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from kmigrate.cluster import broker_health, leadership_check
from kmigrate.cluster.broker_health import BrokerHealth
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.leadership_check import LeadershipCrossCheck
from kmigrate.cluster.metadata import Layout, TopicInfo, Topics
from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from tests.unit.cluster.test_metadata import answer_of, decoded_answers
from tests.unit.cluster.test_metadata import versions as versions_of

BROKERS = (1, 2, 3)
T: Topics = ("t",)


def at(node: int) -> str:
    return f"127.0.0.1:{node}"


def told(*leaders: int, brokers: tuple[int, ...] = BROKERS, id_: int = 1, cluster: str = "c") -> bytearray:
    """Return an answer in which these brokers lead the partitions, each in the epoch of its number."""
    return answer_of(*brokers, leaders=leaders, id_=id_, cluster=cluster)


def layout(*leaders: int, **more: Any) -> Layout:
    known = Layout()
    known.hear(T, told(*leaders, **more))
    return known


def leaders(known: Layout) -> list[int]:
    return [part.leader for _, part in sorted(known.known.topics["t"].partitions.items())]


# answers that count


def test_later_leaders_are_believed_one_by_one_and_where_they_are() -> None:
    known = layout(2, 1, brokers=(1, 2))
    assert known.hear_of_later(T, told(1, 3))
    assert leaders(known) == [2, 3]
    assert known.known.brokers[3] == ("127.0.0.1", 3)
    assert not known.hear_of_later(T, told(2, 3))
    known.hear(T, told(1, 1))
    assert leaders(known) == [2, 3], "and what was believed stays so, whoever tells of the past"


def test_what_else_another_broker_tells_is_not_believed() -> None:
    """The other broker may lag behind: its answer has topics with another id, or unknown partitions and topics."""
    for others_word in (told(3, id_=2), told(1, 3), answer_of(*BROKERS), told(1, brokers=(1,))):
        known = layout(1)
        before = known.known
        assert not known.hear_of_later(T, others_word)
        assert known.known is before


def test_an_epoch_says_nothing_where_topics_have_no_ids() -> None:
    known = layout(1, id_=0)
    assert not known.hear_of_later(T, told(3, id_=0))
    assert leaders(known) == [1]


def test_who_answers_for_another_cluster_is_not_believed() -> None:
    known = layout(1)
    with pytest.raises(Unreachable, match="other"):
        known.hear_of_later(T, told(3, cluster="other"))
    assert leaders(known) == [1]


def test_an_answer_that_tells_nothing_later_is_read_once_until_there_is_news() -> None:
    known = layout(2)
    with decoded_answers() as decoded:
        assert [known.hear_of_later(T, told(1)) for _ in range(5)] == [True] * 5
        assert [known.hear_of_later(T, told(2)) for _ in range(5)] == [False] * 5
        assert len(decoded) == 2
        assert not known.hear_of_later(T, told(3))
        assert known.hear_of_later(T, told(2)), "what was the newest is not any more"


def test_a_topic_that_was_forgotten_is_compared_anew() -> None:
    known = layout(2)
    assert not known.hear_of_later(T, told(2))
    known.keep([])
    known.hear(T, told(1))
    known.hear_of_later(T, told(2))
    assert leaders(known) == [2]


def test_many_partitions_are_asked_for_in_portions() -> None:
    known = Layout()
    assert known.questions() == []
    topics = {f"t{n}": TopicInfo(f"t{n}", None, dict.fromkeys(range(400), cast("Any", None))) for n in range(7)}
    known._know(known.known.__class__("c", {}, topics))
    assert known.questions() == [("t0", "t1", "t2"), ("t3", "t4", "t5"), ("t6",)]


# brokers that are asked


class _Brokers:
    """Brokers that each name a leader of t-0; None stands for a silent broker."""

    def __init__(self) -> None:
        self.says: dict[int, Any] = dict.fromkeys(BROKERS, 1)
        self.asked: list[int] = []
        self.layout, self.silence = layout(1), BrokerHealth()
        self.others = LeadershipCrossCheck(self.layout, self.silence, self.ask)

    async def ask(self, node: int, topics: Topics) -> bytearray:
        assert topics == T
        self.asked.append(node)
        word = self.says[node]
        if word is None:
            await asyncio.Event().wait()
        if isinstance(word, Exception):
            raise word
        return word if isinstance(word, bytearray) else told(word)

    async def heard(self, node: int) -> list[int]:
        """Return the brokers that were asked beside this broker."""
        self.others.heard(at(node))
        if self.others._turn is not None:
            await self.others._turn
        asked, self.asked = self.asked, []
        return asked


def play(monkeypatch: pytest.MonkeyPatch, scene: Callable[[_Brokers], Awaitable[None]]) -> None:
    monkeypatch.setattr(leadership_check, "_EVERY_S", 0.0)
    monkeypatch.setattr(leadership_check, "_PATIENCE_S", 0.05)

    async def run() -> None:
        brokers = _Brokers()
        try:
            await asyncio.wait_for(scene(brokers), 10)
        finally:
            await brokers.others.close()

    asyncio.run(run())


def test_all_others_are_asked_in_turn_and_who_was_behind_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        assert [await brokers.heard(1) for _ in range(4)] == [[2], [3], [2], [3]]
        brokers.says = {1: 1, 2: 2, 3: 2}
        assert await brokers.heard(1) == [2]
        assert leaders(brokers.layout) == [2]
        assert [at(node) in brokers.others for node in BROKERS] == [True, False, False]
        assert (await brokers.heard(2), at(1) in brokers.others) == ([1], True)
        brokers.says[1] = 2
        assert [await brokers.heard(2) for _ in range(2)] == [[3], [1]]
        assert at(1) not in brokers.others

    play(monkeypatch, scene)


def test_who_says_nothing_is_asked_again_only_when_nobody_else_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        brokers.says[2] = None
        assert [await brokers.heard(1) for _ in range(4)] == [[2], [3], [3], [3]]
        assert at(2) in brokers.silence
        brokers.says[2], brokers.says[3] = 1, None
        assert [await brokers.heard(1) for _ in range(4)] == [[3], [2], [2], [2]]
        assert at(2) not in brokers.silence

    play(monkeypatch, scene)


@pytest.mark.parametrize(
    ("word", "silent"),
    [
        (Unreachable("broker-unreachable", "refused"), False),
        (Unreachable("no-answer", "not a word"), True),
        (AuthenticationFailed("authentication-failed", "not you"), False),
        (told(3, cluster="other"), True),
    ],
)
def test_one_that_cannot_be_asked_harms_nobody(
    word: Exception | bytearray, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(brokers: _Brokers) -> None:
        brokers.says = {1: 1, 2: word, 3: 3}
        assert [await brokers.heard(1) for _ in range(2)] == [[2], [3]]
        assert (at(2) in brokers.silence, leaders(brokers.layout)) == (silent, [3])

    play(monkeypatch, scene)


def test_a_broker_that_refuses_our_login_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cross-check must not lock an account, nor raise doubts that delay other connections."""

    async def scene(brokers: _Brokers) -> None:
        brokers.says[2] = AuthenticationFailed("authentication-failed", "not you")
        assert [await brokers.heard(1) for _ in range(4)] == [[2], [3], [3], [3]]
        monkeypatch.setattr(leadership_check, "_REFUSED_S", 0.0)
        brokers.others._asked.clear()
        assert [await brokers.heard(1) for _ in range(3)] == [[2], [3], [2]]

    play(monkeypatch, scene)


def test_nobody_waits_for_it_and_it_ends_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        monkeypatch.setattr(leadership_check, "_PATIENCE_S", 60.0)
        brokers.says[2] = None
        for _ in range(5):
            brokers.others.heard(at(1))
            await asyncio.sleep(0)
        assert brokers.asked == [2], "one at a time"
        await brokers.others.close()
        assert brokers.others._turn is not None
        assert brokers.others._turn.cancelled()

    play(monkeypatch, scene)


def test_who_asks_for_a_moment_only_bothers_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        monkeypatch.setattr(leadership_check, "_EVERY_S", 60.0)
        assert [await brokers.heard(1) for _ in range(3)] == [[], [], []]

    play(monkeypatch, scene)


# the client


class _Broker:
    """A connection to a broker that names a leader of t-0; None stands for a broker that stands still."""

    def __init__(self, says: dict[int, int | None], port: int, asked: list[int]) -> None:
        self.address, self.lost, self.holds = at(port), False, False
        self._says, self._port, self._asked = says, port, asked

    def send(self, api_key: int, *_: Any, **__: Any) -> asyncio.Future[bytearray]:
        answered: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        if api_key == 3:
            self._asked.append(self._port)
        if (leader := self._says[self._port]) is not None:
            answered.set_result(told(leader) if api_key == 3 else versions_of())
        return answered

    async def call_raw(self, api_key: int, *_: Any, timeout: float, **__: Any) -> bytearray:
        return await asyncio.wait_for(self.send(api_key), timeout)

    def give_up(self, why: str) -> None:
        self.lost = True

    def close(self) -> None:
        self.lost = True


@pytest.mark.parametrize("standing", [None, 2], ids=["all answer", "one stands still"])
def test_a_client_that_asks_a_cut_off_broker_hears_of_its_successor_and_asks_another_from_then_on(
    standing: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    says: dict[int, int | None] = dict.fromkeys(BROKERS, 1)
    asked: list[int] = []

    async def open_(host: str, port: int, **_: Any) -> _Broker:
        return _Broker(says, port, asked)

    monkeypatch.setattr(BrokerConnection, "open", open_)
    monkeypatch.setattr(leadership_check, "_EVERY_S", 0.01)
    monkeypatch.setattr(leadership_check, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(broker_health, "_PATIENCE_S", 0.05)

    async def run() -> None:
        async with ClusterClient(ClusterSettings("c", (("127.0.0.1", 1),))) as client:
            await client.refresh(["t"])
            says.update({2: 3, 3: 3})
            if standing is not None:
                says[standing] = None
            async with asyncio.timeout(10):
                while client.leader("t", 0) != 3:
                    await client.refresh(["t"])
                    await asyncio.sleep(0.01)
            assert client.doubts(("127.0.0.1", 1)) == (0.0, True)
            assert client.any_broker() != 1
            asked.clear()
            await client.refresh(["t"])
            assert asked[0] == 3 if standing == 2 else asked[0] in (2, 3)
            assert client.leader("t", 0) == 3

    asyncio.run(run())
