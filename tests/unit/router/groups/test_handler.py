"""Groups that follow, through a single client connection.

The tests show the requests that reach the source's coordinator, and the effects of a promote.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.members import member_mark
from kmigrate.model.presences import ClientWithoutCredential
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.api import blank, decode_body, element_type, entity, frame_answer, frame_request, is_flexible
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import peek_request, response_body_offset
from kmigrate.router.shared.state import Outcome
from tests.unit.router.router_fakes import Sent, Stage, route

COMMIT, FETCH, FIND, JOIN, BEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 13, 14, 15, 16
DELETE, DELETE_POSITIONS, NEW_BEAT, DESCRIBE_NEW = 42, 47, 68, 69
VERSIONS = {
    COMMIT: 9, FETCH: 9, JOIN: 9, BEAT: 4, LEAVE: 5, SYNC: 5, DESCRIBE: 5, LIST: 5,
    DELETE: 2, DELETE_POSITIONS: 0, NEW_BEAT: 0, DESCRIBE_NEW: 0,
}  # fmt: skip


class Member:
    """A member behind the router: sends a request at a time, and the test plays both coordinators."""

    def __init__(self, *routes: Any, **groups: GroupRoute) -> None:
        self.stage = Stage(*(routes or (route("t", Serve.FORWARD),)))
        self.versions: dict[int, int] = {}
        self.codes: dict[tuple[str, int], int] = {}
        self.heard: list[tuple[str, int, Any]] = []
        self.trials: list[Any] = []
        """Trial joins that reached the target."""
        self.silent: set[int] = set()
        """APIs that the source does not answer."""
        self.state = "Stable"
        self.position = 9
        """Committed offset at the source."""
        self.unstable = False
        """True where an open transaction makes the committed offset unstable."""
        self.member_id = "given"
        self._correlation = 0
        self.turns(**(groups or {"g": GroupRoute("l")}))

    def turns(self, **groups: GroupRoute) -> None:
        self.stage.turn(**groups)
        self.hears()

    def says(self, key: int, **values: Any) -> Any:
        """Send a request, and return the answer, or None while the request waits."""
        version = self.versions.get(key, VERSIONS[key])
        self._correlation += 1
        message = blank(entity(key, version, "request"), **values)
        before = len(self.stage.edge.replies)
        self.stage.session.frame(bytearray(frame_request(message, self._correlation, "c")))
        self.hears()
        return self.read(key) if len(self.stage.edge.replies) > before else None

    def read(self, key: int) -> Any:
        frame = self.stage.edge.replies[-1]
        kind = entity(key, self.versions.get(key, VERSIONS[key]), "response")
        return decode_body(kind, frame, response_body_offset(frame, kind.__flexible__))

    def hears(self) -> None:
        left: list[Sent] = []
        while self.stage.edge.sent:
            sent = self.stage.edge.sent.pop(0)
            if sent.where != "target" and peek_request(sent.frame).api_key in self.silent:
                left.append(sent)
            else:
                self.answer(sent)
        self.stage.edge.sent += left

    def answer(self, sent: Sent) -> None:
        head = peek_request(sent.frame)
        head = peek_request(sent.frame, is_flexible(head.api_key, head.version))
        request = decode_body(entity(head.api_key, head.version, "request"), sent.frame, head.body)
        where = sent.where.split()[0]
        assert sent.done is not None
        kind = entity(head.api_key, head.version, "response")
        if str(getattr(request, "member_id", "")) == "kmigrate-trial":
            assert where == "target"
            self.trials.append(request)
            refused = blank(kind, error_code=self.codes.get(("trial", head.api_key), 25))
            sent.done(Outcome(bytearray(frame_answer(refused, head.correlation_id))))
            return
        self.heard.append((where, head.api_key, request))
        code = self.codes.get((where, head.api_key), 0)
        sent.done(Outcome(bytearray(frame_answer(self._told(head, kind, request, code), head.correlation_id))))

    def _told(self, head: Any, kind: Any, request: Any, code: int) -> Any:
        if head.api_key == JOIN:
            given = str(request.member_id) or self.member_id
            return blank(kind, error_code=code, member_id=given, generation_id=3)
        if head.api_key == COMMIT:
            return _committed(kind, request, code)
        if head.api_key in (FETCH, DESCRIBE):
            names = [str(getattr(group, "group_id", group)) for group in getattr(request, "groups", ())]
            if not names:
                return blank(kind, error_code=code, topics=self._told_positions(kind, code))
            group_type = element_type(kind, "groups")
            fetch = head.api_key == FETCH
            told = {"topics": self._told_positions(group_type)} if fetch else {"group_state": self.state}
            return blank(kind, groups=tuple(blank(group_type, group_id=n, error_code=code, **told) for n in names))
        if head.api_key == DELETE:
            one = element_type(kind, "results")
            return blank(kind, results=tuple(blank(one, group_id=g, error_code=code) for g in request.groups_names))
        if head.api_key == LIST:
            listed = element_type(kind, "groups")
            return blank(kind, error_code=code, groups=tuple(blank(listed, group_id=n) for n in ("g", "of-target")))
        return blank(kind, error_code=code, node_id=2, host="h", port=1)

    def _told_positions(self, kind: Any, code: int = 0) -> Any:
        untold = code or self.unstable
        return _positions(kind, 88 if self.unstable else code, -1 if untold else self.position)

    def asked(self, *keys: int) -> list[tuple[str, int]]:
        return [(where, key) for where, key, _ in self.heard if key in keys]

    def last(self, key: int) -> Any:
        return [request for _, each, request in self.heard if each == key][-1]

    def join(self, member_id: str = "m") -> Any:
        return self.says(JOIN, group_id="g", member_id=member_id, protocol_type="consumer")

    def beat(self) -> int:
        return code_of(self.says(BEAT, group_id="g", generation_id=2, member_id="m").error_code)

    def fetch(self, *groups: str, require_stable: bool = False) -> Any:
        kind = element_type(entity(FETCH, 9, "request"), "groups")
        asked = tuple(blank(kind, group_id=group) for group in groups or ("g",))
        return self.says(FETCH, groups=asked, require_stable=require_stable)

    def commit(self, topic: str = "t", position: int = 7, member_id: str = "m") -> int | None:
        kind = element_type(entity(COMMIT, 9, "request"), "topics")
        part_type = element_type(kind, "partitions")
        part = blank(part_type, partition_index=0, committed_offset=position, committed_leader_epoch=4)
        answer = self.says(
            COMMIT,
            group_id="g",
            generation_id_or_member_epoch=2,
            member_id=member_id,
            topics=(blank(kind, name=topic, partitions=(part,)),),
        )
        return None if answer is None else code_of(answer.topics[0].partitions[0].error_code)

    @property
    def word(self) -> Any:
        return self.stage.shared.group_reports(self.stage.edge.clock)["g"]


def _positions(kind: Any, code: int, offset: int) -> tuple[Any, ...]:
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    position = {"committed_offset": offset, "committed_leader_epoch": 6}
    part = blank(part_type, partition_index=0, error_code=code, **position)
    return (blank(topic_type, name="t", partitions=(part,)),)


def _committed(kind: Any, request: Any, code: int) -> Any:
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    return blank(
        kind,
        topics=tuple(
            blank(topic_type, name=topic.name, partitions=(blank(part_type, partition_index=0, error_code=code),))
            for topic in request.topics
        ),
    )


GATHERING = GroupRoute("l", gathering=True)
FROZEN = GroupRoute("l", gathering=True, frozen=True)


def test_a_member_speaks_to_the_sources_coordinator_which_is_looked_for_once() -> None:
    member = Member()
    assert member.beat() == 0
    assert code_of(member.join().error_code) == 0
    assert member.asked(FIND, BEAT, JOIN) == [("coordinator", FIND), ("coordinator", BEAT), ("coordinator", JOIN)]


@pytest.mark.parametrize("code", [15, 16])
def test_a_coordinator_that_has_moved_is_told_to_the_client_and_looked_for_again(code: int) -> None:
    member = Member()
    member.codes["coordinator", BEAT] = code
    assert member.beat() == code
    member.codes.clear()
    assert member.beat() == 0
    assert member.asked(FIND) == [("coordinator", FIND)] * 2


def test_a_coordinator_that_cannot_be_asked_is_answered_as_one_that_has_moved() -> None:
    member = Member()
    member.silent = {BEAT}
    assert member.says(BEAT, group_id="g", generation_id=2, member_id="m") is None
    (sent,) = member.stage.edge.sent
    assert sent.done is not None
    sent.done(Outcome(None))
    assert code_of(member.read(BEAT).error_code) == 16


def test_a_refused_login_at_the_source_is_noted_with_the_group() -> None:
    member = Member()
    client = ClientWithoutCredential("readers", "c", "h", "l", "old")
    member.stage.shared.missing_credentials.refused(client, 0.0)
    member.silent = {FIND}
    assert member.says(BEAT, group_id="g", generation_id=2, member_id="m") is None
    (sent,) = member.stage.edge.sent
    assert sent.done is not None
    sent.done(Outcome(None, sent=False, refused="no credential"))
    assert code_of(member.read(BEAT).error_code) == 30
    assert member.stage.shared.missing_credentials.words((), {"g"}, 0.0) == (replace(client, groups=("g",)),)


def lose(member: Member, *keys: int) -> None:
    """Lose the open requests for these APIs, because the broker died."""
    sent, member.stage.edge.sent = member.stage.edge.sent, []
    assert [peek_request(each.frame).api_key for each in sent] == list(keys)
    for each in sent:
        assert each.done is not None
        each.done(Outcome(None, sent=False))


def later(member: Member, seconds: float) -> None:
    member.stage.edge.clock += seconds
    member.stage.session.advance()


def committing(*positions: int) -> Member:
    """Return a member whose commits of these positions get no answer."""
    member = Member()
    member.beat()
    member.silent = {COMMIT}
    for position in positions:
        assert member.commit(position=position) is None
    return member


def positions_at_the_source(member: Member) -> list[int]:
    asked = [request for where, key, request in member.heard if (where, key) == ("coordinator", COMMIT)]
    return [int(each.topics[0].partitions[0].committed_offset) for each in asked]


def test_commits_wait_for_a_coordinator_that_died_and_reach_the_next_one_in_their_order() -> None:
    """librdkafka reported each failed commit to the application.

    librdkafka makes no such report while a coordinator is merely away.
    """
    member = committing(7, 8)
    lose(member, COMMIT, COMMIT)
    assert member.commit(position=9) is None
    member.silent = {FIND}
    later(member, 0.3)
    lose(member, FIND)
    member.silent.clear()
    later(member, 0.1)
    assert positions_at_the_source(member) == [], "it is not asked all the time"
    later(member, 0.3)
    member.hears()
    assert positions_at_the_source(member) == [7, 8, 9]
    assert code_of(member.read(COMMIT).topics[0].partitions[0].error_code) == 0
    assert (len(member.stage.edge.replies), member.word.in_flight) == (4, 0)
    assert member.commit() == 0


def finds(member: Member) -> list[Sent]:
    return [each for each in member.stage.edge.sent if peek_request(each.frame).api_key == FIND]


def answer(member: Member, sent: Sent, code: int) -> None:
    member.stage.edge.sent.remove(sent)
    member.codes["coordinator", FIND] = code
    member.answer(sent)
    member.codes.clear()


def test_a_commit_does_not_pass_another_whose_coordinator_was_not_found() -> None:
    """Both commits look for the coordinator: the first answer is 15, the second answer names the coordinator."""
    member = Member()
    member.silent = {FIND}
    assert member.commit(position=7) is None
    assert member.commit(position=8) is None
    answer(member, finds(member)[0], 15)
    for sent in finds(member):
        answer(member, sent, 0)
    member.silent.clear()
    for _ in range(3):
        later(member, 0.3)
        member.hears()
    assert positions_at_the_source(member) == [7, 8]


def test_a_commit_that_came_between_two_that_were_put_off_is_behind_both() -> None:
    member = Member()
    member.silent = {FIND}
    assert member.commit(position=7) is None
    assert member.commit(position=8) is None
    answer(member, finds(member)[0], 15)
    assert member.commit(position=9) is None
    for sent in finds(member):
        answer(member, sent, 15)
    member.silent.clear()
    for _ in range(3):
        later(member, 0.3)
        member.hears()
    assert positions_at_the_source(member) == [7, 8, 9]


def test_commits_whose_time_is_over_are_answered_together_not_one_try_after_the_other() -> None:
    """For a broker whose host vanished, each try takes as long as a connection attempt may."""
    member = committing(7, 8, 9)
    lose(member, COMMIT, COMMIT, COMMIT)
    member.silent = {FIND}
    later(member, 19)
    later(member, 5)
    lose(member, FIND)
    assert (len(member.stage.edge.replies), member.word.in_flight) == (4, 0)


def test_a_commit_that_no_coordinator_takes_is_given_up_in_the_end_or_when_the_group_is_frozen() -> None:
    member = committing(7)
    lose(member, COMMIT)
    member.silent = {FIND}
    later(member, 19)
    later(member, 5)
    lose(member, FIND)
    assert code_of(member.read(COMMIT).topics[0].partitions[0].error_code) == 15
    member.silent = {COMMIT}
    assert member.commit() is None
    lose(member, COMMIT)
    assert member.word.in_flight == 1
    member.turns(g=FROZEN)
    later(member, 1)
    assert code_of(member.read(COMMIT).topics[0].partitions[0].error_code) == 16
    assert (member.word.in_flight, positions_at_the_source(member)) == (0, [])


def test_a_commit_of_a_client_that_is_gone_is_waited_for_no_more() -> None:
    for ends_first in (True, False):
        member = committing(7)
        if ends_first:
            member.stage.session.closed()
        lose(member, COMMIT)
        if not ends_first:
            assert member.word.in_flight == 1
            member.stage.session.closed()
        assert "g" not in member.stage.shared.group_reports(0.0) or member.word.in_flight == 0


def test_a_client_that_the_source_refuses_is_told_so() -> None:
    member = Member()
    member.silent = {FIND}
    member.says(BEAT, group_id="g", generation_id=2, member_id="m")
    (sent,) = member.stage.edge.sent
    assert sent.done is not None
    sent.done(Outcome(None, sent=False, refused="no credential"))
    assert code_of(member.read(BEAT).error_code) == 30


def test_no_leader_epoch_passes_in_either_direction() -> None:
    member = Member()
    assert member.commit() == 0
    (part,) = member.last(COMMIT).topics[0].partitions
    assert (part.committed_offset, part.committed_leader_epoch) == (7, -1)
    assert member.fetch() is None
    ((_, then),) = member.stage.backend.awaited
    then(True)
    (part,) = member.read(FETCH).groups[0].topics[0].partitions
    assert (part.committed_offset, part.committed_leader_epoch) == (9, -1)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("require_stable", [True, False])
def test_a_committed_offset_is_told_also_where_the_copy_has_not_reached_it(copied: bool, require_stable: bool) -> None:
    """The router answers with the committed offset although the copy is behind.

    The client fetches at that offset until the copy arrives. After another answer librdkafka may apply
    auto.offset.reset.
    """
    member = Member()
    assert member.fetch(require_stable=require_stable) is None
    ((positions, then),) = member.stage.backend.awaited
    assert positions == {("t", 0): 9}
    then(copied)
    assert positions_told(member, 9) == [(0, 9)]


@pytest.mark.parametrize(("version", "partitions"), [(1, [(14, -1)]), (3, [(14, -1)]), (4, []), (6, [])])
def test_older_clients_wait_for_the_copy_and_are_then_told_to_ask_again(
    version: int, partitions: list[tuple[int, int]]
) -> None:
    """Only aiokafka's versions carry the error at partitions: librdkafka forgets a partition that has an error."""
    member = Member()
    member.versions[FETCH] = version
    assert asks(member, version) is None
    ((_, then),) = member.stage.backend.awaited
    then(False)
    assert positions_told(member, version) == partitions
    assert version < 2 or code_of(member.read(FETCH).error_code) == 14


def positions_told(member: Member, version: int) -> list[tuple[int, int]]:
    """Return error and committed offset of each partition in the newest answer."""
    told = member.read(FETCH)
    topics = (told.groups[0] if version > 7 else told).topics
    return [(code_of(part.error_code), int(part.committed_offset)) for topic in topics for part in topic.partitions]


def test_older_clients_are_told_at_each_partition_that_a_coordinator_refuses_the_whole_question() -> None:
    """The error of a whole OffsetFetch answer is repeated at each partition.

    Some libraries ignore the code of the whole answer, and would take an answer without partitions for "no committed
    offset".
    """
    member = Member()
    member.versions[FETCH] = 3
    member.codes["coordinator", FETCH] = 30
    kind = element_type(entity(FETCH, 3, "request"), "topics")
    answer = member.says(FETCH, group_id="g", topics=(blank(kind, name="t", partition_indexes=(4,)),))
    (part,) = answer.topics[0].partitions
    assert (part.partition_index, part.committed_offset, code_of(part.error_code)) == (4, -1, 30)
    assert code_of(answer.error_code) == 30


@pytest.mark.parametrize("code", [15, 16])
@pytest.mark.parametrize("version", [1, 3, 9])
def test_positions_are_asked_for_again_while_their_coordinator_moves(version: int, code: int) -> None:
    """librdkafka takes 15 and 16 as final, and reads nothing until the next rebalance."""
    member = Member()
    member.versions[FETCH] = version
    member.codes["coordinator", FETCH] = code
    assert asks(member, version) is None
    later(member, 0.1)
    member.hears()
    assert member.asked(FETCH) == [("coordinator", FETCH)], "it is not asked all the time"
    member.codes.clear()
    later(member, 0.2)
    member.hears()
    ((_, then),) = member.stage.backend.awaited
    then(True)
    told = member.read(FETCH)
    (part,) = (told.groups[0] if version == 9 else told).topics[0].partitions
    assert (part.committed_offset, code_of(part.error_code)) == (9, 0)
    assert member.asked(FIND) == [("coordinator", FIND)] * 2


def asks(member: Member, version: int) -> Any:
    if version == 9:
        return member.fetch()
    kind = element_type(entity(FETCH, version, "request"), "topics")
    return member.says(FETCH, group_id="g", topics=(blank(kind, name="t", partition_indexes=(4,)),))


def test_who_asks_for_positions_that_nobody_can_tell_is_told_to_come_again() -> None:
    member = Member()
    member.beat()
    member.silent = {FETCH, FIND}
    assert member.fetch() is None
    lose(member, FETCH)
    later(member, 19)
    later(member, 5)
    lose(member, FIND)
    assert code_of(member.read(FETCH).groups[0].error_code) == 14
    assert member.fetch() is None
    lose(member, FIND)
    member.turns(g=FROZEN)
    later(member, 1)
    assert (len(member.stage.edge.replies), member.stage.edge.sent) == (3, []), "nothing of it reaches the source"
    assert code_of(member.read(FETCH).groups[0].error_code) == 14


def test_positions_are_not_asked_for_again_for_a_client_that_is_gone() -> None:
    member = Member()
    member.codes["coordinator", FETCH] = 16
    assert member.fetch() is None
    member.stage.session.closed()
    later(member, 1)
    assert member.stage.edge.sent == []


UNSTABLE = (88, -1000)
"""The answer after which every client asks again:

librdkafka takes offset -1 for "no committed offset", -1000 for "ask".
"""


@pytest.mark.parametrize("version", [7, 8, 9])
def test_who_cannot_be_told_a_position_asks_again_for_each_partition(version: int) -> None:
    member = Member()
    member.versions[FETCH] = version
    member.silent = {FIND}
    assert names(member, version) is None
    lose(member, FIND)
    member.turns(g=FROZEN)
    later(member, 1)
    assert positions_told(member, version) == [UNSTABLE]
    answer = member.read(FETCH)
    assert code_of(getattr(answer.groups[0] if version > 7 else answer, "error_code", 0)) == 0


def names(member: Member, version: int) -> Any:
    """Send an OffsetFetch request for a partition, by the topic's name."""
    request = entity(FETCH, version, "request")
    group_type = request if version < 8 else element_type(request, "groups")
    topics = (blank(element_type(group_type, "topics"), name="t", partition_indexes=(0,)),)
    if version < 8:
        return member.says(FETCH, group_id="g", topics=topics)
    return member.says(FETCH, groups=(blank(group_type, group_id="g", topics=topics),))


@pytest.mark.parametrize("code", [14, 88])
def test_a_source_that_cannot_tell_a_position_yet_is_asked_again(code: int) -> None:
    member = Member()
    member.versions[FETCH] = 7
    member.codes["coordinator", FETCH] = code
    assert names(member, 7) is None
    member.codes.clear()
    later(member, 0.3)
    member.hears()
    ((_, then),) = member.stage.backend.awaited
    then(True)
    assert positions_told(member, 7) == [(0, 9)]


def test_a_position_that_a_transaction_keeps_back_for_long_is_not_told_as_none() -> None:
    member = Member()
    member.versions[FETCH] = 7
    member.unstable = True
    assert names(member, 7) is None
    for _ in range(3):
        later(member, 10)
        member.hears()
    assert positions_told(member, 7) == [UNSTABLE]


def untold() -> Member:
    """Return a member that did not get the committed offset 9, because the copy is behind."""
    member = Member()
    member.versions[FETCH] = 3
    assert names(member, 3) is None
    member.stage.backend.awaited.pop()[1](False)
    return member


def test_a_commit_that_goes_back_is_refused_to_who_was_not_told_the_position() -> None:
    member = untold()
    assert member.commit(position=8) == 22
    assert (positions_at_the_source(member), member.word.in_flight) == ([], 0)
    assert member.stage.shared.pending_positions.refused == 1
    (said,) = member.stage.backend.said
    assert "t-0 to 8 from 9" in said
    assert member.commit(position=8) == 22, "and again"
    assert member.commit(position=9) == 0
    assert positions_at_the_source(member) == [9]


def test_a_member_of_the_new_protocol_is_told_that_it_is_none_where_its_commit_goes_back() -> None:
    member = untold()
    member.says(NEW_BEAT, group_id="g", member_id="m", member_epoch=2)
    assert member.commit(position=8) == 25


def test_who_was_told_the_position_or_never_asked_may_commit_any_other() -> None:
    """An application may read again on purpose, or from a position of the application's choice."""
    member = untold()
    assert names(member, 3) is None
    member.stage.backend.awaited.pop()[1](True)
    assert member.commit(position=2) == 0
    never_asked = Member()
    assert never_asked.commit(position=2) == 0
    assert [positions_at_the_source(each) for each in (member, never_asked)] == [[2], [2]]


def test_a_reset_by_an_operator_is_no_commit_that_goes_back() -> None:
    member = untold()
    member.position = 5
    assert member.commit(position=6) == 0
    tool = Member()
    tool.stage.shared.pending_positions.left_out("g", {("t", 0)}, 0, 0.0)
    assert tool.commit(position=2, member_id="") == 0
    assert [positions_at_the_source(each) for each in (member, tool)] == [[6], [2]]


def test_a_position_that_is_there_no_more_keeps_no_commit_back() -> None:
    member = untold()
    member.position = -1
    assert member.commit(position=0) == 0


def test_a_client_without_membership_answers_for_what_it_was_not_told_itself() -> None:
    assert untold().commit(position=8, member_id="") == 22


def test_no_commit_passes_one_that_is_still_compared() -> None:
    member = untold()
    member.silent = {FETCH}
    assert member.commit(position=9) is None
    assert member.commit(position=10) is None
    assert positions_at_the_source(member) == []
    member.silent.clear()
    member.hears()
    assert positions_at_the_source(member) == [9, 10]
    assert member.word.in_flight == 0


def test_a_commit_that_cannot_be_compared_waits_for_the_coordinator() -> None:
    member = untold()
    member.silent = {FETCH}
    assert member.commit(position=9) is None
    lose(member, FETCH)
    member.silent.clear()
    later(member, 0.3)
    member.hears()
    assert positions_at_the_source(member) == [9]


def test_positions_of_a_topic_whose_offsets_differ_are_neither_told_nor_taken() -> None:
    member = Member(replace(route("t", Serve.FORWARD), mapped=True))
    assert member.commit() == 14
    assert code_of(member.fetch().groups[0].error_code) == 14
    assert member.asked(COMMIT) == []


def test_several_groups_in_one_request_are_each_asked_about_where_they_are() -> None:
    member = Member()
    answer = member.says(DESCRIBE, groups=("g", "other", "third"))
    assert [str(group.group_id) for group in answer.groups] == ["g", "other", "third"]
    asked = {where: list(map(str, request.groups)) for where, key, request in member.heard if key == DESCRIBE}
    assert asked == {"coordinator": ["g"], "target": ["other", "third"]}


def test_a_group_that_is_named_again_and_again_is_asked_about_once() -> None:
    """Before, a request that named a group a thousand times made the router ask the source a thousand times."""
    member = Member()
    names = ["g", "other", "g", "other", "g"]
    answer = member.says(DESCRIBE, groups=tuple(names))
    assert [str(group.group_id) for group in answer.groups] == names
    asked = [(where, list(map(str, request.groups))) for where, key, request in member.heard if key == DESCRIBE]
    assert sorted(asked) == [("coordinator", ["g"]), ("target", ["other"])]


@pytest.mark.parametrize(("key", "values"), [(LIST, {}), (DESCRIBE, {"groups": ("g", "k")})])
def test_questions_about_all_that_follow_are_asked_for_one_request_of_a_connection_at_a_time(
    key: int, values: dict[str, Any]
) -> None:
    """Each request may cover thousands of groups:

    a hundred such requests, of 20 bytes each, would cause half a million questions.
    """
    member = Member(g=GroupRoute("l"), k=GroupRoute("l"))
    member.silent = {DESCRIBE}
    for _ in range(3):
        assert member.says(key, **values) is None

    def questions() -> int:
        return sum(peek_request(sent.frame).api_key == DESCRIBE for sent in member.stage.edge.sent)

    for answered in range(1, 4):
        assert questions() == 2
        waiting, member.stage.edge.sent = member.stage.edge.sent, []
        for sent in waiting:
            member.answer(sent)
        member.hears()
        assert len(member.stage.edge.replies) == answered
    assert questions() == 0


def test_positions_of_a_group_that_is_named_twice_are_asked_of_an_older_source_too() -> None:
    member = Member()
    member.stage.backend.versions[FETCH] = 7
    member.fetch("g", "g")
    assert [str(request.group_id) for _, key, request in member.heard if key == FETCH] == ["g"]


def test_a_group_that_follows_is_deleted_where_it_is() -> None:
    member = Member()
    member.codes[("coordinator", DELETE)] = 68
    answer = member.says(DELETE, groups_names=("other", "g"))
    assert [(str(group.group_id), code_of(group.error_code)) for group in answer.results] == [("other", 0), ("g", 68)]
    asked = {where: list(map(str, request.groups_names)) for where, key, request in member.heard if key == DELETE}
    assert asked == {"coordinator": ["g"], "target": ["other"]}


@pytest.mark.parametrize(("key", "version"), [(DELETE, 0), (DELETE, 2), (DELETE_POSITIONS, 0)])
def test_nothing_is_deleted_while_positions_are_carried_over(key: int, version: int) -> None:
    member = Member()
    member.turns(g=FROZEN)
    member.versions[key] = version
    answer = member.says(key, groups_names=("g", "other"), group_id="g")
    assert {code_of(each.error_code) for each in getattr(answer, "results", (answer,))} == {14}
    member.turns()
    assert member.asked(key) == [], "it would be there before the members, who keep the positions"
    assert member.stage.shared.waiting_groups.waiting({"g"}, 0.0) == (), "who deletes a group is no member that waits"


def test_a_coordinator_that_has_moved_is_looked_for_again_also_where_one_word_is_about_several_groups() -> None:
    member = Member()
    member.codes[("coordinator", DELETE)] = 16
    member.says(DELETE, groups_names=("g",))
    member.says(DELETE, groups_names=("g",))
    assert member.asked(FIND) == [("coordinator", FIND)] * 2


def _listed(member: Member, **filters: Any) -> list[tuple[str, str]]:
    return [(str(group.group_id), str(group.group_state)) for group in member.says(LIST, **filters).groups]


def test_groups_that_follow_are_listed_as_their_source_has_them_by_one_broker_alone() -> None:
    member = Member()
    member.stage.shared.book.addresses[2] = ("router", 9002)
    assert _listed(member) == [("of-target", ""), ("g", "Stable")]
    member.stage.session.broker = None
    assert _listed(member) == [("of-target", ""), ("g", "Stable")]
    member.stage.session.broker = 2
    assert _listed(member) == [("of-target", "")]
    assert member.asked(DESCRIBE) == [("coordinator", DESCRIBE)] * 2


@pytest.mark.parametrize(
    ("filters", "listed"),
    [
        ({"states_filter": ("stable",)}, True),
        ({"states_filter": ("Empty",)}, False),
        ({"types_filter": ("Classic",)}, True),
        ({"types_filter": ("consumer",)}, False),
    ],
)
def test_filters_of_a_list_hold_for_groups_that_follow(filters: dict[str, tuple[str, ...]], listed: bool) -> None:
    assert (("g", "Stable") in _listed(Member(), **filters)) is listed


def test_a_group_that_its_source_does_not_have_or_does_not_show_is_not_listed() -> None:
    member = Member()
    member.state = "Dead"
    assert _listed(member) == [("of-target", "")]
    member.state, member.codes = "Stable", {("coordinator", DESCRIBE): 30}
    assert _listed(member) == [("of-target", "")]


def test_a_list_that_would_be_a_half_truth_is_an_error() -> None:
    member = Member()
    member.codes = {("coordinator", DESCRIBE): 16}
    answer = member.says(LIST)
    assert (code_of(answer.error_code), answer.groups) == (14, ())


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(version: int) -> None:
    member = Member()
    member.versions = {LIST: version}
    assert [str(group.group_id) for group in member.says(LIST).groups] == ["of-target", "g"]


def test_an_older_source_is_asked_in_a_version_that_it_speaks() -> None:
    member = Member()
    member.stage.backend.versions = {JOIN: 5, FETCH: 7}
    assert str(member.join().member_id) == "m"
    assert member.last(JOIN).__version__ == 5
    assert member.fetch() is None
    ((positions, then),) = member.stage.backend.awaited
    then(True)
    assert positions == {("t", 0): 9}
    assert member.last(FETCH).__version__ == 7
    assert [str(group.group_id) for group in member.read(FETCH).groups] == ["g"]


@pytest.mark.parametrize("group", [GroupRoute("l"), GroupRoute("l", gathering=True), GroupRoute("l", frozen=True)])
def test_a_member_whose_protocol_the_source_does_not_know_makes_no_second_group(group: GroupRoute) -> None:
    """The member waits, because a join at the target would make a second group.

    There the member would get every partition, beside the members of the source's group.
    """
    member = Member(g=group)
    member.stage.backend.versions = {NEW_BEAT: -1}
    asked = {"group_id": "g", "member_id": "new", "member_epoch": 0, "subscribed_topic_names": ("t",)}
    assert member.says(NEW_BEAT, **asked) is None
    member.stage.edge.clock += 1.5
    member.stage.session.advance()
    assert code_of(member.read(NEW_BEAT).error_code) == 14
    assert member.heard == []
    member.turns()
    assert code_of(member.says(NEW_BEAT, **asked).error_code) == 0
    assert member.asked(NEW_BEAT) == [("target", NEW_BEAT)]


def test_a_router_names_its_members_until_they_leave() -> None:
    member = Member()
    member.join("")
    assert member.word.members == (member_mark("given"),)
    member.beat()
    assert member.word.members == (member_mark("given"), member_mark("m"))
    kind = element_type(entity(LEAVE, 5, "request"), "members")
    member.says(LEAVE, group_id="g", members=(blank(kind, member_id="m"),))
    assert member.word.members == (member_mark("given"),)


@pytest.mark.parametrize("code", [16, 25, 30])
def test_who_may_nothing_at_a_group_is_no_member_of_it(code: int) -> None:
    """A router names a bounded number of members: made-up members would push out the true members."""
    member = Member()
    member.codes = dict.fromkeys((("coordinator", key) for key in (BEAT, JOIN, COMMIT, SYNC)), code)
    member.beat()
    member.join()
    member.commit()
    member.says(SYNC, group_id="g", generation_id=2, member_id="m")
    assert member.word.members == ()


def test_who_is_told_that_his_group_rebalances_is_a_member() -> None:
    member = Member()
    member.codes["coordinator", BEAT] = 27
    member.beat()
    assert member.word.members == (member_mark("m"),)


def test_who_joins_anew_is_a_member_until_the_source_says_otherwise() -> None:
    """The router counts a member from the join request on.

    The answer to a join may take as long as the slowest member, and at a promote the router does not ask the source.
    """
    member = Member()
    member.silent = {JOIN}
    assert member.join() is None
    assert member.word.members == (member_mark("m"),)
    member.silent, member.codes["coordinator", JOIN] = set(), 25
    member.hears()
    assert member.word.members == ()


def test_nobody_is_forgotten_by_the_word_of_who_may_nothing() -> None:
    member = Member()
    member.beat()
    member.codes["coordinator", LEAVE] = 30
    kind = element_type(entity(LEAVE, 5, "request"), "members")
    member.says(LEAVE, group_id="g", members=(blank(kind, member_id="m"),))
    assert member.word.members == (member_mark("m"),)


def test_a_member_that_died_without_a_word_is_forgotten_when_no_session_lasts_so_long() -> None:
    member = Member()
    for minute, who in ((0, "killed"), (0, "m"), (10, "m"), (20, "new"), (29, "new")):
        member.stage.edge.clock = minute * 60.0
        member.says(BEAT, group_id="g", generation_id=1, member_id=who)
    assert member.word.members == tuple(map(member_mark, ("killed", "m", "new")))
    member.stage.edge.clock = 31 * 60.0
    member.says(BEAT, group_id="g", generation_id=1, member_id="new")
    assert member.word.members == tuple(map(member_mark, ("m", "new")))


# The promote


def test_a_promote_is_a_rebalance_to_the_members_and_commits_still_reach_the_source() -> None:
    member = Member()
    member.turns(g=GATHERING)
    assert member.beat() == 27
    assert member.commit() == 0
    assert member.asked(COMMIT) == [("coordinator", COMMIT)]


def test_who_joins_while_the_group_is_promoted_is_held_and_kept_alive_at_the_source() -> None:
    member = Member()
    member.beat()
    member.turns(g=GATHERING)
    assert member.join() is None
    assert member.word.joined == (member_mark("m"),)
    assert member.asked(JOIN) == []
    beats = len(member.asked(BEAT))
    member.stage.edge.clock += 1.5
    member.stage.session.advance()
    member.hears()
    assert len(member.asked(BEAT)) == beats + 1
    assert (member.last(BEAT).generation_id, str(member.last(BEAT).member_id)) == (2, "m")


def test_who_has_only_joined_is_kept_alive_by_the_generation_that_the_source_gave_it() -> None:
    member = Member()
    member.join()
    member.turns(g=GATHERING)
    member.says(SYNC, group_id="g", generation_id=3, member_id="m")
    assert member.join() is None
    assert (member.last(BEAT).generation_id, str(member.last(BEAT).member_id)) == (3, "m")


def test_a_connection_remembers_the_generations_of_few_members_and_of_none_that_is_made_up() -> None:
    member = Member()
    for number in range(100):
        member.says(BEAT, group_id="g", generation_id=1, member_id=f"given-{number}")
    known = len(member.stage.session._groups._coordinator.generations)
    assert 0 < known < 20
    member.codes["coordinator", BEAT] = 25
    member.says(BEAT, group_id="g", generation_id=1, member_id="made-up")
    assert ("g", "made-up") not in member.stage.session._groups._coordinator.generations


def test_a_rebalance_that_is_under_way_is_begun_again() -> None:
    member = Member()
    member.silent = {SYNC}
    assert member.says(SYNC, group_id="g", generation_id=2, member_id="m") is None
    member.turns(g=GATHERING)
    assert code_of(member.read(SYNC).error_code) == 27


def test_a_join_that_was_under_way_is_held_with_its_answer() -> None:
    member = Member()
    member.silent = {JOIN}
    assert member.join() is None
    member.turns(g=GATHERING)
    member.silent.clear()
    member.hears()
    assert member.stage.edge.replies == []
    assert member.word.joined == (member_mark("m"),)
    member.turns(g=GroupRoute("l"))
    assert member.read(JOIN).generation_id == 3
    assert member.word.joined == ()


def test_a_member_without_an_id_whose_join_was_under_way_has_joined_under_the_one_that_it_is_given() -> None:
    """A join without a member id counts under the id from the answer.

    Static members and members of older libraries join without an id; the source's group knows the id from the answer.
    """
    member = Member()
    member.silent = {JOIN}
    assert member.join("") is None
    member.turns(g=GATHERING)
    member.silent.clear()
    member.hears()
    assert member.stage.edge.replies == []
    assert member.word.joined == (member_mark("given"),)
    member.stage.edge.clock += 1.5
    member.stage.session.advance()
    member.hears()
    assert (member.last(BEAT).generation_id, str(member.last(BEAT).member_id)) == (3, "given")
    member.turns(g=GroupRoute("l"))
    assert str(member.read(JOIN).member_id) == "given"
    assert member.word.joined == ()


def test_a_join_under_way_of_a_group_that_holds_from_now_on_makes_no_group_on_the_target() -> None:
    member = Member()
    member.silent = {JOIN}
    assert member.join() is None
    member.stage._held = ("g",)
    member.turns()
    assert code_of(member.read(JOIN).error_code) == 14
    member.silent.clear()
    member.hears()
    assert member.asked(JOIN) == [("coordinator", JOIN)]
    assert len(member.stage.edge.replies) == 1


def test_nothing_of_a_frozen_group_reaches_the_source() -> None:
    member = Member()
    member.beat()
    member.turns(g=FROZEN)
    assert member.join() is None
    assert member.commit() is None
    assert member.asked(JOIN, COMMIT) == []


def test_a_held_join_is_a_new_one_on_the_target_once_the_group_opens() -> None:
    member = Member()
    member.beat()
    member.turns(g=GATHERING)
    member.join()
    member.turns(g=FROZEN)
    member.turns()
    assert str(member.last(JOIN).member_id) == ""
    assert member.asked(JOIN, LEAVE) == [("coordinator", LEAVE), ("target", JOIN)]
    assert str(member.read(JOIN).member_id) == "given"


def test_the_target_names_a_new_member_before_it_takes_him() -> None:
    member = Member()
    member.turns(g=GATHERING)
    member.join()
    member.codes["target", JOIN] = 79
    member.stage.turn()
    sent = [each for each in member.stage.edge.sent if each.where == "target"]
    member.stage.edge.sent.clear()
    member.answer(sent[0])
    member.codes.clear()
    member.hears()
    assert [str(request.member_id) for _, key, request in member.heard if key == JOIN] == ["", "given"]
    assert code_of(member.read(JOIN).error_code) == 0


def test_a_join_of_a_promote_that_is_given_up_goes_to_the_source() -> None:
    member = Member()
    member.turns(g=GATHERING)
    assert member.join() is None
    member.turns(g=GroupRoute("l"))
    assert member.asked(JOIN) == [("coordinator", JOIN)]
    assert str(member.read(JOIN).member_id) == "m"


def test_a_commit_on_its_way_is_told_of_and_its_end_at_once_under_a_freeze() -> None:
    member = Member()
    member.silent = {COMMIT}
    assert member.commit() is None
    assert member.word.in_flight == 1
    member.turns(g=FROZEN)
    drains = member.stage.backend.drains
    member.silent.clear()
    member.hears()
    assert (member.word.in_flight, member.stage.backend.drains) == (0, drains + 1)


def test_a_client_that_is_gone_has_not_joined() -> None:
    member = Member()
    member.turns(g=GATHERING)
    member.join()
    member.stage.session.closed()
    assert member.word.joined == ()


# Rollbacks (rule H)

RETURNING = GroupRoute("l", gathering=True, at_target=True)
"""The route of a promoted group that is rolled back."""


NAMING = GroupRoute("l", at_target=True)
"""The route of such a group before its members have to join anew."""


def test_members_are_named_before_a_rollback_disturbs_them() -> None:
    member = Member(g=NAMING)
    assert (member.beat(), member.commit()) == (0, 0)
    assert str(member.join().member_id) == "m"
    assert member.asked(BEAT, COMMIT, JOIN) == [("target", BEAT), ("target", COMMIT), ("target", JOIN)]
    assert (member.word.members, member.word.joined) == ((member_mark("m"),), ())


def test_members_that_commit_in_transactions_are_not_disturbed_before_the_freeze() -> None:
    member = Member(g=replace(RETURNING, in_transactions=True))
    assert (member.beat(), member.commit()) == (0, 0)
    assert str(member.join().member_id) == "m"
    assert member.asked(BEAT, COMMIT, JOIN) == [("target", BEAT), ("target", COMMIT), ("target", JOIN)]


def test_a_rollback_is_a_rebalance_to_the_members_and_commits_still_reach_the_target() -> None:
    member = Member(g=RETURNING)
    assert member.beat() == 27
    assert member.commit() == 0
    assert member.asked(BEAT, COMMIT) == [("target", BEAT), ("target", COMMIT)]
    assert member.word.members == (member_mark("m"),)
    (part,) = member.last(COMMIT).topics[0].partitions
    assert part.committed_leader_epoch == 4, "the epoch is the target's own"


def test_who_joins_while_the_group_is_rolled_back_is_held_and_kept_alive_at_the_target() -> None:
    member = Member(g=RETURNING)
    member.beat()
    assert member.join() is None
    assert member.word.joined == (member_mark("m"),)
    member.heard.clear()
    later(member, 1.1)
    member.hears()
    assert member.asked(BEAT, JOIN) == [("target", BEAT)]
    assert (member.last(BEAT).member_id, int(member.last(BEAT).generation_id)) == ("m", 2)


def test_positions_are_told_by_the_target_while_the_group_is_rolled_back_whatever_the_offsets() -> None:
    """A topic with mapped offsets: the committed offsets are the target's, so nothing has to be translated."""
    member = Member(replace(route("t", Serve.FORWARD), mapped=True), g=RETURNING)
    assert [(code_of(p.error_code), int(p.committed_offset)) for p in _told_parts(member.fetch())] == [(0, 9)]
    assert member.commit() == 0
    assert member.asked(FETCH, COMMIT) == [("target", FETCH), ("target", COMMIT)]


def _told_parts(answered: Any) -> list[Any]:
    return [part for topic in answered.groups[0].topics for part in topic.partitions]


def test_a_held_join_is_a_new_one_on_the_source_once_the_group_is_back_there() -> None:
    member = Member(g=RETURNING)
    member.beat()
    assert member.join() is None
    member.turns(g=replace(RETURNING, frozen=True))
    assert member.stage.edge.replies and member.asked(JOIN) == []
    member.codes["coordinator", JOIN] = 79
    member.heard.clear()
    member.turns(g=GroupRoute("l"))
    assert [(where, key) for where, key in member.asked(JOIN, LEAVE)] == [
        ("target", LEAVE),
        ("coordinator", JOIN),
        ("coordinator", JOIN),
    ]
    ids = [str(request.member_id) for _, key, request in member.heard if key == JOIN]
    assert ids == ["", "given"], "the source names the new member, and the router joins with that id at once"
    assert member.last(LEAVE).member_id == "m"


def test_the_answer_of_the_source_tells_the_member_its_new_id() -> None:
    member = Member(g=RETURNING)
    member.beat()
    member.join()
    member.turns(g=GroupRoute("l"))
    answered = member.read(JOIN)
    assert (code_of(answered.error_code), str(answered.member_id)) == (0, "given")
    assert member.word.joined == ()
    assert member.commit(member_id="given") == 0
    assert member.asked(COMMIT) == [("coordinator", COMMIT)]


def test_a_join_of_a_rollback_that_is_given_up_goes_to_the_target_as_it_is() -> None:
    member = Member(g=RETURNING)
    member.beat()
    assert member.join() is None
    member.turns(none=GroupRoute("l"))
    assert member.asked(JOIN) == [("target", JOIN)]
    assert str(member.last(JOIN).member_id) == "m"


def test_a_member_of_a_group_that_holds_after_its_rollback_waits_and_leaves_the_targets_group() -> None:
    member = Member(g=RETURNING)
    member.beat()
    assert member.join() is None
    member.stage._held = ("g",)
    member.turns(none=GroupRoute("l"))
    assert code_of(member.read(JOIN).error_code) == 14
    assert member.asked(JOIN, LEAVE) == [("target", LEAVE)]


def test_nothing_of_a_group_that_is_frozen_for_its_rollback_reaches_the_target() -> None:
    member = Member(g=RETURNING)
    member.beat()
    member.turns(g=replace(RETURNING, frozen=True))
    member.heard.clear()
    assert member.commit() is None
    assert member.heard == []


def test_a_commit_to_the_target_is_in_flight_until_its_fate_is_known_also_after_the_client_is_gone() -> None:
    member = Member(g=RETURNING)
    sent = _commit_on_its_way(member)
    assert member.word.in_flight == 1
    member.stage.session.closed()
    assert member.stage.shared.group_reports(0.0)["g"].in_flight == 1
    assert sent.done is not None
    sent.done(Outcome(None))
    assert member.stage.shared.group_reports(0.0)["g"].in_flight == 0


def _commit_on_its_way(member: Member) -> Sent:
    """Send a commit that the target has yet to answer."""
    hears, member.hears = member.hears, lambda: None  # type: ignore[method-assign]
    assert member.commit() is None
    member.hears = hears  # type: ignore[method-assign]
    (sent,) = member.stage.edge.sent
    assert sent.where == "target"
    return sent


def test_a_group_that_is_rolled_back_is_listed_as_the_target_has_it() -> None:
    member = Member(g=RETURNING)
    listed = member.says(LIST)
    assert [str(group.group_id) for group in listed.groups] == ["g", "of-target"]
    assert member.asked(DESCRIBE) == []


@pytest.mark.parametrize("mode", ["follow", "hold"])
def test_no_trial_join_is_made_while_a_group_is_rolled_back_nor_just_afterwards(mode: str) -> None:
    """The target's group may still have members, and a group of the new protocol would take the trial as another."""
    member = Member(g=RETURNING)
    member.join()
    later(member, 3)
    if mode == "hold":
        member.stage._held = ("g",)
    member.turns(**{"g" if mode == "follow" else "none": GroupRoute("l")})
    for _ in range(3):
        member.join()
        later(member, 18)
    assert member.trials == []
    later(member, 7)
    member.join()
    member.hears()
    assert len(member.trials) == 1
