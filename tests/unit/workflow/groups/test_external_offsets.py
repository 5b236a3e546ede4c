"""Positions that are kept outside Kafka are read and translated; all other content stays as it was."""

from __future__ import annotations

import pytest

from kmigrate.errors import UsageError
from kmigrate.workflow.groups.external_offsets import (
    is_beginning,
    needs_beginnings,
    newest_batches,
    positions_in,
    spark_positions,
    translated,
    translated_spark,
)

SPARK = (
    'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{"spark.sql.shuffle.partitions":"4"}}\n'
    '{"orders":{"1":17,"0":5}}\n-\n{"logOffset":3}\n{"a":{"0":1},"b":{"2":9}}'
)


def ten_more(topic: str, partition: int, offset: int) -> int:
    return offset + 10 + 100 * partition


def test_json_positions_are_translated_topic_by_topic() -> None:
    found = positions_in('{"t": {"0": 3, "1": 4}}', "f")
    assert found == {"t": {0: 3, 1: 4}}
    assert positions_in(translated(found, ten_more), "g") == {"t": {0: 13, 1: 114}}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"t": 3}', '{"t": {"x": 3}}', '{"t": {"1_0": 3}}', '{"t": {"²": 3}}', '{"t": {"0": -2}}',
        '{"t": {"0": true}}', '{"t": {"0": 1, "0": 2}}', '{"t": {"0": 1, "00": 2}}', '{"t": {"0": 1}, "t": {"1": 1}}',
        "[" * 100_000, '{"t": {"0": 1}',
    ],
)  # fmt: skip
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not hold positions"):
        positions_in(text, "f")


def test_of_a_spark_file_only_the_lines_of_kafka_sources_change() -> None:
    assert spark_positions(SPARK, "f") == [{"orders": {1: 17, 0: 5}}, {"a": {0: 1}, "b": {2: 9}}]
    before, after = SPARK.split("\n"), translated_spark(SPARK, "f", ten_more).split("\n")
    assert [new for old, new in zip(before, after, strict=True) if old != new] == [
        '{"orders":{"0":15,"1":127}}',
        '{"a":{"0":11},"b":{"2":219}}',
    ]


def test_where_a_kafka_source_began_is_translated_behind_its_nul_byte() -> None:
    began = '\0v1\n{"orders":{"0":5,"1":17}}'
    assert is_beginning(began.encode())
    assert not is_beginning(b'v1\n{"path":"/data","timestamp":1}')
    assert spark_positions(began, "f") == [{"orders": {0: 5, 1: 17}}]
    assert translated_spark(began, "f", ten_more) == '\0v1\n{"orders":{"0":15,"1":127}}'


def test_a_query_starts_where_its_sources_began_until_its_first_batch_is_committed() -> None:
    assert needs_beginnings(["0"], [])
    assert needs_beginnings(["0"], [".0.crc"])
    assert not needs_beginnings(["0"], ["0"])
    assert not needs_beginnings(["1", "0"], ["0"]), "batch 1 starts from the end of batch 0"


def test_another_version_of_spark_files_is_refused() -> None:
    for text in ("v2\n{}\n-", "v1", "v1\n{}"):
        with pytest.raises(UsageError, match="not a Spark offsets file"):
            spark_positions(text, "f")


def test_a_query_needs_the_newest_batch_and_the_one_before() -> None:
    assert newest_batches(["9", "10", ".10.crc", "8", "11.tmp"]) == ["10", "9"]
    assert newest_batches(["0"]) == ["0"]
    assert newest_batches([".0.crc"]) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"orders":{"0":12',  # cut off
        '{"orders":{"0":-1}}',
        '{"orders":{"0":5,"1":null}}',
        '{"orders":{"0":5,"0":6}}',
        '{"orders":{"0":"5"}}',
    ],
)
def test_a_kafka_sources_line_that_cannot_be_read_is_not_copied_as_if_it_were_another_sources(line: str) -> None:
    """An unreadable line of a Kafka source is refused; otherwise the query would use offsets of the other cluster."""
    text = "v1\n{}\n-\n" + line
    for read in (lambda: spark_positions(text, "offsets/7"), lambda: translated_spark(text, "offsets/7", ten_more)):
        with pytest.raises(UsageError) as caught:
            read()
        assert (caught.value.ref, "offsets/7" in caught.value.what) == ("bad-checkpoint", True)


@pytest.mark.parametrize(
    "line", ["-", "", "17", '{"logOffset":3}', '{"shard-1":{"iteratorType":"LATEST"}}', "{}", '{"a":{}}', "custom"]
)
def test_other_sources_lines_are_no_concern(line: str) -> None:
    assert translated_spark("v1\n{}\n" + line, "f", ten_more).split("\n")[2] in (line, '{"a":{}}')
