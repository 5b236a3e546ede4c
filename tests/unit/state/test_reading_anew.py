"""The state log on brokers with log cleaners at different points: readers see every valid record, and no more."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.client import EARLIEST, LOG_END, ClusterClient, LogOffset
from kmigrate.cluster.health import BrokerHealth
from kmigrate.cluster.metadata import Metadata
from kmigrate.errors import StateLogBroken
from kmigrate.model.records import LeaseRecord
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import ProduceAnswer
from kmigrate.records.batch import walk
from kmigrate.records.build import one_record_batch
from kmigrate.state.codec import ENVELOPE_HEADER, Envelope, encode_envelope
from kmigrate.state.log import StateLog, state_producer_id
from kmigrate.state.read import read_state
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC

_FETCH_HEAD, _FETCH_PART = struct.Struct(">iiiibii"), struct.Struct(">iiqiqi")
DIVERGING = 0, b"\1\0\x0d" + struct.pack(">iq", 0, 5) + b"\0"
"""A broker's answer for an unknown epoch: the start of the next epoch.

Compaction has left no record of the unknown epoch.
"""
OUT_OF_RANGE = int(Code.OFFSET_OUT_OF_RANGE), b"\0"


def stored(
    offset: int, name: str, term: int | None, *, prev: str = "", nonce: str = "", sequence: int | None = None
) -> bytes:
    """Return a record as stored in the log; without a term the key is dropped."""
    record = None if term is None else LeaseRecord(name, "w", term)
    envelope = encode_envelope(Envelope(offset, prev, nonce or str(offset), record))
    data = one_record_batch(
        f"lease/{name}".encode(),
        None if record is None else envelope,
        header=(ENVELOPE_HEADER, envelope) if record is None else None,
        timestamp=1,
        producer_id=state_producer_id(STATE_TOPIC),
        epoch=0,
        sequence=offset if sequence is None else sequence,
    )
    data[0:8] = offset.to_bytes(8, "big")
    return bytes(data)


class Cluster:
    """A cluster whose brokers each hold the state log as their own cleaner left it, and return a batch per fetch."""

    def __init__(self, *logs: list[bytes], end: int) -> None:
        self.logs = dict(enumerate(logs, start=1))
        self.end = end
        self.led = 1
        self.moves_to = 0
        """The broker that leads after a batch was read."""
        self.unreplicated = 0
        """Offsets at the log's end that a new leader does not show yet."""
        self.lost: dict[str, list[tuple[int, bytes]]] = {}
        """Answers for a lost place, by topic: error code and tags of the partition."""
        self.asked: list[str] = []
        self.metadata = Metadata("c", {1: ("a", 1), 2: ("b", 1)})
        self.health = BrokerHealth()

    async def topic(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(partitions={0: None}, error=0)

    def leader(self, *_: object) -> int:
        return self.led

    async def list_offsets(self, wanted: dict[Any, int], *, replica_id: int = -1, **_: object) -> dict[Any, LogOffset]:
        end = self.end + (self.unreplicated if replica_id == LOG_END else 0)
        return {
            key: LogOffset(0, (0 if at == EARLIEST else end) if key[0] == STATE_TOPIC else 0, 0)
            for key, at in wanted.items()
        }

    async def connection(self, node: int, *_: object) -> SimpleNamespace:
        async def call_raw(api: int, version: int, body: list[bytes], **_: object) -> bytearray:
            await asyncio.sleep(0)
            topic, size = body[0][_FETCH_HEAD.size + 2 :], body[0][_FETCH_HEAD.size + 1] - 1
            name = bytes(topic[:size]).decode()
            self.asked.append(name)
            position = _FETCH_PART.unpack_from(topic, size + 1)[2]
            if self.lost.get(name) and (position or name != STATE_TOPIC):
                return self._answer(name, b"", *self.lost[name].pop())
            if name != STATE_TOPIC:
                await asyncio.sleep(3600)
            return self._told(node, position)

        return SimpleNamespace(call_raw=call_raw)

    def _told(self, node: int, position: int) -> bytearray:
        found = [each for each in self.logs[node] if next(walk(memoryview(each))).next_offset > position][:1]
        if found and self.moves_to:
            self.led, self.moves_to = self.moves_to, 0
        return self._answer(STATE_TOPIC, b"".join(found))

    def _answer(self, topic: str, records: bytes, error: int = 0, tags: bytes = b"\0") -> bytearray:
        size = len(records) + 1
        return bytearray(
            struct.pack(">iib", 0, 7, 0)
            + struct.pack(">ihi", 0, 0, 0)
            + bytes([2, len(topic) + 1])
            + topic.encode()
            + b"\2"
            + struct.pack(">ihqqq", 0, error, self.end, self.end, 0)
            + b"\1"
            + struct.pack(">i", -1)
            + bytes([size & 0x7F | 0x80, size >> 7])
            + records
            + tags
            + b"\0\0"
        )


class Log(StateLog):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cast("ClusterClient", cluster))
        self.cluster = cluster

    async def _append(self, topic: str, batch: bytearray) -> ProduceAnswer:
        batch[0:8] = self.cluster.end.to_bytes(8, "big")
        for log in self.cluster.logs.values():
            log.append(bytes(batch))
        self.cluster.end += 1
        return ProduceAnswer(0, 0, -1, None)


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(20):
            await scene

    asyncio.run(guarded())


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - what it waits for tells nobody
        await asyncio.sleep(0.001)


def test_who_stood_still_while_the_log_was_compacted_reads_it_anew_and_goes_on() -> None:
    """A key was dropped meanwhile, and the key's tombstone is gone."""

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
    """While the log is opened, the leader moves from a broker that was away for long to a broker that was not."""

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
    """The newest record was a tombstone, and no broker knows the producer any more."""

    async def scene() -> None:
        cluster = Cluster(list(kept), end=3)
        assert await read_state(cast("ClusterClient", cluster)) is not None
        async with Log(cluster) as log:
            assert log.state.epoch == 2, "as of those who have read what is gone"
            state = await log.append(lambda s: None if s.lease("b") else LeaseRecord("b", "w", 1))
            assert state.epoch == 3
        assert cluster.end == 4, "nothing void was written"

    run(scene())


@pytest.mark.parametrize("answer", [DIVERGING, OUT_OF_RANGE])
def test_who_was_away_and_finds_his_place_gone_on_a_leader_that_lost_its_disk_reads_the_log_anew(
    answer: tuple[int, bytes],
) -> None:
    """The leader was filled again from other brokers after the log was compacted."""

    async def scene() -> None:
        cluster = Cluster([stored(0, "a", 1), stored(1, "gone", 2, prev="0")], end=2)
        async with Log(cluster) as log:
            cluster.lost[STATE_TOPIC] = [answer]
            cluster.logs = {1: [stored(0, "a", 1), stored(5, "b", 1, prev="4"), stored(6, "c", 1, prev="5")]}
            cluster.end = 7
            await log.wait(lambda s: s.epoch == 6 or None, 10, "what was written meanwhile")
            assert set(log.state.records) == {"lease/a", "lease/b", "lease/c"}
            state = await log.append(lambda s: None if s.lease("d") else LeaseRecord("d", "w", 1))
            assert state.epoch == 7

    run(scene())


@pytest.mark.parametrize("answer", [DIVERGING, OUT_OF_RANGE])
@pytest.mark.parametrize(
    "left",
    [
        [stored(0, "a", 1)],
        [stored(0, "a", 1), stored(1, "other", 1, prev="0", nonce="x"), stored(2, "b", 1, prev="x")],
    ],
)
def test_a_log_that_was_cut_is_not_taken_for_the_one_that_was_read(
    left: list[bytes], answer: tuple[int, bytes]
) -> None:
    async def scene() -> None:
        cluster = Cluster([stored(0, "a", 1), stored(1, "b", 2, prev="0")], end=2)
        async with Log(cluster) as log:
            cluster.lost[STATE_TOPIC] = [answer]
            cluster.logs, cluster.end = {1: left}, len(left)
            with pytest.raises(StateLogBroken, match="log-cut"):
                await log.wait(lambda _: None, 10, "the end")
            assert set(log.state.records) == {"lease/a", "lease/b"}

    run(scene())


def test_a_new_leader_that_does_not_show_all_it_has_yet_has_cut_nothing() -> None:
    async def scene() -> None:
        cluster = Cluster([stored(0, "a", 1), stored(1, "b", 1, prev="0")], end=2)
        async with Log(cluster) as log:
            cluster.lost[STATE_TOPIC] = [OUT_OF_RANGE]
            whole = cluster.logs[1]
            cluster.logs, cluster.end, cluster.unreplicated = {1: whole[:1]}, 1, 2
            await until(lambda: not cluster.lost[STATE_TOPIC])
            asked = len(cluster.asked)
            await until(lambda: len(cluster.asked) > asked + 3)  # read again and again
            assert set(log.state.records) == {"lease/a", "lease/b"}
            cluster.logs = {1: [*whole, stored(2, "c", 1, prev="1")]}
            cluster.end, cluster.unreplicated = 3, 0
            await log.wait(lambda s: s.lease("c"), 10, "what it did not show")

    run(scene())


@pytest.mark.parametrize("answer", [DIVERGING, OUT_OF_RANGE])
def test_a_presence_log_that_was_cut_or_lost_is_read_from_where_it_is_now(answer: tuple[int, bytes]) -> None:
    async def scene() -> None:
        cluster = Cluster([stored(0, "a", 1)], end=1)
        cluster.lost[PRESENCE_TOPIC] = [answer, answer]
        async with Log(cluster) as log:
            await until(lambda: cluster.asked.count(PRESENCE_TOPIC) == 3)
            await log.append(lambda s: None if s.lease("b") else LeaseRecord("b", "w", 1))

    run(scene())


def test_who_bears_a_log_that_cannot_be_read_is_told_why_and_reads_on_once_that_is_over() -> None:
    """A router goes on with the last state, and keeps reading the log again until that succeeds."""
    good = [stored(0, "a", 1), stored(1, "b", 1, prev="0")]
    forked = [*good, stored(2, "c", 1, prev="another")]

    async def scenario() -> None:
        cluster = Cluster(good, end=2)
        log = StateLog(cluster)  # type: ignore[arg-type]
        await log.open()
        assert await log.changed_or_broken(0.01) is None
        cluster.logs[1], cluster.end = forked, 3
        async with asyncio.timeout(10):
            while (told := await log.changed_or_broken(0.01)) is None:
                pass
            assert told.ref == "forked-state-log"
            assert log.state.lease("a") == LeaseRecord("a", "w", 1), "what was known stays known"
            with pytest.raises(StateLogBroken):
                await log.changed(0.01)
            cluster.logs[1] = [*good, stored(2, "c", 1, prev="1")]
            while await log.changed_or_broken(0.01) is not None:
                pass
            while log.state.lease("c") is None:
                await log.changed_or_broken(0.01)
        await log.close()

    asyncio.run(scenario())


def test_who_waits_for_the_state_alone_is_not_woken_by_presences() -> None:
    async def scene() -> None:
        async with Log(Cluster([stored(0, "a", 1)], end=1)) as log:
            of_state = asyncio.create_task(log.changed(60, state_only=True))
            of_both = asyncio.create_task(log.changed(60))
            await of_both  # answers to reads of the presence log go on
            assert not of_state.done()
            await log.append(lambda s: None if s.lease("b") else LeaseRecord("b", "w", 1))
            await of_state
            assert log.state.lease("b")

    run(scene())


def test_a_record_that_this_version_must_not_ignore_is_borne_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster = Cluster([stored(0, "a", 1)], end=1)
        log = StateLog(cluster)  # type: ignore[arg-type]
        await log.open()
        cluster.logs[1], cluster.end = [stored(0, "a", 1), stored(1, "b", 1, prev="0")], 2
        monkeypatch.setattr("kmigrate.state.codec.SCHEMA", 1)

        async def bear() -> None:
            while True:
                await log.changed_or_broken(0.01)

        with pytest.raises(StateLogBroken, match="newer kmigrate"):
            await asyncio.wait_for(bear(), 10)
        await log.close()

    asyncio.run(scenario())
