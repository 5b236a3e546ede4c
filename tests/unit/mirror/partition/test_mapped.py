"""A mapped lane passes holes, stores each run before its first batch, and keeps the map equal to the target's log."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kmigrate.cluster.append import LogTail
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Diverged
from kmigrate.mirror.copy import recovery as module
from kmigrate.mirror.copy.context import CopyContext, MapStore
from kmigrate.mirror.copy.recovery import Recovery
from kmigrate.mirror.partition.lane import Sent
from kmigrate.mirror.partition.mapped import MappedLane
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.model.offset_map_ledger import ChunkKey, MapChunk, MapLedger
from kmigrate.model.records import CopyIdentity
from kmigrate.protocol.codes import Code
from kmigrate.state.offset_maps import OffsetMaps
from tests.unit.mirror.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, batch, fetched, record

CONNECTION = object()
MARKER = CONTROL | TRANSACTIONAL
NO_MAP = OffsetMap()


def lane(
    *data: bytes, start: int = 0, target_start: int = 50, stored: OffsetMap | None = None, compacted: bool = True
) -> MappedLane:
    """Return a mapped lane that has read its tail on the target and, if `data` is given, one fetch answer."""
    made = MappedLane("t", 0, producer_id=77, epoch=0, log_start=start, target_start=target_start, target_topic_id="T")
    made.compacted = compacted
    made.ledger = MapLedger("uuid", "t", 0, term=1, target_topic_id="T", stored=stored or OffsetMap())
    end = max(target_start, made.ledger.map.target_end)
    made.stands_at(end, NO_MAP)
    made.recovered(end, 100, end)
    if data:
        made.take(made.source.read_at, fetched(b"".join(data)), 5)
    return made


def store(of: MappedLane) -> None:
    assert of.map_due
    assert of.ledger is not None
    token, _ = of.ledger.unwritten()
    of.ledger.written(token)


def send(of: MappedLane) -> Sent:
    sent = of.send_next(CONNECTION, 5)
    assert sent is not None
    return sent


def runs(of: MappedLane) -> list[Run]:
    assert of.ledger is not None
    return list(of.ledger.map.runs())


def test_no_batch_goes_before_its_run_is_stored() -> None:
    it = lane(batch(0, 3), batch(3, 2))
    assert it.send_next(CONNECTION, 5) is None
    store(it)
    sent = send(it)
    assert (sent.step.start, it.expected(sent.step)) == (0, 50)
    it.answered(sent.step, 0, 50)
    assert (it.target.position, it.target_position) == (3, 53)
    assert not it.map_due, "what continues the run is stored with it"
    it.answered(send(it).step, 0, 53)
    assert runs(it) == [Run(0, 50, 5)]


def test_what_the_target_has_lost_is_told_in_the_sources_offsets_and_a_hole_that_is_passed_again_is_none() -> None:
    it = lane(batch(0, 2), batch(2, 1, attributes=MARKER), batch(3, 2), batch(5, 1, attributes=MARKER))
    store(it)
    it.answered(send(it).step, 0, 50)
    it.answered(send(it).step, 0, 52)
    assert (it.target.position, it.target_position) == (6, 54)
    it.fill_failed("the leader moved", unknown=False)
    it.stands_at(54, NO_MAP)
    it.recovered(54, 104, 54)
    assert (it.target.position, it.report.target_loss) == (5, ""), "a hole leaves nothing on the target"
    it.fill_failed("the leader moved", unknown=False)
    it.stands_at(51, NO_MAP)
    it.recovered(51, 101, 51)
    assert (
        it.report.target_loss == "target-truncated: t-0: offsets 1 to 4 were on the target and are gone: copied again"
    )


def test_holes_are_passed_and_each_begins_a_run_once_records_follow() -> None:
    it = lane(batch(0, 2), batch(2, 1, attributes=MARKER), batch(9, 4), batch(13, 1, attributes=MARKER))
    assert runs(it) == [Run(0, 50, 2), Run(9, 52, 4)]
    store(it)
    it.answered(send(it).step, 0, 50)
    second = send(it)
    assert it.target.position == 9, "the hole behind an acknowledged batch is passed"
    it.answered(second.step, 0, 52)
    assert (it.target.position, it.target_position) == (14, 56)
    assert it.hole_due() is None


def test_holes_behind_batches_on_their_way_are_passed_when_those_are_acknowledged() -> None:
    it = lane(batch(0, 1), batch(1, 1), batch(2, 1, attributes=MARKER), batch(3, 1))
    store(it)
    it.answered(send(it).step, 0, 50)
    first, second = send(it), send(it)
    assert it.target.position == 1
    it.answered(first.step, 0, 51)
    assert (it.target.position, it.target_position) == (3, 52)
    it.answered(second.step, 0, 52)
    assert (it.target.position, it.target_position) == (4, 53)


def test_the_barrier_is_reached_exactly_though_it_lies_behind_or_inside_a_hole() -> None:
    it = lane(batch(0, 2), batch(2, 1, attributes=MARKER), batch(3, 1, attributes=MARKER))
    it.barrier = 3
    store(it)
    sent = send(it)
    assert it.at_barrier == -1
    it.answered(sent.step, 0, 50)
    assert (it.at_barrier, it.target_position) == (3, 52)
    it.barrier = None
    assert it.send_next(CONNECTION, 5) is None
    assert it.target.position == 4


def test_an_ack_at_another_offset_than_the_map_says_ends_the_lane_as_diverged() -> None:
    it = lane(batch(0, 2))
    store(it)
    it.answered(send(it).step, 0, 0)
    assert it.state is LaneState.STOPPED
    assert it.report.problem.startswith("diverged: the batch for offset 0")


def test_a_place_is_told_only_of_records_that_the_target_has_acknowledged() -> None:
    it = lane(batch(0, 4), batch(4, 1, attributes=MARKER), batch(5, 4))
    store(it)
    first, second = send(it), None
    assert [it.target_offset_of(offset) for offset in (-1, 0, 3, 4, 5, 9)] == [-1] * 6, "nothing is acknowledged"
    it.answered(first.step, 0, 50)
    assert [it.target_offset_of(offset) for offset in (0, 3, 4, 5, 9)] == [50, 53, -1, -1, -1]
    second = send(it)
    it.answered(second.step, 0, 54)
    assert [it.target_offset_of(offset) for offset in (3, 4, 5, 8, 9)] == [53, 54, 54, 57, -1]


def test_after_a_failure_the_map_is_cut_to_the_log_and_the_source_is_read_from_its_end() -> None:
    it = lane(batch(0, 2), batch(5, 2), batch(9, 2))
    store(it)
    it.answered(send(it).step, 0, 50)
    sent = [send(it), send(it)]
    for each in sent:
        it.answered(each.step, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert it.must_recover
    it.stands_at(54, NO_MAP)
    it.recovered(54, 104, 54)
    assert runs(it) == [Run(0, 50, 2), Run(5, 52, 2)]
    assert (it.source.read_at, it.target.position, it.target_position) == (7, 7, 54)
    it.take(7, fetched(batch(8, 1)), 5)
    assert it.send_next(CONNECTION, 5) is None, "the plan that came to nothing is still stored"
    store(it)
    assert it.expected(send(it).step) == 54


def test_what_is_read_while_the_lane_recovers_is_read_again_behind_the_map() -> None:
    """A fetch answer that arrives during recovery is ignored.

    Recovery first cuts the map to the log, and then compares the last batch. An answer may come between the two steps.
    """
    it = lane(batch(0, 1), batch(1, 1))
    store(it)
    it.answered(send(it).step, 0, 50)
    it.answered(send(it).step, Code.NOT_LEADER_OR_FOLLOWER, -1)
    assert it.must_recover
    asked = it.source.read_at
    it.stands_at(51, NO_MAP)
    it.take(asked, fetched(batch(2, 1)), 5)
    it.recovered(51, 101, 51)
    assert (it.target.position, it.source.read_at, it.target_position) == (1, 1, 51)
    assert runs(it) == [Run(0, 50, 1)]


def test_a_lane_that_starts_on_a_stored_map_goes_on_behind_it() -> None:
    it = lane(batch(20, 1), start=5, stored=OffsetMap([Run(5, 50, 10), Run(18, 60, 2)]))
    assert (it.target.position, it.target_position) == (20, 62)
    store(it)
    assert it.expected(send(it).step) == 62
    assert runs(it)[-1] == Run(18, 60, 3)


def test_a_late_batch_of_the_former_owner_is_taken_from_its_stored_map() -> None:
    it = lane(stored=OffsetMap([Run(0, 50, 4)]))
    it.fill_failed("another copier was faster", unknown=False)
    it.stands_at(57, OffsetMap([Run(0, 50, 4), Run(6, 54, 3)]))
    it.recovered(57, 107, 57)
    assert runs(it) == [Run(0, 50, 4), Run(6, 54, 3)]
    assert (it.target.position, it.map_due) == (9, True)


def test_a_target_that_holds_more_than_anybody_planned_stops_the_copy() -> None:
    it = lane(stored=OffsetMap([Run(0, 50, 4)]))
    with pytest.raises(Diverged, match="ends at 55 on the target"):
        it.stands_at(55, OffsetMap([Run(0, 50, 4)]))


def test_gaps_of_any_width_are_no_problem() -> None:
    it = lane(batch(0, 1), batch(5_000_000_000, 1), compacted=False)
    assert it.report.problem == ""
    assert it.compacted
    assert it.must_recover, "from here on a cleaner may be at work: batches go one at a time"


def test_progress_tells_both_positions_and_the_runs() -> None:
    told = lane(stored=OffsetMap([Run(5, 50, 10), Run(18, 60, 2)])).progress()
    assert (told.position, told.target_position, told.runs) == (20, 62, 2)


class Stored(OffsetMaps):
    """A map topic that is already read to its end."""

    async def read_to_end(self) -> None:
        return


def test_a_lane_made_anew_under_the_same_term_writes_its_map_behind_what_the_one_before_has_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new lane continues the chunk numbers of the lane before.

    After a person resumes a stopped partition, the lease keeps its term.
    """

    async def tail(*_: object, **__: object) -> LogTail:
        return LogTail(50, 100, 50)

    monkeypatch.setattr(module, "read_tail", tail)
    nowhere, identity, nothing = cast("ClusterClient", None), CopyIdentity(77, 0), cast("Any", None)
    maps = Stored(nowhere)
    for number in range(3):
        maps._note(ChunkKey("uuid", "t", 0, 4, number))
    context = CopyContext(
        nowhere, nowhere, identity, nothing, MirrorSettings(), maps=MapStore(maps, "uuid"), owner_term=lambda _: 4
    )
    recovery = Recovery(context, nothing)
    it = MappedLane("t", 0, producer_id=77, epoch=0, log_start=0, target_start=50, target_topic_id="T", term=4)
    asyncio.run(recovery.recover(it))
    assert it.state is LaneState.PRIMING
    assert it.ledger is not None
    assert it.ledger.begins == (4, 3)


def test_what_an_earlier_mirror_of_the_topic_stored_says_nothing_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored map of an older term does not count for a new copy.

    The topic was forgotten without dropping the map. The new copy begins behind the records on the target.
    """

    async def tail(*_: object, **__: object) -> LogTail:
        return LogTail(50, 100, 50)

    monkeypatch.setattr(module, "read_tail", tail)
    nowhere, identity, nothing = cast("ClusterClient", None), CopyIdentity(77, 0), cast("Any", None)
    maps = Stored(nowhere)
    maps._chunks["uuid", "t", 0] = {ChunkKey("uuid", "t", 0, 4, 0): MapChunk("T", OffsetMap([Run(0, 0, 40)]).encode())}
    context = CopyContext(
        nowhere, nowhere, identity, nothing, MirrorSettings(), maps=MapStore(maps, "uuid"), owner_term=lambda _: 4
    )
    recovery = Recovery(context, nothing)
    it = MappedLane("t", 0, producer_id=77, epoch=0, log_start=0, target_start=50, target_topic_id="T", term=5)
    asyncio.run(recovery.recover(it))
    assert (it.target.position, runs(it)) == (0, [])


def test_letting_go_of_what_was_read_leaves_the_map_of_what_stands_on_the_target() -> None:
    it = lane(batch(0, 3), batch(3, 2))
    store(it)
    it.answered(send(it).step, 0, 50)
    it.fill_failed("the leader moved", unknown=False)
    assert it.drop_waiting() > 0
    assert runs(it)[0].source == 0
    it.stands_at(53, NO_MAP)
    it.recovered(53, 103, 53)
    assert (it.source.read_at, runs(it)) == (3, [Run(0, 50, 3)])
    it.take(3, fetched(batch(3, 2)), 5)
    it.paused = True
    assert it.drop_waiting() > 0
    assert (it.source.read_at, bool(it.target.queue), runs(it)) == (3, False, [Run(0, 50, 3)])


def test_what_a_thread_has_read_is_planned_unless_the_lane_has_lost_its_place_meanwhile() -> None:
    """A recovering lane plans nothing, because the plan would be taken for the content of the target (K)."""
    data = batch(0, 2, attributes=LOG_APPEND_TIME, text=record(0) + record(1)) + batch(2, 1, attributes=MARKER)
    for is_lost in (False, True):
        it = lane()
        it.take(0, fetched(data), 5, most=1)
        rest = it.source.rest
        assert rest is not None
        assert (runs(it), it.reads) == ([], False)
        if is_lost:
            it.fill_failed("the leader moved", unknown=False)
        it.take_rest(rest, 0, rest(), 5, 5)
        assert (it.source.read_at, runs(it), it.source.rest) == (
            (0, [], None) if is_lost else (3, [Run(0, 50, 2)], None)
        )
