"""The gate's table alone: which batch may be a producer's first write at the target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import Serve
from kmigrate.records.batch import Batch, walk
from kmigrate.router.shared.gate import _NEAR, FirstWriteGate, Verdict, ring_distance
from tests.unit.router.router_fakes import batch, held, route, table

LAST = (1 << 31) - 1
KEY = ("t", 0, 5)


def _batch(sequence: int, epoch: int = 2) -> Batch:
    return next(iter(walk(memoryview(batch(5, epoch, sequence)))))


def _gate(last: int, epoch: int = 2) -> FirstWriteGate:
    gate = FirstWriteGate()
    gate.load(table(route("t", Serve.LOCAL, gate={0: (ProducerMark(5, epoch, last),)})))
    return gate


@pytest.mark.parametrize(
    ("last", "epoch", "sequence", "verdict"),
    [
        (10, 2, 11, Verdict.ADMIT_ALONE),
        (LAST, 2, 0, Verdict.ADMIT_ALONE),
        (10, 3, 0, Verdict.ADMIT_ALONE),
        (-1, 2, 0, Verdict.ADMIT_ALONE),
        (10, 2, 10, Verdict.DUPLICATE),
        (10, 2, 0, Verdict.DUPLICATE),
        (1, 2, LAST, Verdict.DUPLICATE),
        (10, 2, 12, Verdict.GAP),
        (LAST, 2, 1, Verdict.GAP),
        (10, 3, 1, Verdict.GAP),
        (10, 1, 11, Verdict.FENCED),
    ],
)
def test_the_verdict_on_a_producer_that_the_target_does_not_know(
    last: int, epoch: int, sequence: int, verdict: Verdict
) -> None:
    assert _gate(last).judge("t", 0, _batch(sequence, epoch), held(-1)) is verdict


def test_only_the_very_next_batch_passes_unasked() -> None:
    gate = _gate(10)
    assert gate.judge("t", 0, _batch(11), None) is Verdict.ADMIT_ALONE
    for sequence in (5, 10, 12, 500):
        assert gate.judge("t", 0, _batch(sequence), None) is Verdict.ASK


def test_others_wait_while_one_primes_and_pass_once_it_is_accepted() -> None:
    gate = _gate(10)
    gate.prime(KEY, object())
    assert gate.judge("t", 0, _batch(12), None) is Verdict.WAIT
    gate.settled(KEY, accepted=False)
    assert gate.judge("t", 0, _batch(11), None) is Verdict.ADMIT_ALONE
    gate.prime(KEY, object())
    gate.settled(KEY, accepted=True)
    assert gate.judge("t", 0, _batch(12), None) is Verdict.PASS


@pytest.mark.parametrize("through_here", [False, True])
def test_what_the_source_holds_is_a_duplicate_also_when_what_came_behind_it_has_passed(through_here: bool) -> None:
    """The source stored the batch and answered an error; the target would answer OUT_OF_ORDER_SEQUENCE_NUMBER."""
    gate = _gate(10)
    if through_here:
        gate.prime(KEY, object())
        assert gate.judge("t", 0, _batch(10), None) is Verdict.WAIT
        gate.settled(KEY, accepted=True)
    for sequence in (7, 10):
        assert gate.judge("t", 0, _batch(sequence), None) is Verdict.ASK
        assert gate.judge("t", 0, _batch(sequence), held(11, epoch=2)) is Verdict.DUPLICATE
    assert gate.judge("t", 0, _batch(12), None) is Verdict.PASS


@pytest.mark.parametrize("through_here", [False, True])
@pytest.mark.parametrize(("last", "sequence"), [(9, 10), (LAST, 0), (LAST + 12 - _NEAR, LAST + 13 - _NEAR)])
def test_sequences_that_come_round_again_are_no_duplicates(through_here: bool, last: int, sequence: int) -> None:
    """A sequence that wrapped around is no duplicate.

    The same holds where the producer wrote through other routers meanwhile. Afterwards the gate asks nothing more about
    the producer.
    """
    gate = _gate(10)
    if through_here:
        gate.prime(KEY, object())
        gate.settled(KEY, accepted=True)
    assert gate.judge("t", 0, _batch(sequence), None) is Verdict.ASK
    assert gate.judge("t", 0, _batch(sequence), held(last, epoch=2)) is Verdict.PASS
    for later in (sequence + 1, 10, 11):
        assert gate.judge("t", 0, _batch(later), None) is Verdict.PASS
    gate.load(table(route("t", Serve.FORWARD)))
    assert gate._round == set()


def test_far_from_the_barrier_nobody_is_asked_of_who_has_passed_it() -> None:
    gate = _gate(10)
    gate.settled(KEY, accepted=True)
    for sequence in (11, 11 + _NEAR, 11 + (1 << 30), LAST - _NEAR):
        assert gate.judge("t", 0, _batch(sequence), None) is Verdict.PASS


@pytest.mark.parametrize("sequence", [12 + _NEAR, 11 + (1 << 30), LAST - 2 * _NEAR])
@pytest.mark.parametrize("epoch", [2, 3])
def test_what_follows_a_billion_records_that_the_target_has_forgotten_is_no_duplicate(
    sequence: int, epoch: int
) -> None:
    """The batch is admitted alone, like any first write.

    No batch that a client has in flight is so far from the barrier.
    """
    assert _gate(10).judge("t", 0, _batch(sequence, epoch), held(-1)) is Verdict.ADMIT_ALONE


def test_a_promoted_topic_keeps_its_open_producers_over_later_tables() -> None:
    gate = _gate(10)
    gate.settled(KEY, accepted=True)
    gate.load(table(route("t", Serve.LOCAL, gate={0: (ProducerMark(5, 2, 10),)}), epoch=50))
    assert gate.judge("t", 0, _batch(90), None) is Verdict.PASS
    gate.load(table(route("t", Serve.FORWARD)))
    assert gate.opened == set()


def test_each_flip_forgets_the_open_producers_also_where_both_tables_have_the_same_marks() -> None:
    """A router that reads many records at once never sees the fence between two flips (F)."""
    marks = {0: (ProducerMark(5, 2, 10),)}
    eras = [
        route("t", Serve.LOCAL, gate=marks),
        route("t", Serve.FORWARD, gate=marks, generation=1),
        route("t", Serve.LOCAL, gate=marks, generation=1),
        route("t", Serve.LOCAL, gate=marks, generation=2),
    ]
    gate = FirstWriteGate()
    for each in eras:
        gate.load(table(each))
        assert not gate.passes(KEY, 2, 12)
        assert gate.judge("t", 0, _batch(12), None) is Verdict.ASK
        gate.settled(KEY, accepted=True)
        gate.judge("t", 0, _batch(10), held(9, epoch=2))
        assert gate.passes(KEY, 2, 12)
        assert (gate.opened, gate._round) == ({KEY}, {KEY})
        gate.load(table(each, route("u", Serve.FORWARD)))
        assert (gate.opened, gate._round) == ({KEY}, {KEY}), "another topic's change ends no era"


def test_a_fence_that_is_given_up_leaves_the_producers_open() -> None:
    """Else thousands of producers would be asked about at once."""
    marks = {0: (ProducerMark(5, 2, 10),)}
    back = route("t", Serve.HOLD, rolling_back=True)
    for now, fence in (
        (route("t", Serve.LOCAL, gate=marks), back),
        (route("t", Serve.FORWARD, gate=marks, generation=1), route("t", Serve.HOLD, generation=1)),
    ):
        gate = FirstWriteGate()
        gate.load(table(now))
        gate.settled(KEY, accepted=True)
        for each in (fence, now):
            gate.load(table(each))
            assert gate.passes(KEY, 2, 12)
        gate.load(table(fence))
        gate.load(table(route("t", Serve.FORWARD, generation=2)))
        assert (gate.marks, gate.opened) == ({}, set())


def test_a_table_that_names_its_changes_loads_the_same_marks_as_a_table_made_anew() -> None:
    first = table(route("t", Serve.LOCAL, gate={0: (ProducerMark(5, 2, 10),)}), route("u", Serve.HOLD))
    flipped = route("u", Serve.LOCAL, gate={1: (ProducerMark(6, 0, 3),)})
    second = replace(table(first.topics["t"], flipped, epoch=2), since=first.topics, changed=frozenset({"u"}))
    third = replace(table(flipped, epoch=3), since=second.topics, changed=frozenset({"t"}))
    gate = FirstWriteGate()
    for each in (first, second, third):
        gate.load(each)
        anew = FirstWriteGate()
        anew.load(replace(each, since=None))
        assert gate.marks == anew.marks
        gate.opened.add(KEY)
    late = FirstWriteGate()
    late.load(replace(third, changed=frozenset()))
    assert late.marks == gate.marks, "the first table of a process has no table before"
    gate.load(replace(table(epoch=4), since=third.topics, changed=frozenset({"u"})))
    assert (gate.marks, gate.opened) == ({}, set())


@pytest.mark.parametrize(
    ("later", "earlier", "distance"), [(1, 0, 1), (0, 1, -1), (0, LAST, 1), (LAST, 0, -1), (7, 7, 0)]
)
def test_sequences_compare_in_the_ring_of_two_to_the_31(later: int, earlier: int, distance: int) -> None:
    assert ring_distance(later, earlier) == distance


def test_the_marks_of_a_topic_are_put_in_order_once_however_many_tables_are_made() -> None:
    """Before, each record of the state log sorted the marks of 9,000 producers in each of 20 topics."""
    marks: dict[int, tuple[ProducerMark, ...]] = {0: (ProducerMark(7, 0, 5),), 1: (ProducerMark(8, 0, 6),)}
    gate = FirstWriteGate()
    gate.load(table(route("t", Serve.LOCAL, gate=marks)))
    first = dict(gate.marks)
    gate.load(table(route("t", Serve.LOCAL, gate=marks | {1: (ProducerMark(8, 0, 7),)}), route("u", Serve.FORWARD)))
    assert gate.marks["t", 0] is first["t", 0]
    assert gate.marks["t", 1] == {8: ProducerMark(8, 0, 7)}
    gate.load(table(route("t", Serve.FORWARD)))
    assert gate.marks == {}
