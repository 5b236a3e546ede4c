"""A client with an identity that a source handed out: the source decides on the end of the transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import blank, element_type, entity
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import peek_request
from tests.unit.router.router_fakes import route
from tests.unit.router.transactions.test_handler import (
    ADD,
    COMMIT,
    DESCRIBE,
    END,
    INIT,
    NAME,
    Desk,
    S,
    T,
    fenced,
    follows,
)

MAPPING, EPOCH, FENCED, NOT_FOUND, LOADING, BEGIN_ANEW = 49, 47, 90, 105, 14, 59


def strange(serve: Serve = Serve.FORWARD, *, tells: bool = True) -> Desk:
    """Return a client whose transactional id is known neither to the state log nor to the target."""
    desk = Desk(route("t", serve), known=False, tells=tells)
    desk.codes |= {("target", END): MAPPING, ("target", ADD): MAPPING, ("target", DESCRIBE): NOT_FOUND}
    return desk


def end(desk: Desk, *, committed: bool = True) -> int:
    return desk.end(committed, S[1], producer_id=S[0])


def two_sources(desk: Desk) -> None:
    stage = desk.stage

    def changed() -> None:
        stage._follow()
        stage.shared.swap(replace(stage.shared.table, sources=("l", "m")), 0.0)

    stage.transaction_store.changed = changed
    changed()


@pytest.mark.parametrize("serve", list(Serve))
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("code", [0, 48, 51, LOADING])
def test_the_source_that_has_begun_a_transaction_ends_it_in_the_identity_that_the_client_has(
    serve: Serve, committed: bool, code: int
) -> None:
    """The topics' phase does not matter: a client that got no answer to an end repeats the end."""
    desk = strange(serve)
    desk.codes["source", END] = code
    assert end(desk, committed=committed) == code
    where, _, request = desk.passed[-1]
    assert (where, request.transactional_id, request.committed) == ("source", NAME, committed)
    assert (request.producer_id, request.producer_epoch) == S
    assert desk.stage.transaction_store.records == {}


@pytest.mark.parametrize("code", [MAPPING, 53])
def test_an_identity_that_no_cluster_knows_is_refused_as_the_target_refuses_it(code: int) -> None:
    desk = strange()
    two_sources(desk)
    desk.codes["source", END] = code
    assert end(desk) == MAPPING
    assert desk.asked(END) == [("target", END), ("source", END), ("source", END)]


def test_a_holder_that_its_source_has_fenced_is_told_so() -> None:
    desk = strange()
    desk.codes["source", END] = EPOCH
    assert end(desk) == FENCED


def test_what_another_source_says_of_an_equal_number_does_not_count() -> None:
    desk = strange()
    two_sources(desk)
    told: list[int] = [FENCED, 0]
    answered: Callable[..., Any] = desk._told

    def by_turns(where: str, key: int, *asked: Any) -> Any:
        if (where, key) == ("source", END):
            desk.codes["source", END] = told.pop(0)
        return answered(where, key, *asked)

    desk._told = by_turns  # type: ignore[method-assign, assignment]
    assert end(desk) == 0
    assert told == []


def test_who_cannot_be_judged_because_the_source_is_away_comes_again() -> None:
    desk = strange()
    desk.lost.add(("source", END))
    assert end(desk) == LOADING


def by_source(desk: Desk, key: int, *told: int | None) -> None:
    """Make the sources answer in turn with these codes; None means no answer."""
    two_sources(desk)
    left, answered = list(told), desk._answer

    def answer(sent: Any) -> None:
        head = peek_request(sent.frame)
        if sent.where.startswith("source") and head.api_key == key:
            code = left.pop(0)
            desk.lost = set() if code is not None else {("source", key)}
            desk.codes["source", key] = code or 0
        answered(sent)

    desk._answer = answer  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ((None, 0), 0),
        ((16, 0), 0),
        ((None, 51), 51),
        ((None, MAPPING), LOADING),
        ((MAPPING, None), LOADING),
        ((FENCED, None), LOADING),
        ((None, FENCED), LOADING),
        ((MAPPING, FENCED), FENCED),
        ((FENCED, MAPPING), FENCED),
        ((MAPPING, MAPPING), MAPPING),
    ],
)
def test_a_source_that_is_away_keeps_no_other_source_from_judging(told: tuple[int | None, ...], code: int) -> None:
    desk = strange()
    by_source(desk, END, *told)
    assert end(desk) == code
    assert desk.asked(END) == [("target", END), ("source", END), ("source", END)]


@pytest.mark.parametrize(
    ("told", "code"),
    [((None, 0), BEGIN_ANEW), ((16, 0), BEGIN_ANEW), ((None, NOT_FOUND), LOADING), ((NOT_FOUND, NOT_FOUND), MAPPING)],
)
def test_who_would_go_on_is_judged_by_every_source_that_answers(told: tuple[int | None, ...], code: int) -> None:
    desk = strange()
    by_source(desk, DESCRIBE, *told)
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": code}


def test_a_source_of_which_nothing_is_known_yet_might_know_who_would_go_on() -> None:
    desk = strange(tells=False)
    desk.stage.backend.versions[END] = -1
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": LOADING}
    assert desk.stage.backend.refreshed == [""], "the router looks for the source's brokers"


def test_the_older_holder_of_an_id_that_the_state_log_knows_is_refused_without_a_question() -> None:
    desk = Desk(route("t", Serve.LOCAL))
    desk.codes["target", END] = FENCED
    assert desk.end(epoch=T[1] - 1) == FENCED
    assert desk.asked(END) == [("target", END)]


def test_a_transaction_of_the_newer_holder_stays_open_while_the_older_one_of_the_source_is_judged() -> None:
    desk = Desk(route("t", Serve.FORWARD))
    assert desk.add("t") == {"t": 0}
    desk.codes["source", END] = FENCED
    assert desk.end(producer_id=S[0], epoch=S[1] - 1) == FENCED
    del desk.codes["source", END]
    assert desk.end() == 0
    assert desk.passed[-1][2].producer_id == S[0]


@pytest.mark.parametrize("serve", [Serve.FORWARD, Serve.LOCAL])
def test_who_would_go_on_in_such_an_identity_is_made_to_abort_and_given_one_that_both_clusters_know(
    serve: Serve,
) -> None:
    desk = strange(serve)
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": BEGIN_ANEW}
    assert [where for where, key in desk.asked(ADD)] == ([] if serve is Serve.FORWARD else ["target"])
    assert end(desk, committed=False) == 0
    assert desk.passed[-1][0] == "source"
    assert desk.init() == 0
    assert desk.asked(INIT)[0] == ("target", INIT)


def test_a_holder_that_no_source_names_is_told_what_the_target_says() -> None:
    desk = strange()
    desk.holders["source"] = (S[0] + 1, 0)
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": MAPPING}
    desk.codes["source", DESCRIBE] = 16
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": LOADING}
    desk.lost.add(("source", DESCRIBE))
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": LOADING}


def test_a_source_that_cannot_tell_of_transactions_is_asked_for_ends_alone() -> None:
    desk = strange(tells=False)
    assert desk.add("t", producer_id=S[0], epoch=S[1]) == {"t": MAPPING}
    assert end(desk) == 0
    assert desk.asked(DESCRIBE) == []


def test_offsets_of_such_an_identity_are_not_committed_anywhere() -> None:
    desk = strange()
    follows(desk)
    assert desk.offsets("g", S) == BEGIN_ANEW
    topic = element_type(entity(COMMIT, 3, "request"), "topics")
    part = blank(element_type(topic, "partitions"), committed_offset=1)
    answer = desk.says(
        COMMIT,
        transactional_id=NAME,
        producer_id=S[0],
        producer_epoch=S[1],
        group_id="g",
        topics=(blank(topic, name="t", partitions=(part,)),),
    )
    assert code_of(answer.topics[0].partitions[0].error_code) == 22
    assert desk.asked(COMMIT) == []


def test_the_end_of_a_transaction_passes_a_fence() -> None:
    """Until then the topic stays before its barrier: no record of the transaction is promoted."""
    desk = strange()
    fenced(desk)
    assert end(desk) == 0
    assert desk.stage.shared.forwards.in_flight.get("topic/l/t", 0) == 0
