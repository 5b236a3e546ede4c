"""Fingerprints agree only where number, order and content of the records agree."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.rehearsal import contents
from kmigrate.workflow.rehearsal.contents import Content, read_contents

EAST = ClusterSettings("east", (("127.0.0.1", 1),))
Row = tuple[bytes | None, bytes | None]
ONE, TWO = (b"a", b"1"), (b"b", b"2")


def content(*rows: Row, compacted: bool = False) -> Content:
    made = Content(compacted=compacted)
    for key, value in rows:
        made.add(key, value)
    return made


@pytest.mark.parametrize(
    "other", [(ONE,), (ONE, TWO, TWO), (TWO, ONE), (ONE, (b"b", b"3")), (ONE, (b"b2", b"")), (ONE, (b"b", None))]
)
def test_a_lost_doubled_moved_or_altered_record_changes_the_fingerprint(other: tuple[Row, ...]) -> None:
    assert content(ONE, TWO).fingerprint == content(ONE, TWO).fingerprint
    assert content(*other).fingerprint != content(ONE, TWO).fingerprint


def test_of_a_compacted_topic_the_latest_record_of_each_key_counts() -> None:
    whole = content((b"a", b"0"), ONE, TWO, (b"c", b"3"), (b"c", None), compacted=True)
    cleaned = content(TWO, ONE, compacted=True)
    assert (whole.fingerprint, whole.records) == (cleaned.fingerprint, 2)
    assert content(ONE, compacted=True).fingerprint != cleaned.fingerprint


class Record:
    """A record of partition 0 of topic t, or an error."""

    def __init__(self, offset: int, value: bytes = b"v", time: int = 7, error: Any = None) -> None:
        self._offset, self._value, self._time, self._error = offset, value, time, error

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("h", None)]

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time


class Consumer:
    """A consumer that returns the given records once."""

    def __init__(self, *records: Record) -> None:
        self._records = list(records)
        self.assigned: list[Any] = []

    def __call__(self, _: Any) -> Consumer:
        return self

    def assign(self, parts: list[Any]) -> None:
        self.assigned = parts

    def consume(self, *_: Any) -> list[Record]:
        found, self._records = self._records, []
        return found

    def close(self) -> None:
        self.assigned = []


def read(monkeypatch: pytest.MonkeyPatch, *records: Record, end: int = 3, shared: int = 2) -> contents.Contents:
    monkeypatch.setattr(contents, "Consumer", Consumer(*records))
    return read_contents(EAST, {("t", 0): end, ("t", 1): 0}, {("t", 0): shared, ("t", 1): 0}, (), 0.05)["t", 0]


def test_records_are_read_to_the_end_and_shared_only_below_the_offset_that_both_clusters_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = read(monkeypatch, Record(0), Record(1), Record(2), Record(3))
    assert (found.whole.records, found.shared.records) == (3, 2)
    late = read(monkeypatch, Record(0), Record(1, time=8), Record(2))
    assert late.whole.fingerprint == found.whole.fingerprint
    assert late.shared.fingerprint != found.shared.fingerprint  # the time of a record differs


def test_a_log_that_ends_with_cleaned_records_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, Record(0), Record(3, error=KafkaError(KafkaError._PARTITION_EOF))).whole.records == 1


def test_a_cluster_that_refuses_or_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failed, match="east was not read") as refused:
        read(monkeypatch, Record(0, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    assert refused.value.ref == "rehearsal-client-failed"
    with pytest.raises(WaitTimedOut, match="t-0 of east not read") as late:
        read(monkeypatch, Record(0))
    assert late.value.ref == "rehearsal-slow"
