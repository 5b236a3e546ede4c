"""A group is not promoted while the target would refuse some of its members, before and during the promote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase
from kmigrate.model.presences import JoinTerms, RefusedMember, RouterPresence
from kmigrate.model.records import GroupRecord
from kmigrate.router.shared.session_timeouts import SessionTimeouts
from kmigrate.workflow.groups.admission import (
    admission_findings,
    join_terms_of,
    refuse_after_trials,
    refused_member_findings,
    refused_members,
    refused_sentence,
    refused_way_on,
)
from tests.fakes.state_log import MemoryLog

FOLLOWS = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
HOLDS = replace(FOLLOWS, mode=GroupMode.HOLD)
SLOW = JoinTerms("slow", 600_000)
TARGET = {
    "group.max.session.timeout.ms": ("60000",),
    "group.min.session.timeout.ms": ("6000",),
    "group.max.size": ("2",),
}


@pytest.mark.parametrize("terms", [SLOW, JoinTerms("slow", 5_999)], ids=["longer", "shorter"])
def test_a_session_timeout_beyond_the_targets_limits_refuses_the_promote(terms: JoinTerms) -> None:
    (finding,) = admission_findings(FOLLOWS, [terms, JoinTerms("fine", 45_000)], ["slow", "fine"], TARGET)
    assert (finding.level, finding.ref) == ("refuse", "session-timeout-refused")
    assert "member slow of group g" in finding.what


def test_a_client_that_has_left_the_group_is_not_held_against_it() -> None:
    assert admission_findings(FOLLOWS, [SLOW], ["other"], TARGET) == []


def test_who_waits_for_a_group_that_holds_counts_without_being_a_member_of_the_source() -> None:
    assert len(admission_findings(HOLDS, [SLOW], [], TARGET)) == 1


def test_a_group_with_more_members_than_the_target_takes_is_refused() -> None:
    (finding,) = admission_findings(FOLLOWS, [], ["a", "b", "c"], TARGET)
    assert finding.ref == "group-too-large"


def test_a_target_that_does_not_tell_its_limits_refuses_nobody() -> None:
    assert admission_findings(FOLLOWS, [SLOW], ["slow"] * 100, {}) == []


def test_the_words_of_all_routers_count() -> None:
    log = MemoryLog()
    for number, terms in enumerate(((SLOW,), (JoinTerms("fine", 45_000), SLOW))):
        log.say(RouterPresence(f"i{number}", f"r{number}", 1, 500, joins={"g": terms}))
    assert join_terms_of(log, "g") == [JoinTerms("fine", 45_000), SLOW]  # type: ignore[arg-type]


def test_a_router_tells_the_newest_timeout_of_each_client_while_the_group_is_mirrored() -> None:
    book = SessionTimeouts()
    book.asked("follows", "app", 600_000, 0.0)
    book.asked("follows", "app", 30_000, 1.0)
    book.asked("holds", "app", 45_000, 0.0)
    book.asked("gone", "app", 45_000, 0.0)
    assert book.words({"holds"}, {"follows"}, 10.0) == {
        "follows": (JoinTerms("app", 30_000),),
        "holds": (JoinTerms("app", 45_000),),
    }
    told = book.words({"holds"}, {"follows"}, 100.0)
    assert "holds" not in told, "who waits asks again within a minute"
    assert book.words((), (), 100.0) == {}


def test_a_router_remembers_so_many_clients_of_a_group_and_no_more() -> None:
    book = SessionTimeouts()
    for number in range(200):
        book.asked("g", f"app-{number:03}", 45_000, 0.0)
    (told,) = book.words((), {"g"}, 0.0).values()
    assert (len(told), told[-1].client_id) == (50, "app-199")


def test_a_refused_member_is_named_with_the_error_and_the_way_on() -> None:
    named = RefusedMember("app", "10.0.0.1", "app-1", "UNSUPPORTED_ASSIGNOR")
    (finding,) = refused_member_findings(FOLLOWS, [named])
    assert (finding.level, finding.ref) == ("refuse", "member-refused")
    assert finding.what == ("the target would refuse member app at 10.0.0.1 (app-1) of group g: UNSUPPORTED_ASSIGNOR")
    assert "group.consumer.assignors" in finding.next_step
    said = refused_sentence("g", replace(named, member_id="", client_id=""), opened=True)
    assert said == "member without a client id at 10.0.0.1 of group g is refused by the target: UNSUPPORTED_ASSIGNOR"
    assert refused_way_on("g", replace(named, error="ERROR_4711")) == (
        "find out why the target answers ERROR_4711 to the member's join"
    )


def test_refusals_are_those_of_all_routers_and_end_a_handover() -> None:
    log, one = MemoryLog(), RefusedMember("app", "h", "m", "GROUP_AUTHORIZATION_FAILED")
    refuse_after_trials(log, FOLLOWS)  # type: ignore[arg-type]
    for number, members in enumerate(((one,), (replace(one, host="a"), one))):
        log.say(RouterPresence(f"i{number}", f"r{number}", 1, 500, refused={"g": members}))
    assert [each.host for each in refused_members(log, "g")] == ["a", "h"]  # type: ignore[arg-type]
    with pytest.raises(Refused, match="member-refused"):
        refuse_after_trials(log, FOLLOWS)  # type: ignore[arg-type]
