"""Tests of silent brokers, of brokers with old metadata, and of brokers that refuse our login."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.cluster import health
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.health import BrokerHealth, LeadershipCrossCheck
from kmigrate.cluster.metadata import Metadata, MetadataCache, TopicInfo, Topics
from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import entity
from tests.unit.cluster.test_metadata import answer_of, decoded_answers, versions
from tests.unit.cluster.test_metadata import versions as versions_of


class _Broker:
    """A connection to a broker; a request during the broker's silence is never answered."""

    def __init__(self, cluster: _Cluster, address: str) -> None:
        self.address = address
        self.lost = self.holds = self.answered = False
        self.given_up = ""
        self._cluster = cluster

    def send(self, api_key: int, *_: Any, **__: Any) -> asyncio.Future[bytearray]:
        answered: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        self._cluster.asked.append((api_key, self.address))
        if self.address in self._cluster.cutting:
            self.lost = True
            answered.set_exception(Unreachable("connection-lost", "cut"))
        elif self.address in self._cluster.slow:
            self._cluster.slow[self.address] = answered
        elif self.address not in self._cluster.silent:
            cluster = "other" if self.address in self._cluster.strangers else "c"
            error = ErrorCode.unknown_topic_or_partition if self.address in self._cluster.ignorant else ErrorCode.none
            told = answer_of(*self._cluster.brokers, cluster=cluster, error=error) if api_key == 3 else versions()
            answered.set_result(told)
            self.answered = True
        return answered

    async def call_raw(self, api_key: int, *_: Any, timeout: float, **__: Any) -> bytearray:
        try:
            return await asyncio.wait_for(self.send(api_key), timeout)
        except TimeoutError:
            raise Unreachable("no-answer", f"{self.address} says nothing") from None

    async def call(self, request: Any, timeout: float = 30.0) -> Any:
        self._cluster.asked.append((int(request.__api_key__), self.address))
        if self.address in self._cluster.silent:
            await asyncio.sleep(timeout)
            self.abort()
            raise Unreachable("no-answer", "not a word")
        return None

    def abort(self) -> None:
        self.lost = True

    def give_up(self, why: str) -> None:
        self.given_up = why
        self.abort()

    close = abort


class _Cluster:
    """A cluster of three brokers."""

    def __init__(self) -> None:
        self.brokers = (1, 2, 3)
        self.silent: set[str] = set()
        self.strangers: set[str] = set()
        """Addresses that belong to another cluster by now."""
        self.ignorant: set[str] = set()
        """Addresses of brokers that have not heard of topic t."""
        self.cutting: set[str] = set()
        """Addresses of brokers that close each connection at the first request."""
        self.slow: dict[str, asyncio.Future[bytearray] | None] = {}
        """Slow addresses that answer when the test says so, with their pending request."""
        self.opening: Callable[[str], Awaitable[None]] | None = None
        self.asked: list[tuple[int, str]] = []

    async def open(self, host: str, port: int, **_: Any) -> _Broker:
        if self.opening is not None:
            await self.opening(f"{host}:{port}")
        return _Broker(self, f"{host}:{port}")

    def answer(self, address: str) -> None:
        asked = self.slow[address]
        assert asked is not None
        asked.set_result(answer_of(*self.brokers))

    def asked_anew(self) -> list[str]:
        told, self.asked = [address for _, address in self.asked], []
        return told


def at(node: int) -> str:
    return f"127.0.0.1:{node}"


def play(
    monkeypatch: pytest.MonkeyPatch,
    scene: Callable[[ClusterClient, _Cluster], Awaitable[None]],
    timeout: float = 30.0,
    silent: frozenset[str] = frozenset(),
) -> None:
    cluster = _Cluster()
    cluster.silent |= silent
    monkeypatch.setattr(BrokerConnection, "open", cluster.open)
    monkeypatch.setattr(health, "_PATIENCE_S", 0.01)

    async def run() -> None:
        named = tuple(("127.0.0.1", node) for node in cluster.brokers)
        async with ClusterClient(ClusterSettings("c", named, request_timeout_s=timeout)) as client:
            await asyncio.wait_for(client.refresh([]), 10)
            assert cluster.asked[-1][1] not in silent
            cluster.asked.clear()
            await scene(client, cluster)

    asyncio.run(run())


def test_the_layout_is_asked_of_another_broker_and_of_the_silent_one_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent = {at(1)}
        await client.refresh([])
        assert cluster.asked_anew() == [at(1), at(2)]
        await client.refresh([])
        assert cluster.asked_anew() == [at(2)]
        cluster.silent = {at(2)}
        await client.refresh([])
        assert cluster.asked_anew() == [at(2), at(3)]
        assert client.any_broker() == 3

    play(monkeypatch, scene)


def test_where_all_are_silent_each_is_asked_in_turn_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent = {at(1), at(2), at(3)}
        with pytest.raises(Unreachable) as caught:
            await client.refresh([])
        assert caught.value.ref == "no-answer"
        assert cluster.asked_anew() == [at(1), at(2), at(3)]
        cluster.silent = {at(1), at(2)}
        await client.refresh([])
        assert cluster.asked_anew()[-1] == at(3)

    play(monkeypatch, scene, timeout=0.2)


def test_who_did_not_answer_any_other_question_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent = {at(1)}
        with pytest.raises(Unreachable):
            await client.call(entity(18, 0, "request")())
        await client.call(entity(18, 0, "request")())
        assert cluster.asked_anew() == [at(1), at(2)]

    play(monkeypatch, scene, timeout=0.1)


def test_a_broker_that_answers_again_is_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent = {at(1)}
        await client.refresh([])
        cluster.silent = {at(2), at(3)}
        cluster.asked.clear()
        await client.refresh([])
        assert set(cluster.asked_anew()) == {at(1), at(2), at(3)}
        await client.refresh([])
        assert cluster.asked_anew() == [at(1)]

    play(monkeypatch, scene)


def test_a_cluster_is_reached_though_the_first_that_is_named_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment the client asks another broker for its versions, too, instead of waiting out the timeout."""

    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        await client.refresh([])
        assert cluster.asked_anew() == [at(2)]

    play(monkeypatch, scene, silent=frozenset({at(1)}))


def test_an_address_that_closes_each_connection_unanswered_keeps_nobody_from_the_other_addresses() -> None:
    """A port may be a load balancer's without a broker behind; the client stayed with such an address for ever."""

    async def scene() -> None:
        def closing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while size := await reader.read(4):
                request = await reader.readexactly(int.from_bytes(size))
                answer = versions_of() if request[1] == 18 else answer_of(1, cluster="c")
                answer[:8] = (len(answer) - 4).to_bytes(4) + request[4:8]
                writer.write(answer)

        servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (closing, closing, answering)]
        named = tuple(("127.0.0.1", int(server.sockets[0].getsockname()[1])) for server in servers)
        try:
            async with asyncio.timeout(20), ClusterClient(ClusterSettings("c", named)) as client:
                assert (await client.refresh([])).cluster_id == "c"
            async with asyncio.timeout(20), ClusterClient(ClusterSettings("c", named[:2])) as client:
                with pytest.raises(Unreachable, match="closed before any answer") as caught:
                    await client.refresh([])
                assert caught.value.ref == "connection-lost" and str(named[0][1]) in caught.value.what
        finally:
            for server in servers:
                server.close()

    asyncio.run(scene())


def test_a_broker_that_ends_each_connection_while_another_is_silent_is_not_tried_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent, cluster.cutting = {at(1)}, {at(2), at(3)}
        with pytest.raises(Unreachable) as caught:
            await client.refresh([])
        assert caught.value.ref == "no-answer"
        asked = cluster.asked_anew()
        assert asked[:3] == [at(1), at(2), at(3)]
        assert len(asked) <= 1 + 2 * (1 + 0.1 / 0.01), "each once for as long as is waited for the silent one"

    play(monkeypatch, scene, timeout=0.1)


def test_an_answer_waits_for_no_connection_to_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are gone delay each connection by ten seconds."""

    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.slow = {at(1): None}
        ended = []

        async def opening(address: str) -> None:
            cluster.answer(at(1))
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(address)

        cluster.opening = opening
        await asyncio.wait_for(client.refresh([]), 5)
        assert (cluster.asked_anew(), ended) == ([at(1)], [at(2)])

    play(monkeypatch, scene)


def test_time_is_over_also_while_another_broker_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        async def opening(_: str) -> None:
            await asyncio.Event().wait()

        cluster.silent, cluster.opening = {at(1)}, opening
        with pytest.raises(Unreachable, match="1 did not answer within"):
            await asyncio.wait_for(client.refresh([]), 5)

    play(monkeypatch, scene, timeout=0.05)


def test_a_slow_answer_counts_though_another_broker_refuses_our_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further broker is asked, because more refused logins would lock the account.

    Without the slow answer, the refusal is the error.
    """

    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        tried = []

        async def opening(address: str) -> None:
            tried.append(address)
            if len(tried) == 1:
                asyncio.get_running_loop().call_later(0.05, cluster.answer, at(1))
            raise AuthenticationFailed("authentication-failed", "not you")

        cluster.slow, cluster.opening = {at(1): None}, opening
        await client.refresh([])
        assert tried == [at(2)]
        with pytest.raises(AuthenticationFailed):
            await client.refresh([])

    play(monkeypatch, scene, timeout=0.2)


def test_who_waits_behind_a_question_to_a_silent_broker_is_told_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent = {at(1), at(2), at(3)}
        connection = await client.bootstrap()
        with pytest.raises(Unreachable):
            await client.refresh([])
        assert isinstance(connection, _Broker)
        assert connection.given_up == "it did not answer within 0.05 s"

    play(monkeypatch, scene, timeout=0.05)


def test_what_another_cluster_says_at_an_address_of_ours_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are given to other clusters; records written there would be lost."""

    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.silent, cluster.strangers = {at(1)}, {at(2)}
        await client.refresh([])
        assert (cluster.asked_anew(), client.metadata.cluster_id) == ([at(1), at(2), at(3)], "c")
        cluster.silent, cluster.strangers = set(), {at(3)}
        with pytest.raises(Unreachable) as caught:
            await client.refresh([])
        assert caught.value.what == "a broker of cluster other answers in place of one of c"
        await client.refresh([])
        assert (cluster.asked_anew()[0], client.metadata.cluster_id) == (at(3), "c")

    play(monkeypatch, scene)


def test_a_topic_is_found_though_one_of_those_that_may_know_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.ignorant, cluster.silent = {at(1)}, {at(2)}
        assert (await client.find_topic("t")) is not None
        assert sorted(cluster.asked_anew()) == [at(1), at(1), at(2), at(3)]

    play(monkeypatch, scene)


def test_a_topic_that_a_silent_broker_may_know_is_not_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        cluster.ignorant, cluster.silent = {at(1), at(3)}, {at(2)}
        with pytest.raises(Unreachable) as caught:
            await client.find_topic("t")
        assert caught.value.what == f"{at(2)} says nothing"
        cluster.ignorant, cluster.silent = {at(1), at(2), at(3)}, set()
        assert await client.find_topic("t") is None

    play(monkeypatch, scene, timeout=0.05)


def test_who_asks_late_opens_no_connection_of_a_client_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is just being opened is closed, too, because nobody else would close that connection."""

    async def scene(client: ClusterClient, cluster: _Cluster) -> None:
        opening, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly(_: str) -> None:
            opening.set()
            await goes_on.wait()

        opened: list[_Broker] = []
        make = cluster.open

        async def noted(*args: Any, **more: Any) -> _Broker:
            opened.append(await make(*args, **more))
            return opened[-1]

        monkeypatch.setattr(BrokerConnection, "open", noted)
        cluster.opening = slowly
        late = asyncio.ensure_future(client.connection(2))
        await opening.wait()
        await client.close()
        goes_on.set()
        with pytest.raises(Unreachable) as caught:
            await late
        assert caught.value.ref == "client-closed"
        assert [each.lost for each in opened] == [True]
        for question in (client.connection(2), client.connection(3, "find"), client.refresh(["t"])):
            with pytest.raises(Unreachable):
                await question
        assert len(opened) == 1

    play(monkeypatch, scene)


BROKERS = (1, 2, 3)
T: Topics = ("t",)


def at_(node: int) -> str:
    return f"127.0.0.1:{node}"


def told(*leaders: int, brokers: tuple[int, ...] = BROKERS, id_: int = 1, cluster: str = "c") -> bytearray:
    """Return an answer in which these brokers lead the partitions, each in the epoch of its number."""
    return answer_of(*brokers, leaders=leaders, id_=id_, cluster=cluster)


def layout(*leaders: int, **more: Any) -> MetadataCache:
    known = MetadataCache()
    known.hear(T, told(*leaders, **more))
    return known


def leaders(known: MetadataCache) -> list[int]:
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
    known = MetadataCache()
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
        self.metadata_cache, self.health = layout(1), BrokerHealth()
        self.others = LeadershipCrossCheck(self.metadata_cache, self.health, self.ask)

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
        self.others.heard(at_(node))
        if self.others._turn is not None:
            await self.others._turn
        asked, self.asked = self.asked, []
        return asked


def play_check(monkeypatch: pytest.MonkeyPatch, scene: Callable[[_Brokers], Awaitable[None]]) -> None:
    monkeypatch.setattr(health, "_EVERY_S", 0.0)
    monkeypatch.setattr(health, "_CHECK_PATIENCE_S", 0.05)

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
        assert leaders(brokers.metadata_cache) == [2]
        assert [at_(node) in brokers.others for node in BROKERS] == [True, False, False]
        assert (await brokers.heard(2), at_(1) in brokers.others) == ([1], True)
        brokers.says[1] = 2
        assert [await brokers.heard(2) for _ in range(2)] == [[3], [1]]
        assert at_(1) not in brokers.others

    play_check(monkeypatch, scene)


def test_who_says_nothing_is_asked_again_only_when_nobody_else_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        brokers.says[2] = None
        assert [await brokers.heard(1) for _ in range(4)] == [[2], [3], [3], [3]]
        assert at_(2) in brokers.health
        brokers.says[2], brokers.says[3] = 1, None
        assert [await brokers.heard(1) for _ in range(4)] == [[3], [2], [2], [2]]
        assert at_(2) not in brokers.health

    play_check(monkeypatch, scene)


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
        assert (at_(2) in brokers.health, leaders(brokers.metadata_cache)) == (silent, [3])

    play_check(monkeypatch, scene)


def test_a_broker_that_refuses_our_login_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cross-check must not lock an account, nor raise doubts that delay other connections."""

    async def scene(brokers: _Brokers) -> None:
        brokers.says[2] = AuthenticationFailed("authentication-failed", "not you")
        assert [await brokers.heard(1) for _ in range(4)] == [[2], [3], [3], [3]]
        monkeypatch.setattr(health, "_REFUSED_S", 0.0)
        brokers.others._asked.clear()
        assert [await brokers.heard(1) for _ in range(3)] == [[2], [3], [2]]

    play_check(monkeypatch, scene)


def test_nobody_waits_for_it_and_it_ends_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        monkeypatch.setattr(health, "_CHECK_PATIENCE_S", 60.0)
        brokers.says[2] = None
        for _ in range(5):
            brokers.others.heard(at_(1))
            await asyncio.sleep(0)
        assert brokers.asked == [2], "one at_ a time"
        await brokers.others.close()
        assert brokers.others._turn is not None
        assert brokers.others._turn.cancelled()

    play_check(monkeypatch, scene)


def test_who_asks_for_a_moment_only_bothers_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(brokers: _Brokers) -> None:
        monkeypatch.setattr(health, "_EVERY_S", 60.0)
        assert [await brokers.heard(1) for _ in range(3)] == [[], [], []]

    play_check(monkeypatch, scene)


# the client


class _LeaderBroker:
    """A connection to a broker that names a leader of t-0; None stands for a broker that stands still."""

    def __init__(self, says: dict[int, int | None], port: int, asked: list[int]) -> None:
        self.address, self.lost, self.holds = at_(port), False, False
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

    async def open_(host: str, port: int, **_: Any) -> _LeaderBroker:
        return _LeaderBroker(says, port, asked)

    monkeypatch.setattr(BrokerConnection, "open", open_)
    monkeypatch.setattr(health, "_EVERY_S", 0.01)
    monkeypatch.setattr(health, "_CHECK_PATIENCE_S", 0.05)
    monkeypatch.setattr(health, "_PATIENCE_S", 0.05)

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
            assert client.rank(("127.0.0.1", 1)) == (0.0, True)
            assert client.any_broker() != 1
            asked.clear()
            await client.refresh(["t"])
            assert asked[0] == 3 if standing == 2 else asked[0] in (2, 3)
            assert client.leader("t", 0) == 3

    asyncio.run(run())


class _Estate(_Cluster):
    """Three brokers, some of which refuse our login, and a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing: set[str] = set()
        self.tried: list[str] = []
        self.now = 100.0

    async def open(self, host: str, port: int, **_: Any) -> _Broker:
        address = f"{host}:{port}"
        self.tried.append(address)
        if address in self.refusing:
            raise AuthenticationFailed("authentication-failed", f"{address} does not know us")
        return await super().open(host, port)

    def tried_anew(self) -> list[str]:
        told, self.tried = self.tried, []
        return told


@pytest.fixture
def estate(monkeypatch: pytest.MonkeyPatch) -> _Estate:
    made = _Estate()
    monkeypatch.setattr(BrokerConnection, "open", made.open)
    monkeypatch.setattr(health, "monotonic", lambda: made.now)
    return made


def client() -> ClusterClient:
    made = ClusterClient(ClusterSettings("c", tuple(("127.0.0.1", node) for node in (1, 2, 3))))
    made.metadata_cache.known = Metadata("c", {node: ("127.0.0.1", node) for node in (1, 2, 3)})
    return made


async def accepted(client: ClusterClient, node: int, purpose: str = "read") -> bool:
    try:
        await client.connection(node, purpose)
    except AuthenticationFailed:
        return False
    return True


def test_a_broker_that_refuses_us_holds_up_none_that_has_accepted_us(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            assert await accepted(ours, 2)
            estate.refusing = {at(1)}
            assert not await accepted(ours, 1)
            assert await accepted(ours, 2, "write")
            estate.tried_anew()
            for _ in range(9):
                assert not await accepted(ours, 1)
                estate.now += 0.11
            assert not estate.tried_anew(), "nor is it asked again within a second"
            estate.now += 0.11
            estate.refusing.clear()
            assert await accepted(ours, 1)

    asyncio.run(scene())


def test_others_come_to_their_turn_however_often_one_is_asked_that_refuses_us(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            estate.refusing = {at(1)}
            taken = set()
            for _ in range(25):
                for node in (1, 1, 2, 3):
                    if await accepted(ours, node):
                        taken.add(node)
                estate.now += 0.1
            assert taken == {2, 3}
            assert estate.tried.count(at(1)) == 3

    asyncio.run(scene())


def test_a_login_that_is_wrong_everywhere_is_tried_little_more_than_once_a_second(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            estate.refusing = {at(1), at(2), at(3)}
            for _ in range(100):
                for node in (1, 2, 3):
                    assert not await accepted(ours, node)
                estate.now += 0.1
            assert 10 <= len(estate.tried) <= 14

    asyncio.run(scene())


def test_one_that_no_longer_counts_is_tried_at_each_broker_that_took_it_once(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            for node in (1, 2, 3):
                assert await accepted(ours, node)
            estate.refusing = {at(1), at(2), at(3)}
            estate.tried_anew()
            for _ in range(10):
                for node in (1, 2, 3):
                    assert not await accepted(ours, node, "write")
                estate.now += 0.07
            assert sorted(estate.tried) == [at(1), at(2), at(3)]

    asyncio.run(scene())


def test_the_layout_is_asked_of_a_broker_that_accepts_us(estate: _Estate) -> None:
    """Each refresh of the metadata used to fail as long as the first broker refused our login."""

    async def scene() -> None:
        async with client() as ours:
            estate.refusing = {at(1)}
            with pytest.raises(AuthenticationFailed):
                await ours.refresh([])
            assert estate.tried_anew() == [at(1)], "a wrong password is told at once"
            with pytest.raises(AuthenticationFailed):
                await ours.refresh([])
            assert not estate.tried_anew()
            estate.now += 0.8
            await ours.refresh([])
            assert estate.tried_anew() == [at(2)]

    asyncio.run(scene())
