"""All that a rehearsal has made is removed, its link last, and nothing of a rehearsal that still runs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import Failed, Refused
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import RehearsalPresence
from kmigrate.model.records import BarrierRecord, ClusterRef, GroupRecord, LeaseRecord, LinkRecord, TopicRecord
from kmigrate.model.rehearsals import group_of, link_of, shadow_of
from kmigrate.workflow.rehearsal import cleaning
from kmigrate.workflow.rehearsal.cleaning import RehearsalCleaner, clean
from kmigrate.workflow.rehearsal.running import announce, dead_rehearsals, running_rehearsals
from tests.fakes.state_log import MemoryLog

WEST, EAST = ClusterRef("west", "h:1"), ClusterRef("east", "h:2")
REAL = LinkRecord("blue", "u", WEST, EAST, 1)
LINK = LinkRecord(link_of("ab12"), "v", WEST, EAST, 1)
SHADOW, GROUP = shadow_of(LINK.name, "orders"), group_of(LINK.name)
RULE = Acl("topic", SHADOW, "User:reader", "*", "READ")
OWN = TopicRecord("blue", "orders", TopicPhase.MIRRORING, 1)
RECORDS = (
    TopicRecord(LINK.name, SHADOW, TopicPhase.FENCED, 1, granted_acls=(RULE,)),
    GroupRecord(LINK.name, GROUP, GroupPhase.PROMOTED, 1),
    BarrierRecord(LINK.name, SHADOW, 0, 0, {}),
    LeaseRecord(f"mirror/{LINK.name}", "m", 3),
)


class Cluster:
    """A cluster with topics and groups, and its admin client."""

    def __init__(self, name: str, busy: int = 0) -> None:
        self.name, self.busy = name, busy
        self.topics = {
            "orders": 1,
            SHADOW: 1,
            shadow_of(link_of("ab12"), "left"): 1,
            shadow_of(link_of("cd34"), "orders"): 1,
        }
        self.groups = {"billing", GROUP}
        self.rules = [RULE]
        self.down = False

    async def refresh(self) -> Any:
        return SimpleNamespace(topics=dict(self.topics))

    async def delete_topic(self, name: str) -> None:
        if self.down:
            raise Failed("cluster-unreachable", f"{self.name} does not answer")
        del self.topics[name]

    async def delete_groups(self, names: list[str]) -> list[str]:
        self.busy -= 1
        if self.busy >= 0:
            return names
        self.groups -= set(names)
        return []

    async def delete_acls(self, rules: Any) -> None:
        self.rules = [rule for rule in self.rules if rule not in rules]


class Connections:
    """Connections to a source and a target that hold what a rehearsal has made."""

    def __init__(self, busy: int = 0) -> None:
        self.log: Any = MemoryLog(REAL, OWN, LINK, *RECORDS)
        self.west, self.target = Cluster("west", busy), Cluster("east")
        self.target_admin = self.target

    async def source(self, _: LinkRecord) -> tuple[Cluster, Cluster]:
        return self.west, self.west


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_GROUP_S", 0.6)


def assert_clean(world: Connections) -> None:
    assert set(world.log.state.records) == {REAL.key, OWN.key}
    for cluster in (world.west, world.target):
        assert set(cluster.topics) == {"orders", shadow_of(link_of("cd34"), "orders")}
        assert cluster.groups == {"billing"}
    assert world.target.rules == []


def test_topics_groups_rules_and_records_are_removed() -> None:
    world = Connections()
    asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    assert_clean(world)
    asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    assert_clean(world)


@pytest.mark.parametrize("step", range(9))
def test_a_removal_that_dies_anywhere_is_repeated(step: int) -> None:
    """The n-th append dies, as at kill -9: the link is still known, and a rerun removes everything."""
    world, left = Connections(), step
    whole = MemoryLog.append

    async def dying(log: Any, decide: Any, timeout: float = 30.0) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return await whole(log, decide, timeout)

    world.log.append = lambda decide, timeout=30.0: dying(world.log, decide, timeout)
    try:
        asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    except KeyboardInterrupt:
        assert world.log.state.link(LINK.name) is not None or step >= 7  # only the lease is left
    del world.log.append
    asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    assert world.log.state.link(LINK.name) is None
    assert SHADOW not in world.west.topics and SHADOW not in world.target.topics


def test_a_cluster_that_is_away_leaves_the_link_for_the_next_try() -> None:
    world = Connections()
    world.west.down = True
    with pytest.raises(Failed, match="west does not answer"):
        asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    assert [each.name for each in dead_rehearsals(world.log)] == [LINK.name]
    world.west.down = False
    asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    assert_clean(world)


def test_members_that_time_out_are_waited_for_and_members_that_stay_are_named() -> None:
    world = Connections(busy=1)
    asyncio.run(clean(world, LINK))  # type: ignore[arg-type]
    assert_clean(world)
    with pytest.raises(Failed, match="still has members") as stays:
        asyncio.run(clean(Connections(busy=1000), LINK))  # type: ignore[arg-type]
    assert stays.value.ref == "rehearsal-group-stays"


def test_a_rehearsal_with_a_heartbeat_runs_and_another_links_heartbeat_counts_for_nothing() -> None:
    world = Connections()
    asyncio.run(announce(world.log, link_of("cd34"), "i"))
    assert [each.name for each in dead_rehearsals(world.log)] == [LINK.name]
    asyncio.run(announce(world.log, LINK.name, "i"))
    assert world.log.alive(RehearsalPresence)
    assert dead_rehearsals(world.log) == []
    assert running_rehearsals(world.log) == [LINK.name]


def test_the_controller_removes_dead_rehearsals_and_tries_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Connections()
    world.west.down = True
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        world.west.down = False
        if len(pauses) == 2:
            raise Refused("over", "the test is over")

    monkeypatch.setattr(cleaning, "sleep", pause)
    with pytest.raises(Refused, match="over"):
        asyncio.run(RehearsalCleaner(world).run())  # type: ignore[arg-type]
    assert_clean(world)
    assert pauses[0] > pauses[1]
    assert "not removed yet" in caplog.text
