"""Notes for status: the brokers that are sent no windows, and the topics that wait for one hole after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.window import LONG

__all__ = ["window_notes"]

_APART, _IN_TURN = "holes-apart", "holes-in-turn"
_DISTANT_S = 0.002
"""Round trip from which short windows slow a copy."""
_BACKLOG = 2 * LONG
"""Queued steps from which a partition counts as waiting: a long window would take as many."""
_MOST_NAMED = 5


class _Holes(Protocol):
    """The facts about a link's holes that the notes tell."""

    @property
    def slow_brokers(self) -> frozenset[int]: ...

    @property
    def in_turn(self) -> frozenset[str]: ...

    @property
    def window_s(self) -> float: ...


def window_notes(holes: _Holes, lanes: Iterable[Lane], target: str) -> tuple[str, ...]:
    """Return the notes about the windows to a target."""
    notes = [_apart(holes.slow_brokers, target)] if holes.slow_brokers else []
    slow = holes.in_turn if holes.window_s >= _DISTANT_S else frozenset()
    waiting = (
        {lane.topic for lane in lanes if lane.topic in slow and len(lane.target.queue) >= _BACKLOG} if slow else ()
    )
    return (*notes, _in_turn(sorted(waiting), holes.window_s, target)) if waiting else tuple(notes)


def _apart(brokers: Iterable[int], target: str) -> str:
    named = ", ".join(map(str, sorted(brokers)))
    return (
        f"{_APART}: target {target}: brokers {named} go on behind a refused Produce request with acks=0, so each "
        "transaction takes two round trips, not one"
    )


def _in_turn(topics: list[str], window_s: float, target: str) -> str:
    named = ", ".join(topics[:_MOST_NAMED]) + (f" and {len(topics) - _MOST_NAMED} more" if topics[_MOST_NAMED:] else "")
    return (
        f"{_IN_TURN}: target {target}: {named}: each transaction of a partition takes a "
        f"round trip, now {window_s * 1000:.0f} ms, because min.insync.replicas is above 1 on the target"
    )
