"""Rubbish on every listener: the connection gets a broker's answer to the same bytes, or is closed.

Real brokers are the judges: each piece of rubbish goes directly to a broker, too. A librdkafka producer writes
meanwhile and must not lose a record. The router's memory and file descriptors are read from /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.kafka import KafkaCluster
from tests.hostile.requests import HARMLESS, Nonsense, framed, request
from tests.integration.router_world import RouterProcess, Writer, beside_a_router, link_between, quietly, router, values
from tests.integration.secure_router import SecureRouter

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

_OWN = 6
"""Connections that the router may open for its own requests to brokers meanwhile; a storm makes hundreds of others."""
_PATIENCE_S = 10.0
_ENDED = (ConnectionError, ssl.SSLEOFError)
CLOSED = b"closed"


class Wire:
    """A client that sends bare bytes."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(*_ENDED):
            self.socket.sendall(data)

    def answer(self) -> bytes:
        """Return an answer without its length, or `closed`; fail if neither comes."""
        size = self._exactly(4)
        return self._exactly(struct.unpack(">i", size)[0]) if len(size) == 4 else CLOSED

    def _exactly(self, count: int) -> bytes:
        data = b""
        with contextlib.suppress(*_ENDED):
            while len(data) < count:
                more = self.socket.recv(count - len(data))
                if not more:
                    break
                data += more
        return data


def answers(address: str, data: bytes, count: int, connect: Callable[[str], Wire] = Wire) -> list[bytes]:
    """Return the first answers to some bytes, up to the end of the connection."""
    out: list[bytes] = []
    with connect(address) as wire:
        wire.send(data)
        while len(out) < count:
            out.append(wire.answer())
            if out[-1] == CLOSED:
                break
    return out


def rss_mb(running: RouterProcess | SecureRouter) -> float:
    status = Path(f"/proc/{running.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def descriptors(running: RouterProcess | SecureRouter) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def versions(correlation: int = 7, client: bytes | None = b"x") -> bytes:
    return request(18, 0, b"", correlation=correlation, client=client)


def produce(*parts: tuple[str, int, bytes], acks: int = -1, correlation: int = 1, client: bytes | None = b"x") -> bytes:
    """Return a Produce 7 request as on the wire; a topic stands there as often as it is named."""
    body = struct.pack(">hhii", -1, acks, 5000, len(parts))
    for topic, partition, records in parts:
        body += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">iii", 1, partition, len(records))
        body += records
    return request(0, 7, body, correlation=correlation, client=client)


def batch(value: bytes = b"v", producer: int = -1) -> bytearray:
    # The timestamp is of today: every five minutes a broker looks for old records, and would delete the batch amid a
    # test.
    return one_record_batch(b"k", value, timestamp=int(time.time() * 1000), producer_id=producer, epoch=-1, sequence=-1)


def changed(at: int, shape: str, value: int, of: bytes | None = None) -> bytes:
    data = bytearray(of if of is not None else batch())
    struct.pack_into(shape, data, at, value)
    return bytes(data)


CLOSES = {
    "size −1": struct.pack(">i", -1),
    "size 0": struct.pack(">i", 0),
    "size 2³¹−1": struct.pack(">i", (1 << 31) - 1) + b"more",
    "shorter than a header": framed(b"ab"),
    "a client id longer than the request": framed(struct.pack(">hhih", 18, 0, 1, 9) + b"x"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + b"\7" * 196,
    "an unknown api": request(999, 0, b""),
    "a negative api": request(-7, 0, b""),
    "a version too new": request(3, 99, b""),
    "a negative version": request(3, -2, b""),
    "Produce below what brokers speak": request(0, 2, b""),
    "Produce with a count beyond the request": request(0, 7, struct.pack(">hhii", -1, 1, 1000, 1 << 30)),
    "Produce cut off": framed(produce(("t", 0, bytes(batch())))[4:-5]),
    "Metadata that is no Metadata": request(3, 9, b"\xff\xff\xff\xff\x0f"),
    "text that is no text": request(10, 0, b"\0\2\xff"),
}

ALIKE: dict[str, tuple[bytes, int]] = {
    "ApiVersions of a far future": (request(18, 127, b"\0\0"), 1),
    "unknown tags in the header": (request(9, 6, b"\2g\0\0\0", tags=b"\1\x70\2ab"), 1),
    "unknown tags in the body": (request(12, 4, b"\2g\0\0\0\1\2m\0\1\x70\2ab"), 1),
    "no client id": (request(12, 0, b"\0\1g\0\0\0\1\0\1m", client=None), 1),
    "a client id of 32 KB": (request(12, 0, b"\0\1g\0\0\0\1\0\1m", client=b"c" * 32_767), 1),
    "Produce of nothing": (produce(), 1),
    "the same correlation id twice": (request(12, 0, b"\0\1g\0\0\0\1\0\1m", correlation=3) * 2, 2),
    "a topic of 249 letters that is not there": (produce(("n" * 249, 0, bytes(batch()))), 1),
    "a topic of 250 letters": (produce(("n" * 250, 0, bytes(batch()))), 1),
    "a topic without letters": (produce(("", 0, bytes(batch()))), 1),
}
"""Pieces that only a target broker handles, with the number of answers: the router's answers are the same bytes."""

RECORDS: dict[str, bytes] = {
    "a wrong CRC": changed(17, ">I", 7),
    "a length beyond the field": changed(8, ">i", 10_000),
    "a length below a header's": changed(8, ">i", 10),
    "a negative length": changed(8, ">i", -1),
    "a wrong count": changed(57, ">i", 5),
    "a wrong last offset delta": changed(23, ">i", 4),
    "message format 0": changed(16, ">b", 0),
    "message format 1": changed(16, ">b", 1),
    "message format 3": changed(16, ">b", 3),
    "two batches": bytes(batch() * 2),
    "no batch": b"",
    "half a header": bytes(batch())[:30],
    "a control batch": changed(21, ">h", 0x20),
}
"""Records of a Produce request for a mirrored topic, which the router checks before the source does."""


def told(answer: bytes) -> list[int]:
    """Return the error codes of a Produce 7 answer, in order."""
    if answer == CLOSED:
        return [-99]
    (topics,) = struct.unpack_from(">i", answer, 4)
    at, out = 8, []
    for _ in range(topics):
        (name,) = struct.unpack_from(">h", answer, at)
        (parts,) = struct.unpack_from(">i", answer, at + 2 + name)
        at += 6 + name
        for _ in range(parts):
            out.append(struct.unpack_from(">ih", answer, at)[1])
            at += 4 + 2 + 8 + 8 + 8
    return out


@contextlib.contextmanager
def unharmed(
    running: RouterProcess | SecureRouter,
    topic: str,
    more_mb: int = 100,
    *,
    login: Mapping[str, Any] | None = None,
    partitions: int = 3,
) -> Iterator[None]:
    """Check that another client writes through the router, and that memory and descriptors stay about the same."""
    with Writer(running.bootstrap, topic, "calm", dict(login or {}), partitions=partitions) as writer:
        writer.until(50)
        before, fds = rss_mb(running), descriptors(running)
        yield
        writer.until(writer.acked + 50)
        deadline = time.monotonic() + _PATIENCE_S
        while descriptors(running) > fds + _OWN and time.monotonic() < deadline:
            time.sleep(0.05)
        assert descriptors(running) <= fds + _OWN
        assert rss_mb(running) < before + more_mb
    assert writer.errors == []
    assert running.process.poll() is None


def broker_listener(running: RouterProcess) -> str:
    """Return the router's listener for the target's only broker: the first broker in a Metadata answer."""
    answer = answers(running.bootstrap, request(3, 4, struct.pack(">i", 0) + b"\0"), 1)[0]
    at = 4 + 4 + 4 + 4
    (length,) = struct.unpack_from(">h", answer, at)
    host = answer[at + 2 : at + 2 + length].decode()
    return f"{host}:{struct.unpack_from('>i', answer, at + 2 + length)[0]}"


def answers_as(broker: str, listeners: Iterable[str], connect: Callable[[str], Wire] = Wire) -> None:
    """Check that each of a router's listeners answers each piece with the broker's bytes, or closes."""
    for what, data in CLOSES.items():
        for address in (broker, *listeners):
            assert answers(address, data, 1, connect) == [CLOSED], (what, address)
    for what, (data, count) in ALIKE.items():
        direct = answers(broker, data, count, connect)
        for address in listeners:
            routed = answers(address, data, count, connect)
            if what.startswith("ApiVersions"):  # The list of versions is the router's own.
                direct, routed = [direct[0][:6]], [routed[0][:6]]
            assert routed == direct, (what, address)


def test_rubbish_is_answered_as_the_target_does_or_ends_its_own_connection(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The listener for clients of another router is tested, too."""
    topic = unique_name("calm")
    make_topic(target, topic, partitions=3)

    def compare(running: RouterProcess, fallback: str) -> None:
        with unharmed(running, topic):
            answers_as(target.bootstrap, (running.bootstrap, broker_listener(running), fallback))

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running, router("home", target) as home:
                (fallback,) = await world.fallbacks(home)
                await quietly(compare, running, fallback)

    asyncio.run(scenario())


def test_garbage_for_a_mirrored_topic_is_refused_as_its_source_does(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, free = unique_name("away"), unique_name("free")
    for cluster in (source, target):
        make_topic(cluster, topic)
    make_topic(target, free, partitions=3)

    def compare(running: RouterProcess) -> None:
        with unharmed(running, free):
            for what, records in RECORDS.items():
                data = produce((topic, 0, records))
                direct, routed = (told(answers(at, data, 1)[0]) for at in (source.bootstrap, running.bootstrap))
                assert routed == direct, what
            # Both clusters in a single request, and a partition named twice: merged in request order, each part
            # answered.
            both = answers(running.bootstrap, produce((topic, 0, bytes(batch(b"s"))), (free, 0, bytes(batch(b"t")))), 1)
            assert told(both[0]) == [0, 0]
            twice = produce((topic, 0, bytes(batch(b"one"))), (topic, 0, bytes(batch(b"two"))))
            direct, routed = (told(answers(at, twice, 1)[0]) for at in (source.bootstrap, running.bootstrap))
            assert set(routed) == set(direct)
            silent = produce((topic, 0, bytes(batch(b"silent"))), acks=0) + versions()
            assert answers(running.bootstrap, silent, 1)[0][:4] == struct.pack(">i", 7), "acks=0 has no answer"
            broken = produce((topic, 0, RECORDS["a wrong CRC"]), acks=0)
            assert answers(running.bootstrap, broken, 1) == answers(source.bootstrap, broken, 1) == [CLOSED]

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as running:
                await world.routers_apply()
                await quietly(compare, running)
        stored = (await quietly(values, source.bootstrap, topic, 1))[0]
        assert stored.count(b"s") == stored.count(b"silent") == 1

    asyncio.run(scenario())


def test_half_requests_drips_and_floods_cost_little_and_harm_nobody(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("calm")
    make_topic(target, topic, partitions=3)

    def attack(running: RouterProcess) -> None:
        with unharmed(running, topic), contextlib.ExitStack() as stack:
            # A hundred requests announce 100 MB each, and send nothing more.
            for number in range(100):
                wire = stack.enter_context(Wire(running.bootstrap))
                wire.send(struct.pack(">i", 100 << 20) + b"\0" * (number % 3))
            half = stack.enter_context(Wire(running.bootstrap))
            half.send(versions()[:9])
            drip = stack.enter_context(Wire(running.bootstrap))
            for byte in versions(correlation=77):
                drip.send(bytes([byte]))
                time.sleep(0.02)
            assert drip.answer()[:4] == struct.pack(">i", 77)
            flood = stack.enter_context(Wire(running.bootstrap))
            flood.send(b"".join(versions(correlation=number) for number in range(1000)))
            assert [struct.unpack(">i", flood.answer()[:4])[0] for _ in range(1000)] == list(range(1000))
            deaf = stack.enter_context(Wire(running.bootstrap))
            deaf.socket.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                deaf.send(versions() * 400_000)

    beside_a_router(source, target, unique_name("link"), attack)


def _storm(running: RouterProcess, seed: int, count: int, topics: tuple[str, ...], groups: tuple[str, ...]) -> None:
    """Send damaged requests one after the other, read every answer, and reopen a connection that ends."""
    nonsense = Nonsense(seed, topics, groups, HARMLESS)
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(Wire(running.bootstrap))
        for number in range(count):
            wire.socket.settimeout(0.02)
            try:
                wire.socket.sendall(nonsense.next())
                gone = wire.socket.recv(1 << 16) == b""
            except TimeoutError:
                gone = number % 20 == 0
            except ConnectionError:
                gone = True
            if gone:
                wire.socket.close()
                wire = stack.enter_context(Wire(running.bootstrap))


def _weather(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, seeds: range, count: int
) -> None:
    calm, away, here = unique_name("calm"), unique_name("away"), unique_name("here")
    make_topic(source, away)
    for name in (away, here):
        make_topic(target, name)
    make_topic(target, calm, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(away, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as running:
                await world.routers_apply()
                with unharmed(running, calm):
                    for seed in seeds:
                        await quietly(_storm, running, seed, count, (away, here), (unique_name("g"),))

    asyncio.run(scenario())


def test_a_storm_of_damaged_requests_leaves_others_and_the_router_as_they_were(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    _weather(source, target, make_topic, unique_name, range(2), 150)


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_long_storm_of_damaged_requests_leaves_others_and_the_router_as_they_were(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    _weather(source, target, make_topic, unique_name, range(100, 120), 1000)
