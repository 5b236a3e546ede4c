"""Two logs that differ by planted faults: the records of each side, and the findings that a check must report.

Offsets are counted, not read back. Every log begins at 0 and has no holes, so a record's offset is its number plus the
records that the faults before it have added or taken. librdkafka writes the records. A record whose timestamp type
shall differ is written while the topic stamps its own time, and the source then gets that time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from uuid import uuid4

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from kmigrate.parity.verdict import Anomaly, AnomalyKind, Place

__all__ = ["KINDS", "Fault", "Planting", "Record", "make_topic", "plant", "record", "write", "write_target"]

START_OF_TIME = 1_700_000_000_000
RECORD_BYTES = 100
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Record:
    """A record as a producer gets it."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


def record(place: Place) -> Record:
    """Return the record that belongs at a place. No two records are alike."""
    partition, number = place
    name = b"%d:%d:" % (partition, number)
    return Record(b"key-%d" % (number % 997), name.ljust(RECORD_BYTES, b"."), (("n", name),), START_OF_TIME + number)


def _flipped(data: bytes) -> bytes:
    """Return the data with a bit of the last byte changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


_CHANGES = {
    "key": lambda each: replace(each, key=_flipped(each.key)),
    "value": lambda each: replace(each, value=_flipped(each.value)),
    "headers": lambda each: replace(each, headers=(("n", _flipped(each.headers[0][1])),)),
    "timestamp": lambda each: replace(each, timestamp=each.timestamp + 1),
    "timestamp type": lambda each: each,
}
KINDS = ("lost", "duplicated", "reordered", "misplaced", *_CHANGES)
"""Every kind of fault. An altered record is named by the changed part."""


@dataclass(frozen=True)
class Fault:
    """A planted fault at a source place. `other` is the place of a second copy or of a misplaced record."""

    kind: str
    at: Place
    other: Place | None = None

    def edits(self) -> dict[Place, list[Record]]:
        """Return the records that the target gets in place of some of the source's records."""
        here = record(self.at)
        if self.kind == "lost":
            return {self.at: []}
        if self.kind == "reordered":
            after = self.at._replace(offset=self.at.offset + 1)
            return {self.at: [record(after)], after: [here]}
        if self.other is None:
            return {self.at: [_CHANGES[self.kind](here)]}
        copy = {self.other: [here, record(self.other)]}
        return copy if self.kind == "duplicated" else {self.at: [], **copy}

    def told(self, topic: str, at_target: Mapping[Place, int]) -> set[Anomaly]:
        """Return what a check may say of the fault.

        Of two neighbours that changed places either may be called reordered.
        """

        def there(place: Place, and_more: int = 0) -> Place:
            return place._replace(offset=at_target[place] + and_more)

        if self.kind == "lost":
            return {Anomaly(AnomalyKind.LOST, topic, self.at)}
        if self.kind == "reordered":
            after = self.at._replace(offset=self.at.offset + 1)
            kind = AnomalyKind.REORDERED
            return {Anomaly(kind, topic, self.at, there(after)), Anomaly(kind, topic, after, there(self.at))}
        if self.other is None:
            return {Anomaly(AnomalyKind.ALTERED, topic, self.at, there(self.at), (self.kind,))}
        return {Anomaly(AnomalyKind(self.kind), topic, self.at, there(self.other))}


@dataclass
class Planting:
    """Some faults among the records of each partition."""

    partitions: int
    records: int
    faults: Sequence[Fault]
    stamps: dict[Place, int] = field(default_factory=dict)
    """Times that the target's broker gave. The source has these times, too."""

    def __post_init__(self) -> None:
        self._edits = {place: made for fault in self.faults for place, made in fault.edits().items()}

    def source(self, partition: int, numbers: Iterable[int] | None = None) -> Iterator[Record]:
        """Yield the source's records, or the records with these numbers."""
        for place in self._places(partition, numbers):
            made = record(place)
            yield replace(made, timestamp=self.stamps[place]) if place in self.stamps else made

    def target(self, partition: int, numbers: Iterable[int] | None = None) -> Iterator[tuple[Place, Record]]:
        """Yield the target's records, each with the place of the source at which the record is written."""
        for place in self._places(partition, numbers):
            for made in self._edits.get(place, (record(place),)):
                yield place, made

    def touched(self) -> set[Place]:
        """Return the places of the source at which the target's log has anything else."""
        return set(self._edits)

    def stamped(self) -> set[Place]:
        """Return the places where the target's broker shall stamp its own time."""
        return {fault.at for fault in self.faults if fault.kind == "timestamp type"}

    def told(self, topic: str) -> list[set[Anomaly]]:
        """Return for each fault what a check may say."""
        at_target: dict[Place, int] = {}
        for partition in range(self.partitions):
            moved = 0
            for place in sorted(each for each in self._edits if each.partition == partition):
                at_target[place] = place.offset + moved
                moved += len(self._edits[place]) - 1
        return [fault.told(topic, at_target) for fault in self.faults]

    def _places(self, partition: int, numbers: Iterable[int] | None) -> Iterator[Place]:
        return (Place(partition, number) for number in (range(self.records) if numbers is None else numbers))


def plant(partitions: int, records: int, kinds: Iterable[str], seed: int) -> Planting:
    """Plant a fault of each kind, anywhere, but none beside another."""
    dice = random.Random(seed)
    apart, ends = 50, 100
    slots = {Place(p, n) for p in range(partitions) for n in dice.sample(range(ends, records - ends, apart), 20)}
    chosen = dice.sample(sorted(slots), len(slots))
    faults = []
    for kind in kinds:
        at = chosen.pop()
        other = None
        if kind == "duplicated":
            other = next(each for each in chosen if each.partition == at.partition)
        elif kind == "misplaced":
            other = next(each for each in chosen if each.partition != at.partition)
        if other is not None:
            chosen.remove(other)
        faults.append(Fault(kind, at, other))
    return Planting(partitions, records, faults)


# writing


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic without retention, because the records' times are years old."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})])[topic].result(60)


def write(bootstrap: str, topic: str, partition: int, records: Iterable[Record]) -> tuple[int, int]:
    """Write the records in order, and return the last record's timestamp type and time as the broker gave them."""
    said: list[tuple[int, int]] = [(0, 0)]
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            said[0] = message.timestamp()

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 256 << 10,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,  # a fresh broker's coordinator is asked again in silence
        }
    )
    for number, each in enumerate(records):
        while True:
            try:
                producer.produce(
                    topic,
                    each.value,
                    each.key,
                    partition,
                    on_delivery=on_delivery,
                    timestamp=each.timestamp,
                    headers=list(each.headers),
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 5_000 == 0:
            producer.poll(0)
    if producer.flush(_PATIENCE_S) or failed:
        raise RuntimeError(f"not all records of {topic}-{partition} were stored: {failed[:1]}")
    return said[0]


def write_target(
    bootstrap: str, topic: str, partition: int, planting: Planting, numbers: Iterable[int] | None = None
) -> None:
    """Write the target's records. Call this before writing the source's, which get the times that the broker stamps."""
    stamped = planting.stamped()
    for alone, group in groupby(planting.target(partition, numbers), lambda each: each[0] in stamped):
        if alone:
            ((place, made),) = group
            planting.stamps[place] = _stamped_by_broker(bootstrap, topic, partition, made)
        else:
            write(bootstrap, topic, partition, (made for _, made in group))


def _stamped_by_broker(bootstrap: str, topic: str, partition: int, each: Record) -> int:
    """Write a record with the broker's own time: the topic stamps its own time for this record alone."""
    _stamp_by(bootstrap, topic, "LogAppendTime")
    kind, stamp = write(bootstrap, topic, partition, [each])
    _stamp_by(bootstrap, topic, "CreateTime")
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise RuntimeError(f"the broker did not stamp the record of {topic}-{partition}")
    return stamp


def _stamp_by(bootstrap: str, topic: str, kind: str) -> None:
    """Change the topic's timestamp type, and wait until the broker writes by it.

    The broker's answer about a configuration may be ahead of the broker's logs by an instant. A broker applies the
    changes of its cluster one by one. So a topic that is created only then, and takes a record, tells that all changes
    before are in force.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = "message.timestamp.type"
    entry = ConfigEntry(name, kind, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        if admin.describe_configs([asked])[asked].result(20)[name].value == kind:
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} does not take {name}={kind}")
        time.sleep(0.05)
    after = f"after-{uuid4().hex[:8]}"
    make_topic(bootstrap, after, 1)
    write(bootstrap, after, 0, [record(Place(0, 0))])
