"""Large answers pass through a connection while they arrive.

The tests show the order, the client's pace, and both ends of a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from kmigrate.errors import ProtocolViolation
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.model.security import Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.net import stream
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.api import blank, entity, frame_answer, frame_request
from kmigrate.router.process import listeners
from kmigrate.router.process.listeners import ClientConnection
from kmigrate.router.wire.fetch import rewrite_fetch
from kmigrate.router.wire.produce import PartitionAnswer, ProducePart, ProduceRequest, encode_answer, encode_request
from kmigrate.sandbox.security import SandboxSecurity
from tests.unit.router.fetch.test_passing_fetch import BOOK, answered, cut
from tests.unit.router.router_fakes import Stage, batch, route

Play = Callable[[asyncio.StreamWriter, int], Awaitable[None]]
VERSION = 12
PATIENCE_S = 20


def fetch(correlation: int, version: int = VERSION) -> bytes:
    body = struct.pack(">hhih", 1, version, correlation, 1) + b"c\0" + bytes(20)
    return struct.pack(">i", len(body)) + body


def produce(correlation: int, topic: str, acks: int = -1) -> bytes:
    part = ProducePart(topic, 0, memoryview(batch()))
    request = ProduceRequest(8, None, acks, 30_000, (part,))
    frame = encode_request(request, (part,), version=8, acks=acks, correlation=correlation, client_id="c")
    return b"".join(bytes(each) for each in frame)


def big(size: int, correlation: int = 77) -> bytes:
    frame = bytearray(answered(VERSION, sizes=(size,)))
    struct.pack_into(">i", frame, 4, correlation)
    return bytes(frame)


def shown(frame: bytes) -> bytes:
    return bytes(rewrite_fetch(bytearray(frame), VERSION, BOOK).frame)


class Passing:
    """The target's answer to the newest Fetch of a stage, arriving in pieces."""

    def __init__(self, stage: Stage, frame: bytes) -> None:
        begins = stage.edge.sent[-1].begins
        assert begins is not None
        self.passes, self._left = begins(), len(frame)

    def come(self, piece: bytes | bytearray) -> int:
        assert self.passes is not None
        taken = self.passes(memoryview(bytearray(piece)), self._left)
        self._left -= taken
        return taken


def test_answers_behind_one_that_passes_wait_until_it_is_over() -> None:
    stage, frame = Stage(), big(5000)
    stage.session.frame(bytearray(fetch(77)))
    passing = Passing(stage, frame)
    stage.session.frame(bytearray(fetch(78)))
    later = stage.edge.sent[-1]
    first, second = cut(frame, 3000)
    assert passing.come(first) == 3000
    later.answered_with(bytearray(big(10, 78)))
    assert b"".join(stage.edge.replies) == shown(frame)[:3000]
    assert (stage.session.idle, stage.session.halfway) == (False, True)
    passing.come(second)
    assert b"".join(stage.edge.replies) == shown(frame) + shown(big(10, 78))
    assert (stage.session.idle, stage.session.halfway, stage.session.waiting_bytes) == (True, False, 0)


def test_an_answer_whose_turn_it_is_not_is_awaited_whole() -> None:
    stage = Stage()
    stage.produce(("t", 0, batch()))
    stage.session.frame(bytearray(fetch(77)))
    assert Passing(stage, big(5000)).passes is None


def test_a_connection_is_not_parted_from_before_what_passes_is_over() -> None:
    stage, frame = Stage(), big(5000)
    stage.shared.closing = True
    stage.session.frame(bytearray(fetch(77)))
    passing = Passing(stage, frame)
    passing.come(frame[:4000])
    stage.session.leave()
    assert stage.edge.parted == 0
    passing.come(frame[4000:])
    assert stage.edge.parted == 1


def test_bytes_that_make_no_sense_do_not_leave() -> None:
    stage, frame = Stage(), bytearray(big(5000))
    stage.session.frame(bytearray(fetch(77)))
    passing = Passing(stage, bytes(frame[:4000]))
    with pytest.raises(ProtocolViolation):
        passing.come(frame[:2000])
    assert stage.edge.replies == []


# Over sockets


class Target:
    """A broker that lets `play` write the answer to each request."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.over = asyncio.Event()
        """Event of an ended connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                await self._play(writer, struct.unpack_from(">i", request, 4)[0])
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self.over.set()


class Scene:
    """A client's socket, a connection of the router, and a target."""

    def __init__(self, stage: Stage, made: list[ClientConnection], port: int, target: Target) -> None:
        self.stage, self.made, self.port, self.target = stage, made, port, target
        self.client = socket.socket()
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        self.client.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def sends(self, data: bytes) -> None:
        await self._loop.sock_connect(self.client, ("127.0.0.1", self.port))
        await self.asks(data)

    async def asks(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.client, data)

    async def gets(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            more = await self._loop.sock_recv(self.client, 1 << 20)
            if not more:
                break
            out += more
        return bytes(out)

    def resets(self) -> None:
        """Close the client's socket with unread answers."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.01)


class _Clusters:
    def __init__(self, port: int, tls: Tls | None) -> None:
        self.target_settings = ClusterSettings("target", (("127.0.0.1", port),), security=Security(tls=tls))

    def source_settings(self, link: str) -> None:
        return None

    def source_uuid(self, link: str) -> str:
        return link


@asynccontextmanager
async def scene_of(
    play: Play, ca: SandboxSecurity | None = None, held: Sequence[str] = (), plays_source: Play | None = None
) -> AsyncIterator[Scene]:
    """Yield a scene; with an authority both sides use TLS.

    The topic "away" is forwarded to a source. The topic "back" is promoted and can be rolled back.
    """
    shows = None
    if ca is not None:
        shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shows.load_cert_chain(*ca.issue("both"))
    tls = Tls(str(ca.ca_file)) if ca is not None else None
    stage = Stage(route("away", Serve.FORWARD), route("back", Serve.LOCAL, copied_back=True), held=held)
    made, failures, broker = list[ClientConnection](), list[BaseException](), Target(play)
    target = await asyncio.start_server(broker.serve, "127.0.0.1", 0, ssl=shows)
    source = await asyncio.start_server(Target(plays_source or play).serve, "127.0.0.1", 0)
    port, source_port = (server.sockets[0].getsockname()[1] for server in (target, source))
    tasks = TaskOwner(failures.append)

    async def addresses() -> Sequence[tuple[str, int]]:
        return [("127.0.0.1", port)]

    async def source_addresses() -> Sequence[tuple[str, int]]:
        return [("127.0.0.1", source_port)]

    def connection() -> stream.FrameStream:
        shared, clusters = stage.shared, _Clusters(port, tls)
        return ClientConnection(
            shared, tasks, addresses, lambda *_: source_addresses, clusters, made.append, lambda _: None, broker=1
        ).stream

    router = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0, ssl=shows)
    scene = Scene(stage, made, router.sockets[0].getsockname()[1], broker)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield scene
    finally:
        scene.client.close()
        for one in made:
            one.abort()
        await tasks.close()
        router.close()
        target.close()
        source.close()
        assert failures == []


def test_no_broker_is_connected_to_for_a_client_that_is_gone() -> None:
    """The first request may wait for the sources; without the client, only the broker would end such a connection."""

    async def silent(_: asyncio.StreamWriter, __: int) -> None: ...

    async def scenario() -> None:
        async with scene_of(silent) as scene:
            await scene.sends(b"")
            await scene.until(lambda: bool(scene.made))
            (connection,) = scene.made
            scene.resets()
            await scene.until(lambda: connection._ended)
            connection.to_target([b"asked"], 1, lambda _: None)
            assert connection._upstreams() == []

    asyncio.run(scenario())


SIZE = 12_000_000


def test_an_answer_arrives_as_it_was_whatever_its_bytes_were_cut_into() -> None:
    dice = random.Random(9)

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        frame, at = big(SIZE, correlation), 0
        while at < len(frame):
            step = dice.choice((1, 7, 5_000, 70_000, 700_000, 3_000_000))
            writer.write(frame[at : at + step])
            await writer.drain()
            at += step
            if step < 6000:
                await asyncio.sleep(0)

    async def scenario() -> None:
        async with scene_of(answer) as scene:
            await scene.sends(fetch(1) + fetch(2) + fetch(3))
            wanted = b"".join(shown(big(SIZE, correlation)) for correlation in (1, 2, 3))
            assert await scene.gets(len(wanted)) == wanted
            assert scene.made[0].session.idle
            assert scene.stage.edge.closed == []

    asyncio.run(scenario())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_in_tls_it_is_the_same(loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    ca = SandboxSecurity.create(tmp_path / "s")

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        writer.write(big(SIZE, correlation))
        await writer.drain()

    async def scenario() -> None:
        async with scene_of(answer, ca) as scene:
            context = ssl.create_default_context(cafile=str(ca.ca_file))
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.port, ssl=context)
            writer.write(fetch(1) + fetch(2))
            wanted = b"".join(shown(big(SIZE, correlation)) for correlation in (1, 2))
            assert await reader.readexactly(len(wanted)) == wanted, scene.stage.backend.said
            assert scene.made[0].session.idle
            writer.transport.abort()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_a_client_that_does_not_read_keeps_the_broker_waiting_and_little_memory() -> None:
    answers = 0

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        nonlocal answers
        writer.write(big(5 * SIZE, correlation))
        await writer.drain()
        answers += 1

    async def scenario() -> None:
        async with scene_of(answer) as scene:
            await scene.sends(fetch(1))
            await scene.until(lambda: bool(scene.made) and not scene.made[0].stream.writable)
            held = 0
            for _ in range(30):
                await asyncio.sleep(0.01)
                held = max(held, scene.made[0].held)
            assert (4 << 20) < held < (9 << 20), "of sixty megabytes"
            assert answers == 0
            wanted = shown(big(5 * SIZE, 1))
            assert await scene.gets(len(wanted)) == wanted
            await scene.until(lambda: scene.made[0].held == 0)

    asyncio.run(scenario())


def test_a_client_that_does_not_read_keeps_no_promote_waiting() -> None:
    """A write to a source is resolved by the source's answer, and not by the client's reading."""
    asked, answers = asyncio.Event(), asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        await asked.wait()
        writer.write(big(5 * SIZE, correlation))
        await writer.drain()

    async def store(writer: asyncio.StreamWriter, correlation: int) -> None:
        asked.set()
        await answers.wait()
        writer.write(encode_answer([PartitionAnswer("away", 0, 0, 100)], version=8, correlation=correlation))

    async def scenario() -> None:
        async with scene_of(answer, plays_source=store) as scene:
            await scene.sends(fetch(1) + produce(2, "away"))
            await scene.until(lambda: bool(scene.made) and not scene.made[0].stream.writable)
            in_flight = scene.stage.shared.forwards.in_flight
            assert in_flight == {"topic/l/away": 1}
            answers.set()
            await scene.until(lambda: in_flight == {"topic/l/away": 0})

    asyncio.run(scenario())


def test_a_target_that_ends_a_connection_on_which_it_owes_nothing_cuts_off_no_write_to_a_source() -> None:
    """A broker closes an idle connection after `connections.max.idle.ms`.

    The connection of a client that only writes forwarded topics is idle at the target. A cut-off within a write would
    make a producer without idempotence write the batch twice.
    """
    at_target: list[asyncio.StreamWriter] = []
    asked, answers = asyncio.Event(), asyncio.Event()
    stored: list[int] = []

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        at_target.append(writer)
        writer.write(big(10, correlation))

    async def store(writer: asyncio.StreamWriter, correlation: int) -> None:
        stored.append(correlation)
        asked.set()
        await answers.wait()
        writer.write(encode_answer([PartitionAnswer("away", 0, 0, 100)], version=8, correlation=correlation))

    async def scenario() -> None:
        async with scene_of(answer, plays_source=store) as scene:
            await scene.sends(fetch(1))
            assert await scene.gets(len(shown(big(10, 1)))) == shown(big(10, 1))
            await scene.asks(produce(2, "away"))
            await asked.wait()
            at_target[0].close()
            upstream = scene.made[0]._target
            await scene.until(lambda: upstream is not None and upstream.ended)
            await scene.asks(produce(3, "away"))
            answers.set()
            told = encode_answer([PartitionAnswer("away", 0, 0, 100)], version=8, correlation=2)
            assert await scene.gets(len(told) + 1) == told, "and then the end"
            scene.client.close()
            await scene.until(lambda: scene.made[0]._ended)
            assert stored == [2], "what came later is the client's to send again"

    asyncio.run(scenario())


def test_nor_does_it_cut_off_the_word_of_a_member_to_its_coordinator_at_a_source() -> None:
    """Members of a group that follows may ask the target nothing on such a connection for days."""
    at_target: list[asyncio.StreamWriter] = []
    asked, answers = asyncio.Event(), asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        at_target.append(writer)
        writer.write(big(10, correlation))

    async def coordinate(writer: asyncio.StreamWriter, correlation: int) -> None:
        if correlation != 2:
            writer.write(frame_answer(blank(entity(10, 3, "response"), node_id=7, host="h", port=1), correlation))
            return
        asked.set()
        await answers.wait()
        writer.write(frame_answer(blank(entity(12, 0, "response")), correlation))

    async def scenario() -> None:
        async with scene_of(answer, plays_source=coordinate) as scene:
            scene.stage.turn(g=GroupRoute("l"))
            await scene.sends(fetch(1))
            await scene.gets(len(shown(big(10, 1))))
            beat = entity(12, 0, "request")(group_id="g", generation_id=1, member_id="m")
            await scene.asks(frame_request(beat, 2, "c"))
            await asked.wait()
            at_target[0].close()
            upstream = scene.made[0]._target
            await scene.until(lambda: upstream is not None and upstream.ended)
            answers.set()
            assert await scene.gets(11) == struct.pack(">iih", 6, 2, 0), "and then the end"

    asyncio.run(scenario())


def test_who_asks_a_target_that_has_ended_its_connection_meets_the_end_of_its_own() -> None:
    at_target: list[asyncio.StreamWriter] = []
    asked = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        at_target.append(writer)
        writer.write(big(10, correlation))

    async def never(_: asyncio.StreamWriter, __: int) -> None:
        asked.set()

    async def scenario() -> None:
        async with scene_of(answer, plays_source=never) as scene:
            await scene.sends(fetch(1))
            await scene.gets(len(shown(big(10, 1))))
            await scene.asks(produce(2, "away"))
            await asked.wait()
            at_target[0].close()
            upstream = scene.made[0]._target
            await scene.until(lambda: upstream is not None and upstream.ended)
            assert not scene.made[0]._ended
            await scene.asks(produce(3, "free", acks=0))
            assert await scene.gets(1) == b""

    asyncio.run(scenario())


def test_a_source_that_takes_everything_and_answers_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests to a silent source are given up after a while.

    The client uses another connection by then, and every promote would wait for the requests of the old connection.
    """
    monkeypatch.setattr(listeners, "_LAST_FORWARDS_S", 0.1)

    async def silent(_: asyncio.StreamWriter, __: int) -> None: ...

    async def scenario() -> None:
        async with scene_of(silent) as scene:
            await scene.sends(produce(1, "away"))
            in_flight = scene.stage.shared.forwards.in_flight
            await scene.until(lambda: in_flight == {"topic/l/away": 1})
            scene.resets()
            await scene.until(lambda: in_flight == {"topic/l/away": 0})

    asyncio.run(scenario())


@pytest.mark.parametrize("acks", [-1, 0])
def test_the_answer_to_a_write_that_a_rollback_waits_for_is_awaited_though_the_client_is_gone(acks: int) -> None:
    """A closed connection proves nothing: the broker appends what it has read, also behind the rollback's barrier."""
    at_target: list[asyncio.StreamWriter] = []

    async def silent(writer: asyncio.StreamWriter, _: int) -> None:
        at_target.append(writer)

    async def scenario() -> None:
        async with scene_of(silent) as scene:
            await scene.sends(produce(1, "back", acks))
            in_flight = scene.stage.shared.forwards.in_flight
            await scene.until(lambda: bool(at_target))
            scene.resets()
            await scene.until(lambda: scene.made[0]._ended)
            assert in_flight == {"topic/l/back": 1}
            assert scene.made[0].draining
            at_target[0].write(encode_answer([PartitionAnswer("back", 0, 0, 100)], version=8, correlation=1))
            await scene.target.over.wait()
            assert in_flight == {"topic/l/back": 0}
            assert not scene.made[0].draining

    asyncio.run(scenario())


def test_a_rollback_waits_neither_for_a_lost_connection_nor_for_a_target_that_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "_LAST_FORWARDS_S", 0.1)
    at_target: list[asyncio.StreamWriter] = []

    async def silent(writer: asyncio.StreamWriter, _: int) -> None:
        at_target.append(writer)

    async def scenario(*, lost: bool) -> None:
        async with scene_of(silent) as scene:
            await scene.sends(produce(1, "back"))
            in_flight = scene.stage.shared.forwards.in_flight
            await scene.until(lambda: bool(at_target))
            assert in_flight == {"topic/l/back": 1}
            if lost:
                at_target[0].transport.abort()
                assert await scene.gets(1) == b"", "the client sends the write again"
            else:
                scene.resets()
            await scene.until(lambda: in_flight == {"topic/l/back": 0})
        at_target.clear()

    asyncio.run(scenario(lost=True))
    asyncio.run(scenario(lost=False))


def test_a_router_that_stood_still_passes_on_no_answer_to_a_write_that_a_rollback_waits_for() -> None:
    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        writer.write(encode_answer([PartitionAnswer("back", 0, 0, 100)], version=8, correlation=correlation))

    async def scenario() -> None:
        async with scene_of(answer) as scene:
            scene.stage.shared.stood_still = lambda: True
            await scene.sends(produce(1, "back"))
            assert await scene.gets(1) == b""
            assert scene.stage.shared.forwards.in_flight == {"topic/l/back": 0}

    asyncio.run(scenario())


def test_a_client_that_does_not_read_is_read_no_further() -> None:
    """A broker does the same: otherwise answers to an endless series of requests would pile up."""
    stored = 0

    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        writer.write(big(5 * SIZE, correlation))
        await writer.drain()

    async def store(writer: asyncio.StreamWriter, correlation: int) -> None:
        nonlocal stored
        stored += 1
        writer.write(encode_answer([PartitionAnswer("away", 0, 0, 100)], version=8, correlation=correlation))

    async def scenario() -> None:
        async with scene_of(answer, plays_source=store) as scene:
            await scene.sends(fetch(1))
            await scene.until(lambda: bool(scene.made) and not scene.made[0].stream.writable)
            await scene.asks(produce(2, "away"))
            await asyncio.sleep(0.1)
            assert stored == 0
            await scene.gets(len(shown(big(5 * SIZE, 1))))
            await scene.until(lambda: stored == 1)

    asyncio.run(scenario())


def test_writes_without_an_answer_keep_no_connection_of_a_client_that_has_died_without_reading() -> None:
    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        if correlation == 1:
            writer.write(big(5 * SIZE, correlation))
            await writer.drain()

    async def scenario() -> None:
        async with scene_of(answer) as scene:
            await scene.sends(fetch(1) + produce(2, "free", acks=0))
            await scene.until(lambda: bool(scene.made) and not scene.made[0].stream.writable)
            scene.resets()
            await scene.target.over.wait()

    asyncio.run(scenario())


async def nothing(writer: asyncio.StreamWriter, correlation: int) -> None:
    """Play a target that sends no answer."""


async def full(scene: Scene) -> tuple[ClientConnection, int]:
    """Fill a client's buffer, and return the connection and the number of bytes.

    The client reads nothing. The buffer stays below the size at which the router stops reading from brokers.
    """
    await scene.sends(b"")
    await scene.until(lambda: bool(scene.made))
    told = 0
    while scene.made[0].stream.held < 2 << 20:
        scene.made[0].reply([bytes(1 << 20)])
        told += 1 << 20
        await asyncio.sleep(0)
    assert scene.made[0].stream.writable
    return scene.made[0], told


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_was_ended_is_reset_when_the_client_does_not_read_to_its_end(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_PARTING_S", 0.1)

    async def scenario() -> None:
        async with scene_of(nothing) as scene:
            client, told = await full(scene)
            client.close("")
            assert not client.stream.lost
            await scene.until(lambda: client.stream.lost)
            assert len(await scene.gets(told)) < told

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_a_client_that_reads_gets_what_was_written_before_the_end() -> None:
    async def scenario() -> None:
        async with scene_of(nothing) as scene:
            client, told = await full(scene)
            client.close("")
            assert len(await scene.gets(told + 1)) == told

    asyncio.run(scenario())


def test_what_is_kept_for_who_is_beyond_the_limit_is_free_at_once() -> None:
    """The client that would have to read the buffer first is the client that does not read."""

    async def scenario() -> None:
        async with scene_of(nothing) as scene:
            client, told = await full(scene)
            limits = scene.stage.shared.limits
            limits.max_bytes = 1 << 20
            limits.relieve()
            assert client.stream.lost
            [said] = scene.stage.backend.said
            assert "all clients together are beyond the limit" in said
            assert len(await scene.gets(told)) < told

    asyncio.run(scenario())


REASONS = {"dies": "a broker closed the connection", "makes no sense": "a Fetch answer cannot be read"}


@pytest.mark.parametrize("ending", REASONS)
def test_a_client_that_has_part_of_an_answer_loses_its_connection_when_no_more_of_it_can_come(ending: str) -> None:
    async def answer(writer: asyncio.StreamWriter, correlation: int) -> None:
        frame = bytearray(big(SIZE, correlation))
        if ending == "dies":
            writer.write(frame[: SIZE // 2])
            await writer.drain()
            await asyncio.sleep(0.1)
            raise ConnectionError
        at = frame.index(random.Random(SIZE).randbytes(SIZE)) + SIZE
        frame[at : at + 20] = b"\xff" * 20
        writer.write(frame)
        await writer.drain()

    async def scenario() -> None:
        async with scene_of(answer) as scene:
            await scene.sends(fetch(1))
            got, wanted = bytearray(), shown(big(SIZE, 1))
            with contextlib.suppress(ConnectionResetError):
                while more := await scene.gets(1):
                    got += more
            assert 1 << 20 < len(got) < len(wanted)
            assert wanted.startswith(bytes(got))
            assert scene.made[0].session.gone
            [said] = scene.stage.backend.said
            assert REASONS[ending] in said

    asyncio.run(scenario())
