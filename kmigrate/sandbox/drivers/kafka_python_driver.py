"""A client of kafka-python, driven by lines on standard input (docs/history.md, "Driven clients").

The driver runs as a file, with kafka-python on its path. kafka-python needs a library each for lz4 and snappy. cramjam,
which is installed already, takes the place of both, and kafka-python itself stays as published.

The driver runs kafka-python 3 and 2.0.2. Version 2.0.2 has no idempotence, isolation level and leader epochs, and finds
out by old requests what the broker speaks. The six of its own is too old for Python 3.12, so a newer six replaces it.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import queue
import sys
import threading
from types import ModuleType
from typing import Any

import cramjam


def _stand_in(name: str, **functions: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(functions)
    sys.modules[name] = module
    return module


_stand_in("lz4", frame=_stand_in("lz4.frame", decompress=lambda data: bytes(cramjam.lz4.decompress(data))))
_stand_in("snappy", decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)))

if importlib.util.find_spec("six") is not None:
    six = importlib.import_module("six")
    sys.modules |= {"kafka.vendor.six": six, "kafka.vendor.six.moves": six.moves}

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, __version__  # noqa: E402
from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: E402
from kafka.errors import KafkaError  # noqa: E402
from kafka.structs import OffsetAndMetadata, TopicPartition  # noqa: E402

_OLD = __version__.startswith("2.")
_SENDING: dict[str, Any] = (
    {"retries": 1_000, "max_in_flight_requests_per_connection": 1} if _OLD else {"enable_idempotence": True}
)
_READING: dict[str, Any] = {"metadata_max_age_ms": 3_000} if _OLD else {"isolation_level": "read_committed"}
_NO_EPOCH: tuple[int, ...] = () if _OLD else (-1,)
_LAST_SECONDS = 30.0
_LINES: queue.SimpleQueue[str | None] = queue.SimpleQueue()


def say(*words: object) -> None:
    """Queue words for standard output; words queued during a write (all answers of a request) go out with the next."""
    _LINES.put("\t".join(str(word).replace("\t", " ").replace("\n", " ") for word in words))


def write_lines() -> None:
    """Write queued words to standard output until None is queued."""
    while (line := _LINES.get()) is not None:
        lines, over = [line], False
        while not (over or _LINES.empty()):
            more = _LINES.get()
            over = more is None
            lines += [] if more is None else [more]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        if over:
            return


def text(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode()


def raw(word: str) -> bytes | None:
    return None if word == "-" else base64.b64decode(word)


def headers_in(word: str) -> list[tuple[str, bytes | None]]:
    pairs = (header.split(":", 1) for header in word.split(",") if header)
    return [(name, raw(value)) for name, value in pairs]


def end_soon() -> None:
    """End this process after a while, whatever the library waits for: the driving process may be gone for good."""
    timer = threading.Timer(_LAST_SECONDS, lambda: os._exit(1))
    timer.daemon = True
    timer.start()


def produce(bootstrap: str, client: str, topic: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), client_id=client, acks="all", linger_ms=5, **_SENDING
    )
    say("open", len(producer.partitions_for(topic)))
    for line in sys.stdin:
        _, tag, partition, timestamp, key, value, headers = line.rstrip("\n").split("\t")
        try:
            future = producer.send(
                topic,
                raw(value),
                key=raw(key),
                headers=headers_in(headers),
                partition=int(partition),
                timestamp_ms=None if timestamp == "-1" else int(timestamp),
            )
        except KafkaError as error:
            say("failed", tag, type(error).__name__, error)
            continue
        future.add_callback(lambda metadata, tag=tag: say("acked", tag, metadata.offset))
        future.add_errback(lambda error, tag=tag: say("failed", tag, type(error).__name__, error))
    end_soon()
    producer.flush()
    producer.close()


class Reader(ConsumerRebalanceListener):  # type: ignore[misc]
    """A group member. Commands come from a thread and are obeyed between two polls."""

    def __init__(self, bootstrap: str, client: str, group: str, topics: list[str], *own: str) -> None:
        settings = dict(setting.split("=", 1) for setting in own)
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._topics = topics
        self._stopping = False
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            client_id=client,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=settings.get("auto.offset.reset", "earliest"),
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            fetch_min_bytes=16_384,
            fetch_max_wait_ms=50,
            max_poll_records=1000,
            **_READING,
        )

    def run(self) -> None:
        self._consumer.topics()
        say("open", len(self._topics))
        threading.Thread(target=self._listen, daemon=True).start()
        self._consumer.subscribe(self._topics, listener=self)
        while not self._stopping:
            try:
                for records in self._consumer.poll(timeout_ms=100).values():
                    for record in records:
                        self._tell(record)
                say("polled")
            except KafkaError as error:
                say("error", type(error).__name__, error)
            while not self._commands.empty():
                self._obey(self._commands.get())
        self._consumer.close()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.rstrip("\n"))
        self._commands.put("end")
        end_soon()

    def _tell(self, record: Any) -> None:
        headers = ",".join(f"{name}:{text(value)}" for name, value in record.headers)
        key, value = text(record.key), text(record.value)
        say("record", record.topic, record.partition, record.offset, key, value, headers)

    def _obey(self, line: str) -> None:
        verb, _, listed = line.partition("\t")
        if verb == "end":
            self._stopping = True
            return
        positions = {}
        for topic, partition, after in (position.split(":") for position in listed.split(",")):
            positions[TopicPartition(topic, int(partition))] = OffsetAndMetadata(int(after), "", *_NO_EPOCH)
        try:
            self._consumer.commit(positions)
        except KafkaError as error:
            say("committed", listed, type(error).__name__)
        else:
            say("committed", listed, "")

    def on_partitions_revoked(self, revoked: Any) -> None:
        if not revoked:
            return
        if not self._stopping:
            say("revoking", named(revoked))
            while not self._refuse(self._commands.get()):
                pass
        # kafka-python keeps the positions over a rebalance. A member that missed a generation would go on from an old
        # position, below the commits of the owner in between. Kafka's own library drops the positions here, too.
        self._consumer._subscription.assign_from_subscribed([])
        say("revoked", named(revoked))

    def _refuse(self, line: str) -> bool:
        """Refuse a commit during a rebalance, and return whether the partitions may go.

        kafka-python calls the listener from the code that would read the answer to a commit, so the driver cannot wait
        for an answer. A commit that stayed in the queue would put the group back behind its next owner.
        """
        verb, _, listed = line.partition("\t")
        if verb == "end":
            self._stopping = True
            return True
        if listed:
            say("committed", listed, "RebalanceInProgressError")
        return verb == "release"

    def on_partitions_assigned(self, assigned: Any) -> None:
        say("assigned", named(assigned))


def named(partitions: Any) -> str:
    return ",".join(sorted(f"{each.topic}:{each.partition}:-1" for each in partitions))


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    writer = threading.Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        if role == "consumer":
            Reader(words[0], words[1], words[2], words[3].split(","), *words[4:]).run()
        else:
            produce(words[0], words[1], words[2])
    finally:
        _LINES.put(None)
        writer.join()
