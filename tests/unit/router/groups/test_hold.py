"""Joins of members of a held group: the router holds a JoinGroup like a rebalance, and answers as to a new member."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kmigrate.protocol.codes import code_of
from tests.unit.router.groups.test_handler import FETCH, JOIN, LEAVE, Member, later

_ASKED_FOR = {"session_timeout": timedelta(seconds=30), "rebalance_timeout": timedelta(seconds=60)}


def holding(version: int = 9) -> Member:
    """Return a member of a group that holds."""
    member = Member()
    member.stage._held = ("g",)
    member.turns()
    member.versions[JOIN] = version
    return member


def joins(member: Member, member_id: str = "", **values: Any) -> Any:
    asked = dict(_ASKED_FOR)
    if member.versions[JOIN] < 1:
        del asked["rebalance_timeout"]
    return member.says(JOIN, group_id="g", member_id=member_id, protocol_type="consumer", **asked | values)


def code_after(member: Member, seconds: float) -> int | None:
    """Return the code of the join's answer, or None if the join still waits after so many seconds."""
    before = len(member.stage.edge.replies)
    later(member, seconds)
    return code_of(member.read(JOIN).error_code) if len(member.stage.edge.replies) > before else None


def test_a_join_waits_like_in_a_rebalance_and_each_answer_makes_the_member_join_anew() -> None:
    member = holding()
    assert joins(member) is None
    assert code_after(member, 19.9) is None
    assert code_after(member, 0.1) == 79
    given = str(member.read(JOIN).member_id)
    assert given == "kmigrate-waits-for-the-promote"
    assert joins(member, given) is None
    assert code_after(member, 19.9) is None
    assert code_after(member, 0.1) == 25
    assert member.heard == [], "no cluster heard of these joins"


@pytest.mark.parametrize(
    ("version", "values", "code"),
    [(0, {}, 25), (3, {}, 25), (3, {"member_id": "m"}, 25), (5, {"group_instance_id": "static"}, 25), (4, {}, 79)],
)
def test_a_join_that_cannot_be_given_an_id_is_answered_as_of_an_unknown_member(
    version: int, values: dict[str, Any], code: int
) -> None:
    member = holding(version)
    assert joins(member, **values) is None
    assert code_after(member, 20.0) == code


@pytest.mark.parametrize(("version", "seconds"), [(9, 5.0), (0, 15.0)])
def test_the_targets_own_rebalance_has_half_of_the_time_that_the_member_gives(version: int, seconds: float) -> None:
    """Version 0 names no rebalance timeout; brokers take the session timeout, which is 30 s here."""
    member = holding(version)
    asked: dict[str, Any] = {"rebalance_timeout": timedelta(seconds=10)} if version else {}
    assert joins(member, **asked) is None
    assert code_after(member, seconds - 0.1) is None
    assert code_after(member, 0.1) is not None


def test_a_request_behind_the_join_ends_the_wait_after_a_second() -> None:
    """A client that leaves, or that shares the connection with other requests, is not kept waiting."""
    member = holding()
    assert joins(member) is None
    assert code_after(member, 0.5) is None
    assert member.says(LEAVE, group_id="g") is None
    assert code_after(member, 0.4) is None
    later(member, 0.1)
    member.hears()
    assert len(member.stage.edge.replies) == 2
    assert joins(member) is None
    assert code_after(member, 7.0) is None
    member.says(LEAVE, group_id="g")
    assert len(member.stage.edge.replies) == 4, "the join has waited for longer than a second already"


def test_a_join_that_waits_starts_one_timer_at_a_time() -> None:
    member = holding()
    joins(member)
    for _ in range(24):
        later(member, 0.125)
    assert len(member.stage.edge.wakes) == 4


def test_a_join_goes_to_the_target_the_moment_the_group_opens() -> None:
    member = holding()
    assert joins(member) is None
    assert code_after(member, 3.0) is None
    member.stage._held = ()
    member.turns()
    assert member.asked(JOIN) == [("target", JOIN)]
    assert code_of(member.read(JOIN).error_code) == 0
    member.stage.edge.clock += 60.0
    member.stage._held = ("g",)
    member.turns()
    assert joins(member) is None, "a join of a group that holds again waits anew"


def test_a_router_that_stops_answers_a_join_at_once() -> None:
    member = holding()
    assert joins(member) is None
    assert code_after(member, 3.0) is None
    member.stage.shared.closing = True
    member.stage.session.leave()
    assert code_of(member.read(JOIN).error_code) == 79


def test_a_join_is_answered_before_the_clients_login_ends() -> None:
    member = holding()
    assert joins(member) is None
    assert code_after(member, 3.0) is None
    member.stage.session._login._ends = member.stage.edge.clock + 0.5
    assert code_after(member, 0.0) == 79


def test_other_requests_of_the_group_wait_for_a_second() -> None:
    member = holding()
    member.stage.shared.settings = replace(member.stage.shared.settings, join_hold_s=60.0)
    assert member.fetch() is None
    later(member, 1.0)
    assert code_of(member.read(FETCH).groups[0].error_code) == 14
