"""The status works while a cluster or a single broker does not answer, which is when people look."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.cluster.brokers import LogDir
from kmigrate.cluster.client import EARLIEST, LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.errors import Unreachable
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import DUTY, ControllerPresence, DiskUse, MirrorPresence
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, PartitionBarrier, TopicRecord
from kmigrate.protocol.codes import Code
from kmigrate.workflow.playbook.conditions import parse_condition
from kmigrate.workflow.status import group_figures
from kmigrate.workflow.status import snapshot as status
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 0})
GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1)


class Cluster:
    """A cluster that answers metadata; requests to leaders fail with the error `away`, if given."""

    metadata = SimpleNamespace(brokers={})

    def __init__(self, away: str = "", *, leaderless: bool = False) -> None:
        self.away, self.leaderless = away, leaderless

    async def refresh(self, _: Any) -> Any:
        return SimpleNamespace(topics={})

    async def list_offsets(self, wanted: Mapping[Any, int], **_: Any) -> dict[Any, LogOffset]:
        if self.away:
            raise Unreachable("broker-unreachable", self.away)
        told = {key: LogOffset(0, 50, 0) for key in wanted}
        if self.leaderless:
            told["t", 1] = LogOffset(Code.LEADER_NOT_AVAILABLE, -1, -1)
        return told

    async def describe_groups(self, names: list[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(members=(), assigned=frozenset()) for name in names}


def shot(
    monkeypatch: pytest.MonkeyPatch, source: Cluster, target: Cluster, *words: MirrorPresence | ControllerPresence
) -> status.Snapshot:
    async def positions(_: Any, groups: Any) -> Any:
        return {group: {("t", 0): CommittedOffset(45, ""), ("t", 1): CommittedOffset(40, "")} for group in groups}

    async def opened(_: LinkRecord) -> Any:
        return source, source

    monkeypatch.setattr(group_figures, "read_all_positions", positions)
    log = MemoryLog(LINK, TOPIC, GROUP)
    for word in words:
        log.say(word)
    it: Any = SimpleNamespace(log=log, target=target, target_admin=target, source=opened, waits_for=lambda _: "")
    return asyncio.run(status.snapshot(it))


@pytest.mark.parametrize(
    ("source", "target", "trouble", "ends"),
    [
        (Cluster("broker 2 is silent"), Cluster(), "broker 2 is silent", (-1, 50)),
        (Cluster(), Cluster("broker 3 is silent"), "target t: broker 3 is silent", (50, -1)),
        (Cluster("silent"), Cluster("silent, too"), "silent; target t: silent, too", (-1, -1)),
    ],
)
def test_one_broker_that_does_not_answer_leaves_its_clusters_figures_unknown_and_is_named(
    source: Cluster, target: Cluster, trouble: str, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent broker makes the figures of its cluster unknown, and the status names the error.

    Any broker answers metadata, but only the leaders answer log ends.
    """
    told = shot(monkeypatch, source, target)
    assert told.links[0].trouble == trouble
    first = told.topics[0].partitions[0]
    assert ((first.source_end, first.target_end), told.topics[0].lag) == (ends, -1)
    members = told.groups[0].source_members
    assert members == (None if ends[0] < 0 else ()), "nobody is there, or nobody was asked"


def test_a_source_that_says_nothing_is_waited_for_no_longer_than_somebody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(Cluster):
        async def refresh(self, _: Any) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(status, "_PATIENCE_S", 0.01)
    told = shot(monkeypatch, Silent(), Cluster())
    assert told.links[0].trouble == "source s has not answered within 0.01 s"
    assert told.topics[0].partitions[0].target_end == 50


def test_a_condition_that_the_state_log_can_judge_asks_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that needs only the state log makes no request to a cluster.

    A playbook may be run again when its source is gone, and must not wait for the source in each step.
    """

    async def source(_: LinkRecord) -> Any:
        raise AssertionError("the source was asked")

    barrier = dict.fromkeys((0, 1), PartitionBarrier(50, 1))
    log = MemoryLog(LINK, replace(TOPIC, phase=TopicPhase.PROMOTED, barrier=barrier), GROUP)
    it: Any = SimpleNamespace(log=log, target=None, target_admin=None, source=source, waits_for=lambda _: "")
    for text, holds in (("topics promoted", True), ("groups promoted", False), ("mirror running", False)):
        condition = parse_condition(text)
        assert condition is not None
        told = asyncio.run(status.snapshot(it, figures=condition.needs_figures))
        assert condition.judge(told).holds is holds
    lag = parse_condition("lag <= 5")
    assert lag is not None and lag.needs_figures


def test_a_group_whose_partition_has_no_leader_has_no_lag_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shot(monkeypatch, Cluster(), Cluster()).groups[0].lag == 15
    assert shot(monkeypatch, Cluster(leaderless=True), Cluster()).groups[0].lag == -1


def test_a_copy_of_a_topic_that_is_written_to_does_not_seem_to_have_passed_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target is asked first, because the cluster that is asked first gives the earlier log end."""
    written = iter(range(1_000))

    class Growing(Cluster):
        async def list_offsets(self, wanted: Mapping[Any, int], **_: Any) -> dict[Any, LogOffset]:
            earliest = set(wanted.values()) == {EARLIEST}
            return {key: LogOffset(0, 0 if earliest else 50 + next(written), 0) for key in wanted}

        def leader(self, *_: Any) -> int:
            raise Unreachable("no-leader", "none")  # this test does not ask for the lag in time

    told = shot(monkeypatch, Growing(), Growing()).topics[0]
    assert (told.offsets, told.lag > 0) == ("identical", True)


def test_the_disk_of_a_link_is_what_the_lease_holder_tells_or_the_brokers_or_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def sizes(_: Any, topics: Mapping[str, Any]) -> Any:
        return {1: [LogDir(1, "/d", sizes=dict.fromkeys(topics, 70))], 2: answers.pop(0)}

    answers: list[Any] = [[LogDir(2, "/d", sizes={"t": 30})], Unreachable("no-answer", "none")]
    monkeypatch.setattr(status, "read_log_dirs", sizes)
    asked = shot(monkeypatch, Cluster(), Cluster()).links[0]
    assert (asked.disk_bytes, asked.disk_growth) == (100, None)
    away = shot(monkeypatch, Cluster(), Cluster()).links[0]
    assert (away.disk_bytes, away.disk_growth) == (None, None)
    word = MirrorPresence("m", "l", 1, True, 500, disk=DiskUse(4_000, 25), disk_low="target-disk-low: broker 1")
    told = shot(monkeypatch, Cluster(), Cluster(), word).links[0]
    assert (told.disk_bytes, told.disk_growth, told.disk_low) == (4_000, 25, ("target-disk-low: broker 1",))


@pytest.mark.parametrize(
    ("size", "growth", "text"),
    [
        (None, None, "?, ?/h"),
        (1_500_000_000, None, "1.5 GB, ?/h"),
        (1_500_000_000, 3_000_000, "1.5 GB, +3 MB/h"),
        (0, -3_000_000, "0 B, -3 MB/h"),
    ],
)
def test_an_unknown_size_or_growth_is_shown_as_unknown(size: int | None, growth: int | None, text: str) -> None:
    link = status.LinkStatus("l", "s", "t", "", disk_bytes=size, disk_growth=growth, disk_low=("target-disk-low: b",))
    topic = status.TopicStatus("l", "t", TopicPhase.MIRRORING, 1, "", "identical", ())
    seen = status.Snapshot(0, 0, (link,), (topic,), (), (), frozenset(), (), ())
    console = Console(width=200)
    with console.capture() as said:
        console.print(snapshot_view(seen))
    assert f"disk on t: {text}" in said.get()
    assert "! target-disk-low: b" in said.get()
    assert seen.as_json()["links"][0]["disk_bytes"] == size


def test_what_a_controller_cannot_watch_is_said_of_the_link_and_of_all_links(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {LINK.key: "late-unread: t-0 at 5: TOPIC_AUTHORIZATION_FAILED", f"{DUTY}watch groups": "watch groups: odd"}
    told = shot(monkeypatch, Cluster(), Cluster(), ControllerPresence("c", 1, True, 500, waits))
    assert told.links[0].notes == (f"late writes are not looked for now: {waits[LINK.key]}",)
    assert told.warnings == ("controller c: watch groups: odd",)
