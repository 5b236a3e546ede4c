"""Conditions of playbooks are judged on a snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.rehearsals import link_of
from kmigrate.workflow.playbook.conditions import Scope, parse_condition
from kmigrate.workflow.status.snapshot import GroupStatus, PartitionStatus, Snapshot, TopicStatus


def _topic(name: str, phase: TopicPhase, *lags: int) -> TopicStatus:
    parts = tuple(PartitionStatus(n, 0, 10, 0, 10, lag, "", -1.0) for n, lag in enumerate(lags))
    return TopicStatus("l", name, phase, 0, "", "identical", parts)


def _group(name: str, phase: GroupPhase) -> GroupStatus:
    return GroupStatus("l", name, phase, "", (), 0, 0)


def _shot(
    topics: tuple[TopicStatus, ...] = (), groups: tuple[GroupStatus, ...] = (), mirrors: tuple[MirrorPresence, ...] = ()
) -> Snapshot:
    return Snapshot(0, 0, (), topics, groups, (), frozenset(), mirrors, ())


@pytest.mark.parametrize(
    ("text", "shot", "holds", "waits_for"),
    [
        ("lag <= 3", _shot((_topic("a", TopicPhase.MIRRORING, 1, 2),)), True, ""),
        ("lag <= 2", _shot((_topic("a", TopicPhase.MIRRORING, 1, 2),)), False, "topic a lags 3"),
        ("lag <= 2", _shot((_topic("a", TopicPhase.MIRRORING, -1, 0),)), False, "unknown"),
        ("lag <= 2", _shot(), False, "no topic is mirrored"),
        ("topics mirroring", _shot((_topic("a", TopicPhase.PROMOTED, 0),)), True, ""),
        ("topics promoted", _shot((_topic("a", TopicPhase.FENCED, 0),)), False, "topic a is fenced"),
        ("topics promoted", _shot(), False, "no topic is mirrored"),
        ("groups promoted", _shot(groups=(_group("g", GroupPhase.PROMOTING),)), False, "group g is promoting"),
        ("groups mirrored", _shot(groups=(_group("g", GroupPhase.PROMOTING),)), True, ""),
        ("groups promoted", _shot(groups=(_group("g", GroupPhase.ROLLING_BACK),)), True, ""),
        ("mirror running", _shot(mirrors=(MirrorPresence("i", "l", 0, True, 500),)), True, ""),
        ("mirror running", _shot(mirrors=(MirrorPresence("i", "l", 0, False, 500),)), False, "no mirror"),
        ("router running", _shot(), False, "no router"),
        ("controller running", _shot(), False, "no controller"),
        ("seconds 5", _shot(), False, "5 s"),
    ],
)
def test_a_condition_holds_or_names_what_it_waits_for(text: str, shot: Snapshot, holds: bool, waits_for: str) -> None:
    condition = parse_condition(text)
    assert condition is not None
    verdict = condition.judge(shot)
    assert verdict.holds is holds
    assert waits_for in verdict.waits_for


def test_a_condition_on_all_links_does_not_wait_for_a_rehearsal() -> None:
    shadow = replace(_topic("s", TopicPhase.MIRRORING, 9), link=link_of("ab12"))
    shot = _shot((_topic("a", TopicPhase.PROMOTED, 0), shadow))
    for text in ("topics promoted", "lag <= 0"):
        condition = parse_condition(text)
        assert condition is not None
        assert condition.judge(shot).holds
        assert not condition.judge(shot, Scope(link=shadow.link)).holds


def test_a_condition_looks_at_the_named_topics_only() -> None:
    shot = _shot((_topic("a", TopicPhase.MIRRORING, 0), _topic("b", TopicPhase.MIRRORING, 99)))
    condition = parse_condition("lag <= 0")
    assert condition is not None
    assert condition.judge(shot, Scope(topics=("a",))).holds
    assert not condition.judge(shot).holds
    assert "topic c is not mirrored" in condition.judge(shot, Scope(topics=("c",))).waits_for
