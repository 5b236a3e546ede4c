"""The status calls offsets identical only where both logs show that, and gives the runs of a mapped topic."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import AssignmentRecord, LeaseRecord, PartitionBarrier, TopicRecord, VerifiedRange
from kmigrate.model.verified import _nothing
from kmigrate.workflow.status.snapshot import TopicStatus, _Bounds, _LinkLook
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK

KEY = ("t", 0)
RECORD = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10})


def status(
    record: TopicRecord,
    target: tuple[int, int],
    source: tuple[int, int],
    seen: PartitionProgress | None = None,
    verified: VerifiedRange | None = None,
) -> TopicStatus:
    at_target, at_source = (
        _Bounds({KEY: LogOffset(0, first, 0)}, {KEY: LogOffset(0, end, 0)}) for first, end in (target, source)
    )
    presence = MirrorPresence("m", "l", 1, True, 500, {"t": {0: seen}}) if seen is not None else None
    lease, shared = LeaseRecord("mirror/l", "m", 1), AssignmentRecord("l", 2, ("m",), {"t": (0,)})
    kept = () if verified is None else (replace(_nothing(LINK, record), ranges={0: verified}),)
    log = MemoryLog(LINK, lease, shared, record, *kept)
    if presence is not None:
        log.say(presence)
    connections: Any = SimpleNamespace(log=log, waits_for=lambda _: "")
    look = _LinkLook(connections, LINK, log.alive(MirrorPresence), [])
    look.at_source, look.at_target = at_source, at_target
    (made,) = asyncio.run(look.topic_statuses())
    return made


@pytest.mark.parametrize(
    ("target", "source", "word"),
    [
        ((10, 40), (10, 50), "identical"),
        ((10, 50), (25, 50), "identical"),
        ((25, 50), (25, 50), "identical"),
        ((20, 50), (25, 50), "identical"),
        ((0, 40), (10, 50), "unknown"),
        ((11, 40), (10, 50), "unknown"),
        ((10, 51), (10, 50), "unknown"),
    ],
)
def test_identical_is_said_only_where_both_logs_show_it(
    target: tuple[int, int], source: tuple[int, int], word: str
) -> None:
    assert status(RECORD, target, source).offsets == word


def test_a_copy_whose_beginning_somebody_has_deleted_says_so() -> None:
    told = status(RECORD, (30, 50), (5, 50)).partitions[0].trouble
    assert told == "copy-cut: offsets 10 to 29 are gone on the target, where somebody deletes records"
    assert not status(RECORD, (30, 50), (30, 50)).partitions[0].trouble, "nor has the source them"
    done = replace(RECORD, phase=TopicPhase.PROMOTED, barrier={0: PartitionBarrier(50, 1)})
    assert not status(done, (30, 50), (5, 50)).partitions[0].trouble, "its retention is its own"
    mapped = replace(RECORD, mapped=True)
    assert not status(mapped, (30, 50), (5, 50)).partitions[0].trouble


def test_a_topic_that_is_being_forgotten_says_how_that_ends_and_not_that_nobody_copies_it() -> None:
    told = status(replace(RECORD, forgotten_ms=7, reason="an older one"), (10, 40), (10, 50))
    assert told.reason == "being forgotten: kmigrate topic forget --link l t ends it"
    assert (told.partitions[0].trouble, told.partitions[0].copied_by) == ("", "")


def test_after_the_promote_the_target_may_delete_and_grow_on_its_own() -> None:
    done = TopicRecord(
        "l", "t", TopicPhase.PROMOTED, 1, partitions=1, starts={0: 10}, barrier={0: PartitionBarrier(50, 1)}
    )
    assert status(done, (30, 90), (10, 50)).offsets == "identical"


def test_a_mapped_topic_shows_its_runs_and_lags_by_its_position() -> None:
    mapped = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1, starts={0: 10}, mapped=True)
    told = status(mapped, (0, 900), (10, 50), PartitionProgress(47, target_position=900, runs=3))
    assert (told.offsets, told.lag) == ("mapped (3 runs)", 3)
    told = status(mapped, (0, 900), (10, 50))
    assert (told.offsets, told.lag) == ("mapped", -1)


def test_what_no_check_found_equal_is_counted_once_a_check_has_looked() -> None:
    assert status(RECORD, (10, 40), (10, 50)).unverified == -1
    told = status(RECORD, (10, 40), (10, 50), verified=VerifiedRange(10, 42, 7, 10, 0))
    assert (told.partitions[0].verified_to, told.partitions[0].verified_ms, told.unverified) == (42, 7, 8)


def test_a_promoted_topic_is_verified_up_to_its_barrier_whatever_the_source_holds_behind_it() -> None:
    done = replace(RECORD, phase=TopicPhase.PROMOTED, barrier={0: PartitionBarrier(50, 1)})
    assert status(done, (10, 90), (10, 55), verified=VerifiedRange(10, 50, 7, 10, 0)).unverified == 0
