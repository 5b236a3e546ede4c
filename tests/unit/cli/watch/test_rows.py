"""The order of rows, and the filter."""

from __future__ import annotations

from kmigrate.cli.watch.rows import GroupRow, Order, TopicRow, chosen, group_rows, read_rows, topic_rows
from kmigrate.workflow.status.attention import Need
from kmigrate.workflow.status.progress import ProgressTracker
from tests.fakes.snapshots import billing, estate

TRACKER = ProgressTracker()
TRACKER.add(estate(0), 0.0)
SHOT = estate(10)
PROGRESS = TRACKER.add(SHOT, 10.0)
ROWS: list[TopicRow | GroupRow] = [*topic_rows(SHOT, PROGRESS), *group_rows(SHOT, PROGRESS)]


def names(order: Order = Order.ATTENTION, wanted: str = "") -> list[str]:
    return [row.name for row in chosen(ROWS, order, wanted)]


def test_what_needs_a_person_comes_first_and_what_is_done_last() -> None:
    needs = [row.attention.need for row in chosen(ROWS, Order.ATTENTION, "")]
    assert needs == sorted(needs)
    assert (needs[0], needs[-1]) == (Need.PERSON, Need.DONE)
    assert names()[:3] == ["audit", "orders.returns", "invoices"], "of what waits, the largest lag first"


def test_rows_are_sorted_by_name_lag_and_rate() -> None:
    assert names(Order.NAME) == sorted(names(Order.NAME))
    assert names(Order.LAG)[:2] == ["clicks", "orders.returns"]
    assert names(Order.RATE)[:2] == ["clicks", "payments"], "copied by the mirror; written on the target"


def test_every_order_comes_once_and_then_the_first_again() -> None:
    order, seen = Order.ATTENTION, []
    for _ in Order:
        seen.append(order)
        order = order.next
    assert (set(seen), order) == (set(Order), Order.ATTENTION)


def test_a_filter_wants_all_its_words_in_name_link_state_or_mode() -> None:
    assert names(wanted="ORDERS") == ["orders.returns", "orders"]
    assert names(wanted="orders paused") == ["orders.returns"]
    assert names(wanted="blue promoted") == ["mail", "payments"]
    assert names(wanted="follow") == ["billing"]
    assert names(wanted="nothing-like-that") == []


def test_partitions_of_a_group_name_their_reader_the_largest_lag_first() -> None:
    rows = read_rows(billing())
    assert [row.partition.lag for row in rows] == sorted((row.partition.lag for row in rows), reverse=True)
    assert {row.reader for row in rows} == {"billing-0", "billing-1", "billing-2"}
