"""Idempotent producers of two routers through fences, flips and faults: each batch is stored once and in order.

A fake of each cluster keeps what a broker keeps of a producer; a flip copies the written log as the mirror does. A
topic is promoted, rolled back and promoted again, as often as the dice say.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from struct import unpack_from

import pytest

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import DIRECT_LIMIT, Serve, TopicRoute
from kmigrate.protocol.codes import Code
from kmigrate.router.session.session import Session
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.produce import ProducePart, ProduceRequest, encode_request, parse_answer
from tests.unit.router.router_fakes import FakeClientLink, Sent, Stage, batch, held, route

_PARTITIONS = (0, 1)
_IN_FLIGHT = 5
_TROUBLED, _CALM = 300, 200
"""Number of rounds; a round is a twentieth of a second."""
_AGAIN = {Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS, Code.REQUEST_TIMED_OUT}

Written = tuple[int, int]
"""The producer id as the client knows it, and the sequence."""


class _Log:
    """A partition: the stored batches, and per producer the last five sequences that the broker knows."""

    def __init__(self) -> None:
        self.held: list[Written] = []
        self.known: dict[int, deque[int]] = {}

    def last(self, producer: int) -> int:
        return self.known.get(producer, [-1])[-1]

    def append(self, producer: int, sequence: int) -> int:
        known = self.known.setdefault(producer, deque(maxlen=_IN_FLIGHT))
        if sequence in known:
            return 0
        if known and sequence != known[-1] + 1:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        known.append(sequence)
        self.held.append((producer % DIRECT_LIMIT, sequence))
        return 0


class _Connection:
    """A client's connection to a router, with the requests on the way from there to each broker."""

    def __init__(self, router: Stage, now: float) -> None:
        self.edge = FakeClientLink(now)
        self.session = Session(router.shared, self.edge)
        self.on_way: dict[str, deque[Sent]] = {"source 1": deque(), "target": deque()}
        self.asked: deque[list[Written]] = deque()
        """Partition and sequence of each batch, by request."""

    def write(self, producer: int, written: list[Written]) -> None:
        self.asked.append(written)
        parts = [ProducePart("t", at, memoryview(batch(producer, 0, sequence))) for at, sequence in written]
        request = ProduceRequest(9, None, -1, 2_000, tuple(parts))
        frame = encode_request(request, parts, version=9, acks=-1, correlation=1, client_id="c")
        self.session.frame(bytearray(b"".join(frame)))

    def pass_on(self) -> None:
        while self.edge.sent:
            sent = self.edge.sent.pop(0)
            self.on_way[sent.where].append(sent)


class _Client:
    """A producer that resends unacknowledged batches in order: at most five of a partition, from the oldest on."""

    def __init__(self, producer: int, dice: random.Random) -> None:
        self.producer, self.dice = producer, dice
        self.connection: _Connection | None = None
        self.begins = [dice.uniform(0, 12) for _ in _PARTITIONS]
        self.next, self.again_at = [0, 0], [0.0, 0.0]
        self.due: list[list[int]] = [[], []]
        """Unacknowledged sequences, by partition."""
        self.under_way: set[Written] = set()

    def hear(self, now: float) -> None:
        assert self.connection is not None
        while self.connection.edge.replies:
            answers, _, _ = parse_answer(self.connection.edge.replies.pop(0), 9)
            for answer, (at, sequence) in zip(answers, self.connection.asked.popleft(), strict=True):
                self.under_way.discard((at, sequence))
                if not answer.error:
                    self.due[at].remove(sequence)
                    continue
                behind = answer.error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and sequence != self.due[at][0]
                assert behind or answer.error in _AGAIN, f"{sequence}: {answer.error}, while {self.due[at]} are due"
                self.again_at[at] = now + 0.1

    def send(self, now: float, *, more: bool) -> None:
        assert self.connection is not None
        while len(self.connection.asked) < _IN_FLIGHT:
            written = []
            for at in _PARTITIONS:
                again = [sequence for sequence in self.due[at] if (at, sequence) not in self.under_way]
                room = not self.due[at] or self.next[at] - self.due[at][0] < _IN_FLIGHT
                if now < max(self.begins[at], self.again_at[at]):
                    continue
                if again:
                    written.append((at, again[0]))
                elif more and room and self.dice.random() < 0.3:
                    written.append((at, self.next[at]))
                    self.due[at].append(self.next[at])
                    self.next[at] += 1
            if not written:
                return
            self.under_way.update(written)
            self.connection.write(self.producer, written)


class _Play:
    """A topic with two partitions, two routers and three clients."""

    def __init__(self, seed: int, *, uncounted: bool) -> None:
        self.dice, self.now, self.troubled = random.Random(seed), 0.0, True
        self.uncounted, self.generation = uncounted, 0
        """`uncounted`: the topic has no way back, so nobody counts the writes to the target."""
        self.gate: Mapping[int, tuple[ProducerMark, ...]] = {}
        self.source, self.target = [_Log(), _Log()], [_Log(), _Log()]
        self.tables: list[TopicRoute] = [route("t", Serve.FORWARD)]
        self.routers = [Stage(*self.tables), Stage(*self.tables)]
        self.applied = [0, 0]
        self.clients = [_Client(producer, self.dice) for producer in (5, 6, 7)]
        self.connections: list[_Connection] = []
        self.late: list[Sent] = []
        """Requests of lost connections that the broker has yet to read."""
        self.marks: list[dict[int, ProducerMark]] = [{}, {}]
        """Newest mark of each producer at the flips so far, by partition."""

    def may(self, share: float) -> bool:
        return self.troubled and self.dice.random() < share

    @property
    def route(self) -> TopicRoute:
        return self.tables[-1]

    def round(self) -> None:
        self.now += 0.05
        self.control()
        for number, router in enumerate(self.routers):
            if self.applied[number] < len(self.tables) - 1 and not self.may(0.6):
                self.applied[number] += 1
                router.swap(self.tables[self.applied[number]])
            asked = router.backend.asked
            while asked and not self.may(0.5):
                _, partition, producer, then = asked.pop(0)
                then(None if self.may(0.2) else held(self.target[partition].last(producer), producer))
            asked = router.backend.asked_source
            while asked and not self.may(0.5):
                _, partition, producer, then = asked.pop(0)
                then(None if self.may(0.2) else held(self.source[partition].last(producer), producer))
            while router.backend.sought:
                _, _, partition, stored, tell = router.backend.sought.pop(0)
                tell(self.source[partition].last(stored.producer_id) >= stored.sequence)
        while self.late and not self.may(0.8):
            self.store(self.late.pop(0))
        for client in self.clients:
            self.client(client)
        for connection in self.connections:
            connection.edge.clock = self.now
            connection.session.advance()
            for where in connection.on_way:
                self.broker(connection, where)

    def client(self, client: _Client) -> None:
        connection = client.connection
        if connection is None or connection.session.gone or self.may(0.003):
            if connection is not None:
                self.lose(connection)
            client.under_way.clear()
            connection = client.connection = _Connection(self.dice.choice(self.routers), self.now)
            self.connections.append(connection)
        if not self.may(0.3):
            client.hear(self.now)
        client.send(self.now, more=self.troubled)

    def lose(self, connection: _Connection) -> None:
        """End a client's connection.

        The connection to the target ends too, and a part of the requests on the way arrives. If the writes there are
        counted, the router waits for their answers.
        """
        connection.session.closed()
        if not self.uncounted:
            return
        on_way = connection.on_way["target"]
        self.late += list(on_way)[: self.dice.randint(0, len(on_way))]
        on_way.clear()

    def broker(self, connection: _Connection, where: str) -> None:
        """Answer a part of the requests on the way to a broker, refuse all of them, or lose the connection."""
        connection.pass_on()
        on_way = connection.on_way[where]
        of_source = where != "target"
        troubled = of_source or not self.uncounted
        if troubled and on_way and self.may(0.03):
            lost, sent = list(on_way), self.may(0.7)
            on_way.clear()
            self.late += lost[: self.dice.randint(0, len(lost))] if sent else []
            for each in lost:
                assert each.done is not None
                each.done(Outcome(None, sent=sent))
            if not (of_source or connection.session.gone):
                connection.edge.close("the connection to the target is lost")
        refuses = troubled and self.may(0.05)
        while on_way and (refuses or not self.may(0.5)):
            asked = on_way.popleft()
            codes = self.store(asked) if not refuses else [Code.NOT_ENOUGH_REPLICAS] * len(asked.request.parts)
            asked.answer(*codes)
        if connection.edge.closed and not connection.session.gone:
            self.lose(connection)

    def store(self, sent: Sent) -> list[int]:
        """Return the broker's code for each batch; for some stored batches the code is REQUEST_TIMED_OUT."""
        logs, codes = self.target if sent.where == "target" else self.source, []
        for part in sent.request.parts:
            producer, _, sequence = unpack_from(">qhi", part.records, 43)
            shift = self.route.target_shift if logs is self.target else producer - producer % DIRECT_LIMIT
            assert producer - producer % DIRECT_LIMIT == shift
            assert logs is self.source or self.route.at_target
            code = logs[part.partition].append(producer, sequence)
            codes.append(Code.REQUEST_TIMED_OUT if not code and self.may(0.1) else code)
        return codes

    def control(self) -> None:
        """Start a fence, and when both routers are drained, sooner or later flip or give up the fence."""
        now = self.route
        if now.serve is Serve.FORWARD and self.may(0.03):
            self.flip(Serve.HOLD, fence=len(self.tables))
        elif now.serve is Serve.LOCAL and now.copied_back and self.may(0.03):
            self.flip(Serve.HOLD, fence=len(self.tables), back=True)
        if self.route.serve is not Serve.HOLD:
            return
        words = [router.shared.forwards.fences(router.shared.table).get(self.route.key) for router in self.routers]
        heard = [word for word in words if word is not None and word.epoch == self.route.fence_epoch]
        if len(heard) < len(words) or any(word.in_flight for word in heard) or self.may(0.8):
            return
        back, fence = self.route.rolling_back, self.route.fence_epoch
        if self.may(0.6):
            self.flip(Serve.LOCAL if back else Serve.FORWARD, fence=fence, gate=self.gate)
            return
        if any(sent.where == "target" for sent in self.late):
            return  # a broker reads what it has got long before the end of a fence
        written, copies = (self.target, self.source) if back else (self.source, self.target)
        for marks, log, copy in zip(self.marks, written, copies, strict=True):
            shift = self.route.era.shift
            marks |= {
                producer - shift: ProducerMark(producer - shift, 0, known[-1])
                for producer, known in log.known.items()
                if producer - producer % DIRECT_LIMIT == shift
            }
            copy.held = list(log.held)
        self.gate = {at: tuple(marks.values()) for at, marks in enumerate(self.marks)}
        self.flip(Serve.FORWARD if back else Serve.LOCAL, fence=fence, gate=self.gate, rollbacks=int(back))

    def flip(
        self,
        serve: Serve,
        *,
        fence: int,
        back: bool = False,
        gate: Mapping[int, tuple[ProducerMark, ...]] | None = None,
        rollbacks: int = 0,
    ) -> None:
        """Write the topic's next record."""
        self.generation += rollbacks
        self.tables.append(
            route(
                "t",
                serve,
                fence_epoch=fence,
                gate=gate,
                generation=self.generation,
                rolling_back=back,
                copied_back=not self.uncounted and (back or serve is Serve.LOCAL),
            )
        )


def _played(seed: int, troubled: int, *, uncounted: bool = False) -> _Play:
    """Return a play after its troubled and its calm rounds, with everything stored once and in order."""
    play = _Play(seed, uncounted=uncounted)
    for _ in range(troubled):
        play.round()
    play.troubled = False
    for _ in range(_CALM):
        play.round()
    logs = play.target if play.route.serve is Serve.LOCAL else play.source
    for client in play.clients:
        assert client.due == [[], []]
        for log, count in zip(logs, client.next, strict=True):
            assert [sequence for producer, sequence in log.held if producer == client.producer] == list(range(count))
            assert count
    return play


@pytest.mark.parametrize("seed", range(20))
def test_all_is_stored_once_and_in_order_whatever_happens_at_a_flip(seed: int) -> None:
    _played(seed, _TROUBLED, uncounted=True)


@pytest.mark.parametrize("seed", range(8))
def test_all_is_stored_once_and_in_order_whatever_happens_at_rollbacks(seed: int) -> None:
    play = _played(seed, 3 * _TROUBLED)
    assert play.generation >= 1
