"""A socket as a stream of whole Kafka frames, in both directions.

What comes is received into a scratch buffer, one for all connections, and whole frames are cut out of it. The rest of
a frame that came in part is received straight into its own bytearray, so of large Fetch answers little is copied but
by the kernel. While much of such a frame is missing the kernel wakes us only when a good part of it has arrived
(SO_RCVLOWAT), not for every segment. A peer that is not trusted gets memory for what it has sent, and not for what it
has announced (`on_trust`).

Who wants a large frame in pieces, while it arrives, says so when it begins (`on_begin`). A piece is what has arrived
since the last one, and what the owner did not take of that; many of them lie in one memory, one behind the other.

Back-pressure in three sentences: when the peer does not read, `writable` is cleared and `drain` waits; who
relays from one stream to another pauses reading the first while the second is not writable; reading goes on
when it is writable again. Frames handed to `on_frame` belong to the receiver.

What is written while the frames of one read are handed over leaves in one write for each stream: a producer has many
small requests under way, or a broker answers many at once, and each write costs a system call here and wakes the peer.

One read may bring thousands of tiny frames, and a client that sends them shall not hold up all others: after some of
them everybody else has a turn. Those that are left wait here, as they do while reading is paused, and nothing is read
meanwhile; a connection ends when what it has brought is handed over.
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
"""Frames of one connection before the others' turn. A request of few bytes takes 10 to 50 µs."""
_LARGE = 32 * 1024
"""Memory for a frame of more than that, of which a part has come, is worth being told of; and so much is written at
once."""
_MUCH = 128 * 1024
"""Less than that comes at once, or nearly: to be woken late would cost more than it saves."""
_LEAST_ARRIVED = 512 * 1024
_LEAST_PIECE = 256 * 1024
"""Of a frame that is taken in pieces. Kafka's consumer read 0.74 of what it reads directly when pieces passed as they
came, at least so long, and 0.68 with pieces of 2 MiB; 64 KiB cost a third more CPU."""
_WORTH_PIECES = 4 * _LEAST_PIECE
_ROOM = 2 << 20
"""For pieces, behind each other."""
_ROOMS_KEPT = 16 << 20
_NONE_WAITED_FOR = 1
_WAKES_LATE = sys.platform == "linux"
_GROWTH = 4
"""How much more room a frame of an untrusted peer gets each time it has filled what it had."""
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""A host that has vanished answers none of them, and nobody else would say that it owes an answer. A process that
stands still answers them."""
_NO_LINGER = struct.pack("ii", 1, 0)
_TLS_ALERT = b"\x15\x03"
"""The first bytes of a TLS peer that met plain bytes; as a frame's size they are beyond every limit."""

Buffer = bytes | bytearray | memoryview
_BUFFERS = FrameBuffers()
"""One for the whole process, so that many connections do not keep memory each."""
_ROOMS = FrameBuffers(_ROOMS_KEPT, _ROOM)


class _Scratch(threading.local):
    """The scratch buffer of a thread, None while frames are being cut out of it.

    One of them may make us close a TLS connection, which then reads at once what it has left: into another one.
    """

    free: bytearray | None = None


_SCRATCHES = _Scratch()


class _Unsent(threading.local):
    """What a thread has written while it hands over the frames of one read; None at all other times."""

    parts: dict[FrameStream, list[Buffer]] | None = None


_UNSENT = _Unsent()


def _send_all(unsent: dict[FrameStream, list[Buffer]]) -> None:
    try:
        while unsent:  # whoever hears that a stream takes no more may write to others
            stream, parts = unsent.popitem()
            stream._send(parts)
    finally:
        if unsent:  # what is wrong with one stream takes nothing from the others
            _send_all(unsent)
        _UNSENT.parts = None


class TlsAlertError(ProtocolViolation):
    """Plain bytes met a peer that speaks TLS."""


class _Whole:
    """A frame of which a part has come; the rest is received straight into its own memory."""

    def __init__(self, size: int, come: Buffer, room: int) -> None:
        self._size = size
        self._worth_waiting_for = _LEAST_ARRIVED if size - len(come) >= _MUCH else _NONE_WAITED_FOR
        self.over = False
        self._begin(come, room)

    def _begin(self, come: Buffer, room: int) -> None:
        """Go on in memory for `room` bytes of it at most."""
        self._frame = _BUFFERS.take(min(self._size, room))
        self._have = len(come)
        self._frame[: self._have] = come
        self._view = memoryview(self._frame)

    @property
    def held(self) -> int:
        return len(self._frame)

    @property
    def free(self) -> memoryview:
        """Where what comes next belongs."""
        return self._view[self._have :]

    @property
    def awaited(self) -> int:
        """How much must arrive to be worth waking for; never more than is sure to come."""
        return min(self._size - self._have, self._worth_waiting_for)

    def come(self, count: int) -> bytearray | None:
        """So many bytes more are there; the frame, once it is whole."""
        self._have += count
        self.over = self._have == self._size
        if self.over:
            return self._frame
        if self._have == len(self._frame):
            self._begin(self._frame, _GROWTH * self._have)
        return None


class _Pieces:
    """A frame that is taken in pieces as it arrives; while there is room they lie behind each other in one memory."""

    def __init__(self, size: int, come: memoryview, take: TakePiece) -> None:
        self._take = take
        self.left = size
        """What has not been taken of it."""
        self.over = False
        self._taking = False
        self._begin(come)

    def _begin(self, come: memoryview) -> None:
        """Go on in memory of which only `come` is filled, and not taken."""
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
        """So many bytes more are there, and taken if they are enough; the frame is nowhere whole."""
        if self._taking:  # whoever takes a piece has closed us, and TLS reads what it has left
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
    """One connection; calls `on_frame(frame)` per frame and `on_lost(error)` once at its end."""

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
        """The longest frame that is taken from now on."""
        self._on_trust = on_trust
        self._high_water = high_water
        self._head = b""
        """What has come and is not cut: up to three bytes of a frame's size, or all that `_waits`."""
        self._waits = False
        """Whether frames that have come wait for their turn, or for the owner to go on."""
        self._turns = False
        """Whether a turn of it is due."""
        self.stopped = False
        """Whether the owner has paused reading."""
        self._over = False
        """Whether no frame is handed over any more."""
        self._end_due = False
        """Whether the connection is lost, and its owner is told once nothing waits."""
        self._coming: _Whole | _Pieces | None = None
        """The frame of which a part has come."""
        self._waits_for = _NONE_WAITED_FOR
        self._raw: socket.socket | None = None
        """The socket, where its bytes are the frames' own."""
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        """Host and port of the other side, for messages."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.on_writable: Callable[[bool], None] | None = None
        self.on_made: Callable[[], None] | None = None
        """Called once when there is a connection: with TLS, when its handshake is over."""
        self.on_large: Callable[[], None] | None = None
        """Called when a large frame begins to come: from then on memory is kept for it."""
        self.on_begin: Callable[[], TakePiece | None] | None = None
        """A frame begins that is worth pieces: says who takes them, None: it comes whole."""
        self.lost = False
        self._reason: Exception | None = None

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass of it
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
        """Hand over what the first `fill` bytes of the scratch buffer hold, then send what was written meanwhile."""
        if _UNSENT.parts is not None:  # it is read within another one's frame
            self._cut_frames(fill)
            return
        unsent: dict[FrameStream, list[Buffer]] = {}
        _UNSENT.parts = unsent
        try:
            self._cut_frames(fill)
        finally:
            _send_all(unsent)

    def _cut_frames(self, fill: int) -> None:
        """Frames out of the first `fill` bytes of the scratch buffer; what is left over begins the next, or waits."""
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
        """Go on with the frames that wait, once all others have been looked at."""
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
        """Go on receiving a frame of which `come` is there."""
        take = self.on_begin() if self.on_begin is not None and size >= _WORTH_PIECES else None
        if take is None:
            self._coming = _Whole(size, come, max(self._on_trust, _GROWTH * len(come)))
        else:
            self._coming = _Pieces(size, come, take)
        self._wait_for(self._coming.awaited)
        if size > _LARGE and self.on_large is not None:
            self.on_large()

    def _wait_for(self, count: int) -> None:
        """Be woken once that much has arrived."""
        count = max(_NONE_WAITED_FOR, count)
        if self._raw is not None and count != self._waits_for and not self.lost:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._waits_for = count

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._transport = self._raw = None  # asyncio's cannot even be aborted any more
        self._coming = None  # who has lost a connection may know it for long
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
        """Whom the other side's certificate names; '' where it showed none."""
        shown = self._transport.get_extra_info("peercert") if self._transport else None
        return subject_of(shown) if shown else ""

    @property
    def held(self) -> int:
        """Bytes that are kept for it: a large frame that comes, frames that wait, and what it has not taken yet."""
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
        unsent = _UNSENT.parts
        if unsent is not None and len(data) < _LARGE:
            unsent.setdefault(self, []).append(data)
        else:
            self.write_many([data])

    def write_many(self, parts: list[Buffer]) -> None:
        unsent = _UNSENT.parts
        self._send([*unsent.pop(self, ()), *parts] if unsent else parts)

    def _send(self, parts: list[Buffer]) -> None:
        if self._transport is not None and not self.lost:
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def _send_unsent(self) -> None:
        """Have the system take what was written before, whatever else is handed over first."""
        unsent = _UNSENT.parts
        if unsent and self in unsent:
            self._send(unsent.pop(self))

    def pause_reading(self) -> None:
        self.stopped = True
        self._read(False)

    def resume_reading(self) -> None:
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
        """Close after what was written has left."""
        self._send_unsent()
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Say that nothing more is written, and go on reading until the peer closes; with TLS: close."""
        self._send_unsent()
        if self._transport is not None and not self.lost:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def leave_by_reset(self) -> None:
        """Have the system end this connection by RST, however it ends, and also where this process is killed.

        A peer that works on one request reads those behind it after a FIN. After an RST it fails to answer, and reads
        none.
        """
        raw = self._transport.get_extra_info("socket") if self._transport is not None else None
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    def abort(self, reason: Exception | None = None) -> None:
        """Close at once: nothing that waits here is sent any more, only what the system has taken already."""
        self._reason = self._reason or reason
        self.lost = self._over = True
        self._waits, self._head = False, b""
        if self._transport is not None:
            self._transport.abort()
