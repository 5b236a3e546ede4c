"""The set of groups that opened a moment ago, over a series of tables."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.routes import RoutingTable
from kmigrate.router.shared.followers import Followers
from tests.unit.router.groups.test_heartbeats import FOLLOWS


def table(*, held: frozenset[str] = frozenset(), followed: tuple[str, ...] = ()) -> RoutingTable:
    return RoutingTable(1, {}, held, followed=dict.fromkeys(followed, FOLLOWS))


def test_groups_that_followed_or_waited_have_opened_for_a_minute_once_they_do_neither() -> None:
    it = Followers()
    both = table(held=frozenset({"waits"}), followed=("follows",))
    assert it.follow(both, 0.0) == (frozenset(), frozenset())
    assert set(it.opened(0.0)) == set()
    assert it.follow(table(), 1.0).to_target == {"follows"}, "who waited has no transactions that others took over"
    assert set(it.opened(60.0)) == {"follows", "waits"}
    assert set(it.opened(62.0)) == set()


def test_a_group_that_is_given_another_mode_or_is_mirrored_again_has_not_opened() -> None:
    it = Followers()
    it.follow(table(held=frozenset({"g"})), 0.0)
    it.follow(table(followed=("g",)), 1.0)
    assert set(it.opened(1.0)) == set()
    it.follow(table(held=frozenset({"g"})), 2.0)
    assert set(it.opened(2.0)) == set()
    it.follow(table(), 3.0)
    assert set(it.opened(3.0)) == {"g"}
    it.follow(table(held=frozenset({"g"})), 4.0)
    assert set(it.opened(4.0)) == set()


def test_a_group_has_come_back_once_its_rollback_ends_at_the_source() -> None:
    it, leaving = Followers(), replace(FOLLOWS, at_target=True)
    assert it.follow(replace(table(), followed={"g": leaving, "stays": leaving}), 0.0).to_source == frozenset()
    moved = it.follow(table(followed=("g",)), 1.0)
    assert [*moved.to_target, *moved.to_source] == ["stays", "g"], "the rollback of the other group was given up"
    assert (it.returned("g", 2.0), it.returned("stays", 2.0)) == (True, False)
