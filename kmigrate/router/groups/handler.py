"""Handles groups that follow, for one client connection: moved members are members of the source's group (M13).

A member finds the group's coordinator at the router's address. Requests go on to the source's coordinator, so that
members that have moved and members that have not form a single group. Heartbeats of the new protocol (KIP-848) have
rules of their own (`groups.heartbeats`); a group may have members of both protocols. Lettered rules:

A  No leader epoch passes in either direction (C1, V5).
B  A client with OffsetFetch version 7 or later gets each committed offset, even beyond the target's copy: such clients
   repeat a fetch beyond the copy's end (`fetch.out_of_range`). The request waits for the copy for a tenth of a second
   at most, so that a lagging partition does not hold up the others. Below version 7 the request waits longer, and the
   client is then told to ask again (14).
C  If the offsets of a topic differ between the clusters, its committed offsets are neither returned nor stored: the
   client is told to ask again (14).
D  While the group is promoted (`rejoining`), its members must join anew. Heartbeats are answered with a rebalance, a
   rebalance in progress is started again, and joins are held here. The source never gets these joins, so the generation
   there stays the same and commits are still accepted. The router sends the heartbeats of members with a held join.
E  Once the group is frozen, nothing reaches the source. When the group opens, a held join goes to the target as the
   join of a new member. The member learns its new id from the answer. A member that gives nothing back in a rebalance
   keeps the partitions that it reads. The former member is taken out of the source's group.
F  If a source's coordinator cannot be asked, the answer is NOT_COORDINATOR: clients find the coordinator anew and
   repeat the request. A commit is tried again for a while, and later commits wait. librdkafka keeps commits back
   silently while its coordinator is away, but reports a commit that a coordinator refuses to its application. An
   OffsetFetch is tried again, too, and never answered 15 or 16. After these errors librdkafka does not ask again, and
   reads none of the partitions until they are assigned anew (librdkafka issue 5586). After the source's own errors 14
   and 88 (UNSTABLE_OFFSET_COMMIT) the router asks again for as long. Then the client is told to ask again, with the
   error that its request version knows (`wire.groups`).
G  A commit below the committed offset is refused if this router has answered the last request for that offset without
   the offset (`shared.pending_positions`). The commit is compared with the source's committed offset at that moment. So
   an operator's reset may go back, and so may a consumer's seek after an answer, and a consumer that never asks.
H  While a group is rolled back (`at_target`), its members leave the target's coordinator. D and E hold with the
   clusters exchanged. A, B and C do not, because the members' offsets are the target's. Before the group gathers, the
   router only learns who its members are: all requests go to the target. When the group belongs to the
   source again, a held join goes there as the join of a new member, and the former member leaves the target's group. If
   the rollback is given up, the held join goes to the target as the client has sent the join.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kmigrate.model.routes import GroupRoute
from kmigrate.protocol.api import (
    ApiKey,
    Message,
    answer_type,
    decode_request,
    entity,
    frame_answer,
    frame_request,
    read_answer,
    replace,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.groups.coordinator import ELSEWHERE, GroupCoordinatorClient, GroupRequest, Unreached
from kmigrate.router.groups.heartbeats import HeartbeatHandler
from kmigrate.router.groups.trials import TrialJoins
from kmigrate.router.shared.conversation import Conversation, Future, together
from kmigrate.router.shared.pending_positions import Partition
from kmigrate.router.shared.state import Buffer, ClientContext, ClientLink, SharedState
from kmigrate.router.wire.followed import (
    FIRST_OF_MEMBERS,
    codes_in,
    committed_in,
    leave_request,
    merged,
    named_groups,
    of_groups,
    positions_of,
    question_for,
    returned_and_left_out,
    topics_of,
    without_epochs,
    without_members,
)
from kmigrate.router.wire.groups import DELETES, asking_again, groups_of
from kmigrate.router.wire.heartbeats import with_target_names

__all__ = ["GroupHandler"]

_BEAT_S = 1.0
"""Time between two heartbeats for a member with a held join; brokers expel no member in less than six seconds."""
_TRIED_S = 20.0
"""Time for which a commit or OffsetFetch is tried: a broker's death may take 18 s to find, and clients wait 30 s."""
_AGAIN_S = 0.25
_COPY_S = 0.1
"""Longest wait of an OffsetFetch for the copy, if the client may get a committed offset beyond the copy."""
_FIRST_BEYOND_COPY = 7
"""OffsetFetch version from which clients get such a committed offset: these clients ask again after Fetch's error 6."""
_ASKED_AGAIN = ELSEWHERE | {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNSTABLE_OFFSET_COMMIT}
"""Errors of a source's answer after which the router asks for committed offsets again."""
_HEARTBEAT = entity(ApiKey.HEARTBEAT, 0, "request")
_WITH_POSITIONS = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE})


class GroupHandler:
    """Answers the requests of groups that follow."""

    def __init__(self, shared: SharedState, client: ClientLink, context: ClientContext, trials: TrialJoins) -> None:
        self._shared = shared
        self._client = client
        self._context = context
        self._trials = trials
        self._coordinator = GroupCoordinatorClient(shared, client)
        self._heartbeats = HeartbeatHandler(shared, client, self._coordinator)
        self._joins: list[GroupRequest] = []
        """Joins that are not answered to the client."""
        self._waiting: dict[GroupRequest, Future[Message | None]] = {}
        """Requests that wait at the source for other members, until the table ends the wait with None."""
        self._changed = Future[None]()
        """Set by the next `advance`."""
        self._beat_at = float("inf")
        self._deferred: deque[tuple[GroupRequest, Future[bool]]] = deque()
        """Commits that no coordinator could take yet, in the order of their arrival; False gives a commit up."""
        self._trying: GroupRequest | None = None
        """The first of the deferred commits while it is tried, or a commit whose coordinator has yet to be found."""
        self._fetches: list[Future[None]] = []
        """Set when the OffsetFetch requests that no coordinator could answer yet are sent again."""
        self._again_at = 0.0
        self._by_api: dict[int, Callable[[GroupRequest], Conversation[Message]]] = {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.OFFSET_COMMIT: self._commit,
            **dict.fromkeys(DELETES, self._commit),
            ApiKey.OFFSET_FETCH: self._fetch,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self._heartbeats.answer,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self._describe,
        }

    def answer(self, head: RequestHead, request: Message) -> Conversation[Message]:
        """Answer a request with groups that follow: each once at its source, all others together at the target."""
        followed, groups = self._shared.table.followed, groups_of(request)
        route = followed.get(groups[0])
        if len(groups) == 1 and route is not None:
            return (yield from self._answer(GroupRequest(head, request, groups[0], route.link)))
        named = named_groups(request)
        asked = [
            self._answer(GroupRequest(head, of_groups(request, (part,)), group, followed[group].link))
            for group, part in named.items()
            if group in followed
        ]
        if local := [part for group, part in named.items() if group not in followed]:
            asked.append(self._ask_target(head, of_groups(request, local)))
        return merged(request, (yield from together(asked)), answer_type(head))

    def understands(self, head: RequestHead, request: Message) -> bool:
        """Return whether the source of a group that follows understands the request: old ones lack the new protocol."""
        if head.api_key != ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return True
        route = self._shared.table.followed.get(groups_of(request)[0])
        return route is None or self._heartbeats.can(route.link, request)

    def commit(self, head: RequestHead, request: Message, group: str, link: str) -> Conversation[Buffer]:
        """Commit offsets in a transaction (TxnOffsetCommit) at the group's cluster, in the producer's identity."""
        commit = GroupRequest(head, request, group, link)
        if not self._at_target(commit) and self._differs(topics_of(request)):
            answer = commit.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            answer = yield from self._commit(commit)
        return frame_answer(answer, head.correlation_id)

    def advance(self) -> None:
        """Look at held requests again after a change of the table."""
        self._shared.waiting.pop(self, None)
        self._heartbeats.advance()
        if self._fetches and self._client.now() >= self._again_at:
            fetches, self._fetches = self._fetches, []
            for fetch in fetches:
                fetch.set(None)
        if self._deferred:
            self._try_deferred()
        if not self._joins and not self._waiting:
            return
        for request in list(self._waiting):
            route, answer = self._route(request), self._waiting.get(request)
            ended = route is None or (route.rejoining and request.head.api_key == ApiKey.SYNC_GROUP)
            if ended and answer is not None:
                answer.set(None)
        changed, self._changed = self._changed, Future()
        changed.set(None)
        self._beat()
        if self._joins or self._waiting:
            self._shared.waiting.setdefault(self)

    def closed(self) -> None:
        self._coordinator.gone = True
        self._shared.waiting.pop(self, None)
        self._heartbeats.closed()
        while self._deferred:
            self._deferred.popleft()[1].set(False)

    def _route(self, request: GroupRequest) -> GroupRoute | None:
        return self._shared.table.followed.get(request.group)

    def _answer(self, request: GroupRequest) -> Conversation[Message]:
        """Answer a request about one group that follows."""
        key = request.head.api_key
        if key in _WITH_POSITIONS and not self._at_target(request) and self._differs(topics_of(request.request)):
            return request.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return (yield from self._by_api.get(key, self._coordinator.ask)(request))

    def let_go(self, head: RequestHead, frame: bytearray) -> Message | None:
        """Return the answer to a heartbeat of a member that a rollback, given up since, has told to own nothing."""
        return self._heartbeats.let_go(head, decode_request(frame, head))

    def _at_target(self, request: GroupRequest) -> bool:
        return self._coordinator.at_target(request)

    def _ask_target(self, head: RequestHead, request: Message) -> Conversation[Message]:
        frame = frame_request(request, head.correlation_id, head.client_id)
        return read_answer(type(request), (yield from self._client.ask_target([frame], head.correlation_id)))

    def _differs(self, topics: set[str]) -> bool:
        """Return whether the offsets of any of the topics differ between the clusters (rule C)."""
        routes = self._shared.table.topics
        return any(routes[topic].mapped for topic in topics if topic in routes)

    def _heartbeat(self, beat: GroupRequest) -> Conversation[Message]:
        answer = yield from self._coordinator.ask(beat)
        route = self._route(beat)
        rejoins = not code_of(answer.error_code) and (route is None or route.rejoining)
        return beat.error(Code.REBALANCE_IN_PROGRESS) if rejoins else answer

    def _describe(self, request: GroupRequest) -> Conversation[Message]:
        """Describe a group of the new protocol. Before Kafka 4.0 none exists; clients then ask for a classic group."""
        if self._at_target(request):
            return (yield from self._coordinator.ask(request))
        if self._shared.backend.source_version(request.link, ApiKey.CONSUMER_GROUP_DESCRIBE) < 0:
            return request.error(Code.GROUP_ID_NOT_FOUND)
        return with_target_names((yield from self._coordinator.ask(request)), self._shared.ids)

    def _leave(self, request: GroupRequest) -> Conversation[Message]:
        answer = yield from self._coordinator.ask(request)
        if not code_of(answer.error_code):
            for member in (request.request, *getattr(request.request, "members", ())):
                self._shared.followers.gone(request.group, str(getattr(member, "member_id", "")))
        return answer

    # commits (rules F and G)

    def _commit(self, commit: GroupRequest) -> Conversation[Message]:
        """Commit or delete at the source; in flight until the outcome is known, even if the client is gone."""
        if commit.head.api_key not in DELETES and not self._at_target(commit):
            commit.request = without_epochs(commit.request)
        if commit.head.api_key == ApiKey.OFFSET_COMMIT:
            commit.until = self._client.now() + _TRIED_S
        return (yield from self._shared.conversations.start(self._outcome(commit)))

    def _outcome(self, commit: GroupRequest) -> Conversation[Message]:
        self._shared.followers.leave(commit.group)
        answer = yield from self._forward_in_turn(commit)
        route = self._route(commit)
        if self._shared.followers.resolved(commit.group) and route is not None and route.frozen:
            self._shared.backend.drained()
        if commit is self._trying:
            self._trying = None
            self._try_deferred()
        return answer

    def _forward_in_turn(self, commit: GroupRequest) -> Conversation[Message]:
        """Forward a commit, again and again while no coordinator takes the commit; later commits wait."""
        may_go = True
        if self._deferred or self._trying is not None:
            may_go = yield from self._turn(commit)
        elif not self._coordinator.knows(commit):
            # each commit looks for the coordinator by itself, and a later commit may find the coordinator first
            self._trying = commit
        while may_go:
            answer = yield from self._forward(commit)
            if answer is not None:
                return answer
            is_first = commit is self._trying
            if is_first:
                self._trying = None
            self._come_again()
            may_go = yield from self._turn(commit, is_first=is_first)
        return commit.error(Code.NOT_COORDINATOR)

    def _turn(self, commit: GroupRequest, *, is_first: bool = False) -> Conversation[bool]:
        """Wait among the deferred commits; return False where the commit is given up."""
        turn = Future[bool]()
        queue = self._deferred.appendleft if is_first else self._deferred.append
        queue((commit, turn))
        return (yield from turn)

    def _forward(self, commit: GroupRequest) -> Conversation[Message | None]:
        """Send a commit to the source's coordinator, after the comparison that rule G may demand; None: try again."""
        wanted = {} if commit.head.api_key in DELETES else committed_in(commit.request)
        of_member = commit.head.api_key != ApiKey.OFFSET_COMMIT or bool(commit.member_id)
        pending, now = self._shared.pending_positions, self._client.now()
        marked = pending.marked(commit.group, wanted, id(self), now, of_member=of_member)
        if marked:
            self._trying = commit  # so that no later commit passes this commit
            head, question = question_for(commit.group, marked, commit.head.client_id)
            answer = yield from self._coordinator.ask(GroupRequest(head, question, commit.group, commit.link))
            if codes_in(answer) - {Code.NONE}:
                return None if self._may_try_again(commit) else commit.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
            committed = positions_of(answer)
            back = {key: committed[key] for key in sorted(marked) if wanted[key] < committed.get(key, -1)}
            if back:
                return self._refusal(commit, wanted, back)
        try:
            return (yield from self._coordinator.reach(commit))
        except Unreached as unreached:
            again = unreached.code in ELSEWHERE and self._may_try_again(commit)
            return None if again else commit.error(unreached.code)

    def _may_try_again(self, commit: GroupRequest) -> bool:
        return self._client.now() < commit.until and not self._coordinator.gone

    def _refusal(self, commit: GroupRequest, wanted: dict[Partition, int], back: dict[Partition, int]) -> Message:
        """Refuse a commit that goes back; the client then joins anew, and asks for the committed offsets."""
        self._shared.pending_positions.refused += 1
        named = ", ".join(f"{topic}-{part} to {wanted[topic, part]} from {at}" for (topic, part), at in back.items())
        client = commit.member_id or commit.head.client_id or "a client"
        self._shared.backend.warn(
            f"group {commit.group}: a commit of {client} is refused, because it goes back without a reset: {named}; "
            "the group keeps its committed offsets, and the client is made to ask for them"
        )
        modern = self._heartbeats.knows(*commit.member)
        return commit.error(Code.UNKNOWN_MEMBER_ID if modern else Code.ILLEGAL_GENERATION)

    def _try_deferred(self) -> None:
        """Try deferred commits one at a time, so that no offset goes back (F); none once the group is frozen (E)."""
        while self._deferred and self._trying is None and self._client.now() >= self._again_at:
            commit, turn = self._deferred.popleft()
            route = self._route(commit)
            may_go = route is not None and not route.frozen and not 0 < commit.until <= self._client.now()
            if may_go:
                self._trying = commit
            turn.set(may_go)

    def _come_again(self) -> None:
        self._again_at = self._client.now() + _AGAIN_S
        self._client.wake_at(self._again_at)

    # committed offsets (rules A, B, C, F and G)

    def _fetch(self, fetch: GroupRequest) -> Conversation[Message]:
        """Answer an OffsetFetch, and note the committed offsets that the answer leaves out (G)."""
        answer = yield from self._committed_offsets(fetch)
        given, left_out = returned_and_left_out(fetch.request, answer)
        self._shared.pending_positions.clear(fetch.group, given)
        self._shared.pending_positions.left_out(fetch.group, left_out, id(self), self._client.now())
        return answer

    def _committed_offsets(self, fetch: GroupRequest) -> Conversation[Message]:
        until = self._client.now() + _TRIED_S
        if self._at_target(fetch):
            return (yield from self._coordinator.ask(fetch))
        answer = yield from self._coordinator.ask(fetch)
        if self._is_stranger(fetch, answer):
            fetch.request = without_members(fetch.request, {fetch.group})
            answer = yield from self._coordinator.ask(fetch)
        while (again := codes_in(answer) & _ASKED_AGAIN) and self._client.now() < until:
            self._come_again()
            self._fetches.append(Future())
            yield from self._fetches[-1]  # a fetch changes nothing, so none waits for another
            route = self._route(fetch)
            if route is None or route.frozen or until <= self._client.now():
                return fetch.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
            answer = yield from self._coordinator.ask(fetch)
        if again - {Code.UNSTABLE_OFFSET_COMMIT}:
            return fetch.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        whole = answer.groups[0] if getattr(answer, "groups", None) else answer
        if code := code_of(getattr(whole, "error_code", 0)):
            return fetch.error(code)
        if self._differs(topics_of(answer)):
            return fetch.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        routes = self._shared.table.topics
        copied = {
            key: position
            for key, position in positions_of(answer).items()
            if key[0] in routes and not routes[key[0]].at_target
        }
        may_be_beyond, seconds = fetch.head.version >= _FIRST_BEYOND_COPY, self._shared.settings.group_hold_s
        if copied:
            most = min(_COPY_S, seconds) if may_be_beyond else seconds
            is_there = yield from self._shared.backend.when_copied(fetch.link, copied, most)
            if not is_there and not may_be_beyond:
                return fetch.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return asking_again(without_epochs(answer))

    def _is_stranger(self, fetch: GroupRequest, answer: Message) -> bool:
        """Return whether the source does not know the member, because the group has just come back (rule H).

        Java's applications end at that error, if no heartbeat has told the member before.
        """
        named = fetch.head.version >= FIRST_OF_MEMBERS and Code.UNKNOWN_MEMBER_ID in codes_in(answer)
        return named and self._shared.followers.returned(fetch.group, self._client.now())

    # rebalances (rules D and E)

    def _join(self, join: GroupRequest) -> Conversation[Message]:
        self._joins.append(join)
        self._shared.followers.join(*join.member)
        self._beat()
        self._shared.waiting.setdefault(self)
        try:
            back = self._join_back if self._at_target(join) else self._join_at_source
            answer = yield from back(join)
        finally:
            self._joins.remove(join)
            self._shared.followers.joined(*join.member)
        if answer is not None:
            return answer
        if join.group in self._shared.table.held_groups:  # the group was given another mode
            return join.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return (yield from self._join_at_target(join))

    def _join_at_source(self, join: GroupRequest) -> Conversation[Message | None]:
        """Return the source's answer, held while the group rejoins; None once the group no longer follows."""
        if not (yield from self._while_rejoining(join)):
            return None
        answer = yield from self._unless_ended(join)
        if answer is None or code_of(answer.error_code):
            return answer
        self._coordinator.accepted(join.group, str(answer.member_id), int(answer.generation_id))
        self._shared.followers.joined(*join.member)
        join.named = str(answer.member_id)
        self._shared.followers.join(*join.member)
        return answer if (yield from self._while_rejoining(join)) else None

    def _join_back(self, join: GroupRequest) -> Conversation[Message | None]:
        """Hold a join while the group rejoins; then join at the source, or at the target after a give-up (rule H).

        None once the group holds.
        """
        if (route := self._route(join)) is not None and not route.rejoining:
            return (yield from self._coordinator.ask(join))
        while self._at_target(join):
            yield from self._changed
        if self._route(join) is None and join.group not in self._shared.table.held_groups:
            return (yield from self._ask_target(join.head, join.request))
        if join.member_id:
            self._coordinator.generations.pop(join.member, None)
            self._coordinator.send_to_target(join, leave_request(*join.member, 0))
        self._rename(join, "")
        answer = yield from self._join_at_source(join)
        if answer is not None and code_of(answer.error_code) == Code.MEMBER_ID_REQUIRED:
            self._rename(join, str(answer.member_id))
            answer = yield from self._join_at_source(join)
        return answer

    def _rename(self, join: GroupRequest, member_id: str) -> None:
        """Give a held join another member id."""
        self._shared.followers.joined(*join.member)
        join.request = replace(join.request, member_id=type(join.request.member_id)(member_id))
        self._shared.followers.join(*join.member)

    def _while_rejoining(self, join: GroupRequest) -> Conversation[bool]:
        """Wait while the group rejoins; return whether the group still follows."""
        while (route := self._route(join)) is not None and route.rejoining:
            yield from self._changed
        return route is not None

    def _unless_ended(self, request: GroupRequest) -> Conversation[Message | None]:
        """Ask the source; None if the table ends the wait before the answer."""
        answer = self._waiting[request] = Future[Message | None]()
        self._shared.waiting.setdefault(self)
        self._context.conversations.start(self._deliver(request))
        try:
            return (yield from answer)
        finally:
            del self._waiting[request]

    def _deliver(self, request: GroupRequest) -> Conversation[None]:
        answer = yield from self._coordinator.ask(request)
        if (waiting := self._waiting.get(request)) is not None:
            waiting.set(answer)

    def _join_at_target(self, join: GroupRequest) -> Conversation[Message]:
        """Join the target's group as a new member: the answer to the held join tells the client so (rule E)."""
        if join.member_id:
            self._coordinator.generations.pop(join.member, None)
            newest = self._shared.backend.source_version(join.link, ApiKey.LEAVE_GROUP)
            if newest >= 0:
                self._coordinator.send(join, leave_request(*join.member, newest))
        request = replace(join.request, member_id=type(join.request.member_id)(""))
        answer = yield from self._ask_target(join.head, request)
        if code_of(answer.error_code) == Code.MEMBER_ID_REQUIRED:
            answer = yield from self._ask_target(join.head, replace(request, member_id=answer.member_id))
        self._trials.outcome(join.head, join.request, code_of(answer.error_code))
        return answer

    def _beat(self) -> None:
        """Keep members with held joins in the source's group, in case the promote is given up (rule D)."""
        held = [join for join in self._joins if (route := self._route(join)) is not None and route.rejoining]
        now = self._client.now()
        if not held or now < self._beat_at < float("inf"):
            return
        for join in held:
            generation = self._coordinator.generations.get(join.member)
            if generation is not None:
                beat = _HEARTBEAT(group_id=join.group, generation_id=generation, member_id=join.member_id)
                self._coordinator.send(join, beat)
        self._beat_at = now + _BEAT_S
        self._client.wake_at(self._beat_at)

    def _sync(self, sync: GroupRequest) -> Conversation[Message]:
        route = self._route(sync)
        rejoins = route is None or route.rejoining
        answer = None if rejoins else (yield from self._unless_ended(sync))
        return sync.error(Code.REBALANCE_IN_PROGRESS) if answer is None else answer
