"""A socket as a stream of whole Kafka frames, in both directions.

Bytes arrive in a scratch buffer, shared by all connections, out of which whole frames are cut. The rest of a partial
frame is received straight into the frame's own bytearray, so only the kernel copies most bytes of large Fetch
responses. While much is missing, the kernel wakes us for a good part (SO_RCVLOWAT), not for every segment. An untrusted
peer gets memory for the bytes that it has sent, and not for the bytes that it has announced (`on_trust`).

An owner that wants a large frame in pieces says so at the frame's start (`on_begin`). A piece holds the bytes that
arrived since the last piece, and the bytes that the owner left. Many pieces lie in the same memory, one after another.

Back-pressure: when the peer does not read, `writable` is cleared and `drain` waits. A relay pauses reading a stream
while the other stream is not writable. Frames handed to `on_frame` belong to the receiver.

All writes made while the frames of a read are handed over leave in a single write per stream. Producers and brokers
send many small frames at once, and each write costs a system call here and wakes the peer.

A read may bring thousands of tiny frames, which must not delay all other clients. After a number of frames, all other
connections have a turn; the rest waits here, as while reading is paused, and nothing is read meanwhile. A connection
ends only after all received frames are handed over.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import cast

from kmigrate.errors import ProtocolViolation
from kmigrate.net.buffers import FrameBuffers
from kmigrate.net.tls import subject_of
from kmigrate.protocol.frames import MAX_FRAME, SIZE, TakePiece

__all__ = ["FrameStream", "TlsAlertError"]

_SCRATCH = 128 * 1024
_AT_A_STRETCH = 64
"""Frames of a connection before the other connections' turn; a request of few bytes takes 10 to 50 µs."""
_LARGE = 32 * 1024
"""Bytes above which a partly received frame is reported (`on_large`), and from which a write leaves at once."""
_MUCH = 128 * 1024
"""Missing bytes from which waking late pays: fewer bytes arrive nearly at once, and waking late would cost more."""
_LEAST_ARRIVED = 512 * 1024
_LEAST_PIECE = 256 * 1024
"""Smallest piece: Kafka's consumer read at 0.74 of the direct rate (2 MiB: 0.68); 64 KiB cost a third more CPU."""
_WORTH_PIECES = 4 * _LEAST_PIECE
_ROOM = 2 << 20
"""Bytes of memory for consecutive pieces."""
_ROOMS_KEPT = 16 << 20
_NONE_WAITED_FOR = 1
_WAKES_LATE = sys.platform == "linux"
_GROWTH = 4
"""Factor by which the memory of an untrusted peer's frame grows each time it is full."""
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Keep-alive probes: nothing else reveals a vanished host; the host of a process that stands still answers them."""
_NO_LINGER = struct.pack("ii", 1, 0)
_TLS_ALERT = b"\x15\x03"
"""The first bytes of a TLS peer that received plain bytes; as a frame's size they exceed every limit."""

Buffer = bytes | bytearray | memoryview
_BUFFERS = FrameBuffers()
"""A single pool for the process, so that many connections do not keep memory each."""
_ROOMS = FrameBuffers(_ROOMS_KEPT, _ROOM)


class _Scratch(threading.local):
    """A thread's scratch buffer; None while frames are cut: closing TLS may then deliver bytes for another buffer."""

    free: bytearray | None = None


_SCRATCHES = _Scratch()


class _Unsent(threading.local):
    """A thread's writes while the thread hands over the frames of a read; None at all other times."""

    parts: dict[FrameStream, list[Buffer]] | None = None


_UNSENT = _Unsent()


def _send_all(unsent: dict[FrameStream, list[Buffer]]) -> None:
    try:
        while unsent:  # an owner that hears of a full stream may write to other streams
            stream, parts = unsent.popitem()
            stream._send(parts)
    finally:
        if unsent:  # an error of one stream must not lose the writes of the others
            _send_all(unsent)
        _UNSENT.parts = None


class TlsAlertError(ProtocolViolation):
    """Plain bytes met a peer that speaks TLS."""


class _Whole:
    """A frame of which a part has arrived; the rest is received straight into the frame's own memory."""

    def __init__(self, size: int, come: Buffer, room: int) -> None:
        self._size = size
        self._worth_waiting_for = _LEAST_ARRIVED if size - len(come) >= _MUCH else _NONE_WAITED_FOR
        self.over = False
        self._begin(come, room)

    def _begin(self, come: Buffer, room: int) -> None:
        """Go on in memory for at most `room` bytes of the frame."""
        self._frame = _BUFFERS.take(min(self._size, room))
        self._have = len(come)
        self._frame[: self._have] = come
        self._view = memoryview(self._frame)

    @property
    def held(self) -> int:
        return len(self._frame)

    @property
    def free(self) -> memoryview:
        """The memory for the next bytes."""
        return self._view[self._have :]

    @property
    def awaited(self) -> int:
        """Number of bytes worth waking for; never more than surely arrive."""
        return min(self._size - self._have, self._worth_waiting_for)

    def come(self, count: int) -> bytearray | None:
        """Note that `count` more bytes have arrived; return the frame once the frame is whole."""
        self._have += count
        self.over = self._have == self._size
        if self.over:
            return self._frame
        if self._have == len(self._frame):
            self._begin(self._frame, _GROWTH * self._have)
        return None


class _Pieces:
    """A frame that is taken in pieces as the bytes arrive; pieces share a memory, as long as there is room in it."""

    def __init__(self, size: int, come: memoryview, take: TakePiece) -> None:
        self._take = take
        self.left = size
        """Number of bytes not taken yet."""
        self.over = False
        self._taking = False
        self._begin(come)

    def _begin(self, come: memoryview) -> None:
        """Go on in new memory that holds only `come`, which is not taken yet."""
        self._taken, self._have = 0, len(come)
        memory = _ROOMS.take(max(_ROOM, 2 * self._have))
        memory[: self._have] = come
        self.held = len(memory)
        self._room = memoryview(memory)[: self.left]

    @property
    def free(self) -> memoryview:
        return self._room[self._have :] if not self._taking else memoryview(bytearray(_SCRATCH))

    @property
    def awaited(self) -> int:
        return min(self.left - (self._have - self._taken), _LEAST_PIECE)

    def come(self, count: int) -> bytearray | None:
        """Note that `count` more bytes have arrived, and pass a piece if there are enough; return None."""
        if self._taking:  # the taker of the piece has closed us, and TLS delivers its remaining bytes
            return None
        self._have += count
        piece = self._room[self._taken : self._have]
        missing = self.left - len(piece)
        if missing and len(piece) < _LEAST_PIECE:
            return None
        self._taking = True
        try:
            taken = self._take(piece, self.left)
        finally:
            self._taking = False
        self.left -= taken
        self._taken += taken
        self.over = not missing
        if len(self._room) - self._have < min(missing, _LEAST_PIECE):
            self._begin(piece[taken:])
        return None


class FrameStream(asyncio.BufferedProtocol):
    """A connection; calls `on_frame(frame)` per frame and `on_lost(error)` once at the end."""

    def __init__(
        self,
        on_frame: Callable[[bytearray], None],
        on_lost: Callable[[Exception | None], None],
        *,
        max_frame: int = MAX_FRAME,
        on_trust: int = MAX_FRAME,
        high_water: int = 4 << 20,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self.max_frame = max_frame
        """The longest frame that is accepted from now on."""
        self._on_trust = on_trust
        self._high_water = high_water
        self._head = b""
        """Received bytes that are not cut yet: up to three bytes of a frame's size, or all waiting frames."""
        self._waits = False
        """True if received frames wait for their turn, or for the owner to resume reading."""
        self._turns = False
        """True if a turn of this stream is scheduled."""
        self.stopped = False
        """True if the owner has paused reading."""
        self._over = False
        """True if no further frame is handed over."""
        self._end_due = False
        """True if the connection is lost, and `on_lost` is called once no frame waits."""
        self._coming: _Whole | _Pieces | None = None
        """The frame of which a part has arrived."""
        self._waits_for = _NONE_WAITED_FOR
        self._raw: socket.socket | None = None
        """The socket, if its bytes are the bytes of the frames (no TLS)."""
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        """Host and port of the peer, for messages."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.on_writable: Callable[[bool], None] | None = None
        self.on_made: Callable[[], None] | None = None
        """Called once when the connection is made: with TLS, when the handshake is over."""
        self.on_large: Callable[[], None] | None = None
        """Called when a large frame begins to arrive: from then on memory is kept for the frame."""
        self.on_begin: Callable[[], TakePiece | None] | None = None
        """Called at the start of a frame worth pieces; returns the taker of the pieces, or None for a whole frame."""
        self.lost = False
        self._reason: Exception | None = None

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass of asyncio.Transport
        self._transport = stream
        name = transport.get_extra_info("peername")
        if name:
            self.peer = f"{name[0]}:{name[1]}"
        stream.set_write_buffer_limits(high=self._high_water)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _PROBES.items():
                if hasattr(socket, option):
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            if _WAKES_LATE and transport.get_extra_info("sslcontext") is None:
                self._raw = raw
        if self.on_made is not None:
            self.on_made()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._coming is not None:
            return self._coming.free
        scratch = _SCRATCHES.free
        if scratch is None:
            scratch = _SCRATCHES.free = bytearray(_SCRATCH)
        if not self._head:
            return memoryview(scratch)
        if len(self._head) >= len(scratch):
            scratch = _SCRATCHES.free = bytearray(_SCRATCH + len(self._head))
        scratch[: len(self._head)] = self._head
        return memoryview(scratch)[len(self._head) :]

    def buffer_updated(self, nbytes: int) -> None:
        coming = self._coming
        if coming is None:
            self._cut(len(self._head) + nbytes)
            return
        frame = coming.come(nbytes)
        if self.lost or coming.over:
            self._coming = None
        self._wait_for(coming.awaited)
        if frame is not None:
            self._on_frame(frame)

    def _cut(self, fill: int) -> None:
        """Hand over the frames in the first `fill` bytes of the scratch buffer, then send the collected writes."""
        if _UNSENT.parts is not None:  # read within another stream's frame
            self._cut_frames(fill)
            return
        unsent: dict[FrameStream, list[Buffer]] = {}
        _UNSENT.parts = unsent
        try:
            self._cut_frames(fill)
        finally:
            _send_all(unsent)

    def _cut_frames(self, fill: int) -> None:
        """Cut frames out of the first `fill` bytes of the scratch buffer; the rest begins the next frame, or waits."""
        scratch, _SCRATCHES.free = _SCRATCHES.free, None
        assert scratch is not None
        at, left = 0, _AT_A_STRETCH
        while fill - at >= SIZE.size and not self._over and left and (self.lost or not self.stopped):
            (size,) = SIZE.unpack_from(scratch, at)
            if not 0 <= size <= self.max_frame:
                self._refuse(size, scratch[at : at + len(_TLS_ALERT)])
                break
            stop = at + SIZE.size + size
            if stop > fill:
                self._begin(stop - at, memoryview(scratch)[at:fill])
                at = fill
                break
            frame = scratch[at:stop]
            at = stop
            left -= 1
            self._on_frame(frame)
        self._head = b"" if self._over else bytes(scratch[at:fill])
        _SCRATCHES.free = scratch
        self._waits = len(self._head) >= SIZE.size
        if self._waits:
            self._read(False)
            if self.lost or not self.stopped:
                self._take_turn()

    def _take_turn(self) -> None:
        """Continue with the waiting frames, once all other connections had a turn."""
        if not self._turns:
            self._turns = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turns = False
        if self._waits and (self.lost or not self.stopped):
            self.get_buffer(-1)
            self._cut(len(self._head))
        if self._waits:
            return
        if self._end_due:
            self._tell_lost()
        elif not self.stopped:
            self._read(True)

    def _refuse(self, size: int, begin: bytearray) -> None:
        if begin == _TLS_ALERT:
            self.abort(TlsAlertError("tls-alert", f"{self.peer} answers with a TLS alert"))
        else:
            self.abort(ProtocolViolation("bad-frame-size", f"a peer announced a frame of {size} bytes"))

    def _begin(self, size: int, come: memoryview) -> None:
        """Continue to receive a frame of which `come` has arrived."""
        take = self.on_begin() if self.on_begin is not None and size >= _WORTH_PIECES else None
        if take is None:
            self._coming = _Whole(size, come, max(self._on_trust, _GROWTH * len(come)))
        else:
            self._coming = _Pieces(size, come, take)
        self._wait_for(self._coming.awaited)
        if size > _LARGE and self.on_large is not None:
            self.on_large()

    def _wait_for(self, count: int) -> None:
        """Have the kernel wake us once `count` bytes have arrived."""
        count = max(_NONE_WAITED_FOR, count)
        if self._raw is not None and count != self._waits_for and not self.lost:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._waits_for = count

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._transport = self._raw = None  # asyncio's transport cannot even be aborted any more
        self._coming = None  # the owner may keep a lost connection for long
        self._writable.set()
        self._reason = exc or self._reason
        self._end_due = True
        if self._waits:
            self._take_turn()
        else:
            self._tell_lost()

    def _tell_lost(self) -> None:
        self._over, self._end_due, self._coming = True, False, None
        self._on_lost(self._reason)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self.on_writable is not None:
            self.on_writable(False)

    def resume_writing(self) -> None:
        self._writable.set()
        if self.on_writable is not None:
            self.on_writable(True)

    # for the owner

    @property
    def subject(self) -> str:
        """Subject of the peer's certificate; '' if the peer showed no certificate."""
        shown = self._transport.get_extra_info("peercert") if self._transport else None
        return subject_of(shown) if shown else ""

    @property
    def held(self) -> int:
        """Bytes kept for the connection: a large arriving frame, waiting frames, and writes not yet sent."""
        unread = self._transport.get_write_buffer_size() if self._transport is not None and not self.lost else 0
        waits = len(self._head) if self._waits else 0
        return unread + waits + (self._coming.held if self._coming is not None else 0)

    @property
    def writable(self) -> bool:
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait until the peer reads again, or the connection is lost."""
        await self._writable.wait()

    def write(self, data: Buffer) -> None:
        """Send bytes; while a read's frames are handed over, small writes are collected and sent together."""
        unsent = _UNSENT.parts
        if unsent is not None and len(data) < _LARGE:
            unsent.setdefault(self, []).append(data)
        else:
            self.write_many([data])

    def write_many(self, parts: list[Buffer]) -> None:
        """Send all parts at once, behind the stream's collected writes."""
        unsent = _UNSENT.parts
        self._send([*unsent.pop(self, ()), *parts] if unsent else parts)

    def _send(self, parts: list[Buffer]) -> None:
        if self._transport is not None and not self.lost:
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def _send_unsent(self) -> None:
        """Have the system take earlier writes now, whatever frames are handed over first."""
        unsent = _UNSENT.parts
        if unsent and self in unsent:
            self._send(unsent.pop(self))

    def pause_reading(self) -> None:
        """Pause reading; frames that have arrived wait here."""
        self.stopped = True
        self._read(False)

    def resume_reading(self) -> None:
        """Resume reading; waiting frames are handed over first."""
        if not self.stopped:
            return
        self.stopped = False
        if self._waits:
            self._take_turn()
        else:
            self._read(True)

    def _read(self, on: bool) -> None:
        if self._transport is None or self.lost or self._transport.is_reading() is on:
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close after all written bytes have left."""
        self._send_unsent()
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """End writing, and go on reading until the peer closes; with TLS: close."""
        self._send_unsent()
        if self._transport is not None and not self.lost:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def leave_by_reset(self) -> None:
        """Have the system end this connection by RST, however it ends, and also if this process is killed.

        After a FIN a busy peer still reads the requests behind; after an RST it fails to answer, and reads no more.
        """
        raw = self._transport.get_extra_info("socket") if self._transport is not None else None
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    def abort(self, reason: Exception | None = None) -> None:
        """Close at once: waiting bytes are dropped, and only bytes that the system has already taken are sent."""
        self._reason = self._reason or reason
        self.lost = self._over = True
        self._waits, self._head = False, b""
        if self._transport is not None:
            self._transport.abort()
