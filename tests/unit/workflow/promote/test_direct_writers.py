"""Direct writers are found by the source's producer state and by the batches that mirrors have seen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import DirectRecord, DirectWriter, TransactionRecord
from kmigrate.net.clock import now_ms
from kmigrate.workflow.promote.direct_writers import direct_writers, look_for_direct_writers, seen_direct_writers
from kmigrate.workflow.verbs.promote import direct_findings
from tests.fakes.scripted_cluster import FakeCluster
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING

WINDOW_S = 5.0
TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))
SAID_MS = 1_000_000_000
"""Time of a presence, by a mirror's clock that is years slow."""


def seen(
    producer: int,
    ago_ms: int,
    *records: TransactionRecord,
    tells: tuple[ProducerState, ...] = (),
    said_ms: int = SAID_MS,
    clock_ms: int = SAID_MS,
    epoch: int = 0,
) -> list[str]:
    """Return the findings if a mirror has seen a direct batch `ago_ms` before its presence, by its own clock."""
    log = MemoryLog(LINK, *records)
    progress = PartitionProgress(
        100, direct_id=producer, direct_epoch=epoch, direct_offset=99, direct_ms=clock_ms - ago_ms
    )
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
        "producer id 7 wrote to t-0 at offset 99",
        "producer id 7 wrote to t-1",
    ]


def by_source(*producers: ProducerState, records: tuple[Any, ...] = ()) -> list[str]:
    """Return the findings that rest on the source's producer state alone."""
    source = FakeCluster(producers=producers)
    return asyncio.run(direct_writers(MemoryLog(LINK, *records), source, PENDING, WINDOW_S))  # type: ignore[arg-type]


def test_a_routed_transactional_writer_is_no_direct_writer() -> None:
    now = now_ms()
    found = by_source(ProducerState(9, 8, 5, now, -1), ProducerState(10, 0, 5, now, -1), records=(TILL,))
    assert len(found) == 2
    assert all("producer id 10 " in sentence for sentence in found)


def test_a_direct_writer_that_took_a_routed_transactional_id_over_has_a_later_epoch() -> None:
    found = by_source(ProducerState(9, 9, 5, now_ms(), -1), records=(TILL,))
    assert [sentence.split(" on the source")[0] for sentence in found] == [
        "producer id 9 wrote to t-0",
        "producer id 9 wrote to t-1",
    ]
    assert len(seen(9, 1_000, TILL, epoch=9)) == 1


def test_a_marker_that_ended_a_routed_transaction_late_is_nobody_s_write() -> None:
    """A marker is no write: a coordinator that aborts a transaction by timeout raises the epoch in the marker."""
    assert by_source(ProducerState(9, 9, -1, now_ms(), -1), records=(TILL,)) == []


@pytest.mark.parametrize("ago_ms", [0, 1_000])
def test_what_a_transactional_id_of_a_router_wrote_is_no_direct_write(ago_ms: int) -> None:
    assert seen(9, ago_ms, TILL, epoch=8) == []


@dataclass
class Moving(FakeCluster):
    """A source with a producer that has written again at each look."""

    async def describe_producers(self, keys: Any) -> Any:
        self.asked += 1
        (producer,) = self.producers
        now = replace(producer, last_sequence=producer.last_sequence + self.asked)
        return {key: (0, (now,) if key[1] == 0 else ()) for key in keys}


def test_a_record_of_the_year_2036_keeps_no_topic_once_its_producer_is_silent() -> None:
    ahead = now_ms() + 10 * 365 * 86_400_000
    assert by_source(ProducerState(7, 0, 5, ahead, -1)) == []


def test_a_producer_whose_records_bear_times_beyond_now_is_known_by_its_sequence() -> None:
    source = Moving(producers=(ProducerState(7, 0, 5, now_ms() + 10 * 365 * 86_400_000, -1),))
    found = asyncio.run(direct_writers(MemoryLog(LINK), source, PENDING, WINDOW_S))  # type: ignore[arg-type]
    assert found == ["producer id 7 wrote to t-0 on the source 0.0 s ago, past every router"]


def test_a_writer_with_an_open_transaction_is_named_with_it() -> None:
    found = by_source(ProducerState(7, 0, 5, now_ms() - 1_000, 40))
    assert found[0].endswith("past every router in an open transaction")
    assert by_source(ProducerState(7, 0, 5, now_ms() - 3_600_000, 40)) == [], "the promote waits for its end"


def known(*writers: DirectWriter, ago_s: float, tells: tuple[ProducerState, ...] = ()) -> list[str]:
    """Return the references of a promote's findings, `ago_s` seconds after the newest time in the state log."""
    log = MemoryLog(LINK, DirectRecord("l", "t", writers))
    log.ahead_ms = round(ago_s * 1000) - now_ms() + SAID_MS
    source = FakeCluster(producers=tells)
    found = asyncio.run(look_for_direct_writers(log, source, PENDING, WINDOW_S))  # type: ignore[arg-type]
    return [finding.ref for finding in direct_findings(found, accepted=False)]


def writer(
    producer_id: int, first_s: float, last_s: float, slowest_s: float = -0.001, partition: int = 0
) -> DirectWriter:
    times = (SAID_MS + round(first_s * 1000), SAID_MS + round(last_s * 1000), round(slowest_s * 1000))
    return DirectWriter(producer_id, 0, partition, 10, 99, *times)


@pytest.mark.parametrize(
    ("ago_s", "ref"), [(4, "direct-writers"), (6, "direct-writers-seen"), (86_400, "direct-writers-seen")]
)
def test_a_busy_writer_is_waited_for_as_configured_and_named_for_ever(ago_s: float, ref: str) -> None:
    assert known(writer(7, -100, 0, 0.3), ago_s=ago_s) == [ref]


@pytest.mark.parametrize(
    ("ago_s", "ref"), [(12, "direct-writers"), (15.9, "direct-writers"), (17, "direct-writers-seen")]
)
def test_a_writer_that_pauses_is_waited_for_twice_as_long_as_it_paused(ago_s: float, ref: str) -> None:
    assert known(writer(7, -100, 0, 8), ago_s=ago_s) == [ref]


def test_a_write_that_a_killed_mirror_had_not_written_down_is_told_by_the_source() -> None:
    wrote = ProducerState(7, 0, 5, SAID_MS + 20_000, -1)  # 12 s before the promote's look
    assert known(writer(7, -100, 0, 8), ago_s=32) == ["direct-writers-seen"]
    assert known(writer(7, -100, 0, 8), ago_s=32, tells=(wrote,)) == ["direct-writers"]
    assert known(writer(7, -100, 0, 8), ago_s=37, tells=(wrote,)) == ["direct-writers-seen"]


def test_a_job_that_starts_a_new_producer_at_each_run_is_known_by_the_pauses_between_them() -> None:
    runs = [writer(number, 60 * number, 60 * number + 1, 0.2) for number in range(3)]
    assert known(*runs, ago_s=120 + 100)[0] == "direct-writers"
    assert set(known(*runs, ago_s=120 + 125)) == {"direct-writers-seen"}


def test_a_writer_of_many_partitions_is_not_slow_because_it_seldom_writes_to_one() -> None:
    often, seldom = writer(7, -100, 0, 0.5), writer(7, -100, -40, 60, partition=1)
    assert set(known(often, seldom, ago_s=6)) == {"direct-writers-seen"}


def test_a_direct_writer_whose_id_a_router_took_over_is_named_no_more() -> None:
    log = MemoryLog(LINK, TILL, DirectRecord("l", "t", (DirectWriter(9, 7, 0, 1, 5, now_ms(), now_ms()),)))
    assert seen_direct_writers(log, PENDING) == {}  # type: ignore[arg-type]


def test_what_was_there_when_the_mirror_began_says_nothing() -> None:
    assert seen(-1, SAID_MS) == []
