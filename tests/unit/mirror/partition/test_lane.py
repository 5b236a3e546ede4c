"""The lane as the state machine of one partition: what is sent when, and what each answer means."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.mirror.partition.lane import Lane, Sent
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.model.stops import AcceptedLoss, Remedy
from kmigrate.protocol.codes import Code
from kmigrate.records.batch import check_crc, walk
from kmigrate.records.rewrite import contents
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched, record

CONNECTION = object()
MARKER = CONTROL | TRANSACTIONAL


def lane(position: int = 0, sequence: int = 100, *data: bytes) -> Lane:
    """Return a lane that has read its tail on the target and, if `data` is given, one fetch answer."""
    made = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
    made.recovered(position, sequence, position)
    if data:
        made.take(position, fetched(b"".join(data)), 5)
    return made


def send(of: Lane, connection: object = CONNECTION) -> Sent:
    sent = of.send_next(connection, 5)
    assert sent is not None
    return sent


def producer_fields(sent: Sent) -> tuple[int, int, int, int]:
    """Return base offset, producer id, epoch and sequence of a sent batch; check that the CRC fits."""
    view = bytes(sent.step.view)
    assert struct.unpack_from(">I", view, 17) == (crc32c(view[21:]),)
    return (*struct.unpack_from(">q", view, 0), *struct.unpack_from(">qhi", view, 43))


def test_the_first_batch_goes_alone_and_the_others_in_a_pipe_after_its_ack() -> None:
    it = lane(0, 100, *(batch(n, 1) for n in range(9)))
    first = send(it)
    assert producer_fields(first) == (0, 77, 0, 100)
    assert it.send_next(CONNECTION, 5) is None
    it.answered(first.step, 0, 0)
    piped = [send(it) for _ in range(5)]
    assert [producer_fields(sent)[3] for sent in piped] == [101, 102, 103, 104, 105]
    assert it.send_next(CONNECTION, 5) is None
    assert it.target.position == 1


def test_what_was_queued_when_other_sequences_were_to_be_expected_goes_with_its_own() -> None:
    it = lane(0, 100, batch(0, 2), batch(2, 3), batch(5, 1, attributes=MARKER), batch(6, 4), batch(10, 1))
    it.answered(send(it).step, 0, 0)
    lost = send(it)
    assert producer_fields(lost)[3] == 102
    it.unanswered(lost.step, "connection lost")
    it.recovered(2, 700, 2)
    again = send(it)
    assert producer_fields(again)[3] == 700
    it.answered(again.step, 0, 2)
    it.fill()
    it.filled(6, 1)
    assert [producer_fields(send(it))[3] for _ in range(2)] == [703, 707]
    it.take(11, fetched(batch(11, 1)), 5)
    it.target.sequence += 5
    assert producer_fields(send(it))[3] == 713, "what a batch was stamped with is no more than what was expected"


def test_sequences_wrap_as_brokers_wrap_them() -> None:
    it = lane(0, 2**31 - 1, batch(0, 1), batch(1, 1))
    it.answered(send(it).step, 0, 0)
    assert producer_fields(send(it))[3] == 0


def test_transactional_and_delete_horizon_bits_are_cleared_and_others_stay() -> None:
    it = lane(0, 0, batch(0, 1, producer=5, attributes=0x10 | 0x40 | 0x04))
    assert struct.unpack_from(">h", bytes(send(it).step.view), 21) == (0x04,)


def test_a_new_connection_means_priming_again() -> None:
    it = lane(0, 0, *(batch(n, 1) for n in range(4)))
    it.answered(send(it).step, 0, 0)
    other = object()
    send(it, other)
    assert it.send_next(other, 5) is None


def marker(offset: int) -> bytes:
    return batch(offset, 1, producer=7, attributes=MARKER)


def test_behind_a_hole_the_batches_go_on_as_they_went_before_it() -> None:
    it = lane(0, 0, marker(0), *(batch(n, 1) for n in (1, 2)), marker(3), *(batch(n, 1) for n in (4, 5)))
    it.fill()
    it.filled(1, 1)
    first = send(it)
    assert it.send_next(CONNECTION, 5) is None, "nothing of ours was acknowledged yet"
    it.answered(first.step, 0, 1)
    it.answered(send(it).step, 0, 2)
    it.fill()
    it.filled(4, 1)
    assert [send(it).step.start, send(it).step.start] == [4, 5]


def test_behind_a_hole_the_first_batch_on_a_new_connection_goes_alone() -> None:
    it = lane(0, 0, batch(0, 1), marker(1), *(batch(n, 1) for n in (2, 3)))
    it.answered(send(it).step, 0, 0)
    it.fill()
    other = object()
    assert it.send_next(other, 5) is None
    it.filled(2, 1)
    send(it, other)
    assert it.send_next(other, 5) is None


def test_whose_marker_stands_on_the_log_is_forgotten_with_the_place() -> None:
    it = lane(0, 0, marker(0), batch(1, 1))
    it.fill()
    it.filled(1, 4)
    assert it.target.marked_under == 4
    it.unanswered(send(it).step, "lost")
    it.recovered(1, 0, 0)
    assert it.target.marked_under == 0


def test_an_ack_at_another_offset_ends_the_lane_as_diverged() -> None:
    it = lane(0, 0, batch(0, 2), batch(2, 2))
    it.answered(send(it).step, 0, 7)
    assert it.state is LaneState.STOPPED
    assert it.progress().problem.startswith("diverged: the batch for offset 0")


def test_after_a_45_the_tail_is_read_and_what_is_at_hand_goes_on_from_there() -> None:
    it = lane(0, 0, *(batch(n, 1) for n in range(6)))
    it.answered(send(it).step, 0, 0)
    sent = [send(it) for _ in range(3)]
    it.answered(sent[0].step, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert not it.must_recover
    for later in sent[1:]:
        it.answered(later.step, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert it.must_recover
    it.recovered(3, 903, 3)
    assert producer_fields(send(it))[3] == 903
    assert it.source.read_at == 6


def test_a_tail_beyond_all_that_was_read_makes_the_lane_read_on_there() -> None:
    it = lane(0, 0, batch(0, 1))
    it.answered(send(it).step, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    it.recovered(50, 1, 50)
    assert it.source.read_at == 50
    it.take(1, fetched(batch(1, 1)), 5)
    assert it.send_next(CONNECTION, 5) is None, "an answer to an older fetch is ignored"


def test_what_the_target_has_lost_is_told_with_its_range_and_copied_again() -> None:
    """An unclean election on the target is reported with the lost range, also after the range is copied again.

    Consumers of the target may have read records that were lost for a time.
    """
    it = lane(0, 100, *(batch(n, 1) for n in range(7)))
    for number in range(6):
        it.answered(send(it).step, 0, number)
    it.unanswered(send(it).step, "connection lost")
    it.recovered(2, 102, 2)
    assert (
        it.report.target_loss == "target-truncated: t-0: offsets 2 to 5 were on the target and are gone: copied again"
    )
    assert (it.progress().trouble, it.tally.lost_offsets) == (it.report.target_loss, 4)
    assert (it.target.position, it.source.read_at) == (2, 2)
    it.take(2, fetched(b"".join(batch(n, 1) for n in range(2, 7))), 5)
    it.answered(send(it).step, 0, 2)
    assert it.progress().trouble == ""
    assert it.report.target_loss, "it stays told when the copy is whole again"


def test_a_target_that_holds_as_much_or_more_has_lost_nothing() -> None:
    it = lane(5, 100, batch(5, 1))
    assert not it.report.target_loss, "where it stood before this process is not known"
    it.unanswered(send(it).step, "connection lost")
    it.recovered(5, 100, 5)
    it.unanswered(send(it).step, "connection lost")
    it.recovered(6, 101, 6)
    assert (it.report.target_loss, it.tally.lost_offsets) == ("", 0)


def test_an_unknown_outcome_waits_for_every_answer_and_then_for_a_settled_tail() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1), batch(2, 1))
    it.answered(send(it).step, 0, 0)
    first, second = send(it), send(it)
    it.unanswered(first.step, "connection lost")
    assert it.target.unknown and not it.must_recover
    it.unanswered(second.step, "connection lost")
    assert it.must_recover
    it.recovered(2, 2, 2)
    assert not it.target.unknown
    assert send(it).step.start == 2


def test_a_refusal_that_no_retry_mends_stops_with_the_brokers_name_for_it() -> None:
    it = lane(0, 0, batch(0, 1))
    it.answered(send(it).step, Code.MESSAGE_TOO_LARGE, -1)
    assert it.progress().problem == "target-refused: offset 0 was refused with MESSAGE_TOO_LARGE (10)"


def test_a_hole_waits_for_all_acks_and_data_behind_it_waits_for_the_hole() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1, producer=7, attributes=MARKER), batch(2, 1))
    sent = send(it)
    assert it.hole_due() is None
    it.answered(sent.step, 0, 0)
    assert it.hole_due() == Hole(1, 2)
    it.fill()
    assert it.send_next(CONNECTION, 5) is None
    it.filled(2, 1)
    assert it.target.position == 2
    assert producer_fields(send(it))[3] == 1, "holes take no sequence"


def test_a_marker_too_many_on_the_target_is_found_when_the_tail_is_read() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1))
    it.answered(send(it).step, 0, 0)
    it.answered(send(it).step, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    it.recovered(2, 1, 1)  # a control record at offset 1, where the source has data
    assert it.progress().problem.startswith("diverged: the target holds a control record")


def test_a_restarted_lane_compares_the_targets_last_markers_with_the_source() -> None:
    good, bad = (Lane("t", 0, producer_id=7, epoch=0, hole_limit=100) for _ in range(2))
    for it in (good, bad):
        it.recovered(5, 1, 3)
        assert it.source.read_at == 3
    good.take(3, fetched(batch(3, 1, attributes=MARKER) + batch(4, 3, attributes=MARKER) + batch(7, 1)), 5)
    assert good.hole_due() == Hole(5, 7)
    bad.take(3, fetched(batch(3, 1, attributes=MARKER) + batch(4, 3)), 5)
    assert bad.state is LaneState.STOPPED


def test_nothing_goes_beyond_the_barrier_and_standing_at_it_is_said() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1), batch(2, 1))
    it.answered(send(it).step, 0, 0)
    it.barrier = 2
    assert it.at_barrier == -1
    it.answered(send(it).step, 0, 1)
    assert it.at_barrier == 2
    assert it.send_next(CONNECTION, 5) is None
    it.barrier = 1
    assert it.progress().problem.startswith("beyond-barrier")
    it.barrier = None
    assert not it.progress().problem
    assert send(it).step.start == 2


def test_what_is_read_again_for_a_barrier_inside_a_batch_is_counted_once() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1), batch(2, 3))
    it.answered(send(it).step, 0, 0)
    on_its_way = send(it)
    it.barrier = 3
    assert it.send_next(CONNECTION, 5) is None
    assert (it.source.read_at, it.target.queued_bytes) == (2, len(on_its_way.step.view))
    it.answered(on_its_way.step, 0, 1)
    assert it.target.queued_bytes == 0


def test_a_hole_across_the_barrier_is_filled_up_to_it() -> None:
    it = lane(0, 0, batch(0, 4, attributes=MARKER))
    it.barrier = 3
    assert it.hole_due() == Hole(0, 3)
    it.fill()
    it.filled(3, 1)
    assert (it.hole_due(), it.at_barrier) == (None, 3)


def test_what_was_read_before_a_problem_is_still_copied() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 3, records=2))
    assert not it.reads
    assert it.progress().problem.startswith("short-record")
    it.answered(send(it).step, 0, 0)
    assert it.state is LaneState.STOPPED
    assert it.target.position == 1


def test_where_a_cleaner_works_the_lane_doubts_until_it_has_compared() -> None:
    it = lane(0, 0, batch(0, 1) + batch(3, 1))
    assert it.compacted
    assert it.target.doubtful
    assert it.must_recover
    it.recovered(0, 0, 0)
    assert not it.target.doubtful
    sent = send(it)
    it.answered(sent.step, 0, 0, repeated=True)
    assert it.target.doubtful  # the broker had the batch already, from another copier's read of the source
    assert it.must_recover


def test_a_repeat_is_progress_where_no_cleaner_works() -> None:
    it = lane(0, 0, batch(0, 1))
    it.answered(send(it).step, 0, 0, repeated=True)
    assert it.target.position == 1


def test_direct_batches_count_only_when_they_were_not_there_at_the_start() -> None:
    it = lane()
    it.take(0, fetched(batch(0, 1, producer=9), high_watermark=1), 1_234)
    assert it.progress().direct_ms == 0
    it.take(1, fetched(batch(1, 1, producer=9), high_watermark=2), 1_234)
    told = it.progress()
    assert (told.direct_id, told.direct_epoch, told.direct_offset, told.direct_ms) == (9, 0, 1, 1_234)


def test_what_was_written_while_no_mirror_ran_is_a_direct_write_too() -> None:
    it = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100, live_from=1)
    it.recovered(0, 0, 0)
    it.take(0, fetched(batch(0, 1, producer=9) + batch(1, 1, producer=8), high_watermark=2), 1_234)
    assert list(it.direct.writers) == [(8, 0)]


def test_a_paused_lane_reads_writes_and_fills_nothing_and_goes_on_where_it_was() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1, producer=7, attributes=MARKER))
    it.paused = True
    assert not it.reads
    assert it.send_next(CONNECTION, 5) is None
    assert it.hole_due() is None
    it.paused = False
    assert it.reads
    it.answered(send(it).step, 0, 0)
    assert it.hole_due() == Hole(1, 2)


def test_what_was_read_before_a_deleted_range_is_copied_first_and_the_range_is_exact() -> None:
    it = lane(0, 0, batch(0, 5))
    it.deleted(5, 40)
    assert it.progress().problem.startswith("source-range-lost: offsets 5 to 39 were deleted")
    it.answered(send(it).step, 0, 0)
    assert it.state is LaneState.STOPPED
    assert (it.report.stop_record(9).lost, it.report.stop_record(9).at_ms, it.report.stop_record(9).remedy) == (
        "5..39",
        9,
        Remedy.ACCEPT_LOSS,
    )


def test_an_accepted_loss_becomes_a_hole_however_large_and_what_was_lost_since_is_named() -> None:
    it = lane(5, 100)
    it.losses = (AcceptedLoss(5, 1_000_004, "source-range-lost", 1, "me"),)
    it.deleted(5, 1_000_020)
    hole = it.hole_due()
    assert hole == Hole(5, 1_000_005)
    assert it.source.read_at == 1_000_005
    it.fill()
    it.filled(25_005, 1)
    assert it.hole_due() == Hole(25_005, 1_000_005), "a long hole is made part by part"
    it.fill()
    it.filled(1_000_005, 1)
    it.deleted(1_000_005, 1_000_020)
    assert it.report.lost_range == (1_000_005, 1_000_019)


def test_an_accepted_loss_is_only_made_a_hole_where_the_source_has_it_no_longer() -> None:
    it = lane(5, 100)
    it.losses = (AcceptedLoss(5, 39, "source-range-lost", 1, "me"),)
    it.deleted(5, 20)
    assert it.hole_due() == Hole(5, 20)
    assert it.source.read_at == 20


def test_offsets_whose_holes_the_target_has_already_are_not_lost() -> None:
    it = Lane("t", 0, producer_id=7, epoch=0, hole_limit=100)
    it.recovered(10, 1, 4)
    it.deleted(4, 10)
    assert it.source.read_at == 10
    assert not it.progress().problem
    it.deleted(10, 12)
    assert it.report.lost_range == (10, 11)


def test_a_source_that_lost_only_what_was_read_is_read_again_and_nothing_of_it_is_written() -> None:
    it = lane(0, 0, *(batch(n, 1) for n in range(9)))
    sent = send(it)
    it.cut(4)
    assert not it.reads
    assert it.send_next(CONNECTION, 5) is None
    it.answered(sent.step, 0, 0)
    assert it.must_recover
    it.take(9, fetched(batch(9, 1)), 5)
    it.recovered(1, 1, 1)
    assert (it.source.read_at, it.source.leader_epoch) == (1, -1)
    assert it.reads
    assert it.send_next(CONNECTION, 5) is None


def test_a_source_that_lost_what_the_target_holds_stops_by_name_unless_that_was_accepted() -> None:
    for losses, stops in (((), True), ((AcceptedLoss(30, 49, "source-truncated", 1, "me"),), False)):
        it = lane(50, 100)
        it.losses = losses
        it.cut(30)
        it.recovered(50, 100, 50)
        assert it.stopped == stops
        assert (it.report.lost_range == (30, 49)) == stops
    assert it.source.read_at == 50
    assert "reaches 50" in it.progress().trouble


def test_a_lane_is_at_rest_only_when_nothing_of_it_is_under_way() -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1))
    sent = send(it)
    it.stop("any: reason")
    assert not it.at_rest
    it.answered(sent.step, 0, 0)
    assert it.at_rest
    it.busy = True
    assert not it.at_rest


@pytest.mark.parametrize("compacted", [True, False])
def test_an_append_under_way_tears_a_lane_only_where_a_log_cleaner_works(compacted: bool) -> None:
    it = lane(0, 0, batch(0, 1), batch(1, 1))
    if compacted:
        it.beware_of_cleaner()
        it.recovered(0, 0, 0)
    assert not it.has_late_writes
    sent = send(it)
    assert it.has_late_writes == compacted
    it.answered(sent.step, 0, 0)
    assert not it.has_late_writes
    it.unanswered(send(it).step, "lost")
    assert it.has_late_writes == compacted, "it may still come"
    it.recovered(1, 1, 1)
    assert not it.has_late_writes


def cleaned() -> Lane:
    """Return a lane whose last batch has an unknown outcome after a hole that a log cleaner made on the source.

    The target holds records 0 to 4 and the hole 5 to 7.
    """
    it = lane(0, 0, batch(0, 5), batch(8, 2))
    it.recovered(0, 0, 0)
    it.answered(send(it).step, 0, 0)
    assert it.hole_due() == Hole(5, 8)
    it.fill()
    it.filled(8, 1)
    it.unanswered(send(it).step, "the leader moved")
    return it


def test_what_another_replicas_cleaner_has_left_of_a_hole_that_is_filled_is_no_difference() -> None:
    """After both leaders move, the source may show records inside the filled hole; the partition does not stop."""
    it = cleaned()
    it.recovered(8, 5, 5)
    assert it.source.read_at == 10, "what is at hand goes on"
    it = cleaned()
    it.drop_waiting()
    it.recovered(8, 5, 5)
    assert it.source.read_at == 8
    it.take(8, fetched(batch(5, 5, text=b"".join(map(record, range(5))))), 5)
    assert not it.stopped
    assert send(it).step.start == 8


@pytest.mark.parametrize("end", [6, 7, 8])
def test_nor_is_it_where_a_part_of_the_hole_is_filled_and_the_next_may_be(end: int) -> None:
    it = lane(0, 0, batch(0, 5), batch(8, 2))
    it.recovered(0, 0, 0)
    it.answered(send(it).step, 0, 0)
    it.fill()
    it.filled(6, 1)
    it.fill()
    it.fill_failed("no answer came", unknown=True)
    it.recovered(end, 5, 5)
    assert it.target.position == end
    if it.source.read_at != 10:
        it.take(it.source.read_at, fetched(batch(5, 5, text=b"".join(map(record, range(5))))), 5)
    assert (it.stopped, it.report.problem) == (False, "")


@pytest.mark.parametrize(("end", "cut"), [(9, False), (8, True)])
def test_a_marker_too_many_is_found_also_where_a_log_cleaner_works(end: int, cut: bool) -> None:
    """The lane stops as diverged where the target has a marker too many.

    The marker may be more than the lane has made, or the source was truncated and holds a record by now.
    """
    it = cleaned()
    if cut:
        it.cut(8)
    it.recovered(end, 5, 5)
    it.take(5, fetched(batch(5, 5)), 5)
    assert it.report.problem.startswith("diverged: ")


def test_a_hole_that_is_being_made_tears_a_lane() -> None:
    it = lane(0, 0, batch(0, 1, attributes=MARKER), batch(1, 1))
    assert it.hole_due() == Hole(0, 1)
    assert not it.has_late_writes
    it.fill()
    assert it.has_late_writes


def test_markers_without_an_answer_tear_a_lane_until_its_tail_has_come_to_rest() -> None:
    it = lane(0, 0, batch(0, 1, attributes=MARKER), batch(1, 1))
    it.fill()
    it.fill_failed("the connection was lost", unknown=True)
    assert it.has_late_writes, "they may still come, and in the midst of what another process appends"
    assert it.settle_s >= 1, "a broker may work on another partition's markers before it reads these"
    it.recovered(0, 0, 0)
    assert not it.has_late_writes
    assert it.settle_s == 0


def test_a_lane_is_torn_where_it_is_stopped_or_loses_its_place_while_its_hole_is_made() -> None:
    for cut in (True, False):
        it = lane(0, 0, batch(0, 1, attributes=MARKER), batch(1, 1))
        it.fill()
        if cut:
            it.cut(0)
        else:
            it.stop("no longer mirrored by this process")
        assert it.has_late_writes


def test_a_hole_that_was_not_begun_or_was_refused_to_an_older_owner_tears_nothing() -> None:
    it = lane(0, 0, batch(0, 1, attributes=MARKER), batch(1, 1))
    it.fill()
    it.fill_failed("the target's log moved", unknown=False)
    assert not it.has_late_writes


def test_a_success_ends_the_slow_tries() -> None:
    it = lane(0, 0, batch(0, 1))
    pauses = []
    for _ in range(3):
        it.answered(send(it).step, Code.TOPIC_AUTHORIZATION_FAILED, -1)
        pauses.append(it.write_pause_s)
        it.recovered(0, 0, 0)
    assert pauses == [0.25, 0.5, 1.0]
    it.answered(send(it).step, 0, 0)
    assert it.write_pause_s == 0.0


# Two copiers with the same producer id write to a broker that follows rule M1, and answers are lost.
# The target still gets the source log exactly once.


@dataclass
class FakeBroker:
    """A log with Kafka's producer state for a single id: the last sequence and the five newest batches."""

    log: list[tuple[int, int, int | None]] = field(default_factory=list)
    """Entries of start, end and sequence; the sequence of a control record is None."""
    next_sequence: int | None = None

    @property
    def end(self) -> int:
        return self.log[-1][1] if self.log else 0

    def produce(self, count: int, sequence: int) -> tuple[int, int]:
        data = [entry for entry in self.log if entry[2] is not None]
        for start, end, stored in data[-5:]:
            if (stored, end - start) == (sequence, count):
                return 0, start
        if self.next_sequence not in (None, sequence):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        self.log.append((self.end, self.end + count, sequence))
        self.next_sequence = sequence + count
        return 0, self.log[-1][0]

    def mark(self, count: int) -> None:
        for _ in range(count):
            self.log.append((self.end, self.end + 1, None))

    def tail(self) -> tuple[int, int, int]:
        data = [entry for entry in self.log if entry[2] is not None]
        if not data:
            return self.end, self.end, 0
        start, end, sequence = data[-1]
        assert sequence is not None
        return self.end, sequence + end - start, end


@dataclass
class World:
    """A source log, a fake target and two lanes; the first lane owns the holes."""

    source: list[tuple[int, int, bool]]
    broker: FakeBroker = field(default_factory=FakeBroker)
    lanes: list[Lane] = field(default_factory=list)
    wire: list[list[Sent]] = field(default_factory=lambda: [[], []])

    def act(self, who: int, what: int) -> None:
        it, wire = self.lanes[who], self.wire[who]
        if it.must_recover:
            it.recovered(*self.broker.tail())
        if what == 0 and it.reads:
            data = b"".join(
                batch(start, end - start, attributes=0 if is_data else MARKER)
                for start, end, is_data in self.source
                if end > it.source.read_at
            )
            it.take(it.source.read_at, fetched(data), 0)
        elif what in (1, 2):
            sent = it.send_next(CONNECTION, 5)
            if sent is not None:
                wire.append(sent)
        elif what in (3, 4) and wire:
            sent = wire.pop(0)
            count = sent.step.end - sent.step.start
            error, base = self.broker.produce(count, producer_fields(sent)[3])
            if what == 3:
                it.answered(sent.step, error, base)
            else:
                it.unanswered(sent.step, "lost")
                for lost in wire:  # the connection is lost: later requests may have arrived, too
                    it.unanswered(lost.step, "lost")
                wire.clear()
        elif what == 5 and who == 0 and (hole := it.hole_due()) is not None:
            it.fill()
            if self.broker.end != hole.start:
                it.fill_failed("moved", unknown=False)
            else:
                self.broker.mark(hole.end - hole.start)
                it.filled(hole.end, 1)


@settings(max_examples=150)
@given(
    shape=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12),
    schedule=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), max_size=200),
)
def test_two_lanes_of_one_id_write_the_source_log_once_and_in_order(
    shape: list[tuple[int, bool]], schedule: list[tuple[int, int]]
) -> None:
    source, at = [], 0
    for count, is_data in shape:
        source.append((at, at + count, is_data))
        at += count
    world = World(source)
    world.lanes = [Lane("t", 0, producer_id=77, epoch=0, hole_limit=100) for _ in range(2)]
    for who, what in schedule:
        world.act(who, what)
    for _ in range(200):  # then the owner alone reaches the end, without lost answers
        for what in (0, 1, 3, 5):
            world.act(0, what)
    assert not world.lanes[0].report.problem
    wanted = [(o, is_data) for start, end, is_data in source for o in range(start, end)]
    found = [(o, sequence is not None) for start, end, sequence in world.broker.log for o in range(start, end)]
    assert found == wanted


def behind_a_first_hole(*following: bytes, term: int = 4) -> Lane:
    """Return a lane that may send windows: its first marker has raised the epoch, and a batch went alone behind it."""
    it = lane(0, 0, marker(0), batch(1, 1), *following)
    it.fill()
    epoch = it.begin_marking(term)
    it.filled(1, term, epoch)
    it.saw_end(0.0)
    it.allow_windows(term)
    it.answered(send(it).step, 0, 1)
    return it


def test_behind_the_first_marker_of_an_owner_data_has_the_raised_epoch_and_begins_at_sequence_0() -> None:
    it = lane(0, 70, marker(0), batch(1, 2), batch(3, 1))
    it.fill()
    assert it.begin_marking(4) == 1
    it.filled(1, 4, 1)
    first = send(it).step
    it.answered(first, 0, 1)
    second = send(it).step
    heads = [next(walk(each.view)) for each in (first, second)]
    assert [(head.producer_epoch, head.base_sequence) for head in heads] == [(1, 0), (1, 2)]
    assert all(check_crc(each.view) for each in (first, second))


def test_an_owner_raises_the_epoch_once_under_a_term_and_every_later_owner_above_it() -> None:
    it = lane(0, 0, marker(0))
    assert [it.begin_marking(4), it.begin_marking(4)] == [1, 1]
    it.fill_failed("no answer", unknown=True)
    it.recovered(1, 0, 0, 1)
    assert it.begin_marking(4) == 1, "the marker without an answer was this owner's"
    assert it.begin_marking(5) == 2
    it.fill_failed("refused", unknown=False)
    it.recovered(1, 0, 0, 7)
    assert it.begin_marking(5) == 8, "another owner has raised the epoch meanwhile"


def test_when_the_epochs_are_used_up_no_window_is_sent() -> None:
    it = lane(0, 0, marker(0), batch(1, 1), marker(2))
    it.fill_failed("any", unknown=False)
    it.recovered(0, 0, 0, 32_000)
    it.saw_end(0.0)
    it.take(0, fetched(marker(0) + batch(1, 1) + marker(2)), 5)
    it.fill()
    assert it.begin_marking(4) == 32_000
    it.filled(1, 4, 32_000)
    it.allow_windows(4)
    assert not it.holds_back


def test_a_window_holds_all_batches_up_to_the_hole_and_needs_a_marker_of_its_term() -> None:
    it = behind_a_first_hole(batch(2, 1), batch(3, 1), marker(4), term=4)
    assert it.holds_back and it.window_due
    assert it.begin_window(5) is None
    window = it.begin_window(4)
    assert window is not None
    assert ([append.start for append in window.appends], window.end, window.epoch) == ([2, 3], 5, 1)
    assert not it.window_due
    assert it.send_next(CONNECTION, 5) is None, "nothing else is in flight"
    assert it.window_stored(window, 4)
    assert (it.target.position, it.target.next, it.state) == (5, 5, LaneState.PIPING)


def test_a_window_waits_for_the_batches_in_flight() -> None:
    it = behind_a_first_hole(batch(2, 1), term=4)
    assert not it.holds_back, "no hole is known yet"
    before = send(it)
    it.take(3, fetched(batch(3, 1) + marker(4)), 5)
    assert it.holds_back and not it.window_due
    it.answered(before.step, 0, 2)
    assert it.window_due


def test_a_long_window_that_fails_is_continued_where_the_tail_ends_under_a_new_epoch() -> None:
    it = behind_a_first_hole(batch(2, 1), marker(3), batch(4, 2), marker(6), batch(7, 1), marker(8), batch(9, 1))
    window = it.begin_window(4, holes=2)
    assert window is not None
    assert [(part.appends[0].start, part.hole) for part in window.parts] == [(2, Hole(3, 4)), (4, Hole(6, 7))]
    assert [append.sequence for append in window.appends] == [1, 2]
    assert (it.target.next, it.target.position) == (6, 2)
    it.window_failed(window, "no answer")
    assert it.must_recover and it.settle_s == 1.0
    it.recovered(6, 4, 6, 1)
    assert it.hole_due() == Hole(6, 7), "the batches have arrived, the last marker has not"
    it.fill()
    assert it.begin_marking(4) == 2, "late batches of the window are refused behind this marker"
    it.filled(7, 4, 2)
    step = send(it).step
    assert (step.start, step.sequence, it.target.epoch) == (7, 0, 2)


def test_a_new_owner_at_a_hole_waits_for_rest_if_windows_of_an_earlier_owner_may_come() -> None:
    rests = []
    for epoch, unsettled in ((0, False), (1, False), (1, True)):
        it = Lane("t", 0, producer_id=77, epoch=0, hole_limit=100)
        if unsettled:
            it.unsettle()
            assert it.settle_s == 1.0, "the tail is read at rest"
        it.recovered(5, 3, 5, epoch)
        it.take(5, fetched(marker(5)), 5)
        assert it.hole_due() == Hole(5, 6)
        rests.append(it.first_marker_settle_s)
    assert rests == [0.0, 1.0, 0.0]


def test_a_long_window_counts_its_records_and_holes_at_once() -> None:
    it = behind_a_first_hole(batch(2, 1), marker(3), batch(4, 2), marker(6))
    queued, holes = it.target.queued_bytes, it.tally.hole_offsets
    assert queued > 0
    window = it.begin_window(4, holes=64)
    assert window is not None and it.window_stored(window, 4)
    assert (it.target.queued_bytes, it.tally.hole_offsets - holes, it.target.position) == (0, 2, 7)
    assert (it.target.raised, it.target.windows) == ((4, 1), True)
    assert it.tally.windows == {("long",): 1}


def test_a_window_never_crosses_the_barrier() -> None:
    it = behind_a_first_hole(batch(2, 1), marker(3), marker(4))
    it.barrier = 3
    assert not it.holds_back, "at the barrier there is no hole"
    it.barrier = 4
    window = it.begin_window(4)
    assert window is not None and window.parts[0].hole == Hole(3, 4)
    it.window_stored(window, 4)
    assert it.at_barrier == 4


def test_a_window_whose_lane_was_lost_or_stopped_meanwhile_counts_for_nothing() -> None:
    it = behind_a_first_hole(batch(2, 1), marker(3))
    window = it.begin_window(4)
    assert window is not None
    it.cut(2)
    assert not it.must_recover, "the window is in flight"
    assert not it.window_stored(window, 4)
    assert it.must_recover and it.target.position == 2
    stopped = behind_a_first_hole(batch(2, 1), marker(3))
    window = stopped.begin_window(4)
    assert window is not None
    stopped.stop("any")
    assert not stopped.at_rest
    stopped.window_failed(window, "no answer")
    assert stopped.at_rest and stopped.state is LaneState.STOPPED


def test_sequence_0_of_a_raised_epoch_is_sent_only_right_after_a_look_at_the_log_end() -> None:
    it = lane(0, 0, marker(0), batch(1, 1))
    assert not it.look_again(100.0), "of the link's own epoch every sequence is checked"
    it.fill()
    it.filled(1, 4, it.begin_marking(4))
    it.saw_end(100.0)
    assert not it.look_again(102.0)
    assert it.look_again(104.0)
    assert it.state is LaneState.LOST


def test_on_a_log_with_a_raised_epoch_the_first_batch_before_a_hole_is_only_the_first_record() -> None:
    records = batch(0, 3, text=b"".join(map(record, range(3))))
    it = lane(0, 0, records, marker(3))
    assert send(it).step.end == 3, "no owner has ever sent a window"
    it.fill_failed("any", unknown=False)
    it = lane(0, 0)
    it.fill_failed("any", unknown=False)
    it.recovered(0, 5, 0, 1)
    it.take(0, fetched(records + marker(3)), 5)
    first = send(it).step
    assert (first.start, first.end, first.sequence) == (0, 1, 5)
    it.answered(first, 0, 0)
    others = send(it).step
    assert (others.start, others.end, others.sequence) == (1, 3, 6)
    assert contents(next(walk(others.view))).keys() == {0, 1}
    assert it.first_marker_settle_s == 0.0
    it.answered(others, 0, 1)
    assert (it.target.queued_bytes, it.hole_due()) == (0, Hole(3, 4))


def test_a_first_batch_that_cannot_be_divided_makes_the_log_rest_before_the_hole() -> None:
    for data in (batch(0, 1), batch(0, 2, text=b"rubbish")):
        it = lane(0, 0)
        it.fill_failed("any", unknown=False)
        it.recovered(0, 5, 0, 1)
        it.take(0, fetched(data), 5)
        it.answered(send(it).step, 0, 0)
        assert it.first_marker_settle_s == 1.0
