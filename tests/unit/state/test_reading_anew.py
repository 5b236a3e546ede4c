"""The state log as brokers whose log cleaners have come differently far tell it: all there is is read, and no more."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import EARLIEST, ClusterClient, LogOffset
from kmigrate.cluster.layout import Metadata
from kmigrate.cluster.silence import Silence
from kmigrate.model.records import LeaseRecord
from kmigrate.records.batch import walk
from kmigrate.records.build import one_record_batch
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, encode_envelope
from kmigrate.state.log import STATE_TOPIC, StateLog
from kmigrate.state.look import read_state

_FETCH_HEAD, _FETCH_PART = struct.Struct(">iiiibii"), struct.Struct(">iiqiqi")


def stored(offset: int, name: str, term: int | None, *, prev: str = "", sequence: int | None = None) -> bytes:
    """A record as it stands in the log; without a term its key is dropped."""
    record = None if term is None else LeaseRecord(name, "w", term)
    envelope = encode_envelope(Envelope(offset, prev, str(offset), record))
    data = one_record_batch(
        f"lease/{name}".encode(),
        None if record is None else envelope,
        header=(ENVELOPE_HEADER, envelope) if record is None else None,
        timestamp=1,
        producer_id=9,
        epoch=0,
        sequence=offset if sequence is None else sequence,
    )
    data[0:8] = offset.to_bytes(8, "big")
    return bytes(data)


class Cluster:
    """Each broker has the state log as its own log cleaner left it, and tells one batch of it at a time."""

    def __init__(self, *logs: list[bytes], end: int) -> None:
        self.logs = dict(enumerate(logs, start=1))
        self.end = end
        self.led = 1
        self.moves_to = 0
        """Who leads once a batch was read."""
        self.metadata = Metadata("c", {1: ("a", 1), 2: ("b", 1)})
        self.silence = Silence()

    async def topic(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(partitions={0: None}, error=0)

    def leader(self, *_: object) -> int:
        return self.led

    async def list_offsets(self, wanted: dict[Any, int], **_: object) -> dict[Any, LogOffset]:
        return {
            key: LogOffset(0, (0 if at == EARLIEST else self.end) if key[0] == STATE_TOPIC else 0, 0)
            for key, at in wanted.items()
        }

    async def connection(self, node: int, *_: object) -> SimpleNamespace:
        async def call_raw(api: int, version: int, body: list[bytes], **_: object) -> bytearray:
            await asyncio.sleep(0)
            topic, size = body[0][_FETCH_HEAD.size + 2 :], body[0][_FETCH_HEAD.size + 1] - 1
            if topic[:size] != STATE_TOPIC.encode():
                await asyncio.sleep(3600)
            return self._told(node, _FETCH_PART.unpack_from(topic, size + 1)[2])

        return SimpleNamespace(call_raw=call_raw)

    def _told(self, node: int, position: int) -> bytearray:
        found = [each for each in self.logs[node] if next(walk(memoryview(each))).next_offset > position][:1]
        if found and self.moves_to:
            self.led, self.moves_to = self.moves_to, 0
        records = b"".join(found)
        size = len(records) + 1
        return bytearray(
            struct.pack(">iib", 0, 7, 0)
            + struct.pack(">ihi", 0, 0, 0)
            + bytes([2, len(STATE_TOPIC) + 1])
            + STATE_TOPIC.encode()
            + b"\2"
            + struct.pack(">ihqqq", 0, 0, self.end, self.end, 0)
            + b"\1"
            + struct.pack(">i", -1)
            + bytes([size & 0x7F | 0x80, size >> 7])
            + records
            + b"\0\0\0"
        )


class Log(StateLog):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cast("ClusterClient", cluster))
        self.cluster = cluster

    async def _produce(self, topic: str, batch: bytearray) -> int:
        batch[0:8] = self.cluster.end.to_bytes(8, "big")
        for log in self.cluster.logs.values():
            log.append(bytes(batch))
        self.cluster.end += 1
        return 0


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(20):
            await scene

    asyncio.run(guarded())


def test_who_stood_still_while_the_log_was_compacted_reads_it_anew_and_goes_on() -> None:
    """A key was dropped meanwhile, and its tombstone is gone."""

    async def scene() -> None:
        cluster = Cluster([stored(0, "a", 1), stored(1, "gone", 2, prev="0")], end=2)
        async with Log(cluster) as log:
            assert set(log.state.records) == {"lease/a", "lease/gone"}
            seen: list[tuple[int, set[str]]] = []
            cluster.logs = {1: [stored(0, "a", 1), stored(5, "b", 1, prev="4"), stored(6, "c", 1, prev="5")]}
            cluster.end = 7

            def done(_: object) -> bool | None:
                seen.append((log.state.epoch, set(log.state.records)))
                return log.state.epoch == 6 or None

            await log.wait(done, 10, "what was written meanwhile")
            new = (6, {"lease/a", "lease/b", "lease/c"})
            assert [each for each in seen if each != (1, {"lease/a", "lease/gone"})] == [new], "nothing in between"
            state = await log.append(lambda s: None if s.lease("d") else LeaseRecord("d", "w", 1))
            assert (state.epoch, len(state.records)) == (7, 4)

    run(scene())


def test_what_one_broker_has_left_of_a_key_that_another_has_cleaned_away_is_not_there() -> None:
    """The leader moves while the log is opened, from a broker that was away for long to one that was not."""

    async def scene() -> None:
        last = stored(3, "a", 2, prev="2")
        whole = [stored(0, "gone", 1), stored(1, "a", 1, prev="0"), stored(2, "gone", None, prev="1"), last]
        cluster = Cluster(whole, [last], end=4)
        cluster.moves_to = 2
        async with Log(cluster) as log:
            assert cluster.led == 2
            assert dict(log.state.records) == {"lease/a": LeaseRecord("a", "w", 2)}
        cluster.led, cluster.moves_to = 1, 2
        state = await read_state(cast("ClusterClient", cluster))
        assert state is not None
        assert set(state.records) == {"lease/a"}

    run(scene())


@pytest.mark.parametrize("kept", [[stored(0, "a", 1)], []])
def test_a_log_of_which_no_batch_is_left_up_to_its_end_is_opened_and_written_on(kept: list[bytes]) -> None:
    """Its newest record was a tombstone, and no broker knows the producer any more."""

    async def scene() -> None:
        cluster = Cluster(list(kept), end=3)
        assert await read_state(cast("ClusterClient", cluster)) is not None
        async with Log(cluster) as log:
            assert log.state.epoch == 2, "as of those who have read what is gone"
            state = await log.append(lambda s: None if s.lease("b") else LeaseRecord("b", "w", 1))
            assert state.epoch == 3
        assert cluster.end == 4, "nothing void was written"

    run(scene())
