"""The judge of a soak: librdkafka's reads of both sides, against each other and against the writers' ledgers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.integration.mirror_world import bounds
from tests.soak.writers import Ledger

__all__ = ["Record", "Verdict", "compare", "judge"]

_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Record:
    """A record as a read_committed consumer gets it. `told` stands for key, value, headers and timestamp."""

    offset: int
    writer: str
    number: int
    told: int


@dataclass
class Verdict:
    """Anomalies by name, in records."""

    lost: int = 0
    """Records that were acknowledged on the source and are not on the target."""
    duplicated: int = 0
    """Records that are on the target more often than on the source.

    A writer without idempotence may have doubled a record on the source itself.
    """
    reordered: int = 0
    """Records behind a record that their writer has later in the partition on the source."""
    altered: int = 0
    """Records with another key, value, header or timestamp than at the same offset of the source."""
    misplaced: int = 0
    """Records at an offset where the other side has no record."""
    resurrected: int = 0
    """Records of an aborted transaction."""
    lost_by_source: int = 0
    """Acknowledged records that are not at the source's own promised offset: the test bed's fault, not the mirror's."""
    bounds_differ: int = 0
    """Partitions whose log begins or ends at another offset."""
    torn: int = 0
    """Transactions of unknown outcome of which the target has some records and lacks others."""

    @property
    def offsets_identical(self) -> bool:
        return not self.misplaced and not self.bounds_differ

    @property
    def clean(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


Log = dict[int, list[Record]]
Places = dict[tuple[str, int], list[int]]
"""The offsets of each number on the source, by writer and number."""


def judge(source: str, target: str, topic: str, ledgers: Mapping[str, Ledger]) -> Verdict:
    """Compare the two logs of a topic. `ledgers` are by the writers' names in the records."""
    verdict = compare(_read(source, topic), _read(target, topic), ledgers)
    theirs, ours = bounds(source, topic), bounds(target, topic)
    verdict.bounds_differ = sum(theirs.get(partition) != ours.get(partition) for partition in theirs.keys() | ours)
    return verdict


def compare(wanted: Log, found: Log, ledgers: Mapping[str, Ledger]) -> Verdict:
    """Compare the target's records with the source's, and with what the writers were promised."""
    verdict = Verdict()
    seen_in: dict[int, set[tuple[str, int]]] = {}
    for partition in wanted.keys() | found:
        theirs, ours = wanted.get(partition, []), found.get(partition, [])
        _side_by_side(verdict, {record.offset: record for record in theirs}, {record.offset: record for record in ours})
        stored: Places = defaultdict(list)
        for record in theirs:
            stored[(record.writer, record.number)].append(record.offset)
        seen = seen_in[partition] = _in_order(verdict, ours, stored)
        for writer, ledger in ledgers.items():
            verdict.resurrected += sum((writer, number) in seen for number in ledger.aborted[partition])
            for number, offset in ledger.acked[partition].items():
                verdict.lost += (writer, number) not in seen
                places = stored.get((writer, number), [])
                verdict.lost_by_source += not places or (offset >= 0 and offset not in places)
    for writer, ledger in ledgers.items():
        for written in ledger.in_doubt:
            there = sum((writer, number) in seen_in.get(partition, ()) for partition, number in written)
            verdict.torn += 0 < there < len(written)
    return verdict


def _side_by_side(verdict: Verdict, theirs: Mapping[int, Record], ours: Mapping[int, Record]) -> None:
    verdict.altered += sum(theirs[offset] != ours[offset] for offset in theirs.keys() & ours.keys())
    verdict.misplaced += len(theirs.keys() ^ ours.keys())


def _in_order(verdict: Verdict, records: list[Record], stored: Places) -> set[tuple[str, int]]:
    """Count doubled and reordered records, and return the writers and numbers that were seen.

    Every record must stand as often as on the source, each writer's in the order in which the source stored them.
    """
    seen: Counter[tuple[str, int]] = Counter()
    last: dict[str, int] = {}
    for record in records:
        name = (record.writer, record.number)
        places, turn = stored.get(name, []), seen[name]
        at = places[turn] if turn < len(places) else -1
        if turn and turn >= len(places):
            verdict.duplicated += 1
        elif 0 <= at < last.get(record.writer, -1):
            verdict.reordered += 1
        seen[name] += 1
        last[record.writer] = max(at, last.get(record.writer, -1))
    return set(seen)


def _read(bootstrap: str, topic: str) -> Log:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    limits = bounds(bootstrap, topic)
    out: Log = {partition: [] for partition in limits}
    left = set(limits)
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, (start, _) in limits.items()])
        deadline = time.monotonic() + _PATIENCE_S
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: partitions {sorted(left)} were not read to their end")
            _sort(consumer.consume(5_000, 0.2), out, left)
    finally:
        consumer.close()
    return out


def _sort(messages: Iterable[Message], out: Log, left: set[int]) -> None:
    for message in messages:
        partition = message.partition()
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                left.discard(partition)
            continue
        assert partition is not None
        key, value = message.key() or b"", message.value() or b""
        told = hash((key, value, tuple(message.headers() or ()), message.timestamp()))
        out[partition].append(Record(message.offset() or 0, key.decode(), int(value.rstrip(b".")), told))
