"""Batches behind a refused batch: the stop ends when that batch returns, went another way, or is given up."""

from __future__ import annotations

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import Code
from kmigrate.router.produce import ordering as stop_rule
from kmigrate.router.produce.decide import Decision, Held, WriteDecider
from kmigrate.router.shared.state import StoredBatch
from kmigrate.router.wire.produce import ProduceRequest
from tests.unit.router.router_fakes import SHIFT, Stage, batch, route

MOVED, GAP = Code.NOT_LEADER_OR_FOLLOWER, Code.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_rule, "_MOST_STOPPED", 10)


def test_a_client_that_never_sends_again_what_was_not_taken_loses_its_connection() -> None:
    stage = Stage(route("t", Serve.HIDDEN))
    for producer in range(11):
        stage.produce(("t", 0, batch(producer=producer)))
    assert {answer[2] for _, told in stage.told() for answer in told} == {Code.NOT_LEADER_OR_FOLLOWER}
    assert stage.edge.closed == []
    for producer in range(11, 100):
        stage.produce(("t", 0, batch(producer=producer)))
        assert stage.edge.closed.pop() == "a client does not send again what was not taken of it"
    assert len(stage.told()) == 11


def test_nor_does_one_whose_writes_no_leader_takes() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for producer in range(11):
        stage.produce(("t", 0, batch(producer=producer)))
        stage.edge.sent.pop().answer(MOVED)
    assert stage.edge.closed == []
    stage.produce(("t", 0, batch(producer=11)))
    assert stage.edge.closed == ["a client does not send again what was not taken of it"]
    assert stage.edge.sent == []


def test_a_client_that_sends_it_again_keeps_its_connection_however_often_that_happens() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for sequence in range(50):
        stage.produce(("t", 0, batch(sequence=sequence)))
        stage.edge.sent[-1].answer(Code.NOT_LEADER_OR_FOLLOWER)
        stage.produce(("t", 0, batch(sequence=sequence)))
        stage.edge.sent[-1].answer()
    assert stage.edge.closed == []
    assert [told[0][2] for _, told in stage.told()] == [Code.NOT_LEADER_OR_FOLLOWER, 0] * 50


def told(stage: Stage) -> list[int]:
    return [answers[0][2] for _, answers in stage.told()]


def stopped() -> Stage:
    """Return a stage that refused the first of a producer's batches 0 to 4; then all went to another broker."""
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.edge.sent.pop().answer(MOVED)
    stage.edge.replies.clear()
    return stage


def test_what_went_another_way_meanwhile_stops_nobody_once_the_source_says_that_it_holds_it() -> None:
    """Leaders move away and back: the client wrote elsewhere and continues here."""
    stage = stopped()
    stage.produce(("t", 0, batch(sequence=5)))
    assert (told(stage), stage.backend.sought) == ([MOVED], []), "it may stand right behind the one that failed"
    stage.produce(("t", 0, batch(sequence=5)))
    ((link, topic, partition, stored, then),) = stage.backend.sought
    assert (link, topic, partition, stored) == ("l", "t", 0, StoredBatch(5 + SHIFT, 0, 0))
    stage.produce(("t", 0, batch(sequence=5)))
    assert len(stage.backend.sought) == 1, "nobody is asked twice at once"
    then(False)
    stage.produce(("t", 0, batch(sequence=5)))
    stage.backend.sought[1][4](True)
    assert (told(stage), stage.edge.sent) == ([MOVED] * 4, [])
    stage.produce(("t", 0, batch(sequence=5)))
    stage.edge.sent.pop().answer()
    assert told(stage)[-1] == 0


def test_batches_that_are_sent_again_in_order_have_nobody_asked() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for _ in range(3):
        for sequence in range(3):
            stage.produce(("t", 0, batch(sequence=sequence)))
        stage.edge.sent.pop(0).answer(MOVED)
        for sent in stage.edge.sent:
            sent.answer(GAP)
        stage.edge.sent.clear()
        stage.produce(("t", 0, batch(sequence=3)))
    assert (set(told(stage)), stage.backend.sought) == ({MOVED}, [])


def test_a_client_whose_pipeline_was_refused_behind_the_first_goes_on_here_after_all_of_it_went_another_way() -> None:
    stage = stopped()
    for sequence in (1, 2, 3, 4):
        stage.produce(("t", 0, batch(sequence=sequence)))
    for _ in range(2):
        assert stage.backend.sought == []
        stage.produce(("t", 0, batch(sequence=5)))
    (question,) = stage.backend.sought
    question[4](True)
    stage.produce(("t", 0, batch(sequence=5)))
    stage.edge.sent.pop().answer()
    assert told(stage) == [MOVED] * 6 + [0]


@pytest.mark.parametrize("insisted", [False, True])
def test_what_is_sent_again_in_a_pipeline_is_let_in_from_its_first_one_on(insisted: bool) -> None:
    """A broker that does not know the producer would take the next batch for the producer's first (B3)."""
    stage = stopped()
    for sequence in (1, 2, 3, 1):
        stage.produce(("t", 0, batch(sequence=sequence)))
    (question,) = stage.backend.sought
    if insisted:
        stage.edge.clock = 6
        stage.produce(("t", 0, batch(sequence=1)))
    else:
        question[4](True)
    for sequence in (2, 3):
        stage.produce(("t", 0, batch(sequence=sequence)))
    assert stage.edge.sent == []
    for sequence in (1, 2, 3):
        stage.produce(("t", 0, batch(sequence=sequence)))
    assert len(stage.edge.sent) == 3


@pytest.mark.parametrize("answer", [False, None])
def test_what_a_client_insists_on_is_for_the_broker_to_judge(answer: bool | None) -> None:
    """The client may have given up the refused batch:

    with brokers alone the client hears of a gap, and can begin anew.
    """
    stage = stopped()
    for stage.edge.clock in range(6):
        stage.produce(("t", 0, batch(sequence=5)))
        while stage.backend.sought:
            assert stage.edge.clock
            stage.backend.sought.pop()[4](answer)
    assert stage.edge.sent == []
    stage.edge.clock = 6
    stage.produce(("t", 0, batch(sequence=5)))
    assert stage.backend.sought == [], "whatever the answer"
    stage.produce(("t", 0, batch(sequence=5)))
    stage.edge.sent.pop().answer(GAP)
    assert told(stage)[-2:] == [MOVED, GAP]


def test_a_source_that_does_not_answer_keeps_nobody_for_longer() -> None:
    stage = stopped()
    for stage.edge.clock in range(7):
        stage.produce(("t", 0, batch(sequence=5)))
    assert (len(stage.backend.sought), stage.edge.sent) == (1, [])
    stage.produce(("t", 0, batch(sequence=5)))
    assert len(stage.edge.sent) == 1


def test_what_has_failed_again_while_the_source_was_asked_stops_on() -> None:
    stage = stopped()
    stage.produce(("t", 0, batch(sequence=1)))
    stage.produce(("t", 0, batch(sequence=1)))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.edge.sent.pop().answer(MOVED)
    stage.backend.sought.pop()[4](True)
    stage.produce(("t", 0, batch(sequence=1)))
    assert (stage.edge.sent, stage.backend.sought) == ([], [])


def test_a_request_may_name_a_partition_twice() -> None:
    stage = stopped()
    stage.produce(("t", 0, batch(sequence=0)), ("t", 0, batch(sequence=1)))
    assert [part.partition for sent in stage.edge.sent for part in sent.request.parts] == [0]


def test_while_the_source_of_a_topic_is_not_to_be_asked_nobody_asks_it() -> None:
    stage = stopped()
    stage.swap(route("t", Serve.HIDDEN))
    for _ in range(3):
        stage.produce(("t", 0, batch(sequence=5)))
    assert (told(stage), stage.backend.sought) == ([MOVED] * 3, [])


def test_partitions_where_nothing_is_stopped_go_their_way_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stopped()
    decided: list[ProduceRequest] = []
    decide = WriteDecider.decide

    def counted(self: WriteDecider, request: ProduceRequest, held: Held | None) -> list[Decision]:
        decided.append(request)
        return decide(self, request, held)

    monkeypatch.setattr(WriteDecider, "decide", counted)
    stage.produce(("t", 1, batch(sequence=0)))
    assert (len(stage.edge.sent), decided) == (1, [])
    stage.produce(("t", 0, batch(sequence=5)))
    assert (len(stage.edge.sent), len(decided)) == (1, 1)
