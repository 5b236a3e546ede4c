"""A source's MESSAGE_TOO_LARGE on a topic that may be sealed:

a client gets the error only where no seal is the reason.
"""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.routes import Serve
from tests.unit.router.router_fakes import Stage, batch, route

NOT_LEADER, TOO_LARGE = 6, 10
OPEN = route("t", Serve.FORWARD, fence_epoch=3)
SEALED = replace(route("t", Serve.HOLD, fence_epoch=9), sealed=True)


def test_too_large_is_told_as_not_leader_where_the_topic_has_been_sealed_meanwhile() -> None:
    stage = Stage(OPEN)
    stage.transaction_store.changed = lambda: stage.swap(SEALED)
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 1, batch(sequence=0)))
    stage.edge.sent[0].answer(TOO_LARGE)
    stage.edge.sent[1].answer()
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)]), (2, [("t", 1, 0)])]
    assert stage.shared.forwards.in_flight[OPEN.key] == 0


def test_too_large_is_told_as_it_is_where_no_seal_can_be_the_reason() -> None:
    stage = Stage(OPEN)
    stage.produce(("t", 0, batch(sequence=0)))
    stage.edge.sent[0].answer(TOO_LARGE)
    stage.produce(("t", 0, batch(sequence=1)))
    assert len(stage.edge.sent) == 2, "the client has given the large one up: the next is not behind it"
    stage.edge.sent[1].answer()
    assert stage.told() == [(1, [("t", 0, TOO_LARGE)]), (2, [("t", 0, 0)])]


def test_a_router_that_cannot_read_the_log_takes_too_large_for_a_seal() -> None:
    stage = Stage(OPEN)
    stage.transaction_store.reach = False
    stage.produce(("t", 0, batch()))
    stage.edge.sent[0].answer(TOO_LARGE)
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]


def test_too_large_after_a_seal_that_came_and_went_is_not_believed_either() -> None:
    stage = Stage(OPEN)
    stage.transaction_store.changed = lambda: stage.swap(replace(OPEN, fence_epoch=9))
    stage.produce(("t", 0, batch()))
    stage.edge.sent[0].answer(TOO_LARGE)
    assert stage.told() == [(1, [("t", 0, NOT_LEADER)])]


def test_batches_behind_one_that_met_the_seal_wait_until_it_has_come_again() -> None:
    stage = Stage(OPEN)
    stage.transaction_store.changed = lambda: stage.swap(replace(OPEN, fence_epoch=9))
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 0, batch(sequence=1)))
    stage.edge.sent[0].answer(TOO_LARGE)
    stage.edge.sent[1].answer(45)
    stage.produce(("t", 0, batch(sequence=1)))
    assert [told[1][0][2] for told in stage.told()] == [NOT_LEADER] * 3
    stage.produce(("t", 0, batch(sequence=0)))
    stage.produce(("t", 0, batch(sequence=1)))
    assert len(stage.edge.sent) == 4


def test_a_router_goes_on_telling_of_a_sealed_topic_after_its_flip() -> None:
    stage = Stage(OPEN)
    stage.produce(("t", 0, batch()))
    stage.swap(replace(route("t", Serve.LOCAL, fence_epoch=9), sealed=True))
    fences = stage.shared.forwards.fences(stage.shared.table)
    assert [(ack.epoch, ack.in_flight) for ack in fences.values()] == [(9, 1)]
    stage.edge.sent[0].answer(TOO_LARGE)
    fences = stage.shared.forwards.fences(stage.shared.table)
    assert [(ack.epoch, ack.in_flight) for ack in fences.values()] == [(9, 0)]
    assert stage.backend.drains == 1
