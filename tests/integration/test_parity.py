"""Parity on two real clusters: equal copies are equal, and each planted fault is named exactly.

librdkafka writes every topic twice with explicit timestamps, the target's copy with a fault. A Spark job then compares
all topics, as `kmigrate verify` does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyspark.sql import SparkSession

from kmigrate.errors import Failed
from kmigrate.kafka_jars.jars import ensure_spark_kafka_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.report import ParityReport
from kmigrate.parity.verdict import Place
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.parity import compare_clusters, write_findings
from tests.integration.mirror_world import read_all

# The first test takes the time for two clusters, a Spark session and the whole comparison.
RUN = uuid4().hex[:8]
START_OF_TIME = 1_700_000_000_000

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Record:
    """A record as a producer gets it; the offset follows from the order."""

    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)
    timestamp: int = START_OF_TIME


Log = dict[int, list[Record]]  # By partition


def plain(count: int, partition: int = 0) -> list[Record]:
    return [
        Record(b"k%d" % (n % 7), b"%d:%d" % (partition, n), [("n", b"%d" % n)], START_OF_TIME + n) for n in range(count)
    ]


def odd(count: int, partition: int) -> list[Record]:
    """Return records with every kind of null, empty and repeated part."""
    keys = (None, b"", b"k")
    values = (None, b"", b"v" * 300)
    headers: tuple[Headers, ...] = ([], [("a", None)], [("a", b"")], [("a", b"1"), ("a", b"2"), ("", b"")])
    return [
        Record(keys[n % 3], values[n // 3 % 3], headers[n % 4], START_OF_TIME + n // 50 + partition)
        for n in range(count)
    ]


def edited(records: Sequence[Record], place: int, **changes: object) -> list[Record]:
    return [*records[:place], replace(records[place], **changes), *records[place + 1 :]]  # type: ignore[arg-type]


BASE = plain(300)
LONG = plain(5_000)
WITH_NULLS = [replace(record, key=None, value=None, headers=[("h", None)]) for record in plain(20)]
PAIRED = [replace(record, headers=[("a", b"b"), ("x", None)]) for record in plain(20)]
STRANGER = Record(b"s", b"stranger", [], START_OF_TIME + 999_999)

# The entries are name: (source, target).
TOPICS: dict[str, tuple[Log, Log]] = {
    "equal": ({p: odd(1_500, p) for p in range(3)}, {p: odd(1_500, p) for p in range(3)}),
    "empty": ({0: []}, {0: []}),
    "lost": ({0: LONG}, {0: [*LONG[:1_234], *LONG[1_235:]]}),
    "duplicated": ({0: LONG}, {0: [*LONG[:4_500], LONG[3], *LONG[4_500:]]}),
    "reordered": ({0: BASE}, {0: [*BASE[:50], BASE[51], BASE[50], *BASE[52:]]}),
    "extra": ({0: BASE}, {0: [*BASE[:200], STRANGER, *BASE[200:]]}),
    "misplaced": (
        {0: BASE, 1: plain(300, 1)},
        {0: [*BASE[:100], *BASE[101:]], 1: [*plain(300, 1)[:150], BASE[100], *plain(300, 1)[150:]]},
    ),
    "altered-key": ({0: BASE}, {0: edited(BASE, 10, key=b"other")}),
    "altered-value": ({0: BASE}, {0: edited(BASE, 10, value=b"other")}),
    "altered-headers": ({0: BASE}, {0: edited(BASE, 10, headers=[("n", b"other")])}),
    "altered-timestamp": ({0: BASE}, {0: edited(BASE, 10, timestamp=START_OF_TIME + 11)}),
    "altered-null-key": ({0: WITH_NULLS}, {0: edited(WITH_NULLS, 10, key=b"")}),
    "altered-null-value": ({0: WITH_NULLS}, {0: edited(WITH_NULLS, 10, value=b"")}),
    "altered-null-header": ({0: WITH_NULLS}, {0: edited(WITH_NULLS, 10, headers=[("h", b"")])}),
    "altered-header-order": ({0: PAIRED}, {0: edited(PAIRED, 10, headers=[("x", None), ("a", b"b")])}),
    # The null moved: the same names and bytes in the same order, joined differently.
    "altered-header-null": ({0: PAIRED}, {0: edited(PAIRED, 10, headers=[("a", None), ("b", b"x")])}),
    "log-append-time": ({0: BASE}, {0: BASE}),
    "stamped-source": ({0: BASE}, {0: []}),  # The target's copy has the times that the source's broker gave.
    "stamped-target": ({0: []}, {0: BASE}),  # The source's copy has the times that the target's broker gave.
    "transactions": ({0: []}, {0: []}),  # Transactions write this topic.
    "compacted-equal": ({0: []}, {0: []}),  # The same, with holes where a cleaner would make them.
    "compacted-faults": ({0: []}, {0: []}),
    "compacted-beyond": ({0: []}, {0: []}),  # The topic is mapped, and a key has a newer record behind the range.
    # The topic is plain by now, and was compacted at the source until shortly before its end.
    "cleaned-equal": ({0: []}, {0: []}),
    # The same, compacted until before the record that supersedes the missing record.
    "cleaned-before": ({0: []}, {0: []}),
    "cleaned-behind": ({0: []}, {0: []}),  # The lost records were written when no cleaner ran any more.
}
CLEANED_TO = {"cleaned-equal": 9, "cleaned-before": 7, "cleaned-behind": 1}

# The same topics, copied without the source's holes, behind other records.
MAPPED: dict[str, tuple[Log, Log]] = {
    "mapped-equal": ({0: BASE, 1: odd(300, 1)}, {0: BASE, 1: odd(300, 1)}),
    "mapped-lost": ({0: BASE}, {0: [*BASE[:123], *BASE[124:]]}),
    "mapped-altered": ({0: BASE}, {0: edited(BASE, 210, value=b"other")}),
    "mapped-misplaced": (
        {0: BASE, 1: plain(300, 1)},
        {0: [*BASE[:100], *BASE[101:]], 1: [*plain(300, 1)[:150], BASE[100], *plain(300, 1)[150:]]},
    ),
}
OTHERS = [STRANGER] * 25

SOURCE_LOGS = {name: pair[0] for name, pair in (TOPICS | MAPPED).items()}
TARGET_LOGS = {name: pair[1] for name, pair in (TOPICS | MAPPED).items()}


def topic(name: str) -> str:
    return f"parity-{name}-{RUN}"


def write(producer: Producer, name: str, partition: int, record: Record) -> None:
    producer.produce(
        topic(name), record.value, record.key, partition, timestamp=record.timestamp, headers=list(record.headers)
    )


def produce(cluster: KafkaCluster, logs: dict[str, Log]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for name, log in logs.items():
        for partition, records in log.items():
            for record in records:
                write(producer, name, partition, record)
            producer.poll(0)
    assert producer.flush(20) == 0


def produce_transactions(cluster: KafkaCluster, name: str, aborted_value: bytes) -> None:
    """Write committed and aborted transactions in turn; the log ends with the marker of an aborted transaction."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic(name)}"})
    producer.init_transactions(20)
    for number in range(20):
        producer.begin_transaction()
        aborted = number % 5 == 4
        for n in range(10):
            value = aborted_value if aborted else b"%d:%d" % (number, n)
            producer.produce(topic(name), value, b"k", 0, timestamp=START_OF_TIME + number)
        if aborted:
            assert producer.flush(20) == 0
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


def produce_compacted(cluster: KafkaCluster, name: str, gone: set[int], values: dict[int, bytes]) -> None:
    """Write six records of four keys at even offsets, each in a transaction.

    A record that a cleaner took is a record of an aborted transaction.
    """
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic(name)})
    producer.init_transactions(20)
    for number, key in enumerate((b"a", b"b", b"c", b"a", b"b", b"d")):
        producer.begin_transaction()
        value = values.get(number, b"%d" % number)
        producer.produce(topic(name), value, key, 0, timestamp=START_OF_TIME + number)
        if number in gone:
            assert producer.flush(20) == 0
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


def stamped_as(cluster: KafkaCluster, name: str) -> list[Record]:
    """Return the base records with the times that this cluster's broker gave."""
    times = [seen[4][1] for seen in read_all(cluster.bootstrap, topic(name))[0]]
    return [replace(record, timestamp=time) for record, time in zip(BASE, times, strict=True)]


def produce_with_holes(cluster: KafkaCluster, logs: dict[str, Log], each: int = 10) -> None:
    """Write a transaction for every few records of each log; its marker is a hole."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic("holes")})
    producer.init_transactions(20)
    for at in range(0, max(len(records) for log in logs.values() for records in log.values()), each):
        producer.begin_transaction()
        for name, log in logs.items():
            for partition, records in log.items():
                for record in records[at : at + each]:
                    write(producer, name, partition, record)
        producer.commit_transaction(20)


def with_maps(ranges: list[TopicRange]) -> list[TopicRange]:
    """Return the ranges of mapped topics with a map made of the transactions: ten records, then a hole."""

    def made(end: int) -> OffsetMap:
        runs = OffsetMap(Run(11 * n, len(OTHERS) + 10 * n, 10) for n in range(end // 11))
        runs.cover(end)
        return runs

    mapped = {topic(name): made for name in MAPPED}
    mapped[topic("compacted-beyond")] = lambda end: OffsetMap.identity(0, end)
    return [replace(each, map=mapped[each.topic](each.end)) if each.topic in mapped else each for each in ranges]


def create(cluster: KafkaCluster, logs: dict[str, Log], config: dict[str, dict[str, str]]) -> None:
    """Create the topics without retention, because the records' timestamps are years old."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = [
        NewTopic(topic(name), len(log), 1, config={"retention.ms": "-1", **config.get(name, {})})
        for name, log in logs.items()
    ]
    for created in admin.create_topics(wanted).values():
        created.result(20)


def ranges_of(cluster: KafkaCluster, logs: dict[str, Log]) -> list[TopicRange]:
    """Return ranges from the start to the source's last stable offset, which the target has reached."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    places = [TopicPartition(topic(name), partition) for name, log in logs.items() for partition in log]
    ends = admin.list_offsets(
        {place: OffsetSpec.latest() for place in places},  # type: ignore[no-untyped-call]
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    return [TopicRange(place.topic, place.partition, 0, end.result(20).offset) for place, end in ends.items()]


@pytest.fixture(scope="module")
def report(source: KafkaCluster, target: KafkaCluster, spark: SparkSession) -> ParityReport:
    stamping, compacted = {"message.timestamp.type": "LogAppendTime"}, {"cleanup.policy": "compact"}
    both = dict.fromkeys(("compacted-equal", "compacted-faults", "compacted-beyond"), compacted)
    create(source, SOURCE_LOGS, {"stamped-source": stamping, **both})
    create(target, TARGET_LOGS, {"log-append-time": stamping, "stamped-target": stamping, **both})
    produce(source, {name: log for name, log in SOURCE_LOGS.items() if name in TOPICS})
    produce_with_holes(source, {name: log for name, log in SOURCE_LOGS.items() if name in MAPPED})
    behind = {name: {p: OTHERS + records for p, records in TARGET_LOGS[name].items()} for name in MAPPED}
    produce(target, {**TARGET_LOGS, **behind, "stamped-source": {0: stamped_as(source, "stamped-source")}})
    produce(source, {"stamped-target": {0: stamped_as(target, "stamped-target")}})
    produce_transactions(source, "transactions", b"aborted at the source")
    produce_transactions(target, "transactions", b"aborted at the target")
    cleaned: dict[str, tuple[set[int], dict[int, bytes]]] = {
        "compacted-equal": ({0}, {}),
        "compacted-faults": ({0, 5}, {4: b"other"}),
        "compacted-beyond": ({0, 3}, {}),
        "cleaned-equal": (set(), {}),
        "cleaned-before": (set(), {}),
        "cleaned-behind": ({1, 5}, {0: b"other"}),
    }
    for name, (gone, values) in cleaned.items():
        produce_compacted(source, name, set() if name == "cleaned-behind" else {1}, {})
        produce_compacted(target, name, gone, values)
    ranges = with_maps(ranges_of(source, SOURCE_LOGS))
    worked = {topic(name): end for name, end in CLEANED_TO.items()}
    ranges = [replace(each, cleaned_to=worked.get(each.topic, 0)) for each in ranges]
    produce(target, {"compacted-beyond": {0: [Record(b"a", b"newer than what was cleaned away")]}})
    seen: list[str] = []
    told = compare_clusters(
        spark,
        ranges,
        KafkaOptions(source.bootstrap),
        KafkaOptions(target.bootstrap),
        on_progress=lambda stage, done, total: seen.append(stage),
    )
    assert list(dict.fromkeys(seen)) == ["digest", "drill", "locate"]
    return told


def found(report: ParityReport, name: str) -> list[tuple[str, Place | None, Place | None, tuple[str, ...]]]:
    return [
        (each.kind.value, each.source, each.target, each.parts) for each in report.findings if each.topic == topic(name)
    ]


def row(report: ParityReport, name: str) -> tuple[int, int, bool, int]:
    (each,) = [each for each in report.topics if each.topic == topic(name)]
    return each.source_records, each.target_records, each.digest_equal, each.mismatches


def test_the_same_records_on_both_sides_are_equal_with_every_kind_of_null(report: ParityReport) -> None:
    assert row(report, "equal") == (4_500, 4_500, True, 0)


def test_an_empty_topic_is_equal_and_counted(report: ParityReport) -> None:
    assert row(report, "empty") == (0, 0, True, 0)


def test_aborted_records_are_invisible_and_trailing_markers_are_passed(report: ParityReport) -> None:
    assert row(report, "transactions") == (160, 160, True, 0)


def test_a_lost_record_is_the_only_name_for_the_shift_that_follows_it(report: ParityReport) -> None:
    assert found(report, "lost") == [("lost", Place(0, 1_234), None, ())]
    assert row(report, "lost") == (5_000, 4_999, False, 1)


def test_a_late_duplicate_is_named_with_its_original_far_before_it(report: ParityReport) -> None:
    assert found(report, "duplicated") == [("duplicated", Place(0, 3), Place(0, 4_500), ())]


def test_two_swapped_records_are_one_reordered(report: ParityReport) -> None:
    ((kind, at_source, at_target, _),) = found(report, "reordered")
    assert kind == "reordered"
    assert {at_source, at_target} == {Place(0, 50), Place(0, 51)}


def test_a_record_that_the_source_never_held_is_extra(report: ParityReport) -> None:
    assert found(report, "extra") == [("extra", None, Place(0, 200), ())]


def test_a_record_in_the_wrong_partition_is_misplaced(report: ParityReport) -> None:
    assert found(report, "misplaced") == [("misplaced", Place(0, 100), Place(1, 150), ())]
    assert row(report, "misplaced")[3] == 1


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("key", "key"),
        ("value", "value"),
        ("headers", "headers"),
        ("timestamp", "timestamp"),
        ("null-key", "key"),
        ("null-value", "value"),
        ("null-header", "headers"),
        ("header-order", "headers"),
        ("header-null", "headers"),
    ],
)
def test_an_altered_record_is_named_with_the_part(report: ParityReport, change: str, part: str) -> None:
    assert found(report, f"altered-{change}") == [("altered", Place(0, 10), Place(0, 10), (part,))]


def test_a_target_that_stamps_its_own_time_alters_every_record(report: ParityReport) -> None:
    told = found(report, "log-append-time")
    assert {(kind, parts) for kind, _, _, parts in told} == {("altered", ("timestamp", "timestamp type"))}
    assert row(report, "log-append-time") == (300, 300, False, 300)


def test_the_same_time_under_another_type_is_an_altered_type_and_nothing_else(report: ParityReport) -> None:
    told = found(report, "stamped-target")
    assert {(kind, parts) for kind, _, _, parts in told} == {("altered", ("timestamp type",))}
    assert row(report, "stamped-target") == (300, 300, False, 300)


def test_broker_times_that_were_kept_are_equal_whosever_they_are_called(report: ParityReport) -> None:
    assert row(report, "stamped-source") == (300, 300, True, 0)


def test_a_mapped_topic_is_equal_through_its_map(report: ParityReport) -> None:
    assert row(report, "mapped-equal") == (600, 600, True, 0)


@pytest.mark.parametrize(
    ("name", "at_source", "at_target", "parts"),
    [
        ("lost", Place(0, 135), None, ()),  # Record 123, behind twelve markers
        ("altered", Place(0, 231), Place(0, 235), ("value",)),  # Record 210, behind twenty-one markers
        ("misplaced", Place(0, 110), Place(1, 175), ()),
    ],
)
def test_a_fault_in_a_mapped_topic_is_the_only_one_and_named_with_each_side_s_own_offset(
    report: ParityReport, name: str, at_source: Place, at_target: Place | None, parts: tuple[str, ...]
) -> None:
    assert found(report, f"mapped-{name}") == [(name, at_source, at_target, parts)]


def test_what_one_cleaner_took_and_the_other_has_not_yet_is_no_difference(report: ParityReport) -> None:
    assert row(report, "compacted-equal") == (5, 5, True, 0)


def test_the_newest_record_of_each_key_is_compared_in_a_compacted_topic(report: ParityReport) -> None:
    assert found(report, "compacted-faults") == [
        ("altered", Place(0, 8), Place(0, 8), ("value",)),
        ("lost", Place(0, 10), None, ()),
    ]


def test_what_a_later_record_has_superseded_may_be_gone_also_where_offsets_are_mapped(report: ParityReport) -> None:
    assert row(report, "compacted-beyond") == (5, 4, True, 0)


def test_what_a_cleaner_took_before_its_topic_became_plain_is_no_difference(report: ParityReport) -> None:
    assert row(report, "cleaned-equal") == (5, 6, True, 0)


def test_what_no_cleaner_can_have_taken_is_missed_also_where_one_has_worked(report: ParityReport) -> None:
    assert found(report, "cleaned-before") == [("extra", None, Place(0, 2), ())]
    assert found(report, "cleaned-behind") == [
        ("altered", Place(0, 0), Place(0, 0), ("value",)),
        ("lost", Place(0, 2), None, ()),
        ("lost", Place(0, 10), None, ()),
    ]


def test_counts_are_exact_and_add_up(report: ParityReport) -> None:
    told = report.as_json()
    assert told["anomalies"] == {
        "lost": 5,
        "duplicated": 1,
        "reordered": 1,
        "altered": 612,
        "misplaced": 2,
        "extra": 2,
        "shifted": 0,
    }
    assert (told["equal"], told["mismatches"], told["topics"]) == (False, 623, len(SOURCE_LOGS))
    json.dumps(told)


def test_parquet_holds_every_finding_with_its_places(report: ParityReport, spark: SparkSession, tmp_path: Path) -> None:
    write_findings(spark, report.findings, tmp_path / "findings")
    table = spark.read.parquet(str(tmp_path / "findings"))
    assert table.count() == 623
    (moved,) = table.where(f"topic = '{topic('mapped-misplaced')}'").collect()
    assert tuple(moved) == ("misplaced", topic("mapped-misplaced"), 0, 110, 1, 175, [], 1)
    (lost,) = table.where(f"topic = '{topic('lost')}'").collect()
    assert (lost.source_offset, lost.target_partition, lost.target_offset) == (1_234, None, None)


def test_a_constant_distance_is_followed(
    source: KafkaCluster,
    target: KafkaCluster,
    spark: SparkSession,
) -> None:
    for cluster, log in ((source, BASE), (target, [STRANGER, STRANGER, *BASE])):
        create(cluster, {"shifted": {0: log}}, {})
        produce(cluster, {"shifted": {0: log}})
    sides = KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap)
    assert compare_clusters(spark, [TopicRange(topic("shifted"), 0, 0, 300, OffsetMap([Run(0, 2, 300)]))], *sides).equal


def test_a_range_below_the_log_start_fails_instead_of_shrinking(
    source: KafkaCluster,
    target: KafkaCluster,
    target_admin: AdminClient,
    spark: SparkSession,
) -> None:
    for cluster in (source, target):
        create(cluster, {"cut": {0: BASE}}, {})
        produce(cluster, {"cut": {0: BASE}})
    for deleted in target_admin.delete_records([TopicPartition(topic("cut"), 0, 40)]).values():
        deleted.result(20)
    sides = KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap)
    with pytest.raises(Failed, match="parity-range-gone"):
        compare_clusters(spark, [TopicRange(topic("cut"), 0, 0, 300)], *sides)
    assert compare_clusters(spark, [TopicRange(topic("cut"), 0, 40, 300)], *sides).equal


def test_a_topic_that_one_cluster_lacks_is_a_clear_failure(
    source: KafkaCluster, target: KafkaCluster, spark: SparkSession
) -> None:
    create(source, {"alone": {0: BASE}}, {})
    sides = KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap)
    with pytest.raises(Failed, match="parity-read-failed"):
        compare_clusters(spark, [TopicRange(topic("alone"), 0, 0, 5)], *sides)


def test_a_time_that_spark_has_no_number_for_is_a_clear_failure(
    source: KafkaCluster, target: KafkaCluster, spark: SparkSession
) -> None:
    """The time has nanoseconds where Kafka counts milliseconds; former brokers accepted such times."""
    any_time = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
    log = {"nanoseconds": {0: [*BASE[:5], Record(b"k", b"v", timestamp=START_OF_TIME * 1_000_000)]}}
    for cluster in (source, target):
        create(cluster, log, {"nanoseconds": any_time})
        produce(cluster, log)
    sides = KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap)
    with pytest.raises(Failed, match="parity-time-too-large"):
        compare_clusters(spark, [TopicRange(topic("nanoseconds"), 0, 0, 6)], *sides)
    assert compare_clusters(spark, [TopicRange(topic("nanoseconds"), 0, 0, 5)], *sides).equal


PROGRAM = """
import json, sys
from pathlib import Path
from kmigrate.parity.plan import TopicRange
from kmigrate.spark.parity import compare_clusters
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.session import spark_session
from tests.integration.mirror_world import read_all
given = json.loads(sys.argv[1])
sides = [KafkaOptions(bootstrap) for bootstrap in given["sides"]]
ranges = [TopicRange(given["topic"], 0, 0, 300)]
jars = [Path(jar) for jar in given["jars"]]
with spark_session(jars=jars, java_home=Path(given["java_home"])) as spark:
    print(json.dumps(compare_clusters(spark, ranges, *sides).as_json()))
"""


def test_a_check_of_its_own_session_prints_nothing_but_its_result(source: KafkaCluster, target: KafkaCluster) -> None:
    for cluster in (source, target):
        create(cluster, {"quiet": {0: BASE}}, {})
        produce(cluster, {"quiet": {0: BASE}})
    given = {
        "sides": [source.bootstrap, target.bootstrap],
        "topic": topic("quiet"),
        "jars": [str(jar) for jar in ensure_spark_kafka_jars()],
        "java_home": str(find_java().home),
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["equal"] is True
    assert ran.returncode == 0
