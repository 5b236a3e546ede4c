"""Names that match an expression are picked up only if the link still says so when the intent is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.upkeep.patterns import Pickup
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.patterns import NamePattern
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.state import Records, State
from tests.fakes.state_log import MemoryLog

PATTERNS = (NamePattern("orders-.*"),)
LINK = LinkRecord(
    "l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1, topic_patterns=PATTERNS, group_patterns=PATTERNS
)


class Cluster:
    """A cluster with the given names as topics and groups; the link becomes `then` while the cluster is asked."""

    def __init__(self, log: MemoryLog, *names: str, then: LinkRecord | None = LINK) -> None:
        self.log = log
        self.names = names
        self.then = then

    async def refresh(self, topics: Sequence[str] | None = None) -> SimpleNamespace:
        self.log._put(LINK.key, self.then)
        return SimpleNamespace(topics={name: SimpleNamespace(partitions={0: None}) for name in self.names})

    async def groups(self) -> dict[str, str]:
        self.log._put(LINK.key, self.then)
        return dict.fromkeys(self.names, "stable")


def look(log: MemoryLog, source: Cluster, target: Cluster, link: LinkRecord = LINK) -> tuple[str, ...]:
    parts: list[Any] = [source, target, source, target, "l", log, "me", MirrorSettings()]
    return asyncio.run(Pickup(MirroredLink(*parts)).look(link))


def test_a_name_that_an_expression_chooses_is_mirrored_from_its_beginning() -> None:
    log = MemoryLog(LINK)
    assert look(log, Cluster(log, "orders-new", "other"), Cluster(log)) == ()
    (topic,) = log.state.topics()
    (group,) = log.state.groups()
    assert (topic.topic, topic.phase, topic.start) == ("orders-new", TopicPhase.INITIALISING, "earliest")
    assert (group.group, group.phase) == ("orders-new", GroupPhase.MIRRORED)


def test_a_topic_gets_the_offsets_that_its_newest_expression_was_given_with() -> None:
    patterns = (NamePattern(".*", offsets="mapped"), NamePattern("orders-.*", offsets="identical"))
    link = replace(LINK, topic_patterns=patterns, group_patterns=())
    log = MemoryLog(link)
    assert look(log, Cluster(log, "orders-new", "other", then=link), Cluster(log, then=link), link) == ()
    found = {topic.topic: topic.offsets for topic in log.state.topics()}
    assert found == {"orders-new": "identical", "other": "mapped"}


def test_a_group_is_promoted_automatically_if_its_newest_expression_says_so() -> None:
    patterns = (NamePattern(".*", auto=True), NamePattern("orders-.*"))
    link = replace(LINK, topic_patterns=(), group_patterns=patterns)
    log = MemoryLog(link)
    assert look(log, Cluster(log, "orders-new", "other", then=link), Cluster(log, then=link), link) == ()
    assert {group.group: group.auto for group in log.state.groups()} == {"orders-new": False, "other": True}


@pytest.mark.parametrize(
    "then",
    [replace(LINK, finished_ms=99), replace(LINK, topic_patterns=(), group_patterns=()), None],
    ids=["finished", "forgotten", "deleted"],
)
def test_a_name_is_left_alone_whose_link_changed_while_the_clusters_were_asked(then: LinkRecord | None) -> None:
    log = MemoryLog(LINK)
    assert look(log, Cluster(log, "orders-new"), Cluster(log, then=then)) == ()
    assert (log.state.topics(), log.state.groups()) == ([], [])


def test_a_name_that_another_link_has_is_told_and_left_to_it() -> None:
    topic = TopicRecord("m", "orders-new", TopicPhase.MIRRORING, 1)
    group = GroupRecord("m", "orders-new", GroupPhase.MIRRORED, 1)
    log = MemoryLog(LINK, topic, group)
    assert [note.split(":")[0] for note in look(log, Cluster(log, "orders-new"), Cluster(log))] == [
        "topic-owned",
        "group-owned",
    ]
    assert (log.state.topics(), log.state.groups()) == ([topic], [group])


def test_a_name_that_is_being_forgotten_is_neither_picked_up_nor_called_somebody_elses() -> None:
    topic = TopicRecord("l", "orders-new", TopicPhase.MIRRORING, 1, forgotten_ms=7)
    group = GroupRecord("l", "orders-new", GroupPhase.MIRRORED, 1, forgotten_ms=7)
    log = MemoryLog(LINK, topic, group)
    assert look(log, Cluster(log, "orders-new"), Cluster(log, "orders-new")) == ()
    assert (log.state.topics(forgotten=True), log.state.groups(forgotten=True)) == ([topic], [group])


def test_a_look_at_very_many_names_goes_through_the_records_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look goes through the records only once, whatever the number of names.

    Otherwise thousands of names would keep the process from renewing its lease for seconds.
    """
    names = [f"orders-{number}" for number in range(100)]
    log = MemoryLog(LINK, *(TopicRecord("l", name, TopicPhase.MIRRORING, 1) for name in names))
    gone_through = 0

    class CountingRecords(Records):
        def of(self, word: str, kind: type[Any]) -> Iterator[Any]:
            nonlocal gone_through
            gone_through += word == "topic"
            return super().of(word, kind)

    source, target = Cluster(log, *names), Cluster(log)
    link = replace(LINK, group_patterns=())
    monkeypatch.setattr(log, "_put", lambda key, record: None)
    log.state = State(log.state.epoch, CountingRecords(log.state.records._kinds))
    assert look(log, source, target, link) == ()
    assert gone_through == 1
