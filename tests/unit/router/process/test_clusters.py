"""Requests of the router to clusters.

The router repeats a request to a silent cluster, and never asks the former cluster of a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.metadata import Metadata, TopicInfo
from kmigrate.errors import Unreachable, UsageError
from kmigrate.model.records import ClusterRef, LinkRecord, ProducerMark
from kmigrate.model.routes import Serve
from kmigrate.model.settings import ClusterSettings
from kmigrate.net import retry
from kmigrate.net.tasks import TaskOwner
from kmigrate.router.process import clusters
from kmigrate.router.process.clusters import Clusters
from kmigrate.router.process.copy_progress import wait_copied
from kmigrate.router.process.listeners import ClientConnection
from kmigrate.router.shared.state import TARGET, StoredBatch
from tests.unit.router.router_fakes import Stage, route, table


class _Source:
    """A cluster whose trouble the test chooses."""

    def __init__(self) -> None:
        self.trouble, self.asked, self.closed = "", 0, False
        self.metadata = SimpleNamespace(brokers={}, topics={})

    async def refresh(self, topics: Iterable[str]) -> Any:
        self.asked += 1
        if self.trouble:
            raise Unreachable("broker-unreachable", self.trouble)
        return self.metadata

    async def close(self) -> None:
        self.closed = True

    async def names_taken(self, topics: Iterable[str]) -> frozenset[str]:
        await self.refresh(topics)
        return frozenset()

    async def call(self, _: Any) -> Any:
        return SimpleNamespace(api_keys=[SimpleNamespace(api_key=0, max_version=9)])


def _over(source: _Source, tasks: TaskOwner) -> Clusters:
    """Return the router's clusters with this source and an unused target."""
    target = cast("ClusterClient", _Source())
    return Clusters(target, lambda _: cast("ClusterClient", source), tasks, lambda: None, lambda: None)


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
        made = _over(source, tasks)
        made.follow(cast("Any", state), routes)
        async with asyncio.timeout(20):
            for source.trouble in ("nobody at a:1", "a:1 timed out", ""):
                made.refresh_source("l", "t")
                made.at_sources(frozenset({"t"}))
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


def test_a_source_whose_link_is_gone_is_asked_nothing_more_and_closed() -> None:
    """The router closes the client of a source whose link is gone, and asks that source nothing more.

    Before, the router retried a switched-off source as long as the router lived, and each such link left a client
    behind.
    """
    opened: list[_Source] = []

    def opens(_: LinkRecord) -> ClusterClient:
        opened.append(_Source())
        opened[-1].trouble = "it is switched off"
        return cast("ClusterClient", opened[-1])

    async def scenario() -> None:
        failures: list[BaseException] = []
        tasks, links = TaskOwner(failures.append), list[LinkRecord]()
        made = Clusters(cast("ClusterClient", _Source()), opens, tasks, lambda: None, lambda: None)
        for number in range(20):
            ref = ClusterRef("source", "a:1", "A")
            links[:] = [LinkRecord("l", f"uuid-{number}", ref, ClusterRef("target", "b:1", "B"), 1)]
            made.follow(cast("Any", SimpleNamespace(links=lambda: links)), table())
            made.refresh_source("l", "t")
            await asyncio.sleep(0)
        links.clear()
        made.follow(cast("Any", SimpleNamespace(links=lambda: links)), table())
        _, unended = await asyncio.wait(tasks._tasks, timeout=5)
        assert not unended
        assert not made._sources
        assert failures == []

    asyncio.run(scenario())
    assert len(opened) == 20
    assert all(source.closed for source in opened)


def test_the_leaders_of_topics_that_are_promoted_or_gone_are_forgotten_where_there_are_many() -> None:
    link = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
    client = ClusterClient(ClusterSettings("source", (("a", 1),)))
    state = cast("Any", SimpleNamespace(links=lambda: [link]))
    lengths = []

    async def scenario() -> None:
        made = Clusters(cast("ClusterClient", _Source()), lambda _: client, TaskOwner(), lambda: None, lambda: None)
        for number in range(0, 1000, 10):
            before = client.metadata
            topics = {f"t{n}": TopicInfo(f"t{n}", None, {}) for n in range(number, number + 10)}
            client.metadata_cache.known = Metadata("A", before.brokers, {**before.topics, **topics})
            routes = [route(topic, Serve.LOCAL if topic.endswith("5") else Serve.FORWARD) for topic in topics]
            made.follow(state, table(*routes))
            lengths.append(len(client.metadata.topics))
            assert {topic for topic in topics if not topic.endswith("5")} <= client.metadata.topics.keys()

    asyncio.run(scenario())
    assert lengths[:3] == [10, 20, 30], "a few are kept: what is known is the same value while nothing is told"
    assert max(lengths) <= 110


def test_who_creates_only_what_is_promoted_waits_for_no_source() -> None:
    """The source may be gone by then, and applications create missing topics at each start."""
    link = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
    source = _Source()

    async def scenario() -> None:
        made = Clusters(
            cast("ClusterClient", _Source()),
            lambda _: cast("ClusterClient", source),
            TaskOwner(lambda _: None),
            lambda: None,
            lambda: None,
        )
        made.follow(cast("Any", SimpleNamespace(links=lambda: [link])), table())
        told: list[frozenset[str]] = []
        made.at_sources(frozenset()).then(told.append)
        assert told == [frozenset()]

    asyncio.run(scenario())


class _Target:
    """A cluster whose leaders are away at first.

    The logs hold records of producer 5, and only a marker of producer 7.
    """

    def __init__(self, away: float) -> None:
        self._away = away
        """The number of requests without an answer."""
        self.asked = 0
        self.metadata = SimpleNamespace(brokers={}, topics={})

    async def describe_producers(self, keys: list[tuple[str, int]]) -> Any:
        self.asked += 1
        if self.asked <= self._away:
            raise Unreachable("leader-unknown", "nobody leads")
        states = (ProducerState(5, 0, 12, 1, -1), ProducerState(7, 0, -1, 1, -1))
        return dict.fromkeys(keys, (0, states))


def _told(target: _Target, *producer_ids: int) -> list[tuple[int, int] | None]:
    """Return the answers to simultaneous questions about these producers, and check that no task is left behind."""

    async def scenario() -> list[tuple[int, int] | None]:
        failures: list[BaseException] = []
        tasks = TaskOwner(failures.append)
        made = Clusters(
            cast("ClusterClient", target), lambda _: cast("ClusterClient", None), tasks, lambda: None, lambda: None
        )
        answers: list[asyncio.Future[ProducerMark | None]] = []
        for producer_id in producer_ids:
            answers.append(asyncio.get_running_loop().create_future())
            made.producer_mark(TARGET, "t", 0, producer_id).then(answers[-1].set_result)
        async with asyncio.timeout(20):
            marks = [await answer for answer in answers]
        asked = target.asked
        await asyncio.sleep(2 * clusters._REFRESH_PAUSE_S)
        assert target.asked == asked
        await tasks.close()
        assert failures == []
        return [(mark.epoch, mark.last_sequence) if mark is not None else None for mark in marks]

    return asyncio.run(scenario())


def test_a_source_tells_whether_it_knows_a_producer_under_its_translated_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rollback the gate guards the source; a source that is not known yet tells nothing."""
    monkeypatch.setattr(clusters, "_LONGEST_ASKED_S", 0.1)
    link = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)

    async def scenario() -> list[ProducerMark | None]:
        failures: list[BaseException] = []
        tasks, source = TaskOwner(failures.append), cast("ClusterClient", _Target(0))
        made = Clusters(cast("ClusterClient", _Target(0)), lambda _: source, tasks, lambda: None, lambda: None)
        marks: list[ProducerMark | None] = []
        for followed in (False, True):
            if followed:
                made.follow(cast("Any", SimpleNamespace(links=lambda: [link])), table())
            answer = asyncio.get_running_loop().create_future()
            made.producer_mark("l", "t", 0, 5).then(answer.set_result)
            marks.append(await answer)
        await tasks.close()
        assert failures == []
        return marks

    unknown, known = asyncio.run(scenario())
    assert unknown is None
    assert known is not None and known.last_sequence >= 0


def test_a_target_that_does_not_tell_whether_it_knows_a_producer_is_asked_once_for_all_who_wait_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters, "_LONGEST_ASKED_S", 0.2)
    target = _Target(away=math.inf)
    assert _told(target, *[5] * 50) == [None] * 50
    assert 2 <= target.asked <= 0.2 / clusters._REFRESH_PAUSE_S + 1
    assert [record.getMessage() for record in caplog.records] == ["gate: nobody leads"]


def test_a_target_that_tells_at_last_has_told_all_who_wait() -> None:
    target = _Target(away=3)
    assert _told(target, 5, 6, 5) == [(0, 12), (-1, -1), (0, 12)]
    assert target.asked == 5, "who asks of the same producer asks together"
    assert _told(target, 5) == [(0, 12)]


def test_of_whom_a_log_holds_nothing_but_the_marker_of_an_abort_the_target_knows_nothing() -> None:
    """An abort marker without records is no sign of the producer: the target's log knows nothing of that producer.

    The partition is not yet in the producer's next transaction. The first batch there adds the partition, as in an
    empty log.
    """
    assert _told(_Target(away=0), 7) == [(0, -1)]


@pytest.mark.parametrize(
    ("stored", "there"),
    [
        ((5, 3, 12), True),
        ((5, 3, 13), False),
        ((5, 2, 13), True),
        ((5, 4, 0), False),
        ((6, 0, 2**31 - 1), True),
        ((7, 0, 0), False),
        ((8, 0, 0), False),
    ],
)
def test_whether_a_sources_log_holds_a_batch(
    stored: tuple[int, int, int], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last sequence tells whether the log holds a batch; sequences wrap around.

    No batch of an older epoch comes any more. A marker is no record.
    """
    logs = [(0, (ProducerState(5, 3, 12, 1, -1), ProducerState(6, 0, 4, 1, -1), ProducerState(7, 0, -1, 1, -1)))]
    assert _source_told(monkeypatch, logs, stored) == (there, [])


def test_a_source_whose_leader_has_moved_has_not_told_and_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _source_told(monkeypatch, [(6, ())], (5, 0, 0)) == (None, ["t"])
    assert _source_told(monkeypatch, [], (5, 0, 0)) == (None, [])


def _source_told(
    monkeypatch: pytest.MonkeyPatch, logs: list[tuple[int, Any]], stored: tuple[int, int, int]
) -> tuple[bool | None, list[str]]:
    """Return the source's answer about a batch, and the topics whose leaders the router then asks for."""

    class Source(_Source):
        async def producers(self, _: Any) -> Any:
            if not logs:
                raise Unreachable("broker-unreachable", "nobody there")
            return logs.pop()

    async def scenario() -> tuple[bool | None, list[str]]:
        tasks = TaskOwner(lambda _: None)
        link = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
        made = _over(Source(), tasks)
        made.follow(cast("Any", SimpleNamespace(links=lambda: [link])), table())
        refreshed: list[str] = []
        monkeypatch.setattr(made, "refresh_source", lambda _, topic: refreshed.append(topic))
        told: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        made.source_has("l", "t", 0, StoredBatch(*stored)).then(told.set_result)
        async with asyncio.timeout(20):
            there = await told
        await tasks.close()
        return there, refreshed

    return asyncio.run(scenario())


def test_a_duplicate_is_told_without_its_offset_where_the_source_is_silent_before_its_client_comes_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection to a host that vanished after the flip times out later than the router holds a write."""

    class Silent(_Source):
        async def log_ends(self, _: Any) -> Any:
            await asyncio.Event().wait()

    async def scenario() -> int:
        tasks = TaskOwner(lambda _: None)
        link = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
        made = _over(Silent(), tasks)
        made.follow(cast("Any", SimpleNamespace(links=lambda: [link])), table())
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        made.find_stored("l", "t", 0, StoredBatch(5, 0, 3)).then(told.set_result)
        async with asyncio.timeout(5):
            offset = await told
        await tasks.close()
        return offset

    monkeypatch.setattr(clusters, "_LONGEST_SOUGHT_S", 0.01)
    assert asyncio.run(scenario()) == -1
    assert [record.getMessage() for record in caplog.records] == [
        "a duplicate is answered without its offset: the cluster does not answer"
    ]


@pytest.mark.parametrize("code", [29, 53])
def test_what_kmigrate_itself_may_not_join_is_told_to_no_client_which_may_and_waits(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuses(*_: Any) -> int:
        return code

    async def scenario() -> int:
        tasks = TaskOwner(lambda _: None)
        made = Clusters(cast("ClusterClient", _Target(away=0)), cast("Any", None), tasks, lambda: None, lambda: None)
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        made.join_at_target(("till", 50, 3), "t", 0).then(told.set_result)
        async with asyncio.timeout(20):
            code = await told
        await tasks.close()
        return code

    monkeypatch.setattr(clusters, "add_partition", refuses)
    monkeypatch.setattr(clusters, "_UNTIL_GRANTED_S", 0.001)
    assert asyncio.run(scenario()) == 15
    assert [record.getMessage() for record in caplog.records] == [
        "transactional id till: kmigrate may not write it, or t, at the target"
    ]


def _link(uuid: str) -> Any:
    """Return a state with link l under the given uuid; several links had this name."""
    link = LinkRecord("l", uuid, ClusterRef(f"source of {uuid}", "a:1"), ClusterRef("target", "b:1", "B"), 1)
    return SimpleNamespace(links=lambda: [link])


class _At:
    """A client of a source with a single broker."""

    def __init__(self, port: int) -> None:
        self.settings = ClusterSettings("source", (("127.0.0.1", port),))
        self.metadata = SimpleNamespace(brokers={1: ("127.0.0.1", port)}, topics={})

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("pool", [ClientConnection.ask_source, ClientConnection.ask_coordinator])
def test_words_to_a_link_that_was_made_anew_go_to_its_own_source(
    monkeypatch: pytest.MonkeyPatch, pool: Callable[..., object]
) -> None:
    """Requests for a link that was deleted and made anew reach the new link's source.

    The client stayed connected, and the source of the deleted link still takes and answers writes.
    """
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def broker(name: str) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65_536):
                    heard.put_nowait((name, data))
            writer.close()

        return asyncio.start_server(serve, "127.0.0.1", 0)

    async def scenario() -> None:
        servers = {name: await broker(name) for name in ("old", "new")}
        failures: list[BaseException] = []
        tasks, stage = TaskOwner(failures.append), Stage()

        def client(link: LinkRecord) -> ClusterClient:
            return cast("ClusterClient", _At(servers[link.uuid].sockets[0].getsockname()[1]))

        made = Clusters(cast("ClusterClient", _Source()), client, tasks, lambda: None, lambda: None)
        client_of = ClientConnection(
            stage.shared,
            tasks,
            lambda: made.target_addresses(None),
            lambda link, node: lambda: made.source_addresses(link, node),
            made,
            lambda _: None,
            lambda _: None,
            broker=1,
        )
        monkeypatch.setattr(client_of.stream, "pause_reading", lambda: None)
        monkeypatch.setattr(client_of.stream, "resume_reading", lambda: None)
        async with asyncio.timeout(10):
            for name in ("old", "new", "new"):
                made.follow(_link(name), table())
                pool(client_of, "l", 1, [b"to its source"], 1)
                assert await heard.get() == (name, b"to its source")
        client_of.abort()
        await tasks.close()
        for server in servers.values():
            server.close()
        assert failures == []

    asyncio.run(scenario())


def test_a_link_that_was_made_anew_from_an_unknown_cluster_has_no_source_rather_than_the_former_ones() -> None:
    def client(link: LinkRecord) -> ClusterClient:
        if link.uuid == "new":
            raise UsageError("unknown-cluster", "no cluster of that name", still_true="", next_step="")
        return cast("ClusterClient", _At(1))

    async def scenario() -> None:
        made = Clusters(cast("ClusterClient", _Source()), client, TaskOwner(), lambda: None, lambda: None)
        made.follow(_link("old"), table())
        assert (made.source_uuid("l"), made.source_settings("l") is None) == ("old", False)
        made.follow(_link("new"), table())
        assert (made.source_uuid("l"), made.source_settings("l")) == ("", None)
        assert made.source_leader("l", "t", 0) == (-1, -1)

    asyncio.run(scenario())


def test_whoever_wants_any_broker_of_the_target_is_not_sent_to_a_silent_one_first() -> None:
    """The silent broker accepts the connection, so the silent broker must not be the first address.

    A client would reach that broker again and again, because a router has a single bootstrap address.
    """
    brokers = {1: ("a", 1), 2: ("b", 2)}
    target = SimpleNamespace(
        metadata=SimpleNamespace(brokers=brokers),
        settings=SimpleNamespace(bootstrap=(("a", 1), ("c", 3))),
        rank=lambda address: (7.0 if address == ("a", 1) else 0.0, False),
    )

    async def scenario() -> None:
        none = cast("ClusterClient", None)
        made = Clusters(cast("ClusterClient", target), lambda _: none, TaskOwner(), lambda: None, lambda: None)
        assert await made.target_addresses(None) == [("b", 2), ("c", 3), ("a", 1), ("a", 1)]
        assert await made.target_addresses(1) == [("a", 1)]

    asyncio.run(scenario())


@pytest.mark.parametrize(("finished_ms", "asked"), [(0, 1), (1, 0)], ids=["unfinished", "finished"])
def test_sources_are_asked_now_and_then_which_brokers_they_have(finished_ms: int, asked: int) -> None:
    """A client's request for any broker goes to a broker that answered.

    The source of a finished link may be gone for good, so the router does not ask that source.
    """
    ends = ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B")
    link = LinkRecord("l", "uuid", *ends, 1, finished_ms=finished_ms)
    source = _Source()

    async def scenario() -> None:
        failures: list[BaseException] = []
        tasks = TaskOwner(failures.append)
        made = _over(source, tasks)
        made.follow(cast("Any", SimpleNamespace(links=lambda: [link])), table())
        assert source.asked == 0
        made.refresh_sources()
        await asyncio.sleep(0)
        assert source.asked == asked
        await tasks.close()
        assert failures == []

    asyncio.run(scenario())


class _Copy:
    """A cluster whose log has the given number of records; only `sleep` moves the clock."""

    def __init__(self, end: int) -> None:
        self.end, self.slept = end, list[float]()

    async def list_offsets(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
        return {key: LogOffset(0, self.end, 0) for key in wanted}

    async def log_ends(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
        return await self.list_offsets(keys)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_copy_that_is_far_behind_is_looked_at_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand members may wait for the copy, and each asks again as soon as the answer is "not there yet"."""
    target, source = _Copy(7), _Copy(20)
    monkeypatch.setattr(retry, "sleep", target.sleep)
    monkeypatch.setattr(retry, "monotonic", lambda: sum(target.slept))
    behind = wait_copied(cast("ClusterClient", target), cast("ClusterClient", source), {("t", 0): 8}, 1.0)
    assert asyncio.run(behind) is False
    assert target.slept == sorted(target.slept)
    assert len(target.slept) < 12
    assert max(target.slept) < 0.25, "who waits shall not wait for long once it is there"


class _Told:
    """A cluster that returns the ends of some partitions after a while; the leader of `moved` must be learned anew."""

    metadata = SimpleNamespace(brokers={}, topics={})

    def __init__(self, seconds: float, **ends: int) -> None:
        self._seconds, self._ends = seconds, ends
        self._stale = {"moved"}

    async def list_offsets(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogOffset]:
        await asyncio.sleep(self._seconds)
        known = self._ends.keys() - self._stale
        return {key: LogOffset(0, self._ends[key[0]], 0) if key[0] in known else LogOffset(6, -1, -1) for key in wanted}

    async def refresh(self, topics: Iterable[str]) -> None:
        self._stale -= set(topics)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("where", "told"),
    [("l", {("t", 0): 20, ("moved", 0): 5}), (TARGET, {("t", 0): 7}), ("silent", {}), ("no link", {})],
)
def test_ends_are_told_by_the_cluster_that_is_meant_as_far_as_it_tells_them_in_time(
    where: str, told: dict[tuple[str, int], int]
) -> None:
    sides = ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B")
    sources = {"l": _Told(0.0, t=20, moved=5), "silent": _Told(3_600.0, t=30)}
    state = SimpleNamespace(links=lambda: [LinkRecord(name, name, *sides, 1) for name in sources])

    async def scenario() -> Mapping[tuple[str, int], int]:
        tasks = TaskOwner(lambda _: None)
        target = cast("ClusterClient", _Told(0.0, t=7))
        made = Clusters(target, lambda link: cast("Any", sources[link.name]), tasks, lambda: None, lambda: None)
        made.follow(cast("Any", state), table(*(route(name, Serve.FORWARD, link=name) for name in sources)))
        heard: asyncio.Future[Mapping[tuple[str, int], int]] = asyncio.get_running_loop().create_future()
        keys, seconds = [("t", 0), ("moved", 0), ("unknown", 0)], 0.05 if where == "silent" else 15.0
        made.log_ends(where, keys, seconds).then(heard.set_result)
        async with asyncio.timeout(20):
            ends = await heard
        await tasks.close()
        return ends

    assert asyncio.run(scenario()) == told
