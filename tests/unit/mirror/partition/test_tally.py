"""A lane counts records, bytes, holes, retries and latency, and says how far behind the lane is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.mirror.metrics import METRICS, LinkMeter, MirrorMetrics
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.reactions import Asked, Found
from kmigrate.mirror.partition.steps import Append, Form
from kmigrate.model.lag import Lag, Pace, lag_of
from kmigrate.model.presences import DiskUse
from kmigrate.net.clock import now_ms
from kmigrate.observe.distributions import QUANTILES
from kmigrate.observe.registry import Registry
from kmigrate.protocol.codes import Code
from tests.prometheus_text import parse, text
from tests.unit.mirror.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, batch, fetched, record

MARKER = CONTROL | TRANSACTIONAL


def lane(position: int = 0) -> Lane:
    made = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
    made.recovered(position, 100, position)
    return made


def append(start: int, end: int, timestamp: int, size: int = 100) -> Append:
    return Append(start, end, memoryview(bytes(size)), timestamp)


def test_records_bytes_and_latency_are_counted_by_batch() -> None:
    tally = lane().tally
    tally.copied(append(0, 10, 1_000, 500), 1_250)
    tally.copied(append(10, 11, -1), 1_300)
    copies = tally.copies
    assert (copies.records, copies.bytes, copies.batches) == (11, 600, {Form.VERBATIM: 2})
    assert (copies.latency_ms.total, copies.latency_ms.count) == (2_500, 10), "a record without a time has no latency"
    assert dict(copies.record_bytes.value(1_300).quantiles)[0.0] == 50
    assert copies.newest_ms == 1_000


@given(st.lists(st.tuples(st.integers(-1, 10**6), st.integers(1, 50), st.sampled_from(Form)), max_size=200), st.data())
def test_however_many_are_counted_at_a_time_the_sums_are_those_of_all(
    copied: list[tuple[int, int, Form]], data: st.DataObject
) -> None:
    meter, it = LinkMeter(), lane()
    meter.lanes = {it.key: it}
    meter.watch(it)
    for timestamp, count, form in copied:
        it.tally.copied(Append(0, count, memoryview(bytes(10 * count + 3)), timestamp, form), 500_000)
        if data.draw(st.booleans()):
            it.tally.count()
    latencies = [(max(0, 500_000 - timestamp), count) for timestamp, count, _ in copied if timestamp >= 0]
    spread = meter.latency.value()
    assert it.tally.copies.records == sum(count for _, count, _ in copied)
    assert it.tally.copies.bytes == sum(10 * count + 3 for _, count, _ in copied)
    assert it.tally.copies.batches == Counter(form for _, _, form in copied)
    assert it.tally.copies.latency_ms.total == sum(latency * count for latency, count in latencies)
    assert (it.tally.copies.latency_ms.count, spread.count) == (sum(count for _, count in latencies),) * 2
    assert spread.total == pytest.approx(it.tally.copies.latency_ms.total / 1000)
    told = it.tally.copies.record_bytes.value(500_000)
    assert (told.total, told.count) == (sum((10 + 3 // n) * n for _, n, _ in copied), it.tally.copies.records)


def test_what_a_lane_has_copied_stays_in_the_links_latencies_when_it_is_dropped() -> None:
    meter, it = LinkMeter(), lane()
    meter.lanes = {it.key: it}
    meter.watch(it)
    it.tally.copied(append(0, 7, 1_000), 1_250)
    it.stop("no longer mirrored by this process")
    meter.lanes = {}
    assert meter.latency.value().count == 7


def test_times_that_lie_in_the_future_count_as_no_delay() -> None:
    it = lane()
    it.take(0, fetched(batch(0, 1, timestamp=99_000)), 5)
    it.tally.copied(append(0, 1, 99_000), 5)
    for spread in (it.tally.age_ms, it.tally.copies.latency_ms):
        assert spread.value(5).quantiles == tuple((q, 0.0) for q in QUANTILES)


def test_holes_and_retries_are_counted_where_they_happen() -> None:
    it = lane()
    it.take(0, fetched(batch(0, 1) + batch(1, 3, producer=7, attributes=MARKER)), 5)
    for error in (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS):
        sent = it.send_next(it, 5)
        assert sent is not None
        it.answered(sent.step, error, -1)
        it.recovered(0, 100, 0)
    sent = it.send_next(it, 5)
    assert sent is not None
    it.unanswered(sent.step, "connection lost")
    it.recovered(1, 101, 1)
    it.fill()
    it.filled(4, 1)
    assert it.tally.hole_offsets == 3
    assert it.tally.retries == {
        (Asked.PRODUCE, "NOT_LEADER_OR_FOLLOWER"): 1,
        (Asked.PRODUCE, "target-few-replicas"): 1,
        (Asked.PRODUCE, Found.NO_ANSWER): 1,
    }


def test_a_batch_that_was_rewritten_is_told_apart() -> None:
    it = lane()
    it.take(0, fetched(batch(0, 1, attributes=LOG_APPEND_TIME, text=record(0))), 5)
    sent = it.send_next(it, 5)
    assert sent is not None and sent.step.form is Form.REWRITTEN


def test_a_copy_at_the_end_is_fresh_as_of_the_sources_last_word_and_ages_once_it_is_behind() -> None:
    it = lane(5)
    it.take(5, fetched(b"", high_watermark=5), 10_000)
    it.tally.heard_ms = 14_900
    assert it.progress().pace.fresh_ms == 10_000, "where nobody writes, to within some seconds"
    it.take(5, fetched(batch(5, 1), high_watermark=900), 11_000)
    it.tally.heard_ms = 99_000
    assert it.progress().pace.fresh_ms == 14_900, "the source's word of a new end makes the old end no fresher"


def test_of_a_partition_that_is_written_the_moment_is_told_exactly() -> None:
    it = lane(5)
    it.tally.copied(append(4, 5, 10_000), 10_000)
    it.take(5, fetched(b"", high_watermark=5), 14_321)
    it.tally.heard_ms = 14_321
    assert it.progress().pace.fresh_ms == 14_321


def test_a_lane_says_the_very_same_value_while_nothing_changes() -> None:
    it = lane(5)
    it.take(5, fetched(b"", high_watermark=5), 10_000)
    said = it.progress()
    it.tally.heard_ms = 14_999
    assert it.progress() is said
    it.tally.heard_ms = 15_001
    assert it.progress() is not said
    it.urgent = it.paused = True
    it.barrier = 9
    told = it.progress()
    it.report.trouble = "why"
    assert it.progress() == replace(told, trouble="why")
    it.report.problem = "p"
    assert it.progress() == replace(told, trouble="why", problem="p")
    it.source.log_end = 7
    assert it.progress().source_end == 7


def test_a_copy_that_was_never_at_the_end_is_as_old_as_what_it_copied_last() -> None:
    it = lane()
    it.take(0, fetched(batch(0, 1)), 10_000)
    assert it.progress().pace.fresh_ms == 0
    sent = it.send_next(it, 5)
    assert sent is not None
    it.answered(sent.step, 0, 0)
    it.tally.copied(sent.step, 10_001)
    assert it.progress().pace == Pace(1_000, len(batch(0, 1)))


def test_a_record_from_the_future_does_not_hide_a_lag() -> None:
    it = lane()
    it.tally.copied(append(0, 1, 10**15), 5_000)
    assert it.tally.pace(1, 9).fresh_ms == 5_000


def test_a_lag_is_nothing_at_the_end_and_unknown_where_nobody_can_say() -> None:
    pace = Pace(4_000, 2.5)
    assert lag_of(0, pace, 9_000) == Lag(0, 0, 0.0)
    assert lag_of(10, pace, 9_000) == Lag(10, 25, 5.0)
    assert lag_of(10, pace, 3_000) == Lag(10, 25, 0.0)
    assert lag_of(10, Pace(), 9_000) == Lag(10, -1, -1.0)
    assert lag_of(-1, pace, 9_000) == Lag(-1, -1, -1.0)


def test_every_metric_of_a_link_is_shown_by_its_partitions_and_gone_with_its_engine() -> None:
    registry = Registry()
    metrics = MirrorMetrics(registry)
    meter = LinkMeter("old", "new")
    it = Lane('odd "topic"', 3, producer_id=77, epoch=0, hole_limit=100)
    it.recovered(0, 0, 0)
    it.take(0, fetched(batch(0, 4), high_watermark=9), now_ms())
    sent = it.send_next(meter, 5)
    assert sent is not None
    it.answered(sent.step, 0, 0)
    meter.watch(it)
    it.tally.copied(sent.step, now_ms())
    it.tally.retried(Asked.FETCH, "source-denied")
    it.tally.windows["long",] += 1
    meter.lanes, meter.announced_at = {it.key: it}, 0.0
    back = Lane("back", 0, producer_id=78, epoch=0, hole_limit=100)
    back.recovered(5, 0, 5)
    back.take(5, fetched(batch(5, 4), high_watermark=12), now_ms())
    returned = back.send_next(meter, 5)
    assert returned is not None
    back.answered(returned.step, 0, 5)
    back.tally.copied(returned.step, now_ms())
    meter.back_lanes = lambda: {back.key: back}
    meter.direct_writes = lambda: {('odd "topic"', "3"): [7.0, 2.0]}
    meter.free_bytes = lambda: {("2", "/data"): 5_000}
    meter.disk_sizes = lambda: {'odd "topic"': 70}
    meter.disk_use = lambda: DiskUse(70, -30)
    it.disk_low = "target-disk-low: waits for room on broker 2"
    with metrics.link("l", meter):
        told = parse(text(registry))
        assert set(told.families) == {metric.name for metric in METRICS}
        of = {"link": "l", "topic": 'odd "topic"', "partition": "3"}
        assert told.value("kmigrate_mirror_lag_records", **of) == 5
        assert told.value("kmigrate_mirror_lag_bytes", **of) == round(5 * len(batch(0, 4)) / 4)
        assert told.value("kmigrate_mirror_lag_seconds", **of) > 10**9, "its records are of 1970"
        assert told.value("kmigrate_mirror_retries_total", asked="fetch", cause="source-denied") == 1
        assert told.value("kmigrate_mirror_target_free_bytes", broker="2", log_dir="/data") == 5_000
        assert told.value("kmigrate_mirror_target_disk_bytes", topic='odd "topic"') == 70
        assert told.value("kmigrate_mirror_target_disk_growth_bytes_per_hour") == -30
        assert told.value("kmigrate_mirror_disk_held_partitions") == 1
        assert told.value("kmigrate_mirror_back_lag_records", topic="back") == 3
        assert told.value("kmigrate_mirror_back_records_total", topic="back") == 4
        assert len(told.series("kmigrate_mirror_lag_records")) == 1, "the copy to the target alone"
    assert text(registry) == ""


def test_an_unknown_end_is_no_sample_rather_than_a_wrong_number() -> None:
    registry = Registry()
    meter = LinkMeter()
    meter.lanes = {("t", 0): Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)}
    meter.disk_use = DiskUse
    with MirrorMetrics(registry).link("l", meter):
        told = parse(text(registry))
    assert not told.series("kmigrate_mirror_lag_records")
    assert not told.series("kmigrate_mirror_target_disk_growth_bytes_per_hour")
    assert not told.series("kmigrate_mirror_target_disk_bytes")
    assert told.value("kmigrate_mirror_stopped", topic="t") == 0
