"""Partitions that enter a transaction at the target late.

No marker is written there before the producer's first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import Serve
from kmigrate.router.session.session import Session
from kmigrate.router.shared.client_handoff import mark
from kmigrate.router.shared.conversation import Future
from kmigrate.router.wire.transactions import partitions_of
from tests.unit.router.router_fakes import FakeClientLink, route
from tests.unit.router.transactions.test_handler import ADD, END, NAME, OFFSETS, Desk, T

FENCED, BUSY, NOTHING_OPEN, OLD_EPOCH, LOADING, NOT_COORDINATOR, NOT_ALLOWED = 90, 51, 48, 47, 14, 16, 53


def promoted(*topics: str, knows: bool = False) -> Desk:
    """Return a producer whose topics were written at the source before the promote."""
    desk = Desk(*(route(topic, Serve.LOCAL) for topic in topics or ("t",)), topics=topics or ("t",))
    desk.target_knows = knows
    return desk


def test_a_partition_enters_with_its_first_batch_and_is_never_late_again() -> None:
    desk = promoted()
    assert desk.add("t") == {"t": 0}
    assert desk.asked(ADD) == []
    assert desk.produce("t", sequence=7) is None, "it waits"
    desk.hears()
    assert desk.asked(ADD) == [("target", ADD)]
    assert partitions_of(desk.passed[-1][2]) == {"t": (0,)}
    (first,) = desk.stage.edge.sent
    desk.produce("t", sequence=8)
    assert desk.stage.edge.sent == [first], "the first goes alone"
    first.answer()
    assert len(desk.stage.edge.sent) == 2
    desk.stage.edge.sent.pop().answer()
    desk.stage.edge.sent.clear()
    assert desk.end() == 0
    desk.target_knows = True
    assert desk.add("t") == {"t": 0}
    assert desk.produce("t", sequence=9) is not None
    assert desk.asked(ADD, END) == [("target", ADD), ("target", END), ("target", ADD)]


def test_another_process_that_has_seen_nothing_of_it_asks_the_target() -> None:
    desk = promoted(knows=True)
    assert desk.produce("t", sequence=8) is None
    desk.hears()
    assert (desk.asked(ADD), desk.stage.backend.joins) == ([], [])
    assert len(desk.stage.edge.sent) == 1


def test_nothing_overtakes_a_first_batch_that_was_refused() -> None:
    desk = promoted()
    desk.add("t")
    desk.produce("t", sequence=7)
    desk.hears()
    desk.produce("t", sequence=8)
    desk.stage.edge.sent.pop().answer(6)
    desk.hears()
    assert [error for _, parts in desk.stage.told()[1:] for _, _, error in parts] == [6, 6]
    desk.produce("t", sequence=7)
    desk.hears()
    desk.stage.edge.sent.pop().answer()
    assert desk.produce("t", sequence=8) is not None


def test_where_the_target_knows_its_producer_a_partition_is_not_late() -> None:
    desk = promoted(knows=True)
    assert desk.add("t") == {"t": 0}
    assert desk.asked(ADD) == [("target", ADD)]
    assert desk.produce("t", sequence=7) is not None


def test_what_is_not_late_is_passed_on_and_its_answer_is_told() -> None:
    desk = Desk(route("t", Serve.LOCAL))
    desk.target_knows = False
    desk.codes["target", ADD] = BUSY
    assert desk.add("t", "other") == {"t": 0, "other": BUSY}
    assert [partitions_of(request) for _, key, request in desk.passed if key == ADD] == [{"other": (0,)}]


def test_a_partition_that_the_source_never_had_is_not_asked_about() -> None:
    """For each made-up partition the router would question the target for seconds, in the router's own name."""
    desk = promoted()
    asked = desk.stage.backend.producer_mark
    named: list[int] = []

    def ask(at: str, topic: str, partition: int, producer_id: int) -> Future[ProducerMark | None]:
        named.append(partition)
        return asked(at, topic, partition, producer_id)

    desk.stage.backend.producer_mark = ask  # type: ignore[method-assign]
    desk.add("t", partitions=(0, 1, 2, 70_000, -1))
    assert named == [0, 1]
    assert [partitions_of(request) for _, key, request in desk.passed if key == ADD] == [{"t": (2, 70_000, -1)}]


def test_the_abort_of_a_transaction_that_nothing_has_entered_succeeds() -> None:
    desk = promoted()
    desk.add("t")
    desk.codes["target", END] = NOTHING_OPEN
    assert desk.end(committed=False) == 0
    desk.add("t")
    assert desk.end(committed=True) == NOTHING_OPEN


def test_of_others_such_an_abort_is_told_as_it_is() -> None:
    desk = Desk(route("t", Serve.LOCAL), known=False)
    desk.codes["target", END] = NOTHING_OPEN
    assert desk.add("t") == {"t": 0}
    assert desk.end(committed=False) == NOTHING_OPEN


def test_positions_alone_are_a_transaction() -> None:
    desk = promoted()
    desk.add("t")
    assert desk.offsets("free") == 0
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD, OFFSETS, END) == [("target", OFFSETS), ("target", END)]


def test_the_target_judges_whether_who_brings_a_batch_may_put_its_partition_into_the_transaction() -> None:
    """The request goes over the connection that brought the batch, and nothing goes in another client's name."""
    desk = promoted()
    desk.add("t")
    stage, coordinator = desk.stage, desk.stage.edge
    stage.edge = FakeClientLink()
    stage.session = Session(stage.shared, stage.edge)
    desk.codes["target", ADD] = NOT_ALLOWED
    assert desk.produce("t", sequence=7) is None
    desk.hears()
    assert desk.asked(ADD) == [("target", ADD)]
    assert (coordinator.sent, stage.backend.joins) == ([], [])
    assert [error for _, parts in stage.told() for _, _, error in parts] == [NOT_ALLOWED]


def test_a_broker_that_is_not_the_coordinator_has_judged_so_the_router_joins_by_its_own_connections() -> None:
    desk = promoted()
    desk.codes["target", ADD] = NOT_COORDINATOR
    assert desk.produce("t", sequence=7) is None
    desk.hears()
    ((holder, topic, partition, then),) = desk.stage.backend.joins
    assert (holder, topic, partition) == ((NAME, *T), "t", 0)
    then(0)
    assert len(desk.stage.edge.sent) == 1


def test_for_a_batch_that_waits_no_more_nothing_is_joined() -> None:
    """The client's next request may be a login, and nothing else may fall into a login (KIP-368)."""
    desk = promoted()
    desk.produce("t", sequence=7)
    desk.stage.edge.clock = desk.stage.edge.wakes[-1]
    desk.stage.session.advance()
    desk.hears()
    assert desk.asked(ADD) == []


def test_a_coordinator_that_is_busy_is_asked_again() -> None:
    desk = promoted()
    desk.codes["target", ADD] = BUSY
    assert desk.produce("t", sequence=7) is None
    desk.hears()
    assert desk.stage.edge.sent == []
    desk.codes.clear()
    desk.stage.edge.clock = desk.stage.edge.wakes[-1]
    desk.stage.session.advance()
    desk.hears()
    assert desk.asked(ADD) == [("target", ADD)] * 2
    assert len(desk.stage.edge.sent) == 1


def test_while_the_target_does_not_tell_whether_a_partition_is_late_nothing_is_said_to_be_in() -> None:
    desk = promoted("t", "u")
    desk.target_knows = None
    assert desk.add("t", "u") == {"t": LOADING, "u": LOADING}
    assert desk.asked(ADD) == []
    desk.target_knows = True
    assert desk.add("t", "u") == {"t": 0, "u": 0}


def test_a_first_batch_that_waits_asks_again_where_the_target_does_not_tell() -> None:
    desk = promoted(knows=True)
    assert desk.produce("t", sequence=8) is None
    desk.stage.backend.asked.pop()[3](None)
    assert desk.stage.edge.sent == []
    desk.hears()
    assert len(desk.stage.edge.sent) == 1


@pytest.mark.parametrize(("code", "told"), [(FENCED, OLD_EPOCH), (OLD_EPOCH, OLD_EPOCH), (NOT_ALLOWED, NOT_ALLOWED)])
def test_what_the_coordinator_refuses_is_told_to_who_writes(code: int, told: int) -> None:
    desk = promoted()
    desk.codes["target", ADD] = code
    desk.produce("t", sequence=7)
    desk.hears()
    assert [error for _, parts in desk.stage.told() for _, _, error in parts] == [told]


def waited_too_long() -> Desk:
    """Return a producer whose first batch, 7, was held until the client was told to send the batch again."""
    desk = promoted()
    desk.produce("t", sequence=7)
    desk.stage.edge.clock = desk.stage.edge.wakes[-1]
    desk.stage.session.advance()
    desk.stage.backend.asked.clear()
    return desk


def test_what_stands_behind_a_batch_that_waited_too_long_does_not_overtake_it() -> None:
    desk = waited_too_long()
    assert desk.produce("t", sequence=8) is None
    assert [error for _, parts in desk.stage.told() for _, _, error in parts] == [6, 6]
    desk.produce("t", sequence=7)
    desk.hears()
    desk.stage.edge.sent.pop().answer()
    assert desk.produce("t", sequence=8) is not None


def test_a_first_batch_that_entered_over_another_process_stops_nothing_behind_it() -> None:
    desk = waited_too_long()
    assert desk.produce("t", sequence=8) is None
    assert desk.stage.backend.asked == []
    assert desk.produce("t", sequence=8) is None
    desk.target_knows = True
    desk.hears()
    assert desk.produce("t", sequence=8) is not None


@pytest.mark.parametrize("epoch", [T[1] - 1, T[1] + 1])
def test_another_epoch_begins_its_sequences_anew(epoch: int) -> None:
    desk = promoted()
    desk.add("t", epoch=epoch)
    assert desk.asked(ADD) == [("target", ADD)]


def finish(desk: Desk) -> bool:
    """Finish the links, and tell whether the client stays with the router."""
    shared, session = desk.stage.shared, desk.stage.session
    shared.handoff.connections.add(session)
    shared.swap(replace(shared.table, finished=True), 0.0)
    return shared.handoff.stays(session)


def test_nothing_is_late_once_clients_are_told_where_the_brokers_are() -> None:
    desk = promoted()
    assert not finish(desk)
    desk.add("t")
    assert desk.asked(ADD) == [("target", ADD)]


def test_who_was_told_of_a_late_partition_stays_with_the_router_until_it_is_in() -> None:
    desk = promoted("t", "u")
    desk.add("t", "u")
    assert finish(desk)
    desk.produce("t", sequence=7)
    desk.hears()
    assert desk.asked(ADD) == [("target", ADD)]
    handoff, session = desk.stage.shared.handoff, desk.stage.session
    assert handoff.stays(session), "the other one is not"
    assert handoff.next(now=9.0) is None
    desk.stage.edge.sent.pop().answer()
    desk.produce("u", sequence=3)
    desk.hears()
    assert not handoff.stays(session)
    assert handoff.next(now=9.0) is session


def test_whom_this_router_keeps_it_tells_the_others() -> None:
    desk = promoted()
    handoff, session = desk.stage.shared.handoff, desk.stage.session
    desk.add("t")
    finish(desk)
    assert handoff.staying == {mark(session)}
    assert desk.end() == 0
    assert handoff.staying == frozenset()


def test_the_abort_of_a_transaction_that_nothing_has_entered_succeeds_also_for_who_was_told() -> None:
    """After the connection is lost, the router no longer knows that the client has to stay."""
    desk = promoted()
    desk.add("t")
    desk.stage.session.closed()
    assert not finish(desk)
    desk.stage.session = Session(desk.stage.shared, desk.stage.edge)
    desk.stage.shared.handoff.informed["", "c"] = 0.0
    desk.codes["target", END] = NOTHING_OPEN
    assert desk.end(committed=False) == 0


@pytest.mark.parametrize("end", [Desk.end, Desk.init, lambda desk: desk.stage.session.closed()])
def test_who_was_told_of_a_late_partition_stays_no_longer_than_the_transaction(end: Callable[[Desk], Any]) -> None:
    desk = promoted()
    desk.add("t")
    assert finish(desk)
    end(desk)
    assert not desk.stage.shared.handoff.stays(desk.stage.session)
    assert desk.stage.shared.deferred.promised == {}
