"""Conditions of a playbook: short sentences about a snapshot, parsed once, judged without I/O.

lag <= 1000            every chosen topic lags at most that (a promoted topic lags 0)
topics mirroring       every chosen topic is in that phase or beyond
groups promoted        every chosen group is in that phase or beyond
mirror running         (or: router running, controller running)
seconds 5              that time has passed; always false in `unless`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kmigrate.model.digits import whole_number
from kmigrate.model.lifecycle import ROLLING_BACK, GroupPhase, TopicPhase
from kmigrate.model.nearest import nearest
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.workflow.status.snapshot import Snapshot

__all__ = ["EXPECTED", "Condition", "Scope", "Verdict", "meant_condition", "parse_condition"]

EXPECTED = "'lag <= N', 'topics PHASE', 'groups PHASE', 'mirror|router|controller running' or 'seconds N'"

Kind = Literal["lag", "topics", "groups", "running", "seconds"]

_LAG = re.compile(r"lag <= (\d+)")
_SECONDS = re.compile(r"seconds ([0-9]{1,8}(?:\.[0-9]{1,9})?)")
_TOPIC_PHASES = [phase for phase in TopicPhase if phase not in ROLLING_BACK]
"""Phases that a condition can name: a topic or group that is rolling back counts as promoted."""
_GROUP_PHASES = [phase for phase in GroupPhase if phase is not GroupPhase.ROLLING_BACK]
_RUNNING = ("mirror", "router", "controller")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a condition: true or not, and the number or phase that the condition waits for."""

    holds: bool
    waits_for: str = ""
    left: int | None = None
    """How far the number of a topic is above the condition's limit; None where no number is known."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the status that a condition is judged on: one link or all, named topics and groups or all."""

    link: str | None = None
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def covers(self, link: str) -> bool:
        """Return whether a link belongs to the part; all links are all links except those of rehearsals."""
        return link == self.link if self.link is not None else not is_rehearsal(link)


@dataclass(frozen=True, slots=True)
class Condition:
    """One parsed sentence."""

    text: str
    kind: Kind
    subject: str = ""
    number: float = 0.0

    @property
    def needs_figures(self) -> bool:
        """True if clusters must be asked: what the state log can judge must not wait for a cluster that is gone."""
        return self.kind == "lag"

    def judge(self, shot: Snapshot, scope: Scope = Scope()) -> Verdict:
        match self.kind:
            case "lag":
                return self._lag(shot, scope)
            case "topics":
                phases = {t.topic: _named(t.phase) for t in shot.topics if scope.covers(t.link)}
                return self._phases("topic", scope.topics or sorted(phases), phases, _TOPIC_PHASES)
            case "groups":
                states = {g.group: _named_group(g.phase) for g in shot.groups if scope.covers(g.link)}
                return self._phases("group", scope.groups or sorted(states), states, _GROUP_PHASES)
            case "running":
                return self._running(shot, scope.link)
            case "seconds":
                return Verdict(False, f"{self.number:g} s to pass")

    def _lag(self, shot: Snapshot, scope: Scope) -> Verdict:
        lags = {t.topic: t.lag for t in shot.topics if scope.covers(t.link)}
        names = scope.topics or sorted(lags)
        for topic in names:
            if topic not in lags:
                return _not_mirrored("topic", topic, lags)
            if lags[topic] < 0:
                return Verdict(False, f"topic {topic} lags an unknown number of records")
        behind = [topic for topic in names if lags[topic] > self.number]
        if not behind:
            return Verdict(bool(lags), "" if lags else "no topic is mirrored")
        worst = max(behind, key=lambda topic: lags[topic])
        text = f"topic {worst} lags {lags[worst]:,} records (at most {self.number:,.0f} wanted){_and_more(behind)}"
        return Verdict(False, text, lags[worst] - int(self.number))

    def _phases(self, noun: str, names: Sequence[str], found: Mapping[str, str], order: Sequence[str]) -> Verdict:
        for name in names:
            if name not in found:
                return _not_mirrored(noun, name, found)
        before = [name for name in names if order.index(found[name]) < order.index(self.subject)]
        if before:
            return Verdict(False, f"{noun} {before[0]} is {found[before[0]]}{_and_more(before)}")
        return Verdict(bool(names), "" if names else f"no {noun} is mirrored")

    def _running(self, shot: Snapshot, link: str | None) -> Verdict:
        running = {
            "mirror": any(m.active and link in (None, m.link) for m in shot.mirrors),
            "router": any(r.instance in shot.routers_alive for r in shot.routers),
            "controller": any(c.active for c in shot.controllers),
        }
        holds = running[self.subject]
        return Verdict(holds, "" if holds else f"no {self.subject} is running")


def meant_condition(text: str) -> str:
    """Return `: did you mean 'x'?` for a sentence that is close to a condition, '' for any other sentence."""
    sentences = [f"topics {phase}" for phase in _TOPIC_PHASES] + [f"groups {phase}" for phase in _GROUP_PHASES]
    lag = re.fullmatch(r"lag\s*(?:<|=<|<=|==?|below)?\s*(\d+)", text)
    if lag is not None:
        return f": did you mean 'lag <= {lag[1]}'?"
    return nearest(text, (*sentences, *(f"{each} running" for each in _RUNNING)))


def _named(phase: TopicPhase) -> TopicPhase:
    return TopicPhase.PROMOTED if phase in ROLLING_BACK else phase


def _named_group(phase: GroupPhase) -> GroupPhase:
    return GroupPhase.PROMOTED if phase is GroupPhase.ROLLING_BACK else phase


def _not_mirrored(noun: str, name: str, known: Mapping[str, object]) -> Verdict:
    return Verdict(False, f"{noun} {name} is not mirrored{nearest(name, known)}")


def _and_more(waiting: Sequence[str]) -> str:
    """Count the topics or groups beside the named one."""
    return f", and {len(waiting) - 1:,} more wait" if len(waiting) > 1 else ""


def parse_condition(text: str) -> Condition | None:
    """Return the condition that a sentence states, or None if the sentence states none."""
    if (found := _LAG.fullmatch(text)) and (number := whole_number(found[1])) is not None:
        return Condition(text, "lag", number=number)
    if found := _SECONDS.fullmatch(text):
        return Condition(text, "seconds", number=float(found[1]))
    first, _, second = text.partition(" ")
    if first in _RUNNING and second == "running":
        return Condition(text, "running", first)
    if first == "topics" and second in _TOPIC_PHASES:
        return Condition(text, "topics", second)
    return Condition(text, "groups", second) if first == "groups" and second in _GROUP_PHASES else None
