"""The content of a partition as a fingerprint, which two clusters and a producer's acknowledgements have to agree on.

Records are read by librdkafka, so no code of the copy judges the copy. Of a compacted topic the latest record of each
key counts: a log cleaner may work on one cluster earlier than on the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from kmigrate.cluster.librdkafka import client_config
from kmigrate.cluster.requests import Key
from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import monotonic

__all__ = ["Content", "Contents", "read_contents"]

_BATCH = 1000
_POLL_S = 0.2


class Content:
    """The records of one partition: their number, and a fingerprint of their content and order."""

    def __init__(self, *, compacted: bool = False) -> None:
        self._compacted = compacted
        self._all = blake2b(digest_size=16)
        self._latest: dict[bytes | None, bytes] = {}
        self._records = 0

    def add(self, key: bytes | None, value: bytes | None, more: Iterable[bytes | None] = ()) -> None:
        """Add the next record; `more` are further parts that have to agree."""
        record = b"".join(_framed(part) for part in (key, value, *more))
        self._records += 1
        if not self._compacted:
            self._all.update(record)
        elif value is None:
            self._latest.pop(key, None)
        else:
            self._latest[key] = blake2b(record, digest_size=16).digest()

    @property
    def records(self) -> int:
        """The number of records, or of keys with a value in a compacted topic."""
        return len(self._latest) if self._compacted else self._records

    @property
    def fingerprint(self) -> str:
        if not self._compacted:
            return self._all.hexdigest()
        whole = blake2b(digest_size=16)
        for key, record in sorted(self._latest.items(), key=lambda item: item[0] or b""):
            whole.update(_framed(key) + record)
        return whole.hexdigest()


def _framed(part: bytes | None) -> bytes:
    """Return a part with its length in front, so that no two sequences of parts look alike."""
    return b"\xff" * 8 if part is None else len(part).to_bytes(8) + part


@dataclass(slots=True)
class Contents:
    """What a cluster holds of one partition."""

    shared: Content
    """Records below the offset that both clusters reach, with headers, offsets and times."""
    whole: Content
    """Keys and values of all records."""
    done: bool = False
    """True once the partition is read to its end."""


def read_contents(
    settings: ClusterSettings,
    ends: Mapping[Key, int],
    shared: Mapping[Key, int],
    compacted: Collection[str],
    timeout_s: float,
) -> dict[Key, Contents]:
    """Read partitions from their beginning to `ends`; blocks. `shared` has the offsets that both clusters reach."""
    found = {
        key: Contents(Content(compacted=key[0] in compacted), Content(compacted=key[0] in compacted), ends[key] <= 0)
        for key in ends
    }
    config = {
        **client_config(settings),
        "group.id": f"{settings.client_id}-rehearsal",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
    }
    consumer = Consumer(config)
    deadline = monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(*key, OFFSET_BEGINNING) for key, each in found.items() if not each.done])
        while not all(each.done for each in found.values()):
            if monotonic() > deadline:
                left = ", ".join(f"{topic}-{partition}" for (topic, partition), each in found.items() if not each.done)
                raise WaitTimedOut("rehearsal-slow", f"{left} of {settings.name} not read within {timeout_s:g} s")
            for message in consumer.consume(_BATCH, _POLL_S):
                _take(message, found, ends, shared, settings.name)
    finally:
        consumer.close()
    return found


def _take(
    message: Message, found: Mapping[Key, Contents], ends: Mapping[Key, int], shared: Mapping[Key, int], cluster: str
) -> None:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise Failed("rehearsal-client-failed", f"{cluster} was not read: {error.str()}")
    key, offset = (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)
    each = found[key]
    if error is None and offset < ends[key]:
        each.whole.add(message.key(), message.value())
        if offset < shared[key]:
            each.shared.add(message.key(), message.value(), _marks(message, offset))
    each.done = each.done or offset >= ends[key] - (error is None)


def _marks(message: Message, offset: int) -> Iterable[bytes | None]:
    kind, time = message.timestamp()
    yield f"{offset} {kind} {time}".encode()
    headers = message.headers() or ()
    for name, value in headers.items() if isinstance(headers, dict) else headers:
        yield name.encode()
        yield value.encode() if isinstance(value, str) else value
