"""The status names topics that routers withhold from members.

Each topic is named with the number of members, the reason and the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import GroupReport, RouterPresence, Withheld
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, TopicRecord
from kmigrate.workflow.groups.withheld import WithheldTopic, names_of, unnamed, withheld_topics
from kmigrate.workflow.status import group_figures
from kmigrate.workflow.status import snapshot as status
from tests.fakes.state_log import MemoryLog

ID, OTHER = str(UUID(int=1)), str(UUID(int=2))
GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
TOPIC = TopicRecord("l", "audit", TopicPhase.MIRRORING, 1, partitions=1, source_topic_id=ID, target_topic_id=OTHER)
WORD = GroupReport(withheld=(Withheld(ID, 1, "audit"),))


def told(*records: TopicRecord, words: Collection[GroupReport] = (WORD,), **names: str) -> tuple[WithheldTopic, ...]:
    known = {topic_id: name for name, topic_id in names.items()}
    return withheld_topics(MemoryLog(*records).state, GROUP, words, known)[0]


@pytest.mark.parametrize(
    ("record", "ref", "way_on"),
    [
        (None, "topic-not-mirrored", "kmigrate topic mirror --link l audit"),
        (replace(TOPIC, forgotten_ms=7), "topic-not-mirrored", "kmigrate topic mirror --link l audit"),
        (replace(TOPIC, phase=TopicPhase.ALIGNING), "topic-not-ready", "told of the topic once it is mirroring"),
        (
            replace(TOPIC, phase=TopicPhase.INITIALISING, source_topic_id="", target_topic_id=""),
            "topic-not-ready",
            "the members are told of the topic once it is mirroring",
        ),
        (replace(TOPIC, mapped=True), "topic-mapped", "kmigrate group mirror --mode hold --link l g"),
        (replace(TOPIC, source_topic_id=OTHER), "topic-recreated", "copied anew"),
        (replace(TOPIC, link="k", source_topic_id=OTHER), "topic-owned", "subscribe"),
    ],
)
def test_each_reason_has_a_way_on(record: TopicRecord | None, ref: str, way_on: str) -> None:
    (found,) = told(*([record] if record is not None else []))
    assert (found.topic, found.topic_id, found.members, found.ref) == ("audit", ID, 1, ref)
    assert way_on in found.next


@pytest.mark.parametrize("link", ["l", "k"])
@pytest.mark.parametrize("phase", [TopicPhase.MIRRORING, TopicPhase.PROMOTED])
def test_a_topic_that_may_be_read_by_now_is_not_told_whatever_a_router_said_a_moment_ago(
    phase: TopicPhase, link: str
) -> None:
    assert told(replace(TOPIC, phase=phase, link=link)) == ()


@pytest.mark.parametrize(
    "group", [replace(GROUP, phase=GroupPhase.PROMOTED), replace(GROUP, mode=GroupMode.HOLD)], ids=["promoted", "holds"]
)
def test_a_group_that_does_not_follow_any_more_has_none(group: GroupRecord) -> None:
    assert withheld_topics(MemoryLog().state, group, [replace(WORD, more_withheld=3)], {}) == ((), 0)


def test_several_routers_are_told_of_together() -> None:
    """Reports of several routers are merged, because a router may know a name that another router lacks."""
    words = [
        GroupReport(withheld=(Withheld(ID, 2), Withheld(OTHER, 1)), more_withheld=2),
        GroupReport(withheld=(Withheld(ID, 1, "audit"),), more_withheld=5),
        GroupReport(),
    ]
    found, more = withheld_topics(MemoryLog().state, GROUP, words, {})
    assert [(each.topic, each.topic_id, each.members) for each in found] == [("audit", ID, 3), ("", OTHER, 1)]
    assert more == 5
    assert unnamed(words) == {ID, OTHER}


def test_a_topic_without_a_name_can_be_found_at_the_source() -> None:
    (found,) = told(words=[GroupReport(withheld=(Withheld(OTHER, 1),))])
    assert found.ref == "topic-not-mirrored"
    assert "kafka-consumer-groups.sh --describe --group g" in found.next


class Source:
    """A source that has a single topic of the topics assigned to the group."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    async def refresh(self, topics: Collection[str]) -> Any:
        if self.away:
            raise Unreachable("broker-unreachable", "it is away")
        return SimpleNamespace(topics={name: TopicInfo(name, UUID(ID), {}) for name in topics if name == "audit"})


def test_names_are_those_of_the_source_where_it_answers() -> None:
    source: Any = Source()
    assert asyncio.run(names_of(source, {"audit", "deleted"})) == {ID: "audit"}
    away: Any = Source(away=True)
    assert asyncio.run(names_of(away, {"audit"})) == {}


@pytest.mark.parametrize("away", [False, True])
def test_a_snapshot_asks_the_source_for_names_that_no_link_knows(monkeypatch: pytest.MonkeyPatch, away: bool) -> None:
    class Cluster(Source):
        async def list_offsets(self, wanted: Any, **_: Any) -> Any:
            return {}

        async def describe_groups(self, names: list[str]) -> dict[str, Any]:
            return {name: GroupState(name, "stable", "classic", (), frozenset({"audit"})) for name in names}

    async def positions(_: Any, groups: Any) -> Any:
        return {group: {} for group in groups}

    source = Cluster()

    async def opened(_: LinkRecord) -> Any:
        return source, source

    monkeypatch.setattr(group_figures, "read_all_positions", positions)
    log = MemoryLog(LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "id"), 1), GROUP)
    for name, members in (("r1", 1), ("r2", 2)):
        word = GroupReport(withheld=(Withheld(ID, members),))
        log.say(RouterPresence(name, name, 1, 500, groups={"g": word}))
    target = Cluster()
    it: Any = SimpleNamespace(log=log, target=target, target_admin=target, source=opened, waits_for=lambda _: "")
    source.away = away
    (group,) = asyncio.run(status.snapshot(it)).as_json()["groups"]
    (found,) = group["withheld"]
    assert (found["topic"], found["topic_id"], found["members"]) == ("" if away else "audit", ID, 3)
    log.silence("router/r2")
    log.say(RouterPresence("r1", "r1", 1, 500, groups={"g": GroupReport()}))
    assert asyncio.run(status.snapshot(it)).groups[0].withheld == ()
