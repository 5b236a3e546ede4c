"""Handles a client's Fetch requests: passes them, or answers from requests asked ahead (`read_ahead`).

A large answer whose turn has come passes while it arrives; every other answer passes when it is whole. Requests of a
fetch session pass singly, as at a broker. Later requests never overtake a request that may still have to be sent. While
any partition is unready (`shared.aligning_partitions`), the router awaits whole answers to cut out unready partitions.
Requests ask for less meanwhile, so that whole answers take little memory.
"""

from __future__ import annotations

from collections.abc import Callable

from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.frames import RequestHead, TakePiece, set_correlation_id, take_all
from kmigrate.router.fetch.out_of_range import OutOfRangeReads
from kmigrate.router.shared.read_ahead import LARGE, MOST_BYTES, Ahead, Pass, ReadAhead
from kmigrate.router.shared.sequencer import Sequencer, Slot
from kmigrate.router.shared.state import Buffer, ClientContext, ClientLink, SharedState
from kmigrate.router.wire.aligning import cut_fetch
from kmigrate.router.wire.fetch import PassingFetch, ShownFetch, rewrite_fetch
from kmigrate.router.wire.fetch_session import (
    FIRST_WITH_TOPIC_IDS,
    FetchRequest,
    cap_bytes,
    encode,
    put_session,
    read_ends,
    read_head,
    read_request,
    show_session,
)

__all__ = ["FetchHandler"]

_A_MOMENT_S = 0.01
_MOST_WHILE_UNREADY = 1 << 20
"""Maximum bytes that a request asks for while any partition is unready: the router holds every answer whole then."""
_NO_CLIENTS = -1
"""Correlation id of a request asked ahead; answers come in order, whatever their ids."""


class FetchHandler:
    """Handles a client's Fetch requests; calls `advance` when a waiting request may go on."""

    def __init__(
        self,
        shared: SharedState,
        client: ClientLink,
        order: Sequencer,
        fill: Callable[[Slot, Buffer | None], None],
        context: ClientContext,
        advance: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._client = client
        self._order = order
        self._fill = fill
        self._context = context
        self._advance = advance
        self._session = ReadAhead(shared.room_ahead)
        self._beyond = OutOfRangeReads(shared, client)
        self._under_way = False
        """True while a request of the client's session is not answered."""
        self._use: tuple[Ahead, Callable[[bytearray, bool], None]] | None = None
        """Request asked ahead that the client has asked for and the target has not answered yet."""

    def take(self, head: RequestHead, frame: bytearray) -> bool:
        """Take a client's request; return False where the request has to wait."""
        if self.may_send:
            return False
        request = read_request(frame, head.version, head.body) if self._shared.room_ahead.exists else None
        if request is not None and self._under_way:
            return False
        slot = self._order.take(len(frame))
        if request is None:
            self._send(slot, head, frame, frame)
            return True
        self._under_way = True
        word = self._session.asked(request, by_ids=head.version >= FIRST_WITH_TOPIC_IDS)
        if isinstance(word, Ahead):
            self._await(slot, head, frame, word)
        else:
            self._pass(slot, head, frame, request, word)
        return True

    @property
    def may_send(self) -> bool:
        """True if a request that was taken may still have to be sent, so that no later request may go before."""
        return self._use is not None

    def _is_over(self) -> None:
        """Note that a request of the session is answered."""
        self._under_way = False
        self._advance()

    # passed

    def _pass(self, slot: Slot, head: RequestHead, frame: bytearray, request: FetchRequest, word: Pass) -> None:
        most = min(request.max_bytes, MOST_BYTES) if word.whole else request.max_bytes
        named = (word.session_id, word.epoch, most)
        if word.full is not None:
            sent = encode(frame, head.version, head.body, word.full, head.correlation_id)
        elif named != (request.session_id, request.epoch, request.max_bytes):
            sent = bytearray(frame)
            session_id, epoch, max_bytes = named
            put_session(sent, head.version, head.body, session_id=session_id, epoch=epoch, max_bytes=max_bytes)
        else:
            sent = frame
        self._send(slot, head, frame, sent, followed=True, whole=word.whole)

    def _send(
        self,
        slot: Slot,
        head: RequestHead,
        frame: bytearray,
        sent: bytearray,
        *,
        followed: bool = False,
        whole: bool = False,
    ) -> None:
        """Send `sent` to the target in place of the client's `frame`; `followed`: as part of the client's session."""
        since = self._shared.table.epoch
        if self._shared.aligning.concerns(since):
            cap_bytes(sent, head.version, head.body, _MOST_WHILE_UNREADY)

        def answered(answer: bytearray) -> None:
            if followed:
                self._answered(slot, head, frame, answer, since, whole=whole)
            else:
                self._tell(slot, head, self._ready(answer, head, since), lambda: None)

        def begins() -> TakePiece | None:
            if whole or not self._order.is_next(slot) or self._shared.aligning.concerns(since):
                return None
            return self._passing(slot, head, followed=followed)

        self._client.to_target([sent], head.correlation_id, answered, begins)

    def _passing(self, slot: Slot, head: RequestHead, *, followed: bool) -> TakePiece:
        shown = None
        if not self._context.knows_brokers:
            shown = PassingFetch(head.version, self._shared.book, self._beyond.comes_again)
        take: TakePiece = take_all if shown is None else shown.take
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
                self._client.reply([piece[:taken]])
            if taken == left:
                if shown is not None and shown.errors:
                    self._shared.served.failed(ApiKey.FETCH, shown.errors)
                self._fill(slot, None)
                self._beyond.when_settled(lambda: self._is_over() if followed else None)
            return taken

        return passes

    def _answered(
        self, slot: Slot, head: RequestHead, frame: bytearray, answer: bytearray, since: int, *, whole: bool
    ) -> None:
        """Handle an answer of the session; after a `whole` answer the router may ask ahead."""
        answer = self._ready(answer, head, since)
        told = read_head(answer)
        shown = self._session.answered(told)
        if whole and len(answer) >= LARGE and self._is_last(slot) and self._context.login_lasts and not self._parting:
            ends = read_ends(answer, head.version, committed=self._session.committed)
            ahead = self._session.guess(told, ends, self._client.now())
            if ahead is not None:
                self._ask(ahead, head, frame)
        else:
            self._session.passed(len(answer))
        show_session(answer, shown)
        self._tell(slot, head, answer, self._is_over)

    def _tell(self, slot: Slot, head: RequestHead, answer: bytearray, then: Callable[[], None]) -> None:
        shown = self._shown(answer, head)
        if shown.errors:
            self._shared.served.failed(ApiKey.FETCH, shown.errors)

        def settled() -> None:
            self._fill(slot, shown.frame)
            then()

        self._beyond.when_settled(settled, at_once=shown.has_records)

    def _ready(self, answer: bytearray, head: RequestHead, since: int) -> bytearray:
        """Return an answer without unready partitions; `since`: the routing table's epoch at the request."""
        unready = self._shared.aligning
        return cut_fetch(answer, head.version, unready.judge(since)) if unready.concerns(since) else answer

    def _shown(self, answer: bytearray, head: RequestHead) -> ShownFetch:
        if self._context.knows_brokers:
            return ShownFetch(answer, has_records=False)
        return rewrite_fetch(answer, head.version, self._shared.book, self._beyond.comes_again)

    def _is_last(self, slot: Slot) -> bool:
        """Return whether nothing else of the connection is under way, such as a login that must not be interrupted."""
        return len(self._order.slots) == 1 and self._order.is_next(slot)

    @property
    def _parting(self) -> bool:
        """True while clients are leaving, so that the router asks nothing ahead."""
        return self._shared.table.finished or self._shared.closing

    # asked ahead

    def _ask(self, ahead: Ahead, head: RequestHead, frame: bytearray) -> None:
        def answered(answer: bytearray) -> None:
            usable = self._session.came(ahead, answer, self._client.now())
            if self._use is not None and self._use[0] is ahead:
                (_, use), self._use = self._use, None
                use(answer, usable)
                self._advance()
            elif usable:
                self._client.wake_at(ahead.until + _A_MOMENT_S)

        def begins() -> TakePiece | None:
            ahead.begun = not ahead.dropped
            return take_all if ahead.dropped else None

        sent = encode(frame, head.version, head.body, ahead.request, _NO_CLIENTS)
        ahead.since = self._shared.table.epoch
        if self._shared.aligning.concerns(ahead.since):
            cap_bytes(sent, head.version, head.body, _MOST_WHILE_UNREADY)
        self._client.to_target([sent], _NO_CLIENTS, answered, begins)
        self._client.wake_at(ahead.until + _A_MOMENT_S)

    def _await(self, slot: Slot, head: RequestHead, frame: bytearray, ahead: Ahead) -> None:
        """Answer a client's request with the answer to the request asked ahead, at once or when that answer arrives."""

        def use(answer: bytearray, usable: bool) -> None:
            if usable:
                self._session.used()
                set_correlation_id(answer, head.correlation_id)
                self._answered(slot, head, frame, answer, ahead.since, whole=True)
            else:
                full = encode(frame, head.version, head.body, self._session.instead(), head.correlation_id)
                self._send(slot, head, frame, full, followed=True)

        if ahead.answer is not None:
            use(ahead.answer, True)
        else:
            self._use = ahead, use

    def look(self) -> None:
        """Drop an answer that the client has not asked for in time."""
        self._session.look(self._client.now())

    @property
    def held(self) -> int:
        """Bytes of an answer that the client has not asked for yet."""
        return self._session.held

    def closed(self) -> None:
        self._use = None
        self._session.close()
