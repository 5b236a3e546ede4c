"""A partition that moves to another process ends its requests first, and begins no new request."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.mapped import MappedLane
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.stops import PartitionStop, Remedy
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched
from tests.unit.mirror.partition.test_lane import CONNECTION, lane, send


def copier(*topics: MirroredTopic) -> Copier:
    nowhere = ClusterClient(ClusterSettings("nowhere", (("127.0.0.1", 1),)))
    made = Copier(CopyContext(nowhere, nowhere, CopyIdentity(77, 0), cast("HoleMaker", None), MirrorSettings()))
    made.assign(topics)
    for each in made.lanes.values():
        if not isinstance(each, MappedLane):
            each.recovered(0, 100, 0)
    return made


def topic(*partitions: int, of: int = 2, **more: object) -> MirroredTopic:
    return MirroredTopic("t", "", "", dict.fromkeys(partitions, 0), others=of - len(partitions), **more)  # type: ignore[arg-type]


def test_a_retired_lane_sends_nothing_more_and_is_released_by_the_last_answer() -> None:
    it = lane(0, 100, batch(0, 1), batch(1, 1))
    sent = send(it)
    it.retire()
    assert not it.released
    assert not it.reads
    it.answered(sent.step, 0, 0)
    assert it.released
    assert it.send_next(CONNECTION, 5) is None


def test_a_retired_lane_that_does_not_know_what_became_of_a_batch_finds_out_first() -> None:
    it = lane(0, 100, batch(0, 1))
    sent = send(it)
    it.retire()
    it.unanswered(sent.step, "the connection was lost")
    assert not it.released
    assert it.must_recover
    it.recovered(1, 101, 1)
    assert it.released


def test_a_retired_lane_ends_the_hole_that_it_is_filling_and_begins_no_other() -> None:
    it = lane(0, 100, batch(0, 1, attributes=CONTROL | TRANSACTIONAL))
    hole = it.hole_due()
    assert hole is not None
    it.busy = True
    it.fill()
    it.retire()
    assert not it.released
    it.filled(1, 1)
    it.busy = False
    it.take(1, fetched(batch(1, 1, attributes=CONTROL | TRANSACTIONAL)), 5)
    assert it.hole_due() is None
    assert it.released


def test_a_stopped_lane_is_released_at_once_for_its_stop_is_found_again() -> None:
    it = lane()
    it.stop("diverged: two logs")
    it.retire()
    assert it.released


def test_a_copier_keeps_the_lane_of_another_process_partition_until_it_is_released() -> None:
    made = copier(topic(0, 1))
    leaving = made.lanes[("t", 0)]
    leaving.take(0, fetched(batch(0, 1)), 5)
    sent = send(leaving)
    made.assign([topic(1)])
    assert set(made.lanes) == {("t", 0), ("t", 1)}
    leaving.answered(sent.step, 0, 0)
    made._moved(leaving)
    assert set(made.lanes) == {("t", 1)}


def test_a_copier_tells_of_a_topic_that_is_forgotten_until_its_last_answer() -> None:
    """The lanes of a forgotten topic end at once, but the topic counts as leaving until the last answer.

    Requests to the target, or to the topic of offset maps, may still arrive.
    """
    made = copier(topic(0, 1))
    writing, filling = made.lanes.values()
    writing.take(0, fetched(batch(0, 1)), 5)
    sent = send(writing)
    filling.busy = True
    made.assign([])
    assert not made.lanes
    assert made.leaving == {"t"}
    writing.answered(sent.step, 0, 0)
    assert made.leaving == {"t"}
    filling.busy = False
    assert made.leaving == frozenset()


def test_a_copier_tells_of_markers_that_may_still_come_also_where_their_topic_was_forgotten_meanwhile() -> None:
    """A forgotten partition stays torn while its markers may still be written.

    So its process reports the markers, and lets the tail rest before the topic is mirrored anew.
    """
    made = copier(topic(0, 1))
    filling, idle = made.lanes.values()
    filling.take(0, fetched(batch(0, 1, attributes=CONTROL | TRANSACTIONAL)), 5)
    filling.busy = True
    filling.fill()
    assert made.late_writes == {("t", 0)}
    made.assign([])
    assert not made.lanes
    assert made.late_writes == {filling.key} != {idle.key}


def test_a_lane_with_nothing_under_way_goes_at_once_and_one_that_is_given_back_goes_on() -> None:
    made = copier(topic(0, 1))
    made.assign([topic()])
    assert not made.lanes
    made.assign([topic(0)])
    made.lanes[("t", 0)].recovered(0, 100, 0)
    made.lanes[("t", 0)].busy = True
    made.assign([topic()])
    kept = made.lanes[("t", 0)]
    assert kept.retired
    made.assign([topic(0)])
    assert made.lanes[("t", 0)] is kept
    assert (kept.retired, kept.paused) == (False, False)


def test_partitions_of_other_processes_are_not_taken_for_new_ones() -> None:
    made = copier(topic(1, of=3))
    assert made._topics["t"].others == 2
    assert set(made.lanes) == {("t", 1)}


def test_a_mapped_lane_begins_anew_under_another_term_of_the_lease() -> None:
    made = copier(topic(0, of=1, term=3, target_starts={0: 0}))
    before = made.lanes[("t", 0)]
    made.assign([topic(0, of=1, term=3, target_starts={0: 0})])
    assert made.lanes[("t", 0)] is before
    made.assign([topic(0, of=1, term=5, target_starts={0: 0})])
    after = made.lanes[("t", 0)]
    assert before.stopped
    assert isinstance(after, MappedLane)
    assert (after.term, after.stopped) == (5, False)


def test_a_partition_that_a_person_must_resume_stays_stopped_for_its_next_owner() -> None:
    made = copier(topic(0, of=1, stops={0: PartitionStop("diverged", "two logs", Remedy.AGAIN, -1, -1, 5)}))
    it: Lane = made.lanes[("t", 0)]
    assert it.stopped
    assert it.report.recorded


@pytest.mark.parametrize("fails", [False, True])
def test_a_lane_is_busy_for_as_long_as_a_task_works_on_it(fails: bool) -> None:
    async def scenario() -> None:
        made = copier(topic(0))
        it, begun, go_on = made.lanes["t", 0], asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await go_on.wait()
            if fails:
                raise Unreachable("no-answer", "the broker is away")

        made._start(it, work(), "work")
        await begun.wait()
        assert it.busy
        go_on.set()
        await asyncio.sleep(0.01)
        assert not it.busy
        await made._tasks.close()

    asyncio.run(scenario())


def test_a_lane_begins_once_no_other_copier_of_the_process_writes_to_the_partition() -> None:
    """A late repeat of the former direction must not land behind the writes of the new direction."""
    nowhere = ClusterClient(ClusterSettings("nowhere", (("127.0.0.1", 1),)))
    forward = copier(topic(0, 1))
    nobody = cast("HoleMaker", None)
    back = Copier(
        CopyContext(
            nowhere, nowhere, CopyIdentity(-1, -1), nobody, MirrorSettings(), is_free=lambda key: not forward.holds(key)
        )
    )
    writing, idle = forward.lanes["t", 0], forward.lanes["t", 1]
    writing.take(0, fetched(batch(0, 1)), 5)
    sent = send(writing)
    reverse = topic(0, 1, identity=CopyIdentity(9, 0), is_first_era=False)
    back.assign([reverse])
    assert not back.lanes
    forward.change({"t": None})
    back._update_lanes(reverse)
    assert set(back.lanes) == {idle.key}, "a batch of the other partition is on its way to the target"
    writing.answered(sent.step, 0, 0)
    back._update_lanes(reverse)
    assert set(back.lanes) == {("t", 0), ("t", 1)}
    assert {lane.target.producer_id for lane in back.lanes.values()} == {9}


def test_a_change_of_some_topics_leaves_the_lanes_of_all_others() -> None:
    other = MirroredTopic("other", "", "", {0: 0})
    made = copier(topic(0, 1), other)
    first, kept = made.lanes["t", 0], made.lanes["other", 0]
    made.change({"t": topic(0), "unknown": None})
    assert (made.lanes["t", 0], made.lanes["other", 0]) == (first, kept)
    assert [lane.partition for lane in made.lanes.of_topic("t")] == [0], "the other partition is another process's"
    made.change({"t": None})
    assert made.lanes == {("other", 0): kept}
    assert (first.stopped, kept.stopped, made.lanes.of_topic("t")) == (True, False, ())
    made.assign([other])
    assert made.lanes["other", 0] is kept


def test_a_new_era_begins_anew_also_for_a_process_that_slept_through_the_change_of_direction() -> None:
    made = copier(topic(0, identity=CopyIdentity(77, 0)))
    before = made.lanes["t", 0]
    later = MirroredTopic("t", "", "", {0: 40}, identity=CopyIdentity(80, 0), is_first_era=False)
    made.assign([later])
    after = made.lanes["t", 0]
    assert before.stopped
    assert (after.target.producer_id, after.log_start, after.since) == (80, 40, 40)


def test_the_log_of_a_first_era_is_the_mirrors_own_from_its_beginning() -> None:
    made = copier(topic(0))
    assert (made.lanes["t", 0].target.producer_id, made.lanes["t", 0].since) == (77, 0)
