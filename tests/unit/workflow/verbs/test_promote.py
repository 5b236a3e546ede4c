"""A person can cancel a promote that waits, but not a promote whose fence has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.errors import Failed, Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import GroupRecord, PromoteTerms, TopicRecord, TransactionRecord
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import cancel_promote, wait_topics
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

ASKED = TopicRecord("l", "t", TopicPhase.PROMOTE_PENDING, 1, partitions=1, terms=PromoteTerms(1))
OTHER = replace(ASKED, topic="u")
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t", "u"), ("g",))
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=GroupMode.FOLLOW)


def connections(*records: Record) -> Any:
    return SimpleNamespace(log=MemoryLog(LINK, *records), waits_for=lambda _: "")


def cancelled(it: Any, topics: Sequence[str] = ("t",), *, plan: bool = False) -> Plan:
    return asyncio.run(run_verb(cancel_promote(it, None, topics, who="ann@desk"), plan=plan))


def refused(it: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        cancelled(it)
    return caught.value


def test_a_promote_that_waits_is_taken_back_with_the_name_of_who_did_it() -> None:
    it = connections(ASKED)
    made = cancelled(it)
    assert (made.applied, made.changes) == (True, ("take back the promote of t",))
    record = it.log.state.topic("l", "t")
    assert (record.phase, record.reason) == (TopicPhase.MIRRORING, "cancelled: taken back by ann@desk")
    assert record.terms is None


def test_a_plan_of_it_changes_nothing() -> None:
    it = connections(ASKED)
    assert cancelled(it, plan=True).changes == ("take back the promote of t",)
    assert it.log.state.topic("l", "t") == ASKED


def test_what_nobody_asked_for_is_as_it_should_be_already() -> None:
    it = connections(replace(ASKED, phase=TopicPhase.MIRRORING, terms=None))
    before = it.log.state
    made = cancelled(it)
    assert (made.applied, made.changes, [(f.level, f.ref) for f in made.findings]) == (True, (), [("ok", "already")])
    assert it.log.state == before


@pytest.mark.parametrize(
    ("phase", "ref"),
    [
        (TopicPhase.FENCING, "fence-begun"),
        (TopicPhase.FENCED, "fence-begun"),
        (TopicPhase.PROMOTED, "already-promoted"),
    ],
)
def test_from_its_fence_on_a_promote_is_not_taken_back_also_where_that_began_a_moment_ago(
    phase: TopicPhase, ref: str
) -> None:
    later = replace(ASKED, phase=phase)
    error = refused(connections(later))
    assert (error.ref, "kmigrate status" in error.next_step, "repeat" in error.next_step) == (ref, True, False)
    it = connections(ASKED)
    it.log.meanwhile(lambda _: later)
    error = refused(it)
    assert (error.ref, error.still_true) == (ref, "nothing was changed")
    assert it.log.state.topic("l", "t") == later


def test_what_the_mirror_writes_in_between_is_kept() -> None:
    it = connections(ASKED)
    it.log.meanwhile(lambda _: replace(ASKED, drop_configs=("x",)))
    cancelled(it)
    record = it.log.state.topic("l", "t")
    assert (record.phase, record.drop_configs) == (TopicPhase.MIRRORING, ("x",))


def test_a_topic_that_nobody_mirrors_is_refused() -> None:
    assert refused(connections()).ref == "not-mirrored"


def test_what_was_to_be_promoted_with_it_is_named() -> None:
    made = cancelled(connections(ASKED, OTHER, TILL, GROUP), plan=True)
    assert [(f.level, f.ref, f.next_step) for f in made.findings] == [
        ("warn", "coupled-topics", "take it back, too: kmigrate promote --cancel --link l u"),
        ("warn", "coupled-group", ""),
    ]
    both = cancelled(connections(ASKED, OTHER, TILL), ["t", "u"], plan=True)
    assert (len(both.changes), both.findings) == (2, ())


def test_whoever_waits_for_a_promote_that_is_taken_back_is_told_at_once() -> None:
    it = connections(ASKED)

    async def scene() -> None:
        async with asyncio.timeout(1):
            waiting = asyncio.create_task(wait_topics(it, "l", ["t"], {TopicPhase.PROMOTED}, 300.0))
            await asyncio.sleep(0.01)
            await run_verb(cancel_promote(it, None, ["t"], who="ann@desk"))
            await waiting

    with pytest.raises(Failed) as caught:
        asyncio.run(scene())
    assert caught.value.ref == "promote-given-up"
    assert caught.value.what == "the promote of t was given up: cancelled: taken back by ann@desk"
