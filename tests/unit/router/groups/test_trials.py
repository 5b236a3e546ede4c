"""Trial joins: the router asks the target before a group's promote whether the target would admit the members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.presences import RefusedMember
from kmigrate.router.shared.trial_results import TrialBook
from kmigrate.router.wire.trials import refusal_in
from tests.unit.router.groups.test_handler import GATHERING, JOIN, NEW_BEAT, Member
from tests.unit.router.groups.test_heartbeats import HERE, NewMember

READ_DENIED, NO_ASSIGNOR = 30, 112


def refused(member: Member) -> list[tuple[str, str, str]]:
    """Return the group's refused members, as the router reports them."""
    shared = member.stage.shared
    waiting = shared.table.held_groups | shared.table.followed.keys()
    told = shared.trials.words(waiting, member.stage.edge.clock).get("g", ())
    return [(each.client_id, each.member_id, each.error) for each in told]


def test_a_trial_is_the_members_own_join_under_a_name_that_nobody_has() -> None:
    member = Member()
    member.says(JOIN, group_id="g", member_id="m", group_instance_id="static", protocol_type="consumer")
    (trial,) = member.trials
    assert (trial.group_id, trial.member_id, trial.protocol_type) == ("g", "kmigrate-trial", "consumer")
    assert trial.group_instance_id is None, "the place of a static member stays untouched"
    assert refused(member) == []


def test_a_refused_member_is_told_until_the_target_would_let_it_in() -> None:
    member = Member()
    member.codes["trial", JOIN] = READ_DENIED
    member.join("m")
    assert refused(member) == [("c", "m", "GROUP_AUTHORIZATION_FAILED")]
    member.codes.clear()
    member.stage.edge.clock = 1.0
    assert member.beat() == 0
    assert len(member.trials) == 1, "not at every request"
    member.stage.edge.clock = 2.5
    member.beat()
    assert (len(member.trials), refused(member)) == (2, [])
    member.stage.edge.clock = 100.0
    member.beat()
    assert len(member.trials) == 2, "who would be let in is not tried again"


def test_a_promote_has_every_member_tried_again() -> None:
    member = Member()
    member.join("m")
    member.stage.edge.clock = 50.0
    member.codes["trial", JOIN] = READ_DENIED
    member.turns(g=GATHERING)
    member.stage.edge.clock = 50.1
    member.join("m")
    assert (len(member.trials), refused(member)) == (2, [("c", "m", "GROUP_AUTHORIZATION_FAILED")])


def test_a_trial_of_the_new_protocol_makes_nobody_a_member() -> None:
    member = NewMember()
    member.codes["trial", NEW_BEAT] = NO_ASSIGNOR
    member.new_beat([(HERE, 0)], all_=True, server_assignor="range")
    (trial,) = member.trials
    assert (int(trial.member_epoch), trial.topic_partitions, trial.server_assignor) == (1, (), "range")
    assert trial.subscribed_topic_names == ("t",)
    assert refused(member) == [("c", "m", "UNSUPPORTED_ASSIGNOR")]
    member.codes["trial", NEW_BEAT] = 69
    member.stage.edge.clock = 3.0
    member.new_beat()
    assert (len(member.trials), refused(member)) == (2, [])


def test_a_trial_without_an_answer_is_counted_until_the_client_is_gone() -> None:
    member = Member()
    member.hears = lambda: None  # type: ignore[method-assign]
    member.join("m")
    assert member.stage.shared.group_reports(0.0)["g"].trials == 1
    member.stage.session.closed()
    assert member.stage.shared.group_reports(0.0)["g"].trials == 0


def test_what_a_client_is_refused_counts_no_more_when_it_is_gone() -> None:
    member = Member()
    member.codes["trial", JOIN] = READ_DENIED
    member.join("m")
    member.stage.session.closed()
    assert refused(member) == []


def test_a_held_join_that_the_target_refuses_after_the_promote_is_told_and_said() -> None:
    member = Member()
    member.turns(g=GATHERING)
    assert member.join("m") is None
    member.codes["target", JOIN] = READ_DENIED
    member.turns()
    assert refused(member) == [("c", "m", "GROUP_AUTHORIZATION_FAILED")]
    assert any("the target refuses member c" in line for line in member.stage.backend.said)
    member.codes.clear()
    member.join("")
    assert refused(member) == [], "the target has let the client in"


def test_a_join_that_comes_after_the_promote_is_looked_at_too() -> None:
    member = NewMember()
    member.turns()
    member.codes["target", NEW_BEAT] = NO_ASSIGNOR
    member.new_beat([(HERE, 0)], epoch=5)
    assert refused(member) == [], "a later heartbeat is no join"
    member.new_beat((), epoch=0)
    assert refused(member) == [("c", "m", "UNSUPPORTED_ASSIGNOR")]
    member.stage.edge.clock = 700.0
    assert refused(member) == [], "nobody has asked for ten minutes"


@pytest.mark.parametrize("code", [0, -1, 14, 15, 16, 22, 25, 27, 79, 82, 110, 111, 113])
def test_what_a_member_gets_over_by_itself_is_no_refusal(code: int) -> None:
    assert refusal_in(code, trial=True) == refusal_in(code, trial=False) == ""


def test_a_group_of_another_protocol_refuses_a_join_and_no_trial() -> None:
    assert (refusal_in(69, trial=True), refusal_in(69, trial=False)) == ("", "GROUP_ID_NOT_FOUND")
    assert refusal_in(4711, trial=True) == "ERROR_4711"


def test_so_many_refused_members_of_a_group_are_told_and_no_more() -> None:
    book, one = TrialBook(), RefusedMember("c", "h", "m", "E")
    for number in range(2_000):
        book.asked("g")
        assert book.answered("g", number, replace(one, client_id=f"c{number:04}"))
    assert len(book.words({"g"}, 0.0)["g"]) == 20
    assert sum(len(known) for known in book._before.values()) == 1_000
    assert book.words((), 0.0) == {}
