"""A plan warns of a copy with fewer replicas than the source, and does not refuse the copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.metadata import PartitionInfo, TopicInfo
from kmigrate.errors import Refused
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.base.plan import Finding
from kmigrate.workflow.verbs import mirror
from kmigrate.workflow.verbs.mirror import durability_findings
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)


class Cluster:
    """A cluster with a number of brokers and the given topics."""

    def __init__(self, brokers: int, **topics: TopicInfo) -> None:
        self.metadata = SimpleNamespace(brokers=dict.fromkeys(range(brokers)))
        self.topics = topics

    async def refresh(self, _: object = None) -> Any:
        return self

    async def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
        return {name: {"min.insync.replicas": ConfigValue("2", own=True)} for name in names}


class Connections:
    """Connections to a source whose topic `t` has three replicas, and to a target with a single broker."""

    def __init__(self) -> None:
        self.log = MemoryLog(LINK)
        self.target = Cluster(1)

    async def source(self, _: LinkRecord) -> tuple[Cluster, Cluster]:
        cluster = Cluster(3, t=topic(3))
        return cluster, cluster


def topic(replicas: int) -> TopicInfo:
    nodes = tuple(range(replicas))
    return TopicInfo("t", None, {0: PartitionInfo(0, 0, nodes)})


@pytest.mark.parametrize(
    ("standing", "brokers", "in_sync", "refs"),
    [
        (None, 3, "2", []),
        (None, 5, "1", []),
        (None, 2, "2", ["fewer-replicas"]),
        (None, 1, "2", ["fewer-replicas", "min-insync-lowered"]),
        (1, 3, "1", ["fewer-replicas"]),
        (4, 5, "2", []),
    ],
    ids=["as-many", "more-brokers", "fewer-brokers", "one-broker", "made-with-one", "made-with-more"],
)
def test_a_topic_that_gets_fewer_replicas_is_a_warning_and_so_is_what_they_cannot_keep_in_sync(
    standing: int | None, brokers: int, in_sync: str, refs: list[str]
) -> None:
    there = topic(standing) if standing is not None else None
    found = durability_findings(topic(3), there, brokers, ConfigValue(in_sync, own=False))
    assert [(each.level, each.ref) for each in found] == [("warn", ref) for ref in refs]


def test_the_warning_says_how_many_replicas_there_are_on_both_sides() -> None:
    factor, in_sync = durability_findings(topic(3), None, 1, ConfigValue("2", own=True))
    assert factor.what == "topic t has replication factor 3 on the source and 1 on the target"
    wanted = "min.insync.replicas of topic t is 2 on the source and can be 1 at most on the target"
    assert in_sync.what.startswith(wanted)


@pytest.fixture
def no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_found(*_: object) -> list[Finding]:
        return []

    monkeypatch.setattr(mirror, "loop_findings", none_found)


@pytest.mark.usefixtures("no_loops")
def test_who_asks_for_a_topic_to_be_mirrored_is_warned() -> None:
    connections: Any = Connections()
    made = asyncio.run(run_verb(verbs.mirror_topics(connections, "l", ["t"], "earliest", "auto"), plan=True))
    assert [finding.ref for finding in made.findings] == ["fewer-replicas", "min-insync-lowered"]


@pytest.mark.usefixtures("no_loops")
@pytest.mark.parametrize(
    ("name", "hint", "next_step"),
    [
        ("t.*", "as an expression the name matches t", "kmigrate topic mirror --regex --link l 't.*'"),
        ("zebra.*", "the source s has no topic zebra.*", "kmigrate topic mirror --regex --link l 'zebra.*'"),
        ("tt", "did you mean 't'?", "kmigrate plan lists what the source has"),
    ],
)
def test_a_name_that_the_source_lacks_is_corrected(name: str, hint: str, next_step: str) -> None:
    look = verbs.mirror_topics(Connections(), None, [name], "earliest", "auto")  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        asyncio.run(run_verb(look))
    assert caught.value.ref == "unknown-topic"
    assert hint in caught.value.what
    assert next_step in caught.value.next_step
