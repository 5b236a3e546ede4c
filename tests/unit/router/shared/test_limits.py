"""Limits of a router: which connections the router closes, and which connections stay."""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.model.presences import EndedClients, RouterLimits
from kmigrate.router.shared.limits import Ended, Limits


@dataclass(eq=False)
class Someone:
    held: int = 0
    idle: float = 0.0
    named: str = "app at h"
    closed: list[str] = field(default_factory=list)
    reset_for: list[str] = field(default_factory=list)

    def idle_for(self, now: float) -> float:
        return self.idle

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def reset(self, reason: str) -> None:
        self.reset_for.append(reason)


def limits(
    connections: int = 10, address: int = 0, size: int = 100 << 20, idle: float = 60.0, before_login: int = 10
) -> Limits:
    return Limits(connections, address, size, idle, before_login)


def come(account: Limits, *hosts: str) -> list[Someone]:
    """Admit connections before their login."""
    crowd = []
    for host in hosts:
        crowd.append(one := Someone())
        assert account.admit(host, logged_in=False) == ""
        account.not_logged_in(one, host, lambda one=one: one.reset("no room"))  # type: ignore[misc]
    return crowd


def test_who_does_not_log_in_keeps_nobody_out_who_does() -> None:
    account = limits(connections=2, before_login=3)
    crowd = come(account, "a", "b", "bad", "bad", "bad")
    assert [bool(each.reset_for) for each in crowd] == [False, False, True, True, False], "the oldest of who has most"
    assert account.ended == {Ended.LOGIN: 2}
    assert account.last_ended == {Ended.LOGIN: "bad"}
    for one, host in zip(crowd[2:4], ("bad", "bad"), strict=True):
        account.gone(one, host)
    assert [account.logged_in(one) for one in crowd[:2]] == ["", ""]
    assert account.logged_in(crowd[4]) == "too many connections"


def test_a_renewed_login_is_no_new_connection() -> None:
    account = limits(connections=1)
    (one,) = come(account, "a")
    assert [account.logged_in(one) for _ in range(3)] == [""] * 3
    account.gone(one, "a")
    assert account.admit("b") == ""


def test_a_connection_without_login_needs_room_once_its_handshake_is_over() -> None:
    account = limits(connections=1)
    come(account, "a", "b")
    assert account.has_room("a") == ""
    account.settled(next(iter(account._before_login)))
    assert account.has_room("b") == "too many connections"


def test_what_is_kept_for_who_is_not_logged_in_has_a_bound_of_its_own() -> None:
    """Without the separate bound, logged-in clients would be reset, because each of them holds more."""
    account = limits(size=160 << 20)
    crowd = come(account, *"abcdefgh")
    member = Someone(held=100 << 20)
    for each in (*crowd, member):
        each.held = each.held or 2 << 20
        account.watch(each)
    account.relieve()
    assert sum(bool(each.reset_for) for each in crowd) == 3
    assert (member.reset_for, account.buffered) == ([], 110 << 20)


def test_those_who_hold_most_are_ended_until_the_rest_fits() -> None:
    account = limits()
    crowd = [Someone(size << 20) for size in (10, 70, 40, 5)]
    for each in crowd:
        account.watch(each)
    account.relieve()
    assert [bool(each.reset_for) for each in crowd] == [False, True, False, False]
    assert account.buffered == 55 << 20
    assert account.ended == {Ended.MEMORY: 1}


def test_who_holds_nothing_any_more_is_looked_at_no_more_until_it_is_seen_again() -> None:
    account, one = limits(), Someone(1 << 20)
    account.watch(one)
    account.relieve()
    one.held = 0
    account.relieve()
    one.held = 200 << 20
    account.relieve()
    assert account.buffered == 0
    account.watch(one)
    account.relieve()
    assert one.reset_for == ["200 MB are kept for it, and all clients together are beyond the limit"]


def test_a_host_has_no_more_connections_than_it_may_and_gets_room_when_one_ends() -> None:
    account = limits(address=2)
    assert [account.admit("a"), account.admit("a"), account.admit("b")] == [""] * 3
    assert "more than 2 connections of a" in account.admit("a")
    account.gone(Someone(), "a")
    account.gone(Someone(), "a")
    assert account.admit("a") == ""
    assert account.ended == {Ended.ADDRESS: 1}


def test_beyond_the_number_of_all_connections_each_is_refused_until_one_ends() -> None:
    account = limits(connections=2)
    assert [account.admit("a"), account.admit("b"), account.admit("c")] == ["", "", "too many connections"]
    account.left("c")
    account.gone(Someone(), "a")
    assert account.admit("c") == ""
    assert account.ended == {Ended.CONNECTIONS: 1}


def test_idle_connections_are_ended_and_busy_ones_stay() -> None:
    account = limits()
    idle, busy = Someone(idle=61.0), Someone(idle=0.0)
    account.part_from_idle([idle, busy], 100.0)
    assert (idle.closed, busy.closed) == ([""], [])
    assert account.ended[Ended.IDLE] == 1


def test_everybody_is_told_how_near_its_limits_a_router_is_and_whom_it_ended_last() -> None:
    account = limits(address=2, size=10)
    for host in ("a", "b", "b", "b"):
        account.admit(host)
    big = Someone(held=20, named="deaf at c")
    account.watch(big)
    account.watch(Someone(held=4))
    account.relieve()
    account.part_from_idle([Someone(idle=61.0), Someone(idle=62.0, named="quiet at d")], 100.0)
    ended = {"address": ("b", 1), "memory": ("deaf at c", 1), "idle": ("quiet at d", 2)}
    told = {limit: EndedClients(count, last) for limit, (last, count) in ended.items()}
    assert account.told() == RouterLimits(10, 3, 2, 4, 10, told)
