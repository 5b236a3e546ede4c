"""Transactional producers of topics that are rolled back and promoted again: one new epoch at each change of direction.

An identity is older than a topic's newest flip if its record is. The client gets an error at which it aborts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kmigrate.model.records import TransactionRecord
from kmigrate.model.routes import GroupRoute, Serve
from kmigrate.protocol.codes import code_of
from kmigrate.router.wire.produce import parse_answer
from tests.unit.router.router_fakes import route
from tests.unit.router.transactions.test_handler import (
    ADD,
    COMMIT,
    DESCRIBE,
    END,
    NAME,
    OFFSETS,
    Desk,
    S,
    T,
    says_positions,
)

BEGIN_ANEW, INVALID_TXN_STATE, BUSY, MAPPING, ILLEGAL_GENERATION = 59, 48, 14, 49, 22
FLIP = 7
"""Epoch of the newest flip."""
BACK = route("t", Serve.FORWARD, generation=1, turned_epoch=FLIP)
"""A topic that was rolled back."""
AGAIN = route("t", Serve.LOCAL, generation=1, copied_back=True, turned_epoch=FLIP)
"""A topic that was promoted again."""
PROMOTED = route("t", Serve.LOCAL, copied_back=True)
NATIVE = route("n", Serve.LOCAL)


def identified(desk: Desk, since: int, topics: tuple[str, ...] = ("t",)) -> Desk:
    """Give the producer an identity that is in use since an epoch of the state."""
    desk.stage.transaction_store.records[("l", NAME)] = TransactionRecord("l", NAME, *T, *S, topics, since=since)
    desk.stage.transaction_store.changed()
    return desk


def record(desk: Desk) -> TransactionRecord:
    return desk.stage.transaction_store.records[("l", NAME)]


def next_epoch(desk: Desk) -> tuple[int, int]:
    """Ask for the next epoch as clients do after an abort."""
    desk.holders = {where: (number, epoch + 1) for where, (number, epoch) in desk.holders.items()}
    assert desk.init() == 0
    return T[0], T[1] + 1


@pytest.mark.parametrize("there", [BACK, AGAIN])
def test_an_identity_from_before_the_newest_flip_ends_and_the_next_epoch_goes_on(there: Any) -> None:
    desk = identified(Desk(there), since=FLIP - 1)
    assert desk.add("t") == {"t": BEGIN_ANEW}
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD, END) == [], "no cluster hears of a transaction that did not begin"
    desk.stage.transaction_store.epoch = FLIP + 1
    producer_id, epoch = next_epoch(desk)
    assert desk.add("t", producer_id=producer_id, epoch=epoch) == {"t": 0}


@pytest.mark.parametrize("there", [BACK, AGAIN])
def test_a_java_client_of_version_3_gets_an_error_at_which_its_application_does_not_end(there: Any) -> None:
    desk = identified(Desk(there), since=FLIP - 1)
    desk.stage.session.software = "apache-kafka-java 3.9.1"
    assert desk.add("t") == {"t": MAPPING}
    assert desk.end(committed=False) == 0
    assert desk.asked(ADD, END) == []
    desk.stage.transaction_store.epoch = FLIP + 1
    producer_id, epoch = next_epoch(desk)
    assert desk.add("t", producer_id=producer_id, epoch=epoch) == {"t": 0}


@pytest.mark.parametrize("there", [BACK, AGAIN])
def test_an_identity_that_began_after_the_newest_flip_goes_on(there: Any) -> None:
    desk = identified(Desk(there), since=FLIP + 1)
    assert desk.add("t") == {"t": 0}


def test_the_first_promote_ends_no_identity() -> None:
    desk = identified(Desk(PROMOTED), since=3)
    assert desk.add("t") == {"t": 0}


@pytest.mark.parametrize("there", [BACK, AGAIN])
def test_a_late_batch_of_an_older_identity_has_its_client_abort_and_reaches_no_cluster(there: Any) -> None:
    """Its sequences would not follow what the log knows of the identity, or would follow by chance."""
    desk = identified(Desk(there), since=FLIP - 1)
    assert desk.produce("t", sequence=9) is None
    ((_, _, code, *_),), *_ = parse_answer(desk.stage.edge.replies[-1], 9)
    assert code == INVALID_TXN_STATE


def test_an_identity_that_only_the_target_has_given_is_made_known_at_the_source_and_ends() -> None:
    """Its sequences began before the rollback; a record without the source has the topic."""
    desk = Desk(BACK, known=False, tells=True)
    desk.stage.transaction_store.records[("l", NAME)] = TransactionRecord("l", NAME, *T, -1, -1, ("t",))
    desk.stage.transaction_store.changed()
    assert desk.add("t") == {"t": BEGIN_ANEW}
    assert ("source", ADD) not in desk.asked(ADD)
    assert (record(desk).source_id, record(desk).since) == (S[0], -1)
    desk.stage.transaction_store.epoch = FLIP
    producer_id, epoch = next_epoch(desk)
    assert record(desk).since == FLIP + 1
    assert desk.add("t", producer_id=producer_id, epoch=epoch) == {"t": 0}


def test_a_producer_that_has_written_at_the_target_alone_goes_on_there() -> None:
    desk = Desk(AGAIN, known=False)
    assert desk.add("t") == {"t": 0}
    assert desk.end() == 0
    assert desk.add("t") == {"t": 0}


def test_a_repeated_end_of_an_older_identity_is_asked_of_the_target_first() -> None:
    """The identity's last transaction was at the target, before the rollback."""
    desk = identified(Desk(BACK), since=FLIP - 1)
    assert desk.end() == 0
    assert desk.asked(END) == [("target", END)]


def test_an_abort_of_an_older_identity_that_the_target_has_not_seen_succeeds() -> None:
    desk = identified(Desk(BACK), since=FLIP - 1)
    desk.codes["target", END] = desk.codes["source", END] = INVALID_TXN_STATE
    assert desk.end(committed=False) == 0


# What transactions couple at the target


def test_what_is_written_together_with_a_topic_that_can_be_rolled_back_is_written_down() -> None:
    desk = Desk(PROMOTED, NATIVE, known=False)
    assert desk.add("t", "n") == {"t": 0, "n": 0}
    assert (record(desk).topics, record(desk).groups, record(desk).at_source) == (("n", "t"), (), False)
    assert desk.offsets("g") == 0
    assert record(desk).groups == ("g",)


def test_a_topic_that_joins_later_is_written_down_too_and_keeps_the_identity() -> None:
    desk = identified(Desk(PROMOTED, NATIVE), since=3)
    assert desk.add("n") == {"n": 0}
    found = record(desk)
    assert (found.topics, found.source_id, found.since) == (("n", "t"), S[0], 3)


def test_nothing_is_written_down_of_transactions_whose_topics_cannot_be_rolled_back() -> None:
    desk = Desk(route("t", Serve.LOCAL), NATIVE, known=False)
    assert desk.add("t", "n") == {"t": 0, "n": 0}
    assert desk.offsets("g") == 0
    assert desk.stage.transaction_store.records == {}


def test_while_the_state_log_is_away_no_id_writes_such_a_topic_for_the_first_time() -> None:
    desk = Desk(PROMOTED, known=False)
    desk.stage.transaction_store.reach = False
    assert desk.add("t") == {"t": BUSY}
    desk.stage.transaction_store.reach = True
    assert desk.add("t") == {"t": 0}


# Before the fence of a rollback


def closing(desk: Desk) -> None:
    desk.stage.swap(route("t", Serve.LOCAL, fence_epoch=5, copied_back=True, closing=True), NATIVE)


def unresolved(desk: Desk) -> int:
    ack = desk.stage.shared.forwards.fences(desk.stage.shared.table)["topic/l/t"]
    assert ack.epoch == 5
    return ack.in_flight


def test_before_the_fence_no_transaction_begins_and_an_open_transaction_goes_on_and_ends() -> None:
    desk = identified(Desk(PROMOTED, NATIVE), since=3)
    assert desk.add("t") == {"t": 0}
    closing(desk)
    assert desk.add("t", partitions=(1,)) == {"t": 0}
    sent = desk.produce("t")
    assert sent is not None and sent.where == "target"
    sent.answer()
    desk.stage.edge.sent.clear()
    assert desk.end() == 0
    assert desk.add("t") is None, "it waits"
    desk.stage.swap(PROMOTED, NATIVE)
    desk.hears()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": 0}, "the rollback was given up"


def test_a_transaction_that_waits_before_the_fence_begins_anew_after_the_rollback() -> None:
    desk = identified(Desk(PROMOTED, NATIVE), since=3)
    closing(desk)
    assert desk.add("t") is None
    desk.stage.swap(BACK, NATIVE)
    desk.hears()
    assert desk.codes_of(desk.read(ADD, 3)) == {"t": BEGIN_ANEW}


def test_a_connection_that_comes_amid_a_transaction_asks_the_target_before_it_waits() -> None:
    desk = identified(Desk(PROMOTED, NATIVE, tells=True), since=3)
    desk.open["target"] = ("t",)
    closing(desk)
    assert desk.add("t", partitions=(1,)) == {"t": 0}
    assert desk.asked(DESCRIBE) == [("target", DESCRIBE)]


def held_back(desk: Desk) -> Callable[[], None]:
    """Keep the answers of the target back; return what lets them go."""
    hears, desk.hears = desk.hears, lambda: None  # type: ignore[method-assign]

    def go_on() -> None:
        desk.hears = hears  # type: ignore[method-assign]
        desk.hears()

    return go_on


@pytest.mark.parametrize(
    "fence",
    [
        closing,
        lambda desk: desk.stage.swap(
            route("t", Serve.HOLD, fence_epoch=5, copied_back=True, rolling_back=True), NATIVE
        ),
    ],
)
def test_a_rollback_waits_for_what_may_begin_a_transaction(fence: Callable[[Desk], None]) -> None:
    desk = Desk(PROMOTED, NATIVE, known=False)
    go_on = held_back(desk)
    assert desk.add("t") is None
    fence(desk)
    assert (unresolved(desk), desk.stage.backend.drains) == (1, 0)
    go_on()
    assert (unresolved(desk), desk.stage.backend.drains) == (0, 1)


def test_before_the_fence_other_writes_are_not_waited_for() -> None:
    desk = identified(Desk(PROMOTED, NATIVE), since=3)
    desk.add("t")
    assert desk.produce("t") is not None
    closing(desk)
    assert unresolved(desk) == 0


def test_a_lost_connection_leaves_nothing_to_wait_for() -> None:
    desk = Desk(PROMOTED, NATIVE, known=False)
    desk.lost.add(("target", ADD))
    desk.add("t")
    closing(desk)
    assert unresolved(desk) == 0


# Groups that go back with the topics


LEAVING = GroupRoute("l", at_target=True)
"""A group that is rolled back, before its freeze."""
LEFT = GroupRoute("l", gathering=True, frozen=True, in_transactions=True, at_target=True)
"""The same group, frozen."""


def rolls_back(desk: Desk, group: GroupRoute = LEAVING) -> Desk:
    desk.stage.turn(g=group)
    return desk


def in_flight(desk: Desk) -> int:
    return desk.stage.shared.group_reports(0.0)["g"].in_flight


def test_before_the_fence_no_transaction_begins_with_a_groups_positions_and_an_open_one_takes_them() -> None:
    desk = identified(Desk(PROMOTED, NATIVE), since=3)
    assert desk.add("t") == {"t": 0}
    closing(desk)
    assert desk.offsets("g") == 0
    assert desk.end() == 0
    assert desk.offsets("g") is None, "it waits"
    desk.stage.swap(PROMOTED, NATIVE)
    desk.hears()
    assert code_of(desk.read(OFFSETS, 3).error_code) == 0, "the rollback was given up"


def test_a_rollback_waits_for_a_group_that_may_begin_a_transaction() -> None:
    desk = identified(Desk(PROMOTED, NATIVE), since=3)
    go_on = held_back(desk)
    assert desk.offsets("g") is None
    closing(desk)
    assert (unresolved(desk), desk.stage.backend.drains) == (1, 0)
    go_on()
    assert (unresolved(desk), desk.stage.backend.drains) == (0, 1)


def test_a_group_that_enters_a_transaction_before_the_topic_is_written_down_with_the_topic() -> None:
    desk = Desk(PROMOTED, NATIVE, known=False)
    assert desk.offsets("g") == 0
    assert desk.stage.transaction_store.records == {}
    assert desk.add("t") == {"t": 0}
    assert (record(desk).topics, record(desk).groups) == (("t",), ("g",))


def test_an_id_that_commits_for_a_group_that_is_rolled_back_is_written_down() -> None:
    desk = rolls_back(Desk(PROMOTED, NATIVE, known=False))
    assert desk.offsets("g") == 0
    assert (record(desk).link, record(desk).topics, record(desk).groups) == ("l", (), ("g",))


def test_commits_of_a_group_that_is_rolled_back_are_counted_until_the_target_has_answered() -> None:
    desk = rolls_back(identified(Desk(PROMOTED), since=3))
    assert desk.add("t") == {"t": 0}
    assert desk.offsets("g") == 0
    go_on = held_back(desk)
    assert says_positions(desk) is None
    assert in_flight(desk) == 1
    rolls_back(desk, LEFT)
    drains = desk.stage.backend.drains
    go_on()
    assert desk.asked(COMMIT) == [("target", COMMIT)]
    assert (in_flight(desk), desk.stage.backend.drains) == (0, drains + 1)


def test_a_frozen_group_is_committed_for_nowhere() -> None:
    desk = rolls_back(coupled(Desk(PROMOTED), since=3), LEFT)
    assert code_of(says_positions(desk).topics[0].partitions[0].error_code) == ILLEGAL_GENERATION
    assert desk.asked(COMMIT) == []
    assert desk.add("t") is None, "a transaction of an id that commits for the group does not begin"


def comes_back(desk: Desk) -> None:
    """End the rollback of the group and of its topic; the source's brokers are known to the router."""
    desk.holders["coordinator"] = S
    desk.stage.swap(BACK)
    rolls_back(desk, GroupRoute("l"))
    desk.hears()


def coupled(desk: Desk, since: int) -> Desk:
    known = TransactionRecord("l", NAME, *T, *S, ("t",), ("g",), since=since)
    desk.stage.transaction_store.records[("l", NAME)] = known
    desk.stage.transaction_store.changed()
    return desk


def test_what_may_have_been_read_before_a_group_came_back_is_committed_nowhere_once() -> None:
    desk = rolls_back(coupled(Desk(PROMOTED), since=FLIP + 1), LEFT)
    comes_back(desk)
    assert desk.add("t") == {"t": 0}
    assert code_of(says_positions(desk).topics[0].partitions[0].error_code) == ILLEGAL_GENERATION
    says_positions(desk)
    assert desk.asked(COMMIT) == [("coordinator", COMMIT)], "the source takes what the next transaction commits"


def test_a_new_identity_has_read_nothing_before_its_group_came_back() -> None:
    desk = rolls_back(coupled(Desk(PROMOTED), since=3), LEFT)
    comes_back(desk)
    assert desk.init() == 0
    says_positions(desk)
    assert desk.asked(COMMIT) == [("coordinator", COMMIT)]


def test_a_rollback_that_is_given_up_has_the_target_take_the_next_transaction_but_one() -> None:
    desk = rolls_back(coupled(Desk(PROMOTED), since=3), LEFT)
    desk.stage.turn()
    assert code_of(says_positions(desk).topics[0].partitions[0].error_code) == ILLEGAL_GENERATION
    says_positions(desk)
    assert desk.asked(COMMIT) == [("target", COMMIT)]


def test_positions_that_the_source_has_not_let_into_the_transaction_are_not_committed_there() -> None:
    desk = identified(Desk(BACK), since=FLIP + 1)
    rolls_back(desk, GroupRoute("l"))
    assert code_of(says_positions(desk).topics[0].partitions[0].error_code) == ILLEGAL_GENERATION
    assert desk.asked(COMMIT) == []


# Records of an id


def test_records_of_two_routers_keep_the_identity_at_the_source_and_when_it_began() -> None:
    known = TransactionRecord("l", NAME, *T, *S, ("t",), since=3)
    at_target = TransactionRecord("l", NAME, *T, -1, -1, ("n",), ("g",))
    wider = TransactionRecord("l", NAME, *T, *S, ("n", "t"), ("g",), since=3)
    assert known.merged(at_target) == wider
    assert at_target.merged(known) == wider
    later = TransactionRecord("l", NAME, T[0], T[1] + 1, S[0], S[1] + 1, since=9)
    assert (known.merged(later).since, later.merged(known).since) == (9, 9)
