"""A broker that accepts requests and never answers: other brokers are asked, and this broker comes last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmigrate.cluster import broker_health
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import AuthenticationFailed, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import entity
from tests.unit.cluster.test_metadata import answer_of, versions


class _Broker:
    """A connection to a broker; a request during the broker's silence is never answered."""

    def __init__(self, cluster: _Cluster, address: str) -> None:
        self.address = address
        self.lost = self.holds = False
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
    monkeypatch.setattr(broker_health, "_PATIENCE_S", 0.01)

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
