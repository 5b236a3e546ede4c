"""A judge that can fail: each anomaly is planted once, and a clean run is called clean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.sandbox.checker import ANOMALIES, FAILING, Verdict, check
from kmigrate.sandbox.final_read import FinalRecord
from kmigrate.sandbox.history import Event
from kmigrate.sandbox.payload import content_of

BASE = 1_000_000


def record(text: str, partition: int, offset: int, timestamp: int = 7) -> FinalRecord:
    content = content_of(text, int(text.rpartition(":")[2]))
    return FinalRecord("orders", partition, offset, content.value, content.key, content.headers, timestamp)


@dataclass
class Run:
    """A clean run in which tests plant faults: a producer, two partitions, a group that read everything."""

    events: list[Event] = field(default_factory=list)
    final: list[FinalRecord] = field(default_factory=list)
    clock: int = 0

    def event(self, kind: str, f: str, process: str = "shop-1.1", **fields: Any) -> None:
        self.clock += 1_000_000
        self.events.append(Event(self.clock, self.clock, process, kind, f, **fields))

    def send(self, text: str, partition: int, offset: int, outcome: str = "ok", **fields: Any) -> None:
        self.event("invoke", "send", topic="orders", partition=partition, value=text)
        if outcome == "ok":
            fields["offset"] = offset
        if outcome != "none":
            self.event(outcome, "send", topic="orders", partition=partition, value=text, **fields)

    def read(self, texts: Iterable[str], partition: int, offset: int, by: str = "billing-1.1") -> None:
        self.event(
            "ok", "poll", by, topic="orders", partition=partition, offset=offset, values=list(texts), group="billing"
        )

    def move(self, f: str, partition: int, by: str = "billing-1.1") -> None:
        """Give a partition to a member, or take the partition away, by a rebalance."""
        self.event("ok", f, by, group="billing", positions=[["orders", partition, -1]])

    def commit(self, position: int, kind: str = "ok", by: str = "billing-1.1", **fields: Any) -> None:
        self.event(kind, "commit", by, group="billing", positions=[["orders", 0, position]], **fields)

    def transaction(self, seqs: Iterable[int], outcome: str, *, ask: str = "commit", shown: Iterable[int] = ()) -> None:
        """Write a transaction of the till in partition 0 from BASE + 10 on; `shown` are on the target."""
        told = {"topic": "orders", "txn": 0}
        self.event("ok", "begin", "till.1", **told)
        for seq in seqs:
            self.event("invoke", "send", "till.1", partition=0, value=f"till.1:{seq}", **told)
        if ask:
            self.event("invoke", "txn", "till.1", detail={"ask": ask}, **told)
        if outcome:
            error = {"ok": "", "fail": "aborted", "info": ""}[outcome]
            for seq in seqs:
                where = {"offset": BASE + 10 + seq} if outcome == "ok" else {}
                self.event(outcome, "send", "till.1", partition=0, value=f"till.1:{seq}", error=error, **told, **where)
            self.event(outcome, "txn", "till.1", error=error, **told)
        self.final += [record(f"till.1:{seq}", 0, BASE + 10 + seq) for seq in shown]

    def subscribe(self) -> None:
        detail = {"history": 1, "role": "consumer", "group": "billing", "topics": ["orders"]}
        self.event("info", "open", "billing-1.1", detail=detail)

    def verdict(self) -> Verdict:
        return check(self.events, self.final)


def clean_run(records: int = 20) -> Run:
    run = Run()
    run.subscribe()
    for seq in range(records):
        partition, offset = seq % 2, BASE + seq // 2
        text = f"shop-1.1:{seq}"
        run.send(text, partition, offset)
        run.final.append(record(text, partition, offset))
        run.read([text], partition, offset)
    return run


def drop(final: list[FinalRecord], seq: int) -> FinalRecord:
    return final.pop(next(i for i, r in enumerate(final) if r.value and r.value.startswith(b"shop-1.1:%d|" % seq)))


def only(verdict: Verdict, *names: str) -> None:
    assert set(verdict.named) == set(names)
    assert all(verdict.findings[name].examples for name in names)
    assert not verdict.clean or set(names) <= {"group_rereads"}


def test_a_clean_history_gives_a_clean_verdict() -> None:
    verdict = clean_run().verdict()
    assert verdict.clean
    assert verdict.named == {}
    assert (verdict.acked, verdict.final_records, verdict.indefinite) == (20, 20, 0)
    assert verdict.offsets_identical


def test_an_acknowledged_record_that_is_gone_is_lost() -> None:
    run = clean_run()
    drop(run.final, 6)
    only(run.verdict(), "lost")
    assert "shop-1.1:6 (orders-0 at 1000003)" in run.verdict().findings["lost"].examples[0]


def test_a_record_that_a_group_read_and_that_is_gone_is_lost_though_nobody_was_told() -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, BASE + 10, "none")
    run.read(["shop-1.1:20"], 0, BASE + 10)
    only(run.verdict(), "lost")


def test_a_record_that_stands_twice_is_duplicated() -> None:
    run = clean_run()
    run.final.append(record("shop-1.1:6", 0, BASE + 10))
    run.read(["shop-1.1:6"], 0, BASE + 10)
    only(run.verdict(), "duplicated")
    assert run.verdict().count("duplicated") == 1


def test_two_records_that_changed_places_are_reordered() -> None:
    run = clean_run()
    run.final[4] = record("shop-1.1:6", 0, BASE + 2)
    run.final[6] = record("shop-1.1:4", 0, BASE + 3)
    verdict = run.verdict()
    assert verdict.count("reordered") == 1
    assert verdict.count("misplaced") >= 2
    assert not verdict.offsets_identical


def test_order_is_judged_over_the_runs_of_one_producer() -> None:
    run = Run()
    for text, offset in (("shop-1.1:5", 1), ("shop-1.2:4", 2)):
        run.send(text, 0, offset)
        run.final.append(record(text, 0, offset))
    only(run.verdict(), "reordered")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r._replace(value=r.value[:-1] + b"!"), "value"),
        (lambda r: r._replace(key=b"another"), "key"),
        (lambda r: r._replace(headers=()), "headers"),
    ],
)
def test_a_changed_byte_is_an_alteration(change: Callable[[FinalRecord], FinalRecord], named: str) -> None:
    run = clean_run()
    run.final[6] = change(run.final[6])
    only(run.verdict(), "altered")
    assert named in run.verdict().findings["altered"].examples[0]


def test_an_explicit_timestamp_that_changed_is_an_alteration() -> None:
    run = clean_run()
    run.event("invoke", "send", topic="orders", partition=0, value="shop-1.1:20", ts=1234)
    run.event("ok", "send", topic="orders", partition=0, value="shop-1.1:20", offset=BASE + 10)
    run.final.append(record("shop-1.1:20", 0, BASE + 10, timestamp=1235))
    run.read(["shop-1.1:20"], 0, BASE + 10)
    only(run.verdict(), "altered")


def test_a_change_inside_the_id_is_an_alteration_and_not_a_loss() -> None:
    run = clean_run()
    old = run.final[6]
    assert old.value is not None
    run.final[6] = old._replace(value=b"\xff" + old.value[1:])
    assert set(run.verdict().named) == {"altered"}


def test_content_that_a_reader_found_wrong_is_an_alteration() -> None:
    run = clean_run()
    run.event(
        "fail",
        "poll",
        "billing-1.1",
        topic="orders",
        partition=0,
        offset=BASE,
        value="shop-1.1:0",
        group="billing",
        error="altered",
    )
    only(run.verdict(), "altered")


def test_a_record_in_another_partition_is_misplaced() -> None:
    run = clean_run()
    moved = drop(run.final, 18)
    run.final.append(moved._replace(partition=1, offset=BASE + 10))
    verdict = run.verdict()
    assert verdict.count("misplaced") == 2  # by the acknowledgement, and by the group that read the record elsewhere
    assert verdict.count("lost") == 0
    assert not verdict.offsets_identical


def test_a_record_at_another_offset_than_acknowledged_is_misplaced() -> None:
    run = clean_run(2)
    run.final[0] = run.final[0]._replace(offset=BASE + 1)
    assert run.verdict().count("misplaced") >= 1


def test_a_record_that_nobody_sent_is_extra() -> None:
    run = clean_run()
    run.final.append(record("stranger.1:0", 0, BASE + 10))
    run.final.append(FinalRecord("orders", 0, BASE + 11, None, None, (), 7))
    only(run.verdict(), "extra")
    assert run.verdict().count("extra") == 2


@pytest.mark.parametrize("error", ["aborted", "_PURGE_QUEUE"])
def test_a_record_that_was_aborted_or_refused_is_extra_when_it_shows(error: str) -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, -1, "fail", error=error)
    run.final.append(record("shop-1.1:20", 0, BASE + 10))
    assert run.verdict().count("extra") == 1


def test_an_aborted_record_that_only_a_reader_saw_is_extra() -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, -1, "fail", error="aborted")
    run.read(["shop-1.1:20"], 0, BASE + 10)
    only(run.verdict(), "extra")


def test_an_aborted_record_that_stays_hidden_is_fine() -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, -1, "fail", error="aborted")
    assert run.verdict().clean
    assert run.verdict().aborted == 1


@pytest.mark.parametrize("appears", [False, True])
def test_a_send_without_an_answer_may_appear_once_or_not_at_all(appears: bool) -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, -1, "none")
    if appears:
        run.final.append(record("shop-1.1:20", 0, BASE + 10))
    verdict = run.verdict()
    assert verdict.named == {}
    assert verdict.indefinite == 1


def test_a_send_without_an_answer_that_appears_twice_is_duplicated() -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, -1, "none")
    run.final += [record("shop-1.1:20", 0, BASE + 10), record("shop-1.1:20", 0, BASE + 11)]
    only(run.verdict(), "duplicated")


def test_an_acknowledged_record_behind_the_last_read_is_unseen() -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, BASE + 10)
    run.final.append(record("shop-1.1:20", 0, BASE + 10))
    only(run.verdict(), "unseen")


def test_a_group_that_read_nothing_of_a_topic_has_seen_none_of_it() -> None:
    run = clean_run()
    run.events = [event for event in run.events if event.f != "poll"]
    only(run.verdict(), "unseen")
    assert run.verdict().count("unseen") == 20


def test_a_record_that_a_group_read_past_is_a_gap() -> None:
    run = clean_run()
    run.events = [event for event in run.events if not (event.f == "poll" and event.values == ["shop-1.1:6"])]
    only(run.verdict(), "group_gaps")


def test_a_record_that_a_group_committed_past_is_a_gap() -> None:
    run = clean_run()
    run.send("shop-1.1:20", 0, BASE + 10)
    run.final.append(record("shop-1.1:20", 0, BASE + 10))
    run.event("ok", "commit", "billing-1.1", group="billing", positions=[["orders", 0, BASE + 11]])
    only(run.verdict(), "group_gaps")


def test_what_lies_before_the_first_committed_position_of_a_group_need_not_be_read() -> None:
    run = Run()
    detail = {"history": 1, "role": "preload"}
    run.event("info", "open", "preload", detail=detail)
    for seq in range(10):
        run.event("invoke", "send", "preload", topic="orders", partition=0, value=f"stock.1:{seq}")
    run.event("ok", "send", "preload", topic="orders", partition=0, offset=BASE, value="stock.1:0", records=10)
    run.event("ok", "commit", "preload", group="billing", positions=[["orders", 0, BASE + 8]])
    run.subscribe()
    run.read(["stock.1:8", "stock.1:9"], 0, BASE + 8)
    run.final = [record(f"stock.1:{seq}", 0, BASE + seq) for seq in range(10)]
    verdict = run.verdict()
    assert verdict.clean, verdict
    assert (verdict.acked, verdict.preloaded) == (0, 10)


def test_a_second_read_of_an_offset_after_a_rebalance_is_reported_and_does_not_fail() -> None:
    run = clean_run()
    run.move("revoke", 0)
    run.move("assign", 0)
    run.read(["shop-1.1:6", "shop-1.1:8"], 0, BASE + 3)
    verdict = run.verdict()
    assert set(verdict.named) == {"group_rereads"}
    assert verdict.count("group_rereads") == 2
    assert verdict.clean


# transactions


@pytest.mark.parametrize("outcome", ["info", ""], ids=["nobody was told", "its writer was killed"])
def test_half_of_a_transaction_of_unknown_outcome_is_torn(outcome: str) -> None:
    run = clean_run()
    run.transaction([0, 1, 2, 3], outcome, shown=[0, 1])
    only(run.verdict(), "torn")
    assert run.verdict().count("torn") == 1
    assert "transaction 0 of till.1" in run.verdict().findings["torn"].examples[0]


def test_half_of_a_transaction_is_torn_where_the_history_tells_of_nothing_but_its_records() -> None:
    run = clean_run()
    run.transaction([0, 1, 2, 3], "", shown=[0, 1])
    run.events = [event for event in run.events if event.f not in ("begin", "txn")]
    only(run.verdict(), "torn")


@pytest.mark.parametrize("shown", [[], [0, 1, 2, 3]], ids=["nothing", "everything"])
@pytest.mark.parametrize("outcome", ["info", ""])
def test_a_transaction_of_unknown_outcome_may_be_there_as_a_whole_or_not_at_all(outcome: str, shown: list[int]) -> None:
    run = clean_run()
    run.transaction([0, 1, 2, 3], outcome, shown=shown)
    assert run.verdict().named == {}


@pytest.mark.parametrize("ask", ["abort", ""], ids=["an abort was asked for", "nothing was asked for"])
@pytest.mark.parametrize("outcome", ["info", ""])
def test_a_transaction_whose_commit_nobody_asked_for_must_not_be_visible(outcome: str, ask: str) -> None:
    run = clean_run()
    run.transaction([0, 1], outcome, ask=ask, shown=[0, 1])
    only(run.verdict(), "extra")
    hidden = clean_run()
    hidden.transaction([0, 1], outcome, ask=ask)
    assert hidden.verdict().clean


def test_a_part_of_an_aborted_transaction_is_extra_and_a_part_of_a_committed_one_is_a_loss() -> None:
    aborted, committed = clean_run(), clean_run()
    aborted.transaction([0, 1], "fail", ask="abort", shown=[1])
    committed.transaction([0, 1], "ok", shown=[1])
    committed.read(["till.1:1"], 0, BASE + 11)
    only(aborted.verdict(), "extra")
    only(committed.verdict(), "lost")


# time


def test_a_record_that_was_read_before_it_was_sent_is_premature() -> None:
    run = clean_run()
    run.read(["shop-1.1:20"], 0, BASE + 10)
    run.send("shop-1.1:20", 0, BASE + 10)
    run.final.append(record("shop-1.1:20", 0, BASE + 10))
    only(run.verdict(), "premature")
    assert (
        "shop-1.1:20 was read by billing-1.1 at orders-0 at 1000010, 1.0 ms"
        in (run.verdict().findings["premature"].examples[0])
    )


def test_a_record_that_was_read_before_its_acknowledgement_is_not_premature() -> None:
    run = clean_run()
    run.event("invoke", "send", topic="orders", partition=0, value="shop-1.1:20")
    run.read(["shop-1.1:20"], 0, BASE + 10)
    run.event("ok", "send", topic="orders", partition=0, value="shop-1.1:20", offset=BASE + 10)
    run.final.append(record("shop-1.1:20", 0, BASE + 10))
    assert run.verdict().named == {}


def test_lines_of_one_moment_are_not_held_against_anybody() -> None:
    run = clean_run()
    run.read(["shop-1.1:20"], 0, BASE + 10)
    run.clock -= 1_000_000
    run.send("shop-1.1:20", 0, BASE + 10)
    run.final.append(record("shop-1.1:20", 0, BASE + 10))
    assert run.verdict().named == {}


def test_a_record_that_was_read_before_the_commit_of_its_transaction_was_asked_for_is_premature() -> None:
    run = clean_run()
    run.transaction([0], "ok", shown=[0])
    asked = next(n for n, event in enumerate(run.events) if event.f == "txn")
    sent = run.events[asked - 1]
    reading = Event(sent.m + 1, sent.t, "billing-1.1", "ok", "poll", "orders", 0, BASE + 10)
    run.events.insert(asked, reading._replace(values=["till.1:0"], group="billing"))
    only(run.verdict(), "premature")


# the order of groups


def test_a_member_that_gets_a_record_behind_a_later_one_is_nonmonotonic() -> None:
    run = clean_run()
    late = next(n for n, event in enumerate(run.events) if event.values == ["shop-1.1:6"])
    run.events.append(run.events.pop(late)._replace(m=run.clock + 1))
    only(run.verdict(), "nonmonotonic")
    assert run.verdict().count("nonmonotonic") == 1


def test_a_position_that_goes_back_without_a_rebalance_is_a_rewind() -> None:
    run = clean_run()
    for seq in range(6, 20, 2):
        run.read([f"shop-1.1:{seq}"], 0, BASE + seq // 2)
    verdict = run.verdict()
    only(verdict, "group_rereads", "rewinds")
    assert (verdict.count("rewinds"), verdict.count("group_rereads")) == (1, 7), "one jump, seven records"
    assert not verdict.clean


def test_another_member_that_reads_from_further_back_without_an_assignment_is_a_rewind() -> None:
    run = clean_run()
    run.read(["shop-1.1:6"], 0, BASE + 3, by="billing-2.1")
    only(run.verdict(), "group_rereads", "rewinds")


def test_a_rebalance_of_another_partition_excuses_no_rewind() -> None:
    run = clean_run()
    run.move("assign", 1)
    run.read(["shop-1.1:6"], 0, BASE + 3)
    only(run.verdict(), "group_rereads", "rewinds")


def test_a_member_that_begins_below_what_its_group_committed_is_a_rewind_in_spite_of_the_rebalance() -> None:
    run = clean_run()
    run.commit(BASE + 7)
    run.move("revoke", 0)
    run.move("assign", 0, by="billing-2.1")
    run.read(["shop-1.1:12"], 0, BASE + 6, by="billing-2.1")
    only(run.verdict(), "group_rereads", "rewinds")
    assert "billing had committed 1000007" in run.verdict().findings["rewinds"].examples[0]


def test_a_member_that_begins_at_what_its_group_committed_reads_again_what_was_not_committed() -> None:
    run = clean_run()
    run.commit(BASE + 6)
    run.move("revoke", 0)
    run.move("assign", 0, by="billing-2.1")
    run.read([f"shop-1.1:{seq}" for seq in range(12, 20, 2)], 0, BASE + 6, by="billing-2.1")
    verdict = run.verdict()
    assert (set(verdict.named), verdict.clean) == ({"group_rereads"}, True)


def test_reads_in_flight_while_a_rebalance_runs_are_held_against_nobody() -> None:
    """A member may still hold records after the partition went away, while the new owner has begun."""
    run = clean_run()
    run.commit(BASE + 6)
    run.move("revoke", 0)
    run.move("assign", 0, by="billing-2.1")
    run.read([f"shop-1.1:{seq}" for seq in range(12, 20, 2)], 0, BASE + 6, by="billing-2.1")
    run.read(["shop-1.1:14"], 0, BASE + 7)
    verdict = run.verdict()
    assert (set(verdict.named), verdict.clean) == ({"group_rereads"}, True)


def test_a_commit_whose_answer_comes_behind_a_rebalance_does_not_bind_the_new_owner() -> None:
    run = clean_run()
    run.commit(BASE + 5)
    run.commit(BASE + 8, "invoke")
    run.move("assign", 0, by="billing-2.1")
    run.commit(BASE + 8)
    run.read(["shop-1.1:10"], 0, BASE + 5, by="billing-2.1")
    assert run.verdict().clean


def test_a_lower_commit_of_unclear_outcome_may_be_carried_out_late_and_excuses_the_new_owner() -> None:
    run = clean_run()
    run.commit(BASE + 5, "invoke")
    run.commit(BASE + 8, "invoke")
    run.commit(BASE + 8)
    run.commit(BASE + 5, "fail", error="_TIMED_OUT")
    run.move("assign", 0, by="billing-2.1")
    run.read(["shop-1.1:10"], 0, BASE + 5, by="billing-2.1")
    only(run.verdict(), "client_errors", "group_rereads")


def test_a_commit_that_goes_back_is_named() -> None:
    run = clean_run()
    for position in (BASE + 8, BASE + 5):
        run.commit(position, "invoke")
        run.commit(position)
    only(run.verdict(), "commits_back")
    assert run.verdict().count("commits_back") == 1


def test_a_commit_of_another_member_that_goes_back_is_named_though_nothing_says_when_it_was_asked_for() -> None:
    run = clean_run()
    run.commit(BASE + 8)
    run.commit(BASE + 5, by="billing-2.1")
    only(run.verdict(), "commits_back")


def test_commits_that_were_under_way_together_may_be_answered_in_any_order() -> None:
    run = clean_run()
    run.commit(BASE + 5, "invoke")
    run.commit(BASE + 8, "invoke")
    run.commit(BASE + 8)
    run.commit(BASE + 5)
    assert run.verdict().named == {}


def test_a_commit_that_was_refused_does_not_go_back() -> None:
    run = clean_run()
    run.commit(BASE + 8)
    run.commit(BASE + 5, "invoke")
    run.commit(BASE + 5, "fail", error="ILLEGAL_GENERATION")
    assert run.verdict().named == {}


def test_after_a_reset_a_group_goes_where_it_was_put() -> None:
    back, on = clean_run(), clean_run()
    back.commit(BASE + 8)
    back.event("ok", "reset", "operator", group="billing", positions=[["orders", 0, BASE + 3]])
    back.read([f"shop-1.1:{seq}" for seq in range(6, 20, 2)], 0, BASE + 3)
    back.commit(BASE + 4)
    assert back.verdict().clean
    on.events = [event for event in on.events if not (event.f == "poll" and event.offset == BASE + 9)]
    on.event("ok", "reset", "operator", group="billing", positions=[["orders", 0, BASE + 10], ["orders", 1, BASE + 10]])
    assert on.verdict().named == {}


def test_errors_of_clients_are_counted_and_those_of_a_rebalance_are_not() -> None:
    run = clean_run()
    run.event("fail", "commit", "billing-1.1", group="billing", positions=[], error="ILLEGAL_GENERATION")
    run.event("info", "notice", error="_TRANSPORT")
    assert run.verdict().clean
    run.event("fail", "commit", "billing-1.1", group="billing", positions=[], error="TOPIC_AUTHORIZATION_FAILED")
    run.event("info", "error", error="_FATAL", detail={"text": "out of sequence"})
    run.send("shop-1.1:20", 0, -1, "info", error="_MSG_TIMED_OUT")
    only(run.verdict(), "client_errors")
    assert run.verdict().count("client_errors") == 3
    assert "out of sequence" in " ".join(run.verdict().findings["client_errors"].examples)


def test_examples_are_limited_and_counts_are_not() -> None:
    run = clean_run(100)
    verdict = check(run.events, [], examples=3)
    assert verdict.count("lost") == 100
    assert len(verdict.findings["lost"].examples) == 3


def test_a_narrowed_judgement_leaves_other_topics_alone() -> None:
    run = clean_run()
    assert check(run.events, [], topics=["payments"]).clean


def test_the_json_names_every_anomaly() -> None:
    told = clean_run().verdict().as_json()
    assert {name: told[name] for name in ANOMALIES} == dict.fromkeys(ANOMALIES, 0)
    assert set(FAILING) == set(ANOMALIES) - {"group_rereads"}


@settings(max_examples=60)
@given(seq=st.integers(0, 39), fault=st.sampled_from(["lost", "duplicated", "altered", "group_gaps"]))
def test_a_fault_in_any_place_is_named(seq: int, fault: str) -> None:
    run = clean_run(42)
    if fault == "lost":
        drop(run.final, seq)
    elif fault == "duplicated":
        run.final.append(record(f"shop-1.1:{seq}", seq % 2, BASE + 21))
    elif fault == "altered":
        victim = run.final[seq]
        run.final[seq] = victim._replace(value=(victim.value or b"") + b"x")
    else:
        run.events = [e for e in run.events if not (e.f == "poll" and e.values == [f"shop-1.1:{seq}"])]
    verdict = run.verdict()
    assert fault in verdict.named
    assert not verdict.clean


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ok", "none", "fail"])), max_size=60))
def test_any_honest_run_is_clean(sends: list[tuple[int, str]]) -> None:
    run = Run()
    run.subscribe()
    ends = [BASE, 0, 17]
    for seq, (partition, outcome) in enumerate(sends):
        text = f"shop-1.1:{seq}"
        run.send(text, partition, ends[partition], outcome, **({"error": "aborted"} if outcome == "fail" else {}))
        if outcome == "ok":
            run.final.append(record(text, partition, ends[partition]))
            run.read([text], partition, ends[partition])
        ends[partition] += 1 + seq % 2  # markers and aborted records leave holes
    assert run.verdict().clean
