"""Writes of a topic that is promoted, rolled back and promoted again, through a single client connection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import DIRECT_LIMIT, Serve, TopicRoute
from kmigrate.records.batch import TRANSACTIONAL, check_crc, walk
from kmigrate.router.session.session import Session
from kmigrate.router.shared.state import TARGET, Outcome, StoredBatch
from kmigrate.router.wire.produce import parse_answer
from tests.unit.router.router_fakes import SHIFT, FakeClientLink, Sent, Stage, batch, held, route

NOT_LEADER, NOT_ENOUGH_REPLICAS = 6, 19
KEY = "topic/l/t"
MARKS = {0: (ProducerMark(5, 0, 3),)}
PROMOTED = route("t", Serve.LOCAL, fence_epoch=2, copied_back=True)
FENCED = route("t", Serve.HOLD, fence_epoch=9, copied_back=True, rolling_back=True)
ROLLED_BACK = route("t", Serve.FORWARD, fence_epoch=9, gate=MARKS, generation=1)
AGAIN = route("t", Serve.LOCAL, fence_epoch=12, gate=MARKS, generation=1, copied_back=True)
ONCE_MORE = route("t", Serve.FORWARD, fence_epoch=20, gate=MARKS, generation=2)
SHIFTED = SHIFT + DIRECT_LIMIT


def named(sent: Sent) -> list[tuple[int, int]]:
    """Return producer id and first sequence of the batches in a request, whose CRCs must be right."""
    batches = [each for part in sent.request.parts for each in walk(part.records)]
    assert all(check_crc(each.view) for each in batches)
    return [(each.producer_id, each.base_sequence) for each in batches]


def transactional(sequence: int = 0) -> bytearray:
    made = batch(sequence=sequence)
    made[22] |= TRANSACTIONAL
    made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    return made


def reported(stage: Stage) -> tuple[int, int, dict[int, tuple[ProducerMark, ...]]]:
    """Return the router's report on the fence: epoch, number in flight, and marks."""
    ack = stage.shared.forwards.fences(stage.shared.table)[KEY]
    return ack.epoch, ack.in_flight, dict(ack.producers)


# The drain


def test_a_rollbacks_fence_waits_for_the_writes_to_the_target_and_gets_their_marks() -> None:
    stage = Stage(PROMOTED)
    stage.produce(("t", 0, batch(sequence=7)), ("t", 1, batch(producer=-1, sequence=-1)), ("free", 0, batch()))
    stage.swap(FENCED)
    stage.produce(("t", 0, batch(sequence=8)))
    assert [sent.where for sent in stage.edge.sent] == ["target"]
    assert reported(stage) == (9, 2, {})
    stage.edge.sent[0].answer()
    assert reported(stage) == (9, 0, {0: (ProducerMark(5, 0, 7),)})
    assert stage.backend.drains == 1
    assert stage.told() == [(1, [("t", 0, 0), ("t", 1, 0), ("free", 0, 0)])]


def test_a_write_without_acknowledgement_is_counted_too_and_its_answer_is_dropped() -> None:
    stage = Stage(PROMOTED)
    stage.produce(("t", 0, batch(sequence=7)), acks=0)
    assert stage.edge.sent[0].request.acks == 1
    stage.swap(FENCED)
    assert reported(stage) == (9, 1, {})
    stage.edge.sent[0].answer()
    assert reported(stage) == (9, 0, {0: (ProducerMark(5, 0, 7),)})
    assert (stage.edge.replies, stage.edge.closed) == ([], [])


def test_a_topic_without_a_way_back_is_not_counted() -> None:
    stage = Stage(replace(PROMOTED, copied_back=False))
    stage.produce(("t", 0, batch()))
    stage.produce(("t", 0, batch(sequence=1)), acks=0)
    assert [sent.request.acks for sent in stage.edge.sent] == [-1, 0]
    assert stage.edge.sent[1].done is None
    stage.edge.sent[0].answer()
    assert stage.shared.forwards.in_flight == {}
    assert not stage.shared.forwards._acked


def test_the_first_table_that_sends_a_write_to_the_target_counts_the_write() -> None:
    """The way back opens with the flip, so no uncounted write is older than the way back."""
    stage = Stage(route("t", Serve.HOLD, fence_epoch=2))
    stage.produce(("t", 0, batch()))
    stage.swap(PROMOTED)
    assert stage.shared.forwards.in_flight == {KEY: 1}


def test_a_lost_connection_to_the_target_resolves_its_writes() -> None:
    stage = Stage(PROMOTED)
    stage.produce(("t", 0, batch()))
    stage.swap(FENCED)
    done = stage.edge.sent[0].done
    assert done is not None
    done(Outcome(None))
    assert reported(stage) == (9, 0, {})
    assert stage.told() == []


def test_the_answer_to_a_client_that_is_gone_is_accounted_for() -> None:
    stage = Stage(PROMOTED)
    stage.produce(("t", 0, batch(sequence=7)))
    stage.session.closed()
    stage.swap(FENCED)
    assert reported(stage) == (9, 1, {})
    stage.edge.sent[0].answer()
    assert reported(stage) == (9, 0, {0: (ProducerMark(5, 0, 7),)})
    assert stage.edge.replies == []


def test_a_batch_that_the_target_refuses_stops_the_batches_behind_it_across_the_flip() -> None:
    """The source knows no producer after a rollback, and would accept any first sequence."""
    stage = Stage(PROMOTED)
    stage.produce(("t", 0, batch(sequence=0)))
    stage.swap(FENCED)
    stage.produce(("t", 0, batch(sequence=1)))
    stage.edge.sent.pop().answer(NOT_ENOUGH_REPLICAS)
    stage.swap(replace(ROLLED_BACK, gate={}))
    assert stage.edge.sent == []
    for sequence in (0, 1):
        stage.produce(("t", 0, batch(sequence=sequence)))
    assert [(sent.where, *named(sent)) for sent in stage.edge.sent] == [
        ("source 1", (5 + SHIFTED, 0)),
        ("source 1", (5 + SHIFTED, 1)),
    ]
    assert [answers[0][2] for _, answers in stage.told()] == [NOT_ENOUGH_REPLICAS, NOT_LEADER]


# The fence


@pytest.mark.parametrize("made", [batch(sequence=7), batch(producer=-1, sequence=-1), transactional()])
def test_under_a_rollbacks_fence_every_batch_waits_for_a_bounded_time(made: bytearray) -> None:
    stage = Stage(FENCED)
    stage.produce(("t", 0, made))
    assert (stage.edge.sent, stage.told(), stage.backend.ids) == ([], [], [])
    stage.edge.clock = stage.edge.wakes[-1]
    stage.session.advance()
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]
    assert stage.edge.sent == []


def test_a_fence_that_is_given_up_lets_the_held_batches_go_to_the_target() -> None:
    stage = Stage(FENCED)
    stage.produce(("t", 0, batch(sequence=7)))
    stage.swap(PROMOTED)
    assert [(sent.where, *named(sent)) for sent in stage.edge.sent] == [("target", (5, 7))]


# The gate at the source


def test_after_a_rollback_the_next_batch_goes_to_the_source_alone_and_the_rest_whole() -> None:
    stage = Stage(FENCED)
    for sequence in (4, 5):
        stage.produce(("t", 0, batch(sequence=sequence)))
    stage.swap(ROLLED_BACK)
    assert [(sent.where, *named(sent)) for sent in stage.edge.sent] == [("source 1", (5 + SHIFTED, 4))]
    stage.edge.sent[0].answer()
    stage.produce(("t", 0, batch(sequence=6)))
    assert [named(sent) for sent in stage.edge.sent[1:]] == [[(5 + SHIFTED, 5)], [(5 + SHIFTED, 6)]]
    assert stage.backend.asked_source == []
    assert stage.shared.forwards.in_flight == {KEY: 2}


@pytest.mark.parametrize("refusal", [Outcome(None, sent=False), None])
def test_a_first_batch_that_the_source_does_not_take_lets_nothing_behind_it_in(refusal: Outcome | None) -> None:
    stage = Stage(ROLLED_BACK)
    for sequence in (4, 5):
        stage.produce(("t", 0, batch(sequence=sequence)))
    (sent,) = stage.edge.sent
    if refusal is None:
        sent.answer(NOT_ENOUGH_REPLICAS)
    else:
        assert sent.done is not None
        sent.done(refusal)
    ((topic, partition, producer, then),) = stage.backend.asked_source
    assert (topic, partition, producer) == ("t", 0, 5 + SHIFTED)
    then(held(-1))
    assert stage.edge.sent == [sent]
    assert [answers[0][2] for _, answers in stage.told()][1] == NOT_LEADER
    stage.produce(("t", 0, batch(sequence=4)))
    assert len(stage.edge.sent) == 2


def test_a_producer_that_the_barrier_does_not_have_is_forwarded_in_its_own_frame() -> None:
    stage = Stage(ROLLED_BACK)
    stage.produce(("t", 0, batch(producer=6, sequence=90)), ("t", 1, batch(sequence=40)))
    assert [named(sent) for sent in stage.edge.sent] == [[(6 + SHIFTED, 90), (5 + SHIFTED, 40)]]
    assert stage.edge.sent[0].request.acks == -1


def test_a_source_that_knows_the_producer_opens_the_gate() -> None:
    stage = Stage(ROLLED_BACK)
    stage.produce(("t", 0, batch(sequence=900)))
    stage.backend.asked_source[0][3](held(899))
    stage.produce(("t", 0, batch(sequence=901)))
    assert [named(sent) for sent in stage.edge.sent] == [[(5 + SHIFTED, 900)], [(5 + SHIFTED, 901)]]
    assert (len(stage.backend.asked_source), stage.backend.asked) == (1, [])


def test_what_one_cluster_has_told_of_a_producer_says_nothing_about_the_other() -> None:
    """A write may wait for the target's answer when the fence comes, and be judged for the source afterwards."""
    stage = Stage(replace(PROMOTED, gate=MARKS))
    stage.produce(("t", 0, batch(sequence=6)))
    ((_, _, _, then),) = stage.backend.asked
    stage.swap(FENCED)
    then(held(5))
    stage.swap(ROLLED_BACK)
    assert stage.edge.sent == []
    ((_, _, producer, then),) = stage.backend.asked_source
    assert producer == 5 + SHIFTED
    then(held(-1))
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])], "the source would take the batch as the producer's first"


def test_a_batch_without_id_goes_on_with_the_routers_own_producer_at_the_source() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    own = ("t", 0, batch(producer=-1, sequence=-1))
    stage.produce(own)
    stage.backend.ids[0](900)
    stage.edge.sent.pop().answer()
    for table in (PROMOTED, ROLLED_BACK):
        stage.swap(table)
        stage.produce(("t", 0, batch(producer=-1, sequence=-1)))
    assert [(sent.where, *named(sent)) for sent in stage.edge.sent] == [
        ("target", (-1, -1)),
        ("source 1", (900 + SHIFTED, 1)),
    ]


# Translated ids at the target


def test_after_a_rollback_the_target_sees_ids_that_no_log_has_seen_before() -> None:
    stage = Stage(AGAIN)
    stage.produce(("t", 0, batch(sequence=4)), ("t", 1, batch(producer=-1, sequence=-1)), ("free", 0, batch()))
    assert [named(sent) for sent in stage.edge.sent] == [[(5 + SHIFTED, 4), (-1, -1), (5, 0)]]
    stage.edge.sent[0].answer()
    stage.produce(("t", 0, transactional(sequence=5)))
    assert named(stage.edge.sent[1]) == [(5, 5)], "the transaction's coordinator knows the id itself"


def test_the_target_is_asked_about_the_translated_id() -> None:
    stage = Stage(AGAIN)
    stage.produce(("t", 0, batch(sequence=8)))
    ((_, _, producer, then),) = stage.backend.asked
    assert producer == 5 + SHIFTED
    then(held(7))
    assert named(stage.edge.sent[0]) == [(5 + SHIFTED, 8)]


def test_marks_have_the_id_that_the_client_knows() -> None:
    stage = Stage(AGAIN)
    stage.produce(("t", 0, batch(sequence=4)))
    stage.edge.sent[0].answer()
    stage.swap(replace(FENCED, shift=SHIFTED, target_shift=SHIFTED))
    assert reported(stage) == (9, 0, {0: (ProducerMark(5, 0, 4),)})


# Retries across flips


@pytest.mark.parametrize(
    ("now", "places"),
    [
        (ROLLED_BACK, [(TARGET, 5), ("l", 5 + SHIFT)]),
        (AGAIN, [("l", 5 + SHIFTED), (TARGET, 5)]),
        (ONCE_MORE, [(TARGET, 5 + SHIFTED), ("l", 5 + SHIFTED)]),
    ],
)
def test_a_batch_that_was_stored_before_a_flip_is_a_duplicate_with_its_own_offset(
    now: TopicRoute, places: list[tuple[str, int]]
) -> None:
    stage = Stage(now)
    stage.produce(("t", 0, batch(sequence=3)))
    asked = stage.backend.asked if now.at_target else stage.backend.asked_source
    asked[0][3](held(-1))
    expected = [(at, "t", 0, StoredBatch(producer, 0, 3)) for at, producer in places]
    assert stage.backend.found == expected, "not found in the log of the last era, so the era before"
    assert stage.edge.sent == []
    stage.backend.found.clear()
    stage.backend.stands_at = 77
    stage.produce(("t", 0, batch(sequence=2)))
    asked[1][3](held(-1))
    assert stage.backend.found == [(places[0][0], "t", 0, StoredBatch(places[0][1], 0, 2))]
    told = [parse_answer(reply, 9)[0][0] for reply in stage.edge.replies]
    assert [(answer.error, answer.base_offset) for answer in told] == [(0, -1), (0, 77)]


def test_a_lost_answer_of_the_target_is_a_duplicate_after_the_rollback_and_stored_once() -> None:
    stage = Stage(PROMOTED)
    stage.produce(("t", 0, batch(sequence=3)))
    done = stage.edge.sent.pop().done
    assert done is not None
    done(Outcome(None))
    stage.session.closed()
    stage.edge = FakeClientLink()
    stage.session = Session(stage.shared, stage.edge)
    stage.swap(FENCED)
    stage.produce(("t", 0, batch(sequence=3)), ("t", 1, batch(producer=-1, sequence=-1)))
    stage.backend.stands_at = 40
    stage.swap(ROLLED_BACK)
    stage.backend.ids[0](900)
    stage.backend.asked_source[0][3](held(-1))
    assert [named(sent) for sent in stage.edge.sent] == [[(900 + SHIFTED, 0)]]
    stage.edge.sent[0].answer()
    (reply,) = stage.edge.replies
    answers, _, _ = parse_answer(reply, 9)
    assert [(answer.error, answer.base_offset) for answer in answers] == [(0, 40), (0, 100)]


def test_an_open_transaction_lets_no_first_write_past_the_gate_of_a_topic_that_was_rolled_back() -> None:
    stage = Stage(replace(ROLLED_BACK, serve=Serve.HOLD, gate={}, fence_epoch=11))
    stage.shared.open_at_source.enter("l", "till", 0, {KEY})
    stage.produce(("t", 0, batch(sequence=900)))
    assert stage.edge.sent == []
