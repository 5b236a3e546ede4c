"""Conversations: generators that go on within the event in which a response arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kmigrate.errors import ProtocolViolation
from kmigrate.router.shared.conversation import Conversation, Conversations, Future, together


def asks(*futures: Future[int], heard: list[object]) -> Conversation[int]:
    total = 0
    try:
        for future in futures:
            total += yield from future
            heard.append(total)
    finally:
        heard.append("over")
    return total


def test_a_conversation_goes_on_within_the_event_that_brings_the_response() -> None:
    first, second, heard = Future[int](), Future[int](), list[object]()
    result = Conversations().start(asks(first, second, heard=heard))
    result.then(lambda total: heard.append(("result", total)))
    assert heard == []
    first.set(1)
    assert heard == [1]
    second.set(2)
    assert heard == [1, 3, "over", ("result", 3)]


def test_a_response_that_is_there_already_does_not_suspend_and_is_given_to_everybody() -> None:
    heard: list[object] = []
    known = Future(5)
    assert not list(Conversations().start(asks(known, known, heard=heard)))
    assert heard == [5, 10, "over"]


def test_thousands_of_responses_that_are_there_need_no_stack() -> None:
    heard: list[object] = []
    Conversations().start(asks(*[Future(1)] * 5_000, heard=heard))
    assert heard[-2:] == [5_000, "over"]


def test_several_conversations_wait_for_one_response_in_their_order() -> None:
    shared, owner, heard = Future[int](), Conversations(), list[object]()
    for _ in range(3):
        owner.start(asks(shared, heard=heard))
    shared.set(7)
    assert heard == [7, "over"] * 3


def test_the_end_of_the_owner_ends_conversations_where_they_wait_and_begins_no_others() -> None:
    late, owner, heard = Future[int](), Conversations(), list[object]()
    owner.start(asks(late, heard=heard)).then(lambda _: heard.append("never"))
    owner.close()
    assert heard == ["over"]
    late.set(1)
    owner.start(asks(late, heard=heard)).then(lambda _: heard.append("never"))
    assert heard == ["over"]


def test_a_conversation_that_ends_its_own_owner_goes_on_to_its_next_wait() -> None:
    owner, late, heard = Conversations(), Future[int](), list[object]()

    def ends_it(close: Callable[[], None]) -> Conversation[None]:
        try:
            yield from late
            close()
            heard.append("still here")
            yield from Future[int]()
        finally:
            heard.append("over")

    owner.start(ends_it(owner.close))
    late.set(1)
    assert heard == ["still here", "over"]


def test_conversations_run_together_and_their_results_keep_their_order() -> None:
    first, second, owner, heard = Future[int](), Future[int](), Conversations(), list[object]()
    both = together([asks(first, heard=heard), asks(second, heard=heard)])
    owner.start(both).then(heard.append)
    second.set(2)
    first.set(1)
    assert heard == [2, "over", 1, "over", [1, 2]]


def test_the_end_of_the_owner_ends_conversations_that_run_together() -> None:
    first, second, owner, heard = Future[int](), Future[int](), Conversations(), list[object]()
    owner.start(together([asks(first, heard=heard), asks(second, heard=heard)]))
    owner.close()
    assert heard == ["over", "over"]


def test_a_fault_of_a_conversation_reaches_the_event_and_leaves_nothing_behind() -> None:
    late, owner = Future[int](), Conversations()

    def fails() -> Conversation[None]:
        yield from late
        raise ValueError("bad response")

    owner.start(fails())
    with pytest.raises(ValueError, match="bad response"):
        late.set(1)
    assert not owner._open


def test_a_violation_of_the_protocol_reaches_the_owner_and_not_the_event_of_another_client() -> None:
    late, seen = Future[int](), list[str]()
    owner = Conversations(lambda violation: seen.append(violation.what))

    def reads_rubbish() -> Conversation[None]:
        yield from late
        raise ProtocolViolation("bad-response", "rubbish")

    owner.start(reads_rubbish())
    late.set(1)
    assert seen == ["rubbish"]
    assert not owner._open


def test_a_future_takes_one_value() -> None:
    future = Future(1)
    with pytest.raises(RuntimeError):
        future.set(2)
