"""Handles heartbeats of the new protocol (KIP-848) in groups that follow, for one client connection.

Heartbeats go to the source's coordinator like all requests of such groups (`groups.handler`). Topics have different ids
on the two clusters. Lettered rules:

A  A member is told of an assigned topic only once the topic may be read at the target (`topic_ids`). This router may
   not have seen the assignment, made through another connection or router. Then the member must send a full heartbeat
   (with all fields), once. Otherwise nobody would know what is withheld, and the member would never be told.
B  While the group is promoted, the answer to a heartbeat tells each member to own nothing any more, whatever the source
   says. The member commits what was read, gives all partitions back, and reports so in a heartbeat. Meanwhile
   heartbeats go to the source, including this report: the source reads the owned partitions only while it waits for the
   member to give some back. So the member stays a member there, and commits still reach the source. A member that has
   given everything back waits for the others. So all members must first send heartbeats more often, for as long as
   their former interval, and go on reading. Members of a group in transactions do the same; before they give partitions
   back, they commit their work in progress in a transaction.
C  A member that owned nothing before has nothing to report: the answer is NOT_COORDINATOR (16), after which clients
   send a full heartbeat. A member that was told of partitions a moment ago may be about to take them, so an empty
   report is not believed at once.
D  A member that joins while the group is promoted waits, like a member that has given everything back: the router
   answers COORDINATOR_LOAD_IN_PROGRESS (14), and the member joins again. No join reaches the source meanwhile.
E  If a promote is given up, the next heartbeat is answered as in C, and the full heartbeat gets the source's
   assignment.
F  Once the group is open, the target does not know the members, and says so (25). They join there as new members, at
   once and without an error to the application, because there is nothing to lose. For a while they go on sending
   heartbeats often: each partition that moves between members there takes a heartbeat of each. The former members leave
   the source's group.
G  A rollback is a promote with the clusters exchanged (`handler`, rule H): heartbeats go to the target, whose topic ids
   the members know. If the rollback is given up, heartbeats pass to the target unread, so each member that was told to
   own nothing is remembered, and the next heartbeat of the member is answered as in E. Once the source has the group, a
   member's heartbeat is answered 25 there, and the former member leaves the target's group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from kmigrate.model.routes import RoutingTable
from kmigrate.protocol.api import ApiKey, Message
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.groups.coordinator import GroupCoordinatorClient, GroupRequest
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import ClientLink, SharedState
from kmigrate.router.wire.groups import group_error, leaves_group
from kmigrate.router.wire.heartbeats import (
    Partitions,
    leaving,
    letting_go,
    needs_regex,
    owned,
    says_everything,
    sooner,
    with_source_ids,
    with_target_ids,
)

__all__ = ["HeartbeatHandler"]

_PROBED_S = 1.0
"""Time without a report of owned partitions after which a member must send a full heartbeat (rule C)."""
_TAKES_S = 10.0
"""Time for which a member that was told of partitions may be about to take them."""
_MOST_MEMBERS = 16
"""Maximum members that a connection knows: a member has connections of its own."""
_LONG_AGO = float("-inf")


@dataclass(slots=True, eq=False)
class _Member:
    """A member that the group's coordinator has answered on this connection."""

    beat: GroupRequest
    """Newest heartbeat."""
    owned: Partitions = frozenset()
    """Partitions that the member last reported as owned, by the target's ids."""
    given_at: float = _LONG_AGO
    """Time when the member was told of partitions that are not reported as owned since."""
    asked: bool = False
    """True once the member had to send a full heartbeat, because this router did not know the assignment."""
    emptied_at: float = _LONG_AGO
    """Time when the promote told the member to own nothing, or last to send a full heartbeat (C); reset afterwards."""
    done: bool = False
    """True once the member has reported since that no partition is owned."""
    at_target: bool = False
    """True if the newest heartbeat came during a rollback (G)."""

    @property
    def emptied(self) -> bool:
        return self.emptied_at > _LONG_AGO


class HeartbeatHandler:
    """Handles ConsumerGroupHeartbeat of groups that follow."""

    def __init__(self, shared: SharedState, client: ClientLink, coordinator: GroupCoordinatorClient) -> None:
        self._shared = shared
        self._client = client
        self._coordinator = coordinator
        self._members: dict[tuple[str, str], _Member] = {}
        self._let_go: set[tuple[str, str]] = set()
        """Members that were told to own nothing by a rollback that was given up (G)."""
        self._table: RoutingTable | None = None

    def can(self, link: str, heartbeat: Message) -> bool:
        """Return whether a link's source understands the heartbeat; before Kafka 4.0 brokers lack the new protocol.

        A group that is rolled back has its members at the target, which does.
        """
        route = self._shared.table.followed.get(str(heartbeat.group_id))
        if route is not None and route.at_target:
            return True
        newest = self._shared.backend.source_version(link, ApiKey.CONSUMER_GROUP_HEARTBEAT)
        if newest < 0 and self._shared.backend.source_version(link, ApiKey.HEARTBEAT) < 0:
            self._shared.backend.refresh_source(link)
        return newest >= needs_regex(heartbeat)

    def knows(self, group: str, member_id: str) -> bool:
        """Return whether a member of the new protocol has sent a heartbeat on this connection."""
        return (group, member_id) in self._members

    def answer(self, beat: GroupRequest) -> Conversation[Message]:
        """Answer a heartbeat of a group that follows."""
        if leaves_group(beat.request):
            answer = yield from self._ask(beat)
            if not code_of(answer.error_code):
                self._shared.followers.gone(*beat.member)
                self._forget(beat.member)
            return answer
        member, gathering = self._known(beat), self._gathering(beat)
        self._note_owned(member, gathering=gathering)
        if gathering and not int(beat.request.member_epoch):
            member.emptied_at = self._client.now()
            self._note_done(member, done=True)
            return beat.error(Code.COORDINATOR_LOAD_IN_PROGRESS)
        if self._must_say_everything(member, gathering=gathering):
            return beat.error(Code.NOT_COORDINATOR)
        if not gathering:
            member.emptied_at = _LONG_AGO
        answer = yield from self._ask(beat)
        code = code_of(answer.error_code)
        if code == Code.GROUP_ID_NOT_FOUND and int(beat.request.member_epoch):
            return beat.error(Code.UNKNOWN_MEMBER_ID)  # the group is back at the source, without a protocol yet (G)
        return answer if code else self._shown(beat, answer)

    def let_go(self, head: RequestHead, heartbeat: Message) -> Message | None:
        """Return the answer that makes a member say everything, once, after a rollback that was given up (G)."""
        member = str(heartbeat.group_id), str(heartbeat.member_id)
        if member not in self._let_go:
            return None
        self._let_go.discard(member)
        ask_all = int(heartbeat.member_epoch) > 0 and not says_everything(heartbeat)
        return group_error(head, heartbeat, Code.NOT_COORDINATOR) if ask_all else None

    def advance(self) -> None:
        """Apply rules E and F, once per table."""
        if self._table is self._shared.table:
            return
        self._table = self._shared.table
        for key, member in list(self._members.items()):
            route = self._table.followed.get(member.beat.group)
            if member.at_target and (route is None or not route.at_target):
                self._rolled_back(key, member)
            elif route is None:
                self._forget(key)
                if member.beat.group not in self._table.held_groups:  # otherwise the group was given another mode
                    self._coordinator.send(member.beat, leaving(member.beat.request))
            elif not route.gathering:
                self._note_done(member, done=False)

    def _rolled_back(self, key: tuple[str, str], member: _Member) -> None:
        """Apply rule G after the end of a rollback."""
        self._forget(key)
        table, group = self._shared.table, member.beat.group
        if group in table.followed or group in table.held_groups:
            self._coordinator.send_to_target(member.beat, leaving(member.beat.request))
        elif member.emptied:
            self._let_go.add(key)

    def closed(self) -> None:
        for key in list(self._members):
            self._shared.followers.parted(*key)
            self._forget(key)

    # one member

    def _known(self, beat: GroupRequest) -> _Member:
        member = self._members.setdefault(beat.member, _Member(beat))
        if len(self._members) > _MOST_MEMBERS:
            self._forget(next(iter(self._members)))
        member.beat = beat
        member.at_target = self._coordinator.at_target(beat)
        return member

    def _gathering(self, beat: GroupRequest) -> bool:
        route = self._shared.table.followed.get(beat.group)
        return route is None or route.gathering

    def _note_owned(self, member: _Member, *, gathering: bool) -> None:
        """Note the partitions that a member reports as owned."""
        reported = owned(member.beat.request)
        if reported is None:
            return
        member.owned = reported
        if reported:
            member.given_at = _LONG_AGO
            self._note_done(member, done=False)
        elif gathering and member.emptied and self._client.now() - member.given_at > _TAKES_S:
            self._note_done(member, done=True)

    def _must_say_everything(self, member: _Member, *, gathering: bool) -> bool:
        if says_everything(member.beat.request) or not int(member.beat.request.member_epoch):
            return False
        if not gathering:
            return not member.at_target and (self._wants_assignment(member) or member.emptied)
        now = self._client.now()
        if member.done or not member.emptied or now - member.emptied_at < _PROBED_S:
            return False
        member.emptied_at = now
        return True

    def _wants_assignment(self, member: _Member) -> bool:
        """Return whether a member must send a full heartbeat for rule A."""
        withheld = self._shared.followers.withheld(*member.beat.member)
        if withheld is not None:
            return self._shared.ids.tells_any(withheld)
        asked, member.asked = member.asked, True
        return not asked

    def _note_done(self, member: _Member, *, done: bool) -> None:
        """Count a member that is done as a member that has joined anew."""
        if member.done != done:
            member.done = done
            note = self._shared.followers.join if done else self._shared.followers.joined
            note(*member.beat.member)

    def _forget(self, key: tuple[str, str]) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            self._note_done(member, done=False)

    # answers

    def _ask(self, beat: GroupRequest) -> Conversation[Message]:
        if self._coordinator.at_target(beat):
            return self._coordinator.ask(beat)
        return self._coordinator.ask(replace(beat, request=with_source_ids(beat.request, self._shared.ids)))

    def _shown(self, beat: GroupRequest, answer: Message) -> Message:
        """Return the source's answer as the member gets it."""
        if not beat.member_id:  # of a client that has the coordinator choose the member id
            self._forget((beat.group, ""))
            beat.named = str(answer.member_id)
            self._shared.followers.heard(*beat.member, self._client.now())
        member = self._known(beat)
        gathering, now = self._gathering(beat), self._client.now()
        if gathering and (member.emptied or now >= self._all_hear_at(beat, answer)):
            if not member.emptied:
                member.emptied_at = now
            return sooner(letting_go(answer))
        withheld: frozenset[UUID] = frozenset()
        if not member.at_target:
            answer, withheld = with_target_ids(answer, self._shared.ids)
        if answer.assignment is not None:
            self._withhold(member, withheld)
            if (owned(answer.assignment) or frozenset()) - member.owned:
                member.given_at = now
        return sooner(answer) if gathering else answer

    def _all_hear_at(self, beat: GroupRequest, answer: Message) -> float:
        """Return when every member of all routers has sent a heartbeat while gathering; then all send them often."""
        since = self._shared.followers.gathering(beat.group, self._client.now())
        return since + float(answer.heartbeat_interval.total_seconds())

    def _withhold(self, member: _Member, withheld: frozenset[UUID]) -> None:
        """Note the topics that are withheld from a member, and warn of new ones (rule A)."""
        group, member_id = member.beat.member
        if withheld - (self._shared.followers.withheld(group, member_id) or frozenset()):
            self._shared.backend.warn(
                f"group {group}: its member {member_id} is assigned a topic of the source that cannot be read here, "
                f"because it is not mirrored under the same offsets: {', '.join(sorted(map(self._named, withheld)))}"
            )
        self._shared.followers.withhold(group, member_id, withheld, self._client.now())

    def _named(self, topic: UUID) -> str:
        name = self._shared.ids.name_at_source(topic)
        return f"{name} (topic id {topic})" if name else f"topic id {topic}"
