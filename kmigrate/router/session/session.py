"""Handles a client connection: each of its requests in order is passed, rewritten, held, refused or forwarded.

The session does no I/O. `frame` and `advance` receive events; every action goes through `ClientLink`. A request that
has to wait stops the connection (`shared.waiting_groups`), so no later request overtakes, and answers leave in request
order (`Sequencer`). Every request but Produce and Fetch is answered by a conversation (`shared.conversation`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import partial

from kmigrate.errors import ProtocolViolation
from kmigrate.model.presences import KeptOutClient
from kmigrate.protocol.api import ApiKey, Message, build_answer, decode_request, frame_answer, is_flexible
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead, peek_request
from kmigrate.router.admin.handler import AdminHandler
from kmigrate.router.fetch.handler import FetchHandler
from kmigrate.router.fetch.list_offsets import ListOffsetsHandler
from kmigrate.router.groups.handler import GroupHandler
from kmigrate.router.groups.hold import GroupWait
from kmigrate.router.groups.trials import TrialJoins
from kmigrate.router.produce.handler import ProduceHandler
from kmigrate.router.session.coordinator_searches import CoordinatorSearches
from kmigrate.router.session.login import ClientLogin
from kmigrate.router.shared.conversation import Conversation, Conversations
from kmigrate.router.shared.kept_out import library_of, why_kept_out
from kmigrate.router.shared.sequencer import Change, Sequencer, Slot, in_turn
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.transactions.handler import TransactionHandler
from kmigrate.router.wire.addresses import rewrite_answer, show_share_read
from kmigrate.router.wire.aligning import cut_offsets
from kmigrate.router.wire.answer_errors import COUNTED_ELSEWHERE, error_codes
from kmigrate.router.wire.api_versions import answer_api_versions, filter_api_versions, unsupported_api_versions
from kmigrate.router.wire.apis import APIS, OFFERED, Treatment, is_offered, treated
from kmigrate.router.wire.followed import as_no_member
from kmigrate.router.wire.groups import DELETES, HEARTBEATS, groups_of, leaves_group, wait_answer
from kmigrate.router.wire.heartbeats import from_target
from kmigrate.router.wire.old_metadata import answer_in_version, ask_in_version_4, is_old_metadata
from kmigrate.router.wire.old_produce import answer_in_version as answer_of_old_produce
from kmigrate.router.wire.old_produce import in_version_3, is_old_produce
from kmigrate.router.wire.own_topics import HIDING, REFUSING, guard, hide, mentions
from kmigrate.router.wire.produce import read_produce
from kmigrate.router.wire.transactions import error_answer, given_id, is_refused_id
from kmigrate.router.wire.trials import JOINING

__all__ = ["Session"]

_PRODUCE = int(ApiKey.PRODUCE)
"""Each request is compared with this number; to look a member of an enum up costs six times as much."""
_OF_GROUPS = frozenset({Treatment.GROUP, Treatment.GROUP_NEVER_HELD})
_COORDINATED = treated(Treatment.TXN, Treatment.PRODUCER_ID) | HEARTBEATS
_LONGEST_NAME = 256
"""Maximum characters kept per connection of client id and software name; 32 KB of each may come, even before login."""
_NEVER_WAITED = object()
_FIRST_WITH_SOFTWARE = 3
"""First version in which ApiVersions names the client's library (KIP-511)."""
_LAST_FOR_ONE_COORDINATOR = 3
"""Last version in which FindCoordinator asks for a single coordinator (KIP-699)."""


def _unanswered(head: RequestHead, frame: bytearray) -> bool:
    """Return whether a request is a write that asks for no answer."""
    return head.api_key == ApiKey.PRODUCE and read_produce(frame, head).acks == 0


def _wants_producer_id(head: RequestHead, request: Message) -> bool:
    """Return whether a request asks for a producer id of its own, without a transactional id."""
    return head.api_key == ApiKey.INIT_PRODUCER_ID and request.transactional_id is None


class Session:
    """A client connection, with the order of its requests and the decisions about them."""

    def __init__(self, shared: SharedState, client: ClientLink) -> None:
        self._shared = shared
        self._client = client
        self._inbound: deque[tuple[RequestHead, bytearray, float]] = deque()
        self._inbound_bytes = 0
        self._order = Sequencer()
        self.conversations = Conversations(lambda violation: client.close(violation.what))
        self._trials = TrialJoins(shared, client, self)
        self._groups = GroupHandler(shared, client, self, self._trials)
        self._admin = AdminHandler(shared, client, self._groups, self)
        self._transactions = TransactionHandler(shared, client, self.conversations, self._groups)
        self._login = ClientLogin(shared, client)
        self._searches = CoordinatorSearches()
        self._end_offsets = ListOffsetsHandler(shared, client)
        self._writes = ProduceHandler(shared, client, self._transactions, self._order, self._fill, self.advance)
        self._reads = FetchHandler(shared, client, self._order, self._fill, self, self.advance)
        self._group_wait = GroupWait(shared, client, self)
        self._waits_for_answers = False
        """True while the first request waits until all requests before it are answered."""
        self._advancing = False
        self.gone = False
        self.host = self.home = self.client_id = self.software = ""
        """Host, home router (`ClientContext`), client id and library of the client, as far as known."""
        self.broker: int | None = None
        self.since = self.active = 0.0
        """Times of the connection's begin, and of its newest request or answer."""
        self.leaving = False
        self._parted = self._cut_off = False
        self._said_refused = False
        self._old_write: tuple[bytearray, RequestHead, bytearray] | None = None
        """A write with message sets that waits, and the same write in version 3."""

    # events

    def frame(self, frame: bytearray) -> None:
        """Take a request that has arrived."""
        if self._login.bare:
            frame = self._login.wrapped(frame, self.client_id)
        head = peek_request(frame)
        if not is_offered(head.api_key, head.version) and head.api_key != ApiKey.API_VERSIONS:
            self._keep_out(head)
            return
        if (self._parted or self._cut_off) and not _unanswered(head, frame):
            return
        self._login.admit(head, alone=self.idle)
        self.client_id, self.active = (head.client_id or "")[:_LONGEST_NAME], self._client.now()
        self._shared.requests[head.api_key] += 1
        self._inbound.append((head, frame, self.active))
        self._inbound_bytes += len(frame)
        if self in self._shared.waiting and not self._group_wait.joining:
            self._client.advanced(done=False)  # what the first request waits for has not changed
        else:
            self.advance()

    def _keep_out(self, head: RequestHead) -> None:
        """Close the connection of a client whose request was never offered: a guess at the answer would be worse."""
        client_id = (head.client_id or self.client_id)[:_LONGEST_NAME]
        software, why = library_of(self.software, client_id), why_kept_out(head.api_key, head.version)
        client = KeptOutClient(client_id, self.host, software, why)
        if self._shared.kept_out.note(client, self._client.now()):
            self._shared.backend.warn(f"{client.text}; repetitions are not logged")
        self._client.close("")

    def advance(self) -> None:
        """Process the requests that can be processed now."""
        if self._advancing:
            return
        self._advancing = True
        try:
            self._login.advance()
            self._transactions.advance()
            self._groups.advance()
            self._reads.look()
            while self._inbound:
                head, frame, arrived = self._inbound[0]
                if not self._take(head, frame, arrived):
                    self._shared.waiting.setdefault(self)
                    return
                self._inbound.popleft()
                self._inbound_bytes -= len(frame)
                if self._shared.waiting.pop(self, _NEVER_WAITED) is None:
                    self._shared.served.held(head.api_key, self._client.now() - arrived)
        except ProtocolViolation as violation:
            self._inbound.clear()
            self._shared.waiting.pop(self, None)
            self._client.close(violation.what)
        finally:
            self._advancing = False
            self._client.advanced(done=self.gone and not self._inbound)
            self._part()

    def closed(self) -> None:
        """End the session when the client is gone; only writes with acks=0 are still carried out."""
        self.gone = True
        self.conversations.close()
        self._transactions.closed()
        self._groups.closed()
        self._trials.closed()
        self._writes.closed()
        self._reads.closed()
        # Session and connection refer to each other, so only the garbage collector frees them. Free the megabytes now.
        self._order.drop()
        self.advance()

    def look_after(self) -> None:
        """Check whether a write waits for a broker that may no longer be the leader; called every few seconds."""
        self._writes.look_after()

    def leave(self) -> None:
        """Let the client leave: the connection ends as soon as the session is idle."""
        self.leaving = True
        if self._group_wait.joining:
            self.advance()
        self._part()

    def cut_off(self) -> None:
        """Answer what is under way and take no more requests, because the target has ended its idle connection."""
        self._cut_off = True
        self._part()

    def _part(self) -> None:
        may = self._cut_off or (self.leaving and (self._shared.table.finished or self._shared.closing))
        if may and self.idle and not (self.gone or self._parted):
            self._parted = True
            self._client.part()

    @property
    def on_broker(self) -> bool:
        """True if the connection came to a broker's listener."""
        return self.broker is not None

    @property
    def writing(self) -> bool:
        """True if a write that asked for an answer is under way."""
        return self._writes.under_way

    @property
    def has_promised(self) -> bool:
        """True if the client was told something that is true only through its router (`shared.deferred_partitions`)."""
        return self._transactions.has_promised

    @property
    def knows_brokers(self) -> bool:
        return self._shared.table.finished and not self.home and self._shared.handoff.knows(self)

    @property
    def idle(self) -> bool:
        """True if nothing waits: neither a request nor an answer."""
        return not self._inbound and not self._order.slots

    @property
    def login_lasts(self) -> bool:
        return self._login.lasts

    @property
    def logged_in(self) -> bool:
        """True if the client may send everything: the client has logged in, or no login is required."""
        return self._login.accepted

    @property
    def halfway(self) -> bool:
        """True if the client has got a part of an answer: the rest must follow, or the connection must end."""
        return self._order.halfway

    @property
    def waits_for_answer(self) -> bool:
        return bool(self._order.slots)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of requests that wait or lack an answer, and of answers that wait for earlier answers or the client."""
        return self._inbound_bytes + self._order.pending_bytes + self._reads.held

    def congested(self, waiting: int) -> bool:
        """Return whether reading from the client should pause while so many bytes wait."""
        limits = self._shared.settings
        return waiting > limits.max_pending_bytes or len(self._inbound) + len(self._order.slots) > limits.max_pending

    # requests

    def _take(self, head: RequestHead, frame: bytearray, arrived: float) -> bool:
        """Handle the first request; return False where the request has to wait."""
        key = head.api_key
        self._order.next_asked = (key, head.version, arrived)
        if key == _PRODUCE:
            parting = self._shared.table.finished and (self.leaving or self.knows_brokers)
            if is_old_produce(head):
                return self._take_old_write(head, frame, arrived, parting=parting)
            return self._writes.take(head, frame, arrived, parting=parting)
        if self.gone:
            return True
        if self._reads.may_send:
            return False
        if is_old_metadata(head):
            newer, asked = ask_in_version_4(head, frame)
            taken = self._take_guarded(newer, asked, lambda answer: answer_in_version(answer, head.version))
        else:
            taken = self._take_guarded(head, frame)
        self._order.next_change = None
        return taken

    def _take_old_write(self, head: RequestHead, frame: bytearray, arrived: float, *, parting: bool) -> bool:
        """Take a write in a version before batches (`wire.old_produce`); a write that waits is read once."""
        if self._old_write is None or self._old_write[0] is not frame:
            self._old_write = frame, *in_version_3(head, frame)
        _, newer, asked = self._old_write
        self._order.next_change = lambda answer: answer_of_old_produce(answer, head.version)
        taken = self._writes.take(newer, asked, arrived, parting=parting)
        self._order.next_change = None
        if taken:
            self._old_write = None
        return taken

    def _take_guarded(self, head: RequestHead, frame: bytearray, last: Change | None = None) -> bool:
        """Keep the request away from kmigrate's own topics, and keep those topics out of the answer (`own_topics`).

        `last` changes the answer after everything else.
        """
        key, ids, changes = head.api_key, self._shared.own_ids, [last] if last is not None else []
        if key in HIDING:
            full = self._decodable(head, frame)
            changes.insert(0, lambda answer: hide(full, answer, ids))
        if key in REFUSING and mentions(frame, ids):
            full = self._decodable(head, frame)
            guarded = guard(full, frame, ids)
            if guarded is not None:
                self._note_refused(head, guarded.refused)
                if guarded.rest is None:
                    self._answer(frame, guarded.answer)
                    return True
                frame = guarded.rest
                if guarded.change is not None:
                    changes.insert(key in HIDING, guarded.change)
        if changes:
            self._order.next_change = in_turn(changes)
        return self._reads.take(head, frame) if key == ApiKey.FETCH else self._take_other(head, frame)

    def _note_refused(self, head: RequestHead, names: Collection[str]) -> None:
        """Count a refusal, and log the connection's first refusal."""
        self._shared.own_refused[head.api_key] += 1
        if not self._said_refused:
            self._said_refused = True
            who, named = head.client_id or "a client", ", ".join(names)
            self._shared.backend.say(f"{who}: a request for kmigrate's own topics was refused: {named}")

    def _take_other(self, head: RequestHead, frame: bytearray) -> bool:
        """Take a request of any API except Produce and Fetch; return False where the request has to wait."""
        table, treatment = self._shared.table, APIS[head.api_key].treatment
        is_back = head.api_key in _COORDINATED and self.knows_brokers and self._shared.handoff.is_back(self)
        if is_back and self._sent_on(head, frame):
            return True
        if treatment in _OF_GROUPS:
            if table.held_groups or table.followed:
                return self._group(head, frame)
            self._group_wait.ends()
        if not self._may_go(head, treatment):
            return False
        if treatment is Treatment.SASL:
            self.conversations.start(self._log_in(self._order.take(len(frame)), head, frame))
        else:
            self._converse(frame, self._treat(treatment, head, frame))
        return True

    def _may_go(self, head: RequestHead, treatment: Treatment) -> bool:
        """Return whether a request need not wait for what is under way.

        A client that may leave gets the brokers' addresses once its writes are answered (`shared.client_handoff`). A
        renewal begins once all before is answered: nothing sent late may fall within it (KIP-368). ListGroups asks
        sources about the groups that follow, so the request is taken alone, as in `_group`.
        """
        table, handoff = self._shared.table, self._shared.handoff
        if treatment is Treatment.REWRITE:
            leaves = table.finished and not self.home and not handoff.stays(self)
            return not leaves or handoff.may_tell(self)
        lists_followed = head.api_key == ApiKey.LIST_GROUPS and bool(table.followed)
        return not (self._login.begins_again(head) or lists_followed) or self._alone()

    def _treat(self, treatment: Treatment, head: RequestHead, frame: bytearray) -> Conversation[Buffer | None]:
        """Dispatch a request by the table of APIs."""
        table = self._shared.table
        match treatment:
            case Treatment.REWRITE:
                return self._with_shown_addresses(head, frame)
            case (
                Treatment.CHANGE | Treatment.CONFIGS | Treatment.NODE_IDS | Treatment.ONE_BROKER | Treatment.SHARE_GROUP
            ):
                return self._admin.answer(self._decodable(head, frame), frame)
            case Treatment.TXN | Treatment.PRODUCER_ID if table.topics or table.held_groups:
                return self._of_producer(head, frame)
            case Treatment.LIST_OFFSETS if table.topics:
                return self._list_offsets(head, frame)
            case Treatment.SHARE_READ:
                return self._share_read(head, frame)
            case Treatment.API_VERSIONS:
                return self._api_versions(head, frame)
            case _:
                return self._pass_on(head, frame)

    def _sent_on(self, head: RequestHead, frame: bytearray) -> bool:
        """Make a client that came back look for its coordinators (`client_handoff`, e); False if the request passes."""
        request = decode_request(frame, self._decodable(head, frame))
        if head.api_key in HEARTBEATS:
            if leaves_group(request):
                return False
            answer = build_answer(head, error_code=Code.NOT_COORDINATOR)
        elif head.api_key == ApiKey.END_TXN or _wants_producer_id(head, request):
            return False
        else:
            answer = error_answer(head, request, Code.NOT_COORDINATOR)
        self._answer(frame, answer)
        return True

    def _pass_on(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer]:
        """Send the request to the target, and change answers that would end clients.

        A member whose group is new at the target gets UNKNOWN_MEMBER_ID, and joins. The broker would answer that there
        is no such group, or none of the new protocol, and clients end at that. If the group has just opened, a member
        unknown to the target gets committed offsets, too: clients end at UNKNOWN_MEMBER_ID (25) here, if no heartbeat
        has told them before.
        """
        key, since = head.api_key, self._shared.table.epoch
        looks = key in JOINING or key == ApiKey.OFFSET_FETCH
        opened = frozenset(self._shared.followers.opened(self._client.now()) if looks else ())
        watched = self._shared.trials.watched(opened) if key in JOINING else frozenset()
        if opened and key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            full = self._groups.let_go(self._decodable(head, frame), frame)
            if full is not None:
                return frame_answer(full, head.correlation_id)
        answer = yield from self._client.ask_target([frame], head.correlation_id)
        if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return self._ready(head, answer, since)
        if watched:
            self._trials.joined(self._decodable(head, frame), frame, answer, watched)
        if key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return from_target(self._decodable(head, frame), frame, answer, opened)
        if key == ApiKey.OFFSET_FETCH and opened:
            again = as_no_member(self._decodable(head, frame), frame, answer, opened)
            if again is not None:
                return (yield from self._client.ask_target([again], head.correlation_id))
        return answer

    def _converse(self, frame: bytearray, conversation: Conversation[Buffer | None]) -> None:
        """Answer a request with the result of a conversation, which ends when the client is gone."""
        slot = self._order.take(len(frame))
        self.conversations.start(conversation).then(partial(self._fill, slot))

    def _answer(self, frame: Buffer, answer: Buffer) -> None:
        self._fill(self._order.take(len(frame)), answer)

    def _fill(self, slot: Slot, answer: Buffer | None) -> None:
        if slot.change is not None and answer is not None:
            try:
                answer = slot.change(answer if isinstance(answer, bytearray) else bytearray(answer))
            except ProtocolViolation as violation:
                self._client.close(violation.what)
                return
        parts = self._order.fill(slot, answer)
        self.active = self._client.now()
        if slot.asked is not None:
            key, version, arrived = slot.asked
            self._shared.served.answered(key, self.active - arrived)
            if key not in COUNTED_ELSEWHERE and answer is not None and (codes := error_codes(key, version, answer)):
                self._shared.served.failed(key, codes)
        if parts and not self.gone:
            self._client.reply(parts)
        if self._waits_for_answers and not self.waits_for_answer:
            self.advance()
        self._part()

    def _share_read(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer]:
        is_aligning = self._shared.aligning.judge(self._shared.table.epoch)
        answer = yield from self._client.ask_target([frame], head.correlation_id)
        return answer if self.knows_brokers else show_share_read(answer, head, self._shared.book, is_aligning)

    def _api_versions(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer]:
        if not 0 <= head.version <= OFFERED[ApiKey.API_VERSIONS].versions[1]:
            return unsupported_api_versions(head.correlation_id)
        if head.version >= _FIRST_WITH_SOFTWARE:
            request = decode_request(frame, self._decodable(head, frame))
            self.software = f"{request.client_software_name} {request.client_software_version}"[:_LONGEST_NAME]
        target = None if self._login.accepted else self._shared.backend.target_versions()
        if target is not None:
            return answer_api_versions(target, head.version, head.correlation_id)
        answer = yield from self._client.ask_target([frame], head.correlation_id)
        return filter_api_versions(answer, head.version)

    def _of_producer(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer | None]:
        """Handle transactions, or get a producer id; the router itself asks if the target refuses a source's writer."""
        request = decode_request(frame, self._decodable(head, frame))
        if not _wants_producer_id(head, request):
            return (yield from self._transactions.handle(head, frame, request, self.software))
        answer = yield from self._client.ask_target([frame], head.correlation_id)
        if self._shared.mirrored() and is_refused_id(head, frame, answer):
            own = yield from self._shared.backend.new_producer_id()
            return given_id(head, own) if own >= 0 else answer
        return answer

    def _log_in(self, slot: Slot, head: RequestHead, frame: bytearray) -> Conversation[None]:
        """Answer a request of a login."""
        request = decode_request(frame, self._decodable(head, frame))
        if self._login.relays(head, request):
            relayed = self._login.as_relayed(head, frame)
            answer = self._login.relayed(head, (yield from self._client.ask_target([relayed], head.correlation_id)))
        else:
            answer = yield from self._login.answer(head, request)
        self._fill(slot, answer.frame)
        if answer.failure:
            self._client.close(f"{head.client_id or 'a client'}: {answer.failure}")

    def _alone(self) -> bool:
        """Return whether everything before the first request is answered; if not, the first request waits for that."""
        self._waits_for_answers = self.waits_for_answer
        return not self._waits_for_answers

    def _decodable(self, head: RequestHead, frame: bytearray) -> RequestHead:
        return peek_request(frame, is_flexible(head.api_key, head.version))

    def _with_shown_addresses(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer | None]:
        """Return the target's answer with the router's addresses, or unchanged to a client that may leave."""
        if head.api_key == ApiKey.METADATA:
            full = self._decodable(head, frame)
            answer = yield from self._admin.ask_metadata(full, frame, decode_request(frame, full))
        elif head.api_key == ApiKey.FIND_COORDINATOR and self._searches_in_vain(head, frame):
            return build_answer(head, error_code=Code.COORDINATOR_NOT_AVAILABLE, node_id=-1, host="", port=-1)
        else:
            answer = yield from self._client.ask_target([frame], head.correlation_id)
        if self.knows_brokers:
            return answer
        book = yield from self._shared.fallbacks.book(self.home)
        shown, has_new_broker = rewrite_answer(answer, head, book, self._shared.hidden())
        if has_new_broker:
            self._shared.backend.refresh_target()
        return shown

    def _searches_in_vain(self, head: RequestHead, frame: bytearray) -> bool:
        """Return whether a client does not reach the coordinator that it looks for (`coordinator_searches`)."""
        if head.version > _LAST_FOR_ONE_COORDINATOR:
            return False
        request = decode_request(frame, self._decodable(head, frame))
        return self._searches.in_vain(int(getattr(request, "key_type", 0)), str(request.key), self._client.now())

    def _list_offsets(self, head: RequestHead, frame: bytearray) -> Conversation[Buffer]:
        since, request = self._shared.table.epoch, decode_request(frame, self._decodable(head, frame))
        return self._ready(head, (yield from self._end_offsets.answer(head, frame, request)), since)

    def _ready(self, head: RequestHead, answer: bytearray, since: int) -> Buffer:
        """Return an answer without aligning partitions; `since`: the routing table's epoch at the request."""
        aligning = self._shared.aligning
        return cut_offsets(answer, head, aligning.judge(since)) if aligning.concerns(since) else answer

    def _ask_groups(self, head: RequestHead, request: Message) -> Conversation[Buffer]:
        return frame_answer((yield from self._groups.answer(head, request)), head.correlation_id)

    def _group(self, head: RequestHead, frame: bytearray) -> bool:
        """Handle a request about groups; return False where the request has to wait.

        Requests of a held group wait, and are then told to come again (`groups.hold`). Requests of a group that follows
        go to `GroupHandler`. A member of the new protocol that the source does not know waits in both cases: the target
        would make a second group for such a member. A request about several groups makes many requests to sources, so
        the router takes it alone, as brokers take every request of a connection.
        """
        request = decode_request(frame, self._decodable(head, frame))
        held, followed, groups = self._shared.table.held_groups, self._shared.table.followed, groups_of(request)
        if head.api_key == ApiKey.JOIN_GROUP and (groups[0] in held or groups[0] in followed):
            timeout_ms = round(request.session_timeout.total_seconds() * 1000)
            self._shared.session_timeouts.asked(groups[0], head.client_id or "", timeout_ms, self._client.now())
        if groups:
            self._trials.take(head, request, groups[0])
        if not self._groups.understands(head, request):
            held |= followed.keys()
        joins_source = head.api_key == ApiKey.JOIN_GROUP and groups[0] in followed
        never_held = APIS[head.api_key].treatment is Treatment.GROUP_NEVER_HELD or joins_source
        if not never_held and not held.isdisjoint(groups):
            if head.api_key not in DELETES and self._holds(head, request, held.intersection(groups)):
                return False
            self._group_wait.ends()
            self._answer(frame, wait_answer(head, request, held))
            return True
        self._group_wait.ends()
        if followed.keys().isdisjoint(groups):
            self._converse(frame, self._pass_on(head, frame))
        elif len(groups) > 1 and not self._alone():
            return False
        else:
            self._converse(frame, self._ask_groups(head, request))
        return True

    def _holds(self, head: RequestHead, request: Message, groups: Collection[str]) -> bool:
        """Return whether a request of held groups goes on waiting."""
        return self._group_wait.goes_on(head, request, groups, behind=len(self._inbound) > 1)
