"""The rollback of a promoted group: members join anew, the group is frozen, positions go to the source, it is mirrored.

After a failure the group is promoted as before, and its record has the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.cluster.transactions import CoordinatedTransaction
from kmigrate.errors import BrokerRefused, KmigrateError, Unreachable
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.presences import GroupReport, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    Action,
    Asked,
    GroupRecord,
    MisplacedRecord,
    PromotedUnit,
    RouterRecord,
    TopicRecord,
    TransactionRecord,
    WayBack,
    misplaced_key,
)
from kmigrate.workflow.base import open_transactions
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
WRITTEN = replace(BACK, topic="u", phase=TopicPhase.ROLLBACK_PENDING)
"""A topic that is rolled back with the group, because transactions write it and commit the group's positions."""
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("u",), ("g",))
FLIPPED = replace(WRITTEN, phase=TopicPhase.MIRRORING, way_back=None, unit=PromotedUnit(groups=("g",)))


@dataclass
class Cluster:
    """A cluster with the committed offsets of one group, its members there, and the end of its logs."""

    positions: Committed
    members: tuple[GroupMember, ...] = ()
    end: int = 100
    state: str = "stable"
    kind: str = "classic"
    ends: list[int] = field(default_factory=list)
    """Log ends at the next looks."""
    refuses: list[str] = field(default_factory=list)
    """Errors of the next writes."""
    done: list[str] = field(default_factory=list)
    fails: KmigrateError | None = None
    on_write: Callable[[], None] = lambda: None

    async def describe_groups(self, names: list[str]) -> dict[str, GroupState]:
        return {name: GroupState(name, self.state, self.kind, self.members) for name in names}

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
    assert (group.gathering, group.frozen, group.staged) == (False, False, False)
    assert group.reason.startswith(ref)
    assert group.promoted_ms == 7
    assert made.progress.waits == {}
    return error.value


@pytest.fixture(autouse=True)
def former_members(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_out(cluster: Cluster, group: str, marks: Collection[str]) -> None:
        cluster.members = tuple(each for each in cluster.members if member_mark(each.member_id) not in marks)
        cluster.done.append("take out")

    monkeypatch.setattr(rollback, "take_out_former", take_out)


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
    assert made.source.done == ["leave", "take out", "release", "write"], (
        "with a member in the group nothing can be written"
    )
    group = made.group
    assert (group.phase, group.mode, group.frozen, group.reason) == (GroupPhase.MIRRORED, mode, False, "")
    assert (group.written, group.left_at, group.promoted_ms) == ({"t": {0: 60}}, {}, 0)
    assert group.former == (member_mark("m-1"),)


def test_the_controller_promotes_no_group_by_itself_that_a_person_has_rolled_back() -> None:
    made = stage()
    asyncio.run(made.run())
    assert not made.group.auto


def test_what_was_seen_on_the_source_after_the_promote_is_forgotten() -> None:
    """Once the group is open the controller cancels the rollback's work, and no later controller takes it up."""
    made = stage(GROUP, TOPIC, MisplacedRecord("l", "g", commits={"t": {0: 9}}))
    at_opening = []

    def note(record: Record | None) -> None:
        if isinstance(record, GroupRecord) and record.phase is GroupPhase.MIRRORED:
            at_opening.append(misplaced_key("l", "g") in made.log.state.records)

    made.log.on_append = note
    asyncio.run(made.run())
    assert at_opening == [False]


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


def test_members_that_came_with_the_promote_are_taken_out_of_the_sources_group_first() -> None:
    made = stage(replace(GROUP, former=(member_mark("m-1"),)), TOPIC)
    made.source.members = (MEMBER,)
    asyncio.run(made.run())
    assert made.group.phase is GroupPhase.MIRRORED
    assert not made.source.members


def test_a_hold_that_the_watch_has_taken_once_more_is_released_again() -> None:
    made = stage()
    made.source.refuses = ["UNKNOWN_MEMBER_ID"]
    asyncio.run(made.run())
    assert made.source.done == ["leave", "take out", "release", "write", "release", "write"]


def test_a_source_that_refuses_positions_ends_a_rollback() -> None:
    made = stage()
    made.source.refuses = ["GROUP_AUTHORIZATION_FAILED"]
    assert "GROUP_AUTHORIZATION_FAILED" in given_up(made, "offsets-not-written").what
    assert made.source.done == ["leave", "take out", "release", "write"], (
        "the members wait meanwhile, so it is not tried again"
    )


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
    assert made.source.done == ["leave", "take out", "release", "write", "take"]


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


# A group whose positions are committed in transactions


@dataclass
class Unit:
    """The rollback of a group and of a topic that its transactions write; the topic goes on as the group lets it."""

    made: Stage
    closes: bool = True
    """True if the transactions on the topic end."""
    then: TopicRecord = FLIPPED
    """The topic once the group's positions are on the source."""

    def __post_init__(self) -> None:
        self.made.progress.ready.add(WRITTEN.key)
        self.made.log.on_append = self._on_append

    def _on_append(self, record: Record | None) -> None:
        if isinstance(record, GroupRecord) and record.staged and record.phase is GroupPhase.ROLLING_BACK:
            self.made.log._put(WRITTEN.key, self.then)
        elif isinstance(record, GroupRecord) and record.gathering and self.closes:
            self.made.progress.closed.add(WRITTEN.key)

    @property
    def steps(self) -> list[tuple[GroupPhase, bool, bool, bool]]:
        records = [each for each in self.made.log.history if isinstance(each, GroupRecord)]
        return [(each.phase, each.gathering, each.frozen, each.staged) for each in records]


def unit(*records: Record, **values: Any) -> Unit:
    """Return a unit whose group has a member that a router names, and that does not join anew."""
    made = stage(*(records or (GROUP, TOPIC, WRITTEN, TILL)))
    made.says(members=(member_mark("m-1"),))
    return Unit(made, **values)


BACKWARDS, MIRRORED = GroupPhase.ROLLING_BACK, GroupPhase.MIRRORED


def test_a_group_in_transactions_is_frozen_without_a_join_and_opens_when_its_topics_have_gone_back() -> None:
    it = unit()
    asyncio.run(it.made.run())
    assert it.steps[-4:] == [
        (BACKWARDS, True, False, False),
        (BACKWARDS, True, True, False),
        (BACKWARDS, True, True, True),
        (MIRRORED, False, False, False),
    ]
    assert it.made.source.positions == READ
    assert (it.made.target.done, it.made.target.members) == (["take out"], ()), "else no promote could write positions"
    assert (it.made.group.written, it.made.group.mode) == ({"t": {0: 60}}, GroupMode.FOLLOW)


def test_members_are_not_disturbed_before_the_topics_of_their_transactions_are_ready() -> None:
    it = unit()
    it.made.progress.ready.clear()
    error = given_up(it.made, "coupled-topics", gather_s=0.2)
    assert "u did not get ready" in error.what
    assert not any(gathering for _, gathering, _, _ in it.steps)


def test_a_topic_that_is_given_up_before_the_group_is_ready_ends_the_rollback_at_once() -> None:
    """A topic that nobody has asked to roll back yet is waited for: the group's request is written first."""
    way = WayBack({0: 50}, reason="cancelled: taken back by ann")
    asked = replace(WRITTEN, phase=TopicPhase.PROMOTED, way_back=way, asked=Asked(Action.ROLLBACK, 9, "bob"))
    group = replace(GROUP, asked=Asked(Action.ROLLBACK, 9, "bob"))
    error = given_up(unit(group, TOPIC, asked, TILL).made, "coupled-topics", gather_s=300.0)
    assert "u is not being rolled back: cancelled: taken back by ann" in error.what
    earlier = replace(asked, asked=Asked(Action.ROLLBACK, 8, "bob"))
    assert "did not" in given_up(unit(group, TOPIC, earlier, TILL).made, "coupled-topics", gather_s=0.2).what


def test_a_group_is_not_frozen_while_a_transaction_of_its_unit_is_open() -> None:
    it = unit(closes=False)
    assert "u did not end its open transactions" in given_up(it.made, "coupled-topics", gather_s=0.2).what
    assert not any(frozen for _, _, frozen, _ in it.steps)
    assert it.made.source.done == []


def test_a_topic_that_is_given_up_after_the_positions_went_over_takes_the_group_back() -> None:
    way = WayBack({0: 50}, reason="not-drained: router r")
    it = unit(then=replace(WRITTEN, phase=TopicPhase.PROMOTED, way_back=way))
    assert "u is not being rolled back: not-drained: router r" in given_up(it.made, "coupled-topics").what
    assert it.made.group.left_at == {"t": {0: 60}}, "else the watch would call these positions a commit on the source"


@pytest.mark.parametrize(("groups", "phase"), [(("g",), MIRRORED), ((), GroupPhase.PROMOTED)])
def test_a_group_goes_on_to_the_source_when_a_flip_has_named_it(groups: tuple[str, ...], phase: GroupPhase) -> None:
    """The flip of a promote, which stands in the record of a promoted topic, does not count."""
    late = replace(WRITTEN, topic="w", phase=TopicPhase.PROMOTED, unit=PromotedUnit(groups=("g",)))
    records = (GROUP, TOPIC, WRITTEN, replace(TILL, topics=("u", "w")), replace(late, phase=WRITTEN.phase))
    it = unit(*records, then=replace(FLIPPED, unit=PromotedUnit(groups=groups)))
    it.made.progress.ready.add(late.key)
    it.made.progress.closed.add(late.key)

    def on_append(record: Record | None) -> None:
        it._on_append(record)
        if isinstance(record, GroupRecord) and record.staged:
            it.made.log._put(late.key, late)

    it.made.log.on_append = on_append
    with pytest.raises(KmigrateError):
        asyncio.run(it.made.run())
    assert it.made.group.phase is phase


def test_a_controller_that_takes_over_a_staged_group_writes_no_position_again() -> None:
    staged = replace(GROUP, gathering=True, frozen=True, staged=True, written={"t": {0: 60}})
    it = unit(staged, TOPIC, FLIPPED, TILL)
    asyncio.run(it.made.run())
    assert it.made.source.done == []
    assert (it.made.group.phase, it.made.group.written) == (MIRRORED, {"t": {0: 60}})


@pytest.mark.parametrize("joins", [True, False])
def test_members_of_the_new_protocol_let_go_before_the_transactions_end_if_in_time(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "GIVING_BACK_S", 300.0 if joins else 0.0)
    it = unit()
    it.made.target.kind = membership.NEW_PROTOCOL
    seen: list[bool] = []

    def on_append(record: Record | None) -> None:
        it._on_append(record)
        if joins and isinstance(record, GroupRecord) and record.gathering and not record.frozen:
            seen.append(GROUP.key in it.made.progress.ready)
            it.made.joined()

    it.made.log.on_append = on_append
    asyncio.run(it.made.run())
    assert seen == [False] * joins
    assert it.made.group.phase is MIRRORED


def test_an_open_transaction_that_keeps_positions_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unstable(*_: Any, **__: Any) -> Committed:
        raise BrokerRefused("broker-refused", "OffsetFetch", code=88)

    async def found(*_: Any) -> list[CoordinatedTransaction]:
        return [CoordinatedTransaction("till", 50, 1, (("__consumer_offsets", 7),))]

    it = unit(replace(GROUP, gathering=True, frozen=True), TOPIC, WRITTEN, TILL)
    monkeypatch.setattr(rollback, "read_positions", unstable)
    monkeypatch.setattr(open_transactions, "group_transactions", found)
    error = given_up(it.made, "open-transaction")
    assert "an open transaction at the target commits positions of group g" in error.what
    assert error.still_true == "the group is promoted as before; its members read on"
