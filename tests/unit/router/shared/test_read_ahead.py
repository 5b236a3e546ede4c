"""A consumer behind a router that reads ahead, against a broker with fetch sessions (KIP-227).

Consumer and broker are models that follow Kafka's own rules, and use the codec generated from Kafka's schemas.

The client may read on, jump, pause, wait for long, or begin the session anew, and answers may come in any way. In each
case the client gets the requested records, in a single session, and no error that the broker alone would not have
given. In the end the client knows the end of each log, as without a router.
"""

from __future__ import annotations

import datetime as dt
import random
import struct
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity, frame_answer
from kmigrate.protocol.frames import SIZE, encode_request_head, peek_request, response_body_offset
from kmigrate.records.batch import assemble
from kmigrate.router.fetch import handler as fetch_desk
from kmigrate.router.session.session import Session as RouterSession
from kmigrate.router.shared import read_ahead
from kmigrate.router.shared.read_ahead import LATE_S, STALE_S, Fate
from kmigrate.router.wire.fetch_session import Position
from tests.unit.router.router_fakes import FakeClientLink, Sent, Stage
from tests.unit.router.wire.test_fetch_session import framed, message

LARGE = 2000
"""Stands for a megabyte."""
LAST_EPOCH = (1 << 31) - 1
IDS = {name: uuid.uuid5(uuid.NAMESPACE_DNS, name) for name in ("one", "two")}
NAMES = {of: name for name, of in IDS.items()}
Key = tuple[str, int]


@pytest.fixture(autouse=True)
def small_answers_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "LARGE", LARGE)
    monkeypatch.setattr(fetch_desk, "LARGE", LARGE)


def after(epoch: int) -> int:
    return epoch + 1 if epoch < LAST_EPOCH else 1


@dataclass
class Log:
    """Batches of ten offsets each, with gaps; each batch has `size` bytes."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0

    def append(self, size: int = 700, gap: int = 0) -> None:
        base = self.end + gap
        payload = struct.pack(">q", base) + bytes(max(0, size - 69))
        batch = assemble(payload, count=10, attributes=0, base_timestamp=1, max_timestamp=1, leader_epoch=3)
        struct.pack_into(">q", batch, 0, base)
        self.batches.append((base, bytes(batch)))
        self.end = base + 10

    def read(self, offset: int, most: int) -> bytes:
        """Return batches from the batch with the offset on; the last batch may be cut, but the first batch is whole."""
        out = b"".join(batch for base, batch in self.batches if base + 10 > offset)
        first = next((batch for base, batch in self.batches if base + 10 > offset), b"")
        return out[: max(most, len(first))]


@dataclass
class Session:
    epoch: int = 1
    offsets: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Offset and byte limit by partition, in the order of the answers."""
    told: dict[Key, int] = field(default_factory=dict)


class Broker:
    """A broker as far as FetchManager and ReplicaManager go."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.logs: dict[Key, Log] = {}
        self.sessions: dict[int, Session] = {}
        self.next_id = 100
        self.takes_sessions = True
        self.throttle = 0
        self.errors: list[int] = []
        self.fetches = 0

    def answer(self, frame: bytearray) -> bytearray:
        head = peek_request(frame, flexible=True)
        said = decode_body(entity(1, self.version, "request"), frame, head.body)
        self.fetches += 1
        session_id, epoch = int(said.session_id), int(said.session_epoch)
        asked = {
            self._key(topic, part.partition): (int(part.fetch_offset), int(part.partition_max_bytes))
            for topic in said.topics
            for part in topic.partitions
        }
        if epoch in (0, -1):
            self.sessions.pop(session_id, None)
            if epoch == -1 or not asked or not self.takes_sessions:
                return self._records(head.correlation_id, 0, asked, int(said.max_bytes), None)
            self.next_id += 1
            session = self.sessions[self.next_id] = Session(1, dict(asked))
            return self._records(head.correlation_id, self.next_id, session.offsets, int(said.max_bytes), session)
        if session_id not in self.sessions:
            return self._error(head.correlation_id, 70)
        session = self.sessions[session_id]
        if epoch != session.epoch:
            return self._error(head.correlation_id, 71)
        session.epoch = after(session.epoch)
        session.offsets.update(asked)
        for topic in said.forgotten_topics_data:
            for index in topic.partitions:
                session.offsets.pop(self._key(topic, index), None)
                session.told.pop(self._key(topic, index), None)
        return self._records(head.correlation_id, session_id, session.offsets, int(said.max_bytes), session)

    def _key(self, topic: Any, index: int) -> Key:
        return (topic.topic if self.version < 13 else NAMES[topic.topic_id], int(index))

    def _error(self, correlation: int, code: int) -> bytearray:
        self.errors.append(code)
        return bytearray(frame_answer(blank(entity(1, self.version, "response"), error_code=code), correlation))

    def _records(
        self, correlation: int, session_id: int, asked: dict[Key, tuple[int, int]], most: int, session: Session | None
    ) -> bytearray:
        kind = entity(1, self.version, "response")
        topic_type = element_type(kind, "responses")
        part_type = element_type(topic_type, "partitions")
        parts: dict[str, list[Any]] = {}
        for (name, index), (offset, most_of_it) in list(asked.items()):
            log = self.logs[(name, index)]
            records = log.read(offset, min(most, most_of_it)) if most > 0 else b""
            most -= len(records)
            known = session.told.get((name, index)) if session is not None else None
            if session is not None:
                session.told[(name, index)] = log.end
                if records:  # A partition with records moves behind the others.
                    session.offsets[(name, index)] = session.offsets.pop((name, index))
            if records or known != log.end:
                parts.setdefault(name, []).append(
                    blank(
                        part_type,
                        partition_index=index,
                        high_watermark=log.end,
                        last_stable_offset=log.end,
                        preferred_read_replica=-1,
                        records=records,
                    )
                )
        topics = tuple(
            blank(topic_type, **({"topic": name} if self.version < 13 else {"topic_id": IDS[name]}), partitions=of)
            for name, of in ((name, tuple(of)) for name, of in parts.items())
        )
        said = blank(
            kind, throttle_time=dt.timedelta(milliseconds=self.throttle), session_id=session_id, responses=topics
        )
        return bytearray(frame_answer(said, correlation))


class Client:
    """A client that does what FetchSessionHandler and the fetcher of a Java consumer do.

    The client sends a fetch at a time, when all records are handed out.
    """

    def __init__(self, version: int, stage: Stage) -> None:
        self.version = version
        self.stage = stage
        self.session_id, self.epoch = 0, 0
        self.told: dict[Key, int] = {}
        """Offsets that the client's session knows."""
        self.positions: dict[Key, int] = {}
        self.paused: set[Key] = set()
        self.ends: dict[Key, int] = {}
        self.got: dict[Key, list[int]] = {}
        """Base offsets since the last jump."""
        self.correlation = 0
        self.waits = False
        self.most = 1 << 25
        self.sessions: set[int] = set()
        self.errors: list[int] = []
        self._seen = 0

    def ask(self) -> None:
        wanted = {key: at for key, at in self.positions.items() if key not in self.paused}
        gone: list[Key] = []
        if self.epoch > 0:
            gone = [key for key in self.told if key not in wanted]
            listed = {key: at for key, at in wanted.items() if self.told.get(key) != at}
        else:
            listed = dict(wanted)
        self.told = dict(wanted)
        self.correlation += 1
        said = message(
            self.version,
            {key: Position(3, at, -1, -1, 4000) for key, at in listed.items()},
            gone,
            max_wait=dt.timedelta(milliseconds=500),
            min_bytes=1,
            max_bytes=self.most,
            session_id=self.session_id,
            session_epoch=self.epoch,
        )
        self.waits = True
        self.stage.session.frame(framed(said, self.version, self.correlation))

    def hear(self) -> None:
        """Take the answer that has arrived."""
        come = b"".join(map(bytes, self.stage.edge.replies))[self._seen :]
        if len(come) < 4 or len(come) < struct.unpack_from(">i", come)[0] + 4:
            return
        size = struct.unpack_from(">i", come)[0] + 4
        assert len(come) == size, "one answer to one request"
        self._seen += size
        assert self.waits
        self.waits = False
        frame = bytearray(come)
        assert struct.unpack_from(">i", frame, 4) == (self.correlation,)
        said = decode_body(entity(1, self.version, "response"), frame, response_body_offset(frame, True))
        if said.error_code:
            self.errors.append(int(said.error_code))
            self.epoch = 0
            self.session_id = self.session_id if int(said.error_code) == 71 else 0
            return
        if self.epoch == 0:
            self.session_id = int(said.session_id)
            self.epoch = 1 if self.session_id else 0
            self.sessions.add(self.session_id)
        elif not said.session_id:
            self.session_id = self.epoch = 0
        else:
            assert int(said.session_id) == self.session_id
            self.epoch = after(self.epoch)
        records = sum(len(part.records or b"") for topic in said.responses for part in topic.partitions)
        assert records <= self.most + 1000, "more than was asked for"
        for topic in said.responses:
            name = topic.topic if self.version < 13 else NAMES[topic.topic_id]
            for part in topic.partitions:
                self._take((name, int(part.partition_index)), part)

    def _take(self, key: Key, part: Any) -> None:
        assert key in self.told, "a partition that the session does not read"
        assert not part.error_code
        self.ends[key] = int(part.high_watermark)
        records, at = bytes(part.records or b""), 0
        while at + 12 <= len(records):
            base, length = struct.unpack_from(">qi", records, at)
            at += 12 + length
            if at > len(records):
                break
            (named,) = struct.unpack_from(">q", records, at - length - 12 + 61)
            assert named == base, "a batch is whole"
            assert base + 10 > self.positions[key]
            self.got.setdefault(key, []).append(base)
            self.positions[key] = base + 10


class World:
    def __init__(self, version: int, seed: int, partitions: int = 3, batches: int = 0) -> None:
        self.dice = random.Random(seed)
        self.stage = Stage()
        self.broker = Broker(version)
        self.client = Client(version, self.stage)
        self.keys = [(name, index) for index in range(partitions) for name in IDS][:partitions]
        for key in self.keys:
            self.broker.logs[key] = Log()
            self.client.positions[key] = 0
            for _ in range(batches):
                self.broker.logs[key].append()
        self._asked = 0

    @property
    def fates(self) -> tuple[int, int]:
        fates = self.stage.shared.room_ahead.fates
        return fates[Fate.USED], fates[Fate.DROPPED]

    def answer_next(self) -> bool:
        """Answer the oldest open request as the broker; return False where no request is open."""
        sent = self.stage.edge.sent
        if self._asked == len(sent):
            return False
        one = sent[self._asked]
        self._asked += 1
        self._deliver(one, self.broker.answer(one.frame))
        return True

    def _deliver(self, sent: Sent, frame: bytearray) -> None:
        take = sent.begins() if sent.begins is not None and len(frame) >= LARGE else None
        if take is None:
            sent.answered_with(frame)
            return
        left, at = len(frame), 0
        for piece in self._pieces(frame):
            come = memoryview(bytearray(frame[at:piece]))
            taken = take(come, left)
            at += taken
            left -= taken
            frame[at:piece] = come[taken:]
        assert not left

    def _pieces(self, frame: bytearray) -> Iterator[int]:
        at = 0
        while at < len(frame):
            at = min(len(frame), at + self.dice.randrange(100, 3000))
            yield at

    def settle(self) -> None:
        """Answer requests until the client has its answer and nothing is in flight."""
        while self.answer_next():
            pass
        self.client.hear()
        assert not self.client.waits

    def poll(self) -> None:
        self.client.ask()
        self.settle()

    def read_on(self, most: int = 200) -> None:
        """Poll until two polls in a row bring nothing new."""
        quiet = 0
        for _ in range(most):
            before = dict(self.client.positions)
            self.poll()
            quiet = quiet + 1 if before == self.client.positions else 0
            if quiet == 2:
                return
        pytest.fail("it never came to the end")

    def check_whole(self) -> None:
        """Check that the batches read since the last jump are the log's batches, each of them once and in order."""
        for key, got in self.client.got.items():
            bases = [base for base, _ in self.broker.logs[key].batches]
            if got:
                first = bases.index(got[0])
                assert got == bases[first : first + len(got)], key


@pytest.mark.parametrize("version", [12, 13, 15, 17])
def test_who_is_behind_gets_most_answers_before_asking_and_reads_everything_once(version: int) -> None:
    world = World(version, 1, batches=400)
    world.read_on()
    used, dropped = world.fates
    assert used > 60
    assert dropped <= 1, "at the end"
    assert world.client.errors == world.broker.errors == []
    assert len(world.client.sessions) == 1
    for key, log in world.broker.logs.items():
        assert world.client.got[key] == [base for base, _ in log.batches]
        assert world.client.ends[key] == log.end
    assert world.stage.shared.room_ahead.taken == 0


def test_what_is_asked_ahead_is_what_the_client_would_have_asked_but_for_its_size() -> None:
    world = World(17, 1, batches=100)
    for _ in range(4):
        world.poll()
    *_, before, ahead = [one.frame for one in world.stage.edge.sent]
    world.client.ask()
    assert world.stage.edge.sent[-2].frame == ahead, "its answer is there: the next one is asked at once"
    kind = entity(1, 17, "request")
    one, two = (decode_body(kind, frame, peek_request(frame, True).body) for frame in (before, ahead))
    assert (int(two.session_epoch), two.session_id) == (int(one.session_epoch) + 1, one.session_id)
    assert (two.max_wait, two.min_bytes, two.rack_id) == (one.max_wait, one.min_bytes, one.rack_id)
    assert int(two.max_bytes) == 8 << 20
    assert world.client.most > 8 << 20


def far_behind(seed: int = 1, version: int = 17, batches: int = 300) -> World:
    """Return a world whose client has a buffered answer to a request that the router sent ahead."""
    world = World(version, seed, batches=batches)
    while not world.stage.shared.room_ahead.taken:
        world.poll()
    return world


def test_an_answer_that_waits_for_too_long_is_dropped_and_the_session_goes_on() -> None:
    world = far_behind()
    world.stage.edge.clock += STALE_S + 0.1
    world.stage.session.advance()
    assert world.stage.shared.room_ahead.taken == 0
    assert world.stage.session.waiting_bytes == 0
    assert world.fates == (0, 1)
    session = world.client.session_id
    world.read_on()
    world.check_whole()
    assert world.client.session_id == session
    assert session not in world.broker.sessions, "the broker's is another one by now"
    assert world.client.errors == world.broker.errors == []
    world.client.epoch, before = -1, len(world.broker.sessions)
    world.poll()
    assert len(world.broker.sessions) == before - 1, "and the client can end it"


def test_a_jump_drops_what_was_asked_ahead_whether_it_has_come_or_not() -> None:
    for come in (True, False):
        world = far_behind()
        key = world.keys[0]
        if not come:
            world.client.ask()
            world.client.hear()
        else:
            while world.answer_next():
                pass
        assert not world.client.waits
        world.client.positions[key] = 500
        world.client.got[key] = []
        world.poll()
        assert world.client.got[key][0] == 500
        assert world.fates[1] == 1
        world.read_on()
        world.check_whole()
        assert world.client.errors == world.broker.errors == []


def test_nothing_is_asked_ahead_where_little_is_left_or_answers_are_small() -> None:
    world = World(17, 1)
    for log in world.broker.logs.values():
        log.append(400)
    for _ in range(50):
        world.poll()
        for log in world.broker.logs.values():
            log.append(200)
    assert len(world.stage.edge.sent) == 50
    assert world.fates == (0, 0)


def test_nothing_is_asked_ahead_beyond_the_room() -> None:
    world = World(17, 1, batches=100)
    world.stage.shared.room_ahead.limit = read_ahead.MOST_BYTES - 1
    world.read_on()
    assert world.fates == (0, 0)
    assert len(world.stage.edge.sent) == world.client.correlation
    world.check_whole()


def test_nothing_is_asked_ahead_of_a_throttled_client_nor_once_clients_are_to_leave() -> None:
    world = World(17, 1, batches=100)
    world.broker.throttle = 5
    for _ in range(5):
        world.poll()
    assert world.fates == (0, 0)
    assert world.stage.shared.room_ahead.taken == 0
    world.broker.throttle = 0
    world.stage.shared.closing = True
    for _ in range(5):
        world.poll()
    assert world.stage.shared.room_ahead.taken == 0


def test_a_client_that_is_gone_gives_its_room_back() -> None:
    for come in (True, False):
        world = far_behind()
        if come:
            while world.answer_next():
                pass
        world.stage.session.closed()
        assert world.stage.shared.room_ahead.taken == 0
        while world.answer_next():
            pass
        assert world.stage.shared.room_ahead.taken == 0
        assert world.stage.session.waiting_bytes == 0


def test_who_reads_ahead_does_not_notice_that_a_broker_forgets_the_session() -> None:
    for forgets_before in (True, False):
        world = far_behind()
        if forgets_before:
            world.broker.sessions.clear()
        while world.answer_next():
            pass
        world.broker.sessions.clear()
        world.read_on()
        assert world.broker.errors != []
        assert world.client.errors == []
        world.check_whole()


def test_a_broker_without_room_for_a_session_is_read_all_the_same() -> None:
    world = far_behind()
    world.broker.takes_sessions = False
    world.stage.edge.clock += 60
    world.read_on()
    world.check_whole()
    assert world.client.errors == []
    assert world.client.session_id == 0


def test_wrong_guesses_become_rare() -> None:
    world = World(17, 1, batches=3000)
    for _ in range(600):
        world.client.positions[world.keys[0]] = 0
        world.poll()
    assert world.fates[0] == 0
    assert 2 < world.fates[1] < 8


def test_the_last_epoch_is_followed_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_LAST_EPOCH", 7)
    monkeypatch.setattr(sys.modules[__name__], "LAST_EPOCH", 7)
    world = far_behind()
    for _ in range(3):
        world.client.positions[world.keys[0]] = 0
        world.client.got[world.keys[0]] = []
        for _ in range(20):
            world.poll()
    world.read_on()
    world.check_whole()
    assert world.client.errors == world.broker.errors == []
    assert world.fates[0] > 10


# Requests made by hand


@dataclass
class Told:
    """An answer as the client read it: bases of the batches by partition."""

    correlation: int
    error: int
    session: int
    bases: dict[Key, list[int]]


class ByHand:
    """A client that sends any request, even before the last answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.correlation = 1000
        self._seen = sum(map(len, world.stage.edge.replies))

    def send(self, places: dict[Key, int], session: int = 0, epoch: int = 0, **more: Any) -> int:
        gone, wait = more.pop("gone", []), dt.timedelta(milliseconds=500)
        version = more.pop("version", self.world.broker.version)
        values = {"max_wait": wait, "min_bytes": 1, "max_bytes": 1 << 25, **more}
        wanted = {key: Position(3, at, -1, -1, 4000) for key, at in places.items()}
        said = message(version, wanted, gone, session_id=session, session_epoch=epoch, **values)
        self.correlation += 1
        self.world.stage.session.frame(framed(said, version, self.correlation))
        return self.correlation

    def told(self) -> list[Told]:
        """Let the broker answer everything, and return the answers since the last look."""
        while self.world.answer_next():
            pass
        come = b"".join(map(bytes, self.world.stage.edge.replies))[self._seen :]
        self._seen += len(come)
        out, version = [], self.world.broker.version
        while come:
            (size,) = struct.unpack_from(">i", come)
            frame, come = bytearray(come[: size + 4]), come[size + 4 :]
            said = decode_body(entity(1, version, "response"), frame, response_body_offset(frame, True))
            bases = {
                (NAMES[topic.topic_id], int(part.partition_index)): batch_bases(bytes(part.records or b""))
                for topic in said.responses
                for part in topic.partitions
            }
            (correlation,) = struct.unpack_from(">i", frame, 4)
            out.append(Told(correlation, int(said.error_code), int(said.session_id), bases))
        return out

    @property
    def last_sent(self) -> Any:
        frame = self.world.stage.edge.sent[-1].frame
        return decode_body(entity(1, 17, "request"), frame, peek_request(frame, flexible=True).body)


def batch_bases(records: bytes) -> list[int]:
    """Return the base offsets of the whole batches."""
    bases, at = [], 0
    while at + 12 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        at += 12 + length
        if at <= len(records):
            bases.append(base)
    return bases


def asked_ahead(seed: int = 1) -> tuple[World, ByHand]:
    """Return a world in which a buffered answer waits for the client's request."""
    world = far_behind(seed)
    while world.answer_next():
        pass
    return world, ByHand(world)


def test_what_is_asked_ahead_keeps_nothing_else_waiting() -> None:
    world = far_behind()
    assert ByHand(world).last_sent.max_wait == dt.timedelta(0)


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_session_that_ends_after_an_answer_grew_too_old_gives_its_room_back_once(epoch: int) -> None:
    world, _ = asked_ahead()
    world.stage.edge.clock += STALE_S + 0.1
    world.stage.session.advance()
    world.client.epoch = epoch
    world.client.ask()
    world.stage.session.closed()
    assert world.stage.shared.room_ahead.taken == 0
    assert world.fates == (0, 1)


def test_a_client_may_send_on_before_it_is_answered_while_its_session_is_opened_anew() -> None:
    world, client = asked_ahead()
    key, session, epoch = world.keys[0], world.client.session_id, world.client.epoch
    sent = [client.send({key: 500}, session, epoch), client.send({key: 600}, session, epoch + 1)]
    told = client.told()
    assert [(one.correlation, one.error, one.session) for one in told] == [(each, 0, session) for each in sent]
    assert [one.bases[key][0] for one in told] == [500, 600]


def test_a_client_may_end_its_session_or_begin_another_behind_a_request_under_way() -> None:
    world, client = asked_ahead()
    key, session, epoch = world.keys[0], world.client.session_id, world.client.epoch
    client.send({key: 500}, session, epoch)
    client.send({}, session, -1)
    assert client.told()[0].session == session
    assert world.broker.sessions == {}
    client.send({key: 0})
    (first,) = client.told()
    client.send({}, first.session, 1)
    client.send({key: 0}, first.session, 0)
    _, second = client.told()
    assert second.session in world.broker.sessions
    client.send({}, second.session, 1)
    assert [one.error for one in client.told()] == [0]


def test_two_requests_at_once_are_guessed_behind_once_and_get_what_they_ask() -> None:
    world = World(17, 1, partitions=2, batches=60)
    one, two = world.keys
    client, end = ByHand(world), world.broker.logs[one].end
    client.send({one: 0, two: 0})
    session = client.told()[0].session
    client.send({one: 50, two: 50}, session, 1)
    client.send({one: end, two: 100}, session, 2)
    _, last = client.told()
    client.send({two: last.bases[two][-1] + 10}, session, 3)
    assert client.told()[0].bases.get(one, []) == [], "it reads that one at its end"
    world.stage.session.closed()
    assert world.stage.shared.room_ahead.taken == 0


def test_only_as_many_answers_are_awaited_whole_as_there_is_room() -> None:
    world = World(17, 1)
    shared = world.stage.shared
    shared.room_ahead.limit = read_ahead.MOST_BYTES
    for log in world.broker.logs.values():
        for _ in range(100):
            log.append()
    edges = []
    for _ in range(20):
        edge = FakeClientLink()
        session = RouterSession(shared, edge)
        places = {key: Position(3, 0, -1, -1, 4000) for key in world.keys}
        values = {"max_wait": dt.timedelta(0), "min_bytes": 1, "max_bytes": 1 << 25}
        session.frame(framed(message(17, places, [], session_id=0, session_epoch=0, **values), 17))
        edge.sent[0].answered_with(world.broker.answer(edge.sent[0].frame))
        frame = bytearray(edge.replies[0])
        told = decode_body(entity(1, 17, "response"), frame, response_body_offset(frame, True))
        session.frame(framed(message(17, {}, [], session_id=int(told.session_id), session_epoch=1, **values), 17))
        edges.append(edge)
    assert sum(edge.sent[-1].begins is not None and edge.sent[-1].begins() is None for edge in edges) == 1


def test_a_broker_waits_for_as_many_bytes_as_the_client_wants() -> None:
    world = World(17, 1, batches=100)
    client = ByHand(world)
    client.send(dict.fromkeys(world.keys, 0), min_bytes=20 << 20)
    session = client.told()[0].session
    client.send(dict.fromkeys(world.keys, 20), session, 1, min_bytes=20 << 20)
    assert client.last_sent.max_bytes == 1 << 25


def test_who_is_throttled_is_soon_passed_as_everybody_else() -> None:
    world = World(17, 1, batches=400)
    world.broker.throttle = 5
    cut = 0
    for _ in range(50):
        world.poll()
        cut += int(ByHand(world).last_sent.max_bytes) == read_ahead.MOST_BYTES
    assert 0 < cut < 6


def test_what_a_request_names_and_forgets_is_forgotten() -> None:
    world, client = asked_ahead()
    key = world.keys[0]
    client.send({key: 500}, world.client.session_id, world.client.epoch, gone=[key])
    assert key not in client.told()[0].bases


def test_a_session_by_ids_is_not_gone_on_with_by_names() -> None:
    world, client = asked_ahead()
    client.send({("one", 0): 500}, world.client.session_id, world.client.epoch, version=12)
    sent = world.stage.edge.sent[-1].frame
    said = decode_body(entity(1, 12, "request"), sent, peek_request(sent, flexible=True).body)
    assert [topic.topic for topic in said.topics] == ["one"], "the broker says what it thinks of it"
    assert int(said.session_id) == world.client.session_id


def test_a_session_of_too_many_partitions_is_passed_as_it_is() -> None:
    world = World(17, 1, partitions=1)
    log = world.broker.logs[world.keys[0]]
    for _ in range(600):
        log.append()
    for index in range(600):
        world.broker.logs[("two", index)] = Log()
        world.client.positions[("two", index)] = 0
    world.read_on()
    world.check_whole()
    assert world.fates == (0, 0)
    assert world.client.errors == []


def test_a_session_that_grows_too_large_is_followed_no_further() -> None:
    world = World(17, 1, partitions=1)
    world.poll()
    for index in range(600):
        world.broker.logs[("two", index)] = Log()
        world.client.positions[("two", index)] = 0
    world.poll()
    assert world.stage.session.waiting_bytes == 0
    world.read_on()
    assert world.client.errors == []


def test_a_request_that_reads_less_is_another_one() -> None:
    world = World(17, 1)
    for key in world.keys[:2]:
        for _ in range(100):
            world.broker.logs[key].append()
    while not world.stage.shared.room_ahead.taken:
        world.poll()
    world.client.paused.add(world.keys[2])
    world.poll()
    assert world.fates[1] == 1
    world.broker.logs[world.keys[2]].append()
    world.read_on()
    assert world.keys[2] not in world.client.got


def test_what_a_session_of_many_partitions_takes_is_counted() -> None:
    for many in (20, 200):
        world = World(17, 1, partitions=1)
        for index in range(many):
            world.broker.logs[("two", index)] = Log()
            world.client.positions[("two", index)] = 0
        world.poll()
        assert (world.stage.session.waiting_bytes > 0) is (many == 200)


@pytest.mark.parametrize("base", [-1, (1 << 63) - 12, (1 << 63) - 1])
def test_offsets_that_cannot_be_are_not_guessed_behind(base: int) -> None:
    world = World(17, 1, partitions=1)
    (key,) = world.keys
    for _ in range(100):
        world.broker.logs[key].append()
    batch = bytearray(world.broker.logs[key].batches[7][1])
    struct.pack_into(">q", batch, 0, base)
    struct.pack_into(">i", batch, 23, 20)
    world.broker.logs[key].batches[7] = (70, bytes(batch))
    client = ByHand(world)
    client.send({key: 0})
    session = client.told()[0].session
    client.send({key: 30}, session, 1)
    assert client.told()[0].error == 0
    assert len(world.stage.edge.sent) == 2
    assert world.stage.edge.closed == []


# A client that logs in again meanwhile (KIP-368), with logins that pass to the target


def handshake(correlation: int) -> bytearray:
    whole = encode_request_head(17, 1, correlation, b"c", False) + encode_body(
        entity(17, 1, "request")(mechanism="PLAIN")
    )
    return bytearray(SIZE.pack(len(whole)) + whole)


def keys_sent(world: World) -> list[int]:
    return [struct.unpack_from(">h", one.frame, 4)[0] for one in world.stage.edge.sent]


def relayed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    login = world.stage.session._login
    monkeypatch.setattr(login, "relays", lambda head, request: True)
    monkeypatch.setattr(login, "relayed", lambda head, answer: answer)


def test_nothing_is_asked_ahead_within_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(17, 1, batches=300)
    relayed(world, monkeypatch)
    world.poll()
    world.client.ask()
    world.stage.session.frame(handshake(9999))
    world.answer_next()
    assert keys_sent(world) == [1, 1, 17]


@pytest.mark.parametrize("usable", [True, False])
def test_a_login_does_not_overtake_what_may_be_asked_in_place_of_what_was_asked_ahead(
    usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = asked_ahead()
    relayed(world, monkeypatch)
    world.client.ask()
    world.client.hear()
    world.client.ask()
    if not usable:
        world.broker.sessions.clear()
    world.stage.session.frame(handshake(9999))
    assert keys_sent(world)[-1] == 1
    world.answer_next()
    assert keys_sent(world)[-2:] == [1, 17]


def test_nothing_is_asked_ahead_once_a_login_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(17, 1, batches=300)
    world.poll()
    world.client.ask()
    monkeypatch.setattr(world.stage.session._login, "_ends", world.stage.edge.clock + 0.5)
    world.answer_next()
    assert len(world.stage.edge.sent) == 2


# Answers that do not come


def test_an_answer_that_was_on_its_way_for_long_is_not_used() -> None:
    for clock in (LATE_S + 1, LATE_S - 1):
        world, _ = asked_ahead()
        world.client.ask()
        world.client.hear()
        one = world.stage.edge.sent[world._asked]
        world._asked += 1
        old = world.broker.answer(one.frame)
        for log in world.broker.logs.values():
            log.append()
        world.stage.edge.clock += clock
        world.client.ask()
        one.answered_with(old)
        world.settle()
        fresh = {key: log.end for key, log in world.broker.logs.items()}
        assert (world.client.ends == fresh) is (clock > LATE_S)


@pytest.mark.parametrize("begun", [False, True])
def test_an_answer_that_does_not_come_has_its_room_while_memory_is_kept_for_it(begun: bool) -> None:
    world, _ = asked_ahead()
    world.client.ask()
    world.client.hear()
    one = world.stage.edge.sent[-1]
    assert one.begins is not None
    if begun:
        assert one.begins() is None
    world.stage.edge.clock += LATE_S + 1
    world.stage.session.advance()
    assert world.fates == (1, 1)
    assert world.stage.shared.room_ahead.taken == (read_ahead.MOST_BYTES if begun else 0)
    if begun:
        world._asked += 1
        one.answered_with(world.broker.answer(one.frame))
    else:
        assert one.begins() is not None, "it is taken as it comes, and kept nowhere"
    assert world.stage.shared.room_ahead.taken == 0
    world.read_on()
    world.check_whole()


# Random sequences of events


class Restless:
    """A client that changes its plans, and a cluster that changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.evicted = 0

    @property
    def key(self) -> Key:
        return self.world.dice.choice(self.world.keys)

    def poll(self) -> None:
        for _ in range(self.world.dice.randrange(1, 8)):
            self.world.poll()

    def jump(self) -> None:
        key, client = self.key, self.world.client
        client.positions[key] = self.world.dice.randrange(self.world.broker.logs[key].end + 1)
        client.got[key] = []

    def pause(self) -> None:
        self.world.client.paused.add(self.key)

    def resume(self) -> None:
        self.world.client.paused.discard(self.key)

    def less(self) -> None:
        self.world.client.most = self.world.dice.choice([1 << 25, 5000])

    def wait(self) -> None:
        self.world.stage.edge.clock += self.world.dice.choice([0.1, 1.0])
        if self.world.dice.random() < 0.5:
            self.world.stage.session.advance()

    def begin(self) -> None:
        self.world.client.epoch = 0

    def end(self) -> None:
        self.world.client.epoch = -1
        self.world.poll()
        self.world.client.session_id = self.world.client.epoch = 0

    def append(self) -> None:
        key = self.key
        for _ in range(self.world.dice.randrange(1, 80)):
            self.world.broker.logs[key].append(self.world.dice.randrange(80, 900))

    def evict(self) -> None:
        if self.world.broker.sessions:
            self.world.broker.sessions.clear()
            self.evicted += 1

    def answer(self) -> None:
        while self.world.dice.random() < 0.5 and self.world.answer_next():
            pass


MOVES = [name for name in vars(Restless) if not name.startswith("_") and name != "key"]
moves = st.lists(st.sampled_from([*MOVES, *["poll"] * 6]), min_size=5, max_size=60)


@settings(max_examples=150)
@given(st.integers(0, 1 << 30), moves, st.sampled_from([12, 13, 16, 18]))
def test_whatever_a_client_does_it_is_given_what_it_asks_for(seed: int, made: list[str], version: int) -> None:
    world = World(version, seed, partitions=4)
    restless = Restless(world)
    for log in world.broker.logs.values():
        for _ in range(world.dice.randrange(300)):
            log.append(world.dice.randrange(80, 900), gap=world.dice.choice([0, 0, 0, 5]))
    for move in made:
        getattr(restless, move)()
    world.client.paused.clear()
    world.read_on(most=2000)
    world.check_whole()
    assert len(world.client.errors) <= restless.evicted
    assert set(world.client.errors) <= {70}
    assert 71 not in world.broker.errors, "of the router's own making"
    for key, log in world.broker.logs.items():
        assert world.client.positions[key] == log.end
        assert world.client.ends[key] == log.end
    assert world.stage.edge.closed == []
