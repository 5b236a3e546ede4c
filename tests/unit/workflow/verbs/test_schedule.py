"""Promotes at a later time: what is written, what is refused, and what a person can release or take back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import PromoteTerms, Schedule, TopicRecord
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import cancel_promote, release_promote, schedule_promote, wait_topics
from kmigrate.workflow.verbs.schedule import schedule_text
from tests.fakes.proposals import run_verb
from tests.unit.workflow.verbs.test_promote import TILL, connections

MIRRORING = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, reason="not-ready: it lagged")
SCHEDULE = Schedule(5, "ann@desk", PromoteTerms(5), postponed=True, deadline_ms=1_700_000_000_000)
POSTPONED = replace(MIRRORING, schedule=SCHEDULE, reason="")


def scheduled(it: Any, *topics: str) -> Plan:
    return asyncio.run(run_verb(schedule_promote(it, None, topics, SCHEDULE)))


def released(it: Any) -> Plan:
    return asyncio.run(run_verb(release_promote(it, None, ["t"])))


def test_a_schedule_stands_in_the_record_and_the_topic_stays_mirrored() -> None:
    it = connections(MIRRORING)
    made = scheduled(it, "t")
    when = "once a person releases it, tried again until 2023-11-14 22:13:20 UTC"
    assert made.changes == (f"promote t, {when}",)
    assert it.log.state.topic("l", "t") == POSTPONED


def test_a_topic_that_is_not_copied_yet_may_be_scheduled() -> None:
    it = connections(replace(MIRRORING, phase=TopicPhase.INITIALISING))
    assert scheduled(it, "t").applied


@pytest.mark.parametrize(
    ("phase", "ref"), [(TopicPhase.PROMOTED, "already-promoted"), (TopicPhase.FENCING, "under-way")]
)
def test_nothing_is_left_to_schedule_where_the_promote_runs_or_is_through(phase: TopicPhase, ref: str) -> None:
    it = connections(replace(MIRRORING, phase=phase))
    made = scheduled(it, "t")
    assert (made.changes, [each.ref for each in made.findings]) == ((), [ref])


def test_topics_of_the_same_transactions_have_to_be_scheduled_together() -> None:
    it = connections(MIRRORING, replace(MIRRORING, topic="u"), TILL)
    with pytest.raises(Refused) as caught:
        scheduled(it, "t")
    assert caught.value.ref == "coupled-topics"
    assert len(scheduled(it, "t", "u").changes) == 2


def test_a_postponed_promote_is_released_once() -> None:
    it = connections(POSTPONED)
    assert released(it).changes == ("release the promote of t",)
    assert it.log.state.topic("l", "t").schedule == replace(SCHEDULE, postponed=False)
    assert [each.ref for each in released(it).findings] == ["already"]


def test_a_promote_that_nobody_postponed_is_not_released() -> None:
    with pytest.raises(Refused) as caught:
        released(connections(MIRRORING))
    assert caught.value.ref == "not-postponed"


@pytest.mark.parametrize("record", [POSTPONED, replace(POSTPONED, phase=TopicPhase.PROMOTE_PENDING)])
def test_a_scheduled_promote_is_taken_back_for_good(record: TopicRecord) -> None:
    it = connections(record)
    asyncio.run(run_verb(cancel_promote(it, None, ["t"], who="bob@desk")))
    now = it.log.state.topic("l", "t")
    assert (now.phase, now.schedule, now.reason) == (
        TopicPhase.MIRRORING,
        None,
        "cancelled: taken back by bob@desk",
    )


def test_a_wait_goes_on_while_the_controller_tries_again() -> None:
    it = connections(replace(POSTPONED, reason="not-drained: router r"))

    async def scene() -> list[TopicRecord]:
        waiting = asyncio.ensure_future(wait_topics(it, "l", ["t"], {TopicPhase.PROMOTED}, 5.0))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        through = replace(POSTPONED, phase=TopicPhase.PROMOTED, schedule=None)
        await it.log.append(lambda _: through)
        return await waiting

    assert [each.phase for each in asyncio.run(scene())] == [TopicPhase.PROMOTED]


def test_a_schedule_is_told_in_words() -> None:
    assert schedule_text(replace(SCHEDULE, postponed=False, deadline_ms=0)) == "at once"
    file = replace(SCHEDULE, release_file="/tmp/go", deadline_ms=0, not_before_ms=1_700_000_000_000)
    assert schedule_text(file) == ("once a person releases it or /tmp/go exists, not before 2023-11-14 22:13:20 UTC")
