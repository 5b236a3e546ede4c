"""The clients that pass the routers by, from a snapshot, and what becomes of their records."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import ClusterSide, DirectWriter, LateWrites, MisplacedMember, OnLate
from kmigrate.workflow.promote.late_findings import LateFound
from kmigrate.workflow.status.snapshot import Snapshot
from kmigrate.workflow.status.stragglers import Passing, PassingKind, stragglers
from tests.fakes.status import group_status, topic_status

NOW = 1_000_000
WRITER = DirectWriter(4711, 0, 2, 30, 99, NOW - 60_000, NOW - 1_000)
GONE = replace(WRITER, producer_id=-1, last_ms=NOW - 600_000)
LATE = LateWrites(100, 107, 5, 105, NOW - 9_000, NOW - 60_000, handled=3, handled_to=103, producers=((12, 0),))
AT_SOURCE = MisplacedMember(ClusterSide.SOURCE, "m-1", "billing", "/10.0.0.9", NOW - 5_000, NOW - 1_000)


def of(*, topics: tuple[object, ...] = (), groups: tuple[object, ...] = ()) -> list[Passing]:
    return stragglers(Snapshot(NOW, 1, (), topics, groups, (), frozenset(), (), ()))  # type: ignore[arg-type]


def test_a_direct_writer_is_present_while_it_writes_and_its_records_are_copied() -> None:
    now, before = of(topics=(topic_status("orders", TopicPhase.MIRRORING, direct_writers=(GONE, WRITER)),))
    assert (now.kind, now.place, now.who) == (
        PassingKind.DIRECT_WRITES,
        "orders-2 on the source",
        "producer id 4711",
    )
    assert (now.present, before.present) == (True, False)
    assert (now.records, now.missing) == (30, False)
    assert now.fate == "copied to the target, as every record of the source"
    assert before.who == "a producer without id"


def test_a_writer_that_pauses_longer_than_usual_counts_as_present_for_as_long() -> None:
    slow = replace(WRITER, last_ms=NOW - 40_000, slowest_ms=50_000)
    (found,) = of(topics=(topic_status("orders", TopicPhase.MIRRORING, direct_writers=(slow,)),))
    assert found.present


def test_late_records_that_the_target_lacks_come_first_with_the_place_of_each_record() -> None:
    late = topic_status("paid", TopicPhase.PROMOTED, late=(LateFound("paid", 1, LATE),), on_late=OnLate.QUARANTINE)
    written = topic_status("orders", TopicPhase.MIRRORING, direct_writers=(WRITER,))
    first, second = of(topics=(written, late))
    assert (first.kind, first.name, first.partition) == (PassingKind.LATE_WRITES, "paid", 1)
    assert first.fate == (
        "3 appended to kmigrate-late-paid on the target, 2 on the source alone, 2 offsets not read yet"
    )
    assert first.missing
    assert first.way_on == (
        "stop that producer, then: kmigrate promote --on-late copy --link blue paid, or --on-late quarantine"
    )
    assert second.name == "orders"


def test_late_records_that_are_all_on_the_target_ask_for_nothing_but_the_producers_end() -> None:
    done = replace(LATE, end=105, handled=5)
    topic = topic_status("paid", TopicPhase.PROMOTED, late=(LateFound("paid", 1, done),), on_late=OnLate.COPY)
    (found,) = of(topics=(topic,))
    assert (found.fate, found.missing, found.way_on) == (
        "5 appended to paid on the target",
        False,
        "stop that producer",
    )


def test_members_and_commits_at_the_wrong_cluster_are_named_with_client_id_and_host() -> None:
    group = group_status(
        "billing",
        GroupPhase.PROMOTED,
        1,
        1,
        0,
        misplaced=(AT_SOURCE,),
        misplaced_before=(replace(AT_SOURCE, client_id="old"),),
        late_commits={"orders": {0: 5, 1: 6}},
    )
    here, gone, commits = of(groups=(group,))
    assert (here.who, here.place, here.fate) == (
        "billing at /10.0.0.9",
        "group billing on the source",
        "its records are read twice",
    )
    assert (gone.who, gone.present) == ("old at /10.0.0.9", False)
    assert commits.fate == "committed offsets of 2 partitions stay on the source"
    at_target = replace(AT_SOURCE, cluster=ClusterSide.TARGET)
    (early,) = of(groups=(group_status("billing", GroupPhase.MIRRORED, 1, 1, 0, misplaced=(at_target,)),))
    assert early.fate == "the group's promote overwrites its committed offsets"
