"""Members of the new protocol (KIP-848) in groups that follow.

The tests show the translation of topic ids, and how a promote makes members give back all partitions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kmigrate.model.members import member_mark
from kmigrate.model.presences import Withheld
from kmigrate.model.routes import GroupRoute, Serve, TopicRoute
from kmigrate.protocol.api import blank, element_type, entity, field_type
from kmigrate.protocol.codes import code_of
from kmigrate.router.wire.topic_ids import TopicIds
from tests.unit.router.groups.test_handler import (
    COMMIT,
    DESCRIBE_NEW,
    FETCH,
    FIND,
    FROZEN,
    GATHERING,
    LIST,
    NEW_BEAT,
    Member,
)
from tests.unit.router.router_fakes import route

HERE, THERE = UUID(int=1), UUID(int=2)
"""Topic ids at the target and at the source."""
OTHER, OTHER_THERE, ALIEN = UUID(int=3), UUID(int=4), UUID(int=9)
FOLLOWS = GroupRoute("l")
Owned = Collection[tuple[UUID, int]]


def copied(topic: str = "t", here: UUID = HERE, there: UUID = THERE, serve: Serve = Serve.FORWARD) -> TopicRoute:
    return replace(route(topic, serve), target_id=str(here), source_id=str(there))


class NewMember(Member):
    """A member with an assignment from the source, in the source's topic ids."""

    def __init__(self, *routes: TopicRoute, assigned: Owned | None = ((THERE, 0), (THERE, 1)), **groups: GroupRoute):
        self.assigned = assigned
        self.epoch = 5
        self.code_of_positions: Callable[[Any], int] | None = None
        """Function that returns the error code for a group in an OffsetFetch answer."""
        super().__init__(*(routes or (copied(),)), **groups)
        self.versions[NEW_BEAT] = 1
        # This router returned the member's assignment before.
        self.stage.shared.followers.withhold("g", "m", frozenset(), 0.0)

    def _told(self, head: Any, kind: Any, request: Any, code: int) -> Any:
        if head.api_key == DESCRIBE_NEW:
            group = element_type(kind, "groups")
            return blank(
                kind,
                groups=tuple(
                    blank(group, group_id=g, error_code=code, group_state="Stable", members=(self._described(group),))
                    for g in request.group_ids
                ),
            )
        if head.api_key == FETCH and self.code_of_positions is not None:
            code = self.code_of_positions(request.groups[0])
        if head.api_key != NEW_BEAT:
            return super()._told(head, kind, request, code)
        assignment = None
        if self.assigned is not None and not code:
            of = field_type(kind, "assignment")
            assignment = blank(of, topic_partitions=partitions(of, self.assigned))
        named = request.member_id or "named"
        beat = dt.timedelta(seconds=5)
        told = {"member_id": named, "member_epoch": self.epoch, "heartbeat_interval": beat, "assignment": assignment}
        return blank(kind, error_code=code, **told)

    def _described(self, group: Any) -> Any:
        member = element_type(group, "members")
        of = field_type(member, "assignment")
        topic = element_type(of, "topic_partitions")
        topics = (
            blank(topic, topic_id=THERE, topic_name="t", partitions=(0,)),
            blank(topic, topic_id=ALIEN, topic_name="alien", partitions=(0,)),
        )
        assignment = blank(of, topic_partitions=topics)
        return blank(member, member_id="m", assignment=assignment, target_assignment=assignment)

    def new_beat(self, owned: Owned | None = None, epoch: int = 5, *, all_: bool = False, **more: Any) -> Any:
        """Send a heartbeat with the given owned partitions, without owned partitions, or with the full state."""
        kind = entity(NEW_BEAT, self.versions.get(NEW_BEAT, 0), "request")
        said: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": epoch}
        said["rebalance_timeout"] = dt.timedelta(milliseconds=-1)
        if all_ or not epoch:
            said |= {"rebalance_timeout": dt.timedelta(seconds=60), "subscribed_topic_names": ("t",)}
        said["topic_partitions"] = None if owned is None else partitions(kind, owned)
        return self.says(NEW_BEAT, **said | more)

    def code(self, owned: Owned | None = None, **said: Any) -> int:
        return code_of(self.new_beat(owned, **said).error_code)

    @property
    def told(self) -> list[tuple[UUID, int]] | None:
        """The assignment in the newest answer."""
        answer = self.read(NEW_BEAT)
        return None if answer.assignment is None else listed(answer.assignment)

    def at_source(self) -> list[tuple[UUID, int]] | None:
        """Return the owned partitions in the last heartbeat that reached the source."""
        return listed(self.last(NEW_BEAT))

    @property
    def joined(self) -> bool:
        return member_mark("m") in self.word.joined

    def gathers(self) -> None:
        """Begin a promote so long ago that every member has sent a heartbeat since."""
        self.turns(g=GATHERING)
        self.later(5)

    def later(self, seconds: float) -> None:
        self.stage.edge.clock += seconds


def partitions(kind: Any, owned: Owned) -> tuple[Any, ...]:
    topic = element_type(kind, "topic_partitions")
    ids = dict.fromkeys(each for each, _ in owned)
    return tuple(blank(topic, topic_id=one, partitions=tuple(p for each, p in owned if each == one)) for one in ids)


def listed(message: Any) -> list[tuple[UUID, int]] | None:
    if message.topic_partitions is None:
        return None
    return [(topic.topic_id, int(index)) for topic in message.topic_partitions for index in topic.partitions]


OWNS = [(HERE, 0), (HERE, 1)]


def emptied() -> NewMember:
    """Return a member that gave back all partitions during a promote."""
    member = NewMember()
    member.new_beat(OWNS)
    member.gathers()
    member.new_beat()
    assert member.told == []
    member.new_beat([])
    assert member.joined
    return member


# Translation


def test_a_member_speaks_to_the_sources_coordinator_in_the_sources_ids() -> None:
    member = NewMember()
    assert member.code(epoch=0, owned=[]) == 0
    assert (member.told, member.at_source()) == (OWNS, [])
    assert member.code(OWNS) == 0
    assert member.at_source() == [(THERE, 0), (THERE, 1)]
    assert member.code() == 0
    assert member.at_source() is None, "nothing has changed"
    assert member.asked(FIND, NEW_BEAT) == [("coordinator", FIND)] + [("coordinator", NEW_BEAT)] * 3
    assert member.word.members == (member_mark("m"),)
    assert int(member.read(NEW_BEAT).member_epoch) == 5
    assert member.read(NEW_BEAT).heartbeat_interval == dt.timedelta(seconds=5)


@pytest.mark.parametrize("code", [16, 25, 110, 111, 112])
def test_what_the_sources_coordinator_refuses_is_told_the_client(code: int) -> None:
    member = NewMember()
    member.codes["coordinator", NEW_BEAT] = code
    assert member.code(OWNS) == code
    assert member.told is None


def test_a_stale_epoch_of_a_commit_and_of_a_question_for_positions_is_told_the_client() -> None:
    member = NewMember()
    member.codes["coordinator", COMMIT] = member.codes["coordinator", FETCH] = 113
    assert member.commit() == 113
    assert code_of(member.fetch().groups[0].error_code) == 113


@pytest.mark.parametrize(
    "routes",
    [
        (),
        (replace(copied("other", OTHER, OTHER_THERE), mapped=True),),
        (copied("other", OTHER, OTHER_THERE, Serve.HIDDEN),),
        (replace(copied("other", OTHER, OTHER_THERE), target_id=""),),
    ],
    ids=["not-mirrored", "mapped", "not-aligned", "not-made"],
)
def test_a_topic_that_cannot_be_read_here_is_not_told_and_named_once(routes: tuple[TopicRoute, ...]) -> None:
    member = NewMember(copied(), *routes, assigned=[(THERE, 0), (OTHER_THERE, 0)])
    for _ in range(2):
        member.new_beat()
        assert member.told == [(HERE, 0)]
    (said,) = member.stage.backend.said
    assert str(OTHER_THERE) in said and "group g" in said
    assert [(each.topic_id, each.members) for each in member.word.withheld] == [(str(OTHER_THERE), 1)]
    assert (member.word.withheld[0].topic, "other" in said) == (("other", True) if routes else ("", False))


def test_a_topic_that_can_be_read_by_now_is_told() -> None:
    member = NewMember(assigned=[(THERE, 0), (OTHER_THERE, 0)])
    member.new_beat()
    member.assigned = None
    assert member.code() == 0
    member.stage.swap(copied(), copied("other", OTHER, OTHER_THERE))
    assert member.code() == 16, "so that it says everything"
    member.assigned = [(THERE, 0), (OTHER_THERE, 0)]
    assert member.code([(HERE, 0)], all_=True) == 0
    assert member.told == [(HERE, 0), (OTHER, 0)]
    assert member.code() == 0


# Topics that a router withholds, as the router reports them


WITHHELD = Withheld(str(OTHER_THERE), 1)


def deprived(*routes: TopicRoute) -> NewMember:
    """Return a member whose assignment has a topic that the member must not read."""
    member = NewMember(*routes, assigned=[(THERE, 0), (OTHER_THERE, 0)])
    member.new_beat([], epoch=0)
    assert member.word.withheld == (WITHHELD,)
    return member


def test_members_that_a_topic_is_withheld_from_are_counted_once_each() -> None:
    member = deprived()
    member.new_beat([], epoch=0, member_id="n")
    assert member.word.withheld == (replace(WITHHELD, members=2),)
    member.new_beat([(HERE, 0)], all_=True)
    assert member.word.withheld == (replace(WITHHELD, members=2),)


def test_a_topic_that_is_mirrored_by_now_is_withheld_no_more() -> None:
    member = deprived()
    member.stage.swap(copied(), copied("other", OTHER, OTHER_THERE, Serve.HIDDEN))
    assert member.word.withheld == (replace(WITHHELD, topic="other"),), "it is being aligned"
    member.stage.swap(copied(), copied("other", OTHER, OTHER_THERE))
    assert member.word.withheld == ()


def test_a_topic_that_the_source_assigns_to_somebody_else_by_now_is_withheld_no_more() -> None:
    member = deprived()
    member.assigned = None
    member.new_beat()
    assert member.word.withheld == (WITHHELD,), "nothing has changed"
    member.assigned = [(THERE, 0)]
    member.new_beat()
    assert member.word.withheld == ()


def test_nothing_is_withheld_from_who_has_left_or_is_gone() -> None:
    member = deprived()
    member.new_beat([], epoch=0, member_id="n")
    member.new_beat(epoch=-1, member_id="n")
    assert member.word.withheld == (WITHHELD,)
    member.stage.session.closed()
    assert member.word.withheld == ()
    assert member.word.members == (member_mark("m"),), "it may come back"


def test_nothing_is_withheld_from_who_sends_its_heartbeats_elsewhere() -> None:
    """The member's connection here may stay open as long as the client likes."""
    member = deprived()
    member.later(59)
    assert member.word.withheld == (WITHHELD,)
    member.new_beat()
    member.later(59)
    assert member.word.withheld == (WITHHELD,)
    member.later(2)
    assert member.word.withheld == ()


@pytest.mark.parametrize("held", [(), ("g",)], ids=["promoted", "holds"])
def test_nothing_is_withheld_of_a_group_that_does_not_follow_any_more(held: tuple[str, ...]) -> None:
    member = deprived()
    member.stage._held = held
    member.turns(none=FOLLOWS)
    member.stage._held = ()
    member.turns(g=FOLLOWS)
    assert member.word.withheld == ()


def test_while_the_group_is_promoted_it_stays_known_what_was_withheld() -> None:
    member = deprived()
    member.gathers()
    member.new_beat()
    assert (member.told, member.word.withheld) == ([], (WITHHELD,))
    member.turns(g=FOLLOWS)
    member.assigned = [(THERE, 0)]
    member.code([], all_=True)
    assert member.word.withheld == ()


def test_of_many_topics_the_first_are_told_and_how_many_more_there_are() -> None:
    many = [UUID(int=1_000 + number) for number in range(70)]
    member = NewMember(assigned=[(each, 0) for each in many])
    member.new_beat()
    assert [each.topic_id for each in member.word.withheld] == [str(each) for each in many[:64]]
    assert member.word.more_withheld == 6


def newcomer() -> NewMember:
    """Return a member whose assignment went through another router or another connection."""
    member = NewMember(assigned=None)
    member.stage.shared.followers.parted("g", "m")
    return member


def test_a_member_whose_assignment_was_told_elsewhere_is_made_to_say_everything_once() -> None:
    """The router answers 16 once, and the member then sends the full state.

    A router that has just started does not know which topics are withheld, and would not announce such a topic later.
    """
    member = newcomer()
    assert (member.code(), member.asked(NEW_BEAT)) == (16, [])
    member.assigned = [(THERE, 0), (OTHER_THERE, 0)]
    assert (member.code([(HERE, 0)], all_=True), member.told) == (0, [(HERE, 0)])
    assert member.word.withheld == (WITHHELD,)
    assert member.code() == 0


def test_a_member_that_does_not_say_everything_when_it_is_made_to_goes_on() -> None:
    member = newcomer()
    assert [member.code(), member.code(), member.code()] == [16, 0, 0]


def test_nothing_is_kept_of_members_that_the_source_has_not_answered() -> None:
    """Any client may name any number of made-up members."""
    member = newcomer()
    member.codes["coordinator", NEW_BEAT] = 25
    assert [member.code(member_id=f"m-{number}") for number in range(3)] == [16] * 3
    assert [member.code(member_id=f"m-{number}") for number in range(3)] == [25] * 3
    assert member.stage.shared.followers._assigned == {}


def test_a_member_whose_assignment_was_told_elsewhere_is_not_asked_while_its_group_is_promoted() -> None:
    member = newcomer()
    member.gathers()
    assert (member.code(), member.told) == (0, [])


def test_a_promoted_topic_is_read_under_its_id_at_the_target() -> None:
    member = NewMember(copied(serve=Serve.LOCAL))
    member.new_beat()
    assert member.told == OWNS


def test_what_a_member_owns_and_the_source_cannot_name_is_not_given_back_there() -> None:
    """A partition missing in the heartbeat counts as given back, while the member still reads the partition."""
    member = NewMember()
    member.new_beat([(HERE, 0), (ALIEN, 0)])
    assert member.at_source() is None


def test_an_older_source_is_asked_in_its_version_and_names_the_member() -> None:
    member = NewMember()
    member.stage.backend.versions = {NEW_BEAT: 0}
    assert str(member.new_beat([], epoch=0, member_id="").member_id) == "named"
    assert member.last(NEW_BEAT).__version__ == 0
    assert (member.told, member.word.members) == (OWNS, (member_mark("named"),))


@pytest.mark.parametrize(("newest", "pattern"), [(-1, None), (0, "t.*")])
def test_a_member_whose_source_does_not_know_what_it_says_waits(newest: int, pattern: str | None) -> None:
    member = NewMember()
    member.stage.backend.versions = {NEW_BEAT: newest}
    assert member.new_beat([], epoch=0, subscribed_topic_regex=pattern) is None
    member.later(1.5)
    member.stage.session.advance()
    assert code_of(member.read(NEW_BEAT).error_code) == 14
    assert member.asked(NEW_BEAT) == []


def test_a_member_that_leaves_is_named_no_more() -> None:
    member = NewMember()
    member.new_beat(OWNS)
    assert member.code(epoch=-1) == 0
    assert member.word.members == ()


# Descriptions


def test_a_group_is_described_as_its_source_has_it_with_the_targets_ids() -> None:
    member = NewMember()
    answer = member.says(DESCRIBE_NEW, group_ids=("g", "of-target"))
    assert [str(group.group_id) for group in answer.groups] == ["g", "of-target"]
    assert member.asked(DESCRIBE_NEW) == [("target", DESCRIBE_NEW), ("coordinator", DESCRIBE_NEW)]
    topics = answer.groups[0].members[0].assignment.topic_partitions
    assert [(str(topic.topic_name), topic.topic_id) for topic in topics] == [("t", HERE), ("alien", None)]


def test_an_older_source_has_no_group_of_the_new_protocol() -> None:
    """After this answer the client asks for a group of the classic protocol."""
    member = NewMember()
    member.stage.backend.versions = {DESCRIBE_NEW: -1}
    assert code_of(member.says(DESCRIBE_NEW, group_ids=("g",)).groups[0].error_code) == 69


@pytest.mark.parametrize(("kinds", "shown"), [((), True), (("Consumer",), True), (("Classic",), False)])
def test_a_group_of_the_new_protocol_is_listed(kinds: tuple[str, ...], shown: bool) -> None:
    member = NewMember()
    member.state = "Dead"  # The state belongs to the classic protocol.
    answer = member.says(LIST, types_filter=kinds)
    told = {str(group.group_id): (str(group.protocol_type), str(group.group_type)) for group in answer.groups}
    assert told == {"of-target": ("", "")} | ({"g": ("consumer", "consumer")} if shown else {})


# The promote


def test_a_promote_tells_each_member_that_it_owns_nothing_whatever_the_source_says() -> None:
    member = NewMember()
    member.new_beat(OWNS)
    member.gathers()
    for assigned in (None, [(THERE, 0)]):
        member.assigned = assigned
        member.epoch += 1
        answer = member.new_beat()
        assert (member.told, int(answer.member_epoch)) == ([], member.epoch), "commits name the source's epoch"
        assert answer.heartbeat_interval == dt.timedelta(seconds=0.5)
    assert not member.joined
    assert member.commit() == 0
    assert member.asked(COMMIT) == [("coordinator", COMMIT)]


def test_members_go_on_reading_until_all_send_heartbeats_often() -> None:
    """Members keep their partitions until all members send heartbeats often.

    A member that gave back all partitions waits for the others, and brokers have five seconds between two heartbeats.
    """
    member = NewMember()
    member.new_beat(OWNS)
    member.turns(g=GATHERING)
    for seconds in (0.0, 0.5, 4.4):
        member.later(seconds)
        answer = member.new_beat()
        assert (member.told, answer.heartbeat_interval) == (OWNS, dt.timedelta(seconds=0.5))
    member.later(0.1)
    assert (member.code(), member.told) == (0, [])
    member.turns(g=FOLLOWS)
    member.code([], all_=True)
    member.turns(g=GATHERING)
    assert (member.code(), member.told) == (0, OWNS), "another promote begins anew"


def test_members_of_a_group_in_transactions_let_go_before_it_is_frozen_and_classic_ones_go_on() -> None:
    """Members learn that the group is open while they own nothing, and not in the middle of a transaction."""
    member = NewMember()
    member.new_beat(OWNS)
    member.turns(g=replace(GATHERING, in_transactions=True))
    member.later(5)
    member.new_beat()
    assert member.told == []
    member.new_beat([])
    assert member.joined
    assert member.beat() == 0
    member.turns(g=replace(FROZEN, in_transactions=True))
    assert member.joined


def test_members_at_every_router_let_go_at_the_same_time() -> None:
    """The time counts from the promote's begin, which all routers see at once, and not from a first heartbeat here."""
    member = NewMember()
    member.new_beat(OWNS)
    member.turns(g=GATHERING)
    member.later(4.6)
    member.new_beat()
    assert member.told == OWNS
    member.later(0.5)
    member.new_beat()
    assert member.told == []


def test_a_member_has_given_all_back_when_it_says_so_and_is_kept_alive_at_the_source() -> None:
    member = emptied()
    before = len(member.asked(NEW_BEAT))
    assert (member.at_source(), member.code()) == ([], 0)
    assert (len(member.asked(NEW_BEAT)), member.joined) == (before + 1, True)


def test_what_was_said_before_it_was_told_does_not_count() -> None:
    member = NewMember()
    member.new_beat(OWNS)
    member.gathers()
    member.new_beat([])
    assert not member.joined
    member.new_beat([])
    assert member.joined


def test_who_owns_something_again_has_not_given_all_back() -> None:
    member = emptied()
    member.new_beat([(HERE, 1)])
    assert not member.joined


def test_who_owned_nothing_is_made_to_say_so() -> None:
    """A member that owns nothing has no change to report after an empty assignment."""
    member = NewMember(assigned=None)
    member.new_beat()
    member.gathers()
    assert member.code() == 0
    assert member.code() == 0
    member.later(1.1)
    assert member.code() == 16
    member.later(0.2)
    assert member.code([], all_=True) == 0
    assert member.joined


def test_who_was_just_told_of_partitions_is_not_believed_that_it_has_none() -> None:
    """The application may still be receiving the new assignment; meanwhile heartbeats report the former partitions."""
    member = NewMember()
    member.turns(g=GATHERING)
    member.turns(g=FOLLOWS)
    member.later(4.5)
    member.new_beat([], epoch=0)
    assert member.told == OWNS
    member.gathers()
    member.new_beat()
    member.later(1.1)
    member.new_beat([], all_=True)
    assert not member.joined
    member.new_beat(OWNS)
    member.new_beat([])
    assert member.joined


def test_who_never_takes_what_it_was_told_of_is_believed_after_a_while() -> None:
    member = NewMember()
    member.new_beat([], epoch=0)
    member.gathers()
    member.new_beat()
    member.later(11)
    assert member.code() == 16
    member.new_beat([], all_=True)
    assert member.joined


@pytest.mark.parametrize("group", [GATHERING, FROZEN])
def test_who_joins_while_the_group_is_promoted_waits_and_the_source_hears_nothing(group: GroupRoute) -> None:
    member = NewMember(g=group)
    answer = member.new_beat([], epoch=0)
    if group.frozen:
        assert answer is None
        member.later(1.5)
        member.stage.session.advance()
    assert code_of(member.read(NEW_BEAT).error_code) == 14
    assert member.asked(NEW_BEAT) == []
    assert member.joined is not group.frozen


def test_nothing_of_a_frozen_group_reaches_the_source_and_its_members_wait() -> None:
    member = emptied()
    before = len(member.heard)
    member.turns(g=FROZEN)
    assert member.new_beat() is None
    member.later(1.5)
    member.stage.session.advance()
    assert code_of(member.read(NEW_BEAT).error_code) == 14
    assert (len(member.heard), member.joined) == (before, True)


@pytest.mark.parametrize("code", [25, 69])
def test_members_are_strangers_to_the_target_once_the_group_is_open_and_leave_the_source(code: int) -> None:
    """Code 69 means that the group does not exist: Java's consumer and librdkafka end at that code."""
    member = emptied()
    member.turns(g=FROZEN)
    assert member.new_beat() is None
    member.codes["target", NEW_BEAT] = code
    member.heard.clear()
    member.turns(none=FOLLOWS)
    assert code_of(member.read(NEW_BEAT).error_code) == 25
    assert member.asked(NEW_BEAT) == [("coordinator", NEW_BEAT), ("target", NEW_BEAT)]
    left = member.heard[0][2]
    assert (str(left.group_id), str(left.member_id), int(left.member_epoch)) == ("g", "m", -1)
    member.codes.clear()
    member.assigned = [(HERE, 0)]
    assert (member.code([], epoch=0), member.told) == (0, [(HERE, 0)])
    assert member.heard[-1][0] == "target"


@pytest.mark.parametrize(("after", "interval"), [(1, 0.5), (59, 0.5), (61, 5)])
def test_members_of_a_group_that_has_just_opened_go_on_sending_heartbeats_often(after: float, interval: float) -> None:
    """Members need a heartbeat to give partitions back, and another heartbeat to get partitions.

    Meanwhile the members join at the target one by one.
    """
    member = NewMember()
    member.turns(g=GATHERING)
    member.turns()
    member.later(after)
    for epoch in (0, 5):
        answer = member.new_beat([], epoch=epoch)
        assert answer.heartbeat_interval == dt.timedelta(seconds=interval)
    assert member.new_beat([], group_id="other").heartbeat_interval == dt.timedelta(seconds=5)
    member.codes["target", NEW_BEAT] = 110
    assert member.code([]) == 110


def test_who_joins_a_group_that_has_just_opened_and_has_its_first_rebalance_there_tries_again() -> None:
    """Joins with the new protocol get the retriable code 14 while the group has its first rebalance at the target.

    Members of the classic protocol may have come first. Until that rebalance ends, a coordinator fails at members of
    the new protocol, and librdkafka ends at the coordinator's error code (C17).
    """
    member = NewMember()
    member.turns(g=GATHERING)
    member.turns()
    member.codes["target", NEW_BEAT] = -1
    assert member.code([], epoch=0) == 14
    assert member.code([], epoch=5) == -1, "who is a member there already hears what happened"
    assert member.code([], epoch=-1) == -1
    assert code_of(member.new_beat([], epoch=0, group_id="other").error_code) == -1
    member.later(61)
    assert member.code([], epoch=0) == -1, "it is no first rebalance any more"
    member.codes.clear()
    assert member.code([], epoch=0) == 0


def positions_of_a_member(member: NewMember, name: str | None = "m", epoch: int = 5) -> int:
    """Return the error code of an OffsetFetch answer for the group."""
    group = element_type(entity(FETCH, 9, "request"), "groups")
    asked = (blank(group, group_id="g", member_id=name, member_epoch=epoch, topics=None),)
    answer = member.says(FETCH, groups=asked, require_stable=True)
    return code_of(answer.groups[0].error_code)


def test_a_member_that_the_target_does_not_know_yet_is_told_the_positions_once_its_group_is_open() -> None:
    """Applications ask for committed offsets after an aborted transaction, before a heartbeat makes the client join."""
    member = NewMember()
    member.new_beat(OWNS)
    member.turns(g=GATHERING)
    member.turns()
    member.code_of_positions = lambda group: 25 if group.member_id else 0
    assert positions_of_a_member(member) == 0
    asked = member.last(FETCH).groups[0]
    assert (asked.member_id, int(asked.member_epoch)) == (None, -1), "as anybody is who is no member"
    member.later(61)
    assert positions_of_a_member(member) == 25, "by then it is one that was expelled"


@pytest.mark.parametrize("code", [0, 113])
def test_a_member_that_the_target_knows_is_judged_by_its_epoch(code: int) -> None:
    member = NewMember()
    member.turns()
    member.code_of_positions = lambda group: code
    assert positions_of_a_member(member) == code
    assert member.last(FETCH).groups[0].member_id == "m"


def test_a_static_member_leaves_its_place_at_the_source() -> None:
    member = NewMember()
    member.new_beat(OWNS, instance_id="one")
    member.heard.clear()
    member.turns(none=FOLLOWS)
    member.code(instance_id="one")
    left = member.heard[0][2]
    assert (left.instance_id, int(left.member_epoch)) == ("one", -1)


def test_a_group_that_the_target_does_not_have_is_told_of_in_all_other_cases() -> None:
    member = NewMember(none=FOLLOWS)
    member.codes["target", NEW_BEAT] = 69
    assert [member.code(epoch=epoch) for epoch in (-1, 0, 3)] == [69, 69, 25]
    member.codes["target", NEW_BEAT] = 110
    assert member.code() == 110


def test_a_promote_that_is_given_up_gives_members_what_the_source_has_assigned() -> None:
    member = emptied()
    member.turns(g=FROZEN)
    member.turns(g=FOLLOWS)
    assert member.code() == 16, "so that it says everything"
    assert not member.joined
    assert member.code([], all_=True) == 0
    assert member.told == OWNS
    assert member.read(NEW_BEAT).heartbeat_interval == dt.timedelta(seconds=5)
    member.assigned = None
    assert member.code(OWNS) == 0
    assert member.code() == 0


def test_a_second_promote_begins_anew() -> None:
    member = emptied()
    member.turns(g=FOLLOWS)
    member.code()
    member.code([], all_=True)
    member.code(OWNS)
    member.gathers()
    assert not member.joined
    assert (member.code(), member.told) == (0, [])
    member.new_beat([])
    assert member.joined


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen"])
def test_a_second_promote_at_once_finds_members_as_they_are(seen: bool) -> None:
    """The result does not depend on requests of the client between the two promotes."""
    member = emptied()
    member.turns(g=FOLLOWS)
    if seen:
        member.commit()
        assert not member.joined
    member.turns(g=GATHERING)
    assert (member.code(), member.told) == (0, [])
    if seen:
        member.later(1.1)
        assert member.code() == 16
        member.code([], all_=True)
    assert member.joined


def test_a_group_that_holds_from_now_on_keeps_its_members_at_the_source() -> None:
    member = NewMember()
    member.new_beat(OWNS)
    member.heard.clear()
    member.stage._held = ("g",)
    member.turns(none=FOLLOWS)
    assert member.new_beat() is None
    assert member.heard == []


def test_a_client_that_is_gone_has_not_given_anything_back() -> None:
    member = emptied()
    member.stage.session.closed()
    assert not member.joined


def test_a_connection_knows_few_members() -> None:
    member = NewMember()
    member.gathers()
    for number in range(20):
        member.new_beat([], epoch=0, member_id=f"m-{number}")
    assert len(member.word.joined) == 16


def test_members_of_both_protocols_are_promoted_together() -> None:
    member = emptied()
    assert member.join("classic") is None
    assert set(member.word.joined) == {member_mark("m"), member_mark("classic")}
    member.turns(g=FOLLOWS)
    assert not member.word.joined or member.code() == 16
    assert member.word.joined == ()


# Topic ids


def test_ids_of_a_topic_are_known_in_both_directions() -> None:
    ids = TopicIds({"t": copied(), "made": replace(copied("made", OTHER, OTHER_THERE), source_id="")})
    assert (ids.at_target(THERE), ids.at_source(HERE), ids.named("t")) == (HERE, THERE, HERE)
    assert (ids.at_target(OTHER_THERE), ids.at_source(OTHER), ids.named("made")) == (None, None, OTHER)
    assert (ids.at_target(None), ids.at_source(None), ids.named("alien")) == (None, None, None)
    assert ids.tells_any({THERE, ALIEN}) and not ids.tells_any({ALIEN})


# Rollbacks (rule G)

RETURNING = GroupRoute("l", gathering=True, at_target=True)
HERE_OWNS = ((HERE, 0), (HERE, 1))


def returning() -> NewMember:
    """Return a member that has given back all partitions while its group is rolled back."""
    member = NewMember(assigned=HERE_OWNS, g=RETURNING)
    member.new_beat(OWNS)
    assert member.told == OWNS, "all members hear of the rollback at the same time"
    member.later(5)
    member.new_beat()
    assert member.told == []
    member.new_beat([])
    assert member.joined
    return member


def test_a_member_is_named_and_reads_on_before_a_rollback_gathers() -> None:
    member = NewMember(assigned=HERE_OWNS, g=GroupRoute("l", at_target=True))
    member.stage.shared.followers.parted("g", "m")
    assert (member.code(OWNS), member.told) == (0, OWNS)
    assert (member.word.members, member.joined) == ((member_mark("m"),), False)


def test_a_member_gives_everything_back_and_its_heartbeats_reach_the_target_in_the_targets_ids() -> None:
    member = returning()
    assert set(member.asked(NEW_BEAT)) == {("target", NEW_BEAT)}
    assert next(listed(request) for _, key, request in member.heard if key == NEW_BEAT) == OWNS


@pytest.mark.parametrize("code", [69, 25])
def test_a_member_joins_anew_at_the_source_once_its_group_is_back_there(code: int) -> None:
    """A source that has the group's committed offsets alone answers 69, at which clients end."""
    member = returning()
    member.heard.clear()
    member.turns(g=replace(RETURNING, frozen=True))
    member.turns(g=FOLLOWS)
    member.codes["coordinator", NEW_BEAT] = code
    answers = [member.code([], all_=True), member.code([], all_=True)]
    left = [request for where, key, request in member.heard if (where, key) == ("target", NEW_BEAT)]
    assert [int(each.member_epoch) for each in left] == [-1], "the former member leaves the target's group"
    assert 25 in answers
    assert set(answers) <= {16, 25}
    member.codes.clear()
    member.assigned = ((THERE, 0),)
    assert member.code(epoch=0, owned=[]) == 0
    assert member.told == [(HERE, 0)]


def test_a_rollback_that_is_given_up_gives_members_what_the_target_has_assigned() -> None:
    member = returning()
    member.turns(none=FOLLOWS)
    assert member.code() == 16, "so that it says everything"
    assert member.code([], all_=True) == 0
    assert member.told == OWNS
    assert member.code(OWNS) == 0


def test_a_member_that_kept_its_partitions_hears_nothing_of_a_rollback_that_is_given_up() -> None:
    member = NewMember(assigned=HERE_OWNS, g=RETURNING)
    member.new_beat(OWNS)
    member.turns(none=FOLLOWS)
    assert member.code() == 0


@pytest.mark.parametrize("asks", ["member", "nobody"])
def test_positions_are_told_to_a_member_that_does_not_know_yet_that_its_group_is_back(asks: str) -> None:
    member = returning()
    member.turns(g=FOLLOWS)
    member.code_of_positions = lambda group: 25 if group.member_id else 0
    kind = element_type(entity(FETCH, 9, "request"), "groups")
    named = {"member_id": "m", "member_epoch": 5} if asks == "member" else {}
    member.says(FETCH, groups=(blank(kind, group_id="g", **named),))
    for _, then in member.stage.backend.awaited:
        then(True)
    told = [part for topic in member.read(FETCH).groups[0].topics for part in topic.partitions]
    assert [(code_of(part.error_code), int(part.committed_offset)) for part in told] == [(0, 9)]
