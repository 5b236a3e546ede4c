"""A producer's pause is exactly the longest time from send to acknowledgement that overlaps the window."""

from __future__ import annotations

from typing import Any

from kmigrate.sandbox.history import Event
from kmigrate.sandbox.pauses import Timeline, Window, percentiles

MS = 1_000_000
EPOCH = 1_700_000_000_000 * MS


def event(at_ms: float, kind: str, f: str, process: str = "shop-1.1", **fields: Any) -> Event:
    return Event(int(at_ms * MS), EPOCH + int(at_ms * MS), process, kind, f, **fields)


def window(start_ms: float, end_ms: float) -> Window:
    return Window(EPOCH + int(start_ms * MS), EPOCH + int(end_ms * MS))


def send(asked: float, told: float, seq: int, partition: int = 0, producer: str = "shop-1") -> list[Event]:
    place: dict[str, Any] = {"topic": "orders", "partition": partition, "value": f"{producer}.1:{seq}"}
    return [event(asked, "invoke", "send", **place), event(told, "ok", "send", offset=seq, **place)]


def poll(at_ms: float, partition: int = 0, group: str = "billing") -> Event:
    return event(at_ms, "ok", "poll", topic="orders", partition=partition, group=group, values=["x.1:0"])


def test_the_longest_wait_that_overlaps_the_window_counts() -> None:
    events = [*send(0, 90, 0), *send(100, 104, 1), *send(110, 140, 2), *send(120, 125, 3), *send(300, 400, 4)]
    timeline = Timeline.of(events)
    assert timeline.producer_pauses(window(115, 130), ("orders", 0)) == {"shop-1": 30 * MS}
    assert timeline.producer_pauses(window(115, 130), ("orders", 1)) == {}
    assert timeline.producer_pauses(window(200, 250), ("orders", 0)) == {}


def test_each_partition_has_a_window_of_its_own() -> None:
    events = [*send(0, 5, 0), *send(0, 50, 1, partition=1), *send(3, 10, 2, producer="shop-2")]
    pause = Timeline.of(events).producer_pause_ms({("orders", 0): window(4, 6), ("orders", 1): window(60, 70)})
    assert pause == (5.0, 7.0, 7.0, 2)


def test_the_baseline_ends_where_the_first_window_begins() -> None:
    timeline = Timeline.of([*send(0, 4, 0), *send(10, 16, 1), *send(20, 900, 2)])
    assert timeline.baseline_ack_ms(EPOCH + 20 * MS).as_json() == {"p50": 4.0, "p99": 6.0, "max": 6.0, "of": 2}
    assert timeline.baseline_ack_ms().max == 880.0
    assert timeline.baseline_ack_ms(after=EPOCH + 1000 * MS).of == 0


def test_the_gap_of_a_group_is_the_longest_time_between_two_reads_around_the_moment() -> None:
    events = [poll(0), poll(500), poll(520), poll(580), poll(600), poll(550, partition=1), poll(551, group="other")]
    timeline = Timeline.of(events)
    assert timeline.consumer_gaps("billing", window(530, 590)) == {("orders", 0): 60 * MS}
    assert timeline.consumer_gap_ms({"billing": window(530, 590)}).max == 60.0


def transaction(began: float, ended: float, number: int, outcome: str = "ok") -> list[Event]:
    """Return a transaction of three records, acknowledged at the transaction's end."""
    place: dict[str, Any] = {"process": "till.1", "topic": "payments", "txn": number}
    ids = [f"till.1:{3 * number + n}" for n in range(3)]
    asked = [event(began, "invoke", "send", partition=0, value=each, **place) for each in ids]
    told = [event(ended, outcome, "send", partition=0, value=each, **place) for each in ids]
    return [*asked, *told, event(ended, outcome, "txn", **place)]


TILL = event(0, "info", "open", "till.1", detail={"history": 1, "role": "transactional"})


def test_a_transactions_pause_is_its_own_length_and_not_the_rest_between_two() -> None:
    events = [TILL, *transaction(0, 8, 0), *transaction(400, 470, 1), *transaction(800, 809, 2)]
    timeline = Timeline.of(events)
    windows = {("payments", 0): window(410, 420), ("payments", 1): window(410, 425), ("orders", 0): window(0, 900)}
    assert timeline.transaction_pause_ms(windows) == (70.0, 70.0, 70.0, 1)
    assert timeline.baseline_transaction_ms(EPOCH + 400 * MS).as_json() == {"p50": 8.0, "p99": 8.0, "max": 8.0, "of": 1}


def test_a_transaction_that_is_aborted_in_the_window_counts_and_one_without_an_end_does_not() -> None:
    cut_off = transaction(100, 900, 1)[:3]
    timeline = Timeline.of([TILL, *transaction(90, 130, 0, "fail"), *cut_off])
    assert timeline.transaction_pause_ms({("payments", 0): window(100, 120)}).max == 40.0
    assert timeline.transaction_pause_ms({("payments", 0): window(600, 620)}).of == 0


def test_transactional_sends_are_not_in_the_pause() -> None:
    opened = event(0, "info", "open", "till.1", detail={"history": 1, "role": "transactional"})
    asked = event(1, "invoke", "send", "till.1", topic="payments", partition=0, value="till.1:0")
    told = event(900, "ok", "send", "till.1", topic="payments", partition=0, value="till.1:0", offset=4)
    assert Timeline.of([opened, asked, told]).baseline_ack_ms().of == 0


def test_observing_hands_every_event_on() -> None:
    events = [*send(0, 4, 0), poll(5)]
    assert list(Timeline().observing(events)) == events


def test_percentiles_are_waits_that_somebody_had() -> None:
    assert percentiles([]) == (0.0, 0.0, 0.0, 0)
    assert percentiles([3 * MS]) == (3.0, 3.0, 3.0, 1)
    assert percentiles(n * MS for n in range(1, 201)) == (100.0, 198.0, 200.0, 200)
