"""Handles groups that follow, for one client connection: moved members are members of the source's group (M13).

A member finds the group's coordinator at the router's address. Requests go on to the source's coordinator, so that
members that have moved and members that have not form a single group. Lettered rules:

A  No leader epoch passes in either direction (C1, V5).
B  A client with OffsetFetch version 7 or later gets each committed offset, even if the target's copy has not reached
   that offset: such clients repeat a fetch beyond the copy's end (`fetch.out_of_range`). The request waits for the copy
   for a tenth of a second at most, so that a lagging partition does not hold up the others. Below version 7 the request
   waits longer, and the client is then told to ask again (14).
C  If the offsets of a topic differ between the clusters, the topic's committed offsets are neither returned nor stored:
   the client is told to ask again (14).
D  While the group is promoted (`rejoining`), its members must join anew. Heartbeats are answered with a rebalance, a
   rebalance in progress is started again, and joins are held here. The source never gets these joins, so the generation
   there stays the same and commits are still accepted. The router sends the heartbeats of members with a held join.
E  Once the group is frozen, nothing reaches the source. When the group opens, a held join goes to the target as the
   join of a new member. The member learns its new id from the answer. A member that gives nothing back in a rebalance
   keeps the partitions that it reads. The former member is taken out of the source's group.
F  If a source's coordinator cannot be asked, the answer is NOT_COORDINATOR: clients find the coordinator anew and
   repeat the request. A commit is tried again for a while, and later commits wait. librdkafka keeps commits back
   without a word while its coordinator is away, but reports a commit that a coordinator refuses to its application. An
   OffsetFetch is tried again, too, and the answer never has error 15 or 16. After these errors librdkafka does not ask
   again, and reads none of the partitions until they are assigned anew (librdkafka issue 5586). After the source's own
   errors 14 and 88 (UNSTABLE_OFFSET_COMMIT) the router asks again for as long. Then the client is told to ask again,
   with the error that its request version knows (`wire.groups`).
G  A commit below the committed offset is refused if this router has answered the last request for that offset without
   the offset (`shared.pending_positions`). The commit is compared with the source's committed offset at that moment. So
   an operator's reset may go back, and so may a consumer's seek after an answer, and a consumer that never asks for
   committed offsets.

Heartbeats of the new protocol (KIP-848) have rules of their own (`groups.heartbeats`); a group may have members of both
protocols.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import ApiKey, answer_type, entity, frame_answer, frame_request, read_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.groups.coordinator import ELSEWHERE, GroupCoordinatorClient, GroupRequest, Told
from kmigrate.router.groups.heartbeats import HeartbeatHandler
from kmigrate.router.groups.trials import TrialJoins
from kmigrate.router.shared.pending_positions import Partition
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.wire.followed import (
    codes_in,
    committed_in,
    leave_request,
    merged,
    named_groups,
    of_groups,
    positions_of,
    question_for,
    told_and_left_out,
    topics_of,
    without_epochs,
)
from kmigrate.router.wire.groups import DELETES, asking_again, group_error, groups_of
from kmigrate.router.wire.heartbeats import with_target_names

__all__ = ["GroupHandler"]

_BEAT_S = 1.0
"""Time between two heartbeats for a member with a held join; brokers expel no member in less than six seconds."""
_TRIED_S = 20.0
"""Time for which a commit or an OffsetFetch is tried.

A cluster may take 18 s to find a broker dead, and clients wait 30 s for an answer.
"""
_AGAIN_S = 0.25
_COPY_S = 0.1
"""Longest wait of an OffsetFetch for the copy, if the client may get a committed offset beyond the copy."""
_FIRST_TOLD_BEYOND = 7
"""OffsetFetch version from which clients get such a committed offset: these clients ask again after Fetch's error 6."""
_ASKED_AGAIN = ELSEWHERE | {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNSTABLE_OFFSET_COMMIT}
"""Errors of a source's answer after which the router asks for committed offsets again."""
_MOST_MEMBERS = 16
"""Maximum members whose generation a connection remembers: a member has connections of its own."""
_HEARTBEAT = entity(ApiKey.HEARTBEAT, 0, "request")
_COMMITS = DELETES | {ApiKey.OFFSET_COMMIT}
_WITH_POSITIONS = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE})


class GroupHandler:
    """Handles the requests of groups that follow; answers may come later, in any order."""

    def __init__(self, shared: SharedState, client: ClientLink, trials: TrialJoins) -> None:
        self._shared = shared
        self._client = client
        self._trials = trials
        self._talk = GroupCoordinatorClient(shared, client, self._unreached, self._heard)
        self._heartbeats = HeartbeatHandler(shared, client, self._talk)
        self._joins: list[GroupRequest] = []
        """Joins that are not answered to the client."""
        self._syncs: list[GroupRequest] = []
        self._generations: dict[tuple[str, str], int] = {}
        """Newest generation in which the source has accepted each member of a group."""
        self._beat_at = float("inf")
        self._late: deque[GroupRequest] = deque()
        """Commits that no coordinator could take yet, in the order of their arrival."""
        self._trying: GroupRequest | None = None
        """The first of the late commits while it is tried again, or a commit whose coordinator has yet to be found."""
        self._fetches: list[GroupRequest] = []
        """OffsetFetch requests that no coordinator could answer yet."""
        self._again_at = 0.0

    def take(self, head: RequestHead, request: Any, reply: Callable[[Buffer], None]) -> None:
        """Take a request in which at least one group follows; `reply` is called with the answer."""

        def told(answer: Any) -> None:
            reply(frame_answer(answer, head.correlation_id))

        groups = groups_of(request)
        route = self._shared.table.followed.get(groups[0])
        if len(groups) == 1 and route is not None:
            self._take(GroupRequest(head, request, groups[0], route.link, told))
        else:
            self._split(head, request, told)

    def understands(self, head: RequestHead, request: Any) -> bool:
        """Return whether the source of a group that follows understands the request: old ones lack the new protocol."""
        if head.api_key != ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return True
        route = self._shared.table.followed.get(groups_of(request)[0])
        return route is None or self._heartbeats.can(route.link, request)

    def commit(self, head: RequestHead, request: Any, group: str, link: str, reply: Callable[[Buffer], None]) -> None:
        """Commit offsets in a transaction at the source, in the holder's identity there (TxnOffsetCommit)."""
        word = GroupRequest(head, request, group, link, lambda answer: reply(frame_answer(answer, head.correlation_id)))
        if self._differs(topics_of(request)):
            word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            self._commit(word)

    def advance(self) -> None:
        """Look at held requests again after a change of the table."""
        self._shared.waiting.pop(self, None)
        self._heartbeats.advance()
        self._fetch_again()
        self._try_late()
        if not self._syncs and not self._joins:
            return
        for sync in list(self._syncs):
            route = self._route(sync)
            if route is None or route.rejoining:
                self._syncs.remove(sync)
                sync.fail(Code.REBALANCE_IN_PROGRESS)
        for join in list(self._joins):
            self._go_on(join)
        self._beat()
        self._watch()

    def closed(self) -> None:
        self._talk.gone = True
        self._shared.waiting.pop(self, None)
        for join in self._joins:
            self._shared.followers.joined(join.group, join.member_id)
        self._joins.clear()
        self._syncs.clear()
        self._fetches.clear()
        self._heartbeats.closed()
        while self._late:
            self._give_up(self._late.popleft())

    def _watch(self) -> None:
        if self._joins or self._syncs:
            self._shared.waiting.setdefault(self)

    def _route(self, word: GroupRequest) -> GroupRoute | None:
        return self._shared.table.followed.get(word.group)

    # several groups in one request

    def _split(self, head: RequestHead, request: Any, told: Told) -> None:
        """Ask each group that follows once at its source, and all other groups together at the target."""
        followed, named = self._shared.table.followed, named_groups(request)
        answers: list[Any] = []
        local = [said for group, said in named.items() if group not in followed]
        waiting = len(named) - len(local) + bool(local)

        def one(answer: Any) -> None:
            answers.append(answer)
            if len(answers) == waiting:
                told(merged(request, answers, answer_type(head)))

        for group, said in named.items():
            route = followed.get(group)
            if route is not None:
                self._take(GroupRequest(head, of_groups(request, (said,)), group, route.link, one))
        if local:
            kind = type(request)
            frame = frame_request(of_groups(request, local), head.correlation_id, head.client_id)
            self._client.to_target([frame], head.correlation_id, lambda answer: one(read_answer(kind, answer)))

    # one group

    def _take(self, word: GroupRequest) -> None:
        key = word.head.api_key
        if key in _WITH_POSITIONS and self._differs(topics_of(word.request)):
            word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
        elif key == ApiKey.JOIN_GROUP:
            self._join(word)
        elif key == ApiKey.SYNC_GROUP:
            self._sync(word)
        elif key == ApiKey.HEARTBEAT:
            self._talk.ask(word, lambda answer: self._beaten(word, answer))
        elif key in _COMMITS:
            self._commit(word)
        elif key == ApiKey.OFFSET_FETCH:
            word.until = self._client.now() + _TRIED_S
            word.told = self._noting(word)
            self._fetch(word)
        elif key == ApiKey.LEAVE_GROUP:
            self._talk.ask(word, lambda answer: self._left(word, answer))
        elif key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            self._heartbeats.take(word)
        elif key == ApiKey.CONSUMER_GROUP_DESCRIBE:
            self._describe(word)
        else:
            self._talk.ask(word, word.told)

    def _differs(self, topics: set[str]) -> bool:
        """Return whether the offsets of any of the topics differ between the clusters (rule C)."""
        routes = self._shared.table.topics
        return any(routes[topic].mapped for topic in topics if topic in routes)

    def _beaten(self, word: GroupRequest, answer: Any) -> None:
        route = self._route(word)
        if not code_of(answer.error_code) and (route is None or route.rejoining):
            word.fail(Code.REBALANCE_IN_PROGRESS)
        else:
            word.told(answer)

    def _describe(self, word: GroupRequest) -> None:
        """Describe a group of the new protocol.

        Before Kafka 4.0 no such group exists; a client that is told so asks for a group of the classic protocol.
        """
        if self._shared.backend.source_version(word.link, ApiKey.CONSUMER_GROUP_DESCRIBE) < 0:
            word.fail(Code.GROUP_ID_NOT_FOUND)
        else:
            self._talk.ask(word, lambda answer: word.told(with_target_names(answer, self._shared.ids)))

    def _heard(self, group: str, member_id: str, generation: int | None) -> None:
        """Note that the source's coordinator has accepted a member.

        `generation`: the generation that the request names, if any.
        """
        self._shared.followers.heard(group, member_id, self._client.now())
        if member_id and generation is not None:
            known = self._generations
            known.pop((group, member_id), None)  # so that the newest stay last
            known[(group, member_id)] = int(generation)
            if len(known) > _MOST_MEMBERS:
                del known[next(iter(known))]

    def _left(self, word: GroupRequest, answer: Any) -> None:
        if not code_of(answer.error_code):
            for member in (word.request, *getattr(word.request, "members", ())):
                self._shared.followers.gone(word.group, str(getattr(member, "member_id", "")))
        word.told(answer)

    def _commit(self, word: GroupRequest) -> None:
        if word.head.api_key not in DELETES:
            word.request = without_epochs(word.request)
        self._shared.followers.leave(word.group)
        if word.head.api_key == ApiKey.OFFSET_COMMIT:
            word.until = self._client.now() + _TRIED_S
        if self._late or self._trying is not None:
            self._late.append(word)
            return
        if not self._talk.knows(word):
            # each commit looks for the coordinator by itself, and a later commit may find the coordinator first
            self._trying = word
        self._forward(word)

    def _forward(self, word: GroupRequest) -> None:
        """Send a commit to the source's coordinator, after the comparison that rule G may demand."""
        wanted = {} if word.head.api_key in DELETES else committed_in(word.request)
        member = word.head.api_key != ApiKey.OFFSET_COMMIT or bool(word.member_id)
        marked = self._shared.untold.marked(word.group, wanted, id(self), self._client.now(), of_member=member)
        if not marked:
            self._talk.ask(word, lambda answer: self._resolved(word, answer))
            return
        self._trying = word  # so that no later commit passes this commit

        def answered(answer: Any) -> None:
            if codes_in(answer) - {Code.NONE}:
                self._not_compared(word)
                return
            committed = positions_of(answer)
            back = {key: committed[key] for key in sorted(marked) if wanted[key] < committed.get(key, -1)}
            if back:
                self._refuse(word, wanted, back)
            else:
                self._talk.ask(word, lambda answer: self._resolved(word, answer))

        head, question = question_for(word.group, marked, word.head.client_id)
        self._talk.ask(GroupRequest(head, question, word.group, word.link, answered), answered)

    def _not_compared(self, word: GroupRequest) -> None:
        """Try a commit again whose committed offset cannot be had, or have the client commit again (14)."""
        if self._client.now() < word.until and not self._talk.gone:
            self._put_off(word)
        else:
            self._resolved(word, group_error(word.head, word.request, Code.COORDINATOR_LOAD_IN_PROGRESS))

    def _refuse(self, word: GroupRequest, wanted: dict[Partition, int], back: dict[Partition, int]) -> None:
        """Refuse a commit that goes back; the client then joins anew, and asks for the committed offsets."""
        self._shared.untold.refused += 1
        named = ", ".join(f"{topic}-{part} to {wanted[topic, part]} from {at}" for (topic, part), at in back.items())
        client = word.member_id or word.head.client_id or "a client"
        self._shared.backend.warn(
            f"group {word.group}: a commit of {client} is refused, because it goes back without a reset: {named}; "
            "the group keeps its committed offsets, and the client is made to ask for them"
        )
        modern = self._heartbeats.knows(word.group, word.member_id)
        code = Code.UNKNOWN_MEMBER_ID if modern else Code.ILLEGAL_GENERATION
        self._resolved(word, group_error(word.head, word.request, code))

    def _resolved(self, word: GroupRequest, answer: Any) -> None:
        followers, route = self._shared.followers, self._route(word)
        if followers.resolved(word.group) and route is not None and route.frozen:
            self._shared.backend.drained()
        word.told(answer)
        if word is self._trying:
            self._trying = None
            self._try_late()

    def _try_late(self) -> None:
        """Try late commits one at a time, so that no committed offset goes back (F).

        None is tried once the group is frozen (E).
        """
        while self._late and self._trying is None and self._client.now() >= self._again_at:
            word = self._late.popleft()
            route = self._route(word)
            if route is None or route.frozen or 0 < word.until <= self._client.now():
                self._give_up(word)
            else:
                self._trying = word
                self._forward(word)

    def _unreached(self, word: GroupRequest, told: Told, code: int) -> None:
        """Put a commit off, or answer the client with the code (rule F).

        For an OffsetFetch, `_fetched` decides, because the source's own answer may have the same error.
        """
        commits = word.head.api_key != ApiKey.OFFSET_FETCH
        if commits and code in ELSEWHERE and self._client.now() < word.until and not self._talk.gone:
            self._put_off(word)
        else:
            told(group_error(word.head, word.request, code))

    def _put_off(self, word: GroupRequest) -> None:
        if word is self._trying:
            self._trying = None
            self._late.appendleft(word)
        else:
            self._late.append(word)
        self._come_again()

    def _come_again(self) -> None:
        self._again_at = self._client.now() + _AGAIN_S
        self._client.wake_at(self._again_at)

    def _give_up(self, word: GroupRequest) -> None:
        self._resolved(word, group_error(word.head, word.request, Code.NOT_COORDINATOR))

    def _noting(self, word: GroupRequest) -> Told:
        """Return the request's callback for an answer, preceded by a note of the committed offsets left out (G)."""
        told, request = word.told, word.request

        def noted(answer: Any) -> None:
            given, left_out = told_and_left_out(request, answer)
            self._shared.untold.told(word.group, given)
            self._shared.untold.left_out(word.group, left_out, id(self), self._client.now())
            told(answer)

        return noted

    def _fetch(self, word: GroupRequest) -> None:
        self._talk.ask(word, lambda answer: self._fetched(word, answer))

    def _fetch_again(self) -> None:
        """Send the OffsetFetch requests again (F); they change nothing, so none waits for another."""
        if not self._fetches or self._client.now() < self._again_at:
            return
        words, self._fetches = self._fetches, []
        for word in words:
            route = self._route(word)
            if route is None or route.frozen or word.until <= self._client.now():
                word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                self._fetch(word)

    def _fetched(self, word: GroupRequest, answer: Any) -> None:
        """Answer an OffsetFetch, or ask again (rules A, B, C and F)."""
        again = codes_in(answer) & _ASKED_AGAIN
        if again and self._client.now() < word.until and not self._talk.gone:
            self._fetches.append(word)
            self._come_again()
            return
        if again - {Code.UNSTABLE_OFFSET_COMMIT}:
            word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
            return
        whole = answer.groups[0] if getattr(answer, "groups", None) else answer
        if code := code_of(getattr(whole, "error_code", 0)):
            word.fail(code)
            return
        routes = self._shared.table.topics
        if self._differs(topics_of(answer)):
            word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
            return
        copied = {
            key: position
            for key, position in positions_of(answer).items()
            if key[0] in routes and routes[key[0]].serve is not Serve.LOCAL
        }
        shown = asking_again(without_epochs(answer))
        if not copied:
            word.told(shown)
            return
        may_be_beyond = word.head.version >= _FIRST_TOLD_BEYOND
        hold_s = self._shared.settings.group_hold_s

        def there(yes: bool) -> None:
            if yes or may_be_beyond:
                word.told(shown)
            else:
                word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)

        self._shared.backend.when_copied(word.link, copied, min(_COPY_S, hold_s) if may_be_beyond else hold_s).then(
            there
        )

    # rebalances (rules D and E)

    def _join(self, word: GroupRequest) -> None:
        self._joins.append(word)
        self._shared.followers.join(word.group, word.member_id)
        self._go_on(word)
        self._beat()
        self._watch()

    def _go_on(self, word: GroupRequest) -> None:
        """Handle a join under the present table."""
        route = self._route(word)
        if route is None:
            self._joins.remove(word)
            self._shared.followers.joined(word.group, word.member_id)
            if word.group in self._shared.table.held_groups:  # the group was given another mode
                word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
            else:
                self._join_anew(word)
        elif word.answer is not None and not route.rejoining:
            self._answer_join(word)
        elif not word.sent and not route.rejoining:
            word.sent = True
            self._talk.ask(word, lambda answer: self._join_answered(word, answer))

    def _join_answered(self, word: GroupRequest, answer: Any) -> None:
        if word not in self._joins:
            return
        failed = code_of(answer.error_code)
        if not failed:
            self._heard(word.group, str(answer.member_id), int(answer.generation_id))
            self._shared.followers.joined(word.group, word.member_id)
            word.named = str(answer.member_id)
            self._shared.followers.join(word.group, word.member_id)
        word.answer = answer
        route = self._route(word)
        if failed or (route is not None and not route.rejoining):
            self._answer_join(word)

    def _answer_join(self, word: GroupRequest) -> None:
        self._joins.remove(word)
        self._shared.followers.joined(word.group, word.member_id)
        word.told(word.answer)

    def _join_anew(self, word: GroupRequest) -> None:
        """Join the target's group as a new member: the answer to the held join tells the client so (rule E)."""
        if word.member_id:
            self._leave(word, word.member_id)
        request = dataclasses.replace(word.request, member_id=type(word.request.member_id)(""))
        head, kind = word.head, type(request)

        def answered(frame: bytearray) -> None:
            answer = read_answer(kind, frame)
            if code_of(answer.error_code) == Code.MEMBER_ID_REQUIRED:
                named = dataclasses.replace(request, member_id=answer.member_id)
                again = frame_request(named, head.correlation_id, head.client_id)
                self._client.to_target([again], head.correlation_id, lambda last: told(read_answer(kind, last)))
            else:
                told(answer)

        def told(answer: Any) -> None:
            self._trials.outcome(head, word.request, code_of(answer.error_code))
            word.told(answer)

        first = frame_request(request, head.correlation_id, head.client_id)
        self._client.to_target([first], head.correlation_id, answered)

    def _leave(self, word: GroupRequest, member_id: str) -> None:
        self._generations.pop((word.group, member_id), None)
        newest = self._shared.backend.source_version(word.link, ApiKey.LEAVE_GROUP)
        if newest >= 0:
            self._talk.tell(word, leave_request(word.group, member_id, newest))

    def _beat(self) -> None:
        """Keep members with held joins in the source's group, in case the promote is given up (rule D)."""
        held = [join for join in self._joins if (route := self._route(join)) is not None and route.rejoining]
        now = self._client.now()
        if not held or now < self._beat_at < float("inf"):
            return
        for join in held:
            generation = self._generations.get((join.group, join.member_id))
            if generation is not None:
                self._talk.tell(
                    join, _HEARTBEAT(group_id=join.group, generation_id=generation, member_id=join.member_id)
                )
        self._beat_at = now + _BEAT_S
        self._client.wake_at(self._beat_at)

    def _sync(self, word: GroupRequest) -> None:
        route = self._route(word)
        if route is None or route.rejoining:
            word.fail(Code.REBALANCE_IN_PROGRESS)
            return
        self._syncs.append(word)

        def answered(answer: Any) -> None:
            if word in self._syncs:
                self._syncs.remove(word)
                word.told(answer)

        self._talk.ask(word, answered)
        self._watch()
