"""The members of a group with their places, and the lag of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.cluster.groups import placeholder_id
from kmigrate.errors import Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase
from kmigrate.model.members import member_mark
from kmigrate.model.presences import ConnectedClient, GroupReport, JoinTerms, RouterPresence
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord
from kmigrate.workflow.status import group_detail as module
from kmigrate.workflow.status.group_detail import GroupDetail, MemberDetail, PartitionDetail, Place, group_detail
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
HOLDS = GroupRecord("l", "g", GroupPhase.MIRRORED, 1)
FOLLOWS = replace(HOLDS, mode=GroupMode.FOLLOW)
ONE, TWO = GroupMember("one-1", "one", "/10.0.0.1"), GroupMember("two-2", "two", "/10.0.0.2")
HELD = GroupMember("kmigrate-hold-1", "kmigrate", "/10.0.0.9")


class Side:
    """One cluster: its members with their partitions, and a log end of 50 in each partition."""

    def __init__(self, members: Mapping[GroupMember, tuple[tuple[str, int], ...]], *, away: str = "") -> None:
        assigned = {each.member_id: keys for each, keys in members.items()}
        self.state = GroupState("g", "stable", "classic", tuple(members), frozenset(), assigned)
        self.away = away

    async def describe_groups(self, names: list[str]) -> dict[str, GroupState]:
        if self.away:
            raise Unreachable("cluster-unreachable", self.away)
        return dict.fromkeys(names, self.state)

    async def refresh(self, _: Any) -> None:
        return None

    async def list_offsets(self, wanted: Mapping[Any, int]) -> dict[Any, LogOffset]:
        return {key: LogOffset(0, 50, 0) for key in wanted}


def detail(
    monkeypatch: pytest.MonkeyPatch,
    record: GroupRecord,
    source: Side,
    target: Side,
    *routers: RouterPresence,
    positions: Mapping[tuple[str, int], int] | None = None,
) -> GroupDetail:
    async def read(client: Any, *_: Any, **__: Any) -> dict[Any, CommittedOffset]:
        asked.append(client)
        return {key: CommittedOffset(at, "") for key, at in (positions or {}).items()}

    async def opened(_: LinkRecord) -> Any:
        return source, source

    asked: list[Any] = []
    monkeypatch.setattr(module, "read_positions", read)
    log = MemoryLog(LINK, record)
    for router in routers:
        log.say(router)
    it: Any = SimpleNamespace(log=log, target=target, target_admin=target, source=opened)
    found = asyncio.run(group_detail(it, LINK, record))
    assert asked == [target if record.phase is GroupPhase.PROMOTED else source]
    return found


def test_members_of_a_group_that_follows_are_at_routers_or_at_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    router = RouterPresence("r", "r", 1, 500, groups={"g": GroupReport(members=(member_mark("one-1"),))})
    source = Side({ONE: (("t", 0),), TWO: (("t", 1),)})
    found = detail(monkeypatch, FOLLOWS, source, Side({}), router, positions={("t", 0): 45, ("t", 1): 50})
    assert found.members == (
        MemberDetail(Place.ROUTER, "one", "/10.0.0.1", "one-1", (("t", 0),)),
        MemberDetail(Place.SOURCE, "two", "/10.0.0.2", "two-2", (("t", 1),)),
    )
    assert found.partitions == (PartitionDetail("t", 0, 45, 50, "one-1"), PartitionDetail("t", 1, 50, 50, "two-2"))
    assert [each.lag for each in found.partitions] == [5, 0]


def test_clients_that_wait_at_a_router_are_members_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    router = RouterPresence(
        "r", "r", 1, 500, waiting=("g",), joins={"g": (JoinTerms("three", 10_000),)},
        clients=(ConnectedClient("three", "10.0.0.3"),),
    )  # fmt: skip
    found = detail(monkeypatch, HOLDS, Side({ONE: ()}), Side({}), router)
    assert [(each.place, each.client_id, each.host) for each in found.members] == [
        (Place.SOURCE, "one", "/10.0.0.1"),
        (Place.ROUTER, "three", "10.0.0.3"),
    ]
    done = replace(HOLDS, phase=GroupPhase.PROMOTED)
    assert not detail(monkeypatch, done, Side({}), Side({}), router).members, "nobody waits after the promote"


def test_after_the_promote_the_target_counts_and_placeholders_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = GroupMember(placeholder_id("g"), "kmigrate", "/10.0.0.9")
    done = replace(FOLLOWS, phase=GroupPhase.PROMOTED)
    target = Side({TWO: (("t", 0),), ours: ()})
    found = detail(monkeypatch, done, Side({HELD: ()}), target, positions={("t", 0): 60, ("t", 1): 7})
    assert [(each.place, each.client_id) for each in found.members] == [(Place.TARGET, "two")]
    assert [(each.partition, each.lag, each.reader) for each in found.partitions] == [(0, -1, "two-2"), (1, 43, "")]


def test_a_partition_without_a_committed_offset_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detail(monkeypatch, FOLLOWS, Side({ONE: (("t", 3),)}), Side({}))
    assert [(each.committed, each.lag) for each in found.partitions] == [(-1, -1)]


def test_a_cluster_that_is_away_is_named_and_the_other_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detail(monkeypatch, FOLLOWS, Side({ONE: ()}), Side({}, away="no broker of the target answers"))
    assert (found.trouble, len(found.members)) == ("no broker of the target answers", 1)
    json = found.as_json()
    assert json["members"][0]["place"] == "source"
    assert (json["trouble"], json["partitions"]) == (found.trouble, [])
