"""Only one try of a Spark task owns a partition at a time, and no mirror process owns the partition then."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import cast

import pytest

from kmigrate.mirror.bulk.claims import Claims, claimable
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.record_json import Record
from kmigrate.model.records import AssignmentRecord, Claim, CopyEngine, LeaseRecord, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=3, starts={0: 0, 1: 0, 2: 0}, engine=CopyEngine.SPARK)
LEASE = LeaseRecord("mirror/l", "a", 4)
GONE = AssignmentRecord("l", 7, ("a", "b"), {"other": (0, 1)})
"""Newest assignment, which no longer names an owner for the topic."""


def state(*records: Record) -> State:
    made = State()
    for number, record in enumerate(records):
        made = made.with_record(record.key, record, number)
    return made


def daemon(instance: str, *partitions: int, generation: int = 7, shares: bool = True) -> MirrorPresence:
    topics = {"t": dict.fromkeys(partitions, PartitionProgress(5))} if partitions else {}
    return MirrorPresence(instance, "l", 9, False, 500, topics, shares=shares, generation=generation)


def free(
    topic: TopicRecord = TOPIC,
    assignment: AssignmentRecord = GONE,
    words: Collection[MirrorPresence] = (),
    silent: Collection[str] = (),
) -> list[int]:
    return claimable(state(topic, assignment), topic, [0, 1, 2], "me", words, lambda name: name in silent)


def test_what_nobody_owns_may_be_claimed() -> None:
    assert free(words=[daemon("a"), daemon("b")]) == [0, 1, 2]


def test_what_the_assignment_still_names_may_not_unless_its_owner_is_silent() -> None:
    named = AssignmentRecord("l", 7, ("a", "b"), {"t": (0, 1, ~1)})
    assert free(assignment=named) == []
    assert free(assignment=named, silent={"b"}) == [1, 2]


def test_what_a_process_has_not_let_go_of_yet_may_not() -> None:
    assert free(words=[daemon("a", 1)]) == [0, 2]


def test_nothing_may_while_a_process_has_not_read_that_the_topic_is_no_longer_its() -> None:
    assert free(words=[daemon("a", generation=6)]) == []
    assert free(words=[daemon("a", generation=6, shares=False)]) == [0, 1, 2], "one that is given nothing"


def test_another_trys_claim_stands_until_it_is_silent() -> None:
    claimed = replace(TOPIC, claims={0: Claim("other", 8), 1: Claim("me", 8)})
    assert free(claimed) == [2]
    assert free(claimed, silent={"other"}) == [0, 2]


def test_words_of_other_tries_hold_nothing_back() -> None:
    spark = MirrorPresence("spark-1", "l", 9, False, 500, {"t": {0: PartitionProgress(5)}}, engine=CopyEngine.SPARK)
    assert free(words=[spark]) == [0, 1, 2]


@pytest.mark.parametrize(
    "topic",
    [
        replace(TOPIC, engine=CopyEngine.DAEMON),
        replace(TOPIC, phase=TopicPhase.PROMOTE_PENDING),
        replace(TOPIC, phase=TopicPhase.ALIGNING),
        replace(TOPIC, mapped=True),
    ],
)
def test_nothing_of_a_topic_that_is_not_sparks_may_be_claimed(topic: TopicRecord) -> None:
    assert free(topic) == []


class Stage:
    """One try, named `me`, with a state log in memory."""

    def __init__(self, *records: Record) -> None:
        self.log = MemoryLog(*records)
        log = cast("StateLog", self.log)
        self.membership = Membership(log, "l", "me", 60.0)
        self.claims = Claims(self.membership)

    @property
    def record(self) -> TopicRecord:
        found = self.log.state.topic("l", "t")
        assert found is not None
        return found


def test_a_claims_term_is_above_every_claim_assignment_and_lease_before_it() -> None:
    for before in (
        (replace(TOPIC, claimed_term=20), GONE, LEASE),
        (replace(TOPIC, claimed_term=2), replace(GONE, generation=20), LEASE),
        (TOPIC, GONE, replace(LEASE, term=20)),
    ):
        stage = Stage(*before)
        asyncio.run(stage.claims.claim("t", [0, 2]))
        assert stage.record.claims == {0: Claim("me", 21), 2: Claim("me", 21)}
        assert stage.record.claimed_term == 21


def test_a_try_relies_on_its_claim_only_while_others_have_its_word() -> None:
    stage = Stage(TOPIC, GONE, LEASE)
    asyncio.run(stage.claims.claim("t", [0]))
    assert stage.claims.term("t", 0) == 0, "nobody has heard of it yet"
    stage.membership.announced(monotonic())
    assert (stage.claims.term("t", 0), stage.claims.term("t", 1), stage.claims.term("other", 0)) == (8, 0, 0)


def test_a_try_lets_go_of_its_own_claims_alone_and_the_term_stays_counted() -> None:
    stage = Stage(replace(TOPIC, claims={0: Claim("me", 8), 1: Claim("other", 9)}, claimed_term=9))
    asyncio.run(stage.claims.release("t"))
    assert (stage.record.claims, stage.record.claimed_term) == ({1: Claim("other", 9)}, 9)
