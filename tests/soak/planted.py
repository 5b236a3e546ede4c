"""Two logs that differ by planted faults: what is written to each side, and what a check must say of it.

Offsets are counted, not read back: every log begins at 0 and has no holes, so a record's offset is its number plus what
the faults before it have added or taken. Records are written by librdkafka. One whose timestamp type shall differ is
written while the topic stamps its own time, and the source is then given that time.
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
    """What a producer is given."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int


def record(place: Place) -> Record:
    """The record that belongs there; no two are alike."""
    partition, number = place
    name = b"%d:%d:" % (partition, number)
    return Record(b"key-%d" % (number % 997), name.ljust(RECORD_BYTES, b"."), (("n", name),), START_OF_TIME + number)


def _flipped(data: bytes) -> bytes:
    """The same with one bit of its last byte changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


_CHANGES = {
    "key": lambda each: replace(each, key=_flipped(each.key)),
    "value": lambda each: replace(each, value=_flipped(each.value)),
    "headers": lambda each: replace(each, headers=(("n", _flipped(each.headers[0][1])),)),
    "timestamp": lambda each: replace(each, timestamp=each.timestamp + 1),
    "timestamp type": lambda each: each,
}
KINDS = ("lost", "duplicated", "reordered", "misplaced", *_CHANGES)
"""Every kind of fault; an altered record by the part that changed."""


@dataclass(frozen=True)
class Fault:
    """One planted fault at a source place; `other` is where a second copy or a misplaced record comes to stand."""

    kind: str
    at: Place
    other: Place | None = None

    def edits(self) -> dict[Place, list[Record]]:
        """What the target gets in place of some records."""
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
        """What a check may say of it; of two neighbours that changed places either one may be called reordered."""

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
    """Some faults among `records` of each partition."""

    partitions: int
    records: int
    faults: Sequence[Fault]
    stamps: dict[Place, int] = field(default_factory=dict)
    """Times that the target's broker gave: the source has them, too."""

    def __post_init__(self) -> None:
        self._edits = {place: made for fault in self.faults for place, made in fault.edits().items()}

    def source(self, partition: int, numbers: Iterable[int] | None = None) -> Iterator[Record]:
        """The source's records, or those with these numbers."""
        for place in self._places(partition, numbers):
            made = record(place)
            yield replace(made, timestamp=self.stamps[place]) if place in self.stamps else made

    def target(self, partition: int, numbers: Iterable[int] | None = None) -> Iterator[tuple[Place, Record]]:
        """The target's, each with the place of the source at which it is written."""
        for place in self._places(partition, numbers):
            for made in self._edits.get(place, (record(place),)):
                yield place, made

    def touched(self) -> set[Place]:
        """The places of the source at which the target's log has anything else."""
        return set(self._edits)

    def stamped(self) -> set[Place]:
        """Where the target's broker shall stamp its own time."""
        return {fault.at for fault in self.faults if fault.kind == "timestamp type"}

    def told(self, topic: str) -> list[set[Anomaly]]:
        """For each fault what a check may say of it."""
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
    """One fault of each kind, anywhere, but none beside another."""
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
    """Without retention: the records' times are years old."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})])[topic].result(60)


def write(bootstrap: str, topic: str, partition: int, records: Iterable[Record]) -> tuple[int, int]:
    """Write the records in their order; what the broker said of the last one's time: its type, and the time."""
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
            "log_level": 0,  # a fresh broker's coordinator is asked again without a word
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
    """Write the target's records, to be done before the source's: times that the broker stamps come back to it."""
    stamped = planting.stamped()
    for alone, group in groupby(planting.target(partition, numbers), lambda each: each[0] in stamped):
        if alone:
            ((place, made),) = group
            planting.stamps[place] = _stamped_by_broker(bootstrap, topic, partition, made)
        else:
            write(bootstrap, topic, partition, (made for _, made in group))


def _stamped_by_broker(bootstrap: str, topic: str, partition: int, each: Record) -> int:
    """Write one record as a broker that stamps its own time: the topic does so for this record alone."""
    _stamp_by(bootstrap, topic, "LogAppendTime")
    kind, stamp = write(bootstrap, topic, partition, [each])
    _stamp_by(bootstrap, topic, "CreateTime")
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise RuntimeError(f"the broker did not stamp the record of {topic}-{partition}")
    return stamp


def _stamp_by(bootstrap: str, topic: str, kind: str) -> None:
    """Change the topic, and wait until the broker writes by it.

    What the broker says of a configuration may be ahead of its logs by an instant. A topic that is made only then, and
    takes a record, tells that all before it is in force: a broker applies the changes of its cluster one by one.
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
