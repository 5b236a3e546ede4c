"""A transactional id whose identity at the source was revoked by a controller: no client gets an error without need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.records import LastEnd, Revoked, TransactionRecord
from kmigrate.model.routes import Serve
from kmigrate.protocol.codes import code_of
from kmigrate.router.wire.produce import parse_answer
from tests.unit.router.router_fakes import route
from tests.unit.router.transactions.test_handler import (
    ADD,
    COMMIT,
    END,
    INIT,
    NAME,
    OFFSETS,
    Desk,
    S,
    T,
    fenced,
    forwarded,
    in_flight,
)

INVALID_TXN_STATE, MAPPING, CONCURRENT, EPOCH, FENCED = 48, 49, 51, 47, 90
BEGIN_ANEW = 59
DISOWNED = (EPOCH, MAPPING, FENCED)
RECORD = TransactionRecord("l", NAME, *T, *S, ("t",))


def revoke(desk: Desk, last_end: LastEnd = LastEnd.COMMITTED, *, proven: bool = True) -> None:
    """Write the revocation as a controller does, and let the router read the record."""
    desk.stage.transaction_store.records[("l", NAME)] = replace(RECORD, revoked=Revoked(last_end, proven))
    desk.stage.transaction_store.changed()


def flipped(desk: Desk) -> None:
    desk.stage.swap(route("t", Serve.LOCAL, fence_epoch=5))


def while_it_stood_still(desk: Desk, *happened: Callable[[], object]) -> None:
    """Set the events that the next read of the state log finds."""
    changed = desk.stage.transaction_store.changed

    def caught_up() -> None:
        desk.stage.transaction_store.changed = changed
        for each in happened:
            each()

    desk.stage.transaction_store.changed = caught_up


# Late requests


@pytest.mark.parametrize("code", DISOWNED)
def test_a_transaction_that_a_router_would_begin_late_begins_at_the_target(code: int) -> None:
    desk = forwarded()
    desk.codes["source", ADD] = code
    while_it_stood_still(desk, lambda: revoke(desk), lambda: flipped(desk))
    assert desk.add("t") == {"t": 0}
    assert desk.asked(ADD) == [("source", ADD), ("target", ADD)]
    assert in_flight(desk) == 0


@pytest.mark.parametrize("code", DISOWNED)
def test_a_transaction_that_a_router_would_begin_late_waits_under_the_fence(code: int) -> None:
    desk = forwarded()
    desk.codes["source", ADD] = code
    while_it_stood_still(desk, lambda: revoke(desk, proven=False), lambda: fenced(desk))
    assert desk.add("t") is None
    flipped(desk)
    desk.stage.shared.wake()
    desk.hears()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 0}


@pytest.mark.parametrize("code", DISOWNED)
def test_who_is_no_holder_at_the_source_any_more_is_told_so_once_the_log_says_nothing_else(code: int) -> None:
    desk = forwarded()
    desk.codes["source", ADD] = code
    assert desk.add("t") == {"t": code}
    assert desk.asked(ADD) == [("source", ADD)] * 2


def test_a_router_that_cannot_read_the_log_has_its_client_come_again() -> None:
    desk = forwarded()
    desk.codes["source", ADD] = FENCED
    desk.stage.transaction_store.reach = False
    assert desk.add("t") == {"t": 14}


@pytest.mark.parametrize(
    ("last_end", "committed", "told"),
    [
        (LastEnd.COMMITTED, True, 0),
        (LastEnd.ABORTED, True, INVALID_TXN_STATE),
        (LastEnd.CUT_OFF, True, BEGIN_ANEW),
        (LastEnd.COMMITTED, False, 0),
        (LastEnd.ABORTED, False, 0),
        (LastEnd.CUT_OFF, False, 0),
    ],
)
@pytest.mark.parametrize("flip", [True, False])
def test_an_end_whose_answer_was_lost_is_answered_by_the_record(
    flip: bool, last_end: LastEnd, committed: bool, told: int
) -> None:
    """The source has forgotten how the transaction ended; the target never saw the transaction."""
    desk = forwarded()
    desk.codes["target", END] = INVALID_TXN_STATE
    revoke(desk, last_end)
    if flip:
        flipped(desk)
    assert desk.end(committed) == told
    assert ("source", END) not in desk.asked(END)


@pytest.mark.parametrize("committed", [True, False])
def test_a_late_end_of_what_has_ended_is_answered_by_the_record(committed: bool) -> None:
    """The router had the transaction open when it stood still; the client has ended the transaction elsewhere."""
    desk = forwarded()
    desk.codes["target", END] = INVALID_TXN_STATE
    assert desk.add("t") == {"t": 0}
    assert in_flight(desk) == 1
    desk.codes["source", END] = FENCED
    while_it_stood_still(desk, lambda: revoke(desk), lambda: flipped(desk))
    assert desk.end(committed) == 0
    assert in_flight(desk) == 0


def test_while_nobody_can_say_how_a_transaction_ended_its_client_comes_again() -> None:
    desk = forwarded()
    revoke(desk, proven=False)
    assert desk.end() == CONCURRENT
    assert desk.asked(END) == []
    revoke(desk)
    assert desk.end() == 0


def test_a_transaction_that_is_open_while_its_identity_is_being_revoked_may_end_at_the_source() -> None:
    desk = forwarded()
    desk.add("t")
    revoke(desk, proven=False)
    assert in_flight(desk) == 1
    assert desk.end() == 0
    assert desk.asked(END) == [("source", END)]


def test_one_that_the_source_does_not_let_end_while_its_identity_is_being_revoked_comes_again() -> None:
    desk = forwarded()
    desk.add("t")
    revoke(desk, proven=False)
    desk.codes["source", END] = FENCED
    assert desk.end() == CONCURRENT
    revoke(desk, LastEnd.CUT_OFF)
    assert desk.end() == BEGIN_ANEW
    assert in_flight(desk) == 0


@pytest.mark.parametrize(("committed", "told"), [(False, 0), (True, INVALID_TXN_STATE)])
def test_the_abort_of_what_a_fence_has_held_has_succeeded(committed: bool, told: int) -> None:
    """The client gave up before the fence ended, and INVALID_TXN_STATE would stop the client."""
    desk = forwarded()
    fenced(desk)
    assert desk.add("t") is None
    desk.stage.edge.clock = 60.0
    desk.stage.shared.wake()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": CONCURRENT}
    desk.codes = {(where, END): INVALID_TXN_STATE for where in ("source", "target")}
    assert desk.end(committed) == told


# After a promote that was given up


def test_who_comes_back_to_the_source_is_told_to_ask_for_the_next_epoch() -> None:
    desk = forwarded()
    revoke(desk)
    assert desk.add("t") == {"t": BEGIN_ANEW}
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD, END) == []


def test_a_java_client_of_version_3_gets_an_error_at_which_its_application_does_not_end() -> None:
    desk = forwarded()
    desk.stage.session.software = "apache-kafka-java 3.9.1"
    revoke(desk, LastEnd.CUT_OFF)
    assert desk.end() == MAPPING
    assert desk.add("t") == {"t": MAPPING}
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD) == []


def test_the_next_epoch_is_asked_for_in_nobodys_name_and_puts_an_end_to_it() -> None:
    """The source does not know the identity that the client continues."""
    desk = forwarded()
    revoke(desk)
    desk.holders = {"target": (T[0], T[1] + 1), "source": (S[0], S[1] + 2)}
    answer = desk.says(INIT, transactional_id=NAME, producer_id=T[0], producer_epoch=T[1])
    assert answer.producer_epoch == T[1] + 1
    (asked,) = [request for where, key, request in desk.passed if (where, key) == ("source", INIT)]
    assert (asked.producer_id, asked.producer_epoch) == (-1, -1)
    renewed = replace(RECORD, epoch=T[1] + 1, source_epoch=S[1] + 2, since=1)
    assert desk.stage.transaction_store.records[("l", NAME)] == renewed
    assert desk.add("t", epoch=T[1] + 1) == {"t": 0}


def test_a_next_epoch_that_the_source_refuses_to_a_revoked_identity_is_asked_for_in_nobodys_name() -> None:
    """The router has not read the revocation yet."""
    desk = forwarded()
    refusing = desk._told

    def told(where: str, key: int, version: int, request: Any) -> Any:
        desk.codes["source", INIT] = FENCED if getattr(request, "producer_id", -1) >= 0 else 0
        return refusing(where, key, version, request)

    desk._told = told  # type: ignore[method-assign]
    while_it_stood_still(desk, lambda: revoke(desk))
    desk.holders = {"target": (T[0], T[1] + 1), "source": (S[0], S[1] + 2)}
    answer = desk.says(INIT, transactional_id=NAME, producer_id=T[0], producer_epoch=T[1])
    assert code_of(answer.error_code) == 0
    assert desk.stage.transaction_store.records[("l", NAME)].source_epoch == S[1] + 2


def test_a_next_epoch_that_the_source_refuses_for_good_is_refused() -> None:
    desk = forwarded()
    desk.codes["source", INIT] = FENCED
    answer = desk.says(INIT, transactional_id=NAME, producer_id=T[0], producer_epoch=T[1])
    assert code_of(answer.error_code) == FENCED


def test_what_a_router_says_of_a_revoked_identity_does_not_bring_it_back() -> None:
    """The router couples a topic by a record that the router read before the revocation."""
    revoked = replace(RECORD, revoked=Revoked(LastEnd.ABORTED, proven=True))
    assert revoked.merged(replace(RECORD, topics=("u",))) == replace(revoked, topics=("t", "u"))
    newer = replace(RECORD, epoch=4, source_epoch=10, topics=())
    assert revoked.merged(newer) == replace(newer, topics=("t",))


# Transactions that were cut off


@pytest.mark.parametrize(("proven", "told"), [(None, EPOCH), (True, INVALID_TXN_STATE), (False, 6)])
def test_a_batch_of_an_old_epoch_is_told_as_one_once_the_log_says_nothing_else(proven: bool | None, told: int) -> None:
    """A batch of an old epoch gets that error only when the state log has no other explanation.

    The producer's router cannot reach the state log and still forwards. The abort of the open transaction fences the
    batch.
    """
    desk = forwarded()
    desk.add("t")
    sent = desk.produce("t")
    assert sent is not None
    if proven is not None:
        while_it_stood_still(desk, lambda: revoke(desk, LastEnd.CUT_OFF, proven=proven))
    sent.answer(EPOCH)
    (answer,), *_ = parse_answer(desk.stage.edge.replies[-1], 9)
    assert answer.error == told


def test_a_batch_of_an_old_epoch_comes_again_while_the_log_cannot_be_read() -> None:
    desk = forwarded()
    desk.add("t")
    sent = desk.produce("t")
    assert sent is not None
    desk.stage.transaction_store.reach = False
    sent.answer(EPOCH)
    (answer,), *_ = parse_answer(desk.stage.edge.replies[-1], 9)
    assert answer.error == 6


@pytest.mark.parametrize("flip", [True, False])
def test_nothing_of_a_transaction_that_was_cut_off_is_let_in_anywhere(flip: bool) -> None:
    """A part of the transaction was aborted at the source: a write now would be committed without that part."""
    desk = forwarded()
    revoke(desk, LastEnd.CUT_OFF)
    if flip:
        flipped(desk)
    assert desk.add("t") == {"t": BEGIN_ANEW}
    assert desk.offsets("g") == BEGIN_ANEW
    assert desk.produce("t") is None
    told, *_ = parse_answer(desk.stage.edge.replies[-1], 9)
    assert [part.error for part in told] == [INVALID_TXN_STATE]
    answer = desk.says(COMMIT, transactional_id=NAME, producer_id=T[0], producer_epoch=T[1], group_id="g")
    assert answer.topics == (), "of none in it"
    assert desk.asked(ADD, OFFSETS, COMMIT) == []


def test_the_next_epoch_of_a_holder_that_was_cut_off_is_let_in() -> None:
    desk = forwarded()
    revoke(desk, LastEnd.CUT_OFF)
    flipped(desk)
    assert desk.add("t", epoch=T[1] + 1) == {"t": 0}
