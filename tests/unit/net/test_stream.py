"""Frames over a real loopback socket: whole however they are cut, bounded, and a bad size closes the connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sized

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation, Unreachable
from kmigrate.net import stream as stream_module
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.dial import dial
from kmigrate.net.stream import FrameStream
from kmigrate.protocol.frames import SIZE, TakePiece


def framed(body: bytes) -> bytes:
    return SIZE.pack(len(body)) + body


class Peer:
    """A FrameStream on the server side, with the frames received."""

    def __init__(self, max_frame: int = 1 << 20, on_trust: int = 1 << 30) -> None:
        self.frames: list[bytearray] = []
        self.lost: list[Exception | None] = []
        self.stream = FrameStream(self.frames.append, self.lost.append, max_frame=max_frame, on_trust=on_trust)


async def receive(chunks: list[bytes], max_frame: int = 4 << 20, on_trust: int = 1 << 30) -> Peer:
    """Send chunks one by one to a peer and close."""
    peer = Peer(max_frame, on_trust)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: peer.stream, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.005)
    except ConnectionError:
        pass
    writer.close()
    for _ in range(200):
        if peer.lost:
            break
        await asyncio.sleep(0.005)
    server.close()
    return peer


async def filled(found: Sized) -> None:
    """Wait until something has arrived, for ten seconds at most."""
    for _ in range(2000):
        if len(found):
            return
        await asyncio.sleep(0.005)


def feed(stream: FrameStream, data: bytes) -> None:
    """Give bytes to a stream as a transport does."""
    while data:
        room = stream.get_buffer(-1)
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        stream.buffer_updated(taken)
        data = data[taken:]


BODIES = [b"", b"a", b"b" * 100, b"c" * 70_000, b"d" * 1_500_000, b"e" * 3]


@pytest.mark.parametrize("on_trust", [1 << 30, 100_000])
@pytest.mark.parametrize("step", [1 << 30, 50_000, 7_777])
def test_frames_come_whole_however_the_bytes_are_cut(step: int, on_trust: int) -> None:
    data = b"".join(map(framed, BODIES))
    peer = asyncio.run(receive([data[i : i + step] for i in range(0, len(data), step)], on_trust=on_trust))
    assert [bytes(f) for f in peer.frames] == [framed(b) for b in BODIES]
    assert peer.lost == [None]


def test_one_byte_at_a_time_is_enough() -> None:
    data = b"".join(map(framed, [b"abc", b"", b"xy"]))
    peer = asyncio.run(receive([bytes([b]) for b in data]))
    assert [bytes(f) for f in peer.frames] == [framed(b"abc"), framed(b""), framed(b"xy")]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux wakes by how much has arrived")
def test_a_large_frame_that_comes_in_small_pieces_wakes_us_a_few_times_only() -> None:
    class Counted(FrameStream):
        wakes = 0

        def buffer_updated(self, nbytes: int) -> None:
            self.wakes += 1
            super().buffer_updated(nbytes)

    async def scene() -> tuple[int, int]:
        frames: list[bytearray] = []
        ends: list[Exception | None] = []
        peer = Counted(frames.append, ends.append)
        server = await asyncio.get_running_loop().create_server(lambda: peer, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        large = framed(bytes(4 << 20)) + framed(b"small")
        for at in range(0, len(large), 16 << 10):
            writer.write(large[at : at + (16 << 10)])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await filled(ends)
        server.close()
        return peer.wakes, sum(map(len, frames)) - len(large)

    wakes, missing = asyncio.run(scene())
    assert missing == 0
    assert wakes < 32  # for 257 pieces


def test_an_announcement_gets_memory_for_what_has_come_of_it() -> None:
    """A frame's announced size of four bytes must not cost a hundred megabytes."""
    peer = Peer(max_frame=1 << 30, on_trust=100_000)
    large: list[int] = []
    peer.stream.on_large = lambda: large.append(1)

    feed(peer.stream, SIZE.pack(100 << 20))
    assert (peer.stream.held, large) == (100_000, [1])
    feed(peer.stream, bytes(150_000))
    assert peer.stream.held == 400_000
    peer.stream.connection_lost(None)
    assert peer.stream.held == 0


TINY = [framed(bytes([n % 256])) for n in range(1000)]
"""Tiny frames: a single read may hold thousands of requests."""


def met(peer: Peer) -> list[bytes]:
    return [bytes(frame) for frame in peer.frames]


def test_thousands_of_tiny_frames_of_one_read_leave_turns_to_all_others() -> None:
    async def scene() -> None:
        peer, before = Peer(), list[int]()
        feed(peer.stream, b"".join(TINY) + framed(b"last")[:6])
        while len(peer.frames) < len(TINY):
            assert peer.stream.held > 0
            before.append(len(peer.frames))
            await asyncio.sleep(0)
        assert max(later - sooner for sooner, later in zip([0, *before], [*before, len(TINY)], strict=True)) <= 64
        assert peer.stream.held == 8  # the last frame, which has arrived in part
        feed(peer.stream, b"st")
        assert met(peer) == [*TINY, framed(b"last")]

    asyncio.run(scene())


def test_an_owner_that_has_enough_gets_no_more_of_what_was_read_with_it() -> None:
    async def scene() -> None:
        peer = Peer()

        def enough(frame: bytearray) -> None:
            peer.frames.append(frame)
            if len(peer.frames) == 5:
                peer.stream.pause_reading()

        peer.stream._on_frame = enough
        feed(peer.stream, b"".join(TINY[:10]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert met(peer) == TINY[:5]
        peer.stream.resume_reading()
        await asyncio.sleep(0)
        assert met(peer) == TINY[:10]
        assert peer.stream.held == 0

    asyncio.run(scene())


@pytest.mark.parametrize("stopped", [False, True])
def test_a_connection_ends_when_what_it_has_brought_is_handed_over(stopped: bool) -> None:
    """A broker's received answers are known outcomes, and a client's last writes count, too."""

    async def scene() -> None:
        peer = Peer()
        feed(peer.stream, b"".join(TINY))
        if stopped:
            peer.stream.pause_reading()
        peer.stream.connection_lost(None)
        assert peer.lost == []
        for _ in TINY:
            await asyncio.sleep(0)
        assert (met(peer), peer.lost, peer.stream.held) == (TINY, [None], 0)

    asyncio.run(scene())


def test_what_waits_of_an_aborted_connection_is_dropped_and_its_end_told_once() -> None:
    async def scene() -> None:
        peer = Peer()
        feed(peer.stream, b"".join(TINY))
        peer.stream.abort()
        assert peer.stream.held == 0
        await asyncio.sleep(0)
        assert (peer.lost, len(peer.frames)) == ([], 64)
        peer.stream.connection_lost(None)
        await asyncio.sleep(0)
        assert (peer.lost, len(peer.frames)) == ([None], 64)

    asyncio.run(scene())


class Wire(asyncio.Transport):
    """A transport that records each write, and refuses more while `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = 0
        self.full: Callable[[], None] | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        if self.full is not None:
            self.full()

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = len(self.writes)

    abort = close


class Answering:
    """A connection whose owner acts on each frame, with two further connections to write to."""

    def __init__(self, does: Callable[[Answering, bytes], None]) -> None:
        self.stream = FrameStream(lambda frame: does(self, bytes(frame[SIZE.size :])), lambda _: None)
        self.wires = [Wire(), Wire()]
        self.others = [FrameStream(lambda _: None, lambda _: None) for _ in self.wires]
        for other, wire in zip(self.others, self.wires, strict=True):
            other.connection_made(wire)


def test_what_is_written_for_the_frames_of_one_read_leaves_in_one_write_for_each_stream() -> None:
    at = Answering(lambda at, body: at.others[body[0] & 1].write(body))
    feed(at.stream, b"".join(framed(bytes([number])) for number in range(10)))
    assert [wire.writes for wire in at.wires] == [[bytes(range(0, 10, 2))], [bytes(range(1, 10, 2))]]
    at.others[0].write(b"at any other time it leaves at once")
    assert len(at.wires[0].writes) == 2


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([1, 10, 40_000]), st.booleans()), max_size=40))
def test_what_is_written_stays_in_order_whatever_leaves_at_once(writes: list[tuple[int, int, bool]]) -> None:
    def write(at: Answering, body: bytes) -> None:
        to, size, many = writes[body[0]]
        if many:
            at.others[to].write_many([body, body * size])
        else:
            at.others[to].write(body * size)

    at = Answering(write)
    feed(at.stream, b"".join(framed(bytes([number])) for number in range(len(writes))))
    for to, wire in enumerate(at.wires):
        due = [bytes([n]) * (size + many) for n, (where, size, many) in enumerate(writes) if where == to]
        assert b"".join(wire.writes) == b"".join(due)


@pytest.mark.parametrize("end", [FrameStream.close, FrameStream.finish, FrameStream.abort])
def test_what_was_written_leaves_before_the_end_of_its_stream_and_nothing_after_an_abort(
    end: Callable[[FrameStream], None],
) -> None:
    def does(at: Answering, body: bytes) -> None:
        at.others[0].write(body)
        if body == b"last":
            end(at.others[0])

    at = Answering(does)
    feed(at.stream, framed(b"first") + framed(b"last"))
    left = [] if end is FrameStream.abort else [b"firstlast"]
    assert (at.wires[0].writes, at.wires[0].closed) == (left, len(left))


def test_what_was_written_leaves_also_where_a_frame_is_the_owners_undoing() -> None:
    def does(at: Answering, body: bytes) -> None:
        if body == b"bad":
            raise ZeroDivisionError
        at.others[0].write(body)

    at = Answering(does)
    with pytest.raises(ZeroDivisionError):
        feed(at.stream, framed(b"good") + framed(b"bad"))
    assert at.wires[0].writes == [b"good"]
    feed(at.others[1], framed(b"nothing is kept back for ever"))
    at.others[0].write(b"more")
    assert at.wires[0].writes == [b"good", b"more"]


def test_what_is_wrong_with_one_stream_takes_nothing_from_the_others() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    at = Answering(lambda at, body: at.others[body[0] & 1].write(body))
    at.wires[1].full = broken
    with pytest.raises(ZeroDivisionError):
        feed(at.stream, framed(b"\0") + framed(b"\1"))
    at.others[0].write(b"more")
    assert at.wires[0].writes == [b"\0", b"more"]


def test_who_hears_that_a_stream_is_full_may_write_to_another() -> None:
    at = Answering(lambda at, body: at.others[0].write(body))
    at.wires[0].full = lambda: at.others[1].write(b"stop")
    feed(at.stream, framed(b"much"))
    assert [wire.writes for wire in at.wires] == [[b"much"], [b"stop"]]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_frames_that_wait_are_read_no_further_behind(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """While a connection waits, the peer waits, too; then reading goes on at the same place."""

    async def scene() -> None:
        peer, many = Peer(), TINY * 400
        peer.stream.pause_reading()
        server = await asyncio.get_running_loop().create_server(lambda: peer.stream, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"".join(many))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert peer.frames == []
        assert peer.stream.held <= 128 << 10
        peer.stream.resume_reading()
        writer.close()
        await filled(peer.lost)
        server.close()
        assert met(peer) == many

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scene())


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_LEAST_PIECE", 250), ("_WORTH_PIECES", 2000), ("_ROOM", 1000)):
        monkeypatch.setattr(stream_module, name, size)


class Taker:
    """A reader that takes large frames in pieces, as much of each piece as `share` says, and keeps the bytes."""

    def __init__(self, share: Callable[[int], int]) -> None:
        self.share = share
        self.frames: list[bytes] = []
        self.begun = 0
        self.most = 0
        self.lost: list[Exception | None] = []
        self.stream = FrameStream(lambda frame: self.frames.append(bytes(frame)), self.lost.append, max_frame=1 << 30)
        self.stream.on_begin = self._begin

    def _begin(self) -> TakePiece:
        self.begun += 1
        out = bytearray()

        def take(piece: memoryview, left: int) -> int:
            self.most = max(self.most, len(piece))
            last = len(piece) == left
            taken = len(piece) if last else self.share(len(piece))
            out.extend(piece[:taken])
            piece[:taken] = b"!" * taken  # the reader may change the piece
            if last:
                self.frames.append(bytes(out))
            return taken

        return take


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "share", [lambda size: size, lambda size: max(0, size - 300), lambda size: size // 7, lambda _: 1]
)
@pytest.mark.parametrize("step", [1, 77, 10_000])
def test_a_large_frame_comes_in_pieces_and_what_is_not_taken_comes_again(
    monkeypatch: pytest.MonkeyPatch, share: Callable[[int], int], step: int
) -> None:
    monkeypatch.setattr(stream_module, "_SCRATCH", 128)
    monkeypatch.setattr(stream_module, "_SCRATCHES", type(stream_module._SCRATCHES)())
    taker = Taker(share)
    bodies = [b"small", random.Random(1).randbytes(4_321), b"", random.Random(2).randbytes(1_995), b"whole" * 300, b"x"]
    data = b"".join(map(framed, bodies * 2))
    for at in range(0, len(data), step):
        feed(taker.stream, data[at : at + step])
    assert taker.frames == [framed(body) for body in bodies * 2]
    assert taker.begun == 2, "smaller ones are not worth it"
    assert taker.stream.held == 0


def test_pieces_lie_behind_each_other_and_stay_as_they_are_while_more_comes() -> None:
    """The reader that forwards the pieces keeps the pieces until a slow client has taken them."""
    body = random.Random(4).randbytes(9 << 20)
    frame, kept = framed(body), list[memoryview]()

    def take(piece: memoryview, left: int) -> int:
        taken = len(piece) if len(piece) == left else len(piece) - 7
        kept.append(piece[:taken])
        return taken

    stream = FrameStream(lambda _: None, lambda _: None)
    stream.on_begin = lambda: take
    for at in range(0, len(frame), 100_000):
        feed(stream, frame[at : at + 100_000])
    assert b"".join(kept) == frame
    assert min(map(len, kept[:-1])) >= 256 * 1024 - 7, "a little at a time costs more than it saves"
    assert len({id(piece.obj) for piece in kept}) < len(kept) / 4


@pytest.mark.usefixtures("small_pieces")
def test_a_piece_of_which_nothing_can_be_taken_grows_until_something_can() -> None:
    taker = Taker(lambda size: size if size > 5000 else 0)
    body = random.Random(3).randbytes(300_000)
    feed(taker.stream, framed(body)[:900])
    assert taker.stream.held < 3000, "memory for a piece, not for the frame"
    feed(taker.stream, framed(body)[900:])
    assert taker.frames == [framed(body)]
    assert taker.most < 20_000 + 2 * stream_module._SCRATCH


@pytest.mark.usefixtures("small_pieces")
def test_who_takes_a_piece_may_end_the_connection() -> None:
    """In TLS, ending the connection reads the remaining bytes within the reader's call; nobody gets these bytes."""

    def closing(size: int) -> int:
        feed(taker.stream, framed(b"read while closing"))
        taker.stream.abort()
        taker.stream.connection_lost(None)
        return size

    taker = Taker(closing)
    feed(taker.stream, framed(bytes(300_000))[:262_200])
    assert taker.frames == []
    assert len(taker.lost) == 1
    assert taker.stream.held == 0


def test_a_connection_that_is_read_within_another_ones_frame_spoils_nothing_of_it() -> None:
    """Closing a TLS connection reads all remaining bytes at once, and all streams share a scratch buffer."""
    inner, other, frames = Peer(), Peer(), []

    def on_frame(frame: bytearray) -> None:
        frames.append(bytes(frame))
        feed(inner.stream, framed(b"x" * 1000) * 3)

    outer = FrameStream(on_frame, lambda _: None)
    bodies = [b"first", b"second", b"third" * 100, b"cut off"]
    data = b"".join(map(framed, bodies))
    feed(outer, data[:-6])
    feed(other.stream, SIZE.pack(5)[:2])
    feed(outer, data[-6:])
    feed(other.stream, SIZE.pack(5)[2:] + b"after")
    assert frames == [framed(body) for body in bodies]
    assert [len(frame) for frame in inner.frames] == [1004] * 3 * len(bodies)
    assert other.frames == [framed(b"after")]


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, (4 << 20) + 1])
def test_an_impossible_size_ends_the_connection(size: int) -> None:
    peer = asyncio.run(receive([framed(b"fine"), struct.pack(">i", size) + b"xxxx"]))
    assert len(peer.frames) == 1
    assert isinstance(peer.lost[0], ProtocolViolation)


def test_other_protocols_end_the_connection() -> None:
    """An HTTP or TLS hello reads as an absurd frame size."""
    assert asyncio.run(receive([b"GET / HTTP/1.1\r\n\r\n"])).frames == []
    assert asyncio.run(receive([bytes.fromhex("16030100c8010000c40303")])).frames == []


async def _answering(answers: list[bytes | None]) -> tuple[BrokerConnection, asyncio.Server]:
    """Open a connection to a peer that answers each request with the next answer; None closes the connection."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                request = await reader.readexactly(size)
                answer = left.pop(0)
                if answer is None:
                    break
                writer.write(framed(request[4:8] + answer) if answer != b"wrong" else framed(b"\0\0\0\x63zz"))
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    return await BrokerConnection.open(host, port, client_id="test"), server


def test_answers_come_in_the_order_of_requests() -> None:
    async def run() -> list[bytes]:
        connection, server = await _answering([b"one", b"two", b"three"])
        futures = [connection.send(3, 0, [b"x"], flexible=False) for _ in range(3)]
        out = [bytes((await f)[8:]) for f in futures]
        connection.close()
        server.close()
        return out

    assert asyncio.run(run()) == [b"one", b"two", b"three"]


def test_a_lost_connection_fails_every_pending_request() -> None:
    async def run() -> None:
        connection, server = await _answering([b"one", None])
        futures = [connection.send(3, 0, [b"x"], flexible=False) for _ in range(3)]
        assert bytes((await futures[0])[8:]) == b"one"
        for future in futures[1:]:
            with pytest.raises(Unreachable):
                await future
        with pytest.raises(Unreachable):
            await connection.send(3, 0, [], flexible=False)
        server.close()

    asyncio.run(run())


def test_an_answer_out_of_order_ends_the_connection() -> None:
    async def run() -> None:
        connection, server = await _answering([b"wrong"])
        with pytest.raises(ProtocolViolation):
            await connection.send(3, 0, [b"x"], flexible=False)
        assert connection.lost
        server.close()

    asyncio.run(run())


def test_who_waits_behind_a_question_that_gets_no_answer_is_told_that_and_nothing_of_tls() -> None:
    async def run() -> None:
        connection, server = await _answering([])
        behind = connection.send(3, 0, [b"y"], flexible=False)
        with pytest.raises(Unreachable) as caught:
            await connection.call_raw(18, 0, [b"x"], flexible=False, timeout=0.0)
        assert caught.value.ref == "no-answer"
        with pytest.raises(Unreachable) as also:
            await behind
        assert also.value.what == f"the connection to {connection.address} was given up: api 18 had no answer in 0 s"
        server.close()

    asyncio.run(run())


def test_nobody_at_the_address_is_unreachable() -> None:
    async def run() -> None:
        with pytest.raises(Unreachable):
            await BrokerConnection.open("127.0.0.1", 1, client_id="test")

    asyncio.run(run())


def test_a_stream_that_is_finished_still_hears_what_the_peer_says() -> None:
    async def scenario() -> Peer:
        peer = Peer()
        server = await asyncio.get_running_loop().create_server(lambda: peer.stream, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(framed(b"before"))
        await filled(peer.frames)
        peer.stream.write(b"answer")
        peer.stream.finish()
        async with asyncio.timeout(10):
            assert await reader.read() == b"answer", "what was written arrives, and then the end"
        writer.write(framed(b"after"))
        writer.close()
        await filled(peer.lost)
        server.close()
        return peer

    peer = asyncio.run(scenario())
    assert [bytes(frame) for frame in peer.frames] == [framed(b"before"), framed(b"after")]
    assert peer.lost == [None]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other names for it")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_host_that_vanishes_is_noticed_within_two_minutes(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A living host that reads nothing keeps its connection, unless the host is a broker with unread requests."""

    async def options() -> list[list[int]]:
        taken, dialled = Peer(), Peer()
        found, made = list[list[int]](), list[int]()
        server = await asyncio.get_running_loop().create_server(lambda: taken.stream, "127.0.0.1", 0)
        taken.stream.on_made = lambda: made.append(1)
        await dial(dialled.stream, "127.0.0.1", server.sockets[0].getsockname()[1], None, "it")
        await filled(made)
        for peer in (taken, dialled):
            assert peer.stream._transport is not None
            raw = peer.stream._transport.get_extra_info("socket")
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            alive = raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            found.append([alive, *(raw.getsockopt(socket.IPPROTO_TCP, name) for name in names)])
            peer.stream.abort()
        server.close()
        return found

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(options()) == [[1, 60, 10, 6, 0], [1, 60, 10, 6, 120_000]]


def is_read(leave: Callable[[BrokerConnection], None], *, forgetful: bool) -> bool:
    """Return whether a broker that answers a request of a sender that has left goes on with the next request."""

    async def scene() -> bool:
        taken = socket.create_server(("127.0.0.1", 0))
        taken.setblocking(False)
        try:
            host, port = taken.getsockname()
            connection = await BrokerConnection.open(host, port, client_id="t", forgetful=forgetful)
            broker, _ = await asyncio.get_running_loop().sock_accept(taken)
            asked = connection.send(3, 0, [b"asked"], flexible=False)
            await asyncio.sleep(0.05)
            leave(connection)
            await asyncio.sleep(0.05)
            with contextlib.suppress(Unreachable):
                await asked
            try:
                broker.send(b"the answer to a request before")
                return bool(broker.recv(100))
            except ConnectionError:
                return False
            finally:
                broker.close()
        finally:
            taken.close()

    return asyncio.run(scene())


def test_a_broker_reads_nothing_more_of_a_connection_that_was_given_up_or_whose_requests_must_not_come_late() -> None:
    """After a FIN the broker would go on with all received requests, however much later."""
    assert not is_read(BrokerConnection.abort, forgetful=True)
    assert not is_read(BrokerConnection.close, forgetful=True)
    assert not is_read(lambda given_up: given_up.give_up("no answer"), forgetful=False)
    assert is_read(BrokerConnection.close, forgetful=False)
