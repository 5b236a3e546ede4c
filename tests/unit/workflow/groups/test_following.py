"""The promote of a group that follows.

The members join, the group is frozen, committed offsets are carried over, and the group opens. After a failure the
group follows as before, and its record has the reason.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.transactions import CoordinatedTransaction
from kmigrate.errors import BrokerRefused, KmigrateError, Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupReport, RefusedMember, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, PromotedUnit, RouterRecord, TopicRecord, TransactionRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import answer_type, blank, element_type
from kmigrate.workflow.base import open_transactions as transactions
from kmigrate.workflow.base.unit import PromoteProgress, Unit
from kmigrate.workflow.groups import following, membership
from kmigrate.workflow.groups.following import FollowHandover
from kmigrate.workflow.groups.handover import GroupHandover, HandedOver
from kmigrate.workflow.groups.readers import group_reads
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.verbs.groups import mode_for
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

MEMBER = GroupMember("m-1", "shop", "/10.0.0.1")
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=GroupMode.FOLLOW)
ROUTER = RouterRecord("r", "i", "h", "h:1", 1)
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",), ("g",))
TOPIC = TopicRecord("l", "t", TopicPhase.PROMOTE_PENDING, 1)


@dataclass
class Source:
    """A source whose group has the given members, committed offsets and assigned topics."""

    members: tuple[GroupMember, ...] = (MEMBER,)
    kind: str = "classic"
    positions: tuple[str, ...] = ("t",)
    assigned: frozenset[str] = frozenset()
    mixed: bool = False
    """True if the group has members of both group protocols."""

    async def describe_groups(self, names: list[str]) -> dict[str, GroupState]:
        return {name: GroupState(name, "stable", self.kind, self.members, self.assigned) for name in names}

    settings = ClusterSettings("source", ())

    async def find_coordinator(self, group: str) -> int:
        return 1

    async def call(self, request: Any, node: int) -> Any:
        """Answer OffsetFetch with the group's committed offsets."""
        kind = answer_type(type(request))
        topic_type = element_type(kind, "topics")
        part = blank(element_type(topic_type, "partitions"), partition_index=0, committed_offset=5)
        return blank(kind, topics=tuple(blank(topic_type, name=topic, partitions=(part,)) for topic in self.positions))


@dataclass
class Stage:
    """A single handover, with a state log in memory."""

    log: MemoryLog
    source: Source = field(default_factory=Source)
    carried: list[GroupRecord] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)
    fails: KmigrateError | None = None
    waits: dict[str, str] = field(default_factory=dict)
    place: list[tuple[str, bool]] = field(default_factory=list)
    """Actions on the placeholder member, each with the frozen flag of the group at that time."""
    unadmitted: list[KmigrateError | None] = field(default_factory=list)
    """Answers of the next looks: the error of the target that would refuse members, or None."""

    def says(self, *, applied: int = 1 << 30, **word: object) -> None:
        self.log.say(RouterPresence("i", "r", applied, 500, groups={"g": GroupReport(**word)}))  # type: ignore[arg-type]

    @property
    def group(self) -> GroupRecord:
        found = self.log.state.group("l", "g")
        assert found is not None
        return found

    async def take(self) -> None:
        """Take the placeholder member's place at the target."""
        self.place.append(("taken", self.group.frozen))

    async def leave(self) -> None:
        self.place.append(("left", self.group.frozen))

    async def carry(self) -> HandedOver:
        self.place.append(("carried", self.group.frozen))
        self.carried.append(self.group)
        if self.fails is not None:
            raise self.fails
        return HandedOver({"t": {0: 5}})

    async def admits(self) -> None:
        if self.unadmitted and (why := self.unadmitted.pop(0)) is not None:
            raise why

    async def open_source(self) -> tuple[Any, Any]:
        return self.source, self.source

    async def refuse_outsiders(self) -> None:
        await GroupHandover.refuse_outsiders(self)  # type: ignore[arg-type]

    async def run(self, gather_s: float = 5.0, drain_s: float = 5.0) -> None:
        self.connections, self.record, self.timeout_s = SimpleNamespace(log=self.log), GROUP, drain_s
        progress = PromoteProgress(self.ready, waits=self.waits)
        await FollowHandover(self, self, gather_s, progress).run()  # type: ignore[arg-type]


def stage(*records: Record) -> Stage:
    return Stage(MemoryLog(LINK, ROUTER, *(records or (GROUP,))))


def refused(made: Stage, ref: str, **spans: float) -> None:
    """Run a handover; check that the handover is refused with `ref`, and that the group follows as before."""
    with pytest.raises(Refused) as error:
        asyncio.run(made.run(**spans))
    assert error.value.ref == ref
    group = made.group
    assert (group.phase, group.mode, group.frozen, group.staged) == (
        GroupPhase.MIRRORED, GroupMode.FOLLOW, False, False
    )  # fmt: skip
    assert group.reason.startswith(ref)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_mixed(source: Source, group: str) -> bool:
        return source.mixed

    async def none_open(*_: Any) -> list[CoordinatedTransaction]:
        return []

    monkeypatch.setattr(transactions, "group_transactions", none_open)
    monkeypatch.setattr(membership, "_HEARTBEATS_S", 0.1)
    monkeypatch.setattr(following, "is_mixed", is_mixed)


def test_where_members_of_both_protocols_come_a_place_is_held_from_just_before_the_group_opens() -> None:
    for mixed in (False, True):
        made = stage()
        made.source.mixed = mixed
        made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
        asyncio.run(made.run())
        assert made.group.phase is GroupPhase.PROMOTED
        held = [("taken", True)] if mixed else []
        assert made.place == [("left", True), ("carried", True), *held], "positions cannot be written while it is held"


def test_a_place_is_not_held_on_where_the_group_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage()
    made.source.mixed = True
    made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))

    async def taken() -> None:
        made.place.append(("taken", True))
        raise Refused("changed-meanwhile", "by somebody else")

    monkeypatch.setattr(made, "take", taken)
    refused(made, "changed-meanwhile")
    assert made.place[-2:] == [("taken", True), ("left", True)]


def test_positions_go_over_when_all_have_joined_and_the_group_is_frozen() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
    asyncio.run(made.run())
    (carried,) = made.carried
    assert (carried.phase, carried.frozen) == (GroupPhase.PROMOTING, True)
    assert (made.group.phase, made.group.frozen, made.group.written) == (GroupPhase.PROMOTED, False, {"t": {0: 5}})


def test_a_member_that_the_target_refused_in_a_trial_ends_it_before_a_position_is_written() -> None:
    made = stage()
    joined = GroupReport(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
    named = RefusedMember("shop", "10.0.0.1", "m-1", "GROUP_AUTHORIZATION_FAILED")
    made.log.say(RouterPresence("i", "r", 1 << 30, 500, groups={"g": joined}, refused={"g": (named,)}))
    refused(made, "member-refused")
    assert "shop at 10.0.0.1 (m-1) of group g: GROUP_AUTHORIZATION_FAILED" in made.group.reason
    assert "READ on group g" in made.group.way_on
    assert made.carried == []


def test_a_trial_that_the_target_has_not_answered_is_waited_for() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),), trials=1)
    refused(made, "not-drained", drain_s=0.2)
    assert "answers to trial joins of group g" in made.group.reason


def test_a_member_that_came_through_no_router_ends_it() -> None:
    made = stage()
    made.says()
    refused(made, "members-on-source")
    assert made.carried == []


@pytest.mark.parametrize(("kind", "promoted"), [("classic", False), ("consumer", True)])
def test_who_is_named_by_a_router_within_a_heartbeat_of_its_protocol_is_not_direct(
    monkeypatch: pytest.MonkeyPatch, kind: str, promoted: bool
) -> None:
    """A router has the time of a heartbeat to report a member before the member counts as direct.

    A member of the new protocol sends a heartbeat every five seconds by default, so a new router reports members late.
    """
    monkeypatch.setattr(membership, "_NEW_HEARTBEATS_S", 5.0)
    monkeypatch.setattr(membership, "_PAUSE_S", 0.05)
    made = stage()
    made.source = Source(kind=kind)
    made.says()

    async def named_late() -> None:
        await asyncio.sleep(0.4)
        made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))

    async def both() -> None:
        late = asyncio.create_task(named_late())
        try:
            await made.run()
        finally:
            await late

    if promoted:
        asyncio.run(both())
    else:
        with pytest.raises(Refused):
            asyncio.run(both())
    assert (made.group.phase is GroupPhase.PROMOTED) is promoted


def test_a_member_that_does_not_join_in_time_is_named() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),))
    refused(made, "members-not-joined", gather_s=0.2)
    assert "shop at /10.0.0.1" in made.group.reason
    assert made.waits == {}


def test_what_a_handover_waits_for_is_told_meanwhile() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),))

    async def scenario() -> None:
        running = asyncio.create_task(made.run())
        await asyncio.sleep(0.05)
        assert made.waits == {GROUP.key: "shop at /10.0.0.1 (m-1) to join anew"}
        running.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(("applied", "in_flight"), [(0, 0), (1 << 30, 1)])
def test_no_position_is_read_before_every_router_has_frozen_the_group(applied: int, in_flight: int) -> None:
    made = stage()
    made.says(applied=applied, in_flight=in_flight, members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
    refused(made, "not-drained", drain_s=0.2)
    assert made.carried == []


def test_an_open_transaction_that_keeps_the_group_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        CoordinatedTransaction("strange", 3, -1, (("__consumer_offsets", 7),)),
        CoordinatedTransaction("till", 9, 1, tuple(("t", partition) for partition in range(7))),
    ]

    async def group_transactions(_: Any, group: str, names: set[str]) -> list[CoordinatedTransaction]:
        assert (group, names) == ("g", {"till"})
        return told

    monkeypatch.setattr(transactions, "group_transactions", group_transactions)
    made = stage(GROUP, TILL)
    made.says(in_flight=1)
    refused(made, "open-transaction", drain_s=0.2)
    assert "commits positions of group g: till (producer 9, open for " in made.group.reason
    assert made.group.reason.endswith(" s, on t-0, t-1, t-2, t-3, t-4 and 2 more)")
    assert "transaction.timeout.ms" in made.group.way_on

    told.pop()
    made = stage(GROUP, TILL)
    made.says(in_flight=1)
    refused(made, "open-transaction", drain_s=0.2)
    assert "may commit positions of group g: strange (producer 3, on __consumer_offsets-7)" in made.group.reason


def test_positions_that_a_transaction_keeps_back_are_not_read_and_the_transaction_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read(code: int) -> None:
        raise BrokerRefused("broker-refused", "OffsetFetch", code=code)

    async def group_transactions(*_: Any) -> list[CoordinatedTransaction]:
        return [CoordinatedTransaction("till", 9, 1, (("t", 0),))]

    monkeypatch.setattr(transactions, "group_transactions", group_transactions)
    log: Any = MemoryLog(LINK, GROUP)
    with pytest.raises(Refused, match="till"):
        asyncio.run(transactions.named_if_open(read(88), log, Source(), GROUP))  # type: ignore[arg-type]
    with pytest.raises(BrokerRefused, match="OffsetFetch"):
        asyncio.run(transactions.named_if_open(read(30), log, Source(), GROUP))  # type: ignore[arg-type]


def test_a_silent_router_keeps_the_group_from_being_promoted() -> None:
    made = Stage(MemoryLog(LINK, ROUTER, GROUP), Source(members=()))
    refused(made, "not-drained", drain_s=0.2)


def test_a_handover_that_fails_leaves_the_group_following() -> None:
    made = stage()
    made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
    made.fails = Refused("target-behind-group", "the mirror stands still")
    refused(made, "target-behind-group")


def test_a_controller_that_takes_over_goes_on_where_the_record_says() -> None:
    made = stage(replace(GROUP, frozen=True))
    made.says()
    asyncio.run(made.run())
    assert made.group.phase is GroupPhase.PROMOTED


# Groups in transactions.


def test_a_group_in_transactions_is_frozen_when_its_topics_are_ready_and_opens_when_they_are_promoted() -> None:
    made = stage(GROUP, TILL, TOPIC)
    made.says()

    async def scenario() -> None:
        running = asyncio.create_task(made.run())
        await asyncio.sleep(0.2)
        assert not made.group.frozen
        assert Unit.of(made.log.state, TOPIC).not_staged() is not None
        made.ready.add("topic/l/t")
        await made.log.wait(lambda _: True if made.group.staged else None, 10, "the group to be staged")
        assert Unit.of(made.log.state, TOPIC).not_staged() is None
        assert made.group.phase is GroupPhase.PROMOTING
        await made.log.append(lambda _: replace(TOPIC, phase=TopicPhase.PROMOTED))
        await running

    asyncio.run(scenario())
    assert (made.group.phase, made.group.staged) == (GroupPhase.PROMOTED, False)


@pytest.mark.parametrize(("kind", "joins"), [("classic", False), ("consumer", True), ("consumer", False)])
def test_a_group_in_transactions_is_frozen_when_its_members_of_the_new_protocol_own_nothing_or_take_too_long(
    monkeypatch: pytest.MonkeyPatch, kind: str, joins: bool
) -> None:
    """A group in transactions is frozen when its members of the new protocol own nothing, or after a time limit.

    Otherwise the members learn in the middle of a transaction that the group has opened, and abort the transaction.
    """
    monkeypatch.setattr(following, "GIVING_BACK_S", 30.0 if joins else 1.0)
    made = stage(GROUP, TILL, TOPIC)
    made.source = Source(kind=kind)
    made.says(members=(member_mark("m-1"),))
    made.ready.add("topic/l/t")

    async def scenario() -> None:
        running = asyncio.create_task(made.run())
        await asyncio.sleep(0.4)
        assert made.group.frozen is (kind == "classic")
        if kind == "consumer":
            assert made.waits == {GROUP.key: "shop at /10.0.0.1 (m-1) to give back what it reads"}
        if joins:
            made.says(members=(member_mark("m-1"),), joined=(member_mark("m-1"),))
        await made.log.wait(lambda _: True if made.group.staged else None, 10, "the group to be staged")
        await made.log.append(lambda _: replace(TOPIC, phase=TopicPhase.PROMOTED))
        await running

    asyncio.run(scenario())
    assert made.group.phase is GroupPhase.PROMOTED


def test_members_of_a_group_in_transactions_do_not_wait_for_one_that_came_through_no_router() -> None:
    made = stage(GROUP, TILL, TOPIC)
    made.source = Source(kind="consumer")
    made.says()
    made.ready.add("topic/l/t")
    refused(made, "members-on-source")
    assert made.carried == []


def test_who_takes_over_when_positions_stand_on_the_target_carries_none_over_again() -> None:
    made = stage(replace(GROUP, frozen=True, staged=True, written={"t": {0: 5}}), TILL, TOPIC)

    async def scenario() -> None:
        running = asyncio.create_task(made.run())
        await asyncio.sleep(0.02)
        assert made.waits == {GROUP.key: "the topics that transactions of group g write to be promoted"}
        await made.log.append(lambda _: replace(TOPIC, phase=TopicPhase.PROMOTED))
        await running

    asyncio.run(scenario())
    assert made.carried == []
    assert (made.group.phase, made.group.written) == (GroupPhase.PROMOTED, {"t": {0: 5}})


def test_a_topic_that_is_given_up_takes_its_group_back() -> None:
    made = stage(GROUP, TILL, TOPIC)
    made.says()
    made.ready.add("topic/l/t")

    def on_append(record: Record | None) -> None:
        if isinstance(record, GroupRecord) and record.staged:
            made.log._put(TOPIC.key, replace(TOPIC, phase=TopicPhase.MIRRORING, reason="source-moved: it grew"))

    made.log.on_append = on_append
    refused(made, "coupled-topics")
    assert "source-moved" in made.group.reason


def test_one_topic_of_its_unit_that_is_taken_back_takes_the_group_back_though_another_still_waits() -> None:
    """A cancelled topic ends the promote of its whole unit and of the group.

    The application waits meanwhile, and no other topic of the unit can be fenced without the cancelled topic.
    """
    other = replace(TOPIC, topic="u")
    made = stage(replace(GROUP, frozen=True, staged=True), replace(TILL, topics=("t", "u")), TOPIC, other)
    made.log._put(other.key, given_up(other, "cancelled: taken back by ann"))
    refused(made, "coupled-topics")
    assert made.group.reason == "coupled-topics: u is not being promoted: cancelled: taken back by ann"


def test_a_group_that_is_given_up_takes_its_topics_back() -> None:
    given_up = replace(GROUP, phase=GroupPhase.MIRRORED, reason="not-drained: a router is silent")
    with pytest.raises(Refused, match="a router is silent"):
        Unit.of(MemoryLog(LINK, TILL, TOPIC, given_up).state, TOPIC).not_staged()


@pytest.mark.parametrize(
    ("unit", "phase"),
    [(PromotedUnit(groups=("g",)), GroupPhase.PROMOTED), (PromotedUnit(), GroupPhase.MIRRORED)],
)
def test_a_group_goes_on_to_the_target_when_a_flip_has_named_it_and_not_for_an_older_promote(
    unit: PromotedUnit, phase: GroupPhase
) -> None:
    other = replace(TOPIC, topic="u")
    made = stage(GROUP, replace(TILL, topics=("t", "u")), TOPIC, other)
    made.says()
    made.ready |= {"topic/l/t", "topic/l/u"}

    def on_append(record: Record | None) -> None:
        if isinstance(record, GroupRecord) and record.staged and record.phase is GroupPhase.PROMOTING:
            made.log._put(TOPIC.key, replace(TOPIC, phase=TopicPhase.PROMOTED, unit=unit))
            made.log._put(other.key, replace(other, phase=TopicPhase.MIRRORING, reason="source-moved"))

    made.log.on_append = on_append
    with pytest.raises(Refused):
        asyncio.run(made.run())
    assert made.group.phase is phase


# The mode of a group.


@pytest.mark.parametrize(
    ("topic", "source", "against"),
    [
        (TopicRecord("l", "t", TopicPhase.MIRRORING, 1), Source(), ""),
        (TopicRecord("l", "t", TopicPhase.MIRRORING, 1, mapped=True), Source(), "mapped"),
        (TopicRecord("l", "t", TopicPhase.ALIGNING, 1), Source(), "aligning"),
        (TopicRecord("l", "t", TopicPhase.PROMOTED, 1), Source(), "promoted"),
        (TopicRecord("l", "t", TopicPhase.MIRRORING, 1), Source(positions=("t", "alien")), "not mirrored"),
        (TopicRecord("l", "t", TopicPhase.MIRRORING, 1), Source(assigned=frozenset({"alien"})), "not mirrored"),
        (TopicRecord("l", "t", TopicPhase.MIRRORING, 1), Source(kind="consumer"), ""),
        (TopicRecord("l", "t", TopicPhase.MIRRORING, 1), Source(kind="share"), "share group"),
    ],
)
def test_a_group_follows_where_its_positions_mean_the_same_on_both_clusters(
    topic: TopicRecord, source: Source, against: str
) -> None:
    state = MemoryLog(LINK, topic).state

    async def asked(mode: str) -> tuple[GroupMode, str]:
        reads = await group_reads(source, ["g"])  # type: ignore[arg-type]
        given, finding = mode_for(state, "l", "g", reads["g"], mode)
        assert against in finding.what
        return given, finding.level

    assert asyncio.run(asked("auto")) == (GroupMode.HOLD if against else GroupMode.FOLLOW, "ok")
    assert asyncio.run(asked("follow"))[1] == ("refuse" if against else "ok")


@pytest.mark.parametrize("looks", [1, 2], ids=["before", "after its members have joined anew"])
def test_a_group_whose_members_the_target_would_refuse_is_given_up_before_it_is_frozen(looks: int) -> None:
    made = stage()
    made.says(members=(member_mark(MEMBER.member_id),), joined=(member_mark(MEMBER.member_id),))
    refusal: KmigrateError = Refused("session-timeout-refused", "the target would refuse the member")
    made.unadmitted = [None, refusal][-looks:]
    refused(made, "session-timeout-refused")
    assert made.carried == []
