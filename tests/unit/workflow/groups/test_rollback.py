"""The rollback of a promoted group: members join anew, the group is frozen, positions go to the source, it is mirrored.

After a failure the group is promoted as before, and its record has the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.errors import KmigrateError, Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.presences import GroupReport, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, MisplacedRecord, RouterRecord, TopicRecord, WayBack, misplaced_key
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.unit import PromoteProgress
from kmigrate.workflow.groups import membership, rollback
from kmigrate.workflow.groups.rollback import GroupRollback
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

MEMBER = GroupMember("m-1", "shop", "/10.0.0.1")
GROUP = GroupRecord(
    "l", "g", GroupPhase.ROLLING_BACK, 1, mode=GroupMode.FOLLOW, left_at={"t": {0: 5}}, promoted_ms=7, auto=True
)
ROUTER = RouterRecord("r", "i", "h", "h:1", 1)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 0})
BACK = replace(TOPIC, phase=TopicPhase.PROMOTED, way_back=WayBack({0: 50}))
READ = {("t", 0): CommittedOffset(60, "note")}


@dataclass
class Cluster:
    """A cluster with the committed offsets of one group, its members there, and the end of its logs."""

    positions: Committed
    members: tuple[GroupMember, ...] = ()
    end: int = 100
    state: str = "stable"
    ends: list[int] = field(default_factory=list)
    """Log ends at the next looks."""
    refuses: list[str] = field(default_factory=list)
    """Errors of the next writes."""
    done: list[str] = field(default_factory=list)
    fails: KmigrateError | None = None
    on_write: Callable[[], None] = lambda: None

    async def describe_groups(self, names: list[str]) -> dict[str, GroupState]:
        return {name: GroupState(name, self.state, "classic", self.members) for name in names}

    async def refresh(self, _: object) -> None: ...

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        end = self.ends.pop(0) if self.ends else self.end
        return {key: LogOffset(0, end, 0) for key in wanted}


@dataclass
class Stage:
    """A single rollback, with a state log in memory."""

    log: MemoryLog
    source: Cluster = field(default_factory=lambda: Cluster({("t", 0): CommittedOffset(5, "")}))
    target: Cluster = field(default_factory=lambda: Cluster(dict(READ), (MEMBER,)))
    progress: PromoteProgress = field(default_factory=PromoteProgress)

    def says(self, *, applied: int = 1 << 30, **word: object) -> None:
        self.log.say(RouterPresence("i", "r", applied, 500, groups={"g": GroupReport(**word)}))  # type: ignore[arg-type]

    def joined(self) -> Stage:
        self.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
        return self

    @property
    def group(self) -> GroupRecord:
        found = self.log.state.group("l", "g")
        assert found is not None
        return found

    async def open_source(self, _: object) -> tuple[Cluster, Cluster]:
        if self.source.fails is not None:
            raise self.source.fails
        return self.source, self.source

    async def run(self, gather_s: float = 5.0, timeout_s: float = 5.0) -> None:
        connections: Any = SimpleNamespace(
            log=self.log, target=self.target, target_admin=self.target, source=self.open_source
        )
        await GroupRollback(connections, LINK, "g", gather_s, timeout_s, self.progress).run()


def stage(*records: Record) -> Stage:
    return Stage(MemoryLog(LINK, ROUTER, *(records or (GROUP, TOPIC)))).joined()


def given_up(made: Stage, ref: str, **spans: float) -> KmigrateError:
    """Run a rollback; check that the rollback is given up with `ref`, and that the group is promoted as before."""
    with pytest.raises(KmigrateError) as error:
        asyncio.run(made.run(**spans))
    assert error.value.ref == ref
    group = made.group
    assert (group.phase, group.mode, group.auto) == (GroupPhase.PROMOTED, GroupMode.FOLLOW, True)
    assert (group.gathering, group.frozen) == (False, False)
    assert group.reason.startswith(ref)
    assert group.promoted_ms == 7
    assert made.progress.waits == {}
    return error.value


@pytest.fixture(autouse=True)
def clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(cluster: Cluster, group: str, timeout: float | None = None, *, stable: bool = True) -> Committed:
        return dict(cluster.positions)

    async def write(
        cluster: Cluster, group: str, wanted: Committed, allowed: Callable[[], Awaitable[None]]
    ) -> dict[tuple[str, int], str]:
        cluster.on_write()
        await allowed()
        cluster.done.append("write")
        if cluster.refuses:
            return dict.fromkeys(wanted, cluster.refuses.pop(0))
        cluster.positions |= wanted
        return {}

    async def members(cluster: Cluster, group: str) -> tuple[GroupMember, ...]:
        return cluster.members

    async def is_mixed(cluster: Cluster, group: str) -> bool:
        return len({each.client_id for each in cluster.members}) > 1

    class Hold:
        def __init__(self, cluster: Cluster, group: str) -> None:
            self._done = cluster.done

        async def release(self) -> None:
            self._done.append("release")

    class Placeholder(Hold):
        async def take(self) -> None:
            self._done.append("take")

        async def leave(self) -> None:
            self._done.append("leave")

    monkeypatch.setattr(rollback, "read_positions", read)
    monkeypatch.setattr(rollback, "write_positions", write)
    monkeypatch.setattr(rollback, "group_members", members)
    monkeypatch.setattr(rollback, "is_mixed", is_mixed)
    monkeypatch.setattr(rollback, "GroupHold", Hold)
    monkeypatch.setattr(rollback, "PlaceholderMember", Placeholder)
    monkeypatch.setattr(membership, "_HEARTBEATS_S", 0.1)


@pytest.mark.parametrize("topic", [TOPIC, BACK], ids=["mirrored", "with a way back"])
@pytest.mark.parametrize("mode", list(GroupMode))
def test_a_group_is_mirrored_again_with_the_targets_positions_and_their_metadata(
    topic: TopicRecord, mode: GroupMode
) -> None:
    made = stage(replace(GROUP, mode=mode), topic)
    asyncio.run(made.run())
    assert made.source.positions == READ
    assert made.source.done == ["leave", "release", "write"], "with a member in the group nothing can be written"
    group = made.group
    assert (group.phase, group.mode, group.frozen, group.reason) == (GroupPhase.MIRRORED, mode, False, "")
    assert (group.written, group.left_at, group.promoted_ms) == ({"t": {0: 60}}, {}, 0)
    assert group.former == (member_mark("m-1"),)


def test_the_controller_promotes_no_group_by_itself_that_a_person_has_rolled_back() -> None:
    made = stage()
    asyncio.run(made.run())
    assert not made.group.auto


def test_what_was_seen_on_the_source_after_the_promote_is_forgotten() -> None:
    made = stage(GROUP, TOPIC, MisplacedRecord("l", "g", commits={"t": {0: 9}}))
    asyncio.run(made.run())
    assert misplaced_key("l", "g") not in made.log.state.records


def test_a_rollback_goes_on_where_a_controller_has_left_it() -> None:
    """The record says that the group is frozen; the earlier controller may have written positions already."""
    made = stage(replace(GROUP, gathering=True, frozen=True), TOPIC)
    made.says()
    made.source.positions = dict(READ)
    made.target.members = ()
    asyncio.run(made.run())
    assert made.group.phase is GroupPhase.MIRRORED


def test_members_that_do_not_join_anew_end_a_rollback() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),))
    assert "shop" in given_up(made, "members-not-joined", gather_s=0.2).what
    assert [each.gathering for each in made.log.history if isinstance(each, GroupRecord)][-2:] == [True, False]
    assert made.source.done == []


def test_members_past_the_routers_are_named_before_a_member_is_disturbed() -> None:
    made = stage()
    made.says()
    assert "shop at /10.0.0.1" in given_up(made, "members-past-routers", gather_s=0.2).what
    assert [each for each in made.log.history if isinstance(each, GroupRecord) and each.gathering] == []


def test_a_member_that_comes_past_the_routers_later_is_named() -> None:
    made = stage(replace(GROUP, gathering=True), TOPIC)
    made.says()
    assert "shop at /10.0.0.1" in given_up(made, "members-past-routers").what


def test_a_rebalance_is_waited_for_and_named() -> None:
    made = stage()
    made.target.state = "preparing_rebalancing"
    assert "rebalance" in given_up(made, "members-not-joined", gather_s=0.2).what


def test_a_copy_that_is_far_behind_ends_a_rollback_before_a_member_is_disturbed() -> None:
    made = stage(GROUP, BACK)
    made.target.positions = {("t", 0): CommittedOffset(60 + 10 * LINK.settings.lag_threshold, "")}
    given_up(made, "source-behind-group", gather_s=0.2)
    assert [each for each in made.log.history if isinstance(each, GroupRecord) and each.gathering] == []


def test_a_router_with_commits_in_flight_is_waited_for_and_named() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),), in_flight=1)
    assert (
        "router r still waits for commits or transactions of group g at the target"
        in given_up(made, "not-drained", timeout_s=0.2).what
    )


def test_a_router_that_has_not_heard_of_the_freeze_is_waited_for() -> None:
    made = stage()
    made.says(applied=0, members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
    given_up(made, "not-drained", timeout_s=0.2)
    assert made.source.done == []


def test_the_copy_to_the_source_is_waited_for() -> None:
    made = stage(GROUP, BACK)
    made.source.ends = [50, 50, 59, 60]
    asyncio.run(made.run())
    assert (made.group.phase, made.source.ends) == (GroupPhase.MIRRORED, [])


def test_a_copy_that_does_not_come_in_time_ends_a_rollback() -> None:
    made = stage(GROUP, BACK)
    made.source.end = 58
    assert "2 of t-0" in given_up(made, "source-behind-group", timeout_s=0.2).what
    assert made.source.positions[("t", 0)].offset == 5


@pytest.mark.parametrize(
    ("topics", "ref"),
    [
        ((), "topic-not-mirrored"),
        ((replace(TOPIC, phase=TopicPhase.ALIGNING),), "topic-not-ready"),
        ((replace(BACK, way_back=None),), "no-way-back"),
        ((replace(BACK, way_back=WayBack({0: 50}, ended="someone wrote", ended_ms=9)),), "no-way-back"),
    ],
    ids=["not mirrored", "not copied", "without a way back", "with an ended way back"],
)
def test_a_topic_whose_records_the_source_does_not_get_ends_a_rollback(
    topics: tuple[TopicRecord, ...], ref: str
) -> None:
    made = stage(GROUP, *topics)
    given_up(made, ref)
    assert "write" not in made.source.done


def test_a_member_on_the_source_ends_a_rollback() -> None:
    made = stage()
    made.source.members = (GroupMember("s-1", "old-shop", "/10.0.0.9"), GroupMember("kmigrate-hold-1", "k", "/h"))
    assert "1 member(s) on the source: old-shop" in given_up(made, "member-on-source").what


def test_a_hold_that_the_watch_has_taken_once_more_is_released_again() -> None:
    made = stage()
    made.source.refuses = ["UNKNOWN_MEMBER_ID"]
    asyncio.run(made.run())
    assert made.source.done == ["leave", "release", "write", "release", "write"]


def test_a_source_that_refuses_positions_ends_a_rollback() -> None:
    made = stage()
    made.source.refuses = ["GROUP_AUTHORIZATION_FAILED"]
    assert "GROUP_AUTHORIZATION_FAILED" in given_up(made, "offsets-not-written").what
    assert made.source.done == ["leave", "release", "write"], "the members wait meanwhile, so it is not tried again"


def test_a_member_that_stays_on_the_source_unseen_ends_a_rollback() -> None:
    made = stage()
    made.source.refuses = ["UNKNOWN_MEMBER_ID"] * 100
    given_up(made, "offsets-not-written", timeout_s=0.2)


def test_a_source_that_does_not_answer_ends_a_rollback() -> None:
    made = stage()
    made.source.fails = Unreachable("broker-unreachable", "source is away")
    given_up(made, "broker-unreachable")


def test_a_commit_on_the_target_meanwhile_ends_a_rollback_and_the_watch_knows_what_the_source_has() -> None:
    made = stage()

    def commit() -> None:
        made.target.positions[("t", 0)] = CommittedOffset(61, "")

    made.source.on_write = commit
    given_up(made, "offsets-moved")
    assert made.group.left_at == {"t": {0: 60}}, "else the watch would call these positions a commit on the source"


def test_nothing_is_written_once_another_process_has_ended_the_rollback() -> None:
    made = stage()

    def ended() -> None:
        made.log._put(made.group.key, replace(made.group, phase=GroupPhase.PROMOTED, frozen=False))

    made.source.on_write = ended
    with pytest.raises(KmigrateError) as error:
        asyncio.run(made.run())
    assert error.value.ref == "changed-meanwhile"
    assert (made.source.positions[("t", 0)].offset, made.group.phase) == (5, GroupPhase.PROMOTED)


def test_a_placeholder_joins_the_source_before_members_of_both_protocols_do() -> None:
    made = stage()
    made.target.members = (MEMBER, GroupMember("m-2", "till", "/10.0.0.2"))
    marks = tuple(map(member_mark, ("m-1", "m-2")))
    made.says(members=marks, joined=marks)
    asyncio.run(made.run())
    assert made.source.done == ["leave", "release", "write", "take"]


def test_mapped_offsets_are_translated_and_the_group_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def maps(self: Positions, record: TopicRecord) -> dict[int, OffsetMap]:
        made = OffsetMap([Run(10, 55, 100)])
        made.begin(10, 55)
        return {0: made}

    monkeypatch.setattr(Positions, "maps", maps)
    made = stage(GROUP, replace(TOPIC, target_starts={0: 55}, mapped=True))
    asyncio.run(made.run())
    assert made.source.positions == {("t", 0): CommittedOffset(15, "note")}
    assert (made.group.phase, made.group.mode) == (GroupPhase.MIRRORED, GroupMode.HOLD)


def test_a_position_beyond_the_offset_map_ends_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def maps(self: Positions, record: TopicRecord) -> dict[int, OffsetMap]:
        return {0: OffsetMap([Run(0, 0, 10)])}

    monkeypatch.setattr(Positions, "maps", maps)
    given_up(stage(GROUP, replace(TOPIC, mapped=True)), "source-behind-group")
