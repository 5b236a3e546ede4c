"""Who writes past every router, by what the source tells and by what the mirrors have seen."""

from __future__ import annotations

import asyncio

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import TransactionRecord
from kmigrate.net.clock import now_ms
from kmigrate.workflow.stragglers import direct_writers
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.test_promote import LINK, PENDING, FakeCluster

WINDOW_S = 5.0
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))
SAID_MS = 1_000_000_000
"""By a mirror's clock that is years slow."""


def seen(
    producer: int,
    ago_ms: int,
    *records: TransactionRecord,
    tells: tuple[ProducerState, ...] = (),
    said_ms: int = SAID_MS,
    clock_ms: int = SAID_MS,
) -> list[str]:
    """What is said where a mirror has seen a direct batch, by its own clock so long before its word."""
    log = MemoryLog(LINK, *records)
    progress = PartitionProgress(100, direct_id=producer, direct_offset=99, direct_ms=clock_ms - ago_ms)
    log.say(MirrorPresence("m", "l", 1, True, 500, {"t": {0: progress}}, said_ms=said_ms))
    return asyncio.run(direct_writers(log, FakeCluster(producers=tells), PENDING, WINDOW_S))  # type: ignore[arg-type]


def test_a_writer_without_id_is_told_by_the_clock_of_the_mirror_that_saw_it() -> None:
    assert seen(-1, 2_000) == [
        "a producer without id wrote to t-0 at offset 99 on the source 2.0 s ago, past every router"
    ]
    assert seen(-1, 6_000) == []


def test_a_batch_that_a_mirror_saw_after_its_last_whole_word_was_seen_just_now() -> None:
    (sentence,) = seen(-1, -300)
    assert " 0.0 s ago" in sentence


def test_a_writer_whose_records_tell_of_the_past_is_known_by_when_the_mirror_saw_it() -> None:
    days_old = ProducerState(7, 0, 5, now_ms() - 3 * 86_400_000, -1)
    assert seen(7, 1_000, tells=(days_old,)) == [
        "producer id 7 wrote to t-0 at offset 99 on the source 1.0 s ago, past every router"
    ]


def test_a_writer_that_both_tell_of_is_named_once_for_each_partition() -> None:
    found = seen(7, 1_000, tells=(ProducerState(7, 0, 5, now_ms(), -1),))
    assert sorted(sentence.split(" on the source")[0] for sentence in found) == [
        "producer id 7 wrote to t-0",
        "producer id 7 wrote to t-1",
    ]


def test_a_routed_transactional_writer_is_no_direct_writer() -> None:
    source = FakeCluster(producers=(ProducerState(9, 8, 5, 1 << 60, -1), ProducerState(10, 0, 5, 1 << 60, -1)))
    found = asyncio.run(direct_writers(MemoryLog(LINK, TILL), source, PENDING, WINDOW_S))  # type: ignore[arg-type]
    assert len(found) == 2
    assert all("producer id 10 " in sentence for sentence in found)


@pytest.mark.parametrize("ago_ms", [0, 1_000])
def test_what_a_transactional_id_of_a_router_wrote_is_no_direct_write(ago_ms: int) -> None:
    assert seen(9, ago_ms, TILL) == []


def test_what_was_there_when_the_mirror_began_says_nothing() -> None:
    assert seen(-1, SAID_MS) == []


def test_a_mirror_of_a_version_that_does_not_tell_its_clock_is_believed_to_have_ours() -> None:
    assert len(seen(-1, 1_000, said_ms=0, clock_ms=now_ms())) == 1
    assert seen(-1, 60_000, said_ms=0, clock_ms=now_ms()) == []
