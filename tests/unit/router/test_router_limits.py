"""Who is parted from for a limit, and who is not."""

from __future__ import annotations

from dataclasses import dataclass, field

from kmigrate.model.presences import EndedClients, RouterLimits
from kmigrate.router.limits import Ended, Limits


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


def limits(connections: int = 10, address: int = 0, size: int = 100 << 20, idle: float = 60.0) -> Limits:
    return Limits(connections, address, size, idle)


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
