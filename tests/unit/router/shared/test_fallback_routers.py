"""Other routers that a client sees, and the router whose addresses the client gets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.errors import Refused
from kmigrate.model.presences import RouterPresence
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.api import (
    ApiKey,
    blank,
    decode_body,
    element_type,
    encode_body,
    entity,
    frame_answer,
    is_flexible,
)
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.process.ports import Ports
from kmigrate.router.process.reachability import Reach
from kmigrate.router.settings import RouterSettings
from kmigrate.router.shared.conversation import Conversations, Future
from kmigrate.router.shared.fallback_routers import FallbackRouters
from kmigrate.router.wire.node_ids import AddressBook
from tests.unit.router.router_fakes import Stage


def presence(home: str, *others: str, name: str = "") -> RouterPresence:
    """Return the presence of the router at `home`, which receives the clients of `others`."""
    host = home.partition(":")[0]
    kept = {other: f"{host}:{9100 + number}" for number, other in enumerate(others)}
    told = RouterPresence(f"i-{name or host}", name or host, 1, 500)
    return replace(told, bootstrap=home, listeners={1: f"{host}:9001"}, fallbacks=kept)


def fallbacks(*heard: RouterPresence, own: str = "a:9000") -> tuple[AddressBook, FallbackRouters]:
    book = AddressBook(1_000_000, {1: ("a", 9001)})
    known = FallbackRouters(book, lambda _: Future(True))
    known.addresses = {each.bootstrap: "a:9199" for each in heard if each.bootstrap != own}
    known.follow(own, heard)
    return book, known


def told(known: FallbackRouters, home: str) -> AddressBook:
    books: list[AddressBook] = []
    Conversations().start(known.book(home)).then(books.append)
    return books[0]


def test_a_client_is_shown_the_routers_that_receive_it_and_no_others() -> None:
    book, _ = fallbacks(presence("a:9000"), presence("b:9000", "a:9000"), presence("c:9000", "b:9000"))
    assert [(spare.host, spare.port) for spare in book.fallbacks] == [("b", 9100)]
    assert all(2_000_000 <= spare.node < 3_000_000 for spare in book.fallbacks), "no broker's id"


def test_it_is_shown_three_at_most_and_the_same_ones_whichever_router_it_asks() -> None:
    homes = [f"{name}:9000" for name in "abcdefgh"]
    heard = [presence(home, *(other for other in homes if other != home)) for home in homes]
    _, at_b = fallbacks(*heard, own="b:9000")
    at_b.addresses = dict(heard[1].fallbacks)
    at_b.follow("b:9000", heard)
    own, known = fallbacks(*heard)
    known.addresses = dict(heard[0].fallbacks)
    known.follow("a:9000", heard)
    assert len(own.fallbacks) == 3
    assert told(at_b, "a:9000").fallbacks == own.fallbacks
    assert told(at_b, "a:9000").addresses == {1: ("a", 9001)}
    shown = {spare.host for home in homes for spare in told(known, home).fallbacks}
    assert len(shown) > 4, "they are spread"


def test_the_client_of_a_router_that_does_not_answer_is_shown_the_fallback_routers_that_it_knows_already() -> None:
    """librdkafka drops a broker that metadata no longer names, and bootstraps anew when none of its brokers is up."""
    heard = [presence("a:9000"), presence("b:9000", "a:9000"), presence("c:9000", "a:9000", "b:9000")]
    book, known = fallbacks(*heard)
    before = told(known, "b:9000")
    known._reach = lambda _: Future(False)
    since = told(known, "b:9000")
    assert {spare.host for spare in before.fallbacks} == {"a", "c"}
    assert since.fallbacks == before.fallbacks, "none of them is where it was"
    assert since.addresses is book.addresses, "listeners that come are shown"


def test_its_fallback_routers_stay_the_same_when_the_router_is_not_heard_of_any_more() -> None:
    """A presence lasts for seconds: until then a connection is tried, and afterwards the router counts as gone."""
    heard = [presence("a:9000"), presence("b:9000", "a:9000"), presence("c:9000", "a:9000", "b:9000")]
    book, known = fallbacks(*heard)
    known._reach = lambda _: Future(False)
    since = told(known, "b:9000")
    known.follow("a:9000", [each for each in heard if each.bootstrap != "b:9000"])
    assert told(known, "b:9000") == since and {spare.host for spare in since.fallbacks} == {"a", "c"}
    assert told(known, "").fallbacks == book.fallbacks != since.fallbacks


def test_processes_at_the_same_ports_are_one_router_to_clients() -> None:
    book, _ = fallbacks(presence("a:9000", name="a-1"), presence("a:9000", name="a-2"), presence("b:9000", "a:9000"))
    assert [spare.host for spare in book.fallbacks] == ["b"]


def test_routers_of_a_version_without_fallback_routers_are_left_out() -> None:
    book, known = fallbacks(RouterPresence("i", "old", 1, 500), presence("b:9000", "a:9000"))
    assert [spare.host for spare in book.fallbacks] == ["b"]
    assert told(known, "") is book


def _ask(stage: Stage, api_key: int, version: int, **values: Any) -> None:
    request = blank(entity(api_key, version, "request"), **values)
    raw = encode_request_head(api_key, version, 77, b"c", is_flexible(api_key, version)) + encode_body(request)
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))


def _reply(stage: Stage, key: int, version: int) -> Any:
    (frame,) = stage.edge.replies
    kind = entity(key, version, "response")
    return decode_body(kind, frame, response_body_offset(frame, bool(kind.__flexible__)))


def at_b() -> Stage:
    """Return a client of router b, at the listener that this router keeps for such clients."""
    stage = Stage()
    stage.shared.fallbacks.addresses["b:9000"] = "router:9100"
    stage.shared.fallbacks.follow("router:9000", [presence("b:9000", "router:9000")])
    stage.session.home, stage.session.broker = "b:9000", None
    return stage


def _answer_brokers(stage: Stage, key: int, version: int) -> None:
    kind = entity(key, version, "response")
    named = {"node_id": 1} if key == ApiKey.METADATA else {"broker_id": 1}
    broker = blank(element_type(kind, "brokers"), host="real", port=9, rack="r", **named)
    stage.edge.sent[-1].answered_with(bytearray(frame_answer(blank(kind, brokers=(broker,)), 77)))


@pytest.mark.parametrize(("answers", "host"), [(True, "b"), (False, "router")])
def test_the_client_of_another_router_is_told_that_ones_addresses_while_it_answers(answers: bool, host: str) -> None:
    stage = at_b()
    _ask(stage, ApiKey.METADATA, 9, topics=())
    _answer_brokers(stage, ApiKey.METADATA, 9)
    assert stage.edge.replies == [], "whether its own router answers is not known yet"
    ((home, then),) = stage.asked
    assert home == "b:9000"
    then(answers)
    shown = [(int(b.node_id), b.host, int(b.port), b.rack) for b in _reply(stage, ApiKey.METADATA, 9).brokers]
    assert shown[0] == (1_000_001, host, 9001, "r")
    assert [(b[1], b[2], b[3]) for b in shown[1:]] == [("router", 9100, None)]


def test_so_it_is_with_its_coordinator() -> None:
    stage = at_b()
    _ask(stage, ApiKey.FIND_COORDINATOR, 3, key="g")
    found = blank(entity(ApiKey.FIND_COORDINATOR, 3, "response"), node_id=1, host="real", port=9)
    stage.edge.sent[-1].answered_with(bytearray(frame_answer(found, 77)))
    stage.asked[0][1](True)
    told = _reply(stage, ApiKey.FIND_COORDINATOR, 3)
    assert (int(told.node_id), told.host, int(told.port)) == (1_000_001, "b", 9001)


def test_a_router_that_is_not_heard_of_is_not_asked_for() -> None:
    stage = at_b()
    stage.shared.fallbacks.follow("router:9000", [])
    _ask(stage, ApiKey.METADATA, 9, topics=())
    _answer_brokers(stage, ApiKey.METADATA, 9)
    shown = [(b.host, int(b.port)) for b in _reply(stage, ApiKey.METADATA, 9).brokers]
    assert shown == [("router", 9001), ("router", 9100)], "the listener that the client asks is still a broker"
    assert stage.asked == []


@pytest.mark.parametrize("key", [ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS])
def test_what_each_broker_tells_of_itself_is_not_told_twice(key: int) -> None:
    stage = at_b()
    _ask(stage, key, 0)
    assert stage.edge.sent == []
    told = _reply(stage, key, 0)
    assert int(told.error_code) == 0 and not (told.groups if key == ApiKey.LIST_GROUPS else told.transaction_states)
    stage.session.home = ""
    _ask(stage, key, 0)
    assert len(stage.edge.sent) == 1


def test_a_description_of_the_cluster_lists_its_brokers_alone() -> None:
    stage = Stage()
    stage.shared.fallbacks.follow("router:9000", [presence("b:9000", "router:9000")])
    assert stage.shared.book.fallbacks
    _ask(stage, ApiKey.DESCRIBE_CLUSTER, 0)
    _answer_brokers(stage, ApiKey.DESCRIBE_CLUSTER, 0)
    assert [int(b.broker_id) for b in _reply(stage, ApiKey.DESCRIBE_CLUSTER, 0).brokers] == [1_000_001]


# Ports


def _ports(**settings: Any) -> Ports:
    return Ports(RouterSettings(**settings), lambda _: asyncio.Protocol(), None)


@pytest.fixture
def base() -> int:
    """Return a port with two hundred more ports behind it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return min(int(free.getsockname()[1]), 60_000)


async def _closed(ports: Ports, then: Callable[[], Any]) -> Any:
    try:
        return await then()
    finally:
        ports.close()


def test_a_stand_in_is_mostly_where_it_was_and_elsewhere_if_that_is_taken(base: int) -> None:
    async def scenario() -> None:
        found = []
        for _ in range(2):
            ports = _ports(port=base)
            found.append(await _closed(ports, lambda ports=ports: ports.listen("b:9000")))  # type: ignore[misc]
        assert found[0] == found[1] and base + 100 <= found[0][1] < base + 200
        with socket.create_server(found[0]):
            ports = _ports(port=base)
            _, port = await _closed(ports, lambda: ports.listen("b:9000"))
            assert port != found[0][1] and base + 100 <= port < base + 200

    asyncio.run(scenario())


def test_where_ports_are_given_no_other_is_taken() -> None:
    async def scenario() -> None:
        ports = _ports(fallback_ports=65_535)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 65_535))
            taken.listen()
            with pytest.raises(Refused, match="65535"):
                await ports.listen("b:9000")

    asyncio.run(scenario())


def test_listeners_for_routers_that_are_gone_for_good_are_given_up_first_but_only_beyond_a_number() -> None:
    async def scenario() -> None:
        ports, homes = _ports(), [f"h{number}:1" for number in range(64)]
        for home in homes[:63]:
            await ports.listen(home)
        assert ports.bound([]) == []
        await ports.listen(homes[63])
        assert ports.bound(homes[:2]) == ["h2:1"]
        assert "h2:1" not in ports and "h3:1" in ports
        ports.close()

    asyncio.run(scenario())


# Reachability


def test_who_takes_connections_is_asked_once_for_all_who_want_to_know() -> None:
    async def scenario() -> None:
        taken = 0

        def accept() -> asyncio.Protocol:
            nonlocal taken
            taken += 1
            return asyncio.Protocol()

        tasks = TaskOwner(lambda error: pytest.fail(repr(error)))
        reach = Reach(tasks)
        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

        async def ask() -> list[bool]:
            heard: asyncio.Queue[bool] = asyncio.Queue()
            for _ in range(2):
                reach(address).then(heard.put_nowait)
            async with asyncio.timeout(10):
                return [await heard.get(), await heard.get()]

        assert await ask() == [True, True]
        assert taken == 1
        server.close()
        await server.wait_closed()
        assert await ask() == [False, False]
        await tasks.close()

    asyncio.run(scenario())
