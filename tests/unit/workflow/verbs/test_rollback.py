"""A promoted topic with an open way back can be rolled back; a rollback that waits can be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.errors import Failed, Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    Action,
    GroupRecord,
    PartitionBarrier,
    PromoteTerms,
    RollbackTerms,
    RouterRecord,
    Seal,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
    WayBack,
)
from kmigrate.model.stops import PartitionStop
from kmigrate.workflow.base.plan import Finding, Plan, refuse
from kmigrate.workflow.verbs import (
    Treatment,
    cancel_rollback,
    coupled_groups,
    roll_back_topics,
    rollback,
    treat_promoted,
    wait_rolled_back,
)
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, ROUTER

WAY = WayBack({0: 50})
TOPIC = TopicRecord(
    "l",
    "t",
    TopicPhase.PROMOTED,
    1,
    partitions=1,
    terms=PromoteTerms(1, way_back=True),
    barrier={0: PartitionBarrier(50, 1)},
    way_back=WAY,
)
TERMS = RollbackTerms(asked_ms=9)


def connections(*records: Record, partitions: int = 1, producers: tuple[ProducerState, ...] = ()) -> Any:
    async def topic(_: str) -> Any:
        return SimpleNamespace(partitions=dict.fromkeys(range(partitions)))

    async def describe_producers(keys: Any) -> Mapping[Any, Any]:
        return dict.fromkeys(keys, (0, producers))

    log = MemoryLog(LINK, ROUTER, *records)
    log.say(RouterPresence("r1", "r", 100, 500))
    log.say(MirrorPresence("m1", "l", 100, True, 500))
    target = SimpleNamespace(topic=topic, describe_producers=describe_producers)
    return SimpleNamespace(log=log, target=target, waits_for=lambda _: "")


def rolled(it: Any, *, plan: bool = False) -> Plan:
    return asyncio.run(run_verb(roll_back_topics(it, None, ["t"], TERMS, who="ann@desk"), plan=plan))


def record_of(it: Any) -> TopicRecord:
    found = it.log.state.topic("l", "t")
    assert isinstance(found, TopicRecord)
    return found


def test_a_rollback_is_asked_for_in_the_record() -> None:
    it = connections(replace(TOPIC, way_back=replace(WAY, reason="not-ready: before")))
    assert rolled(it).changes == ("roll back t",)
    record = record_of(it)
    assert record.phase is TopicPhase.ROLLBACK_PENDING
    assert record.way_back == replace(WAY, terms=TERMS)
    assert record.asked is not None
    assert (record.asked.action, record.asked.by) == (Action.ROLLBACK, "ann@desk")


def test_a_plan_changes_nothing() -> None:
    it = connections(TOPIC)
    assert rolled(it, plan=True).changes == ("roll back t",)
    assert record_of(it) == TOPIC


@pytest.mark.parametrize(
    ("record", "ref"),
    [
        (replace(TOPIC, phase=TopicPhase.ROLLBACK_FENCED), "under-way"),
        (replace(TOPIC, phase=TopicPhase.MIRRORING, generation=1, way_back=None), "already-rolled-back"),
    ],
)
def test_a_repeated_rollback_changes_nothing_and_succeeds(record: TopicRecord, ref: str) -> None:
    it = connections(record)
    made = rolled(it)
    assert (made.changes, [each.ref for each in made.findings]) == ((), [ref])
    assert record_of(it) == record


@pytest.mark.parametrize(
    ("record", "ref", "what"),
    [
        (replace(TOPIC, phase=TopicPhase.MIRRORING, way_back=None), "not-promoted", "topic t is mirroring"),
        (replace(TOPIC, way_back=None), "no-way-back", "was promoted without a way back"),
        (replace(TOPIC, way_back=replace(WAY, ended="offset 52 of t-0")), "no-way-back", "any more: offset 52 of t-0"),
        (replace(TOPIC, generation=63), "no-way-back", "rolled back 63 times"),
        (replace(TOPIC, unsettled=True), "topic-not-settled", "has not got its own configs back"),
        (replace(TOPIC, seal=Seal("", {"r9": "quiet"})), "topic-sealed", "in place of router quiet"),
        (
            replace(TOPIC, way_back=replace(WAY, stops={0: PartitionStop("diverged", "no such offset")})),
            "partition-stopped",
            "the copy of partition 0 of t to the source has stopped",
        ),
    ],
)
def test_a_topic_that_cannot_be_rolled_back_is_refused_with_the_reason(
    record: TopicRecord, ref: str, what: str
) -> None:
    it = connections(record)
    with pytest.raises(Refused) as caught:
        rolled(it)
    assert caught.value.ref == ref
    assert what in caught.value.what
    assert record_of(it) == record


@pytest.mark.parametrize(
    ("others", "fakes", "ref"),
    [
        ((RouterRecord("quiet", "r9", "elsewhere", "host:9", 1),), {}, "router-unheard"),
        ((StrayRecord("gone", "elsewhere", ("r7",)),), {}, "router-unheard"),
        ((TransactionRecord("l", "till", 50, 3, 9, 8, ("t", "n")),), {}, "no-way-back"),
        (
            (TransactionRecord("l", "till", 50, 3, 9, 8, ("t", "u")), replace(TOPIC, topic="u")),
            {},
            "coupled-topics",
        ),
        ((), {"producers": (ProducerState(7, 0, 3, 1, -1, 2),)}, "no-way-back"),
        ((), {"partitions": 2}, "partitions-changed"),
        ((replace(LINK, finished_ms=5),), {}, "link-finished"),
    ],
)
def test_what_lies_outside_the_topic_refuses_a_rollback(
    others: tuple[Record, ...], fakes: dict[str, Any], ref: str
) -> None:
    it = connections(TOPIC, *others, **fakes)
    with pytest.raises(Refused) as caught:
        rolled(it)
    assert caught.value.ref == ref
    assert record_of(it) == TOPIC


def test_a_rollback_that_waits_is_taken_back_with_the_name_of_who_did_it() -> None:
    it = connections(replace(TOPIC, phase=TopicPhase.ROLLBACK_PENDING, way_back=replace(WAY, terms=TERMS)))
    asyncio.run(run_verb(cancel_rollback(it, None, ["t"], who="ann@desk")))
    record = record_of(it)
    assert record.phase is TopicPhase.PROMOTED
    assert record.way_back == replace(WAY, reason="cancelled: taken back by ann@desk")


def test_a_rollback_whose_fence_has_begun_is_not_taken_back() -> None:
    it = connections(replace(TOPIC, phase=TopicPhase.ROLLBACK_FENCING))
    with pytest.raises(Refused, match="over in seconds"):
        asyncio.run(run_verb(cancel_rollback(it, None, ["t"], who="ann")))


def test_a_wait_ends_with_the_reason_of_a_rollback_that_was_given_up() -> None:
    it = connections(replace(TOPIC, way_back=replace(WAY, reason="not-drained: router r")))
    with pytest.raises(Failed) as caught:
        asyncio.run(wait_rolled_back(it, "l", ["t"], 5.0))
    assert caught.value.ref == "rollback-given-up"
    assert "not-drained: router r" in caught.value.what
    assert "promoted as before" in caught.value.still_true


def test_a_wait_ends_with_the_records_of_topics_that_are_mirrored_again() -> None:
    back = replace(TOPIC, phase=TopicPhase.MIRRORING, way_back=None, generation=1)
    it = connections(back)
    assert asyncio.run(wait_rolled_back(it, "l", ["t"], 5.0)) == [back]


def test_a_way_back_can_be_ended_by_hand() -> None:
    async def end(it: Any) -> Plan:
        proposal = await treat_promoted(it, None, ["t"], Treatment(ends_way_back=True, who="ann"))
        assert proposal is not None
        return await proposal.carry_out()

    it = connections(TOPIC)
    assert asyncio.run(end(it)).changes == ("end the way back of t",)
    way = record_of(it).way_back
    assert way is not None
    assert (way.open, way.ended) == (False, "ended by ann")
    assert asyncio.run(end(it)).changes == ()


def test_producers_that_have_to_abort_a_transaction_are_named_beforehand() -> None:
    plan = rolled(connections(TOPIC, TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))), plan=True)
    (found,) = [each for each in plan.findings if each.ref == "forced-abort"]
    assert found.level == "warn"
    assert found.what == "each producer of topic t with transactions (till) aborts one transaction at the flip"
    assert not any(each.ref == "forced-abort" for each in rolled(connections(TOPIC), plan=True).findings)


# Groups whose positions are committed in the topic's transactions


GROUP = GroupRecord("l", "g", GroupPhase.PROMOTED, 1, mode=GroupMode.FOLLOW, reason="before")
COUPLED = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",), ("g",))


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Findings of the guards of a group."""
    found: list[Finding] = []

    async def guards(*_: object) -> list[Finding]:
        return found

    monkeypatch.setattr(rollback, "rollback_guards", guards)
    return found


def test_a_group_goes_back_with_the_topics_of_its_transactions(against: list[Finding]) -> None:
    it = connections(TOPIC, GROUP, COUPLED)
    assert rolled(it).changes == ("roll back t", "roll back group g, whose positions their transactions commit")
    group = it.log.state.group("l", "g")
    assert (record_of(it).phase, group.phase, group.reason) == (
        TopicPhase.ROLLBACK_PENDING, GroupPhase.ROLLING_BACK, ""
    )  # fmt: skip
    asked = [each for each in it.log.history if each in (record_of(it), group)]
    assert asked == [group, record_of(it)], "a call that dies between the two is repeated for the topic"
    assert coupled_groups(it.log.state, "l", ["t"]) == [group]


def test_a_repeated_call_asks_for_what_is_left(against: list[Finding]) -> None:
    it = connections(TOPIC, replace(GROUP, phase=GroupPhase.ROLLING_BACK), COUPLED)
    assert rolled(it).changes == ("roll back t",)


def test_a_group_that_cannot_go_back_keeps_its_topic_at_the_target(against: list[Finding]) -> None:
    against.append(refuse("members-past-routers", "group g has 1 member(s) on the target, and no router runs"))
    it = connections(TOPIC, GROUP, COUPLED)
    with pytest.raises(Refused, match="group g has 1 member"):
        rolled(it)
    assert (record_of(it), it.log.state.group("l", "g")) == (TOPIC, GROUP)


def test_a_group_is_said_to_be_given_up_with_a_rollback_that_is_taken_back() -> None:
    waits = replace(TOPIC, phase=TopicPhase.ROLLBACK_PENDING, way_back=replace(WAY, terms=TERMS))
    it = connections(waits, replace(GROUP, phase=GroupPhase.ROLLING_BACK), COUPLED)
    plan = asyncio.run(run_verb(cancel_rollback(it, None, ["t"], who="ann@desk")))
    assert [(each.level, each.ref) for each in plan.findings] == [("warn", "coupled-group")]
