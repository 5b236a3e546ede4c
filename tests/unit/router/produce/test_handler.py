"""Produce through a single client connection: split, translated, merged, held, stopped, gated."""

from __future__ import annotations

import math

import pytest

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import Serve
from kmigrate.records.batch import Batch, check_crc, walk
from kmigrate.router.session.session import Session
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.produce import parse_answer
from tests.unit.router.router_fakes import SHIFT, FakeClientLink, Sent, Stage, batch, held, route

NOT_LEADER = 6
GAP = 45


def _batch_of(sent: Sent, index: int = 0) -> Batch:
    found = next(iter(walk(sent.request.parts[index].records)))
    assert check_crc(found.view)
    return found


def test_what_is_not_mirrored_passes_untouched() -> None:
    stage = Stage()
    mine = batch()
    stage.produce(("free", 0, mine))
    assert [s.where for s in stage.edge.sent] == ["target"]
    assert bytes(_batch_of(stage.edge.sent[0]).view) == bytes(mine)
    stage.edge.sent[0].answer()
    assert stage.told() == [(1, [("free", 0, 0)])]


def test_a_forwarded_batch_carries_the_translated_id_and_a_valid_crc() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(producer=5, epoch=3, sequence=77)))
    sent = _batch_of(stage.edge.sent[0])
    assert (sent.producer_id, sent.producer_epoch, sent.base_sequence) == (5 + SHIFT, 3, 77)


@pytest.mark.parametrize("version", range(3, 12))
def test_a_mixed_request_is_split_and_its_answers_merged_in_request_order(version: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.backend.leaders = {("t", 0): 1, ("t", 1): 2}
    stage.backend.produce_version = 8
    stage.produce(("t", 1, batch()), ("free", 0, batch()), ("t", 0, batch()), version=version)
    by_where = {s.where: s for s in stage.edge.sent}
    assert set(by_where) == {"target", "source 1", "source 2"}
    assert by_where["source 1"].request.version == min(version, 8)
    for where in ("source 1", "target", "source 2"):
        assert stage.edge.replies == []
        by_where[where].answer()
    assert stage.told(version) == [(1, [("t", 1, 0), ("t", 0, 0), ("free", 0, 0)])]


def test_topics_whose_names_differ_in_a_dot_and_an_underscore_go_their_own_ways() -> None:
    """Kafka creates no second topic with such a name, because the metrics would collide; old clusters have both."""
    stage = Stage(route("a.b", Serve.FORWARD), route("a_b", Serve.HOLD, fence_epoch=2))
    stage.produce(("a.b", 0, batch()))
    stage.produce(("a_b", 0, batch()))
    assert [(s.where, s.request.parts[0].topic) for s in stage.edge.sent] == [("source 1", "a.b")]
    assert stage.shared.forwards.in_flight == {"topic/l/a.b": 1}
    stage.swap(route("a.b", Serve.FORWARD), route("a_b", Serve.LOCAL, gate={0: (ProducerMark(5, 0, 0),)}))
    ((topic, partition, producer, then),) = stage.backend.asked
    assert (topic, partition, producer) == ("a_b", 0, 5)
    then(held(-1))
    stage.edge.sent[0].answer()
    assert stage.told() == [(1, [("a.b", 0, 0)]), (2, [("a_b", 0, 0)])]
    assert [s.where for s in stage.edge.sent] == ["source 1"], "the other one is what its own source holds already"


def test_answers_leave_in_the_order_of_requests() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()))
    stage.produce(("free", 0, batch()))
    stage.edge.sent[1].answer()
    assert stage.told() == []
    stage.edge.sent[0].answer()
    assert [correlation for correlation, _ in stage.told()] == [1, 2]


def test_a_client_that_is_gone_leaves_no_answer_behind() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()))
    stage.produce(("free", 0, batch()))
    stage.edge.sent[1].answer()
    assert stage.session.writing
    stage.session.closed()
    assert (stage.session.waiting_bytes, stage.session.writing) == (0, False)
    stage.edge.sent[0].answer()
    assert stage.told() == []
    assert stage.shared.forwards.in_flight["topic/l/t"] == 0


def test_a_batch_without_id_gets_one_of_the_routers_and_counted_sequences() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for _ in range(2):
        stage.produce(("t", 0, batch(producer=-1, sequence=-1)))
    assert stage.edge.sent == []
    assert len(stage.backend.ids) == 1
    stage.backend.ids[0](900)
    ids = [(b.producer_id, b.producer_epoch, b.base_sequence) for b in map(_batch_of, stage.edge.sent)]
    assert ids == [(900 + SHIFT, 0, 0), (900 + SHIFT, 0, 1)]


def test_after_an_error_the_routers_own_producer_goes_on_in_the_next_epoch_and_shows_no_gap() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for _ in range(3):
        stage.produce(("t", 0, batch(producer=-1, sequence=-1)))
    stage.backend.ids[0](900)
    stage.edge.sent[0].answer(19)
    stage.edge.sent[1].answer(GAP)
    stage.edge.sent[2].answer(GAP)
    stage.produce(("t", 0, batch(producer=-1, sequence=-1)))
    again = _batch_of(stage.edge.sent[3])
    assert (again.producer_epoch, again.base_sequence) == (1, 0)
    assert [answers[0][2] for _, answers in stage.told()] == [19, NOT_LEADER, NOT_LEADER]


def test_a_write_without_acknowledgement_is_forwarded_with_one_and_the_answer_swallowed() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()), acks=0)
    assert stage.edge.sent[0].request.acks == 1
    assert stage.shared.forwards.in_flight == {"topic/l/t": 1}
    stage.edge.sent[0].answer()
    assert stage.shared.forwards.in_flight == {"topic/l/t": 0}
    assert stage.edge.replies == []
    assert stage.edge.closed == []


def test_a_failed_write_without_acknowledgement_closes_the_connection_as_a_broker_would() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()), acks=0)
    stage.edge.sent[0].answer(10)
    assert len(stage.edge.closed) == 1


def test_batches_behind_a_failed_one_wait_until_it_comes_again() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 0, batch(sequence=1)))
    stage.edge.sent[0].answer(NOT_LEADER)
    stage.edge.sent[1].answer(GAP)
    stage.produce(("t", 0, batch(sequence=2)))
    assert len(stage.edge.sent) == 2, "the third did not leave"
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 0, batch(sequence=1)))
    assert [_batch_of(s).base_sequence for s in stage.edge.sent] == [0, 1, 0, 1]
    assert [answers[0][2] for _, answers in stage.told()] == [NOT_LEADER] * 3
    assert stage.backend.refreshed == ["t"]


@pytest.mark.parametrize("version", [9, 8])
@pytest.mark.parametrize("stored", [False, True])
def test_no_batch_goes_to_a_new_leader_while_one_of_its_producer_is_unanswered_at_the_old_one(
    version: int, stored: bool
) -> None:
    """While a batch is unanswered at the old leader, later batches of the producer do not go to the new leader.

    The new leader would answer OUT_OF_ORDER_SEQUENCE_NUMBER (45), or take the second batch for the first batch of an
    unknown producer.
    """
    stage = Stage(route("t", Serve.FORWARD))
    stage.backend.produce_version = version  # Version 9 is relayed unchanged, version 8 is encoded anew.
    stage.produce(("t", 0, batch(sequence=0)))
    stage.backend.leaders["t", 0] = 2
    stage.produce(("t", 0, batch(sequence=1)), ("t", 1, batch(sequence=0)))
    stage.produce(("t", 0, batch(producer=6)))
    first, beside, other = stage.edge.sent
    assert [sent.where for sent in (first, beside, other)] == ["source 1", "source 1", "source 2"]
    assert [part.partition for part in beside.request.parts] == [1]
    first.answer(0 if stored else NOT_LEADER)
    beside.answer()
    other.answer()
    told = [[error for _, _, error in answers] for _, answers in stage.told()]
    assert told == [[0 if stored else NOT_LEADER], [NOT_LEADER, 0], [0]]
    for sequence in (0, 1, 2)[stored:]:
        stage.produce(("t", 0, batch(sequence=sequence)))
    assert [(sent.where, _batch_of(sent).base_sequence) for sent in stage.edge.sent[3:]] == [
        ("source 2", sequence) for sequence in (0, 1, 2)[stored:]
    ]


def test_what_a_new_leader_may_be_sent_is_known_also_when_the_old_one_could_not_be_reached() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.backend.leaders["t", 0] = 2
    done = stage.edge.sent.pop().done
    assert done is not None
    done(Outcome(None, sent=False))
    stage.produce(("t", 0, batch(sequence=0)))
    assert [sent.where for sent in stage.edge.sent] == ["source 2"]


@pytest.mark.parametrize("error", [3, 5, 72, 74])
def test_moved_leaders_look_like_moved_leaders_whatever_the_source_says(error: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch()))
    stage.edge.sent[0].answer(error)
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]


@pytest.mark.parametrize("error", [7, 20])
def test_outcomes_that_may_be_stored_go_to_the_client_unchanged(error: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.edge.sent[0].answer(error)
    stage.produce(("t", 0, batch(sequence=1)))
    assert stage.told() == [(1, [("t", 0, error)])]
    assert len(stage.edge.sent) == 2


def test_a_source_that_cannot_be_reached_is_a_moved_leader_and_a_lost_one_closes_the_connection() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=0)))
    first = stage.edge.sent[0].done
    assert first is not None
    first(Outcome(None, sent=False))
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]
    stage.produce(("t", 0, batch(sequence=0)))
    second = stage.edge.sent[1].done
    assert second is not None
    second(Outcome(None, sent=True))
    assert len(stage.edge.closed) == 1
    assert stage.shared.forwards.in_flight == {"topic/l/t": 0}


def test_leaders_are_asked_for_anew_when_a_client_lost_patience_with_one() -> None:
    """The leader may stand still:

    such a leader still takes connections and writes, while other brokers lead its partitions.
    """
    stage = Stage(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    stage.produce(("t", 0, batch()))
    stage.produce(("u", 0, batch()))
    stage.edge.sent[0].answer(0)
    assert stage.backend.refreshed == []
    stage.session.closed()
    assert stage.backend.refreshed == ["u"]


def test_leaders_are_asked_for_anew_while_one_does_not_answer() -> None:
    stage = Stage(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    stage.session.look_after()
    for topic in ("t", "u", "t"):
        stage.produce((topic, 0, batch()))
    stage.session.look_after()
    stage.edge.sent[0].answer(0)
    stage.session.look_after()
    assert stage.backend.refreshed == [], "what is the oldest now was not the oldest before"
    stage.session.look_after()
    assert sorted(stage.backend.refreshed) == ["t", "u"]


def test_a_broken_batch_is_never_given_a_valid_crc() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    broken = batch()
    broken[-1] ^= 1
    stage.produce(("t", 0, broken), ("t", 1, bytearray(b"\0" * 70)))
    (left,) = stage.edge.sent[0].request.parts
    assert not check_crc(left.records), "the source refuses it"
    stage.edge.sent[0].answer(2)
    assert stage.told() == [(1, [("t", 0, 2), ("t", 1, 87)])]


# Fences


def test_a_fence_holds_new_writes_and_the_flip_sends_them_to_the_target() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=4)))
    stage.produce(("free", 0, batch()))
    assert stage.edge.sent == [], "nothing overtakes a held request"
    stage.edge.clock = 0.25
    stage.swap(route("t", Serve.LOCAL, fence_epoch=9, gate={0: (ProducerMark(5, 0, 3),)}))
    assert [s.where for s in stage.edge.sent] == ["target", "target"]
    assert _batch_of(stage.edge.sent[0]).producer_id == 5
    assert stage.shared.forwards.holds_ms() == {"topic/l/t": {0: 250.0}}


def test_while_a_transaction_of_this_router_is_open_there_a_fence_holds_nobody_back() -> None:
    """The fence cannot complete before the transaction ends, so the hold needs to begin only then."""
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.shared.open_at_source.enter("l", "tx", 0, {"topic/l/t"})
    stage.produce(("t", 0, batch(sequence=0)))
    assert [sent.where for sent in stage.edge.sent] == ["source 1"]
    for key in stage.shared.open_at_source.end("l", "tx"):
        assert not stage.shared.forwards.resolved(key), "the plain write is still in flight"
    stage.produce(("t", 0, batch(sequence=1)))
    assert len(stage.edge.sent) == 1, "held from the end of the transaction on"
    stage.edge.sent[0].answer()
    assert stage.shared.forwards.fences(stage.shared.table)["topic/l/t"].in_flight == 0
    assert stage.shared.forwards.drained("topic/l/t", 9)


def test_a_router_that_said_it_is_drained_forwards_nothing_though_it_hears_of_an_open_transaction() -> None:
    """The controller may have read the barrier already, or may be about to."""
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    assert stage.shared.forwards.fences(stage.shared.table)["topic/l/t"].in_flight == 0
    # A router that died left the transaction open, and the transaction continues here.
    stage.shared.open_at_source.enter("l", "tx", 0, {"topic/l/t"})
    stage.produce(("t", 0, batch(sequence=0)))
    assert stage.edge.sent == []
    stage.swap(route("t", Serve.HOLD, fence_epoch=10))  # A later fence of the same topic counts anew.
    stage.shared.open_at_source.enter("l", "tx", 0, {"topic/l/t"})
    stage.session.advance()
    assert [sent.where for sent in stage.edge.sent] == ["source 1"]


def test_a_fence_given_up_sends_held_writes_to_the_source_in_order() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    for sequence in range(3):
        stage.produce(("t", 0, batch(sequence=sequence)))
    stage.swap(route("t", Serve.FORWARD))
    assert [(s.where, _batch_of(s).base_sequence) for s in stage.edge.sent] == [("source 1", n) for n in range(3)]


@pytest.mark.parametrize(("timeout_ms", "limit"), [(30_000, 5.0), (8_000, 2.0), (2_000, 0.5)])
def test_a_hold_ends_after_a_quarter_of_the_requests_timeout_and_at_most_five_seconds(
    timeout_ms: int, limit: float
) -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=0)), ("free", 0, batch()), timeout_ms=timeout_ms)
    stage.produce(("t", 0, batch(sequence=1)), timeout_ms=timeout_ms)
    assert stage.edge.wakes == [limit]
    stage.edge.clock = math.nextafter(limit, 0)
    stage.session.advance()
    assert stage.edge.sent == []
    stage.edge.clock = limit
    stage.session.advance()
    assert [(p.topic, p.partition) for p in stage.edge.sent[0].request.parts] == [("free", 0)]
    stage.edge.sent[0].answer()
    # The second request gets the same answer at once, because it stands behind the first.
    assert stage.told() == [(1, [("t", 0, NOT_LEADER), ("free", 0, 0)]), (2, [("t", 0, NOT_LEADER)])]


def test_what_stands_behind_a_held_request_is_held_no_longer_than_that() -> None:
    """A request behind a held request is held no longer than that request.

    Otherwise a client with five requests in flight, each for another partition, would time out on the last of them.
    """
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9), route("u", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=0)), timeout_ms=8_000)
    stage.edge.clock = 0.5
    stage.produce(("t", 1, batch(sequence=0)), ("u", 0, batch(sequence=0)), timeout_ms=8_000)
    stage.produce(("free", 0, batch(sequence=0)), timeout_ms=8_000)
    stage.edge.clock = 2.0
    stage.session.advance()
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]
    stage.edge.clock = stage.edge.wakes[-1]
    stage.session.advance()
    assert stage.edge.clock == 2.5
    assert [sent.where for sent in stage.edge.sent] == ["target"]
    assert stage.told()[1:] == [(2, [("t", 1, NOT_LEADER), ("u", 0, NOT_LEADER)])]


def test_a_client_that_lets_nobody_wait_is_asked_an_id_for_all_the_same() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(producer=-1)), timeout_ms=0)
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]
    stage.backend.ids[0](900)
    stage.produce(("t", 0, batch(producer=-1)), timeout_ms=0)
    assert [sent.where for sent in stage.edge.sent] == ["source 1"]


def test_a_write_without_acknowledgement_is_held_until_the_fence_ends() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch()), acks=0)
    stage.edge.clock = 60.0
    stage.session.advance()
    assert stage.edge.sent == []
    stage.session.closed()
    stage.swap(route("t", Serve.FORWARD))
    assert len(stage.edge.sent) == 1, "it is carried out though its client is gone"


def test_the_fence_is_drained_when_the_last_forward_is_resolved_and_tells_what_was_acknowledged() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 1, batch(sequence=8)))
    stage.swap(route("t", Serve.HOLD, fence_epoch=9))
    assert stage.shared.forwards.fences(stage.shared.table)["topic/l/t"].in_flight == 2
    stage.edge.sent[0].answer()
    assert stage.backend.drains == 0
    stage.edge.sent[1].answer()
    assert stage.backend.drains == 1
    ack = stage.shared.forwards.fences(stage.shared.table)["topic/l/t"]
    assert (ack.epoch, ack.in_flight) == (9, 0)
    assert ack.producers == {0: (ProducerMark(5, 0, 0),), 1: (ProducerMark(5, 0, 8),)}


# The gate


def _gated(last: int = 3) -> Stage:
    return Stage(route("t", Serve.LOCAL, fence_epoch=9, gate={0: (ProducerMark(5, 0, last),)}))


def test_the_first_write_after_the_flip_goes_alone() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=4)))
    stage.produce(("t", 0, batch(sequence=5)))
    assert len(stage.edge.sent) == 1
    stage.edge.sent[0].answer()
    stage.produce(("t", 0, batch(sequence=6)))
    assert [_batch_of(s).base_sequence for s in stage.edge.sent] == [4, 5, 6]


def test_a_refused_first_write_lets_nothing_behind_it_in() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=4)))
    stage.produce(("t", 0, batch(sequence=5)))
    stage.edge.sent[0].answer(19)
    assert len(stage.edge.sent) == 1
    stage.backend.asked[0][3](held(-1))
    assert [answers[0][2] for _, answers in stage.told()] == [19, NOT_LEADER]


def test_a_write_below_the_barrier_is_answered_as_the_duplicate_it_is() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=3)))
    assert stage.backend.asked[0][:3] == ("t", 0, 5)
    stage.backend.asked[0][3](held(-1))
    assert stage.edge.sent == []
    assert stage.told() == [(1, [("t", 0, 0)])]
    ((_link, topic, partition, stored),) = stage.backend.found
    assert (topic, partition, stored.epoch, stored.sequence) == ("t", 0, 0, 3)
    assert stored.producer_id == 5 + stage.shared.table.topics["t"].shift, "the source knows it by its translated id"


def test_a_target_that_knows_the_producer_opens_the_gate() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=900)))
    stage.backend.asked[0][3](held(899))
    stage.produce(("t", 0, batch(sequence=901)))
    assert [_batch_of(s).base_sequence for s in stage.edge.sent] == [900, 901]
    assert len(stage.backend.asked) == 1


def _refused_at_the_gate(stage: Stage, *sequences: int) -> None:
    """Send batches that the gate refuses, because the target has no batch of the producer."""
    for sequence in sequences:
        stage.produce(("t", 0, batch(sequence=sequence)))
        if stage.backend.asked:
            stage.backend.asked.pop()[3](held(-1))


def test_what_a_client_insists_on_for_seconds_begins_at_the_target_alone_though_that_knows_nothing_before_it() -> None:
    """The target has forgotten a producer that wrote through another router, or the client has given up a batch."""
    stage = _gated()
    for _ in range(2):
        _refused_at_the_gate(stage, 9, 10)
        stage.edge.clock += 4.9
    assert stage.edge.sent == []
    stage.edge.clock += 0.2
    _refused_at_the_gate(stage, 9, 10, 11)
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [9]
    stage.edge.sent[0].answer()
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [9, 10, 11]


def test_what_stands_behind_a_gap_never_goes_before_what_its_client_sends_again_first() -> None:
    stage = _gated()
    for clock in (0.0, 6.0):
        stage.edge.clock = clock
        _refused_at_the_gate(stage, 9)
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [9]
    stage = _gated()
    _refused_at_the_gate(stage, 9)
    stage.edge.clock = 6.0
    _refused_at_the_gate(stage, 10, 11)
    assert stage.edge.sent == [], "9 may come again in front of them"
    _refused_at_the_gate(stage, 4)
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [4]


def test_a_target_that_does_not_tell_is_asked_again_while_the_write_waits_and_not_after_that() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=3)))
    stage.backend.asked.pop()[3](None)
    assert [asked[:3] for asked in stage.backend.asked] == [("t", 0, 5)]
    stage.edge.clock = stage.edge.wakes[-1]
    stage.backend.asked.pop()[3](None)
    assert stage.backend.asked == []
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]


@pytest.mark.parametrize("error", [7, 20])
def test_what_the_source_has_stored_and_told_an_error_of_is_acknowledged_when_it_comes_again_behind_its_next(
    error: int,
) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=3)))
    stage.swap(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=4)))
    stage.edge.sent.pop().answer(error)
    stage.swap(route("t", Serve.LOCAL, gate={0: (ProducerMark(5, 0, 3),)}))
    stage.edge.sent[0].answer()
    stage.produce(("t", 0, batch(sequence=3)))
    stage.produce(("t", 0, batch(sequence=5)))
    stage.backend.asked[0][3](held(4))
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [4, 5]
    assert [answers[0][2] for _, answers in stage.told()] == [error, 0, 0]


def test_what_the_source_has_stored_is_acknowledged_also_by_a_router_through_which_its_next_has_not_passed() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=3)))
    stage.backend.stands_at = 77
    stage.backend.asked[0][3](held(6))
    for sequence in (6, 7):
        stage.produce(("t", 0, batch(sequence=sequence)))
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [6, 7]
    answers, _, _ = parse_answer(stage.edge.replies[0], 9)
    assert [(answer.error, answer.base_offset) for answer in answers] == [(0, 77)]


@pytest.mark.parametrize("waited", [False, True])
def test_who_was_refused_before_the_flip_and_is_new_to_the_target_begins_there_with_what_was_refused(
    waited: bool,
) -> None:
    """The producer's first batch at the target is the refused batch.

    The client sent the next batch before the refusal arrived, and the target would take that batch for the producer's
    first.
    """
    stage = Stage(route("t", Serve.HOLD if waited else Serve.FORWARD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=0)))
    if waited:
        stage.edge.clock = 5.0
        stage.session.advance()
    else:
        stage.edge.sent.pop().answer(NOT_LEADER)
    stage.swap(route("t", Serve.LOCAL))
    stage.produce(("t", 0, batch(sequence=1)))
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)]), (2, [("t", 0, NOT_LEADER)])]
    for sequence in range(2):
        stage.produce(("t", 0, batch(sequence=sequence)))
    assert [(sent.where, _batch_of(sent).base_sequence) for sent in stage.edge.sent] == [("target", 0), ("target", 1)]


def test_what_comes_next_by_the_barrier_passes_though_a_batch_before_it_was_refused_here() -> None:
    """The refused batch, and all batches up to the barrier, went another way."""
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=3)))
    stage.edge.sent.pop().answer(NOT_LEADER)
    stage.swap(route("t", Serve.LOCAL, gate={0: (ProducerMark(5, 0, 6),)}))
    stage.produce(("t", 0, batch(sequence=7)))
    stage.edge.sent[0].answer()
    stage.produce(("t", 0, batch(sequence=8)))
    assert [_batch_of(sent).base_sequence for sent in stage.edge.sent] == [7, 8]


def test_a_producer_that_never_met_the_source_passes() -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(producer=6, sequence=123)))
    stage.produce(("t", 1, batch(producer=5, sequence=0)))
    assert len(stage.edge.sent) == 2


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_lost_first_write_frees_the_gate_for_the_retry(acks: int) -> None:
    stage = _gated()
    stage.produce(("t", 0, batch(sequence=4)), acks=acks)
    assert list(stage.shared.gate.priming) == [("t", 0, 5)]
    stage.session.closed()
    assert stage.shared.gate.priming == {}


class Bystander:
    """A session whose head request waits for something else."""

    looks = 0

    def advance(self) -> None:
        self.looks += 1


@pytest.mark.parametrize("goes", [True, False])
def test_what_becomes_of_a_first_write_is_for_those_to_hear_who_wait_for_it(goes: bool) -> None:
    """After a flip thousands of connections wait: if all of them looked each time, no other work would be done."""
    stage, bystander = _gated(), Bystander()
    stage.produce(("t", 0, batch(sequence=4)))
    stage.shared.waiting[bystander] = None
    first, again = stage.session, FakeClientLink()
    stage.session = Session(stage.shared, again)
    stage.produce(("t", 0, batch(sequence=4 if goes else 5)))
    assert again.sent == []
    if goes:
        first.closed()
    else:
        stage.edge.sent[0].answer()
    assert len(again.sent) == 1
    assert bystander.looks == 0


def test_a_first_write_that_is_carried_out_when_its_client_is_gone_stops_nobody() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=4)), acks=0)
    stage.session.closed()
    stage.swap(route("t", Serve.LOCAL, gate={0: (ProducerMark(5, 0, 3),)}))
    assert [sent.request.acks for sent in stage.edge.sent] == [0]
    assert stage.shared.gate.priming == {}


def test_a_request_that_stood_behind_a_held_one_counts_from_its_arrival() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.edge.clock = 0.1
    stage.produce(("t", 1, batch(sequence=0)))
    stage.edge.clock = 0.25
    stage.swap(route("t", Serve.FORWARD))
    stage.produce(("t", 1, batch(sequence=1)))
    assert stage.shared.forwards.holds_ms() == {"topic/l/t": {0: 250.0, 1: 150.0}}


def test_a_request_whose_time_was_over_behind_a_held_one_counts_from_its_arrival_too() -> None:
    stage = Stage(route("t", Serve.HOLD, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 1, batch(sequence=0)))
    stage.edge.clock = 7.0  # The clock is far beyond the time of both requests.
    stage.session.advance()
    assert stage.told() == [(1, [("t", 0, 6)]), (2, [("t", 1, 6)])]
    assert stage.shared.forwards.holds_ms() == {"topic/l/t": {0: 7000.0, 1: 7000.0}}
