"""A client's Fetch requests: passed, or answered by what was asked ahead of them (`read_ahead`); answers shown its way.

A large answer whose turn it is passes while it arrives, every other one when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable

from kmigrate.protocol.frames import RequestHead, TakePiece, set_correlation_id, take_all
from kmigrate.router.apis.fetch import PassingFetch, rewrite_fetch
from kmigrate.router.apis.fetch_ends import read_ends, read_head, show_session
from kmigrate.router.apis.fetch_requests import FIRST_READ, FetchRequest, encode, put_session, read_request
from kmigrate.router.core import Buffer, Core, Edge
from kmigrate.router.read_ahead import LARGE, MOST_BYTES, STALE_S, Ahead, Pass, ReadAhead
from kmigrate.router.sequencer import Sequencer, Slot

__all__ = ["FetchDesk"]

_NO_CLIENTS = -1
"""Correlation id of what was asked ahead; answers come in order, whatever their ids."""


class FetchDesk:
    """Deals with one client's Fetch requests; `told`: whether its client knows the brokers' own addresses."""

    def __init__(
        self,
        core: Core,
        edge: Edge,
        order: Sequencer,
        fill: Callable[[Slot, Buffer | None], None],
        told: Callable[[], bool],
    ) -> None:
        self._core = core
        self._edge = edge
        self._order = order
        self._fill = fill
        self._told = told
        self._session = ReadAhead(core.room_ahead)
        self._waiting: dict[Ahead, Callable[[bytearray], None]] = {}
        """Whose client has asked by now, and has no answer yet."""

    def take(self, head: RequestHead, frame: bytearray) -> None:
        """A client's request."""
        slot = self._order.take(len(frame))
        request = read_request(frame, head.version, head.body) if head.version >= FIRST_READ else None
        if request is None:
            self._send(slot, head, frame, None)
            return
        word = self._session.asked(request)
        if isinstance(word, Ahead):
            self._use(slot, head, frame, word)
        else:
            self._pass(slot, head, frame, request, word)

    # passed

    def _pass(
        self, slot: Slot, head: RequestHead, frame: bytearray, request: FetchRequest, word: Pass
    ) -> None:
        whole = word.whole and self._guesses
        most = min(request.max_bytes, MOST_BYTES) if whole else request.max_bytes
        named = (word.session_id, word.epoch, most)
        if word.full is not None:
            sent = encode(frame, head.version, head.body, word.full, head.correlation_id)
        elif named != (request.session_id, request.epoch, request.max_bytes):
            sent = bytearray(frame)
            session_id, epoch, max_bytes = named
            put_session(sent, head.version, head.body, session_id=session_id, epoch=epoch, max_bytes=max_bytes)
        else:
            sent = frame
        self._send(slot, head, sent, frame, whole=whole)

    @property
    def _guesses(self) -> bool:
        return not self._core.table.finished and not self._core.closing

    def _send(
        self, slot: Slot, head: RequestHead, sent: bytearray, asked: bytearray | None, *, whole: bool = False
    ) -> None:
        """To the target; `asked`, the client's own request, where its session is followed here."""

        def answered(answer: bytearray) -> None:
            if asked is not None:
                self._answered(answer, head, asked if whole else None)
            self._fill(slot, self._shown(answer, head))

        def begins() -> TakePiece | None:
            if whole or not self._order.is_next(slot):
                return None
            return self._passing(slot, head, followed=asked is not None)

        self._edge.to_target([sent], head.correlation_id, answered, begins)

    def _passing(self, slot: Slot, head: RequestHead, *, followed: bool) -> TakePiece:
        take = take_all if self._told() else PassingFetch(head.version, self._core.book).take
        begun = False

        def passes(piece: memoryview, left: int) -> int:
            nonlocal begun
            if not begun and followed:
                show_session(piece, self._session.answered(read_head(piece)))
                self._session.passed(left)
            begun = True
            taken = take(piece, left)
            if taken:
                self._order.begin(slot)
                self._edge.reply([piece[:taken]])
            if taken == left:
                self._fill(slot, None)
            return taken

        return passes

    def _shown(self, answer: bytearray, head: RequestHead) -> Buffer:
        return answer if self._told() else rewrite_fetch(answer, head.version, self._core.book)

    # asked ahead

    def _answered(self, answer: bytearray, head: RequestHead, asked: bytearray | None) -> None:
        """An answer is there whole; where the client's request is given, it may be asked behind it."""
        told = read_head(answer)
        shown = self._session.answered(told)
        if asked is None or len(answer) < LARGE or not self._guesses:
            self._session.passed(len(answer))
        else:
            committed = self._session.committed
            ahead = self._session.guess(told, read_ends(answer, head.version, committed=committed))
            if ahead is not None:
                self._ask(ahead, head, asked)
        show_session(answer, shown)

    def _ask(self, ahead: Ahead, head: RequestHead, asked: bytearray) -> None:
        def answered(answer: bytearray) -> None:
            wanted = self._session.came(ahead, answer, self._edge.now())
            waiting = self._waiting.pop(ahead, None)
            if waiting is not None:
                waiting(answer)
            elif wanted:
                self._edge.wake_at(self._edge.now() + STALE_S + 0.01)

        def begins() -> TakePiece | None:
            return take_all if ahead.dropped else None

        sent = encode(asked, head.version, head.body, ahead.request, _NO_CLIENTS)
        self._edge.to_target([sent], _NO_CLIENTS, answered, begins)

    def _use(self, slot: Slot, head: RequestHead, frame: bytearray, ahead: Ahead) -> None:
        """The client asks for what was asked ahead: it gets the answer, at once or when it is there."""

        def answer_it(answer: bytearray) -> None:
            set_correlation_id(answer, head.correlation_id)
            self._answered(answer, head, frame)
            self._fill(slot, self._shown(answer, head))

        if ahead.answer is not None:
            answer_it(ahead.answer)
        else:
            self._waiting[ahead] = answer_it

    def look(self) -> None:
        """Time has passed: an answer that nobody has asked for may have become too old."""
        self._session.look(self._edge.now())

    @property
    def held(self) -> int:
        """Bytes of an answer that nobody has asked for yet."""
        return self._session.held

    def closed(self) -> None:
        self._waiting.clear()
        self._session.close()
