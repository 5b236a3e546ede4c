"""Members of the new protocol (KIP-848) in groups that follow, on one client connection.

Their heartbeats go to the source's coordinator as all words of such groups do (`follow`); topics have the ids of each
side. Lettered rules:

A  What a member must not read at the target is not told it (`topic_ids`). When that may be read, it is told. Of whom
   this router has seen no assignment, because it had one before through another connection or router, is made to say
   everything, once: else nobody would know what is withheld from it, and it would not be told.
B  While the group is promoted each member is told in answer to a heartbeat that it owns nothing any more, whatever the
   source says. It commits what it has read, gives all back, and says so in a heartbeat. The source hears its heartbeats
   meanwhile, also this one: there, what a member says to own matters only while it is to give something back. So the
   member stays what it is, and commits still reach the source. Who has given all back waits for the others: so all are
   made to send heartbeats more often first, for as long as they had between two, and go on reading. So do members of
   a group in transactions, and what they have in hand they commit in these before.
C  Who owned nothing before has nothing to say: it is told NOT_COORDINATOR (16), after which clients say everything.
   Who was told of partitions a moment ago may be about to take them, and is not believed at once.
D  Who joins while the group is promoted waits, as who has given all back. The source hears of neither's joining.
E  A promote that is given up: the next heartbeat is answered as in C, and the one that says everything with the
   source's own assignment.
F  Once the group is open its members are strangers to the target, which says so (25): they join there as new ones, at
   once and in silence, for there is nothing that they could lose. They go on sending heartbeats often for a while: what
   is moved from one to another there takes a heartbeat of each. The former members leave the source's group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kmigrate.model.routes import RoutingTable
from kmigrate.protocol.codes import Code, code_of
from kmigrate.router.apis.groups import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, leaves_group
from kmigrate.router.apis.heartbeats import (
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
from kmigrate.router.core import Core, Edge
from kmigrate.router.group_talk import GroupTalk, Word

__all__ = ["HeartbeatDesk"]

_PROBED_S = 1.0
"""After so long without a word of what it owns it is made to say everything (rule C)."""
_TAKES_S = 10.0
"""For so long a member that was told of partitions may be about to take them."""
_MOST_MEMBERS = 16
"""Of whom a connection knows: a member has connections of its own."""
_LONG_AGO = float("-inf")


@dataclass(slots=True, eq=False)
class _Member:
    """A member that the source's coordinator has answered on this connection."""

    word: Word
    """Its newest."""
    named: Partitions = frozenset()
    """What it said last that it owns, by the target's ids."""
    given_at: float = _LONG_AGO
    """When it was told of partitions that it has not named since."""
    asked: bool = False
    """It was made to say everything, because its assignment was not known at this router."""
    emptied_at: float = _LONG_AGO
    """When it was told that it owns nothing, or asked about it, in a promote that is not over for it."""
    done: bool = False
    """It has said since that it owns nothing."""

    @property
    def emptied(self) -> bool:
        return self.emptied_at > _LONG_AGO


class HeartbeatDesk:
    """Takes ConsumerGroupHeartbeat of groups that follow."""

    def __init__(self, core: Core, edge: Edge, talk: GroupTalk) -> None:
        self._core = core
        self._edge = edge
        self._talk = talk
        self._members: dict[tuple[str, str], _Member] = {}
        self._table: RoutingTable | None = None

    def can(self, link: str, heartbeat: Any) -> bool:
        """Whether a link's source understands it; before Kafka 4.0 brokers do not know the new protocol."""
        newest = self._core.outside.source_version(link, CONSUMER_GROUP_HEARTBEAT)
        if newest < 0 and self._core.outside.source_version(link, HEARTBEAT) < 0:
            self._core.outside.refresh_source(link)
        return newest >= needs_regex(heartbeat)

    def knows(self, group: str, member_id: str) -> bool:
        """Return whether a member of the new protocol has sent a heartbeat on this connection."""
        return (group, member_id) in self._members

    def take(self, word: Word) -> None:
        request = word.request
        if leaves_group(request):
            self._ask(word, self._left)
            return
        member = self._known(word)
        gathering = self._gathering(word)
        self._hear(member, gathering=gathering)
        if gathering and not int(request.member_epoch):
            member.emptied_at = self._edge.now()
            self._done(member)
            word.fail(Code.COORDINATOR_LOAD_IN_PROGRESS)
        elif self._must_say_everything(member, gathering=gathering):
            word.fail(Code.NOT_COORDINATOR)
        else:
            if not gathering:
                member.emptied_at = _LONG_AGO
            self._ask(word, self._beaten)

    def advance(self) -> None:
        """Rules E and F, once for each table."""
        if self._table is self._core.table:
            return
        self._table = self._core.table
        for key, member in list(self._members.items()):
            route = self._table.followed.get(member.word.group)
            if route is None:
                self._forget(key)
                if member.word.group not in self._table.held_groups:  # else it was given another mode
                    self._talk.tell(member.word, leaving(member.word.request))
            elif not route.gathering:
                self._undone(member)

    def closed(self) -> None:
        for key in list(self._members):
            self._core.followers.parted(*key)
            self._forget(key)

    # one member

    def _known(self, word: Word) -> _Member:
        key = (word.group, word.member_id)
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = _Member(word)
            if len(self._members) > _MOST_MEMBERS:
                self._forget(next(iter(self._members)))
        member.word = word
        return member

    def _gathering(self, word: Word) -> bool:
        route = self._core.table.followed.get(word.group)
        return route is None or route.gathering

    def _hear(self, member: _Member, *, gathering: bool) -> None:
        """What a member says that it owns."""
        named = owned(member.word.request)
        if named is None:
            return
        member.named = named
        if named:
            member.given_at = _LONG_AGO
            self._undone(member)
        elif gathering and member.emptied and self._edge.now() - member.given_at > _TAKES_S:
            self._done(member)

    def _must_say_everything(self, member: _Member, *, gathering: bool) -> bool:
        if says_everything(member.word.request) or not int(member.word.request.member_epoch):
            return False
        if not gathering:
            return self._wants_assignment(member) or member.emptied
        now = self._edge.now()
        if member.done or not member.emptied or now - member.emptied_at < _PROBED_S:
            return False
        member.emptied_at = now
        return True

    def _wants_assignment(self, member: _Member) -> bool:
        """Rule A."""
        group, member_id = member.word.group, member.word.member_id
        withheld = self._core.followers.withheld(group, member_id)
        if withheld is not None:
            return self._core.ids.tells_any(withheld)
        asked, member.asked = member.asked, True
        return not asked

    def _done(self, member: _Member) -> None:
        if not member.done:
            member.done = True
            self._core.followers.join(member.word.group, member.word.member_id)

    def _undone(self, member: _Member) -> None:
        if member.done:
            member.done = False
            self._core.followers.joined(member.word.group, member.word.member_id)

    def _forget(self, key: tuple[str, str]) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            self._undone(member)

    # answers

    def _ask(self, word: Word, answered: Callable[[Word, Any], None]) -> None:
        asked = Word(word.head, with_source_ids(word.request, self._core.ids), word.group, word.link, word.told)
        self._talk.ask(asked, lambda answer: answered(word, answer))

    def _left(self, word: Word, answer: Any) -> None:
        if not code_of(answer.error_code):
            self._core.followers.gone(word.group, word.member_id)
            self._forget((word.group, word.member_id))
        word.told(answer)

    def _beaten(self, word: Word, answer: Any) -> None:
        if code_of(answer.error_code):
            word.told(answer)
            return
        if not word.member_id:  # of a client that has the coordinator name it
            self._forget((word.group, ""))
            word.named = str(answer.member_id)
            self._core.followers.heard(word.group, word.named, self._edge.now())
        member = self._known(word)
        gathering, now = self._gathering(word), self._edge.now()
        if gathering and (member.emptied or now >= self._all_hear_at(word, answer)):
            if not member.emptied:
                member.emptied_at = now
            word.told(sooner(letting_go(answer)))
            return
        shown, withheld = with_target_ids(answer, self._core.ids)
        if shown.assignment is not None:
            self._withhold(member, withheld)
            if (owned(shown.assignment) or frozenset()) - member.named:
                member.given_at = now
        word.told(sooner(shown) if gathering else shown)

    def _all_hear_at(self, word: Word, answer: Any) -> float:
        """When every member, at any router, has sent a heartbeat since its group gathers, and sends them often."""
        since = self._core.followers.gathering(word.group, self._edge.now())
        return since + float(answer.heartbeat_interval.total_seconds())

    def _withhold(self, member: _Member, withheld: frozenset[UUID]) -> None:
        """Rule A."""
        group, member_id = member.word.group, member.word.member_id
        if withheld - (self._core.followers.withheld(group, member_id) or frozenset()):
            self._core.outside.warn(
                f"group {group}: its member {member_id} is assigned a topic of the source that cannot be read here, "
                f"because it is not mirrored under the same offsets: {', '.join(sorted(map(self._named, withheld)))}"
            )
        self._core.followers.withhold(group, member_id, withheld, self._edge.now())

    def _named(self, topic: UUID) -> str:
        name = self._core.ids.name_at_source(topic)
        return f"{name} (topic id {topic})" if name else f"topic id {topic}"
