"""Reading a partition goes on through every error that a broker may answer."""

from __future__ import annotations

import asyncio
import struct
from typing import cast

from kmigrate.cluster.broker_health import BrokerHealth
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata
from kmigrate.cluster.partition_tail import Tail
from kmigrate.records.batch import Batch, walk
from kmigrate.records.build import one_record_batch

RECORD = bytes(one_record_batch(b"k", b"v", timestamp=1, producer_id=-1, epoch=-1, sequence=-1))
HEAD = struct.pack(">iib", 0, 7, 0)
THROTTLED = HEAD + struct.pack(">ihi", 900, 0, 0) + b"\1\0"
"""A fetch answer without topics, as a broker sends to a client above its quota."""
ANSWERED = (
    HEAD
    + struct.pack(">ihi", 0, 0, 0)
    + b"\2\2t\2"
    + struct.pack(">ihqqq", 0, 0, 1, 1, 0)
    + b"\1"
    + struct.pack(">i", -1)
    + bytes([len(RECORD) + 1])
    + RECORD
    + b"\0\0\0"
)


class Broker:
    """A broker that leads t-0, and answers each Fetch with the next of the given answers."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.metadata = Metadata("c", {1: ("a", 1)})
        self.silence = BrokerHealth()

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def connection(self, node: int, purpose: str) -> Broker:
        return self

    async def call_raw(self, *_: object, **__: object) -> bytearray:
        return bytearray(self.answers.pop(0))


def nothing(preferred: int = -1) -> bytes:
    """Return an answer without records below a high watermark of 1."""
    partition = struct.pack(">ihqqq", 0, 0, 1, 1, 0) + b"\1" + struct.pack(">i", preferred) + b"\1"
    return HEAD + struct.pack(">ihi", 0, 0, 0) + b"\2\2t\2" + partition + b"\0\0\0"


def test_an_end_that_no_batch_reaches_is_reached_when_it_was_told_again_and_no_batch_is_passed_over() -> None:
    """A log cleaner may remove the newest batch."""
    read: list[Batch] = []

    async def scene() -> None:
        broker = Broker(nothing(), nothing(), THROTTLED, ANSWERED)
        tail = Tail(cast("ClusterClient", broker), "t", 0, read.append, purpose="read")
        tail.position = 0
        for _ in range(3):
            await tail.poll(1)
        assert tail.reached == 0
        broker.answers = [nothing(), nothing(2), nothing(), nothing(), nothing(), ANSWERED]
        for reached in (1, 0, 0, 0, 1):
            await tail.poll(1)
            assert (tail.reached, tail.position) == (reached, 0)
        await tail.poll(1)
        assert (tail.reached, len(read)) == (1, 1)

    asyncio.run(scene())


def test_an_answer_without_the_partition_is_one_of_nothing() -> None:
    read: list[Batch] = []

    async def scene() -> None:
        tail = Tail(cast("ClusterClient", Broker(THROTTLED, ANSWERED)), "t", 0, read.append, purpose="read")
        tail.position = 0
        for _ in range(2):
            await tail.poll(1)
        assert tail.position == 1

    asyncio.run(scene())
    assert [bytes(batch.view) for batch in read] == [bytes(batch.view) for batch in walk(memoryview(RECORD))]
