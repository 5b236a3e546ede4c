"""One client connection: its requests in order, each passed, rewritten, held, refused or forwarded.

Sans-I/O: `frame` and `advance` are told what happened, everything that acts goes through `Edge`. Requests are
looked at strictly one after another; one that has to wait stops the connection (`held`), so nothing overtakes
it. Answers leave in request order (`Sequencer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import is_flexible
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead, peek_request
from kmigrate.router.admin_desk import ADMINISTRATIVE, AdminDesk
from kmigrate.router.apis.addresses import LIST_GROUPS, METADATA, REWRITTEN, decode_request, rewrite_answer
from kmigrate.router.apis.blank import frame_answer
from kmigrate.router.apis.fetch import FETCH
from kmigrate.router.apis.followed import FOLLOWED_APIS, as_no_member
from kmigrate.router.apis.groups import (
    DELETES,
    HEARTBEATS,
    HELD_APIS,
    JOIN_GROUP,
    OFFSET_FETCH,
    group_error,
    groups_of,
    leaves_group,
    wait_answer,
)
from kmigrate.router.apis.heartbeats import from_target
from kmigrate.router.apis.not_ready import OFFSET_FOR_LEADER_EPOCH, cut_offsets
from kmigrate.router.apis.offered import (
    API_VERSIONS,
    OFFERED,
    check_offered,
    filter_api_versions,
    told_api_versions,
    unsupported_api_versions,
)
from kmigrate.router.apis.own_topics import HIDING, REFUSING, guard, hide, mentions
from kmigrate.router.apis.produce import PRODUCE, read_produce
from kmigrate.router.apis.producer_ids import INIT_PRODUCER_ID, given_id, is_refused_id
from kmigrate.router.apis.share import SHARE_READS, show_leaders
from kmigrate.router.apis.transactions import END_TXN, TRANSACTION_APIS, error_answer
from kmigrate.router.apis.trials import JOINING
from kmigrate.router.core import Buffer, Core, Edge
from kmigrate.router.creation import ask_layout
from kmigrate.router.ends import LIST_OFFSETS, EndsDesk
from kmigrate.router.fetch_desk import FetchDesk
from kmigrate.router.follow import FollowDesk
from kmigrate.router.login import SASL_APIS, ClientLogin
from kmigrate.router.nodeids import AddressBook
from kmigrate.router.produce_desk import ProduceDesk
from kmigrate.router.sequencer import Sequencer, Slot
from kmigrate.router.transactions import TransactionDesk
from kmigrate.router.trials import TrialDesk

__all__ = ["Session"]

_OF_PRODUCERS = TRANSACTION_APIS | {INIT_PRODUCER_ID}
_OF_GROUPS = HELD_APIS | FOLLOWED_APIS
_COORDINATED = _OF_PRODUCERS | HEARTBEATS
_LONGEST_NAME = 256
"""Of what a client calls itself, and each connection keeps, logged in or not: it may send 32 KB of each."""
_FIRST_WITH_SOFTWARE = 3
"""ApiVersions says from this version on which library the client is (KIP-511)."""


def _unanswered(head: RequestHead, frame: bytearray) -> bool:
    """Whether a request is a write that asks for no answer."""
    return head.api_key == PRODUCE and read_produce(frame, head).acks == 0


class Session:
    """The order and the decisions of one client connection."""

    def __init__(self, core: Core, edge: Edge) -> None:
        self._core = core
        self._edge = edge
        self._inbound: deque[tuple[RequestHead, bytearray, float]] = deque()
        self._inbound_bytes = 0
        self._order = Sequencer()
        self._trials = TrialDesk(core, edge, lambda: self.host)
        self._follow = FollowDesk(core, edge, self._trials)
        self._admin = AdminDesk(core, edge, self._follow, lambda: self._told)
        self._transactions = TransactionDesk(core, edge, self._follow)
        self._login = ClientLogin(core, edge)
        self._end_offsets = EndsDesk(core, edge)
        self._writes = ProduceDesk(core, edge, self._transactions, self._order, self._fill, self.advance)
        self._reads = FetchDesk(
            core, edge, self._order, self._fill, lambda: self._told, lambda: self._login.lasts, self.advance
        )
        self._group_deadline: float | None = None
        self._waits_for_answers = False
        """Whether the head is taken once all before it is answered."""
        self._advancing = False
        self.gone = False
        self.host = self.client_id = self.software = ""
        """Whose connection it is, as far as it has told; the edge knows the host."""
        self.home = ""
        """The router whose client it is, where another is asked in its stead; '' for this one's (`stand_ins`)."""
        self.broker: int | None = None
        """The target broker whose listener it came to; None: the bootstrap listener, or one of a stand-in."""
        self.since = self.active = 0.0
        """When it came, and when its newest request or answer did."""
        self.leaving = False
        self._parted = self._cut_off = False
        self._said_refused = False

    # events

    def frame(self, frame: bytearray) -> None:
        """A request has arrived."""
        head = peek_request(frame)
        if head.api_key != API_VERSIONS:
            check_offered(head.api_key, head.version)
        if (self._parted or self._cut_off) and not _unanswered(head, frame):
            return
        self._login.admit(head, alone=self.idle)
        self.client_id, self.active = (head.client_id or "")[:_LONGEST_NAME], self._edge.now()
        self._core.requests[head.api_key] += 1
        self._inbound.append((head, frame, self.active))
        self._inbound_bytes += len(frame)
        if self in self._core.waiting:
            self._edge.advanced(done=False)  # what the head waits for has not changed
        else:
            self.advance()

    def advance(self) -> None:
        """Process what can be processed now."""
        if self._advancing:
            return
        self._advancing = True
        try:
            self._login.advance()
            self._transactions.advance()
            self._follow.advance()
            self._reads.look()
            while self._inbound:
                head, frame, arrived = self._inbound[0]
                if not self._take(head, frame, arrived):
                    self._core.waiting.setdefault(self)
                    return
                self._inbound.popleft()
                self._inbound_bytes -= len(frame)
                self._core.waiting.pop(self, None)
        except ProtocolViolation as violation:
            self._inbound.clear()
            self._core.waiting.pop(self, None)
            self._edge.close(violation.what)
        finally:
            self._advancing = False
            self._edge.advanced(done=self.gone and not self._inbound)
            self._part()

    def closed(self) -> None:
        """The client is gone. Only writes without acknowledgement that it had sent are still carried out."""
        self.gone = True
        self._transactions.closed()
        self._follow.closed()
        self._trials.closed()
        self._writes.closed()
        self._reads.closed()
        # A session and its edge know each other, and are freed when the garbage collector comes by: not the megabytes.
        self._order.drop()
        self.advance()

    def look_after(self) -> None:
        """Every few seconds: see whether a write waits for a leader that may be none any more."""
        self._writes.look_after()

    def leave(self) -> None:
        """Its turn to leave has come: it is parted from as soon as it is idle."""
        self.leaving = True
        self._part()

    def cut_off(self) -> None:
        """The target has ended its connection and owed nothing: what is under way is answered, and no more is taken."""
        self._cut_off = True
        self._part()

    def _part(self) -> None:
        may = self._cut_off or (self.leaving and (self._core.table.finished or self._core.closing))
        if may and self.idle and not (self.gone or self._parted):
            self._parted = True
            self._edge.part()

    @property
    def on_broker(self) -> bool:
        """Whether it came to a broker's listener."""
        return self.broker is not None

    @property
    def writing(self) -> bool:
        """Whether a write is under way that asked for an answer."""
        return self._writes.under_way

    @property
    def owes(self) -> bool:
        """Whether its client was told what is so only through its router (`late`)."""
        return self._transactions.owes

    @property
    def _told(self) -> bool:
        """Whether its client knows the brokers' own addresses, of which nobody is told but by its own router."""
        return self._core.table.finished and not self.home and self._core.farewell.knows(self)

    @property
    def idle(self) -> bool:
        """Whether nothing waits: neither a request nor an answer."""
        return not self._inbound and not self._order.slots

    @property
    def logged_in(self) -> bool:
        """Whether the client may send everything: it has logged in, or nobody asks it to."""
        return self._login.accepted

    @property
    def halfway(self) -> bool:
        """Whether the client has got an answer in part: to be gone on with, or the end of the connection."""
        return self._order.halfway

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._order.slots)

    @property
    def waiting_bytes(self) -> int:
        """Requests that wait or have no answer yet, and answers that wait for one before them, or to be asked for."""
        return self._inbound_bytes + self._order.pending_bytes + self._reads.held

    def congested(self, waiting: int) -> bool:
        """Whether reading from the client should pause while so many bytes wait."""
        limits = self._core.settings
        return waiting > limits.max_pending_bytes or len(self._inbound) + len(self._order.slots) > limits.max_pending

    # requests

    def _take(self, head: RequestHead, frame: bytearray, arrived: float) -> bool:
        """Deal with the head request; False where it has to wait."""
        key = head.api_key
        if key == PRODUCE:
            parting = self._core.table.finished and (self.leaving or self._told)
            return self._writes.take(head, frame, arrived, parting=parting)
        if self.gone:
            return True
        if self._reads.may_send:
            return False
        taken = self._take_guarded(head, frame)
        self._order.next_change = None
        return taken

    def _take_guarded(self, head: RequestHead, frame: bytearray) -> bool:
        """Keep the request from kmigrate's own topics, and the answer from telling them (`own_topics`)."""
        key, ids = head.api_key, self._core.own_ids
        if key in HIDING:
            full = self._decodable(head, frame)
            self._order.next_change = lambda answer: hide(full, answer, ids)
        if key in REFUSING and mentions(frame, ids):
            full = self._decodable(head, frame)
            guarded = guard(full, frame, ids)
            if guarded is not None:
                self._note_refused(head, guarded.refused)
                if guarded.rest is None:
                    self._order.next_change = None
                    self._answer(frame, guarded.answer)
                    return True
                frame, change, before = guarded.rest, guarded.change, self._order.next_change
                if change is not None:
                    self._order.next_change = lambda answer: change(bytearray(before(answer) if before else answer))
        return self._reads.take(head, frame) if key == FETCH else self._take_other(head, frame)

    def _note_refused(self, head: RequestHead, names: Collection[str]) -> None:
        """Count a refusal; say the connection's first."""
        self._core.own_refused[head.api_key] += 1
        if not self._said_refused:
            self._said_refused = True
            who, named = head.client_id or "a client", ", ".join(names)
            self._core.outside.say(f"{who}: a request for kmigrate's own topics was refused: {named}")

    def _take_other(self, head: RequestHead, frame: bytearray) -> bool:
        """The same, of what neither writes nor reads."""
        key = head.api_key
        if key in _COORDINATED and self._told and self._core.farewell.is_back(self) and self._sent_on(head, frame):
            return True
        if key in _OF_GROUPS and (self._core.table.held_groups or self._core.table.followed):
            return self._group(head, frame)
        if key in REWRITTEN:
            return self._rewritten(head, frame)
        if key in SHARE_READS:
            unready = self._core.unready.judge(self._core.table.epoch)
            self._pass(
                head,
                frame,
                lambda answer: answer if self._told else show_leaders(answer, head, self._core.book, unready),
            )
        elif key == API_VERSIONS:
            self._api_versions(head, frame)
        elif key in SASL_APIS:
            return self._sasl(head, frame)
        elif key in _OF_PRODUCERS and (self._core.table.topics or self._core.table.held_groups):
            self._of_producer(head, frame)
        elif key == LIST_OFFSETS and self._core.table.topics:
            self._ends(head, frame)
        elif key in ADMINISTRATIVE:
            return self._administrative(head, frame)
        else:
            self._pass_on(head, frame)
        return True

    def _sent_on(self, head: RequestHead, frame: bytearray) -> bool:
        """Have a client that came back look for its coordinators anew (`leaving`, e); False where this one does."""
        request = decode_request(frame, self._decodable(head, frame))
        if head.api_key in HEARTBEATS:
            if leaves_group(request):
                return False
            answer = frame_answer(group_error(head, request, Code.NOT_COORDINATOR), head.correlation_id)
        elif head.api_key == END_TXN or (head.api_key == INIT_PRODUCER_ID and request.transactional_id is None):
            return False
        else:
            answer = error_answer(head, request, Code.NOT_COORDINATOR)
        self._answer(frame, answer)
        return True

    def _pass(self, head: RequestHead, frame: Buffer, change: Callable[[bytearray], Buffer] | None = None) -> None:
        """To the target as it is; the answer back, through `change` where given."""
        slot = self._order.take(len(frame))

        def answered(answer: bytearray) -> None:
            self._fill(slot, change(answer) if change else answer)

        self._edge.to_target([frame], head.correlation_id, answered)

    def _pass_on(self, head: RequestHead, frame: bytearray) -> None:
        """The same; a member whose group is a new one at the target is told that it is none, and joins.

        The broker would say that there is no such group, or none of the new protocol, at which clients end.
        """
        if head.api_key in JOINING:
            self._joining(self._decodable(head, frame), frame)
        elif head.api_key == OFFSET_FETCH and (lately := self._core.followers.opened(self._edge.now())):
            self._ask_positions(self._decodable(head, frame), frame, frozenset(lately))
        elif head.api_key == OFFSET_FOR_LEADER_EPOCH:
            since = self._core.table.epoch
            self._pass(head, frame, lambda answer: self._ready(head, answer, since))
        else:
            self._pass(head, frame)

    def _joining(self, head: RequestHead, frame: bytearray) -> None:
        """Pass on a join, or a heartbeat of the new protocol; look at the answer where the group has just opened."""
        opened = frozenset(self._core.followers.opened(self._edge.now()))
        watched = self._core.trials.watched(opened)

        def answered(answer: bytearray) -> Buffer:
            if watched:
                self._trials.joined(head, frame, answer, watched)
            return answer if head.api_key == JOIN_GROUP else from_target(head, frame, answer, opened)

        self._pass(head, frame, answered)

    def _ask_positions(self, head: RequestHead, frame: bytearray, opened: Collection[str]) -> None:
        """Of a group that has just opened; a member whom the target does not know yet is told them all the same.

        Clients end at its being none (25), if no heartbeat has told them before.
        """
        slot = self._order.take(len(frame))

        def answered(answer: bytearray) -> None:
            again = as_no_member(head, frame, answer, opened)
            if again is None:
                self._fill(slot, answer)
            else:
                self._edge.to_target([again], head.correlation_id, lambda last: self._fill(slot, last))

        self._edge.to_target([frame], head.correlation_id, answered)

    def _answer(self, frame: Buffer, answer: Buffer) -> None:
        self._fill(self._order.take(len(frame)), answer)

    def _fill(self, slot: Slot, answer: Buffer | None) -> None:
        if slot.change is not None and answer is not None:
            try:
                answer = slot.change(answer if isinstance(answer, bytearray) else bytearray(answer))
            except ProtocolViolation as violation:
                self._edge.close(violation.what)
                return
        parts = self._order.fill(slot, answer)
        self.active = self._edge.now()
        if parts and not self.gone:
            self._edge.reply(parts)
        if self._waits_for_answers and not self.waits_for_answer:
            self.advance()
        self._part()

    def _api_versions(self, head: RequestHead, frame: bytearray) -> None:
        if not 0 <= head.version <= OFFERED[API_VERSIONS][1]:
            self._answer(frame, unsupported_api_versions(head.correlation_id))
            return
        if head.version >= _FIRST_WITH_SOFTWARE:
            told = decode_request(frame, self._decodable(head, frame))
            self.software = f"{told.client_software_name} {told.client_software_version}"[:_LONGEST_NAME]
        target = None if self._login.accepted else self._core.outside.target_versions()
        if target is not None:
            self._answer(frame, told_api_versions(target, head.version, head.correlation_id))
        else:
            self._pass(head, frame, lambda answer: filter_api_versions(answer, head.version))

    def _of_producer(self, head: RequestHead, frame: bytearray) -> None:
        """A producer's own word: with a transactional id to the desk, without one it asks for a producer id."""
        request = decode_request(frame, self._decodable(head, frame))
        if head.api_key == INIT_PRODUCER_ID and request.transactional_id is None:
            self._producer_id(head, frame)
            return
        slot = self._order.take(len(frame))
        self._transactions.take(head, frame, request, lambda answer: self._fill(slot, answer))

    def _producer_id(self, head: RequestHead, frame: bytearray) -> None:
        """To the target; one that it refuses to a writer of the source is asked for by the router itself."""
        slot = self._order.take(len(frame))

        def answered(answer: bytearray) -> None:
            if self._core.mirrored() and is_refused_id(head, frame, answer):
                self._core.outside.new_producer_id(
                    lambda own: self._fill(slot, given_id(head, own) if own >= 0 else answer)
                )
            else:
                self._fill(slot, answer)

        self._edge.to_target([frame], head.correlation_id, answered)

    def _sasl(self, head: RequestHead, frame: bytearray) -> bool:
        """A renewal begins once all before it is answered: what is sent late must not fall within it (KIP-368)."""
        if self._login.begins_again(head) and not self._alone():
            return False
        request = decode_request(frame, self._decodable(head, frame))
        if self._login.relays(head, request):
            self._pass(head, frame, lambda answer: self._login.told(head, answer))
        else:
            slot = self._order.take(len(frame))
            self._login.answer(head, request, lambda answer: self._fill(slot, answer))
        return True

    def _alone(self) -> bool:
        """Whether all before the head is answered; where it is not, the head waits for that."""
        self._waits_for_answers = self.waits_for_answer
        return not self._waits_for_answers

    def _decodable(self, head: RequestHead, frame: bytearray) -> RequestHead:
        return peek_request(frame, is_flexible(head.api_key, head.version))

    def _rewritten(self, head: RequestHead, frame: bytearray) -> bool:
        """To the target, and back with the router's addresses; or untouched, once the client may leave."""
        farewell = self._core.farewell
        leaves = self._core.table.finished and not self.home and not farewell.stays(self)
        if leaves and not farewell.may_tell(self):
            return False

        slot, full = self._order.take(len(frame)), self._decodable(head, frame)

        def answered(answer: bytearray) -> None:
            if self._told:
                self._fill(slot, answer)
            else:
                self._core.stand_ins.book(self.home, lambda book: self._show(slot, answer, head, book))

        if head.api_key == METADATA:
            ask_layout(self._core, self._edge, full, frame, decode_request(frame, full), answered)
        else:
            self._edge.to_target([frame], head.correlation_id, answered)
        return True

    def _show(self, slot: Slot, answer: bytearray, head: RequestHead, book: AddressBook) -> None:
        try:
            shown, stranger = rewrite_answer(answer, head, book, self._core.hidden())
        except ProtocolViolation as violation:
            self._edge.close(violation.what)
            return
        if stranger:
            self._core.outside.refresh_target()
        self._fill(slot, shown)

    def _ends(self, head: RequestHead, frame: bytearray) -> None:
        slot, request = self._order.take(len(frame)), decode_request(frame, self._decodable(head, frame))
        since = self._core.table.epoch

        def answered(answer: bytearray) -> None:
            self._fill(slot, self._ready(head, answer, since))

        self._end_offsets.ask(head, frame, request, answered)

    def _ready(self, head: RequestHead, answer: bytearray, since: int) -> Buffer:
        """Return an answer without unready partitions; `since`: the routing table's epoch at the request."""
        unready = self._core.unready
        return cut_offsets(answer, head, unready.judge(since)) if unready.concerns(since) else answer

    def _administrative(self, head: RequestHead, frame: bytearray) -> bool:
        if head.api_key == LIST_GROUPS and self._core.table.followed and not self._alone():
            return False  # as below, of groups: of all that follow it is asked at their sources
        slot = self._order.take(len(frame))
        self._admin.take(
            self._decodable(head, frame),
            frame,
            lambda answer: self._fill(slot, answer),
            home=self.home,
            broker=self.broker,
        )
        return True

    def _group(self, head: RequestHead, frame: bytearray) -> bool:
        """Of a held group they wait a moment and are told to come again (14); of one that follows they go to a desk.

        A member of the new protocol that the source does not know waits in both: the target would make a second group
        of it, beside the source's.
        What is about several of them makes many questions: it is taken alone, as brokers take all of a connection's.
        """
        request = decode_request(frame, self._decodable(head, frame))
        held, followed, groups = self._core.table.held_groups, self._core.table.followed, groups_of(request)
        if head.api_key == JOIN_GROUP and (groups[0] in held or groups[0] in followed):
            timeout_ms = round(request.session_timeout.total_seconds() * 1000)
            self._core.join_book.asked(groups[0], head.client_id or "", timeout_ms, self._edge.now())
        if groups:
            self._trials.take(head, request, groups[0])
        if head.api_key not in FOLLOWED_APIS or not self._follow.understands(head, request):
            held |= followed.keys()
        if head.api_key not in HELD_APIS or held.isdisjoint(groups) or (
            head.api_key == JOIN_GROUP and groups[0] in followed
        ):
            self._group_deadline = None
            if head.api_key in FOLLOWED_APIS and not followed.keys().isdisjoint(groups):
                if len(groups) > 1 and not self._alone():
                    return False
                slot = self._order.take(len(frame))
                self._follow.take(head, request, lambda answer: self._fill(slot, answer))
            else:
                self._pass_on(head, frame)
            return True
        if head.api_key in DELETES:
            self._answer(frame, wait_answer(head, request, held))
            return True
        now = self._edge.now()
        self._core.held.asked(held.intersection(groups), now)
        if self._group_deadline is None:
            self._group_deadline = now + self._core.settings.group_hold_s
            self._edge.wake_at(self._group_deadline)
        if now < self._group_deadline:
            return False
        self._group_deadline = None
        self._answer(frame, wait_answer(head, request, held))
        return True
