"""A promoted group can be rolled back where the source has, or gets, all records that the group has read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.errors import Failed, Refused, Unreachable, WaitTimedOut
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    Action,
    Asked,
    GroupRecord,
    RouterRecord,
    TopicRecord,
    TransactionRecord,
    WayBack,
)
from kmigrate.model.rights import NOT_REPORTED, Operations, Rights
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import ApiKey
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import group_rollback, roll_back_groups, wait_groups_rolled_back
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

MEMBER = GroupMember("m-1", "shop", "/10.0.0.1")
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTED, 1, mode=GroupMode.FOLLOW, asked=Asked(Action.PROMOTE, 1, "ann"))
ROUTER = RouterRecord("r", "i", "h", "h:1", 1)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
PROMOTED = replace(TOPIC, phase=TopicPhase.PROMOTED)
SOURCE = ClusterSettings("source", ())
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",), ("g",))


@dataclass
class Estate:
    """Both clusters of a link with a promoted group, as the guards of a rollback see them."""

    log: MemoryLog
    target: str = "target"
    settings: ClusterSettings = SOURCE
    kind: str = "classic"
    members: tuple[GroupMember, ...] = (MEMBER,)
    on_source: tuple[GroupMember, ...] | Failed = ()
    positions: Committed = field(default_factory=lambda: {("t", 0): CommittedOffset(60, "")})
    end: int = 60
    rights: Operations = NOT_REPORTED
    versions: dict[int, int] = field(default_factory=lambda: {ApiKey.CONSUMER_GROUP_HEARTBEAT: 1})

    async def source(self, _: object) -> tuple[Estate, Estate]:
        return self, self

    async def refresh(self, _: object) -> None: ...

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return {key: LogOffset(0, self.end, 0) for key in wanted}

    def waits_for(self, _: object) -> str:
        return "shop to join anew"

    @property
    def group(self) -> GroupRecord:
        found = self.log.state.group("l", "g")
        assert found is not None
        return found


def estate(*records: Record) -> Estate:
    log = MemoryLog(LINK, ROUTER, *(records or (GROUP, TOPIC)))
    log.say(RouterPresence("i", "r", 100, 500))
    log.say(MirrorPresence("m1", "l", 100, True, 500))
    return Estate(log)


@pytest.fixture(autouse=True)
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[Estate]:
    made: list[Estate] = []

    async def settled(_: object, groups: Collection[str]) -> dict[str, GroupState]:
        return {g: GroupState(g, "stable", made[0].kind, made[0].members, frozenset({"t"})) for g in groups}

    async def positions(_: object, group: str, *, stable: bool) -> Committed:
        return made[0].positions

    async def versions(_: object) -> dict[int, int]:
        return made[0].versions

    async def rights(_: object, topics: object, groups: Collection[str]) -> Rights:
        return Rights(NOT_REPORTED, groups=dict.fromkeys(groups, made[0].rights))

    async def misplaced(_: object, records: Any) -> dict[str, Any]:
        return {record.group: made[0].on_source for record in records}

    monkeypatch.setattr(group_rollback, "settled_groups", settled)
    monkeypatch.setattr(group_rollback, "read_positions", positions)
    monkeypatch.setattr(group_rollback, "api_versions", versions)
    monkeypatch.setattr(group_rollback, "read_rights", rights)
    monkeypatch.setattr(group_rollback, "misplaced_in", misplaced)
    return made


def rolled(it: Estate, clusters: list[Estate], *, plan: bool = False) -> Plan:
    clusters[:] = [it]
    return asyncio.run(run_verb(roll_back_groups(it, None, ["g"], who="bob@desk"), plan=plan))  # type: ignore[arg-type]


def refused(it: Estate, clusters: list[Estate]) -> Refused:
    before = it.log.state
    with pytest.raises(Refused) as error:
        rolled(it, clusters)
    assert it.log.state is before
    return error.value


def test_a_rollback_is_asked_for_in_the_record(clusters: list[Estate]) -> None:
    it = estate(replace(GROUP, reason="before", way_on="before"), TOPIC)
    made = rolled(it, clusters)
    assert made.changes == ("roll back group g",)
    assert [each.ref for each in made.findings] == ["follows"]
    group = it.group
    assert (group.phase, group.reason, group.way_on) == (GroupPhase.ROLLING_BACK, "", "")
    assert group.asked is not None
    assert (group.asked.action, group.asked.by) == (Action.ROLLBACK, "bob@desk")


def test_a_plan_changes_nothing(clusters: list[Estate]) -> None:
    it = estate(replace(GROUP, auto=True), TOPIC)
    assert rolled(it, clusters, plan=True).changes == ("roll back group g, without an automatic promote afterwards",)
    assert it.group.phase is GroupPhase.PROMOTED


def test_members_of_a_group_that_held_are_said_to_wait(clusters: list[Estate]) -> None:
    it = estate(replace(GROUP, mode=GroupMode.HOLD), TOPIC)
    (found,) = rolled(it, clusters, plan=True).findings
    assert (found.level, found.ref) == ("warn", "holds")
    it.members = ()
    (found,) = rolled(it, clusters, plan=True).findings
    assert (found.level, found.ref) == ("ok", "holds")


@pytest.mark.parametrize(
    ("group", "ref"),
    [
        (replace(GROUP, phase=GroupPhase.ROLLING_BACK), "under-way"),
        (replace(GROUP, phase=GroupPhase.MIRRORED, asked=Asked(Action.ROLLBACK, 1, "ann")), "already-rolled-back"),
    ],
)
def test_a_second_call_changes_nothing(group: GroupRecord, ref: str, clusters: list[Estate]) -> None:
    made = rolled(estate(group, TOPIC), clusters)
    assert ([each.ref for each in made.findings], made.changes) == ([ref], ())


@pytest.mark.parametrize("phase", [GroupPhase.MIRRORED, GroupPhase.PROMOTING])
def test_only_a_promoted_group_is_rolled_back(phase: GroupPhase, clusters: list[Estate]) -> None:
    assert refused(estate(replace(GROUP, phase=phase), TOPIC), clusters).ref == "not-promoted"


def test_a_group_whose_positions_go_into_transactions_stays(clusters: list[Estate]) -> None:
    error = refused(estate(GROUP, TOPIC, replace(TILL, topics=())), clusters)
    assert (error.ref, "till" in error.what) == ("group-in-transactions", True)


def test_a_group_is_not_taken_out_of_the_transactions_that_write_a_promoted_topic(clusters: list[Estate]) -> None:
    error = refused(estate(GROUP, replace(PROMOTED, way_back=WayBack({0: 50})), TILL), clusters)
    assert error.ref == "coupled-topics"
    assert error.next_step == "roll the topics back, and the group goes with them: kmigrate rollback --link l t"


def test_a_group_that_reads_a_topic_without_a_way_back_stays(clusters: list[Estate]) -> None:
    assert refused(estate(GROUP, PROMOTED), clusters).ref == "no-way-back"
    it = estate(GROUP, replace(PROMOTED, way_back=WayBack({0: 50})))
    assert rolled(it, clusters).changes == ("roll back group g",)


def test_a_topic_that_is_assigned_counts_before_its_first_commit(clusters: list[Estate]) -> None:
    it = estate(GROUP, PROMOTED)
    it.positions = {}
    assert refused(it, clusters).ref == "no-way-back"


def test_a_copy_to_the_source_that_is_far_behind_keeps_a_rollback_back(clusters: list[Estate]) -> None:
    it = estate(GROUP, replace(PROMOTED, way_back=WayBack({0: 50})))
    it.positions = {("t", 0): CommittedOffset(it.end + LINK.settings.lag_threshold + 1, "")}
    assert refused(it, clusters).ref == "source-behind-group"
    it.positions = {("t", 0): CommittedOffset(it.end + LINK.settings.lag_threshold, "")}
    assert rolled(it, clusters).changes == ("roll back group g",)


def test_a_silent_router_keeps_a_rollback_back(clusters: list[Estate]) -> None:
    it = estate()
    it.log.silence("router/i")
    assert refused(it, clusters).ref == "router-silent"


def test_members_without_any_router_are_named(clusters: list[Estate]) -> None:
    it = estate()
    it.log._put(ROUTER.key, None)
    assert "shop at /10.0.0.1" in refused(it, clusters).what
    it.members = ()
    assert rolled(it, clusters).changes == ("roll back group g",)


def test_members_on_the_source_are_named(clusters: list[Estate]) -> None:
    it = estate()
    it.on_source = (GroupMember("s-1", "old-shop", "/10.0.0.9"),)
    assert refused(it, clusters).ref == "member-on-source"
    it.on_source = Unreachable("broker-unreachable", "the source is away")
    with pytest.raises(Unreachable):
        rolled(it, clusters)


def test_a_source_that_lets_kmigrate_not_commit_for_the_group_is_named_with_the_acl(clusters: list[Estate]) -> None:
    it = estate()
    it.rights = Operations.exactly({"DESCRIBE"})
    assert refused(it, clusters).ref == "right-missing"
    it.rights = Operations.exactly({"DESCRIBE", "READ"})
    assert rolled(it, clusters).changes == ("roll back group g",)


def test_members_of_the_new_protocol_need_a_source_that_serves_it(clusters: list[Estate]) -> None:
    it = estate()
    it.kind, it.versions = "consumer", {}
    assert refused(it, clusters).ref == "source-lacks-protocol"


def test_the_wait_ends_with_the_rollback_or_names_why_there_is_none(clusters: list[Estate]) -> None:
    back = replace(GROUP, phase=GroupPhase.MIRRORED, reason="")
    assert asyncio.run(wait_groups_rolled_back(estate(back), "l", ["g"], 1)) == [back]  # type: ignore[arg-type]
    given_up = replace(GROUP, reason="members-past-routers: shop", way_on="restart shop")
    with pytest.raises(Failed) as error:
        asyncio.run(wait_groups_rolled_back(estate(given_up), "l", ["g"], 1))  # type: ignore[arg-type]
    assert (error.value.ref, error.value.next_step) == (
        "rollback-given-up",
        "restart shop; then: kmigrate group rollback --link l g",
    )
    going = replace(GROUP, phase=GroupPhase.ROLLING_BACK)
    with pytest.raises(WaitTimedOut) as late:
        asyncio.run(wait_groups_rolled_back(estate(going), "l", ["g"], 0.1))  # type: ignore[arg-type]
    assert "shop to join anew" in late.value.what
